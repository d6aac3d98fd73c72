"""How often to re-plan: the pace of a job whose links change all the time, beside an oracle's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pipesim.adapt.costs import Costs
from pipesim.adapt.detectors import detector_from
from pipesim.adapt.loop import Job, run_job
from pipesim.delays import DelayTrace
from pipesim.errors import ScenarioError
from pipesim.scenario import Array, Scenario
from pipesim.studies.adaptation import oracle, strategy_of
from pipesim.studies.systems import system
from pipesim.text import milliseconds
from pipesim.transport import Transport, transport

__all__ = ["SETTLING", "Replanning", "changing", "replanning"]

SETTLING = 0.1
"""First part of each job, in which its links become slow, that does not count."""


@dataclass(frozen=True, eq=False)
class Replanning:
    """The pace of adaptive jobs.

    Attributes
    ----------
    change_ms : tuple of float
        Mean times from one change to the next.
    replan_every : tuple of int
        Least numbers of iterations from one re-planning to the next.
    kept : array, shape [C, R]
        Iterations a minute as a part of the oracle's.
    unplanned : array, shape [C]
        The same of a job that delegates and never re-plans.
    iteration_ms : array, shape [C]
        The oracle's mean iteration.
    """

    change_ms: tuple[float, ...]
    replan_every: tuple[int, ...]
    kept: Array
    unplanned: Array
    iteration_ms: Array


def changing(
    links: int,
    change_ms: float,
    duration_ms: float,
    *,
    mean_ms: float = 30.0,
    deviation_ms: float = 10.0,
    seed: int = 0,
) -> DelayTrace:
    """Return a trace whose links change all the time, as in the published dynamic experiments.

    From one change to the next it is 2/3 to 4/3 of ``change_ms``, as their 200 to 400 ms are; then
    some of the links, at least one, get other delays, which are normally distributed.

    Parameters
    ----------
    links : int
        Number of links, S − 1.
    change_ms, duration_ms : float
        Mean time from change to change, and how long the trace is.
    mean_ms, deviation_ms : float
        Of the delays; what would be below 0 is 0.
    seed : int
        Of the random numbers.

    Raises
    ------
    ScenarioError
        The mean time is not above 0, or longer than the trace; or there is no link.

    Examples
    --------
    >>> changing(3, 300, 3000).starts[:3].round().tolist()
    [0.0, 327.0, 581.0]
    """
    if links < 1:
        raise ScenarioError("there is no link whose delay could change")
    if not 0 < change_ms <= duration_ms < np.inf:
        raise ScenarioError(
            f"changes every {change_ms:g} ms do not fit a trace of {duration_ms:g} ms"
        )
    random = np.random.default_rng(seed)
    count = int(1.5 * duration_ms / change_ms) + 1
    starts = np.append(0.0, np.cumsum(random.uniform(2 / 3, 4 / 3, count) * change_ms))
    starts = starts[starts < duration_ms]
    delays = np.maximum(0.0, random.normal(mean_ms, deviation_ms, (len(starts), links)))
    kept = random.random(delays.shape) < 0.5
    kept[np.arange(len(starts)), random.integers(links, size=len(starts))] = False
    for piece in range(1, len(starts)):
        delays[piece] = np.where(kept[piece], delays[piece - 1], delays[piece])
    return DelayTrace(starts, delays.round(3), end=duration_ms)


def replanning(
    scenario: Scenario,
    change_ms: Sequence[float],
    replan_every: Sequence[int] = (1,),
    *,
    duration_ms: float = 60_000.0,
    detector: str = "ratio",
    costs: Costs | None = None,
    lead: int = 8,
    seed: int = 0,
    over: Callable[[str], Transport] = transport,
    progress: Callable[[str, float], None] = lambda title, part: None,
) -> Replanning:
    """Run adaptive jobs at several rates of change, with several intervals of re-planning.

    Parameters
    ----------
    scenario : Scenario
        The pipeline, without delays of its own.
    change_ms, replan_every : sequence
        See :class:`Replanning`.
    duration_ms : float
        Of each job.
    detector, costs, lead, over
        As for :func:`~pipesim.studies.adaptation.adapt`.
    seed : int
        Of the traces.
    progress : callable
        Called with what is run, and which part of all is done.

    Raises
    ------
    ScenarioError, ScheduleError
        As for :func:`~pipesim.studies.adaptation.adapt`; or jobs are too short.
    """
    makes = detector_from(detector)
    planned, delegated = (strategy_of(system(one), over) for one in ("pipemorph", "pipemorph-cpu"))
    runs = [(oracle(over), 1), (delegated, 1), *((planned, every) for every in replan_every)]
    paces = np.empty((len(change_ms), len(runs)))
    for c, change in enumerate(change_ms):
        job = Job(
            scenario, changing(scenario.stages - 1, change, duration_ms, seed=seed), lead=lead
        )
        for r, (strategy, every) in enumerate(runs):
            progress(f"changes every {milliseconds(change)}", (c + r / len(runs)) / len(change_ms))
            ran = run_job(job, strategy, detector=makes, costs=costs, replan_every=every)
            times_ms = [one.duration_ms for one in ran if one.start_ms >= SETTLING * duration_ms]
            if not times_ms:
                raise ScenarioError(
                    f"no iteration starts after the first {SETTLING:.0%} of "
                    f"{milliseconds(duration_ms)}: let jobs run longer"
                )
            paces[c, r] = len(times_ms) / sum(times_ms)
    shares = paces[:, 1:] / paces[:, :1]
    return Replanning(
        tuple(change_ms), tuple(replan_every), shares[:, 1:], shares[:, 0], 1 / paces[:, 0]
    )
