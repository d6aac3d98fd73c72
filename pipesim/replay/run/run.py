"""The Run: everything that the processes of a replay must know, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias, get_args

from pipesim.errors import ReplayError
from pipesim.lowering import lower
from pipesim.program import Compute, Group, Message, Post, Program
from pipesim.scenario import DOWN, Scenario
from pipesim.schedule import Op, Schedule
from pipesim.transport import Delegated, Exchange, Nccl, Transport

__all__ = ["ComputeKind", "DeviceKind", "LinkFault", "Route", "Run"]

ComputeKind: TypeAlias = Literal["sleep", "matmul", "model"]
"""``sleep`` holds each operator for its time in the scenario, ``matmul`` multiplies matrices
for that long, ``model`` trains a small GPT."""

DeviceKind: TypeAlias = Literal["cpu", "cuda"]

_LONGEST_S = 1_000_000
_LARGEST_SEED = 2**53

FaultKind: TypeAlias = Literal["raise", "stop"]


class Route(NamedTuple):
    """The way from one device to a neighbour in one direction: what delegates serve."""

    sender: int
    receiver: int
    direction: int

    def __str__(self) -> str:
        return f"{self.sender}→{self.receiver} {'down' if self.direction == DOWN else 'up'}"


class LinkFault(NamedTuple):
    """An injected failure of a link's direct path.

    From the message of ``producer`` in iteration ``iteration`` on, counted without those to
    warm up, sends over the link ``raise`` an error, or ``stop``: never end.
    """

    iteration: int
    producer: Op
    how: FaultKind = "raise"


@dataclass(frozen=True)
class Run:
    """A plan, a scenario, a transport, and how to replay them.

    Parameters
    ----------
    schedule : Schedule
        The plan.
    scenario : Scenario
        Its links' delays are injected; its operator times are held by ``sleep`` and
        ``matmul``.
    transport : Nccl, Exchange or Delegated
        The message costs that it states are injected like delays.
    compute, device : str
        What operators do, and where.
    iterations, warmup : int
        Iterations to measure, and those to run before them.
    delegates : mapping of Route to int
        Delegates of each route that has any.
    timeout_s : float
        Longest wait for anything in an iteration; after it a peer counts as lost.
    failover_ms : float, optional
        A send over a direct path that fails, or has not ended after this time, makes its link
        switch to delegates. None: a failure ends the run.
    fault : LinkFault, optional
        What to break.
    seed : int
        Of the model's parameters and data.

    Raises
    ------
    ReplayError
        The parts contradict each other.
    ScheduleError
        The plan does not fit the scenario.
    """

    schedule: Schedule
    scenario: Scenario
    transport: Transport
    compute: ComputeKind = "sleep"
    device: DeviceKind = "cpu"
    iterations: int = 5
    warmup: int = 1
    delegates: Mapping[Route, int] = field(default_factory=dict)
    timeout_s: float = 10.0
    failover_ms: float | None = None
    fault: LinkFault | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "delegates", dict(self.delegates))
        self.schedule.check_fits(self.scenario)
        if not isinstance(self.transport, Nccl | Exchange | Delegated):
            raise ReplayError(
                f"a replay cannot run over {self.transport}: use nccl, exchange or delegated"
            )
        if isinstance(self.transport, Nccl) and self.transport.eager_bytes:
            raise ReplayError("a replay has no eager sends: leave eager_bytes out")
        if isinstance(self.transport, Delegated) and self.transport.copy_on_demand:
            raise ReplayError("a replay copies messages ahead: leave copy_on_demand out")
        for name, value, choices in (
            ("compute", self.compute, get_args(ComputeKind)),
            ("device", self.device, get_args(DeviceKind)),
        ):
            if value not in choices:
                raise ReplayError(f"{name} must be one of {', '.join(choices)}, not {value!r}")
        if self.iterations < 1 or self.warmup < 0:
            raise ReplayError("a replay needs at least one iteration, and zero or more for warm-up")
        if not 0 < self.timeout_s <= _LONGEST_S:
            raise ReplayError(
                f"the time to wait for a peer must be above 0 and at most {_LONGEST_S:,} s"
            )
        if not 0 <= self.seed <= _LARGEST_SEED:
            raise ReplayError("the seed must be between 0 and 2⁵³")
        self._check_failover()

    def _check_failover(self) -> None:
        if self.failover_ms is None:
            if self.fault is not None:
                raise ReplayError("a link can be broken only with fail-over on")
            return
        if isinstance(self.transport, Delegated):
            raise ReplayError("fail-over needs a direct path: use nccl or exchange")
        if self.device == "cuda":
            raise ReplayError("fail-over works between CPU processes only")
        if self.fault is not None:
            if self.fault.producer not in {m.producer for m in self.messages}:
                raise ReplayError(f"{self.fault.producer} sends nothing over a link")
            if not 0 <= self.fault.iteration < self.iterations:
                raise ReplayError(
                    f"there is no iteration {self.fault.iteration}, only 0 to {self.iterations - 1}"
                )

    def check_delegates(self) -> None:
        """Raise ReplayError where delegates have nothing to do, or are missing."""
        for route, processes in self.delegates.items():
            most = len(self.routes.get(route, ()))
            if not most:
                raise ReplayError(f"delegates: nothing is sent from {route}")
            if not 1 <= processes <= most:
                raise ReplayError(f"delegates: {route} needs 1 to {most}, not {processes}")
        instructions = (i for device in self.program.instructions for i in device)
        posted = {self.route(i.message) for i in instructions if isinstance(i, Post)}
        needed = posted if self.failover_ms is None else set(self.routes)
        for route in self.routes:
            if route in needed and route not in self.delegates:
                raise ReplayError(f"delegates: {route} has none")

    @property
    def devices(self) -> int:
        """Number of devices, and so of worker processes."""
        return self.schedule.devices

    @property
    def total_iterations(self) -> int:
        """Iterations, those to warm up included."""
        return self.warmup + self.iterations

    @property
    def has_logical_times(self) -> bool:
        """Whether operators have logical times beside the physical ones: those that sleep.

        A sleeping operator counts as started when it could have started, and as ended its time
        later, so its logical duration is stated, not measured. A thread that wakes up late
        makes up for it within the operator; one that wakes up after the operator's whole time
        cannot, and then the operator counts from when it physically started. Operators that
        compute have no logical times: what is recorded of them was seen on the clock.
        """
        return self.compute == "sleep" and self.device == "cpu"

    def named(self, iteration: int) -> str:
        """Return the name of an iteration; ``iteration`` counts those to warm up too."""
        if iteration < self.warmup:
            return f"warm-up iteration {iteration}"
        return f"iteration {iteration - self.warmup}"

    @cached_property
    def program(self) -> Program:
        """The instructions of each device."""
        return lower(self.schedule, self.scenario, self.transport)

    @cached_property
    def messages(self) -> tuple[Message, ...]:
        """Every message between devices, in an order that all processes agree on."""
        return tuple(sorted(m for device in range(self.devices) for m in self.received(device)))

    def received(self, device: int) -> tuple[Message, ...]:
        """Return what a device's operators receive from other devices, in program order."""
        return tuple(
            message
            for instruction in self.program.instructions[device]
            if isinstance(instruction, Compute)
            for message in instruction.receives
        )

    def fetched(self, device: int) -> tuple[Message, ...]:
        """Return those of :meth:`received` that come through host memory, in no group."""
        grouped = {
            message
            for instruction in self.program.instructions[device]
            if isinstance(instruction, Group)
            for message in instruction.receives
        }
        return tuple(message for message in self.received(device) if message not in grouped)

    def beside(self, op: Op) -> Op | None:
        """Return the operator of another stage on the same device whose result ``op`` needs."""
        placement = self.schedule.placement
        for need in self.schedule.needs(op):
            if need.stage != op.stage and placement[need.stage] == placement[op.stage]:
                return need
        return None

    @cached_property
    def ops(self) -> dict[Op, int]:
        """Every operator, numbered in an order that all processes agree on."""
        return {op: number for number, op in enumerate(self.schedule.topological_order)}

    @cached_property
    def number(self) -> dict[Message, int]:
        """The place of each message in :attr:`messages`."""
        return {message: number for number, message in enumerate(self.messages)}

    @cached_property
    def routes(self) -> dict[Route, tuple[Message, ...]]:
        """The messages of each route, in the order in which their operators run."""
        sent = {message.producer: message for message in self.messages}
        routes: dict[Route, list[Message]] = {}
        for order in self.schedule.orders:
            for op in order:
                if message := sent.get(op):
                    routes.setdefault(self.route(message), []).append(message)
        return {route: tuple(messages) for route, messages in routes.items()}

    def route(self, message: Message) -> Route:
        """Return the route of a message."""
        placement = self.schedule.placement
        return Route(
            placement[message.producer.stage],
            placement[message.consumer.stage],
            message.direction,
        )

    # -- injected times ------------------------------------------------------------------

    @cached_property
    def durations_ms(self) -> dict[Op, float]:
        """What the scenario says that each operator takes."""
        times = {kind: self.scenario.durations_ms(kind) for kind in {op.kind for op in self.ops}}
        return {op: float(times[op.kind][op.stage, op.microbatch]) for op in self.ops}

    def transfer_ms(self, message: Message) -> float:
        """Time that the transport says a direct transfer takes, without the link's delay."""
        return self.transport.transfer_ms(self._message_bytes(message))

    def copy_ms(self, message: Message) -> float:
        """Time that the transport says a copy to or from the host takes."""
        return self.transport.copy_ms(self._message_bytes(message))

    def _message_bytes(self, message: Message) -> float:
        return float(self.scenario.message_bytes[message.link])

    def delegate_ms(self, message: Message) -> float:
        """Time that a message occupies its delegate."""
        transfer = 0.0
        if isinstance(self.transport, Delegated):
            transfer = self.transport.transfer_ms(self._message_bytes(message))
        return transfer + float(self.scenario.delay_ms[message.link, message.direction])
