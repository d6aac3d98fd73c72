"""Where all ranks wait for each other."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import timedelta

import torch
import torch.distributed as dist

from pipesim.replay.run.guard import SilentPeerError, is_silence
from pipesim.text import listed

__all__ = ["Meeting"]

_LEAST_S = 1e-3


class Meeting:
    """A barrier that says who is missing. All go on once rank 0 has heard from all.

    Parameters
    ----------
    rank : int
        This worker's.
    group : ProcessGroup
        Of gloo.
    patience : timedelta
        How long rank 0 waits. Others wait twice as long, so it is the first to complain.
    """

    def __init__(self, rank: int, group: dist.ProcessGroup, patience: timedelta) -> None:
        self._rank, self._group, self._patience = rank, group, patience
        self._others = list(range(1, group.size()))

    def wait(self) -> None:
        """Wait for all.

        Raises
        ------
        SilentPeerError
            Somebody does not come.
        """
        if self._rank:
            go = self._group.recv([_word()], 0, 0)
            here = self._group.send([_word()], 0, 0)
            self._complete({0: here}, 2 * self._patience)
            self._complete({0: go}, 2 * self._patience)
        else:
            heard = {other: self._group.recv([_word()], other, 0) for other in self._others}
            self._complete(heard, self._patience)
            told = {other: self._group.send([_word()], other, 0) for other in self._others}
            self._complete(told, self._patience)

    def _complete(self, transfers: Mapping[int, dist.Work], patience: timedelta) -> None:
        """Wait for the end of a transfer with each of some ranks."""
        silent: list[int] = []
        end = time.monotonic() + patience.total_seconds()
        for other, transfer in transfers.items():
            try:
                transfer.wait(timedelta(seconds=max(end - time.monotonic(), _LEAST_S)))
            except RuntimeError as error:
                # The first that times out fails all that have not ended by then.
                if not silent and not is_silence(error):
                    raise
                silent.append(other)
        if silent:
            who = f"rank {silent[0]} does" if len(silent) == 1 else f"ranks {listed(silent)} do"
            raise SilentPeerError(f"{who} not answer")


def _word() -> torch.Tensor:
    return torch.zeros(1, dtype=torch.uint8)
