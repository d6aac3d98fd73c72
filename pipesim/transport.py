"""Transports: how a message gets from one stage to the next, and what it blocks.

A transport is a set of options. :mod:`pipesim.lowering` decides which instructions they lead to,
and :mod:`pipesim.engine` how long instructions take.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import ClassVar, Literal, TypeAlias, TypeVar, get_args

from pipesim.errors import ScenarioError
from pipesim.scenario import Array, Scenario

__all__ = [
    "TRANSPORTS",
    "Delegated",
    "Exchange",
    "Ideal",
    "Isolated",
    "Nccl",
    "Transport",
    "transport",
]


Size = TypeVar("Size", float, Array)
"""Bytes of one message, or of many."""


class _Wired:
    """A transfer takes ``base_ms + bytes / bytes_per_ms``.

    Options are finite and not negative; the name is the text form.
    """

    name: ClassVar[str]
    base_ms: float
    bytes_per_ms: float

    @property
    def queues(self) -> bool:
        """Whether kernels queue up on a device, so that lowering decides what is sent when."""
        return False

    @property
    def blocks(self) -> bool:
        """Whether anything may take longer than operators, delays and messages do by themselves."""
        return True

    @property
    def unblocked(self) -> Ideal:
        """The transport ``ideal`` where messages cost what they do here."""
        return Ideal(self.base_ms, self.bytes_per_ms)

    def transfer_ms(self, size: Size) -> Size:
        """Time that a message of ``size`` bytes takes besides its link's delay."""
        return self.base_ms + size / self.bytes_per_ms

    def copy_ms(self, size: Size) -> Size:
        """Time of a copy of ``size`` bytes between device and host."""
        return 0 * size

    def costs_ms(self, scenario: Scenario) -> Array:
        """What a message of each link takes besides the delay, copies included, shape [S−1].

        Examples
        --------
        >>> over = Delegated(base_ms=3.0, copy_base_ms=0.5, copy_bytes_per_ms=2e6)
        >>> over.costs_ms(Scenario(stages=3, message_bytes=[1e6, 0])).tolist()
        [5.0, 4.0]
        """
        return self.unblocked.transfer_ms(scenario.message_bytes)

    def __post_init__(self) -> None:
        for option in fields(self):  # type: ignore[arg-type]
            value = getattr(self, option.name)
            if isinstance(value, bool | str) or value is None:
                continue
            unlimited = option.name.endswith("bytes_per_ms") and value == math.inf
            if not (value >= 0 and (math.isfinite(value) or unlimited)):
                raise ScenarioError(f"{self.name}: {option.name} must not be {value!r}")
            if value == 0 and option.name in ("bytes_per_ms", "copy_bytes_per_ms", "delegates"):
                raise ScenarioError(f"{self.name}: {option.name} must be above 0")

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Ideal(_Wired):
    """The analytical model: a message arrives its link's delay after its operator ends.

    Any number is in flight and nothing blocks compute.

    Parameters
    ----------
    base_ms, bytes_per_ms : float
        A message takes ``base_ms + bytes / bytes_per_ms`` besides the delay.
    """

    name: ClassVar[str] = "ideal"
    base_ms: float = 0.0
    bytes_per_ms: float = math.inf

    @property
    def blocks(self) -> bool:
        """Whether anything may take longer than operators, delays and messages do by themselves."""
        return False


@dataclass(frozen=True)
class Nccl(_Wired):
    """GPU-launched point-to-point kernels, with head-of-line blocking.

    Parameters
    ----------
    p2p_streams : {"device", "peer", "direction"}
        Which communication kernels share a stream: all of a device; those with one
        neighbour; those that send to, or receive from, one neighbour.
    fused : bool
        Whether neighbouring communication instructions become one group kernel; in a schedule's
        own order its batches alone do.
    base_ms, bytes_per_ms : float
        A transfer takes ``base_ms + bytes / bytes_per_ms``.
    eager_bytes : float
        Up to this size a send does not wait for its receive. 0: always rendezvous.
    """

    name: ClassVar[str] = "nccl"
    p2p_streams: Literal["device", "peer", "direction"] = "device"
    fused: bool = True
    base_ms: float = 0.0
    bytes_per_ms: float = math.inf
    eager_bytes: float = 0.0

    @property
    def queues(self) -> bool:
        """Whether kernels queue up on a device, so that lowering decides what is sent when."""
        return True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.p2p_streams not in ("device", "peer", "direction"):
            raise ScenarioError(f"nccl: unknown p2p_streams {self.p2p_streams!r}")


@dataclass(frozen=True)
class Exchange(_Wired):
    """Megatron's 1F1B: blocking exchanges with one neighbour at a time.

    After an operator a device sends its result and, if its next operator needs something
    from the same neighbour, receives that in the same batch; it computes on when the batch
    has ended. Times as for :class:`Nccl`.

    With several stages on each device it exchanges with both neighbours at once, as Megatron-LM
    does without ``--overlap-p2p-communication``: after each pair of a forward and a backward, and
    in the warm-up and at the end after each operator. Two messages sent at once share the rank's
    bandwidth, so gradients follow activations.

    Megatron runs no orders but those of 1F1B, GPipe and interleaved 1F1B this way, and others may
    deadlock when paired like this. They get blocking batches in the order of expected completion
    instead: feasible, but usually slow. In a schedule's own order of sends and receives each
    batch blocks, and each message that is in none.
    """

    name: ClassVar[str] = "exchange"
    base_ms: float = 0.0
    bytes_per_ms: float = math.inf

    @property
    def queues(self) -> bool:
        """Whether kernels queue up on a device, so that lowering decides what is sent when."""
        return True


@dataclass(frozen=True)
class Delegated(_Wired):
    """CPU delegation: messages leave through host memory and never block a GPU queue.

    Parameters
    ----------
    delegates : int, optional
        Delegate processes for each neighbour and direction, used round robin; each is
        occupied by a message for its transfer and the link's whole delay. Default: enough
        that one is always free.
    only_slow : bool
        Delegate the messages of slow links alone; the others stay NCCL groups.
    base_ms, bytes_per_ms : float
        A delegated transfer takes ``base_ms + bytes / bytes_per_ms``, also on a healthy link.
    copy_base_ms, copy_bytes_per_ms : float
        A copy between device and host takes ``copy_base_ms + bytes / copy_bytes_per_ms`` on
        a copy engine; a device has one for each way.
    copy_on_demand : bool
        A message is copied to the device when the operator that needs it is next, which waits
        for the copy, instead of as soon as the message is on the host. The published
        implementation does this: its host thread launches the copy and waits for it.
    """

    name: ClassVar[str] = "delegated"
    delegates: int | None = None
    only_slow: bool = False
    base_ms: float = 0.0
    bytes_per_ms: float = math.inf
    copy_base_ms: float = 0.0
    copy_bytes_per_ms: float = math.inf
    copy_on_demand: bool = False

    @property
    def queues(self) -> bool:
        """Whether kernels queue up on a device, so that lowering decides what is sent when."""
        return self.only_slow

    @property
    def blocks(self) -> bool:
        """Whether anything may take longer than operators, delays and messages do by themselves.

        Only delegates that are always free, and copies that take no time, keep nobody waiting.
        """
        return replace(self, base_ms=0.0, bytes_per_ms=math.inf) != Delegated()

    @property
    def unblocked(self) -> Ideal:
        """The transport ``ideal`` where messages cost what they do here: with both copies.

        With ``only_slow``, without: not all messages are copied.
        """
        if self.only_slow:
            return super().unblocked
        ms_per_byte = 1 / self.bytes_per_ms + 2 / self.copy_bytes_per_ms
        rate = 1 / ms_per_byte if ms_per_byte else math.inf
        return Ideal(self.base_ms + 2 * self.copy_base_ms, rate)

    def copy_ms(self, size: Size) -> Size:
        """Time of a copy of ``size`` bytes between device and host."""
        return self.copy_base_ms + size / self.copy_bytes_per_ms


@dataclass(frozen=True)
class Isolated(_Wired):
    """The straw man: NCCL sends in GPU processes of their own.

    Nothing is blocked, but both devices of a slow link compute ``compute_slowdown`` times
    slower (paper: one backward took 61.9 ms instead of 31.1 ms).
    """

    name: ClassVar[str] = "isolated"
    compute_slowdown: float = 61.9 / 31.1
    base_ms: float = 0.0
    bytes_per_ms: float = math.inf

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.compute_slowdown < 1:
            raise ScenarioError("isolated: compute_slowdown must be at least 1")


Transport: TypeAlias = Ideal | Nccl | Exchange | Delegated | Isolated

TRANSPORTS: dict[str, type[Transport]] = {kind.name: kind for kind in get_args(Transport)}


def transport(name: str | Transport) -> Transport:
    """Return the transport of that name with its default options; pass one through.

    Raises
    ------
    ScenarioError
        There is no such transport.
    """
    if isinstance(name, Transport):
        return name
    if name not in TRANSPORTS:
        raise ScenarioError(f"unknown transport {name!r}: one of {', '.join(TRANSPORTS)}")
    return TRANSPORTS[name]()
