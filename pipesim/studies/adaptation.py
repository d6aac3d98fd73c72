"""What hours of changing links cost, with and without adaptation."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property

import numpy as np

from pipesim.adapt.costs import Costs
from pipesim.adapt.detections import LEAST_MS
from pipesim.adapt.detectors import Detector, detector_from
from pipesim.adapt.loop import Iteration, Job, run_job
from pipesim.adapt.outcome import Outcome
from pipesim.adapt.record import Record
from pipesim.adapt.strategy import Planning, Strategy
from pipesim.delays import By, DelayTrace
from pipesim.engine import evaluate
from pipesim.errors import ScenarioError
from pipesim.files import StrPath
from pipesim.scenario import Scenario
from pipesim.studies.planning import in_chunks
from pipesim.studies.systems import System, default_systems, system
from pipesim.transport import Delegated, Transport, transport

__all__ = ["ORACLE", "Adaptation", "NoBaselineError", "adapt", "ended", "oracle", "strategy_of"]

ORACLE = "oracle"
"""The system that knows the delays, besides those that were asked for."""

_ALONE: dict[By, float] = {"time": 60_000.0, "iteration": 100.0}
"""How long a trace lasts that does not say."""


class NoBaselineError(ScenarioError):
    """A link is slow before a detector has a baseline.

    Attributes
    ----------
    change : int
        Which change of the trace makes it slow.
    """

    def __init__(self, message: str, change: int) -> None:
        super().__init__(message)
        self.change = change


@dataclass(frozen=True)
class Adaptation:
    """What came of a job under several systems.

    Attributes
    ----------
    trace : DelayTrace
        The delays, with an end.
    outcomes : dict of str to Outcome
        By system; :data:`ORACLE` is the last.
    """

    trace: DelayTrace
    outcomes: Mapping[str, Outcome] = field(repr=False)

    @cached_property
    def duration_s(self) -> float:
        """How long the trace lasts; if it counts iterations, as long as the slowest system."""
        if self.trace.by == "time":
            return max(one.job.end for one in self.outcomes.values()) / 1000
        return max(one.elapsed_ms for one in self.outcomes.values()) / 1000

    def share_of_oracle(self, name: str) -> float | None:
        """A system's iterations a minute as a part of the oracle's; None if that has none."""
        best = self.outcomes[ORACLE].per_minute
        return self.outcomes[name].per_minute / best if best else None

    def as_dict(self) -> dict[str, object]:
        """All systems in JSON types; None where there is no such figure."""
        return {
            "duration_s": self.duration_s,
            "by": self.trace.by,
            "systems": {name: self._system(name) for name in self.outcomes},
        }

    def _system(self, name: str) -> dict[str, object]:
        one = self.outcomes[name]
        found = one.detections
        ran = bool(one.iterations)
        micro_batches = one.job.scenario.in_micro_batches
        return {
            "iterations": len(one.iterations),
            "iterations_per_minute": one.per_minute,
            "replans": one.replans,
            "median_iteration_ms": one.quantile_ms(0.5) if ran else None,
            "p99_iteration_ms": one.quantile_ms(0.99) if ran else None,
            "detection_delay_s": None
            if found is None or found.mean_ms is None
            else found.mean_ms / 1000,
            "share_of_oracle": self.share_of_oracle(name),
            "title": one.strategy.title,
            "elapsed_s": one.elapsed_ms / 1000,
            "onsets_missed": found.missed if found else None,
            "false_alarms": found.false_alarms if found else None,
            "iterations_to_recover": int(found.recovery.max())
            if found and len(found.recovery)
            else None,
            "levels": [
                {
                    "above_ms": pace.above_ms,
                    "upto_ms": pace.upto_ms if np.isfinite(pace.upto_ms) else None,
                    "share_of_time": pace.share,
                    "iterations_per_minute": pace.per_minute if pace.share else None,
                }
                for pace in one.paces
            ],
            "costs_s": {what: cost / 1000 for what, cost in one.costs_ms.items()},
            "peak_activations": micro_batches(one.peak_activations).tolist(),
            "host_activations": micro_batches(one.host_activations).tolist(),
            "host_bytes": one.host_bytes.tolist(),
        }


def ended(trace: DelayTrace, end: float | None = None) -> DelayTrace:
    """Return a trace with an end: the given one, its own, or as far as its longest piece goes on.

    That is a minute, or 100 iterations, where there is one piece, from 0 on.

    Raises
    ------
    ScenarioError
        The end is not after 0.

    Examples
    --------
    >>> ended(DelayTrace([10, 30, 40], [[1], [2], [0]])).end
    60.0
    """
    if end is None and trace.end is not None:
        return trace
    if end is None:
        lengths = np.diff(trace.starts, prepend=0.0)
        longest = float(lengths.max(initial=0.0)) or _ALONE[trace.by]
        end = float(trace.starts.max(initial=0.0)) + longest
    if not end > 0:
        raise ScenarioError("a trace must last longer than nothing")
    within = trace.starts < end
    return DelayTrace(trace.starts[within], trace.delay_ms[within], by=trace.by, end=end)


def adapt(
    scenario: Scenario,
    trace: DelayTrace,
    systems: Sequence[str] | None = None,
    *,
    detector: str = "ratio",
    costs: Costs | None = None,
    replan_every: int = 1,
    jitter: float = 0.0,
    seed: int = 0,
    every: int = 1,
    delegates_every: int = 1,
    after_ms: float = 0.0,
    lead: int = 0,
    most: int | None = None,
    over: Callable[[str], Transport] = transport,
    csv: StrPath | None = None,
    progress: Callable[[str, float], None] = lambda title, part: None,
) -> Adaptation:
    """Run a job along a delay trace under each system, and under an oracle.

    A system whose transport is ``delegated`` sends over ``nccl``, and delegates the messages of
    links that are known to be slow. One whose planner knows of delays re-plans. Others do nothing.

    Parameters
    ----------
    scenario : Scenario
        The pipeline, without delays of its own.
    trace : DelayTrace
        The delays of its links; see :func:`ended` for its end.
    systems : sequence of str
        Names out of ``SYSTEMS``, or ``planner:transport``. Default: see
        :func:`~pipesim.studies.systems.default_systems`.
    detector : str
        What tells slow links, see :func:`pipesim.adapt.detectors.detector_from`.
    costs, replan_every
        As for :func:`pipesim.adapt.loop.run_job`.
    jitter, seed, every, delegates_every, after_ms, lead, most
        As for :class:`pipesim.adapt.loop.Job`.
    over : callable
        Returns the transport of a name.
    csv : path, optional
        Write a row for each iteration, and go on from those that are there.
    progress : callable
        Called with a system's title and the part of the trace that it has run.

    Raises
    ------
    ScenarioError, ScheduleError
        Something does not fit, a system does not exist or has no plan.
    NoBaselineError
        A link is slow before the detector has a baseline.
    FormatError
        The CSV holds another run.
    """
    trace = ended(trace)
    names = list(systems or default_systems(scenario))
    chosen = [strategy_of(system(name), over) for name in names if name != ORACLE]
    chosen.append(oracle(over))
    jobs = {
        one.name: Job(
            *_in_chunks(scenario, trace, one.planner),
            jitter=jitter,
            seed=seed,
            every=every,
            delegates_every=delegates_every,
            after_ms=after_ms,
            lead=lead,
            most=most,
        )
        for one in chosen
    }
    makes = detector_from(detector)
    adapts = {}
    for one in chosen:
        planning = Planning(jobs[one.name].scenario, one)
        adapts[one.name] = planning.adapts
        if one.knows == "measurements" and planning.adapts:
            _check_baseline(jobs[one.name], planning, makes)
    links = {name: job.trace.links for name, job in jobs.items()}
    lagging = max(every, delegates_every) > 1
    what = _fingerprint(chosen, jobs, detector, costs, replan_every) if csv else ""
    outcomes = {}
    with Record(csv, what, links, resumes=not lagging) if csv else nullcontext() as record:
        for one in chosen:
            job, done = jobs[one.name], []
            before = record.recorded(one.name) if record else ()
            for iteration in run_job(
                job,
                one,
                detector=makes,
                costs=costs,
                replan_every=replan_every,
                recorded=before,
            ):
                done.append(iteration)
                if record:
                    record.write(one.name, iteration)
                progress(one.title, _part(job, iteration))
            outcomes[one.name] = Outcome(job, one, adapts[one.name], tuple(done))
    return Adaptation(trace, outcomes)


def strategy_of(one: System, over: Callable[[str], Transport]) -> Strategy:
    """Return what a job does about slow links under a system, see :func:`adapt`."""
    route = over(one.transport)
    if isinstance(route, Delegated):
        return Strategy(one.name, one.title, one.planner, over("nccl"), route)
    return Strategy(one.name, one.title, one.planner, route)


def oracle(over: Callable[[str], Transport]) -> Strategy:
    """Return the strategy that knows the delays, and plans and delegates as PipeMorph does."""
    told = strategy_of(system("pipemorph"), over)
    return replace(told, name=ORACLE, title="Oracle", knows="delays")


def _in_chunks(scenario: Scenario, trace: DelayTrace, planner: str) -> tuple[Scenario, DelayTrace]:
    """The pipeline as a planner cuts it, and the trace of its links."""
    cut = in_chunks(scenario, planner)
    if cut is scenario or trace.links != scenario.stages - 1:
        return scenario, trace
    if not np.isfinite(trace.delay_ms).all():
        raise ScenarioError(f"{planner} cuts stages into chunks: no trace with failed links for it")
    pieces = [
        in_chunks(scenario.replaced(occupancy_ms=piece), planner).occupancy_ms
        for piece in trace.delay_ms
    ]
    return cut, DelayTrace(trace.starts, pieces, by=trace.by, end=trace.end)


def _check_baseline(job: Job, planning: Planning, detector: Callable[[], Detector]) -> None:
    """Raise :class:`NoBaselineError` if some link is slow before the detector has a baseline."""
    needed, one = 0, detector()
    while one.baseline_ms is None:
        one.update(1.0)
        needed += 1
    healthy = max(0, needed - job.lead)
    schedule = planning.healthy.schedule
    each_ms = evaluate(job.scenario, schedule, planning.strategy.direct) + job.after_ms
    until = healthy * (each_ms if job.trace.by == "time" else 1.0)
    slow = (job.trace.delay_ms >= LEAST_MS).any(axis=(1, 2))
    early = np.flatnonzero(slow & (job.trace.starts < until))
    if len(early):
        change = int(early[0])
        link = int(np.argmax((job.trace.delay_ms[change] >= LEAST_MS).any(axis=1)))
        raise NoBaselineError(
            f"link {link} is slow before the detector has seen {needed} healthy iterations, so it "
            f"has no baseline: let the job run {needed} before the trace begins",
            change,
        )


def _part(job: Job, one: Iteration) -> float:
    """How much of the job is done, 0 to 1."""
    by_index = [(one.index + 1) / job.most] if job.most else []
    ran = one.end_ms if job.trace.by == "time" else one.index + 1
    return min(1.0, max([ran / job.end, *by_index]))


def _fingerprint(
    strategies: Sequence[Strategy],
    jobs: Mapping[str, Job],
    detector: str,
    costs: Costs | None,
    replan_every: int,
) -> str:
    """What tells this run from others: a hash of all that its result depends on."""
    told = {one.name: [repr(one), _values(jobs[one.name].scenario)] for one in strategies}
    first = next(iter(jobs.values()))
    names = [one.name for one in fields(first) if one.name not in ("scenario", "trace")]
    numbers = {name: getattr(first, name) for name in names}
    trace = first.trace
    whole = [
        told,
        numbers,
        [trace.starts.tolist(), trace.delay_ms.tolist(), trace.by, trace.end],
        detector,
        asdict(costs or Costs()),
        replan_every,
    ]
    return hashlib.sha256(json.dumps(whole).encode()).hexdigest()[:12]


def _values(scenario: Scenario) -> dict[str, object]:
    """All that a scenario holds besides what it is called, in JSON types."""
    names = [one.name for one in fields(scenario) if one.name not in ("name", "source")]
    return {name: np.asarray(getattr(scenario, name)).tolist() for name in names}
