"""A replay beside its prediction.

No plan can know how long a message takes on a machine, nor how long a model's operators take. The
last warm-up iteration measures both, and the iterations after it are predicted with that. What
the engine says without it is called nominal.

Measured is what was seen on the clock: from the first operator's physical start to the last one's
physical end, on any rank. Operators that sleep have logical times too
(:attr:`pipesim.replay.run.run.Run.has_logical_times`), in which their durations, and the starts of
those that wait for no message, agree with the prediction by construction; they show what messages
cost without the lateness of threads. They are reported beside the measured ones, as logical.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pipesim.engine import simulate
from pipesim.replay import message_time
from pipesim.replay.run.gradients import check_gradients
from pipesim.replay.run.measured import Measured, SwitchFacts
from pipesim.replay.run.run import Run
from pipesim.scenario import DIRECTIONS, TIME_OF, Array, Kind, Scenario
from pipesim.timeline import Timeline

__all__ = ["Replayed"]


@dataclass(frozen=True)
class Replayed:
    """A replay beside its prediction.

    Parameters
    ----------
    measured : Measured
        What the processes saw.

    Raises
    ------
    ReplayError
        A gradient is wrong, so what was measured was no training of the model.
    """

    measured: Measured

    def __post_init__(self) -> None:
        check_gradients(self.measured)

    @property
    def run(self) -> Run:
        """What was run."""
        return self.measured.run

    @cached_property
    def scenario(self) -> Scenario:
        """The run's scenario; for ``model``, with operator times of the last warm-up iteration."""
        scenario = self.run.scenario
        if self.run.compute != "model" or self._last_warmup is None:
            return scenario
        taken: dict[tuple[Kind, int], list[float]] = defaultdict(list)
        for op, span in self._last_warmup.spans.items():
            taken[op.kind, op.stage].append(span.end_ms - span.start_ms)
        given: dict[str, Array | None] = {TIME_OF["BW"]: None}
        for kind in {kind for kind, _ in taken}:
            # A stage that has none of this kind, where others have, is never asked for its time.
            each = [np.mean(taken.get((kind, stage), 0.0)) for stage in range(scenario.stages)]
            given[TIME_OF[kind]] = np.array(each)
        return scenario.replaced(**given)

    @cached_property
    def nominal(self) -> Timeline:
        """The engine's timeline where messages take what is stated: nothing, mostly."""
        return simulate(self.scenario, self.run.schedule, self.run.transport)

    @cached_property
    def base_ms(self) -> float:
        """What a message took in the last warm-up iteration beyond what was stated.

        0 without one. See :func:`pipesim.replay.message_time.base_ms`.
        """
        return (
            0.0 if self._last_warmup is None else message_time.base_ms(self.run, self._last_warmup)
        )

    @cached_property
    def predicted(self) -> Timeline:
        """The engine's timeline where messages take :attr:`base_ms` more."""
        return message_time.predicted_with(self.run, self.nominal, self.base_ms)

    @property
    def iterations_ms(self) -> list[float]:
        """Physical time of each measured iteration."""
        return [timeline.iteration_ms for timeline in self.measured.counted]

    @property
    def logical_iterations_ms(self) -> list[float]:
        """Logical time of each measured iteration; empty where there is none."""
        return [timeline.iteration_ms for timeline in self.measured.counted_logical]

    @property
    def predicted_ms(self) -> float:
        """The iteration's predicted time."""
        return self.predicted.iteration_ms

    @property
    def measured_ms(self) -> float:
        """The median of the measured iterations, physical."""
        return float(np.median(self.iterations_ms))

    @property
    def logical_ms(self) -> float | None:
        """The median of the logical ones; None where there is none."""
        return float(np.median(self.logical_iterations_ms)) if self.measured.logical else None

    @property
    def error(self) -> float:
        """Measured / predicted − 1: above 0, it took longer than predicted."""
        return self.measured_ms / self.predicted_ms - 1 if self.predicted_ms else 0.0

    @property
    def typical(self) -> Timeline:
        """The measured iteration whose time is nearest to the median, physical."""
        return min(self.measured.counted, key=lambda t: abs(t.iteration_ms - self.measured_ms))

    @property
    def median_start_error_ms(self) -> float:
        """How far operators physically start from their predicted starts, the median over all."""
        return _start_error_ms(self.measured.counted, self.predicted)

    @property
    def logical_start_error_ms(self) -> float | None:
        """The same of logical starts, of which many agree by construction; None without them."""
        logical = self.measured.counted_logical
        return _start_error_ms(logical, self.predicted) if logical else None

    @property
    def nominal_start_error_ms(self) -> float:
        """How far they physically start from :attr:`nominal`."""
        return _start_error_ms(self.measured.counted, self.nominal)

    @property
    def longest_lag_ms(self) -> float | None:
        """The most that an operator physically started or ended later than logically, or None."""
        pairs = zip(self.measured.counted, self.measured.counted_logical, strict=False)
        late = [
            lag_ms
            for physical, logical in pairs
            for op, span in physical.spans.items()
            for lag_ms in (
                span.start_ms - logical.spans[op].start_ms,
                span.end_ms - logical.spans[op].end_ms,
            )
        ]
        return max(late, default=None)

    @property
    def _last_warmup(self) -> Timeline | None:
        return self.measured.timelines[self.run.warmup - 1] if self.run.warmup else None

    @property
    def gradient_error(self) -> float | None:
        """Largest relative error of any gradient in any iteration; None without a model."""
        errors = [
            error
            for report in self.measured.reports
            for error in _numbers(report.get("gradient_errors"))
        ]
        return max(errors, default=None)

    @property
    def host_bytes(self) -> list[int] | None:
        """Most activation bytes that each device kept on its host; None without a model."""
        held = [report.get("host_bytes") for report in self.measured.reports]
        return [int(size) for size in held if isinstance(size, int)] or None

    @cached_property
    def events(self) -> list[dict[str, object]]:
        """Links that failed, and what that cost; one entry each, though both ends switched."""
        failures: dict[int, list[list[SwitchFacts]]] = defaultdict(list)
        for switch in self.measured.switches:
            of_link = failures[switch.message.link]
            ends = {seen.message.direction for seen in of_link[-1]} if of_link else set()
            if not of_link or switch.message.direction in ends:
                of_link.append([])
            of_link[-1].append(switch)
        found = [failure for of_link in failures.values() for failure in of_link]
        found.sort(key=lambda failure: (failure[0].iteration, failure[0].at_ms))
        return [self._failed(failure) for failure in found]

    def _failed(self, ends: list[SwitchFacts]) -> dict[str, object]:
        first, warmup = ends[0], self.run.warmup
        return {
            "event": "failover",
            "warmup": first.iteration < warmup,
            "iteration": first.iteration - (0 if first.iteration < warmup else warmup),
            "link": first.message.link,
            "direction": DIRECTIONS[first.message.direction],
            "message": str(first.message),
            "rank": first.rank,
            "at_ms": first.at_ms,
            "waited_ms": first.waited_ms,
            "cost_ms": self._cost_ms(first.iteration),
        }

    def _cost_ms(self, iteration: int) -> float:
        """By how much an iteration took longer than those in which no link failed."""
        switched = {switch.iteration for switch in self.measured.switches}
        times = [timeline.iteration_ms for timeline in self.measured.timelines]
        usual = [
            time
            for other, time in enumerate(times)
            if other >= self.run.warmup and other not in switched
        ]
        return max(0.0, times[iteration] - float(np.median(usual or [self.predicted_ms])))

    def as_dict(self) -> dict[str, object]:
        """Return the figures in JSON types; errors as parts of 1."""
        result: dict[str, object] = {
            "planner": self.run.schedule.planner,
            "transport": self.run.transport.name,
            "compute": self.run.compute,
            "device": self.run.device,
            "predicted_ms": self.predicted_ms,
            "measured_ms": self.measured_ms,
            "error": self.error,
            "median_start_error_ms": self.median_start_error_ms,
            "iterations_ms": self.iterations_ms,
            "logical_ms": self.logical_ms,
            "logical_iterations_ms": self.logical_iterations_ms,
            "logical_start_error_ms": self.logical_start_error_ms,
            "longest_lag_ms": self.longest_lag_ms,
            "events": self.events,
            "base_ms": self.base_ms,
            "nominal_ms": self.nominal.iteration_ms,
            "nominal_start_error_ms": self.nominal_start_error_ms,
            "clocks": [clock._asdict() for clock in self.measured.clocks],
            "delegates": 2 * sum(self.run.delegates.values()),
        }
        if self.gradient_error is not None:
            result["gradient_error"] = self.gradient_error
            last = self.run.schedule.placement[-1]
            result["losses"] = self.measured.reports[last].get("losses")
            result["host_bytes"] = self.host_bytes
        return result

    def timelines(self) -> Mapping[str, Timeline]:
        """The prediction and the typical iteration, by name."""
        name = f"{self.run.schedule.planner or 'plan'} over {self.run.transport}"
        return {f"{name}, predicted": self.predicted, f"{name}, measured": self.typical}


def _start_error_ms(iterations: Sequence[Timeline], predicted: Timeline) -> float:
    starts = {op: span.start_ms - predicted.start_ms for op, span in predicted.spans.items()}
    errors = [
        abs(span.start_ms - timeline.start_ms - starts[op])
        for timeline in iterations
        for op, span in timeline.spans.items()
    ]
    return float(np.median(errors))


def _numbers(value: object) -> Sequence[float]:
    return [float(v) for v in value if v is not None] if isinstance(value, list) else []
