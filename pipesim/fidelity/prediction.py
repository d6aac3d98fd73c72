"""A measured run predicted from its healthy iteration and the constants of its testbed.

Nothing here is made for a single run.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from pipesim.analysis import warmup
from pipesim.engine import Runs, evaluate
from pipesim.errors import ScenarioError
from pipesim.fidelity.intervals import around
from pipesim.fidelity.runs import MeasuredRun
from pipesim.fidelity.testbed import Testbed
from pipesim.scenario import TIME_OF, Direction, Scenario
from pipesim.schedule import Schedule
from pipesim.transport import Transport
from planners import plan

__all__ = [
    "Prediction",
    "clocked",
    "delegated_plan",
    "direct",
    "equal_times",
    "injected_ms",
    "predict",
    "profiled",
    "usual_plan",
]


@dataclass(frozen=True)
class Prediction:
    """What the model says of a measured run.

    Attributes
    ----------
    measured : MeasuredRun
        The run.
    predicted_ms : float
        Its predicted iteration time under the delay.
    spread : float, optional
        How far off such predictions have been at most, 90 % of the time, as a part of it.
    """

    measured: MeasuredRun
    predicted_ms: float
    spread: float | None = None

    @property
    def system(self) -> str:
        """What ran."""
        return self.measured.system

    @property
    def setting(self) -> tuple[str, str, str, float]:
        """What was the same for all systems that can be ranked against each other."""
        return self.measured.setting

    @property
    def measured_ms(self) -> float:
        """The measured iteration time under the delay."""
        return self.measured.slow_ms

    @property
    def interval_ms(self) -> tuple[float, float] | None:
        """Where the measured time is 90 % of the time; None where that is not known."""
        return around(self.predicted_ms, self.spread)

    @property
    def error(self) -> float:
        """Relative error, signed: above 0 the prediction is too long."""
        return self.predicted_ms / self.measured_ms - 1


def predict(measured: MeasuredRun, testbed: Testbed, healthy: Scenario | None = None) -> Prediction:
    """Predict a run's iteration under its delay from its healthy iteration.

    1. Operator times are scaled until the healthy iteration is the measured one. All but
       1F1B ran the published zero-bubble plan over NCCL then; delegation starts with the delay.
    2. The system's plan runs over its transport with the delay on the slow sends: occupancy
       under NCCL, a busy delegate under delegation.

    The plans are those of the published implementation: 1F1B; for ``zerobubble``, ``zb-auto``
    for equal operator times, see :func:`usual_plan`; for ``pipemorph-cpu``, list scheduling for
    equal operator times; for ``pipemorph``, ``pipemorph-artifact`` for the operator times and
    nominal delays.

    Parameters
    ----------
    measured : MeasuredRun
        The run; its ``slow_ms`` is not looked at.
    testbed : Testbed
        Where it ran.
    healthy : Scenario, optional
        What :func:`profiled` returns for them, where that is known already.

    Raises
    ------
    ScenarioError
        No operator times give the healthy iteration.
    """
    scenario = profiled(measured, testbed) if healthy is None else healthy
    slow = _delayed(scenario, measured, testbed)
    schedule = _plan(measured, slow)
    if measured.delegated:
        over = testbed.transport(
            "delegated", ranks_per_host=measured.gpus_per_node, delegates=measured.delegates
        )
        pipeline_ms = evaluate(slow, schedule, over)
    else:
        pipeline_ms = _over_nccl(measured, testbed).makespan_ms(slow)
    usual = warmup(usual_plan(measured))
    more = any(own > old for own, old in zip(warmup(schedule)[1:], usual[1:], strict=True))
    after_ms = testbed.after_ms + more * testbed["replanned_ms"]
    return Prediction(measured, pipeline_ms + after_ms, testbed.spread(measured.system))


def _delayed(scenario: Scenario, measured: MeasuredRun, testbed: Testbed) -> Scenario:
    delay_ms = measured.delay_ms
    if not (delay_ms and measured.slow_sends):
        return scenario
    if not measured.delegated:
        delay_ms = injected_ms(delay_ms, testbed)
        scenario = clocked(scenario, testbed)
    for start, end in measured.slow_sends:
        way: Direction = "down" if end > start else "up"
        scenario = scenario.with_delay(delay_ms, [min(start, end)], directions=[way])
    return scenario


def clocked(scenario: Scenario, testbed: Testbed) -> Scenario:
    """Return a scenario with the operator times that it has under a delay over NCCL."""
    speed = testbed["idle_speed"]
    return scenario.replaced(**{name: speed * getattr(scenario, name) for name in TIME_OF.values()})


def injected_ms(nominal_ms: float, testbed: Testbed) -> float:
    """Return how long a delay that is injected under NCCL lasts.

    The injector of the published runs reads seconds as single-precision numbers and hands whole
    milliseconds to its kernel, rounded down: of 30 ms, 29.

    Examples
    --------
    >>> [injected_ms(delay, Testbed("lab", whole_ms=True)) for delay in (10, 50, 60)]
    [9.0, 50.0, 59.0]
    """
    if not nominal_ms:
        return 0.0
    if testbed.whole_ms:
        nominal_ms = np.floor(float(np.float32(nominal_ms / 1000)) * 1000)
    return float(nominal_ms) + testbed["overshoot_ms"]


def _over_nccl(measured: MeasuredRun, testbed: Testbed) -> Runs:
    """Return the usual plan of a run over NCCL, or in 1F1B's exchanges.

    The published plan says when messages are sent and received, too: in the order of the times that
    it was made for, which are those of equal operators.
    """
    return Runs(usual_plan(measured), direct(measured, testbed), lowered_for=equal_times(measured))


def direct(measured: MeasuredRun, testbed: Testbed) -> Transport:
    """Return the transport of a run's messages where they are not delegated."""
    return testbed.transport("exchange" if measured.system == "1f1b" else "nccl")


def equal_times(measured: MeasuredRun) -> Scenario:
    """Return a run's pipeline where all operators take as long, which its plans were made for."""
    return Scenario(stages=measured.stages, microbatches=measured.microbatches)


def _plan(measured: MeasuredRun, slow: Scenario) -> Schedule:
    if measured.system == "pipemorph" and slow.slow_links:
        return plan(slow, "pipemorph-artifact")
    if measured.delegated:
        return delegated_plan(measured)
    return usual_plan(measured)


def delegated_plan(measured: MeasuredRun) -> Schedule:
    """Return the plan of a delegated run that has not been re-planned: for equal times."""
    return _equal("zerobubble", measured.stages, measured.microbatches)


def usual_plan(measured: MeasuredRun) -> Schedule:
    """Return the plan of a run's healthy iterations.

    All systems but 1F1B run what the published heuristic gives for F = B = W, communication of
    a thousandth of that, 2S activations on each device, and a B that gives back none: the order
    of the zero-bubble operator timelines.
    """
    planner = "1f1b" if measured.system == "1f1b" else "zb-auto"
    return _equal(planner, measured.stages, measured.microbatches)


@lru_cache(maxsize=64)
def _equal(planner: str, stages: int, microbatches: int) -> Schedule:
    equal = Scenario(stages=stages, microbatches=microbatches)
    if planner == "zb-auto":
        equal = equal.replaced(latency_ms=0.01, activation_limit=2 * stages, released_by_b=0.0)
    return plan(equal, planner)


def profiled(measured: MeasuredRun, testbed: Testbed) -> Scenario:
    """Scale operator times until the healthy iteration is the measured one.

    Raises
    ------
    ScenarioError
        What comes after the pipeline, or the messages alone, take longer than it.
    """
    target_ms = measured.healthy_ms - testbed.after_ms
    unit = testbed.operators(
        measured.model, measured.stages, measured.microbatches, measured.message_bytes
    )
    runs = _over_nccl(measured, testbed)

    def pipeline_ms(scale: float) -> float:
        return runs.makespan_ms(unit.scaled(scale))

    # Nearly proportional, since only the messages do not scale: a few secant steps do.
    low, low_ms = 0.0, pipeline_ms(0.0)
    if low_ms >= target_ms:
        raise ScenarioError(
            f"{measured.place}: healthy_ms {measured.healthy_ms:g} is less than messages and "
            f"the work after the pipeline take on {testbed.name}"
        )
    scale = target_ms / (measured.microbatches + measured.stages) / unit.forward_ms.mean()
    for _ in range(_MOST_STEPS):
        reached_ms = pipeline_ms(scale)
        if abs(reached_ms / target_ms - 1) < _CLOSE:
            break
        step = (target_ms - reached_ms) * (scale - low) / (reached_ms - low_ms)
        low, low_ms, scale = scale, reached_ms, scale + step
    return unit.scaled(scale)


_MOST_STEPS, _CLOSE = 40, 1e-7
