"""The record of a run: a CSV with a row for each iteration, from which it can be resumed."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import numpy as np

from pipesim.adapt.loop import Iteration, Recorded
from pipesim.errors import FormatError, PipesimError
from pipesim.files import StrPath, read_text, write_text
from pipesim.scenario import DIRECTIONS

__all__ = ["Record"]

_BEFORE = (
    "run",
    "system",
    "iteration",
    "start_ms",
    "duration_ms",
    "pipeline_ms",
    "swapped",
    "delegated",
    "peak_activations",
)


class Record:
    """Rows of iterations that are written as they end.

    A file that is there already is continued where it holds the same run; a line that was cut off
    when an earlier process ended is dropped.

    Parameters
    ----------
    path : path
        The file.
    run : str
        What tells this run from others: its rows carry it.
    links : dict of str to int
        Number of links of each system, S − 1. Rows of systems with fewer have empty cells.
    resumes : bool
        Whether the rows that are there may stand for iterations.

    Raises
    ------
    FormatError
        The file holds another run, or something else.
    """

    def __init__(
        self, path: StrPath, run: str, links: dict[str, int], *, resumes: bool = True
    ) -> None:
        self._path, self._run, self._links = os.fspath(path), run, links
        most = max(links.values())
        self._ways = [f"link{link}_{way}_ms" for link in range(most) for way in DIRECTIONS]
        measured, known = (
            [f"{what}_{way}" for way in self._ways] for what in ("measured", "known")
        )
        self.columns = (*_BEFORE, *measured, *known)
        self._rows: dict[str, list[Recorded]] = {system: [] for system in links}
        kept = self._kept(resumes)
        write_text(self._path, kept)
        try:
            self._file = Path(self._path).open(  # noqa: SIM115 - closed by __exit__
                "a", encoding="utf-8", newline=""
            )
        except OSError as error:
            raise FormatError(f"cannot be written: {error.strerror}", file=self._path) from None

    def __enter__(self) -> Record:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        with suppress(OSError):
            self._file.close()

    def recorded(self, system: str) -> Sequence[Recorded]:
        """Return what the file held of a system when it was opened."""
        return self._rows[system]

    def write(self, system: str, one: Iteration) -> None:
        """Write the row of an iteration, unless it was there.

        Raises
        ------
        PipesimError
            The disk is full, or the like.
        """
        if one.index < len(self._rows[system]):
            return
        ways = [f"{a}>{b}" for a, b in _delegated(one)]
        cells: list[object] = [
            self._run,
            system,
            one.index,
            repr(one.start_ms),
            repr(one.duration_ms),
            repr(one.pipeline_ms),
            int(one.swapped),
            " ".join(ways),
            " ".join(map(repr, one.peak_activations.tolist())),
        ]
        for values in (one.measured_ms, one.estimate_ms):
            texts = [repr(value) for value in values.ravel().tolist()]
            cells += texts + [""] * (len(self._ways) - len(texts))
        try:
            self._file.write(_line(cells))
            self._file.flush()
        except OSError as error:
            raise PipesimError(f"{self._path}: cannot be written: {error.strerror}") from None

    # -- what is there ------------------------------------------------------------------------

    def _kept(self, resumes: bool) -> str:
        """The lines of the file that stay, of which rows are taken; the header, where it is new."""
        header = _line(self.columns)
        if not Path(self._path).exists() or not Path(self._path).stat().st_size:
            return header
        text = read_text(self._path)
        lines = text.splitlines(keepends=True)
        if lines and not lines[-1].endswith("\n"):
            lines.pop()
        if not lines and header.startswith(text):
            return header
        if not lines or lines[0] != header:
            raise FormatError(
                "is no record of this run, and is not overwritten: other columns",
                file=self._path,
                line=1,
            )
        for number, row in enumerate(csv.reader(lines[1:]), 2):
            self._take(row, number)
        if not resumes:
            self._rows = {system: [] for system in self._links}
            return header
        return "".join(lines)

    def _take(self, row: Sequence[str], line: int) -> None:
        if len(row) != len(self.columns):
            raise FormatError(
                f"has {len(row)} cells, expected {len(self.columns)}", file=self._path, line=line
            )
        cells = dict(zip(self.columns, row, strict=True))
        if cells["run"] != self._run:
            raise FormatError(
                "is the record of another run, and is not overwritten", file=self._path, line=line
            )
        own = self._rows.get(cells["system"])
        if own is None or cells["iteration"] != str(len(own)):
            raise FormatError(
                f"iteration {cells['iteration']} of {cells['system']} is out of order",
                file=self._path,
                line=line,
            )
        links = self._links[cells["system"]]
        try:
            measured = [float(cells[f"measured_{way}"]) for way in self._ways[: 2 * links]]
            peaks = np.array([float(one) for one in cells["peak_activations"].split()])
            pipeline_ms = float(cells["pipeline_ms"])
        except ValueError as error:
            raise FormatError(str(error), file=self._path, line=line) from None
        own.append(Recorded(pipeline_ms, np.array(measured).reshape(links, 2), peaks))


def _line(cells: Sequence[object]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()


def _delegated(one: Iteration) -> Iterator[tuple[int, int]]:
    """The stages between which messages are delegated, from and to."""
    for link, way in np.argwhere(one.plan.delegates).tolist():
        yield (link + way, link + 1 - way)
