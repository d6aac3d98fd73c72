"""A replay check: the steps of a production job, run again from their own operator times.

For every step and data-parallel rank the measured operator times, in the measured order,
run under Megatron's exchange; the span from the first forward to the last backward is
compared with the measured one. No measured start time is used, but all measured durations are:
the check shows that the graph of dependencies is right. It predicts nothing and validates no
prediction.

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

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pipesim.engine import simulate
from pipesim.files import StrPath
from pipesim.formats.production import ProductionIteration, read_production
from pipesim.program import Message
from pipesim.scenario import Array
from pipesim.transport import Exchange

__all__ = ["ReplayCheck", "SpanError", "check_replay", "transfer_ms"]


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


def check_replay(path: StrPath) -> ReplayCheck:
    """Replay every complete iteration of a production trace from its own durations.

    Parameters
    ----------
    path : path
        A parquet file, see :mod:`pipesim.formats.production.importer`.

    Raises
    ------
    FormatError
        The file is damaged or foreign, or has no complete iteration.
    """
    trace = read_production(path)
    cost = transfer_ms(trace.iterations)
    rows = tuple(_replayed(iteration, Exchange(base_ms=cost)) for iteration in trace.iterations)
    return ReplayCheck(trace.file, cost, rows, len(trace.skipped), trace.notes)


def _replayed(iteration: ProductionIteration, exchange: Exchange) -> SpanError:
    timeline = iteration.timeline
    replayed = simulate(timeline.scenario, iteration.schedule, exchange)
    return SpanError(
        iteration.step, iteration.dp_rank, timeline.iteration_ms, replayed.iteration_ms
    )


def transfer_ms(iterations: Sequence[ProductionIteration]) -> float:
    """Return the time that a message takes once both its ends are there.

    The shorter end of each message, its median over the iterations, the mean of these over
    the messages of an iteration; 0 where no messages were recorded.
    """
    ends: dict[tuple[int, Message], list[float]] = defaultdict(list)
    for number, iteration in enumerate(iterations):
        for span in iteration.timeline.comm:
            ends[number, span.message].append(span.end_ms - span.start_ms)
    of_message: dict[Message, list[float]] = defaultdict(list)
    for (_, message), durations in ends.items():
        of_message[message].append(min(durations))
    medians = [float(np.median(durations)) for durations in of_message.values()]
    return float(np.mean(medians)) if medians else 0.0
