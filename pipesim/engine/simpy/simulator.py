"""One run: the environment, its devices, and the deadlock that may be left at the end."""

from __future__ import annotations

import numpy as np
import simpy

from pipesim.engine.injection import Injection
from pipesim.engine.simpy.device import Device
from pipesim.engine.simpy.kernels import Kernels
from pipesim.engine.simpy.paths import Delegation, Wires
from pipesim.engine.simpy.state import State
from pipesim.errors import DeadlockError, ScheduleError
from pipesim.program import Program
from pipesim.scenario import KINDS, Scenario
from pipesim.timeline import Timeline
from pipesim.transport import Delegated, Isolated

__all__ = ["run"]


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
        Some device never finishes; the error names each one's blocked instruction.
    """
    program.schedule.check_fits(scenario)
    if injection is not None and injection.trace.links != scenario.stages - 1:
        raise ScheduleError(
            f"the delay trace is for {injection.trace.links} links, the scenario has "
            f"{scenario.stages - 1}"
        )
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
    return Timeline(scenario, tuple(tuple(device.spans) for device in devices), tuple(state.comm))


def _durations_ms(scenario: Scenario, transport: object) -> dict[str, list[list[float]]]:
    """Operator times [kind][stage][micro-batch], including what the transport slows down."""
    factor = np.ones((scenario.stages, 1))
    if isinstance(transport, Isolated):
        ends = {scenario.placement[s] for i in scenario.slow_links for s in (i, i + 1)}
        slowed = [device in ends for device in scenario.placement]
        factor[slowed] = transport.compute_slowdown
    return {kind: (scenario.durations_ms(kind) * factor).tolist() for kind in KINDS}
