"""A testbed: what a cluster adds to the model, in a handful of physical constants.

From these constants and a measured run's shape and healthy iteration time, its iteration under
a delay is predicted. Nothing here is made for a single run.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from pipesim.engine import Runs, evaluate
from pipesim.errors import ScenarioError
from pipesim.fidelity.runs import MeasuredRun
from pipesim.scenario import Scenario
from pipesim.schedule import Schedule
from pipesim.transport import Delegated, Exchange, Nccl, Transport, transport
from planners import plan

__all__ = ["CONSTANTS", "Constant", "Prediction", "Testbed", "predict", "profiled"]


@dataclass(frozen=True)
class Constant:
    """A constant of a testbed: its unit, its meaning, and the values that a fit may choose.

    The values are few and round, so that a fit cannot claim more than the runs show.
    """

    unit: str
    meaning: str
    neutral: float
    candidates: tuple[float, ...]


CONSTANTS = {
    "after_ms": Constant(
        "ms",
        "time after the pipeline: gradient reduction, optimizer",
        0.0,
        (0, 10, 20, 30, 40, 50, 60, 80, 100),
    ),
    "transfer_gib_per_s": Constant(
        "GiB/s",
        "bandwidth of messages over NCCL, shared by the ranks of a node",
        np.inf,
        (1, 1.5, 2, 3, 4, 5, 7, 10, 15, 20, 30, 40, np.inf),
    ),
    "delegate_ms": Constant(
        "ms",
        "latency that delegation adds to a message, also on a healthy link",
        0.0,
        (0, 1, 2, 3, 4, 5, 6, 8),
    ),
    "host_gib_per_s": Constant(
        "GiB/s",
        "bandwidth of delegated messages' host path, shared by the ranks of a node",
        np.inf,
        (5, 6, 7, 8, 9, 10, 11, 12, 14, 17, 20, np.inf),
    ),
    "replanned_ms": Constant(
        "ms",
        "extra time after the pipeline in re-planned iterations",
        0.0,
        (0, 20, 50, 100, 150, 200, 250, 300, 350, 400),
    ),
}
"""All constants there are; a testbed has at most four that are not neutral.

``replanned_ms`` is what the A10 runs show and nothing explains: their re-planned iterations
end 0.3 s after the last operator, at every delay, all others 0.04 s. It was measured for one
model, and is kept as it was measured.
"""

MOST_CONSTANTS = 4

GIB_PER_S = 2**30 / 1e3  # bytes per millisecond


@dataclass(frozen=True)
class Testbed:
    """A cluster.

    Attributes
    ----------
    name : str
        As measured runs call it.
    p2p_streams : str
        Which NCCL kernels share a stream, see :class:`pipesim.transport.Nccl`.
    forward, backward, weight : float
        Relative times of F, B and W where no profile fits.
    profile : Scenario, optional
        Measured operator times of one model on this testbed, used for runs of its shape.
    constants : dict of str to float
        Values out of ``CONSTANTS``; those left out are neutral.
    message_bytes : float
        Size of the messages that it was calibrated with.
    errors : dict of str to tuple of float
        By system: measured / predicted − 1 of each run, predicted from a fit that has not seen its
        setting.
    """

    name: str
    p2p_streams: str = "device"
    forward: float = 1.0
    backward: float = 1.0
    weight: float = 1.0
    profile: Scenario | None = None
    constants: dict[str, float] = field(default_factory=dict)
    message_bytes: float = 0.0
    errors: dict[str, tuple[float, ...]] = field(default_factory=dict)

    @property
    def after_ms(self) -> float:
        """What follows the pipeline in an iteration, and is in no makespan."""
        return self["after_ms"]

    def transport(
        self, kind: str, *, ranks_per_host: int = 1, delegates: int | None = None
    ) -> Transport:
        """Return a transport with what messages cost here.

        Parameters
        ----------
        kind : str
            A name out of :data:`pipesim.transport.TRANSPORTS`. Over ``ideal`` and ``isolated``
            messages cost what they do over ``nccl``.
        ranks_per_host : int
            Ranks that send at once through one host.
        delegates : int, optional
            Delegate processes for each direction. Default: enough that one is always free.

        Raises
        ------
        ScenarioError
            There is no such transport.
        """
        rate = self["transfer_gib_per_s"] * GIB_PER_S / ranks_per_host
        match transport(kind):
            case Delegated():
                host = self["host_gib_per_s"] * GIB_PER_S / ranks_per_host
                # A delegated message crosses the network too.
                return Delegated(
                    delegates=delegates,
                    base_ms=self["delegate_ms"],
                    bytes_per_ms=min(host, rate),
                )
            case Nccl():
                return Nccl(p2p_streams=self.p2p_streams, bytes_per_ms=rate)  # type: ignore[arg-type]
            case other:
                return replace(other, bytes_per_ms=rate)

    def interval(self, system: str) -> tuple[float, float] | None:
        """Where 90 % of measurements lie: within predicted × (1 + these); None if not known.

        With n errors of other settings, a new one lies between the k-th lowest and the k-th highest
        with probability 1 − 2k / (n + 1) (conformal prediction). Below 19 they are the extremes,
        below four none.
        """
        errors = sorted(self.errors.get(system, ()))
        if len(errors) < _FEWEST:
            return None
        k = max(1, int(0.05 * (len(errors) + 1)))
        return errors[k - 1], errors[-k]

    def __getitem__(self, constant: str) -> float:
        """Return the value of a constant."""
        return self.constants.get(constant, CONSTANTS[constant].neutral)

    def operators(self, measured: MeasuredRun) -> Scenario:
        """Return a run's pipeline with operator times up to a common factor."""
        profile = self.profile
        shape = (measured.stages, measured.microbatches)
        if profile is not None and (profile.stages, profile.microbatches) == shape:
            return profile.without_delay().replaced(message_bytes=measured.message_bytes)
        return Scenario(
            stages=measured.stages,
            microbatches=measured.microbatches,
            forward_ms=self.forward,
            backward_ms=self.backward,
            weight_ms=self.weight,
            message_bytes=measured.message_bytes,
        )

    def nccl(self, measured: MeasuredRun) -> Transport:
        """Return the NCCL transport of a run."""
        rate = self["transfer_gib_per_s"] * GIB_PER_S / measured.gpus_per_node
        if measured.system == "1f1b":
            return Exchange(bytes_per_ms=rate)
        return Nccl(p2p_streams=self.p2p_streams, bytes_per_ms=rate)  # type: ignore[arg-type]

    def delayed(self, measured: MeasuredRun) -> Transport:
        """Return the transport of a run while its link is slow: delegated where it has that."""
        if measured.system in ("1f1b", "zerobubble"):
            return self.nccl(measured)
        # A delegated message crosses the network too.
        rate = min(self["host_gib_per_s"], self["transfer_gib_per_s"]) * GIB_PER_S
        shared = measured.gpus_per_node * measured.message_bytes / rate
        return Delegated(delegates=measured.delegates, base_ms=self["delegate_ms"] + shared)


_FEWEST = 4


@dataclass(frozen=True)
class Prediction:
    """What the model says of a measured run.

    Attributes
    ----------
    measured : MeasuredRun
        The run.
    slow_ms : float
        Its predicted iteration time under the delay.
    """

    measured: MeasuredRun
    slow_ms: float

    @property
    def error(self) -> float:
        """Relative error, signed: above 0 the prediction is too long."""
        return self.slow_ms / self.measured.slow_ms - 1


def predict(measured: MeasuredRun, testbed: Testbed, healthy: Scenario | None = None) -> Prediction:
    """Predict a run's iteration under its delay from its healthy iteration.

    1. Operator times are scaled until the healthy iteration is the measured one. All but
       1F1B ran the zero-bubble plan over NCCL then; delegation starts with the delay.
    2. The system's plan runs over its transport with the delay on the slow sends: occupancy
       under NCCL, a busy delegate under delegation.

    The plans: ``1f1b`` is 1F1B. The zero-bubble plan is that for *equal* operator times,
    whatever the real ones: delayed ``pipemorph-cpu`` iterations of the operator timelines ran
    it to the letter; ``zerobubble`` iterations have its warm-up and its order of F and B, with
    W filled in earlier, as under a limit of 2S activations. ``pipemorph`` is re-planned for
    the real times and delays of the slow links, not for what delegation itself takes: planned
    with that, the runs would be predicted worse (4.1 % instead of 2.7 %).

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
    slow = profiled(measured, testbed) if healthy is None else healthy
    for start, end in measured.slow_sends:
        slow = slow.with_delay(
            measured.delay_ms, [min(start, end)], directions=["down" if end > start else "up"]
        )
    replanned = measured.system == "pipemorph" and slow.slow_links != ()
    schedule = plan(slow, "pipemorph-published") if replanned else _usual_plan(measured)
    transport = testbed.delayed(measured)
    pipeline_ms = evaluate(slow, schedule, transport)
    after_ms = testbed["after_ms"] + replanned * testbed["replanned_ms"]
    return Prediction(measured, pipeline_ms + after_ms)


def _usual_plan(measured: MeasuredRun) -> Schedule:
    planner = "1f1b" if measured.system == "1f1b" else "zerobubble"
    return _planned(planner, measured.stages, measured.microbatches)


@lru_cache(maxsize=64)
def _planned(planner: str, stages: int, microbatches: int) -> Schedule:
    return plan(Scenario(stages=stages, microbatches=microbatches), planner)


def profiled(measured: MeasuredRun, testbed: Testbed) -> Scenario:
    """Scale operator times until the healthy iteration is the measured one.

    Raises
    ------
    ScenarioError
        What comes after the pipeline, or the messages alone, take longer than it.
    """
    target_ms = measured.healthy_ms - testbed["after_ms"]
    unit = testbed.operators(measured)
    runs = Runs(_usual_plan(measured), testbed.nccl(measured), lowered_for=unit)

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
