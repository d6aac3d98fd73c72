"""Both ends of lanes in one process: two ranks as threads, and a store in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from torch.distributed import HashStore

from pipesim.runtime import Lane, Receiver, Sender, open_lanes
from tests.processes import PATIENCE_S

Ends = Mapping[str, Sender | Receiver]


def both(first: Callable[[], object], second: Callable[[], object]) -> tuple[object, object]:
    """Run two functions side by side; returns, or raises, what they do."""
    with ThreadPoolExecutor(2) as threads:
        done = [threads.submit(task) for task in (first, second)]
        return done[0].result(PATIENCE_S), done[1].result(PATIENCE_S)


@contextmanager
def opened(*lanes: Lane, timeout_s: float = PATIENCE_S) -> Iterator[tuple[Ends, Ends]]:
    """The ends at rank 0 and at rank 1 of lanes between them."""
    store = HashStore()

    def at(rank: int) -> Callable[[], Ends]:
        return lambda: open_lanes(store, rank, lanes, timeout_s=timeout_s)

    ends = both(at(0), at(1))
    try:
        yield ends  # type: ignore[misc]
    finally:
        for side in ends:
            for end in side.values():  # type: ignore[attr-defined]
                end.abandon()


@contextmanager
def a_lane(**options: object) -> Iterator[tuple[Sender, Receiver]]:
    """Both ends of one lane."""
    timeout_s = options.pop("timeout_s", PATIENCE_S)
    lane = Lane("lane", 0, 1, **options)  # type: ignore[arg-type]
    with opened(lane, timeout_s=timeout_s) as (out, into):  # type: ignore[arg-type]
        yield out["lane"], into["lane"]  # type: ignore[misc]
