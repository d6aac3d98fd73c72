"""Random runs, and changes to what is written of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from pipesim.engine import deadlocked
from pipesim.program import Post
from pipesim.replay.run.run import LinkFault, Run
from pipesim.transport import Delegated, Exchange, Nccl, Transport
from tests.strategies import cases, communicating, transports


@st.composite
def runs(draw: st.DrawFn) -> Run:
    scenario, schedule = draw(st.one_of(cases(limited=True), communicating()))
    transport = draw(transports.filter(is_of_processes))
    assume(not (schedule.communicates and deadlocked(schedule, transport)))
    run = Run(
        schedule,
        scenario,
        transport,
        compute=draw(st.sampled_from(["sleep", "matmul", "model"])),
        iterations=draw(st.integers(1, 1000)),
        warmup=draw(st.integers(0, 10)),
        timeout_s=draw(st.floats(0.001, 1e6)),
        seed=draw(st.integers(0, 2**53)),
    )
    failover = not isinstance(transport, Delegated) and draw(st.booleans())
    instructions = [i for device in run.program.instructions for i in device]
    needed = {run.route(i.message) for i in instructions if isinstance(i, Post)}
    more: dict[str, Any] = {
        "delegates": {
            route: draw(st.integers(1, len(messages)))
            for route, messages in run.routes.items()
            if failover or route in needed or draw(st.booleans())
        }
    }
    if failover:
        more["failover_ms"] = draw(st.floats(0.001, 1e6))
        if run.messages and draw(st.booleans()):
            producer = draw(st.sampled_from(run.messages)).producer
            iteration = draw(st.integers(0, run.iterations - 1))
            more["fault"] = LinkFault(iteration, producer, draw(st.sampled_from(["raise", "stop"])))
    return changed(run, **more)


def is_of_processes(transport: Transport) -> bool:
    if isinstance(transport, Nccl):
        return transport.eager_bytes == 0
    if isinstance(transport, Delegated):
        return not transport.copy_on_demand
    return isinstance(transport, Exchange)


def changed(run: Run, **more: Any) -> Run:
    return Run(**{name: getattr(run, name) for name in run.__dataclass_fields__} | more)


def set_to(*place: str | int, to: object) -> Callable[[dict[str, Any]], None]:
    def change(document: Any) -> None:
        for key in place[:-1]:
            document = document[key]
        document[place[-1]] = to

    return change
