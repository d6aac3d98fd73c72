"""Systems: who plans and how messages travel, by a name or as PLANNER:TRANSPORT."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipesim.errors import ScenarioError
from pipesim.scenario import Scenario
from pipesim.target import Target
from pipesim.transport import transport
from planners import get

__all__ = ["DEFAULT_SYSTEMS", "SYSTEMS", "System", "default_systems", "on_runtime", "system"]


@dataclass(frozen=True)
class System:
    """A way to train: who plans, and how messages travel. Nothing else depends on its name."""

    name: str
    title: str
    planner: str
    transport: str


SYSTEMS = {
    system.name: system
    for system in (
        System("1f1b", "1F1B", "1f1b", "exchange"),
        System("interleaved-1f1b", "Interleaved 1F1B", "interleaved-1f1b", "nccl"),
        System("zerobubble", "ZeroBubble", "zerobubble", "nccl"),
        System("pipemorph-cpu", "PipeMorph-CPU", "zerobubble", "delegated"),
        System("pipemorph", "PipeMorph", "pipemorph", "delegated"),
        System("search", "Search", "search", "delegated"),
    )
}

DEFAULT_SYSTEMS = ("1f1b", "zerobubble", "pipemorph-cpu", "pipemorph")


def default_systems(scenario: Scenario, chunks: int | None = None) -> tuple[str, ...]:
    """Return the systems to compare on a scenario by default: those that take its placement.

    With a number of chunks, this is the placement of its stages once they are cut.

    :func:`~pipesim.studies.comparison.compare` adds ``search`` where these fill a device.

    Examples
    --------
    >>> default_systems(Scenario())
    ('1f1b', 'zerobubble', 'pipemorph-cpu', 'pipemorph')
    >>> default_systems(Scenario(), chunks=2)
    ('interleaved-1f1b', 'zerobubble', 'pipemorph-cpu', 'pipemorph')
    """
    if chunks is not None and chunks > 1:
        return default_systems(scenario.interleaved(chunks))
    if scenario.is_plain:
        return DEFAULT_SYSTEMS
    interleaved = tuple(s % scenario.devices for s in range(scenario.stages))
    fused = ("interleaved-1f1b",) if scenario.placement == interleaved else ()
    return (*fused, *DEFAULT_SYSTEMS[1:])


def on_runtime(names: Sequence[str], runtime: Target | None) -> tuple[str, ...]:
    """Return systems as they are on a runtime.

    They stay as they are on one that has delegates. On another, each planner's orders run over the
    transport that the runtime has for them.

    Examples
    --------
    >>> from pipesim.target import target
    >>> on_runtime(DEFAULT_SYSTEMS, target("torch"))
    ('1f1b:nccl', 'zerobubble:nccl', 'pipemorph:nccl')
    """
    if runtime is None or runtime.delegates:
        return tuple(names)
    planners = dict.fromkeys(SYSTEMS[name].planner for name in names)
    return tuple(f"{one}:{runtime.transport(planner=one).name}" for one in planners)


def system(name: str) -> System:
    """Return the system of that name, or the pair that ``planner:transport`` names.

    Raises
    ------
    ScenarioError, ScheduleError
        There is no such system, transport or planner.
    """
    planner, colon, over = name.partition(":")
    if colon:
        get(planner)
        return System(name, name, planner, transport(over).name)
    if name not in SYSTEMS:
        raise ScenarioError(
            f"unknown system {name!r}: one of {', '.join(SYSTEMS)}, or PLANNER:TRANSPORT"
        )
    return SYSTEMS[name]
