"""What adaptation itself costs."""

from __future__ import annotations

from dataclasses import dataclass, fields

from pipesim.errors import ScenarioError
from pipesim.scenario import LARGEST

__all__ = ["Costs"]


@dataclass(frozen=True)
class Costs:
    """Times in ms that adaptation takes; none of them for a job that does not adapt.

    Parameters
    ----------
    profile_ms : float
        To read an iteration's transfer times and gather them, in each iteration.
    plan_ms : float
        To make a plan. It is made while the job runs on, so it costs no time but comes later.
        Published: under 100 ms.
    switch_ms : float
        To swap plans at a boundary between iterations.
    first_ms : float
        On top, when messages are delegated for the first time: to start delegates and get host
        memory. The published re-planned runs of 7B took about 450 ms longer in that iteration, and
        no longer in later ones.

    Raises
    ------
    ScenarioError
        One of them is no time.
    """

    profile_ms: float = 0.5
    plan_ms: float = 100.0
    switch_ms: float = 10.0
    first_ms: float = 450.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 <= value <= LARGEST:
                raise ScenarioError(f"{field.name} must be a time of at least 0, not {value}")


FREE = Costs(0.0, 0.0, 0.0, 0.0)
"""For an oracle."""
