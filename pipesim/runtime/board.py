"""What the ranks of an adaptive job tell each other, through a store of torch."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import NamedTuple

from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

from pipesim.runtime.delegates import PeerError
from pipesim.runtime.transfers import Log

__all__ = ["Board", "Word"]

_END = "end"


class Word(NamedTuple):
    """What all ranks run from an iteration on.

    Attributes
    ----------
    rows : sequence of str
        A line of torch's schedule CSV for each rank, with its sends and receives.
    delegated : collection of (link, direction)
        Whose messages delegates carry.
    """

    rows: Sequence[str]
    delegated: Collection[tuple[int, str]]


class Board:
    """Where rank 0 says what is next, and each rank reports what it has seen.

    Parameters
    ----------
    store : Store
        Of the group.
    rank, ranks : int
        This rank's number in the group, and how many there are. All make their boards in the same
        order.

    Attributes
    ----------
    store : Store
        A part of the group's for this board and whoever has it.
    """

    def __init__(self, store: Store, rank: int, ranks: int) -> None:
        number = store.add(f"pipesim/boards/{rank}", 1)
        self.store = PrefixStore(f"pipesim/board/{number}", store)
        self._rank, self._ranks = rank, ranks

    def placed(self, stages: Sequence[int]) -> dict[int, int]:
        """Put down which stages this rank has; wait for the others, and return all their ranks."""
        self.store.set(f"stages/{self._rank}", json.dumps(list(stages)))
        return {
            stage: rank
            for rank in range(self._ranks)
            for stage in json.loads(self.store.get(f"stages/{rank}"))
        }

    def on_a_line_of_its_own(self) -> Board:
        """Return the same board for another thread, whose waiting does not hold up this one."""
        other = object.__new__(Board)
        other.store = self.store.clone()  # type: ignore[attr-defined]
        other._rank, other._ranks = self._rank, self._ranks
        return other

    def say(self, iteration: int, word: Word | None) -> None:
        """Tell all ranks what is next; None: go on as before. For rank 0 alone."""
        said = None if word is None else [list(word.rows), sorted(word.delegated)]
        self.store.set(f"word/{iteration}", json.dumps(said))
        if iteration > 1:  # nobody is two iterations behind
            self.store.delete_key(f"word/{iteration - 2}")

    def end(self, iteration: int) -> None:
        """Tell all ranks that rank 0 has left before the end of this iteration; for it alone."""
        for number in (iteration, iteration + 1):  # nobody is further
            self.store.set(f"word/{number}", json.dumps(_END))

    def hear(self, iteration: int) -> Word | None:
        """Wait for what rank 0 says.

        Raises
        ------
        PeerError
            It has left.
        """
        said = json.loads(self.store.get(f"word/{iteration}"))
        if said is None:
            return None
        if said == _END:
            raise PeerError(f"rank 0 has left, and plans no iteration {iteration}")
        rows, delegated = said
        return Word(rows, {(link, way) for link, way in delegated})

    def report(self, iteration: int, log: Log) -> None:
        """Put down what this rank has seen of an iteration."""
        self.store.set(self._report(iteration, self._rank), json.dumps(log))

    def complete(self, iteration: int) -> bool:
        """Whether all ranks have put down what they saw; does not wait."""
        return self.store.check([self._report(iteration, rank) for rank in range(self._ranks)])

    def collect(self, iteration: int) -> list[Log]:
        """Take away what all ranks have seen of an iteration."""
        keys = [self._report(iteration, rank) for rank in range(self._ranks)]
        logs = [Log(*json.loads(self.store.get(key))) for key in keys]
        for key in keys:
            self.store.delete_key(key)
        return logs

    def _report(self, iteration: int, rank: int) -> str:
        return f"log/{iteration}/{rank}"
