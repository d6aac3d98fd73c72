"""The main job: what a slow link costs under each system, and why.

A system is a planner and a transport. What a delay costs it splits in two: *dependency*, what
the same schedule loses when nothing blocks (ideal − ideal without delay), and *head-of-line
blocking*, what its transport adds to that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from pipesim import analysis
from pipesim.engine import Engine, Runs, simulate
from pipesim.errors import ScenarioError, SolverError
from pipesim.scenario import Scenario
from pipesim.schedule import Schedule
from pipesim.timeline import Timeline
from pipesim.transport import Delegated, Ideal, Transport, transport
from planners import plan

if TYPE_CHECKING:
    from milp import Result

__all__ = [
    "DEFAULT_SYSTEMS",
    "SYSTEMS",
    "Comparison",
    "Row",
    "System",
    "compare",
    "default_systems",
]


@dataclass(frozen=True)
class System:
    """A way to train: who plans, and how messages travel."""

    name: str
    title: str
    planner: str
    transport: str
    chunks: int = 1


SYSTEMS = {
    system.name: system
    for system in (
        System("1f1b", "1F1B", "1f1b", "exchange"),
        System("interleaved-1f1b", "Interleaved 1F1B", "interleaved-1f1b", "nccl", chunks=2),
        System("zerobubble", "ZeroBubble", "zerobubble", "nccl"),
        System("pipemorph-cpu", "PipeMorph-CPU", "zerobubble", "delegated"),
        System("pipemorph", "PipeMorph", "pipemorph", "delegated"),
        System("search", "Search", "search", "delegated"),
    )
}

DEFAULT_SYSTEMS = ("1f1b", "zerobubble", "pipemorph-cpu", "pipemorph")


def default_systems(scenario: Scenario) -> tuple[str, ...]:
    """Return the systems to compare on a scenario by default: those that take its placement.

    :func:`compare` adds ``search`` where these fill a device.

    Examples
    --------
    >>> default_systems(Scenario())
    ('1f1b', 'zerobubble', 'pipemorph-cpu', 'pipemorph')
    >>> default_systems(Scenario().interleaved(2))[0]
    'interleaved-1f1b'
    """
    if scenario.is_plain:
        return DEFAULT_SYSTEMS
    interleaved = tuple(s % scenario.devices for s in range(scenario.stages))
    fused = ("interleaved-1f1b",) if scenario.placement == interleaved else ()
    return (*fused, *DEFAULT_SYSTEMS[1:])


def system(name: str) -> System:
    """Return the system of that name, or the pair that ``planner:transport`` names.

    Raises
    ------
    ScenarioError
        There is no such system.
    """
    planner, colon, over = name.partition(":")
    if colon:
        return System(name, name, planner, transport(over).name)
    if name not in SYSTEMS:
        raise ScenarioError(
            f"unknown system {name!r}: one of {', '.join(SYSTEMS)}, or PLANNER:TRANSPORT"
        )
    return SYSTEMS[name]


@dataclass(frozen=True)
class Row:
    """What one system makes of the scenario. Times in milliseconds.

    Attributes
    ----------
    over : Transport
        Its ``base_ms`` is what a message costs besides delays.
    iteration_ms : float
        Makespan under the system's transport, with the delays.
    no_delay_ms : float
        The same for the system on healthy links, planned for them.
    dependency_ms, hol_ms : float
        Ideal − ideal without delay; transport − ideal.
    warmup, slackness : tuple of int
        x_i of each stage, Δ_i of each link.
    peak_activations, host_activations : tuple of float
        Most activations held for each device at once, and most beyond its limit, in stages of
        the scenario: where the system cuts them into v chunks, a chunk counts 1/v.
    host_bytes : tuple of float
        The latter in bytes.
    fits : bool
        Whether the activations fit the devices, or are planned to go to hosts that they fit.
    bubble_fraction : float
        Part of the iteration, over all devices, in which no operator runs.
    stage_span_ms : float
        The longest span of any device, first start to last end.
    plan_seconds : float
        How long it took to plan.
    lower_bound_ms : float
        What no schedule of this system's placement can beat, with the cost of messages.
    """

    system: System
    scenario: Scenario = field(repr=False)
    schedule: Schedule = field(repr=False)
    over: Transport = field(repr=False)
    iteration_ms: float
    no_delay_ms: float
    dependency_ms: float
    hol_ms: float
    bubble_fraction: float
    stage_span_ms: float
    warmup: tuple[int, ...]
    slackness: tuple[int, ...]
    peak_activations: tuple[float, ...]
    host_activations: tuple[float, ...]
    host_bytes: tuple[float, ...]
    fits: bool
    plan_seconds: float
    lower_bound_ms: float

    @cached_property
    def timeline(self) -> Timeline:
        """The run with all its messages, simulated on SimPy when first asked for."""
        return simulate(self.scenario, self.schedule, self.over)

    @property
    def slowdown(self) -> float | None:
        """Iteration time over the system's own no-delay time; None where that is nothing."""
        return self.iteration_ms / self.no_delay_ms if self.no_delay_ms else None

    @property
    def replanned(self) -> bool:
        """Whether the plan knows of a slow link: of a delay beyond what every message costs."""
        assumed = self.schedule.assumed.delay_ms
        return assumed is not None and bool((np.asarray(assumed) > self.over.base_ms).any())

    def as_dict(self) -> dict[str, object]:
        """The row in JSON types."""
        return {
            "system": self.system.name,
            "planner": self.system.planner,
            "transport": self.system.transport,
            "iteration_ms": self.iteration_ms,
            "no_delay_ms": self.no_delay_ms,
            "slowdown": self.slowdown,
            "dependency_ms": self.dependency_ms,
            "hol_ms": self.hol_ms,
            "bubble_fraction": self.bubble_fraction,
            "stage_span_ms": self.stage_span_ms,
            "warmup": list(self.warmup),
            "slackness": list(self.slackness),
            "peak_activations": list(self.peak_activations),
            "host_activations": list(self.host_activations),
            "host_bytes": list(self.host_bytes),
            "fits": self.fits,
            "lower_bound_ms": self.lower_bound_ms,
            "plan_seconds": self.plan_seconds,
            "title": self.system.title,
        }


@dataclass(frozen=True)
class Comparison:
    """All systems on one scenario."""

    scenario: Scenario
    lower_bound_ms: float
    rows: tuple[Row, ...]
    message_cost_ms: float = 0.0

    def __getitem__(self, name: str) -> Row:
        """Return the row of the system called ``name``."""
        return next(row for row in self.rows if row.system.name == name)

    @property
    def timelines(self) -> dict[str, Timeline]:
        """Each system's timeline, by title."""
        return {row.system.title: row.timeline for row in self.rows}

    def as_dict(self) -> dict[str, object]:
        """The comparison in JSON types."""
        return {
            "scenario": self.scenario.summary(),
            "message_cost_ms": self.message_cost_ms,
            "lower_bound_ms": self.lower_bound_ms,
            "rows": [row.as_dict() for row in self.rows],
        }


def compare(
    scenario: Scenario,
    systems: Sequence[str] | None = None,
    *,
    message_cost_ms: float = 0.0,
    delegates: int | None = None,
    optimum_seconds: float | None = None,
    engine: Engine | None = None,
    progress: Callable[[str], None] = lambda title: None,
) -> Comparison:
    """Plan and simulate each system on ``scenario``.

    Parameters
    ----------
    scenario : Scenario
        What to run, with its delays.
    systems : sequence of str
        Names out of ``SYSTEMS``, or ``planner:transport``. Default: see
        :func:`default_systems`; where one of these leaves some device no room for one more
        activation, so that its limit may have cost time, ``search`` is a row as well, for
        pipelines of up to :data:`MOST_SEARCHED` operators.
    message_cost_ms : float
        What every message between devices takes besides delays, under every transport.
        Planners that know of delays plan for it.
    delegates : int, optional
        Delegate processes for each neighbour and direction. Default: enough that one is
        always free.
    optimum_seconds : float, optional
        Add a last row, the exact optimum where nothing blocks. The healthy and the slow
        scenario are each solved for up to this time.
    engine : {"simpy", "compiled"}, optional
        What computes the figures. Default: SimPy while there is little to do, see
        :mod:`pipesim.engine.choice`. Timelines are always SimPy's.
    progress : callable
        Called with a system's title before it is planned and run.

    Raises
    ------
    ScenarioError, ScheduleError
        A system does not exist, or cannot plan this scenario.

    Examples
    --------
    >>> from pipesim import Scenario, compare
    >>> result = compare(Scenario().with_delay(20, links=[0]))
    >>> {row.system.name: row.iteration_ms for row in result.rows if row.hol_ms == 0}
    {'pipemorph-cpu': 440.0, 'pipemorph': 410.0}
    """
    rows: list[Row] = []
    plans = _Plans(message_cost_ms)

    def add(name: str) -> None:
        one = system(name)
        progress(one.title)
        rows.append(_row(one, scenario, delegates, plans, engine))

    for name in default_systems(scenario) if systems is None else systems:
        add(name)
    unasked = systems is None and 3 * scenario.stages * scenario.microbatches <= MOST_SEARCHED
    if unasked and any(_fills_a_device(row, scenario) for row in rows):
        add("search")
    if optimum_seconds is not None:
        progress("Optimum")
        rows.append(_optimum_row(scenario, optimum_seconds, message_cost_ms, engine))
    bound_ms = analysis.lower_bound_ms(scenario.with_message_cost(message_cost_ms))
    return Comparison(scenario, bound_ms, tuple(rows), message_cost_ms)


MOST_SEARCHED = 20_000
"""Operators of a pipeline that ``search`` is tried on unasked: some seconds."""


def _fills_a_device(row: Row, scenario: Scenario) -> bool:
    """Whether one more activation would not fit some device: its limit may cost time."""
    return bool((np.array(row.peak_activations) + 1 > scenario.activation_limit).any())


class _Plans:
    """Plans, for what messages cost, and how long they took to make; none is made twice."""

    def __init__(self, message_cost_ms: float, planned: Callable[..., Schedule] = plan) -> None:
        self.message_cost_ms = message_cost_ms
        self._planned = planned
        self._made: dict[tuple[object, ...], tuple[Schedule, float]] = {}

    def of(
        self, scenario: Scenario, planner: str, over: Transport, *, healthy: bool
    ) -> tuple[Schedule, float]:
        """Return the plan for a scenario, or for the same on healthy links, and its seconds.

        It is the same for both where the planner says that it knows of no delay, and the same
        for all transports where it names none.
        """
        slow = bool(scenario.slow_links)

        def made(slow: bool) -> tuple[Schedule, float] | None:
            keys = ((planner, scenario.placement, slow, way) for way in (None, over))
            return next((self._made[key] for key in keys if key in self._made), None)

        if (kept := made(slow)) and kept[0].assumed.blind_to_delays:
            return kept
        slow = slow and not healthy
        if kept := made(slow):
            return kept
        started = perf_counter()
        delays = scenario.without_delay() if healthy else scenario
        schedule = self._planned(delays.with_message_cost(self.message_cost_ms), planner, over=over)
        result = schedule, perf_counter() - started
        known = over if schedule.assumed.transport else None
        self._made[planner, scenario.placement, slow, known] = result
        return result


def _planned_over(over: Transport) -> Transport:
    """What a plan for a transport has to know of it, besides what every message costs.

    Delegates that are always free block nothing.
    """
    free = replace(over, base_ms=0.0)
    return Ideal() if free == Delegated() else free


def _optimum_row(
    scenario: Scenario, seconds: float, message_cost_ms: float, engine: Engine | None
) -> Row:
    from pipesim.studies.optimum import optimum  # and with it a solver

    found: list[Result] = []

    def solved(what: Scenario, name: str, *, over: Transport) -> Schedule:
        result = optimum(what, time_limit_s=seconds)
        if result.interrupted:
            raise KeyboardInterrupt
        if result.schedule is None:
            raise SolverError(f"no schedule was found in {seconds:g} s: {result.status}")
        found.append(result)
        return result.schedule

    system = System("optimum", "Optimum", "milp", "ideal")
    row = _row(system, scenario, None, _Plans(message_cost_ms, solved), engine)
    if any(result.status != "optimal" for result in found):
        row = replace(row, system=replace(system, title="Best found"))
    return replace(row, lower_bound_ms=max(row.lower_bound_ms, found[0].bound_ms))


def _row(
    one: System, whole: Scenario, delegates: int | None, plans: _Plans, engine: Engine | None
) -> Row:
    cut = one.chunks if whole.is_plain else 1
    scenario = whole.interleaved(cut) if cut > 1 else whole
    healthy = scenario.without_delay()
    cost = plans.message_cost_ms
    over: Transport = replace(transport(one.transport), base_ms=cost)
    if isinstance(over, Delegated):
        over = replace(over, delegates=delegates)
    unblocked = Ideal(base_ms=cost)
    plan_over = _planned_over(over)
    schedule, plan_seconds = plans.of(scenario, one.planner, plan_over, healthy=False)
    before, _ = plans.of(scenario, one.planner, plan_over, healthy=True)
    runs, ideal = Runs(schedule, over, engine=engine), Runs(schedule, unblocked, engine=engine)
    if before is schedule:
        runs_before, ideal_before = runs, ideal
    else:
        runs_before = Runs(before, over, engine=engine)
        ideal_before = Runs(before, unblocked, engine=engine)
    timeline = runs.timeline(scenario)
    ideal_ms = ideal.makespan_ms(scenario)
    hosted = timeline.peak_host_activations
    return Row(
        system=one,
        scenario=scenario,
        schedule=schedule,
        over=over,
        iteration_ms=timeline.iteration_ms,
        no_delay_ms=runs_before.makespan_ms(healthy),
        dependency_ms=ideal_ms - ideal_before.makespan_ms(healthy),
        hol_ms=timeline.iteration_ms - ideal_ms,
        bubble_fraction=timeline.bubble_fraction,
        stage_span_ms=timeline.stage_span_ms,
        warmup=(warmup := analysis.warmup(schedule)),
        slackness=analysis.slackness(warmup),
        peak_activations=tuple((timeline.peak_activations / cut).tolist()),
        host_activations=tuple((hosted / cut).tolist()),
        host_bytes=tuple(timeline.peak_host_bytes.tolist()),
        fits=not hosted.any()
        or (schedule.uses_hosts and bool((hosted <= scenario.host_limit).all())),
        plan_seconds=plan_seconds,
        lower_bound_ms=analysis.lower_bound_ms(scenario.with_message_cost(cost)),
    )
