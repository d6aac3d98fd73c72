"""A replay check: the steps of a production job, run again from their own operator times.

For every step and data-parallel rank the measured operator times, in the measured order,
run under Megatron's exchange (where that is over 1 % off and messages that block nobody are less,
under these); the span from the first forward to the last backward is compared with the measured
one. No measured start time is used, but all measured durations are: the check shows that the
graph of dependencies is right. It predicts nothing and validates no prediction.

The cost of a message is one number for the whole trace, read from it and not fitted: sends
and receives are logged with their waiting time, so the end of a message that came last
shows what the transfer takes; the median over the steps is taken for each message of an
iteration, and the mean over these.

Evidence, on the 64 iterations of the shipped trace (4 stages, 4 micro-batches, 2.0 s):

- Transport *ideal* is 0.25 % short in every iteration, −0.269 … −0.248 %: what is missing
  is not noise but the 9 transfers on the critical path, 5 ms in all.
- A message that travels alone takes 0.39 ms at its sender and is there after another 0.07;
  two that cross in one exchange take 0.77 ms, as if the link served one way at a time. An
  exchange of the engine gives both the same time, so the mean, 0.58 ms, is right for the
  whole iteration: error +0.004 … +0.010 %. With 0.39 it would be −0.08 %, with 0.77 +0.09 %.
- Gaps between an operator and what follows on its device are 4 µs: 0.005 % of the
  iteration, not modelled. Clocks of the ranks agree within 0.1 ms.
- ``nccl`` (sends that overlap compute) spreads by −0.15 … +0.24 %: this job waits for its
  exchanges, as the log shows.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pipesim.engine import Runs
from pipesim.errors import DeadlockError
from pipesim.formats.production import ProductionIteration, ProductionTrace
from pipesim.scenario import Array, Scenario
from pipesim.schedule import Schedule
from pipesim.transport import Exchange, Ideal, Transport

__all__ = ["ReplayCheck", "SpanError", "check_replay", "transfer_ms"]

_GOOD_ENOUGH = 0.01
"""Where exchanges come this close to the measured spans, nothing else is tried."""


@dataclass(frozen=True)
class SpanError:
    """One step of one data-parallel rank: its pipeline's span, measured and replayed.

    Parameters
    ----------
    step, dp_rank : int
        Which one.
    measured_ms, replayed_ms : float
        From the start of the first forward to the end of the last backward.
    """

    step: int
    dp_rank: int
    measured_ms: float
    replayed_ms: float

    @property
    def error(self) -> float:
        """Relative error, signed: above 0 the replay is too long.

        Examples
        --------
        >>> SpanError(step=0, dp_rank=0, measured_ms=200.0, replayed_ms=201.0).error
        0.005
        """
        return (self.replayed_ms - self.measured_ms) / self.measured_ms


@dataclass(frozen=True)
class ReplayCheck:
    """How long the steps of a production trace come out when they are replayed.

    Parameters
    ----------
    file : str
        The trace.
    transport : str
        ``exchange`` or ``ideal``: how messages travel.
    transfer_ms : float
        What every message was taken to cost.
    rows : tuple of SpanError
        In order of step and data-parallel rank; at least one.
    skipped : int
        Number of iterations that were not whole, or whose clocks jump.
    notes : tuple of str
        For people: what was dropped or skipped.
    """

    file: str
    transport: str
    transfer_ms: float
    rows: tuple[SpanError, ...]
    skipped: int
    notes: tuple[str, ...]

    @property
    def steps(self) -> int:
        """Number of different steps."""
        return len({row.step for row in self.rows})

    @cached_property
    def abs_errors(self) -> Array:
        """Absolute relative error of each row, as a fraction: 0.01 is 1 %."""
        return np.abs([row.error for row in self.rows])

    def as_dict(self) -> dict[str, object]:
        """Return the result in JSON types; errors are fractions: 0.01 is 1 %.

        ``predicted_ms`` is ``replayed_ms`` under the name that it used to have.
        """
        errors = self.abs_errors
        return {
            "kind": "replay check",
            "steps": self.steps,
            "median_abs_error": float(np.median(errors)),
            "p90_abs_error": float(np.quantile(errors, 0.9)),
            "max_abs_error": float(errors.max()),
            "bias": float(np.mean([row.error for row in self.rows])),
            "transport": self.transport,
            "transfer_ms": self.transfer_ms,
            "skipped": self.skipped,
            "rows": [
                {
                    "step": row.step,
                    "dp_rank": row.dp_rank,
                    "measured_ms": row.measured_ms,
                    "replayed_ms": row.replayed_ms,
                    "predicted_ms": row.replayed_ms,
                    "error": row.error,
                }
                for row in self.rows
            ],
        }


def check_replay(trace: ProductionTrace) -> ReplayCheck:
    """Replay every complete iteration of a production trace from its own durations.

    Parameters
    ----------
    trace : ProductionTrace
        See :func:`pipesim.formats.production.read_production`.
    """
    cost_ms = transfer_ms(trace.iterations)
    measured = np.array([one.iteration_ms for one in trace.iterations])
    replayed, transport = _replayed(trace.iterations, Exchange(base_ms=cost_ms)), "exchange"
    error = _error(replayed, measured)
    if error > _GOOD_ENOUGH:
        other = _replayed(trace.iterations, Ideal(base_ms=cost_ms))
        if _error(other, measured) < error:
            replayed, transport = other, "ideal"
    rows = tuple(
        SpanError(one.step, one.dp_rank, own, again)
        for one, own, again in zip(
            trace.iterations, measured.tolist(), replayed.tolist(), strict=True
        )
    )
    return ReplayCheck(trace.file, transport, cost_ms, rows, len(trace.skipped), trace.notes)


def _error(replayed_ms: Array, measured_ms: Array) -> float:
    return float(np.median(np.abs(replayed_ms / measured_ms - 1)))


def _replayed(iterations: Sequence[ProductionIteration], over: Transport) -> Array:
    """Return how long iterations take over a transport; infinite where they cannot end."""
    groups: dict[Hashable, list[int]] = {}
    for number, one in enumerate(iterations):
        groups.setdefault(one.schedule, []).append(number)
    result = np.empty(len(iterations))
    for schedule, numbers in groups.items():
        assert isinstance(schedule, Schedule)
        try:
            times = Runs(schedule, over).makespans_ms([_scenario(iterations[i]) for i in numbers])
        except DeadlockError:
            return np.full(len(iterations), np.inf)
        result[numbers] = times
    return result


def _scenario(iteration: ProductionIteration) -> Scenario:
    forward, backward = iteration.times_ms
    return Scenario(
        stages=iteration.schedule.stages,
        microbatches=iteration.schedule.microbatches,
        placement=iteration.schedule.placement,
        forward_ms=forward,
        backward_ms=backward / 2,
        weight_ms=backward / 2,
        fused_backward_ms=backward,
    )


def transfer_ms(iterations: Sequence[ProductionIteration]) -> float:
    """Return the time that a message takes once both its ends are there.

    The shorter end of each message, its median over the iterations, the mean of these over
    the messages of an iteration; 0 where no messages were recorded.
    """
    ends = np.stack([one.messages_ms for one in iterations])  # [I, 4, S, N, 2]
    busy = ends[..., 1] - ends[..., 0]
    shorter = np.stack(
        [np.fmin(busy[:, 0, :-1], busy[:, 1, 1:]), np.fmin(busy[:, 2, 1:], busy[:, 3, :-1])]
    )
    known = np.isfinite(shorter)
    some = known.any(axis=1)
    if not some.any():
        return 0.0
    return float(np.nanmedian(np.moveaxis(shorter, 1, -1)[some], axis=-1).mean())
