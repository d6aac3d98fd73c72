"""One run: the environment, its devices, and the deadlock that may be left at the end."""

from __future__ import annotations

import numpy as np
import simpy

from pipesim.engine.injection import Injection
from pipesim.engine.senders import senders
from pipesim.engine.simpy.device import Device
from pipesim.engine.simpy.kernels import Kernels
from pipesim.engine.simpy.paths import Delegation, Wires
from pipesim.engine.simpy.state import State
from pipesim.errors import DeadlockError
from pipesim.program import Program
from pipesim.scenario import KINDS, Array, Scenario
from pipesim.timeline import Timeline
from pipesim.transport import Delegated, Isolated

__all__ = ["run", "run_and_sends"]


def run(program: Program, scenario: Scenario, injection: Injection | None = None) -> Timeline:
    """Run ``program`` under ``scenario`` on SimPy.

    The program need not have been lowered for this scenario, only for its shape.

    Parameters
    ----------
    program : Program
        What each device launches.
    scenario : Scenario
        Operator times and delays.
    injection : Injection, optional
        Delays that change during the run, in place of the scenario's occupancy. A send has the
        delay of the moment at which it starts: as a busy kernel, with a delegate, or in flight.

    Raises
    ------
    ScheduleError
        The program, or the trace of the injection, does not fit the scenario.
    DeadlockError
        Some device never finishes; the error names each one's blocked instruction, or the links
        that have failed for ever.
    """
    return run_and_sends(program, scenario, injection)[0]


def run_and_sends(
    program: Program, scenario: Scenario, injection: Injection | None
) -> tuple[Timeline, Array]:
    """Do what :func:`run` does, and return what the injection delayed each message by, too.

    Returns
    -------
    timeline : Timeline
        All times.
    sent_ms : array, shape [S−1, 2, N]
        By link, direction and micro-batch; nan where nothing is sent.
    """
    program.schedule.check_fits(scenario)
    if injection is not None:
        injection.check_fits(scenario)
        senders(program)  # or ScheduleError
    transport = program.transport
    state = State(simpy.Environment(), program, scenario, injection)
    paths = Delegation(state, transport) if isinstance(transport, Delegated) else Wires(state)
    kernels = Kernels(state)
    durations = _durations_ms(scenario, transport)
    devices = [
        Device(state, d, durations, kernels, paths) for d in range(len(program.instructions))
    ]
    state.env.run()
    blocked = [reason for device in devices if (reason := device.blocked())]
    blocked = blocked or kernels.unmatched()
    if blocked:
        raise DeadlockError(tuple(blocked))
    if injection is not None:
        injection.check_sent(state.sent_ms)
    spans = tuple(tuple(device.spans) for device in devices)
    return Timeline(scenario, spans, tuple(state.comm)), state.sent_ms


def _durations_ms(scenario: Scenario, transport: object) -> dict[str, list[list[float]]]:
    """Operator times [kind][stage][micro-batch], including what the transport slows down."""
    factor = np.ones((scenario.stages, 1))
    if isinstance(transport, Isolated):
        ends = {scenario.placement[s] for i in scenario.slow_links for s in (i, i + 1)}
        slowed = [device in ends for device in scenario.placement]
        factor[slowed] = transport.compute_slowdown
    return {kind: (scenario.durations_ms(kind) * factor).tolist() for kind in KINDS}
