"""The main job: what a slow link costs under each system, and why.

A system is a planner and a transport. What a delay costs it splits in two: *dependency*, what
the same schedule loses when nothing blocks (ideal − ideal without delay), and *head-of-line
blocking*, what its transport adds to that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from pipesim import analysis
from pipesim.engine import Engine, Runs, simulate
from pipesim.errors import ScheduleError, SolverError
from pipesim.files import StrPath
from pipesim.scenario import Scenario
from pipesim.schedule import Schedule
from pipesim.studies.planning import Plans, in_chunks
from pipesim.studies.systems import System, default_systems, on_runtime, system
from pipesim.target import IDEAL, Target
from pipesim.timeline import Timeline
from pipesim.transport import Transport
from planners import chunks as chunks_of

if TYPE_CHECKING:
    from milp import Result
    from pipesim.fidelity.testbed import Testbed
    from pipesim.studies.cluster import Cluster

__all__ = ["MOST_SEARCHED", "Comparison", "Row", "compare"]


@dataclass(frozen=True)
class Row:
    """What one system makes of the scenario. Times in milliseconds.

    Attributes
    ----------
    chunks : int
        How many chunks each stage of the compared scenario is cut into.
    scenario : Scenario
        The compared one, so cut.
    over : Transport
        How messages travel, and what they cost besides delays.
    iteration_ms : float
        Makespan under the system's transport, with the delays.
    no_delay_ms : float
        The same for the system on healthy links, planned for them.
    dependency_ms, hol_ms : float
        Ideal − ideal without delay; transport − ideal. Over ideal, messages cost what they do over
        the transport.
    warmup, slackness : tuple of int
        x_i of each stage, Δ_i of each link.
    peak_activations, host_activations : tuple of float
        Most activations held for each device at once, and most beyond its limit, counted as
        :meth:`Scenario.in_micro_batches <pipesim.scenario.Scenario.in_micro_batches>` does: 1 is
        a micro-batch through all stages of the device.
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
    interval_ms : tuple of float, optional
        Where 90 % of measurements lie on the testbed; None where nothing is known.
    """

    system: System
    chunks: int
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
    interval_ms: tuple[float, float] | None = None

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
        costs_ms = self.over.costs_ms(self.scenario)[:, None]
        return assumed is not None and bool((np.asarray(assumed) > costs_ms).any())

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
            "chunks": self.chunks,
            "interval_ms": None if self.interval_ms is None else list(self.interval_ms),
        }


@dataclass(frozen=True)
class Comparison:
    """All systems on one scenario.

    Attributes
    ----------
    left_out : dict of str to str
        Why there is no row of a system that is one by default, by name.
    cluster : Cluster, optional
        The testbed that says what messages cost.
    runtime : Target, optional
        The runtime that runs the plans.
    """

    scenario: Scenario
    lower_bound_ms: float
    rows: tuple[Row, ...]
    message_cost_ms: float = 0.0
    left_out: Mapping[str, str] = field(default_factory=dict)
    cluster: Cluster | None = None
    runtime: Target | None = None

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
            "testbed": self.cluster and self.cluster.as_dict(self.scenario),
            "lower_bound_ms": self.lower_bound_ms,
            "rows": [row.as_dict() for row in self.rows],
            "left_out": dict(self.left_out),
            **({"runtime": self.runtime.name} if self.runtime else {}),
        }


def compare(
    scenario: Scenario,
    systems: Sequence[str] | None = None,
    *,
    chunks: int | None = None,
    group_size: int | None = None,
    message_cost_ms: float = 0.0,
    testbed: StrPath | Testbed | None = None,
    ranks_per_host: int = 1,
    runtime: Target | None = None,
    transports: Sequence[Transport] = (),
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
        :func:`~pipesim.studies.systems.default_systems`, without those that cannot plan this
        scenario; where one of these leaves some device no room for one more activation, so that
        its limit may have cost time, ``search`` is a row as well, for pipelines of up to
        :data:`MOST_SEARCHED` operators.
    chunks : int, optional
        Cut each stage into so many interleaved chunks, for all planners that take some. Default:
        as many as each planner wants, see :func:`planners.chunks`.
    group_size : int, optional
        See :func:`planners.plan`; for the planners that take one.
    message_cost_ms : float
        What every message between devices takes besides delays, under every transport.
        Planners that know of delays plan for it.
    testbed : str, path or Testbed, optional
        Let messages cost what they do there, in the times and in what planners assume: a name
        such as ``h800``, or a calibration file. Messages without a size have the testbed's.
    ranks_per_host : int
        With a testbed: ranks that send at once through one host.
    runtime : Target, optional
        The runtime to plan for. Operators take what they do there, and the default systems are
        those that it has, over its transport.
    transports : sequence of Transport
        Transports to use instead of those of the same names with default options, or of the
        testbed.
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
        A system does not exist; or one that was asked for, or that takes the group size, or all
        of them, cannot plan this scenario.

    Examples
    --------
    >>> from pipesim import Scenario, compare
    >>> result = compare(Scenario().with_delay(20, links=[0]))
    >>> {row.system.name: row.iteration_ms for row in result.rows if row.hol_ms == 0}
    {'pipemorph-cpu': 440.0, 'pipemorph': 410.0}
    >>> there = compare(Scenario().with_delay(20, links=[0]), testbed="h800")
    >>> there["pipemorph"].iteration_ms > result["pipemorph"].iteration_ms
    True
    """
    place, ways = None, {over.name: over for over in transports}
    if testbed is not None:
        from pipesim.studies.cluster import cluster  # and with it measured runs

        place = cluster(testbed, ranks_per_host)
        scenario = place.sized(scenario)
    make = _Rows(scenario, chunks, group_size, message_cost_ms, ways, engine, place, runtime)
    plans = Plans(runtime=runtime)
    rows: list[Row] = []
    left_out: dict[str, str] = {}

    def add(name: str) -> None:
        one = system(name)
        progress(one.title)
        rows.append(make.planned(one, plans))

    usual = on_runtime(default_systems(scenario, chunks), runtime)
    names = usual if systems is None else systems
    for name in names:
        try:
            add(name)
        except ScheduleError as error:
            if systems is not None or group_size is not None or len(left_out) + 1 == len(names):
                raise
            left_out[name] = str(error)
    unasked = systems is None and 3 * scenario.stages * scenario.microbatches <= MOST_SEARCHED
    if unasked and any(map(_fills_a_device, rows)):
        add(*on_runtime(["search"], runtime))
    if optimum_seconds is not None:
        progress("Optimum")
        rows.append(make.optimal(optimum_seconds))
    bound_ms = analysis.bound_over_ms(make.adapted(scenario), make.over("ideal"))
    return Comparison(scenario, bound_ms, tuple(rows), message_cost_ms, left_out, place, runtime)


MOST_SEARCHED = 20_000
"""Operators of a pipeline that ``search`` is tried on unasked: some seconds."""


def _fills_a_device(row: Row) -> bool:
    """Whether one more activation would not fit some device: its limit may cost time."""
    limits = row.scenario.in_micro_batches(row.scenario.activation_limit)
    return bool((np.array(row.peak_activations) + 1 > limits).any())


@dataclass(frozen=True)
class _Rows:
    """How rows are made: what :func:`compare` was asked."""

    whole: Scenario
    chunks: int | None
    group_size: int | None
    message_cost_ms: float
    transports: Mapping[str, Transport]
    engine: Engine | None
    cluster: Cluster | None
    runtime: Target | None

    def adapted(self, scenario: Scenario) -> Scenario:
        """The scenario as the runtime runs it."""
        return (self.runtime or IDEAL).adapted(scenario)

    def over(self, name: str) -> Transport:
        """The transport of that name, with what every message costs."""
        usual = self.cluster or self.runtime or IDEAL
        over = self.transports.get(name) or usual.transport(name)
        return replace(over, base_ms=over.base_ms + self.message_cost_ms)

    def planned(self, one: System, plans: Plans) -> Row:
        """Plan a system and run it."""
        takes_chunks = chunks_of(one.planner) is not None
        cut = in_chunks(self.whole, one.planner, self.chunks if takes_chunks else None)
        scenario = self.adapted(cut)
        healthy = scenario.without_delay()
        over = self.over(one.transport)
        size = self.group_size if plans.takes_group_size(one.planner) else None
        schedule, plan_seconds = plans.of(
            scenario, one.planner, over, group_size=size, healthy=False
        )
        before, _ = plans.of(scenario, one.planner, over, group_size=size, healthy=True)
        runs = Runs(schedule, over, engine=self.engine)
        ideal = Runs(schedule, over.unblocked, engine=self.engine)
        if before is schedule:
            runs_before, ideal_before = runs, ideal
        else:
            runs_before = Runs(before, over, engine=self.engine)
            ideal_before = Runs(before, over.unblocked, engine=self.engine)
        timeline = runs.timeline(scenario)
        ideal_ms = ideal.makespan_ms(scenario)
        hosted = timeline.peak_host_activations
        return Row(
            system=one,
            chunks=scenario.stages // self.whole.stages,
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
            peak_activations=tuple(scenario.in_micro_batches(timeline.peak_activations).tolist()),
            host_activations=tuple(scenario.in_micro_batches(hosted).tolist()),
            host_bytes=tuple(timeline.peak_host_bytes.tolist()),
            fits=not hosted.any()
            or (schedule.uses_hosts and bool((hosted <= scenario.host_limit).all())),
            plan_seconds=plan_seconds,
            lower_bound_ms=analysis.bound_over_ms(scenario, over),
            interval_ms=self.cluster.interval_ms(one, timeline.iteration_ms)
            if self.cluster
            else None,
        )

    def optimal(self, seconds: float) -> Row:
        """Solve for the optimum where nothing blocks."""
        from pipesim.studies.optimum import optimum  # and with it a solver

        found: list[Result] = []

        def solved(what: Scenario, name: str, *, over: Transport) -> Schedule:
            result = optimum(what.with_message_cost(over.costs_ms(what)), time_limit_s=seconds)
            if result.interrupted:
                raise KeyboardInterrupt
            if result.schedule is None:
                raise SolverError(f"no schedule was found in {seconds:g} s: {result.status}")
            found.append(result)
            return result.schedule

        system = System("optimum", "Optimum", "milp", "ideal")
        row = self.planned(system, Plans(solved))
        if any(result.status != "optimal" for result in found):
            row = replace(row, system=replace(system, title="Best found"))
        return replace(row, lower_bound_ms=max(row.lower_bound_ms, found[0].bound_ms))
