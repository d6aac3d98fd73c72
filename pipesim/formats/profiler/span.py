"""When an operator ran, as one rank's trace tells it."""

from __future__ import annotations

from typing import Literal, NamedTuple

__all__ = ["Span"]

Pair = Literal["", "cut", "whole"]


class Span(NamedTuple):
    """Start and end, and what tells how much of it is the wait for a message.

    Parameters
    ----------
    start_ms, end_ms : float
        Of the annotation on the host, or of the work on the GPU.
    received_ms : float or None
        When the host had waited for a message inside.
    operator_ms : float or None
        When the host began its first operator inside.
    pair : "", "cut" or "whole"
        Whether it is a part of an overlapped pair, or, where the pair could not be cut, all of it.
    """

    start_ms: float
    end_ms: float
    received_ms: float | None = None
    operator_ms: float | None = None
    pair: Pair = ""

    def since(self, origin_ms: float) -> Span:
        """Return it on the clock that is 0 at a time.

        Examples
        --------
        >>> Span(7.0, 9.0, operator_ms=8.0).since(5.0)
        Span(start_ms=2.0, end_ms=4.0, received_ms=None, operator_ms=3.0, pair='')
        """
        return Span(
            self.start_ms - origin_ms,
            self.end_ms - origin_ms,
            None if self.received_ms is None else self.received_ms - origin_ms,
            None if self.operator_ms is None else self.operator_ms - origin_ms,
            self.pair,
        )
