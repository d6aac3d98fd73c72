"""The messages of a production trace: which send and receive belong to which operator.

The n-th ``forward-send`` of a device is the message of its n-th forward, and so on; some
traces also log an operation for the forwards that send nothing. A name may hold two, as
``forward-send-backward-recv`` does: they are one exchange.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipesim.scenario import Array

if TYPE_CHECKING:
    import pandas as pd

    from pipesim.formats.production.assembly import Assembled

__all__ = ["ENDS", "End", "communication", "messages", "transfers_ms"]

_PART = re.compile(r"(forward|backward)-(?:send|recv)")
_WHOLE = re.compile(rf"{_PART.pattern}(-{_PART.pattern})*")


class End(NamedTuple):
    """One end of a message: whose kind it is (0 forward, 1 backward), and where the other is."""

    kind: int
    peer: int
    sends: bool


ENDS = {
    "forward-send": End(0, 1, True),
    "forward-recv": End(0, -1, False),
    "backward-send": End(1, -1, True),
    "backward-recv": End(1, 1, False),
}


def communication(optype: str) -> bool:
    """Whether an operation is one or several ends of messages.

    Examples
    --------
    >>> communication("forward-send-backward-recv"), communication("grads-reduce-scatter")
    (True, False)
    """
    return _WHOLE.fullmatch(optype) is not None


def messages(comm: pd.DataFrame, whole: Assembled, placement: tuple[int, ...]) -> Array:
    """Return when each end of each message was busy, NaN where none is known.

    Parameters
    ----------
    comm : DataFrame
        Rows of communication, as :func:`pipesim.formats.production.table.read_rows` gives them,
        and ``number``: to which of the complete iterations each belongs.
    whole : Assembled
        The complete iterations.
    placement : tuple of int, shape [S]
        The device of each stage.

    Returns
    -------
    array, shape [I, 4, S, N, 2]
        Start and end, in the order of :data:`ENDS`, at the stage and micro-batch of the operator
        whose message it is. All of an iteration is NaN if some of its ends cannot be told apart.
    """
    count, _, stages, n = whole.start_ms.shape
    result = np.full((count, len(ENDS), stages, n, 2), np.nan)
    known = np.ones(count, dtype=bool)
    keys = ("seq_id", "start_ms", "stage", "number")
    order = np.lexsort([comm[key].to_numpy() for key in keys])
    number, device, start, end_ms = (
        comm[name].to_numpy()[order] for name in ("number", "stage", "start_ms", "end_ms")
    )
    code = comm["optype"].cat.codes.to_numpy()[order]
    names = list(comm["optype"].cat.categories)
    per_device = [2 * n * placement.count(d) for d in range(max(placement) + 1)]
    first = np.concatenate([[0], np.cumsum(per_device)])
    for way, (name, end) in enumerate(ENDS.items()):
        # A name that holds two ends counts for both.
        named = np.isin(code, [i for i, text in enumerate(names) if _holds(text, name)])
        for d in range(len(per_device)):
            rows = np.flatnonzero(named & (device == d))
            of = number[rows]
            cells = whole.orders[:, first[d] : first[d + 1]]
            kinds, op_stages, op_ms = np.unravel_index(cells, (2, stages, n))
            own = kinds == end.kind
            peer = op_stages + end.peer
            across = own & _elsewhere(placement, peer, d)
            found = np.bincount(of, minlength=count)
            for chosen in (across, own):
                each = int(chosen[0].sum())
                fits = known & (found == each)
                if each and fits.any():
                    take = fits[of]
                    i, position = np.nonzero(chosen & fits[:, None])
                    s, m = op_stages[i, position], op_ms[i, position]
                    real = across[i, position]
                    at = i[real], way, s[real], m[real]
                    result[(*at, 0)] = start[rows[take]][real]
                    result[(*at, 1)] = end_ms[rows[take]][real]
            known &= (found == int(across[0].sum())) | (found == int(own[0].sum()))
    result[~known] = np.nan
    return result


def _holds(optype: str, name: str) -> bool:
    return communication(optype) and name in (part.group() for part in _PART.finditer(optype))


def _elsewhere(
    placement: tuple[int, ...], stage: NDArray[np.int_], device: int
) -> NDArray[np.bool_]:
    """Whether there is such a stage, and on another device."""
    there = np.array([-1, *placement, -1])[np.clip(stage + 1, 0, len(placement) + 1)]
    result: NDArray[np.bool_] = (there >= 0) & (there != device)
    return result


def transfers_ms(ends_ms: Array) -> Array:
    """Return the time that each message takes once both its ends are there; NaN: not known.

    Sends and receives hold waiting time: a message's own time is that of the end that came last.
    In an exchange both messages are logged with the time of the longer one. The shorter one's own
    time is not known where those that travel alone take less than half of the other way's.

    Parameters
    ----------
    ends_ms : array, shape [I, 4, S, N, 2]
        See :func:`messages`.

    Returns
    -------
    array, shape [I, 2, S − 1, N]
        Of forward and backward messages over each link.
    """
    durations = ends_ms[..., 1] - ends_ms[..., 0]
    down = np.fmin(durations[:, 0, :-1], durations[:, 1, 1:])
    up = np.fmin(durations[:, 2, 1:], durations[:, 3, :-1])
    times: Array = np.stack([down, up], axis=1)
    exchanged = _exchanged(ends_ms)
    alone = np.where(exchanged, np.nan, times)
    usual = np.full(times.shape[:-1], np.nan)
    known = np.isfinite(alone).any(axis=-1)
    usual[known] = np.nanmedian(alone[known], axis=-1)
    shorter = 2 * usual < usual[:, ::-1]
    times[exchanged & shorter[..., None]] = np.nan
    return times


def _exchanged(ends_ms: Array) -> NDArray[np.bool_]:
    """Whether a message has its time in common with one the other way, shape [I, 2, S − 1, N]."""
    above = ends_ms[:, 0, :-1], ends_ms[:, 3, :-1]  # forward and backward, [I, S − 1, N, 2]
    below = ends_ms[:, 1, 1:], ends_ms[:, 2, 1:]
    same = np.zeros((*above[0].shape[:-1], above[0].shape[-2]), dtype=bool)
    for down, up in (above, below):
        same |= (down[..., :, None, :] == up[..., None, :, :]).all(axis=-1)
    return np.stack([same.any(axis=-1), same.any(axis=-2)], axis=1)
