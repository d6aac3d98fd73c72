"""Attribution: how much of an iteration each cause is responsible for.

This is what-if analysis: the engine runs the same program again with one cause removed.
See :func:`attribute` for what the causes are and what the numbers mean.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from pipesim.engine import Engine, Runs
from pipesim.explain.causes import CAUSES, Attribution, Cause, LinkEffect, SlowOperator, StageEffect
from pipesim.explain.operator_times import OUTLIER, OperatorTimes
from pipesim.scenario import Scenario
from pipesim.schedule import Schedule
from pipesim.target import IDEAL, Target
from pipesim.transport import Ideal, Transport
from pipesim.transport import transport as transport_named

__all__ = ["MOST_TRIED", "attribute"]

MOST_TRIED = 5
"""How many slow operators, the worst, are also removed one at a time."""


def attribute(
    scenario: Scenario,
    schedule: Schedule,
    transport: str | Transport = "ideal",
    *,
    outlier: float = OUTLIER,
    runtime: Target = IDEAL,
    engine: Engine | None = None,
    progress: Callable[[str], None] = lambda what: None,
) -> Attribution:
    """Split an iteration into its causes by what-if analysis.

    The schedule is lowered once, for the scenario as it is. Then the engine runs this very
    program, operators and messages in the same order, with causes removed. So nothing here
    says what another plan would do: that is :func:`pipesim.compare`'s question.

    The causes, and what removes them:

    *HOL* and *dependency*
        The slow links. Dependency is what their delays cost over the transport ideal, where
        messages cost what they do over the given one; HOL what they cost over the given
        transport beyond that, be it head-of-line blocking, the wait for a delegate, or the
        compute that an isolated process takes.
    *slow operators*
        Those that take over ``outlier`` times the median of their stage and kind are set
        to it.
    *stage imbalance*
        The mean time of each kind on each stage is set to the mean over the stages. What
        slow operators lose stays as it is, how micro-batches differ stays as a factor.
    *micro-batch variation*
        Every operator is set to the mean of its stage and kind; what slow ones lose stays.
    *transport*
        What the transport costs on healthy links: given − ideal with messages that cost nothing.
    *warm-up and drain*
        The bubbles that the schedule has with all of these removed: iteration − work.
    *work*
        The balanced, healthy core: what the mean device then computes.

    Two answers are given. The **removal** of one cause alone says what fixing it, and only
    it, would gain. Removals need not add up: of two stragglers that hide each other neither
    gains anything alone. They may be negative: an operator that becomes longer costs time
    (a fast stage set to the mean), and under a transport that blocks a shorter one may
    (a message then meets a busier queue). The **cumulative** decomposition removes
    the causes in the order of ``CAUSES``, one after the other. Its parts add up to the
    iteration exactly, but what two causes share goes to the one that is removed first, and
    a later part is measured on the run that is left.

    HOL is T − ideal, less the transport's cost on healthy links. This gives one number for each
    link; all other removals are differences of two runs.

    Parameters
    ----------
    scenario : Scenario
        What is run: operator times for each stage and micro-batch, and the slow links.
    schedule : Schedule
        The order of operators.
    transport : str or Transport
        How messages travel. Which messages ``Delegated(only_slow=True)`` delegates stays as
        it is with a link removed.
    outlier : float
        An operator is slow above this many medians, see above.
    runtime : Target
        What runs the operators: causes are removed from the scenario, and the runtime then does
        with what is left as it does.
    engine : {"simpy", "compiled"}, optional
        Default: SimPy while there is little to do, see :mod:`pipesim.engine.choice`.
    progress : callable
        Called with what is being removed.

    Raises
    ------
    ScheduleError
        The schedule does not fit the scenario.
    ScenarioError
        There is no such transport, or ``outlier`` is below 1.

    Notes
    -----
    S = T / T_ideal, the waste 1 − 1/S and the recovered part M = (T − T_without) /
    (T − T_ideal) are those of Lin et al., "Understanding Stragglers in Large Model Training
    Using What-if Analysis" (OSDI 2025), whose T_ideal also gives all operators of a kind
    one time; there the mean includes slow operators. Its M_S is M of the last stage.
    On the sample trace under ``traces/production`` its artifact reports S = 1.18 and that the
    last stage, repaired alone, gains 402 ms; from the median step this gives 1.17 and 400 ms.

    Examples
    --------
    >>> import pipesim
    >>> scenario = pipesim.Scenario().with_delay(20, links=[0])
    >>> found = attribute(scenario, pipesim.plan(scenario, "zerobubble"), "nccl")
    >>> {cause.name: cause.cumulative_ms for cause in found.causes if cause.cumulative_ms}
    {'hol': 360.0, 'dependency': 50.0, 'warm-up and drain': 30.0, 'work': 360.0}
    >>> found.iteration_ms, found.ideal_ms
    (800.0, 390.0)
    """
    over = transport_named(transport)
    times = OperatorTimes(scenario, schedule, outlier)
    measured = _WhatIf(scenario, schedule, over, runtime, engine)
    ideal, free = (
        measured if way == over else _WhatIf(scenario, schedule, way, runtime, engine)
        for way in (over.unblocked, Ideal())
    )

    progress("healthy links")
    healthy = scenario.without_delay()
    own_ms = measured.iteration_ms(healthy) - free.iteration_ms(healthy)
    dependency_ms = ideal.gain_ms(healthy)
    hol_ms = measured.gain_ms(healthy) - dependency_ms

    removals = {
        "hol": hol_ms,
        "dependency": dependency_ms,
        "slow operators": measured.gain_ms(times.without(slow=True)),
        "stage imbalance": measured.gain_ms(times.without(imbalance=True)),
        "micro-batch variation": measured.gain_ms(times.without(variation=True)),
        "transport": own_ms,
    }
    left = [
        times.without(**removed).without_delay()
        for removed in (
            {},
            {"slow": True},
            {"slow": True, "imbalance": True},
            {"slow": True, "imbalance": True, "variation": True},
        )
    ]
    steps = [measured.iteration_ms(scenario) for scenario in left]
    ideal_run = free.runs.timeline(runtime.adapted(left[-1]))
    work_ms = float(ideal_run.busy_ms.mean())
    cumulative = [
        hol_ms,
        dependency_ms,
        *(before - after for before, after in pairwise(steps)),
        steps[-1] - ideal_run.iteration_ms,
        ideal_run.iteration_ms - work_ms,
        work_ms,
    ]
    return Attribution(
        scenario,
        schedule,
        over,
        iteration_ms=measured.iteration_ms(scenario),
        ideal_ms=steps[-1],
        causes=tuple(
            Cause(name, removals.get(name), part)
            for name, part in zip(CAUSES, cumulative, strict=True)
        ),
        links=_links(measured, ideal, progress),
        stages=_stages(measured, times, progress),
        slow_operators=_slow_operators(measured, times, progress),
    )


class _WhatIf:
    """One program, run under changed scenarios."""

    def __init__(
        self,
        scenario: Scenario,
        schedule: Schedule,
        over: Transport,
        runtime: Target,
        engine: Engine | None,
    ) -> None:
        self.scenario, self._runtime = scenario, runtime
        self.runs = Runs(schedule, over, lowered_for=runtime.adapted(scenario), engine=engine)
        self._known: list[tuple[Scenario, float]] = []

    def iteration_ms(self, changed: Scenario) -> float:
        """The iteration time; a scenario that was run before is not run again."""
        for scenario, known_ms in self._known:
            if scenario == changed:
                return known_ms
        self._known.append((changed, self.runs.makespan_ms(self._runtime.adapted(changed))))
        return self._known[-1][1]

    def gain_ms(self, changed: Scenario) -> float:
        """How much shorter the iteration is than that of the scenario as it is."""
        return self.iteration_ms(self.scenario) - self.iteration_ms(changed)


def _links(
    measured: _WhatIf, ideal: _WhatIf, progress: Callable[[str], None]
) -> tuple[LinkEffect, ...]:
    scenario = measured.scenario
    effects = []
    for link in scenario.slow_links:
        progress(f"without link {link}'s delay")
        latency, occupancy = scenario.latency_ms.copy(), scenario.occupancy_ms.copy()
        latency[link] = occupancy[link] = 0.0
        healthy = scenario.replaced(latency_ms=latency, occupancy_ms=occupancy)
        dependency_ms = ideal.gain_ms(healthy)
        effects.append(LinkEffect(link, dependency_ms, measured.gain_ms(healthy) - dependency_ms))
    return tuple(effects)


def _stages(
    measured: _WhatIf, times: OperatorTimes, progress: Callable[[str], None]
) -> tuple[StageEffect, ...]:
    effects = []
    for stage, ratio in enumerate(times.stage_ratios.tolist()):
        progress(f"without stage {stage}'s imbalance")
        count = sum(slow.op.stage == stage for slow in times.slow)
        medians = times.without(slow=lambda op, stage=stage: op.stage == stage)  # type: ignore[misc]
        effects.append(
            StageEffect(
                stage,
                ratio,
                measured.gain_ms(times.without(imbalance=[stage])),
                count,
                measured.gain_ms(medians),
            )
        )
    return tuple(effects)


def _slow_operators(
    measured: _WhatIf, times: OperatorTimes, progress: Callable[[str], None]
) -> tuple[SlowOperator, ...]:
    found = []
    for rank, slow in enumerate(times.slow):
        removal_ms = None
        if rank < MOST_TRIED:
            progress(f"without slow operator {slow.op}")
            removal_ms = measured.gain_ms(times.without(slow=slow.op.__eq__))
        found.append(SlowOperator(slow.op, slow.duration_ms, slow.median_ms, removal_ms))
    return tuple(found)
