"""Training logs of Megatron-LM: iteration times, and timers where they were asked for.

.. code-block:: text

     [2025-01-02 03:04:05] iteration        2/      15 | consumed samples: … | elapsed time
    per iteration (ms): 429.3 | learning rate: … |
    times across ranks (ms):
      forward-compute:
         rank  0: 98.12
         rank  1: 101.55

(The first two lines are one.) The block is what ``--timing-log-level 2 --timing-log-option
all`` prints; it belongs to the iteration before it, is summed over micro-batches and, as the
iteration time, averaged over the logging interval. ``minmax``, the default, prints a line
such as ``forward-compute ....: (98.12, 101.55)`` for each timer, ``max`` only the second
number. Real logs also have escape codes, prefixes of launchers and loggers (``[default7]:``,
``7:``, timestamps) and lines of others in between; all these are passed over.

What precedes the iterations tells the shape of the run, if it is there::

    using world size: 8, data-parallel size: 2, …, pipeline-model-parallel size: 4
      pipeline_model_parallel_size .................... 4
      world_size ...................................... 8
    setting number of microbatches to constant 12

This module reads and checks; :mod:`pipesim.formats.megatron.importer` makes the scenario.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from pipesim.errors import FormatError
from pipesim.files import StrPath, read_text

__all__ = ["LoggedIteration", "MegatronLog", "Told", "read_megatron_log"]

_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_PREFIX = re.compile(r"(?:\s*\[[^\][\n]{1,80}\]:?|\s*[0-9]{1,6}:(?=\s))*")
_STAMP = re.compile(r"\[([0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2})[^\]]{0,20}\]")
_ITERATION = re.compile(r"(?<![\w-])iteration\s+([0-9]{1,9})\s*/\s*(?:[0-9]{1,9}|infinity)\s*\|")
_ELAPSED = re.compile(r"elapsed time per iteration \(ms\):[ \t]*([^\s|]*)\s*(\|?)")
_GAP = re.compile(r"(?<=\S)\s{2,}")
"""Megatron indents timers by two spaces and more, whatever a logger puts before them."""
_SHAPE = {
    "stages": re.compile(
        r"(?<![\w-])(?:pipeline-model-parallel size: |pipeline_model_parallel_size \.+ )"
        r"([0-9]{1,9})(?![\w.])"
    ),
    "ranks": re.compile(r"(?<![\w-])(?:using world size: |world_size \.+ )([0-9]{1,9})(?![\w.])"),
    "micro-batches": re.compile(
        r"(?<![\w-])(?:setting number of micro-?batches to constant |num_microbatches \.+ )"
        r"([0-9]{1,9})(?![\w.])"
    ),
}
_NUMBER = re.compile(r"[0-9]{1,15}(\.[0-9]{1,9})?")
_DIGITS = re.compile(r"\.[0-9]{2}\)?\s*$")
"""Timers always have two decimals: fewer at the end of a file mean that it is cut short."""
_BLOCK = re.compile(r"(?:\(min, max\) |max )?times? across ranks \(ms\):\s*$")
_TIMER = re.compile(r"\s+([A-Za-z][\w/-]*):\s*$")
_RANK = re.compile(r"\s+rank\s+([0-9]{1,7}):\s*(.*?)\s*$")
_EXTREMES = re.compile(r"\s+([A-Za-z][\w/-]*) \.*:\s*(?:\((.*?),\s*(.*?)\)|([0-9.]+))\s*$")


class Told(NamedTuple):
    """A number that a log tells, and the line of it."""

    value: int
    line: int


@dataclass(frozen=True)
class LoggedIteration:
    """One line of the log, and the timers after it.

    Parameters
    ----------
    number : int
        The iteration; with a logging interval, the last of it.
    elapsed_ms : float
        Time of an iteration, above 0.
    line : int
        Where it stands.
    ranks_ms : mapping of str to mapping of int to float
        By timer and rank.
    extremes_ms : mapping of str to pair of float
        By timer, the shortest and the longest over the ranks.
    """

    number: int
    elapsed_ms: float
    line: int
    ranks_ms: Mapping[str, dict[int, float]] = field(default_factory=dict)
    extremes_ms: Mapping[str, tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class MegatronLog:
    """The iterations of a log.

    Parameters
    ----------
    file : str
        Its name.
    iterations : tuple of LoggedIteration
        In the order of the log; at least one.
    skipped : tuple of str
        What was skipped although it belongs to an iteration, and why.
    shape : mapping of str to Told
        As far as the log tells them, the numbers of ``stages``, ``micro-batches`` (of a
        pipeline and an iteration) and ``ranks``; each at least 1.
    """

    file: str
    iterations: tuple[LoggedIteration, ...]
    skipped: tuple[str, ...]
    shape: Mapping[str, Told] = field(default_factory=dict)


def read_megatron_log(path: StrPath) -> MegatronLog:
    """Read and check a log.

    Raises
    ------
    FormatError
        The file cannot be read or has no whole iteration line, a time is no number, or the
        log tells two shapes, as if it were of two runs; with line and, of a time, column.
    """
    reader = _Reader(os.fspath(path))
    lines = read_text(path).split("\n")
    for number, line in enumerate(lines, start=1):
        reader.take(_ESCAPE.sub("", line.rstrip("\r")), number, last=number == len(lines))
    if not reader.iterations:
        reason = f" ({reader.skipped[0]})" if reader.skipped else ""
        raise FormatError(
            f'has no "iteration N/ M | … elapsed time per iteration (ms): …" line{reason}',
            file=reader.file,
        )
    return MegatronLog(reader.file, tuple(reader.iterations), tuple(reader.skipped), reader.shape)


class _Reader:
    """Takes a log line by line."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.iterations: list[LoggedIteration] = []
        self.skipped: list[str] = []
        self.shape: dict[str, Told] = {}
        self._stamp = ""
        self._open = False  # a block of timers that belongs to the last iteration
        self._orphan = True  # there is no iteration that a block would belong to
        self._timer = ""
        self._ranks: dict[str, dict[int, float]] = {}
        self._extremes: dict[str, tuple[float, float]] = {}

    def take(self, line: str, number: int, *, last: bool) -> None:
        """Take one line; the last has no end and may be cut short anywhere."""
        if not last:
            self._take_shape(line, number)
        found = _ITERATION.search(line)
        if found:
            self._open, self._orphan = False, True
            self._take_iteration(line, found, number)
        elif _BLOCK.search(line):
            self._open, self._timer = not self._orphan, ""
        elif self._open:
            self._take_timer(line, number, last=last)

    def _take_shape(self, line: str, number: int) -> None:
        for what, pattern in _SHAPE.items():
            if found := pattern.search(line):
                told = Told(int(found[1]), number)
                first = self.shape.setdefault(what, told)
                if told.value != first.value or told.value < 1:
                    also = "" if first is told else f", but line {first.line} {first.value}"
                    raise FormatError(
                        f"says that the number of {what} is {told.value}{also}",
                        file=self.file,
                        line=number,
                    )

    def _take_iteration(self, line: str, found: re.Match[str], number: int) -> None:
        iteration = int(found[1])
        elapsed = _ELAPSED.search(line, found.end())
        if elapsed is None or not elapsed[2]:
            self.skipped.append(f"line {number}: iteration {iteration} is cut short")
            return
        jumps = elapsed[1].startswith("-")  # Megatron's timers read the wall clock
        elapsed_ms = 0.0 if jumps else self._time(elapsed, 1, number)
        stamp = _STAMP.search(line, 0, found.start())
        backwards = stamp is not None and stamp[1] < self._stamp
        self._stamp = stamp[1] if stamp else self._stamp
        if backwards or elapsed_ms == 0:
            self.skipped.append(f"line {number}: iteration {iteration}: the clock jumps")
            return
        self._ranks, self._extremes = {}, {}
        self.iterations.append(
            LoggedIteration(iteration, elapsed_ms, number, self._ranks, self._extremes)
        )
        self._orphan = False

    def _take_timer(self, line: str, number: int, *, last: bool) -> None:
        timer, rank, extremes = (
            next(filter(None, (pattern.match(line, start) for start in _starts(line))), None)
            for pattern in (_TIMER, _RANK, _EXTREMES)
        )
        rank = rank if self._timer else None
        if timer:
            self._timer = timer[1]
        elif (rank or extremes) and last and not _DIGITS.search(line):
            self.skipped.append(f"line {number}: the last line is cut short")
        elif rank:
            times = self._ranks.setdefault(self._timer, {})
            times.setdefault(int(rank[1]), self._time(rank, 2, number))
        elif extremes:
            groups = (2, 3) if extremes[4] is None else (4, 4)
            low, high = (self._time(extremes, group, number) for group in groups)
            self._extremes.setdefault(extremes[1], (low, high))

    def _time(self, found: re.Match[str], group: int, line: int) -> float:
        text = found[group]
        if not _NUMBER.fullmatch(text):
            raise FormatError(
                f"must be a time in milliseconds, not {text[:40]!r}",
                file=self.file,
                line=line,
                column=found.start(group) + 1,
            )
        return float(text)


def _starts(line: str) -> Iterator[int]:
    """Where a line may begin: after the prefixes of launchers, or at a wide gap."""
    prefix = _PREFIX.match(line)
    yield prefix.end() if prefix else 0
    yield from (gap.start() for gap in _GAP.finditer(line))
