"""The loop: iteration, measurements, detector, a new plan, and the swap at a boundary."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pipesim.adapt.costs import FREE, Costs
from pipesim.adapt.detectors import Detector
from pipesim.adapt.estimation import Estimator, differs
from pipesim.adapt.strategy import Plan, Planning, Prepared, Strategy
from pipesim.delays import DelayTrace
from pipesim.engine import Injection
from pipesim.errors import DeadlockError, ScenarioError
from pipesim.scenario import Array, Scenario

__all__ = ["Iteration", "Job", "Recorded", "run_job"]


@dataclass(frozen=True)
class Job:
    """What happens to a job, whatever it does about it.

    Parameters
    ----------
    scenario : Scenario
        The pipeline. Which links are slow the trace says alone.
    trace : DelayTrace
        The delays of its links. It ends.
    jitter : float
        Standard deviation of the logarithm of operator times, by stage and micro-batch, and of
        each measured transfer time: 0.05 is about 5 %. The same for all strategies.
    seed : int
        Of the jitter.
    every, delegates_every : int
        How late delays are adopted, see :class:`pipesim.engine.Injection`. Injectors of published
        experiments looked at them before every 64th send, and delegates before every eighth; real
        links delay at once.
    after_ms : float
        What follows the pipeline in each iteration: gradients, optimizer.
    lead : int
        Healthy iterations that the job has run before the trace begins; not counted.
    most : int, optional
        Stop after so many iterations.

    Raises
    ------
    ScenarioError
        The trace has no end or is for other links, the scenario has delays itself, or a number
        cannot be.
    """

    scenario: Scenario
    trace: DelayTrace
    jitter: float = 0.0
    seed: int = 0
    every: int = 1
    delegates_every: int = 1
    after_ms: float = 0.0
    lead: int = 0
    most: int | None = None

    def __post_init__(self) -> None:
        if self.trace.links != self.scenario.stages - 1:
            raise ScenarioError(
                f"the delay trace is for {self.trace.links} links, the pipeline has "
                f"{self.scenario.stages - 1}"
            )
        if self.trace.end is None:
            raise ScenarioError("a job needs a trace that ends")
        if self.scenario.occupancy_ms.any():
            raise ScenarioError("the trace says which links are slow: give the scenario no delay")
        if not (0 <= self.jitter < 1 and self.after_ms >= 0 and self.lead >= 0):
            raise ScenarioError("jitter, the time after the pipeline and the lead are at least 0")
        if min(self.every, self.delegates_every) < 1:
            raise ScenarioError("delays are looked at before every send or less often")

    @property
    def end(self) -> float:
        """Where the trace ends: a time in ms, or a number of iterations."""
        assert self.trace.end is not None
        return self.trace.end


@dataclass(frozen=True, eq=False)
class Iteration:
    """One iteration of a job.

    Attributes
    ----------
    index : int
        From 0; those of the lead are below 0.
    start_ms : float
        Since the start of the trace.
    duration_ms : float
        With what follows the pipeline, and what adaptation costs.
    pipeline_ms : float
        The pipeline's part of it.
    plan : Plan
        What ran.
    swapped : bool
        Whether it is the first one of its plan.
    profile_ms, switch_ms : float
        Parts of ``duration_ms`` that adaptation costs.
    planning_ms : float
        What the plan takes that is begun beside it; 0: none is.
    measured_ms : array, shape [S−1, 2]
        The median transfer time of each link's messages, with the delay.
    delayed : array of bool, shape [S−1, 2]
        Where any message was delayed.
    estimate_ms : array, shape [S−1, 2]
        The delays that the job knows of when it ends.
    peak_activations : array, shape [D]
        As :class:`pipesim.engine.Iterated` has them.
    """

    index: int
    start_ms: float
    duration_ms: float
    pipeline_ms: float
    plan: Plan
    swapped: bool
    profile_ms: float
    switch_ms: float
    planning_ms: float
    measured_ms: Array = field(repr=False)
    delayed: NDArray[np.bool_] = field(repr=False)
    estimate_ms: Array = field(repr=False)
    peak_activations: Array = field(repr=False)

    @property
    def end_ms(self) -> float:
        """Since the start of the trace."""
        return self.start_ms + self.duration_ms


@dataclass(frozen=True, eq=False)
class Recorded:
    """What an earlier run has noted of an iteration, so that it need not be simulated again."""

    pipeline_ms: float
    measured_ms: Array
    delayed: NDArray[np.bool_]
    peak_activations: Array


def run_job(
    job: Job,
    strategy: Strategy,
    *,
    detector: Callable[[], Detector] | None = None,
    costs: Costs | None = None,
    replan_every: int = 1,
    recorded: Iterable[Recorded] = (),
) -> Iterator[Iteration]:
    """Run a job along its trace, one iteration after the other.

    After each iteration its transfer times go to the detectors. When what they say differs from
    what the last plan was made for, the next one is made while the following iteration runs, and
    swapped in at the first boundary at which it is ready.

    An oracle knows the delays that are set when an iteration starts and those set when the last one
    would end, and takes whichever plan is shortest in the iteration to come.

    Parameters
    ----------
    job : Job
        What happens.
    strategy : Strategy
        What the job does about it.
    detector : callable, optional
        Makes one detector; needed by a strategy that adapts to measurements.
    costs : Costs, optional
        Of adaptation. An oracle has none.
    replan_every : int
        Start to plan at most once in so many iterations.
    recorded : iterable of Recorded
        Of the first iterations after the lead, where delays are adopted at once.

    Yields
    ------
    Iteration
        Those that end, without the lead. They end early where a link fails for ever.

    Raises
    ------
    ScheduleError
        The planner has no plan.
    """
    return _Run(job, strategy, detector, costs, replan_every).iterations(iter(recorded))


class _Run:
    """The state of a job."""

    def __init__(
        self,
        job: Job,
        strategy: Strategy,
        detector: Callable[[], Detector] | None,
        costs: Costs | None,
        replan_every: int,
    ) -> None:
        if replan_every < 1:
            raise ScenarioError("plans are made at most once an iteration")
        self.job = job
        self.planning = Planning(job.scenario, strategy)
        self.oracle = strategy.knows == "delays"
        self.adapts = self.planning.adapts
        self.costs = FREE if self.oracle or not self.adapts else costs or Costs()
        self.injection = Injection(job.trace, every=job.every, delegates_every=job.delegates_every)
        self.replan_every = replan_every
        self.current = self.planning.healthy
        self.estimator: Estimator | None = None
        if self.adapts and not self.oracle:
            if detector is None:
                raise ScenarioError("a job that adapts to measurements needs a detector")
            self.estimator = Estimator(detector, job.trace.links)
        self.estimate_ms = np.zeros((job.trace.links, 2))
        self.pending: tuple[float, Prepared] | None = None
        self.planned_at: int | None = None
        self.delegated = False
        self.pipeline_ms = 0.0  # of the last iteration
        self._transfer_ms = strategy.direct.transfer_ms(job.scenario.message_bytes)[:, None, None]

    def iterations(self, recorded: Iterator[Recorded]) -> Iterator[Iteration]:
        """Run the lead, and then along the trace."""
        for index in range(-self.job.lead, 0):
            self._observe(self._simulated(index, -math.inf).measured_ms)
        clock_ms, index = 0.0, 0
        while self._goes_on(index, clock_ms):
            swapped, switch_ms = self._boundary(index, clock_ms)
            try:
                ran = next(recorded, None) or self._simulated(index, self._point(index, clock_ms))
            except DeadlockError:
                return  # a link has failed for ever
            self.pipeline_ms = ran.pipeline_ms
            self._observe(ran.measured_ms)
            profile_ms = self.costs.profile_ms if self.estimator else 0.0
            duration_ms = ran.pipeline_ms + self.job.after_ms + profile_ms + switch_ms
            yield Iteration(
                index,
                clock_ms,
                duration_ms,
                ran.pipeline_ms,
                self.current.plan,
                swapped,
                profile_ms,
                switch_ms,
                self.costs.plan_ms if self.planned_at == index else 0.0,
                ran.measured_ms,
                ran.delayed,
                self.estimate_ms,
                ran.peak_activations,
            )
            clock_ms += duration_ms
            index += 1

    def _goes_on(self, index: int, clock_ms: float) -> bool:
        most = self.job.most
        return (most is None or index < most) and self._point(index, clock_ms) < self.job.end

    def _point(self, index: int, clock_ms: float) -> float:
        """Where on the trace an iteration starts."""
        return clock_ms if self.job.trace.by == "time" else float(index)

    # -- what the job knows, and what it does about it ------------------------------------------

    def _observe(self, measured_ms: Array) -> None:
        if self.estimator:
            self.estimate_ms = self.estimator.observe(measured_ms)

    def _boundary(self, index: int, clock_ms: float) -> tuple[bool, float]:
        """Swap plans if another one is due; return whether, and what it costs."""
        before = self.current
        if self.oracle:
            self.estimate_ms, self.current = self._foreseen(self._point(index, clock_ms))
        elif self.estimator:
            if self.pending and self.pending[0] <= clock_ms:
                _, self.current = self.pending
                self.pending = None
            self._start_planning(index, clock_ms)
        if self.current.runs is before.runs:
            return False, 0.0
        first = bool(self.current.plan.delegates.any()) and not self.delegated
        self.delegated |= first
        return True, self.costs.switch_ms + first * self.costs.first_ms

    def _start_planning(self, index: int, clock_ms: float) -> None:
        if self.pending or not differs(self.estimate_ms, self.current.plan.delay_ms):
            return
        if self.planned_at is not None and index < self.planned_at + self.replan_every:
            return
        self.planned_at = index
        self.pending = clock_ms + self.costs.plan_ms, self.planning.plan(self.estimate_ms)

    def _foreseen(self, point: float) -> tuple[Array, Prepared]:
        """The delays that are set, and the plan that is shortest in the iteration to come."""
        trace = self.job.trace
        now = _plannable(trace, point)
        ends = point + (self.pipeline_ms if trace.by == "time" else 0.0)
        if trace.next_change(point) > ends:
            return now, self.planning.plan(now)
        then = _plannable(trace, ends)
        plans = [self.planning.plan(now), self.planning.plan(then), self.current]
        return now, min(plans, key=lambda one: self._trial_ms(one, point))

    def _trial_ms(self, one: Prepared, point: float) -> float:
        """How long the iteration to come would take; for ever where a link fails for good."""
        try:
            return one.runs.run(self.job.scenario, self.injection.fork(point)).iteration_ms
        except DeadlockError:
            return math.inf

    # -- what happens ---------------------------------------------------------------------------

    def _simulated(self, index: int, point: float) -> Recorded:
        """Run an iteration from a point of the trace on."""
        job, stretch, noise = self.job, None, np.ones(1)
        if job.jitter:
            scenario = job.scenario
            shape = (scenario.stages, scenario.microbatches)
            random = np.random.default_rng((job.seed, index + job.lead))
            stretch = random.lognormal(0.0, job.jitter, shape)
            noise = random.lognormal(0.0, job.jitter, (job.trace.links, 2, shape[1]))
        self.injection.start = point
        ran = self.current.runs.run(job.scenario, self.injection, stretch=stretch)
        measured_ms = np.median((ran.sent_ms + self._transfer_ms) * noise, axis=2)
        delayed: NDArray[np.bool_] = np.any(ran.sent_ms > 0, axis=2)
        return Recorded(ran.iteration_ms, measured_ms, delayed, ran.peak_activations)


def _plannable(trace: DelayTrace, point: float) -> Array:
    """The delays at a point, shape [S−1, 2]; 0 for a failed link, which no plan can help."""
    delays = np.array(trace.at(point)).reshape(-1, 2)
    return np.where(np.isfinite(delays), delays, 0.0)
