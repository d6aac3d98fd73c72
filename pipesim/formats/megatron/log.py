"""Training logs of Megatron-LM and its relatives: iteration times, timers, and the run's shape.

.. code-block:: text

    using world size: 8, data-parallel size: 2, …, pipeline-model-parallel size: 4
      pipeline_model_parallel_size .................... 4
    setting number of microbatches to constant 12
     [2025-01-02 03:04:05] iteration        2/      15 | consumed samples: … | elapsed time
    per iteration (ms): 429.3 | learning rate: … |
    times across ranks (ms):
      forward-compute:
         rank  0: 98.12
         rank  1: 101.55

(The line of the iteration is one.) The block is what ``--timing-log-level 2 --timing-log-option
all`` prints; it belongs to the iteration before it, is summed over micro-batches and, as the
iteration time, averaged over the logging interval. ``minmax``, the default, prints a line
such as ``forward-compute ....: (98.12, 101.55)`` for each timer, ``max`` only the second
number. How others print all this stands in :mod:`pipesim.formats.megatron.dialects`. Real logs
also have escape codes, prefixes of launchers and loggers (``[default7]:``, ``7:``, timestamps)
and lines of other programs in between, which tell nothing of this run.

This module reads and checks; :mod:`pipesim.formats.megatron.importer` makes the scenario.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from pipesim.errors import FormatError
from pipesim.files import StrPath, read_text
from pipesim.formats.megatron import dialects
from pipesim.formats.megatron.dialects import DIALECTS, UNITS_MS, Dialect
from pipesim.formats.megatron.record import (
    COUNTS,
    UNREAD,
    LoggedIteration,
    MegatronLog,
    Skipped,
    Told,
    named,
)
from pipesim.text import listed

__all__ = ["read_megatron_log", "without_iterations"]

_ESCAPE = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)|[ -/]+[0-~]|[0-Z\\^-~])"
    r"|[\x00\x07\b]"
)
"""What terminals take for no text: ECMA-48's control sequences, commands of xterm, and bells."""
_PREFIX = re.compile(r"(?:\s*\[[^\][\n]{1,80}\]:?|\s*[0-9]{1,6}:(?=\s))*")
_STAMP = re.compile(r"\[([0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2})[^\]]{0,20}\]")
_GAP = re.compile(r"(?<=\S)\s{2,}")
"""Megatron indents timers by two spaces and more, whatever a logger puts before them."""
_NUMBER = re.compile(r"[0-9]{1,15}(\.[0-9]{1,9})?")
_DIGITS = re.compile(r"\.[0-9]{2}\)?\s*$")
"""Timers always have two decimals: fewer at the end of a file mean that it is cut short."""
_INDENTED = (
    re.compile(r"\s+([A-Za-z][\w/-]*):\s*$"),
    re.compile(r"\s+rank\s+([0-9]{1,7}):\s*(.*?)\s*$"),
    re.compile(r"\s+([A-Za-z][\w/-]*) \.*:\s*(?:\((.*?),\s*(.*?)\)|([0-9.]+))\s*$"),
)
"""In a block of timers: the name of one, a rank's time, and the extremes of one."""
_FLUSH = (
    re.compile(r"([a-z][a-z0-9/-]*):\s*$"),
    re.compile(r"rank\s+([0-9]{1,7}):\s*([0-9]+\.[0-9]{2})\s*$"),
    re.compile(r"([a-z][a-z0-9/-]*) \.+:\s*(?:\(([0-9.]+),\s*([0-9.]+)\)|([0-9.]+))\s*$"),
)
"""The same in a log that has lost its indents."""
_ONE = re.compile(r"\|\s*([A-Za-z][\w/ -]{0,60}):\s*([^\s|]*)")
_LONGEST = 20_000
"""No program that is read here prints a longer line."""
_LIST = re.compile(r"-{8,} (end of )?arguments -{8,}\s*$")
"""Around the arguments that Megatron-LM prints; some runs have no such lines."""
_SHAPE = re.compile(r" \.|size: |to constant |arguments -")
_PERIOD = re.compile(r"\bsteps_per_print \.+ ([0-9]{1,9})\s*$")
_NAMES = re.compile(r"forward|backward|fwd|bwd|optimizer|all-grads-sync")
_USED, _OTHERS, _CUT = "", "not about times or shape", "cut short"
_MEANT = "other timers, or of no iteration"
_COMPUTE = re.compile(r"(?<![\w-])(?:forward|backward)-compute(?![\w-])")


def read_megatron_log(path: StrPath) -> MegatronLog:
    """Read and check a log.

    Raises
    ------
    FormatError
        The file cannot be read, has neither a whole iteration line nor arguments (a rank's own
        log may have these alone), a time is no number or has a unit that is not known, or the log
        tells two shapes, as if it were of two runs; with line and, of a time, column.
    """
    text = _ESCAPE.sub("", read_text(path, damaged=True))
    dialect = next((one for one in DIALECTS if one.number.search(text)), None)
    reader = _Reader(os.fspath(path), dialect)
    lines = text.split("\n")
    fates = []
    for number, line in enumerate(lines, start=1):
        parts = line.rstrip("\r").split("\r")  # a progress bar returns to write over itself
        last = number == len(lines)
        found = [reader.take(part, number, last=last) for part in parts]
        fates.append(_USED if _USED in found else found[-1])
    if lines[-1] == "":
        fates.pop()
    log = MegatronLog(
        reader.file,
        dialect.name if dialect else "",
        tuple(reader.iterations),
        tuple(reader.skipped),
        reader.shape,
        tuple(fates),
        reader.period,
    )
    if not log.iterations and not log.shape:
        raise without_iterations(log)
    return log


def without_iterations(log: MegatronLog) -> FormatError:
    """Return the error that a log has none, and the reason if there is one."""
    others = listed([one.name for one in DIALECTS if one.name != "Megatron-LM"])
    reason = f" ({log.skipped[0]})" if log.skipped else ""
    return FormatError(
        'has no "iteration N/ M | … elapsed time per iteration (ms): …" line, nor one as '
        f"{others} print it{reason}",
        file=log.file,
    )


class _Reader:
    """Takes a log line by line."""

    def __init__(self, file: str, dialect: Dialect | None) -> None:
        self.file = file
        self.iterations: list[LoggedIteration] = []
        self.skipped: list[Skipped] = []
        self.shape: dict[str, Told] = {}
        self.period: int | None = None
        self._sure: set[str] = set()  # what nobody but Megatron-LM has told
        self._listed = False  # between the lines around its arguments
        self._dialect = dialect
        self._nemo = dialect is not None and dialect.name.startswith("NeMo")
        self._stamp = ""
        self._starts = True  # the next iteration is the first of a job
        self._open = False  # a block of timers that belongs to the last iteration
        self._orphan = True  # there is no iteration that timers would belong to
        self._indented = False  # what timers there were so far
        self._timer = ""
        self._unit_ms = 1.0
        self._ranks: dict[str, dict[int, float]] = {}
        self._extremes: dict[str, tuple[float, float]] = {}
        self._last: dict[str, float] = {}
        self._first: dict[str, float] = {}

    def take(self, line: str, number: int, *, last: bool) -> str:
        """Take one line and return its fate; the last has no end and may be cut short anywhere."""
        if len(line) > _LONGEST:
            return f"over {_LONGEST:,} characters long"
        found = self._dialect.number.search(line) if self._dialect else None
        if self._dialect and found:
            self._listed = False
            self._open, self._orphan = False, True
            return self._take_iteration(self._dialect, line, found, number, last=last)
        if "time" in line and (block := dialects.BLOCK.search(line)):
            self._open, self._timer = not self._orphan, ""
            if self._open:
                self._unit_ms = self._unit(block["unit"], number, "a block of timers")
            return _USED if self._open else _MEANT
        if "time (" in line and (one := dialects.ONE_LINE.search(line)):
            return self._take_one_line(line, one, number, last=last)
        if self._open and (fate := self._take_timer(line, number, last=last)) is not None:
            return fate
        if not line.strip():
            return "blank"
        if not last and self._take_shape(line, number):
            return _USED
        if name := dialects.foreign(line):
            return f"of {name}"
        return UNREAD if _COMPUTE.search(line) else _OTHERS

    def _take_shape(self, line: str, number: int) -> bool:
        if not self._nemo and not _SHAPE.search(line):
            return False
        if border := _LIST.search(line):
            self._listed = border[1] is None
            return True
        told = list(dialects.arguments(line, nemo=self._nemo))
        if (told or "steps_per_print" in line) and dialects.foreign(line):
            if period := _PERIOD.search(line):
                self.period = int(period[1]) or None
            return period is not None
        used = [self._tell(what, value, number, sure or self._listed) for what, value, sure in told]
        self._starts |= any(used)
        return any(used)

    def _tell(self, what: str, value: int | str, number: int, sure: bool) -> bool:
        """Keep what a line tells; what may be another program's gives way to what is not."""
        told = Told(value, number) if isinstance(value, int) else Told(0, number, value)
        none = what in COUNTS and told.value < 1
        if what not in self.shape or (sure and what not in self._sure):
            self.shape[what] = told
        if sure:
            self._sure.add(what)
        first = self.shape[what]
        own, before = told.text or str(told.value), first.text or str(first.value)
        if own != before and not sure:
            return False
        if own != before or none:
            also = "" if first is told else f", but line {first.line} {before}"
            raise FormatError(
                f"says that {named(what)} is {own}{also}",
                file=self.file,
                line=number,
            )
        return True

    def _take_iteration(
        self, dialect: Dialect, line: str, found: re.Match[str], number: int, *, last: bool
    ) -> str:
        iteration = int(found["number"])
        timed = dialect.time.search(line, found.end())
        if timed is None and dialect.refreshed:
            return "a progress bar without a time"
        if timed is None and not last and line.rstrip().endswith("|"):
            return self._skip(number, iteration, " does not tell its time")
        if timed is None or not (timed["end"] or (not last and not dialect.closed)):
            return self._skip(number, iteration, f" is {_CUT}")
        unit_ms = self._unit(timed["unit"], number, f"iteration {iteration}")
        jumps = timed["time"].startswith("-")  # Megatron's timers read the wall clock
        elapsed_ms = 0.0 if jumps else unit_ms * self._elapsed(dialect, timed, number)
        stamp = _STAMP.search(line, 0, found.start())
        backwards = stamp is not None and stamp[1] < self._stamp
        self._stamp = stamp[1] if stamp else self._stamp
        if backwards or elapsed_ms == 0:
            return self._skip(number, iteration, ": the clock jumps")
        previous = self.iterations[-1] if self.iterations else None
        if dialect.refreshed and previous and previous.number == iteration:
            self.iterations.pop()
            self._starts = previous.starts
        elif previous and iteration <= previous.number:
            self._starts = True
        batch = dialects.BATCH.search(line)
        self._ranks, self._extremes, self._last = {}, {}, {}
        self.iterations.append(
            LoggedIteration(
                iteration,
                elapsed_ms,
                number,
                int(batch[1]) if batch and int(batch[1]) else None,
                self._starts,
                self._ranks,
                self._extremes,
                self._last,
                self._first,
            )
        )
        self._first, self._starts, self._orphan = {}, False, False
        return _USED

    def _skip(self, number: int, iteration: int, why: str) -> str:
        self.skipped.append(Skipped(number, f"iteration {iteration}", why))
        return f"an iteration that{why}" if why.startswith(" ") else "where the clock jumps"

    def _unit(self, unit: str | None, line: int, what: str) -> float:
        if unit not in UNITS_MS:
            told = "no unit" if unit is None else f"the unit {unit[:20]!r}, which is not known"
            raise FormatError(
                f"{what} has times in {told} (known: {', '.join(UNITS_MS)})",
                file=self.file,
                line=line,
            )
        return UNITS_MS[unit]

    def _elapsed(self, dialect: Dialect, timed: re.Match[str], line: int) -> float:
        values = []
        for group in ("time", *(["mean"] if timed.re.groupindex.get("mean") else [])):
            value = dialect.read(timed[group]) if timed[group] is not None else 0.0
            if value is None:
                raise self._no_number(timed, group, line, timed["unit"])
            values.append(value)
        return values[0]

    # -- timers ------------------------------------------------------------------------------

    def _take_one_line(self, line: str, one: re.Match[str], number: int, *, last: bool) -> str:
        """Take timers of one rank: of the last one, or DeepSpeed's of the first."""
        own = dialects.foreign(line[: one.start()]) == "" and one["rank"] is None
        if (own and self._orphan) or int(one["rank"] or 0) > 0:
            return _MEANT
        into = self._last if own else self._first
        fate = _MEANT
        for found in _ONE.finditer(line, one.start("timers")):
            if last and found.end() == len(line) and not _DIGITS.search(line):
                self.skipped.append(Skipped(number, "the last line", f" is {_CUT}"))
            elif _NAMES.match(found[1]):
                unit_ms = self._unit(one["unit"], number, "a line of timers")
                into.setdefault(found[1], unit_ms * self._time(found, 2, number))
                fate = _USED
        return fate

    def _take_timer(self, line: str, number: int, *, last: bool) -> str | None:
        """Take a line of a block of timers; None: it is none."""
        timer, rank, extremes = self._found(line)
        rank = rank if self._timer else None
        if timer:
            self._timer = timer[1]
        elif (rank or extremes) and last and not _DIGITS.search(line):
            self.skipped.append(Skipped(number, "the last line", f" is {_CUT}"))
            return _CUT
        elif rank:
            times = self._ranks.setdefault(self._timer, {})
            times.setdefault(int(rank[1]), self._unit_ms * self._time(rank, 2, number))
        elif extremes:
            groups = (2, 3) if extremes[4] is None else (4, 4)
            low, high = (self._unit_ms * self._time(extremes, group, number) for group in groups)
            self._extremes.setdefault(extremes[1], (low, high))
        else:
            return None
        name = extremes[1] if extremes and not rank and not timer else self._timer
        return _USED if _NAMES.match(name) else _MEANT

    def _found(self, line: str) -> list[re.Match[str] | None]:
        """Look for what a line of a block of timers may be."""
        starts = list(_starts(line))
        for patterns in (_INDENTED,) if self._indented else (_INDENTED, _FLUSH):
            found = [
                next(filter(None, (pattern.match(line, start) for start in starts)), None)
                for pattern in patterns
            ]
            if any(found):
                self._indented |= patterns is _INDENTED
                return found
        return [None, None, None]

    def _time(self, found: re.Match[str], group: int, line: int) -> float:
        if not _NUMBER.fullmatch(found[group]):
            raise self._no_number(found, group, line)
        return float(found[group])

    def _no_number(
        self, found: re.Match[str], group: str | int, line: int, unit: str | None = "ms"
    ) -> FormatError:
        words = {"ms": "milliseconds", "s": "seconds", "us": "microseconds"}
        return FormatError(
            f"must be a time in {words[unit or 'ms']}, not {found[group][:40]!r}",
            file=self.file,
            line=line,
            column=found.start(group) + 1,
        )


def _starts(line: str) -> Iterator[int]:
    """Where a line may begin: after the prefixes of launchers, or at a wide gap."""
    prefix = _PREFIX.match(line)
    yield prefix.end() if prefix else 0
    yield from (gap.start() for gap in _GAP.finditer(line))
