"""Turns what people type for times, links and limits into numbers. Pure functions.

Each raises a :class:`~pipesim.errors.ScenarioError` that shows what was typed.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from pipesim.documents.links import directed_link, link_index
from pipesim.errors import ScenarioError
from pipesim.scenario import DIRECTIONS, LARGEST, Direction

__all__ = [
    "BOTH_WAYS",
    "SlowLink",
    "SlowRing",
    "counts",
    "duration_ms",
    "durations_ms",
    "iteration",
    "limits",
    "link_indices",
    "names",
    "part",
    "slow_link",
    "slow_ring",
]

UNITS_MS = {"us": 1e-3, "µs": 1e-3, "μs": 1e-3, "ms": 1.0, "s": 1e3, "min": 60e3, "h": 3600e3}

_NUMBER = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_DURATION = re.compile(rf"({_NUMBER})\s*({'|'.join(UNITS_MS)})")
_SLOW = re.compile(r"([^=]*)=(.*)", re.DOTALL)
BOTH_WAYS = DIRECTIONS


class SlowLink(NamedTuple):
    """A link, the directions in which it is slow, by how much, and in which rank's pipeline."""

    link: int
    directions: tuple[Direction, ...]
    delay_ms: float
    rank: int = 0


class SlowRing(NamedTuple):
    """A slow link between two data-parallel ranks, ``rank`` and the next, at one stage."""

    stage: int
    rank: int
    delay_ms: float


def duration_ms(text: str) -> float:
    """Read a time with its unit, in milliseconds.

    Examples
    --------
    >>> duration_ms("20ms"), duration_ms("1.5s"), duration_ms("300 us")
    (20.0, 1500.0, 0.3)
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        if re.fullmatch(_NUMBER, text.strip()):
            raise ScenarioError(f"{text!r} has no unit: write {text.strip()}ms, or us, s, min or h")
        raise ScenarioError(f"{text!r} is not a time such as 20ms, 1.5s or 300us")
    value = _in_ms(match[1], match[2])
    if match[1].startswith("-"):
        raise ScenarioError(f"{text!r} is negative")
    if not value <= LARGEST:
        raise ScenarioError(f"{text!r} is too long a time")
    return value


def _in_ms(number: str, unit: str) -> float:
    # Dividing by a thousand rounds once; multiplying by its inverse would round twice.
    return float(number) / 1e3 if UNITS_MS[unit] < 1 else float(number) * UNITS_MS[unit]


def durations_ms(text: str) -> float | list[float]:
    """Read one time, or a comma list with one for each stage.

    Examples
    --------
    >>> durations_ms("10ms"), durations_ms("9ms,10ms,1s")
    (10.0, [9.0, 10.0, 1000.0])
    """
    values = [duration_ms(part) for part in text.split(",")]
    return values if len(values) > 1 else values[0]


def iteration(text: str) -> float:
    """Read the number of an iteration.

    Examples
    --------
    >>> iteration("120")
    120.0
    """
    if not re.fullmatch("[0-9]{1,15}", text.strip()):
        raise ScenarioError(f"{text!r} is not the number of an iteration")
    return float(text)


def part(text: str) -> float:
    """Read a part in percent, or of 1.

    Examples
    --------
    >>> part("5%"), part("0.05")
    (0.05, 0.05)
    """
    match = re.fullmatch(rf"({_NUMBER})\s*(%?)", text.strip())
    if match is None:
        raise ScenarioError(f"{text!r} is not a part such as 5% or 0.05")
    value = float(match[1]) / (100 if match[2] else 1)
    if not 0 <= value < 1:
        raise ScenarioError(f"{text!r} is not between 0% and 100%")
    return value


def link_indices(text: str) -> list[int]:
    """Read a comma list of link numbers.

    Examples
    --------
    >>> link_indices("0,2")
    [0, 2]
    """
    return [link_index(part) for part in text.split(",")]


def _index(text: str, what: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text.strip()):
        raise ScenarioError(f"{text!r} is not a {what}: {what}s are numbered 0, 1, 2 …")
    return int(text)


def slow_link(text: str) -> SlowLink:
    """Read ``LINK=TIME``, or ``STAGE>STAGE=TIME`` for one direction; ``:RANK`` before ``=``.

    ``0>1`` are activations on link 0, down from stage 0 to 1; ``1>0`` gradients, up. The rank is
    that of a data-parallel job.

    Examples
    --------
    >>> slow_link("2=5ms")
    SlowLink(link=2, directions=('down', 'up'), delay_ms=5.0, rank=0)
    >>> slow_link("1>0:3=20ms")
    SlowLink(link=0, directions=('up',), delay_ms=20.0, rank=3)
    """
    match = _SLOW.fullmatch(text)
    if match is None:
        raise ScenarioError(f"{text!r} is not LINK=TIME, such as 0=20ms or '0>1=20ms'")
    delay_ms = duration_ms(match[2])
    where, rank = _with_rank(match[1])
    return SlowLink(*directed_link(where), delay_ms, rank)


def slow_ring(text: str) -> SlowRing:
    """Read ``STAGE=TIME`` or ``STAGE:RANK=TIME``: the link between a rank and the next.

    Examples
    --------
    >>> slow_ring("1=30ms"), slow_ring("1:2=30ms")
    (SlowRing(stage=1, rank=0, delay_ms=30.0), SlowRing(stage=1, rank=2, delay_ms=30.0))
    """
    match = _SLOW.fullmatch(text)
    if match is None:
        raise ScenarioError(f"{text!r} is not STAGE=TIME, such as 1=30ms, or STAGE:RANK=TIME")
    delay_ms = duration_ms(match[2])
    where, rank = _with_rank(match[1])
    return SlowRing(_index(where, "stage"), rank, delay_ms)


def _with_rank(text: str) -> tuple[str, int]:
    """What stands before a colon, and the rank behind it; rank 0 if there is none."""
    where, colon, rank = text.partition(":")
    return where.strip(), _index(rank, "rank") if colon else 0


def counts(text: str) -> list[int]:
    """Read a comma list of whole numbers from 1 on.

    Examples
    --------
    >>> counts("64,8")
    [64, 8]
    """
    values = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch("0*[1-9][0-9]{0,8}", value) for value in values):
        raise ScenarioError(f"{text!r} is not a list of whole numbers from 1 on, such as 64,8")
    return list(map(int, values))


def limits(text: str) -> float | list[float]:
    """Read one count of activations, or a comma list; ``unlimited`` is one too.

    Examples
    --------
    >>> limits("8"), limits("8,unlimited")
    (8.0, [8.0, inf])
    """
    values = [_limit(part.strip()) for part in text.split(",")]
    return values if len(values) > 1 else values[0]


def _limit(text: str) -> float:
    if text == "unlimited":
        return math.inf
    if not re.fullmatch(_NUMBER, text) or not math.isfinite(float(text)):
        raise ScenarioError(f"{text!r} is not a number of activations, or unlimited")
    if float(text) < 0:
        raise ScenarioError(f"{text!r} is negative")
    return float(text)


def names(text: str) -> list[str]:
    """Read a comma list of names, each given once.

    Examples
    --------
    >>> names("1f1b, pipemorph")
    ['1f1b', 'pipemorph']
    """
    parts = [part.strip() for part in text.split(",")]
    for number, part in enumerate(parts):
        if not part:
            raise ScenarioError(f"{text!r} has an empty name")
        if part in parts[:number]:
            raise ScenarioError(f"{part!r} is given twice")
    return parts
