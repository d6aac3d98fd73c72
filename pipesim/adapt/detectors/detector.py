"""What a detector is, to those who use one."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Detector"]


class Detector(Protocol):
    """Watches one link in one direction, by the transfer times that are measured there."""

    @property
    def slow(self) -> bool:
        """Whether the link is taken as slow now."""

    @property
    def delay_ms(self) -> float:
        """What messages take now beyond the baseline, as far as known; 0 while it is not slow.

        It becomes another number only where the level of the measurements has changed.
        """

    @property
    def baseline_ms(self) -> float | None:
        """Transfer time of the healthy link; None until there were enough measurements."""

    def update(self, measured_ms: float) -> None:
        """Take in one measurement: the median transfer time of an iteration's messages.

        Parameters
        ----------
        measured_ms : float
            In ms; NaN: there was no message, and nothing is learnt.

        Raises
        ------
        ScenarioError
            It is negative or infinite.
        """
