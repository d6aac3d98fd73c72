"""What every event of a compiled program waits for, as one vector of times.

The vector is a sequence of blocks, one for each kind of time (operator durations, flights,
transfers, …); an event names the one entry that it takes. The same arithmetic serves one
scenario and a batch of them: a batch has one more axis, in front.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pipesim.errors import ScenarioError
from pipesim.scenario import KINDS, LARGEST, Array, Scenario
from pipesim.transport import Isolated, Transport

__all__ = ["NOTHING", "VARIABLE", "Layout", "blocks", "stacked", "vector"]

NOTHING = 0
"""The entry of the vector that is always zero."""

LinkBlock: TypeAlias = Literal["transfer", "copy"]
WayBlock: TypeAlias = Literal["flight", "occupancy", "latency"]

_LINK_BLOCKS: tuple[LinkBlock, ...] = ("transfer", "copy")
_WAY_BLOCKS: tuple[WayBlock, ...] = ("flight", "occupancy", "latency")

VARIABLE = {
    "forward_ms": "F",
    "backward_ms": "B",
    "weight_ms": "W",
    "fused_backward_ms": "BW",
    "latency_ms": "",
    "occupancy_ms": "",
}
"""The fields of a scenario that may differ within a batch; of operator times, their kind."""


@dataclass(frozen=True)
class Layout:
    """Where each block lies in the vector, for S stages and N micro-batches."""

    stages: int
    microbatches: int

    def durations(self, codes: NDArray[np.int32]) -> NDArray[np.int32]:
        """The durations of operators by their code, see :meth:`pipesim.schedule.Op.code`."""
        return codes + 1

    def links(self, block: LinkBlock) -> list[int]:
        """The times of each link: ``transfer`` or ``copy``."""
        first = self._before_links + _LINK_BLOCKS.index(block) * self._links
        return list(range(first, first + self._links))

    def ways(self, block: WayBlock) -> list[tuple[int, int]]:
        """The times of each link, down and up: ``flight``, ``occupancy`` or ``latency``."""
        before = self._before_links + len(_LINK_BLOCKS) * self._links
        first = before + 2 * _WAY_BLOCKS.index(block) * self._links
        return [(first + 2 * link, first + 2 * link + 1) for link in range(self._links)]

    @property
    def _links(self) -> int:
        return self.stages - 1

    @property
    def _before_links(self) -> int:
        return 1 + len(KINDS) * self.stages * self.microbatches


def blocks(
    scenario: Scenario,
    transport: Transport,
    varied: Mapping[str, Array] | None = None,
    *,
    injected: bool = False,
) -> Iterator[Array]:
    """Yield the blocks in the order of :class:`Layout`, the single zero first.

    Fields in ``varied`` stand for those of the scenario. A block that depends on one of shape
    [B, …] has that axis in front. ``injected``: a trace stands for occupancy, which is left out;
    what a transport slows down is still for the scenario to say.
    """
    varied = varied or {}
    latency = varied.get("latency_ms", scenario.latency_ms)
    occupancy = varied.get("occupancy_ms", scenario.occupancy_ms)
    delay = latency + occupancy
    transfer = transport.transfer_ms(scenario.message_bytes)
    copy = transport.copy_ms(scenario.message_bytes)
    factor = _slowdown(scenario, transport, delay)
    if injected:
        delay, occupancy = latency, np.zeros_like(occupancy)

    yield np.zeros(1)
    for field, kind in VARIABLE.items():
        if kind:
            times: Array = varied.get(field, scenario.durations_ms(kind))  # type: ignore[arg-type]
            yield times if factor is None else times * factor
    yield transfer
    yield copy
    yield delay + transfer[:, None]  # flight
    yield occupancy
    yield latency


def vector(
    scenario: Scenario,
    transport: Transport,
    varied: Mapping[str, Array] | None = None,
    *,
    injected: bool = False,
) -> Array:
    """Return :func:`blocks` one behind the other, for one scenario."""
    every = blocks(scenario, transport, varied, injected=injected)
    return np.concatenate([block.ravel() for block in every])


def _slowdown(scenario: Scenario, transport: Transport, delay_ms: Array) -> Array | None:
    """How much slower each stage computes, shape […, S, 1]; None: no slower."""
    if not isinstance(transport, Isolated):
        return None
    slow = np.any(delay_ms, axis=-1)
    ends = np.zeros((*slow.shape[:-1], scenario.devices), dtype=bool)
    for link in range(scenario.stages - 1):
        for stage in (link, link + 1):
            ends[..., scenario.placement[stage]] |= slow[..., link]
    slowed = ends[..., list(scenario.placement), None]
    return np.where(slowed, transport.compute_slowdown, 1.0)


def stacked(scenario: Scenario, fields: Mapping[str, ArrayLike | None]) -> dict[str, Array]:
    """Check the fields of a batch and stretch each along its last axes.

    Parameters
    ----------
    scenario : Scenario
        Whose shape they have.
    fields : mapping
        Of :data:`VARIABLE`, arrays of shape [B, …], each with the shapes that a scenario
        takes behind the B; None: not varied.

    Raises
    ------
    ScenarioError
        A value is not a time, a shape is wrong, or a link inside one device has a delay.
    """
    per_op, per_way = (scenario.stages, scenario.microbatches), (scenario.stages - 1, 2)
    given = {field: value for field, value in fields.items() if value is not None}
    varied = {
        field: _stretched(field, value, per_op if VARIABLE[field] else per_way)
        for field, value in given.items()
    }
    sizes = {field: len(values) for field, values in varied.items()}
    if len(set(sizes.values())) > 1:
        raise ScenarioError(f"the arrays of one batch differ in length: {sizes}")
    for field in ("latency_ms", "occupancy_ms"):
        if field in varied:
            for link in np.flatnonzero(varied[field].any(axis=(0, 2))):
                scenario.check_link(int(link))
    return varied


def _stretched(field: str, value: ArrayLike, shape: Sequence[int]) -> Array:
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise ScenarioError(f"{field} must hold numbers, in rows of one length") from None
    inner = array.shape[1:]
    if not array.ndim or inner != tuple(shape)[: len(inner)]:
        raise ScenarioError(
            f"{field} has shape {list(array.shape)}, expected the batch, then {list(shape)} "
            "or its beginning"
        )
    if not ((array >= 0) & (array <= LARGEST)).all():
        raise ScenarioError(f"{field} must hold numbers from 0 to {LARGEST:g}")
    array = array.reshape(array.shape + (1,) * (1 + len(shape) - array.ndim))
    return np.broadcast_to(array, (len(array), *shape))
