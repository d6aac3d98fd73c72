"""Iterations of one job under delays that change all the time, one after the other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from pipesim.engine.choice import Engine, chosen
from pipesim.engine.injection import Injection
from pipesim.engine.simpy.simulator import run_and_sends
from pipesim.errors import ScenarioError
from pipesim.program import Program
from pipesim.scenario import LARGEST, TIME_OF, Array, Scenario
from pipesim.timeline import Timeline

if TYPE_CHECKING:
    from pipesim.engine.compiled.evaluator import Evaluation
    from pipesim.engine.compiled.injected import InjectedProgram

__all__ = ["Iterated", "Iterations"]


@dataclass(frozen=True)
class Iterated:
    """One iteration.

    Attributes
    ----------
    iteration_ms : float
        The makespan.
    sent_ms : array, shape [S−1, 2, N]
        By link, direction and micro-batch, the injected delay of each message, and for a link
        that was down the wait for its recovery; nan where none is sent, as inside a device.
    """

    iteration_ms: float
    sent_ms: Array
    _run: Timeline | Evaluation = field(repr=False)

    @property
    def peak_activations(self) -> Array:
        """Most activations held for each device at once, host-held ones included, shape [D]."""
        return self._run.peak_activations


class Iterations:
    """A program, to be run for one iteration after the other.

    Parameters
    ----------
    program : Program
        Under any transport. What its runs need is made once.
    engine : {"simpy", "compiled"}, optional
        Both do the same. Default: see :mod:`.choice`.

    Examples
    --------
    A trace slows link 0 after 200 ms; each device asks before every 16th of its sends.

    >>> import pipesim
    >>> from pipesim.delays import DelayTrace
    >>> from pipesim.lowering import lower
    >>> from pipesim.transport import Nccl
    >>> scenario = pipesim.Scenario()
    >>> schedule = pipesim.plan(scenario, "zerobubble")
    >>> program = lower(schedule, scenario, Nccl())
    >>> injection = Injection(DelayTrace([200], [[20, 0, 0]]), every=16)
    >>> iterations, clock_ms = Iterations(program), 0.0
    >>> for _ in range(3):
    ...     injection.start = clock_ms
    ...     one = iterations.run(scenario, injection)
    ...     clock_ms += one.iteration_ms
    ...     print(one.iteration_ms)
    390.0
    680.0
    800.0
    """

    def __init__(self, program: Program, *, engine: Engine | None = None) -> None:
        self.program = program
        self._engine = engine
        self._compiled: InjectedProgram | None = None

    def run(
        self, scenario: Scenario, injection: Injection, *, stretch: ArrayLike | None = None
    ) -> Iterated:
        """Run one iteration, and let the injection's senders remember it.

        Parameters
        ----------
        scenario : Scenario
            Operator times, latencies and message sizes; occupancy is the injection's.
        injection : Injection
            The delays. Its ``start`` says where on the trace the iteration starts.
        stretch : array_like, shape [], [S] or [S, N], optional
            Factors on all operator times: much cheaper than another scenario.

        Raises
        ------
        ScenarioError
            Factors are negative or of another shape.
        ScheduleError
            The program or the trace does not fit the scenario, or the order of a device's sends
            depends on times.
        DeadlockError
            Devices wait for each other for ever, or for a link that never recovers.
        """
        times = None if stretch is None else _stretched(scenario, stretch)
        if chosen(self._engine, len(self.program.schedule.ops)) == "simpy":
            timed = scenario if times is None else scenario.replaced(**times)
            timeline, sent_ms = run_and_sends(self.program, timed, injection)
            return Iterated(timeline.iteration_ms, sent_ms, timeline)
        if self._compiled is None:
            from pipesim.engine.compiled.injected import InjectedProgram

            self._compiled = InjectedProgram(self.program)
        evaluation, sent_ms = self._compiled.evaluate(scenario, injection, times)
        return Iterated(evaluation.makespan_ms, sent_ms, evaluation)


def _stretched(scenario: Scenario, stretch: ArrayLike) -> dict[str, Array]:
    """Return the fields of operator times, multiplied."""
    factors = np.asarray(stretch, dtype=np.float64)
    shape = (scenario.stages, scenario.microbatches)
    if factors.shape != shape[: factors.ndim] or not ((factors >= 0) & (factors <= LARGEST)).all():
        raise ScenarioError(
            f"factors on operator times must be at least 0, in the shape of {list(shape)} or its "
            "beginning"
        )
    factors = factors.reshape(factors.shape + (1,) * (2 - factors.ndim))
    return {name: getattr(scenario, name) * factors for name in TIME_OF.values()}
