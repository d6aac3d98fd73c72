"""How results reach people and pipes: tables and text, JSON, notes, progress.

Results go to standard output, everything else to standard error. On a terminal text is
laid out for its width; on a pipe no line is ever broken.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from pipesim.errors import PipesimError

__all__ = [
    "Column",
    "Outputs",
    "bar",
    "note",
    "progress",
    "show",
    "show_json",
    "show_rows",
    "show_text",
    "wrapped",
]

_UNBROKEN = 1_000_000
"""Width of a pipe, in columns: no line is ever broken."""


_BROKEN_PIPE = 128 + 13
"""Exit code of a process that ends by SIGPIPE, as others do in a pipeline."""


def _on_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


def _width() -> int:
    if os.environ.get("COLUMNS", "").isdigit() or _on_terminal():
        return max(shutil.get_terminal_size().columns, 20)
    return _UNBROKEN


def _console() -> Console:
    """Return a console that only renders; :func:`_write` writes, and reports errors."""
    return Console(
        file=io.StringIO(),
        force_terminal=_on_terminal() or None,
        width=_width(),
        highlight=False,
        markup=False,
        emoji=False,
    )


def _write(text: str) -> None:
    """Write all of a text to standard output, or raise :class:`PipesimError`."""
    if sys.stdout is None:
        raise PipesimError("standard output is closed")
    encoding = sys.stdout.encoding or "utf-8"
    try:
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads has seen enough
        _abandon_stdout()
        sys.exit(_BROKEN_PIPE)
    except (OSError, ValueError) as error:
        _abandon_stdout()
        reason = (isinstance(error, OSError) and error.strerror) or str(error)
        raise PipesimError(f"cannot write to standard output: {reason}") from None


def _abandon_stdout() -> None:
    """Let what is still buffered go nowhere, so that Python's last flush cannot fail."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


class Outputs:
    """The files that a command writes, checked before it starts.

    Parameters
    ----------
    files : dict of str to path
        By option; None if not asked for.
    inputs : path
        Files that the command reads.

    Raises
    ------
    PipesimError
        Two of them are the same, one is an input, or its folder does not exist.
    """

    def __init__(self, files: dict[str, Path | None], *inputs: Path | None) -> None:
        self._files = {option: file for option, file in files.items() if file}
        taken = {file.resolve(): "an input" for file in inputs if file}
        for option, file in self._files.items():
            if file.is_dir() or not file.absolute().parent.is_dir():
                reason = "it is a folder" if file.is_dir() else f"there is no folder {file.parent}"
                raise PipesimError(f"{option} {file}: {reason}")
            if file.resolve() in taken:
                raise PipesimError(f"{option} {file} would overwrite {taken[file.resolve()]}")
            if file.is_file() or not file.exists():  # a terminal may be written to twice
                taken[file.resolve()] = f"what {option} writes"

    def written(self, *, quiet: bool) -> None:
        """Say which files there are now."""
        for file in self._files.values():
            note(f"wrote {file}", quiet=quiet)


def show(*parts: Table | Text | str) -> None:
    """Print tables and paragraphs."""
    console = _console()
    for part in parts:
        console.print(part)
    rendered = cast(io.StringIO, console.file).getvalue()
    _write("".join(line.rstrip() + "\n" for line in rendered.splitlines()))


def show_json(value: object) -> None:
    """Print one JSON object."""
    _write(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def show_text(text: str) -> None:
    """Print a text as it is."""
    _write(text)


def wrapped(text: str, indent: str) -> str:
    """Break a line between words for the terminal; later lines start with ``indent``."""
    if len(text) <= _width():
        return text
    return textwrap.fill(
        text, _width(), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def note(text: str, *, quiet: bool = False) -> None:
    """Tell the user something besides the results, on standard error."""
    if not quiet and sys.stderr is not None:
        with suppress(OSError, ValueError):
            print(text, file=sys.stderr, flush=True)  # noqa: T201


@contextmanager
def progress(quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows on a terminal what is being done; elsewhere it shows nothing."""
    if quiet or sys.stderr is None or not sys.stderr.isatty():
        yield lambda text: None
        return
    with Console(stderr=True).status("") as status:
        yield lambda text: status.update(f"{text} …")


@contextmanager
def bar(quiet: bool = False) -> Iterator[Callable[[str, float], None]]:
    """Yield a function that shows on a terminal what is being done, and which part of it is."""
    if quiet or sys.stderr is None or not sys.stderr.isatty():
        yield lambda text, part: None
        return
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as shown:
        task = shown.add_task("", total=1.0)
        yield lambda text, part: shown.update(task, description=text, completed=part)


# -- tables ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Parameters
    ----------
    header : str
        Its name; a second line holds the unit.
    cells : sequence of str
        One for each row.
    numeric : bool
        Whether its cells are single numbers, to be aligned right.
    tight : str
        The header to use where room is scarce.
    """

    header: str
    cells: Sequence[str]
    numeric: bool = True
    tight: str = ""


def show_rows(name: Column, *groups: Sequence[Column], bold: int | None = None) -> None:
    """Print a table, or one for each group of columns where the terminal is too narrow.

    Parameters
    ----------
    name : Column
        The names of the rows: the first column of every table.
    groups : sequence of Column
        The other columns; those of one group stay together.
    bold : int, optional
        The row to print in bold.
    """
    whole = [[name, *(column for group in groups for column in group)]]
    parts = [[name, *group] for group in groups]
    console = _console()
    unbounded = console.options.update(width=_UNBROKEN)
    layouts = [
        [_table(columns, tight=tight, bold=bold) for columns in layout]
        for layout in (whole, parts)
        for tight in (False, True)
    ]
    fitting = (
        layout
        for layout in layouts
        if all(console.measure(t, options=unbounded).maximum <= console.width for t in layout)
    )
    tables = next(fitting, layouts[-1])
    parts_and_gaps = [part for table in tables for part in ("", table)]
    show(*parts_and_gaps[1:])


def _table(columns: Sequence[Column], *, tight: bool, bold: int | None) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=0)
    headers = [(column.tight if tight else "") or column.header for column in columns]
    height = max(header.count("\n") for header in headers)
    gaps = [0, *(0 if tight and column.numeric else 1 for column in columns[1:])]
    for column, header, gap in zip(columns, headers, gaps, strict=True):
        table.add_column(
            _cell(header + "\n " * (height - header.count("\n")), gap),
            justify="right" if column.numeric else "left",
            no_wrap=column.numeric,
        )
    for number, cells in enumerate(zip(*(column.cells for column in columns), strict=True)):
        table.add_row(*map(_cell, cells, gaps), style="bold" if number == bold else "")
    return table


def _cell(text: str, gap: int) -> Padding:
    """Columns are one space apart; add ``gap`` before this one."""
    return Padding(Text(text), (0, 0, 0, gap))
