"""The Scenario: what there is to run, and on what.

A scenario knows the pipeline's shape, how long every operator takes, how slow every
link is and how much memory there is. It knows nothing of orders or transports.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pipesim.errors import ScenarioError

__all__ = [
    "DIRECTIONS",
    "DOWN",
    "KINDS",
    "LARGEST",
    "TIME_OF",
    "UP",
    "Array",
    "Direction",
    "Kind",
    "Placement",
    "Scenario",
]

Array: TypeAlias = NDArray[np.float64]

Kind = Literal["F", "B", "W", "BW"]
"""F forward; B backward for the input gradient; W backward for the weight gradient;
BW both of them fused."""
KINDS: tuple[Kind, ...] = get_args(Kind)
TIME_OF: dict[Kind, str] = {
    "F": "forward_ms",
    "B": "backward_ms",
    "W": "weight_ms",
    "BW": "fused_backward_ms",
}
"""The field of a scenario that holds the times of a kind."""

Direction = Literal["down", "up"]
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)
DOWN, UP = 0, 1
"""Columns of a delay array: activations go down (to higher stages), gradients up."""

Placement = Literal["plain", "interleaved", "v"]

LARGEST = 1e15
"""Larger times or sizes are typing errors, and their sums would overflow or lose digits."""

_MATRIX_FIELDS = ("forward_ms", "backward_ms", "weight_ms", "fused_backward_ms")


@dataclass(frozen=True, eq=False, init=False)
class Scenario:
    """A pipeline, its operator times, its links and its memory.

    Parameters
    ----------
    stages : int
        Number of virtual stages S, in model order.
    microbatches : int
        Number of micro-batches N of one iteration.
    placement : sequence of int, shape [S]
        The device of each stage; devices are 0 … D−1. Default: one stage a device. See
        :meth:`place` for interleaved and V placements by name.
    forward_ms, backward_ms, weight_ms : array_like, shape [], [S] or [S, N]
        Operator times in milliseconds, broadcast to [S, N]. ``backward_ms`` is the
        input-gradient half of the backward (B), ``weight_ms`` the other half (W).
    fused_backward_ms : array_like, optional
        Time of a fused backward (BW). Default: B + W.
    latency_ms, occupancy_ms : array_like, shape [], [S−1] or [S−1, 2]
        Delay of each link, one column for each direction (``DOWN``, ``UP``); link i
        joins stages i and i+1. *Latency* is time in flight that blocks nobody;
        *occupancy* is a busy kernel on the sender's communication stream directly before
        the message, the way published experiments inject delays. A link's delay c is
        their sum. A link inside one device has no delay.
    message_bytes : array_like, shape [] or [S−1]
        Size of one message on each link.
    activation_limit, host_limit : array_like, shape [] or [D]
        Most activations (stage × micro-batch) that each device may hold, and that each
        host may hold for it. ``inf``: no limit.
    activation_bytes : float
        Size of the activations that one stage saves for one micro-batch.
    released_by_b : array_like, shape [] or [S]
        Part of them, 0 … 1, that B of each stage gives back; W gives back the rest, BW all.
    name, source : str
        For readers: what this is and where its numbers come from.

    Raises
    ------
    ScenarioError
        A value is missing, negative, not finite, or of the wrong shape.

    Examples
    --------
    The worked example of the PipeMorph paper, with 20 ms on link 0:

    >>> scenario = Scenario().with_delay(20, links=[0])
    >>> scenario.stages, scenario.microbatches, float(scenario.delay_ms[0, DOWN])
    (4, 12, 20.0)
    """

    stages: int
    microbatches: int
    placement: tuple[int, ...]
    forward_ms: Array
    backward_ms: Array
    weight_ms: Array
    fused_backward_ms: Array
    latency_ms: Array
    occupancy_ms: Array
    message_bytes: Array
    activation_limit: Array
    host_limit: Array
    activation_bytes: float
    released_by_b: Array
    name: str
    source: str

    def __init__(
        self,
        *,
        stages: int = 4,
        microbatches: int = 12,
        placement: Sequence[int] = (),
        forward_ms: ArrayLike = 10.0,
        backward_ms: ArrayLike = 10.0,
        weight_ms: ArrayLike = 10.0,
        fused_backward_ms: ArrayLike | None = None,
        latency_ms: ArrayLike = 0.0,
        occupancy_ms: ArrayLike = 0.0,
        message_bytes: ArrayLike = 0.0,
        activation_limit: ArrayLike = np.inf,
        host_limit: ArrayLike = np.inf,
        activation_bytes: float = 0.0,
        released_by_b: ArrayLike = 0.5,
        name: str = "",
        source: str = "",
    ) -> None:
        self._set("stages", _count("stages", stages))
        self._set("microbatches", _count("microbatches", microbatches))
        self._set("placement", _checked_placement(placement, self.stages))
        per_op, per_link = (self.stages, self.microbatches), (self.stages - 1,)
        self._set("forward_ms", _broadcast("forward_ms", forward_ms, per_op))
        self._set("backward_ms", _broadcast("backward_ms", backward_ms, per_op))
        self._set("weight_ms", _broadcast("weight_ms", weight_ms, per_op))
        fused = (
            self.backward_ms + self.weight_ms if fused_backward_ms is None else fused_backward_ms
        )
        self._set("fused_backward_ms", _broadcast("fused_backward_ms", fused, per_op))
        self._set("latency_ms", _broadcast("latency_ms", latency_ms, (*per_link, 2)))
        self._set("occupancy_ms", _broadcast("occupancy_ms", occupancy_ms, (*per_link, 2)))
        self._set("message_bytes", _broadcast("message_bytes", message_bytes, per_link))
        limits = {"activation_limit": activation_limit, "host_limit": host_limit}
        for field, limit in limits.items():
            self._set(field, _broadcast(field, limit, (self.devices,), allow_inf=True))
        size = float(_broadcast("activation_bytes", activation_bytes, ()))
        self._set("activation_bytes", size)
        parts = _broadcast("released_by_b", released_by_b, (self.stages,))
        if (most := parts.max()) > 1:
            raise ScenarioError(f"released_by_b must be between 0 and 1, not {most:g}")
        self._set("released_by_b", parts)
        for field, words in {"name": name, "source": source}.items():
            if not isinstance(words, str):
                raise ScenarioError(f"{field} must be text, not {words!r}")
            self._set(field, words)
        for link in self.slow_links:
            self.check_link(link)

    def _set(self, field: str, value: object) -> None:
        object.__setattr__(self, field, value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Scenario):
            return NotImplemented
        return all(
            np.array_equal(getattr(self, field), getattr(other, field))
            for field in self.__dataclass_fields__
        )

    __hash__ = None  # type: ignore[assignment]

    # -- shape ---------------------------------------------------------------------------

    @property
    def devices(self) -> int:
        """Number of devices D."""
        return max(self.placement) + 1

    @cached_property
    def stages_of(self) -> tuple[tuple[int, ...], ...]:
        """The stages of each device, in model order."""
        return tuple(
            tuple(s for s in range(self.stages) if self.placement[s] == d)
            for d in range(self.devices)
        )

    def in_micro_batches(self, activations: ArrayLike) -> Array:
        """Return numbers of activations in the unit that commands print: micro-batches.

        Parameters
        ----------
        activations : array_like, shape [D]
            Stage activations of each device, as limits and timelines count them: one for each
            stage and micro-batch.

        Returns
        -------
        array, shape [D]
            The same where 1 is what a device saves for a micro-batch in all its stages. Where a
            stage was cut into v chunks, a chunk counts 1/v, and nothing else changes.

        Examples
        --------
        >>> Scenario(stages=2).interleaved(2).in_micro_batches([11, 9]).tolist()
        [5.5, 4.5]
        """
        return np.asarray(activations, dtype=np.float64) / list(map(len, self.stages_of))

    @property
    def is_plain(self) -> bool:
        """Whether stage s is on device s, for every stage."""
        return self.placement == tuple(range(self.stages))

    def crosses(self, link: int) -> bool:
        """Whether link ``link`` joins two different devices."""
        return self.placement[link] != self.placement[link + 1]

    @staticmethod
    def place(placement: Placement, devices: int, chunks: int = 1) -> tuple[int, ...]:
        """Return the device of each of ``devices · chunks`` stages.

        ``plain`` and ``interleaved``: s mod D. ``v``: down, then back up, and so on.

        Examples
        --------
        >>> Scenario.place("v", devices=3, chunks=2)
        (0, 1, 2, 2, 1, 0)
        """
        if placement not in get_args(Placement):
            raise ScenarioError(f"unknown placement {placement!r}: plain, interleaved or v")
        if devices < 1 or chunks < 1:
            raise ScenarioError("a placement needs at least one device and one chunk")
        if placement == "plain" and chunks > 1:
            raise ScenarioError("a plain placement has one chunk per device")
        down = tuple(range(devices))
        bounces = placement == "v"
        return tuple(d for c in range(chunks) for d in (down[::-1] if bounces and c % 2 else down))

    # -- times and delays ----------------------------------------------------------------

    @cached_property
    def delay_ms(self) -> Array:
        """Delay of each link and direction, shape [S−1, 2]: latency + occupancy."""
        return _frozen(self.latency_ms + self.occupancy_ms)

    def durations_ms(self, kind: Kind) -> Array:
        """Operator times of one kind, shape [S, N]."""
        fields: dict[Kind, Array] = {
            "F": self.forward_ms,
            "B": self.backward_ms,
            "W": self.weight_ms,
            "BW": self.fused_backward_ms,
        }
        return fields[kind]

    def released(self, kind: Kind) -> Array:
        """Part of an activation that an operator of each stage gives back when it ends, shape [S].

        F gives back none.

        Examples
        --------
        >>> [Scenario(stages=2, released_by_b=[0, 0.25]).released(kind).tolist() for kind in KINDS]
        [[0.0, 0.0], [0.0, 0.25], [1.0, 0.75], [1.0, 1.0]]
        """
        parts: dict[Kind, Array] = {
            "F": np.zeros(self.stages),
            "B": self.released_by_b,
            "W": 1 - self.released_by_b,
            "BW": np.ones(self.stages),
        }
        return parts[kind]

    @property
    def slow_links(self) -> tuple[int, ...]:
        """The links with a delay in at least one direction."""
        return tuple(int(link) for link in np.flatnonzero(self.delay_ms.any(axis=1)))

    def check_link(self, link: int) -> None:
        """Raise :class:`ScenarioError` unless ``link`` joins stages of two devices."""
        if not 0 <= link < self.stages - 1:
            known = f"0 to {self.stages - 2}" if self.stages > 1 else "none: there is one stage"
            raise ScenarioError(f"there is no link {link} (links: {known})")
        if not self.crosses(link):
            raise ScenarioError(
                f"link {link} joins stages {link} and {link + 1}, both on device "
                f"{self.placement[link]}: it cannot have a delay"
            )

    def summary(self) -> dict[str, object]:
        """Shape and delays in JSON types, for the head of a result."""
        return {
            "name": self.name,
            "stages": self.stages,
            "microbatches": self.microbatches,
            "devices": self.devices,
            "placement": list(self.placement),
            "slow_links": list(self.slow_links),
            "delay_ms": self.delay_ms.tolist(),
        }

    # -- new scenarios from old ----------------------------------------------------------

    def with_delay(
        self,
        delay_ms: float,
        links: Sequence[int],
        *,
        directions: Sequence[Direction] = ("down", "up"),
        kind: Literal["latency", "occupancy"] = "occupancy",
    ) -> Scenario:
        """Return this scenario with ``delay_ms`` on the given links, other delays kept.

        Parameters
        ----------
        delay_ms : float
            The delay of each message, in milliseconds.
        links : sequence of int
            Link i joins stages i and i+1.
        directions : sequence of {"down", "up"}
            ``down`` delays activations, ``up`` gradients.
        kind : {"occupancy", "latency"}
            Where the delay is spent, see the class.

        Raises
        ------
        ScenarioError
            A link does not exist or lies inside one device, or the delay is not a time.
        """
        field = f"{kind}_ms"
        delays = np.array(getattr(self, field))
        for link in links:
            self.check_link(link)
            for direction in directions:
                delays[link, DOWN if direction == "down" else UP] = delay_ms
        return self.replaced(**{field: delays})

    def without_delay(self) -> Scenario:
        """Return this scenario with every link healthy."""
        return self.replaced(latency_ms=0.0, occupancy_ms=0.0)

    def with_message_cost(self, cost_ms: ArrayLike) -> Scenario:
        """Return this scenario with every message longer in flight.

        Where nothing blocks, this is what messages cost over a transport: planners and bounds
        that take a scenario alone can so take it into account.

        Parameters
        ----------
        cost_ms : array_like, shape [] or [S−1]
            By how much, on all links or on each. Inside one device a message costs nothing.

        Raises
        ------
        ScenarioError
            The cost is not a time.

        Examples
        --------
        >>> Scenario().with_delay(20, links=[0]).with_message_cost(2).delay_ms[:, DOWN].tolist()
        [22.0, 2.0, 2.0]
        """
        costs = _broadcast("message cost", cost_ms, (self.stages - 1,))
        crossing = np.array([self.crosses(link) for link in range(self.stages - 1)], dtype=bool)
        return self.replaced(latency_ms=self.latency_ms + (costs * crossing)[:, None])

    def scaled(self, factor: float) -> Scenario:
        """Return this scenario with every time and delay multiplied by ``factor``."""
        fields = (*_MATRIX_FIELDS, "latency_ms", "occupancy_ms")
        return self.replaced(**{f: getattr(self, f) * factor for f in fields})

    def interleaved(self, chunks: int) -> Scenario:
        """Cut every stage into ``chunks`` virtual stages, placed at s mod D.

        Operator times, activation sizes and so the activations that fit are divided among
        the chunks. A virtual link has the delay of the physical link between its two
        devices; the link from the last device back to the first is healthy.

        Raises
        ------
        ScenarioError
            This scenario is not plain, or ``chunks`` is below 1.
        """
        if not self.is_plain:
            raise ScenarioError(
                "only a plain placement can be cut into interleaved chunks, not stages on devices "
                f"{list(self.placement)}"
            )
        devices = self.stages
        placement = self.place("interleaved", devices, chunks)
        ways = list(pairwise(placement))

        def tile(values: Array) -> Array:
            return np.tile(values, (chunks, 1)) / chunks

        def physical(old: Array) -> Array:
            new = np.zeros((len(ways), 2))
            for link, (a, b) in enumerate(ways):
                if b == a + 1:
                    new[link] = old[a]
                elif b == a - 1:  # two devices: the way back runs over the same link
                    new[link] = old[b, ::-1]
            return new

        sizes = self.message_bytes
        return self.replaced(
            stages=len(placement),
            placement=placement,
            **{field: tile(getattr(self, field)) for field in _MATRIX_FIELDS},
            latency_ms=physical(self.latency_ms),
            occupancy_ms=physical(self.occupancy_ms),
            message_bytes=np.array(
                [sizes[min(a, b)] if abs(a - b) == 1 else sizes.max(initial=0.0) for a, b in ways]
            ),
            activation_limit=self.activation_limit * chunks,
            host_limit=self.host_limit * chunks,
            activation_bytes=self.activation_bytes / chunks,
            released_by_b=np.tile(self.released_by_b, chunks),
        )

    def replaced(self, **changes: Any) -> Scenario:
        """Return this scenario with the given fields changed, as its constructor takes them.

        ``fused_backward_ms`` stays as it is, unless given; None makes it B + W again.
        """
        return replace(self, **changes)


def _count(field: str, value: int) -> int:
    try:
        count = operator.index(value)
    except TypeError:
        count = 0
    if count < 1 or isinstance(value, bool):
        raise ScenarioError(f"{field} must be a whole number of at least 1, not {value!r}")
    return count


def _checked_placement(placement: Sequence[int], stages: int) -> tuple[int, ...]:
    try:
        devices = tuple(operator.index(device) for device in placement) or tuple(range(stages))
    except TypeError:
        raise ScenarioError(f"placement {placement!r} must be a list of devices") from None
    if len(devices) != stages:
        raise ScenarioError(f"placement names {len(devices)} devices for {stages} stages")
    if set(devices) != set(range(len(set(devices)))):
        raise ScenarioError(f"placement {list(devices)} must use devices 0 … D−1, all of them")
    return devices


def _frozen(array: Array) -> Array:
    array.setflags(write=False)
    return array


def _broadcast(
    field: str, value: ArrayLike, shape: tuple[int, ...], *, allow_inf: bool = False
) -> Array:
    """Check that ``value`` holds times or sizes and stretch it along its last axes."""
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise ScenarioError(f"{field} must hold numbers, in rows of one length") from None
    within = (array >= 0) & (array <= LARGEST) | (allow_inf & np.isposinf(array))
    if not within.all():
        bad = array[~within].flat[0]
        raise ScenarioError(f"{field} must be a number from 0 to {LARGEST:g}, not {bad:g}")
    if array.ndim > len(shape) or any(a != b for a, b in zip(array.shape, shape, strict=False)):
        raise ScenarioError(f"{field} has shape {list(array.shape)}, expected {_prefixes(shape)}")
    array = array.reshape(array.shape + (1,) * (len(shape) - array.ndim))
    return _frozen(np.array(np.broadcast_to(array, shape)))


def _prefixes(shape: tuple[int, ...]) -> str:
    options = [str(list(shape[:n])) for n in range(1, len(shape) + 1)]
    return " or ".join(["one number", *options])
