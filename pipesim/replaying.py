"""Replay a plan on real processes, and lay what they measured beside the prediction.

Three steps: :func:`prepare` says what to run, :mod:`pipesim.replay` runs it, and
:class:`Replayed` compares. :func:`replay` does all three on this machine.

What no plan can know of a machine, the last warm-up iteration tells: what a message takes
there at least and, of a model, what its operators take. Predicted are the iterations after it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from pipesim import latency
from pipesim.engine import simulate
from pipesim.errors import ReplayError
from pipesim.replay.measured import Measured, SwitchFacts
from pipesim.replay.run import ComputeKind, DeviceKind, LinkFault, Route, Run
from pipesim.scenario import DIRECTIONS, TIME_OF, Array, Kind, Scenario
from pipesim.schedule import Schedule
from pipesim.timeline import Timeline
from pipesim.transport import Delegated, Transport
from pipesim.transport import transport as transport_named

__all__ = ["Replayed", "prepare", "replay"]

_MOST_DELEGATES = 8
_PATIENCE_S = 5.0


def prepare(
    scenario: Scenario,
    schedule: Schedule,
    over: str | Transport,
    *,
    compute: ComputeKind = "sleep",
    device: DeviceKind = "cpu",
    iterations: int = 5,
    warmup: int | None = None,
    timeout_s: float | None = None,
    failover: bool = False,
    fault: LinkFault | None = None,
    seed: int = 0,
) -> Run:
    """Return what to run: how many delegates, and how long to wait for a peer.

    A delegated route gets one delegate more than the prediction ever has busy at once, and
    eight at most; ``delegates`` of the transport limits that further.

    Parameters
    ----------
    scenario : Scenario
        Its delays are injected.
    schedule : Schedule
        The plan.
    over : str or Transport
        ``nccl``, ``exchange`` or ``delegated``.
    compute, device : str
        See :class:`pipesim.replay.run.Run`.
    iterations, warmup : int
        Iterations that count, and those before: by default one, and three of a model, whose
        first ones are slow.
    timeout_s : float, optional
        A run is given up when nothing happens for so long and twice the longest predicted
        wait. Default: five seconds.
    failover : bool
        Whether links go over to delegates when their direct path fails.
    fault : LinkFault, optional
        A link to break.
    seed : int
        Of the model.

    Raises
    ------
    ReplayError, ScheduleError
        These do not go together.
    """
    transport = transport_named(over)
    if warmup is None:
        warmup = 3 if compute == "model" else 1
    if isinstance(transport, Delegated):
        transport = replace(transport, delegates=transport.delegates or _MOST_DELEGATES)
    wanted = Run(
        schedule,
        scenario,
        transport,
        compute=compute,
        device=device,
        iterations=iterations,
        warmup=warmup,
        seed=seed,
    )
    predicted = simulate(scenario, schedule, transport)
    waits_s = 2 * _longest_wait_ms(predicted) / 1e3
    given: dict[str, Any] = {
        "timeout_s": (_PATIENCE_S if timeout_s is None else timeout_s) + waits_s,
        "failover_ms": predicted.iteration_ms if failover or fault else None,
        "fault": fault,
    }
    if isinstance(transport, Delegated):
        given["delegates"] = _delegates(wanted, predicted, transport)
    elif failover or fault:
        given["delegates"] = dict.fromkeys(wanted.routes, 2)
    return replace(wanted, **given)


def replay(
    scenario: Scenario,
    schedule: Schedule,
    over: str | Transport,
    *,
    port: int = 0,
    **options: object,
) -> Replayed:
    """Replay ``schedule`` on this machine, one process for each device.

    Parameters
    ----------
    scenario, schedule, over
        As for :func:`prepare`.
    port : int
        Where the processes meet, on the loopback address. 0: any that is free.
    **options
        As for :func:`prepare`.

    Raises
    ------
    ReplayError
        torch is missing, or the run did not reach its end; the message names who and where.
    """
    return launched(prepare(scenario, schedule, over, **options), port)  # type: ignore[arg-type]


def launched(run: Run, port: int = 0) -> Replayed:
    """Run what was prepared, on this machine."""
    try:
        from pipesim.replay.launcher import launch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ReplayError("a replay needs torch: pip install 'pipesim[replay]'") from None
    return Replayed(launch(run, port))


def _delegates(run: Run, predicted: Timeline, transport: Delegated) -> dict[Route, int]:
    """Return how many delegates each route gets."""
    posted = {span.message for span in predicted.comm if span.path == "kernel"}
    busy: dict[Route, list[tuple[float, int]]] = defaultdict(list)
    for span in predicted.comm:
        if span.path == "delegate":
            busy[run.route(span.message)] += [(span.start_ms, 1), (span.end_ms, -1)]
    most = {
        route: int(np.cumsum([change for _, change in sorted(changes)]).max())
        for route, changes in busy.items()
    }
    assert transport.delegates is not None
    return {
        route: min(transport.delegates, most.get(route, 0) + 1, len(messages))
        for route, messages in run.routes.items()
        if not posted.issuperset(messages)
    }


def _longest_wait_ms(predicted: Timeline) -> float:
    """Return the longest time in which nothing starts or ends on some device, or in a kernel."""
    waits = [span.end_ms - span.start_ms for span in predicted.comm]
    for device in predicted.compute:
        starts = [predicted.start_ms, *(span.start_ms for span in device), predicted.end_ms]
        waits += np.diff(starts).tolist()
    return max(waits)


# -- comparing ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Replayed:
    """A replay beside its prediction.

    Parameters
    ----------
    measured : Measured
        What the processes saw.
    """

    measured: Measured

    @property
    def run(self) -> Run:
        """What was run."""
        return self.measured.run

    @cached_property
    def scenario(self) -> Scenario:
        """The run's; of ``model``, with operator times of the last warm-up iteration."""
        scenario = self.run.scenario
        if self.run.compute != "model":
            return scenario
        taken: dict[tuple[Kind, int], list[float]] = defaultdict(list)
        for op, span in self._last_warmup.spans.items():
            taken[op.kind, op.stage].append(span.end_ms - span.start_ms)
        given: dict[str, Array] = {}
        for kind in {kind for kind, _ in taken}:
            each = [np.mean(taken[kind, stage]) for stage in range(scenario.stages)]
            given[TIME_OF[kind]] = np.array(each)
        return scenario.replaced(**given)

    @cached_property
    def nominal(self) -> Timeline:
        """The engine's timeline where messages take what is stated: nothing, mostly."""
        return simulate(self.scenario, self.run.schedule, self.run.transport)

    @cached_property
    def base_ms(self) -> float:
        """What a message took in the last warm-up iteration beyond what was stated."""
        return latency.base_ms(self.run, self._last_warmup)

    @cached_property
    def predicted(self) -> Timeline:
        """The engine's timeline where links without delay take :attr:`base_ms` for a message."""
        return latency.predicted_with(self.run, self.nominal, self.base_ms)

    @property
    def iterations_ms(self) -> list[float]:
        """Time of each iteration that counts."""
        return [timeline.iteration_ms for timeline in self.measured.counted]

    @property
    def predicted_ms(self) -> float:
        """The iteration's predicted time."""
        return self.predicted.iteration_ms

    @property
    def measured_ms(self) -> float:
        """The median of the iterations that count."""
        return float(np.median(self.iterations_ms))

    @property
    def error(self) -> float:
        """Measured against predicted, as a part of the prediction; above 0: it took longer."""
        return self.measured_ms / self.predicted_ms - 1 if self.predicted_ms else 0.0

    @property
    def typical(self) -> Timeline:
        """The iteration that counts whose time is nearest to the median."""
        return min(self.measured.counted, key=lambda t: abs(t.iteration_ms - self.measured_ms))

    @property
    def median_start_error_ms(self) -> float:
        """How far operators start from where they were predicted, the median over all."""
        return self._start_error_ms(self.predicted)

    @property
    def nominal_start_error_ms(self) -> float:
        """How far they start from :attr:`nominal`."""
        return self._start_error_ms(self.nominal)

    def _start_error_ms(self, predicted: Timeline) -> float:
        starts = {op: span.start_ms - predicted.start_ms for op, span in predicted.spans.items()}
        errors = [
            abs(span.start_ms - timeline.start_ms - starts[op])
            for timeline in self.measured.counted
            for op, span in timeline.spans.items()
        ]
        return float(np.median(errors))

    @property
    def _last_warmup(self) -> Timeline:
        return self.measured.timelines[max(self.run.warmup - 1, 0)]

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

    @property
    def events(self) -> list[dict[str, object]]:
        """What happened on the way, and what it cost."""
        return [self._switched(switch) for switch in self.measured.switches]

    def _switched(self, switch: SwitchFacts) -> dict[str, object]:
        times = [timeline.iteration_ms for timeline in self.measured.timelines]
        before = times[self.run.warmup : switch.iteration] or [self.predicted_ms]
        return {
            "event": "failover",
            "iteration": switch.iteration - self.run.warmup,
            "link": switch.message.link,
            "direction": DIRECTIONS[switch.message.direction],
            "message": str(switch.message),
            "rank": switch.rank,
            "at_ms": switch.at_ms,
            "waited_ms": switch.waited_ms,
            "cost_ms": times[switch.iteration] - float(np.median(before)),
        }

    def as_dict(self) -> dict[str, object]:
        """Return the figures in JSON types."""
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


def _numbers(value: object) -> Sequence[float]:
    return [float(v) for v in value] if isinstance(value, list) else []
