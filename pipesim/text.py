"""Numbers and counts as text for people; machines read JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = [
    "counted",
    "decimals",
    "fixed",
    "links",
    "listed",
    "milliseconds",
    "numbers",
    "percent",
    "plain",
]


def decimals(largest: float) -> int:
    """Digits behind the point that tell numbers up to ``largest`` apart: four in all.

    Examples
    --------
    >>> decimals(410.0), decimals(31.1), decimals(0.3)
    (1, 2, 4)
    """
    if largest <= 0:
        return 1
    return min(max(3 - math.floor(math.log10(largest)), 1), 9)


def fixed(value: float, digits: int, *, signed: bool = False) -> str:
    """Return ``value`` with ``digits`` behind the point; what rounds to zero has no minus.

    Examples
    --------
    >>> fixed(61.25, 1), fixed(-1e-13, 1), fixed(-1e-13, 1, signed=True), fixed(2, 0, signed=True)
    ('61.2', '0.0', '+0.0', '+2')
    """
    return f"{value:{'+' if signed else ''}z.{digits}f}"


def plain(value: float, digits: int | None = None) -> str:
    """Return ``value`` with at most ``digits`` behind the point and no zeros at the end.

    Examples
    --------
    >>> plain(410.0), plain(61.25, 1), plain(0.3), plain(-0.01, 1)
    ('410', '61.2', '0.3', '0')
    """
    text = fixed(value, decimals(abs(value)) if digits is None else digits)
    return text.rstrip("0").rstrip(".") if "." in text else text


def numbers(values: Sequence[float]) -> str:
    """Return numbers in a row; a dash where there are none.

    Examples
    --------
    >>> numbers([7, 5.5, 3.0]), numbers([])
    ('7 5.5 3', '–')
    """
    return " ".join(f"{value:g}" for value in values) or "–"


def milliseconds(value_ms: float) -> str:
    """Return a time with its unit.

    Examples
    --------
    >>> milliseconds(410.0)
    '410 ms'
    """
    return f"{plain(value_ms)} ms"


def percent(part: float, digits: int = 1) -> str:
    """Return a part of 1 in percent.

    Examples
    --------
    >>> percent(0.5), percent(0.0123), percent(0.000123, 4)
    ('50 %', '1.2 %', '0.0123 %')
    """
    return f"{plain(100 * part, digits)} %"


def counted(count: float, noun: str) -> str:
    """Return a count and its noun.

    Examples
    --------
    >>> counted(1, "activation"), counted(0.5, "activation"), counted(12, "micro-batch")
    ('1 activation', '0.5 activations', '12 micro-batches')
    """
    plural = noun + ("es" if noun.endswith(("ch", "s")) else "s")
    return f"{count:g} {noun if count == 1 else plural}"


def listed(parts: Sequence[object]) -> str:
    """Return an enumeration.

    Examples
    --------
    >>> listed([0, 2, 5])
    '0, 2 and 5'
    """
    words = [str(part) for part in parts]
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def links(indices: Sequence[int]) -> str:
    """Return the names of some links.

    Examples
    --------
    >>> links([0]), links([0, 2])
    ('link 0', 'links 0 and 2')
    """
    return f"link{'s' if len(indices) > 1 else ''} {listed(indices)}"
