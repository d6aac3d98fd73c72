"""Files, read as text or not at all, and written as a whole or not at all."""

from __future__ import annotations

import codecs
import csv
import io
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from pipesim.errors import FormatError

__all__ = ["StrPath", "read_bytes", "read_text", "write_bytes", "write_csv", "write_text"]

StrPath: TypeAlias = str | os.PathLike[str]

_FEW_DAMAGED = 0.01
"""Of a text's characters; what has more is no text."""

_OTHERWISE = {
    b"\x1f\x8b": "packed by gzip: unpack it first",
    b"PK\x03\x04": "packed by zip: unpack it first",
    b"\xfd7zXZ": "packed by xz: unpack it first",
    b"\x28\xb5\x2f\xfd": "packed by zstd: unpack it first",
    codecs.BOM_UTF16_LE: "in UTF-16: convert it first",
    codecs.BOM_UTF16_BE: "in UTF-16: convert it first",
}
"""How files begin that are something else."""


def read_bytes(path: StrPath) -> bytes:
    """Return the content of a file.

    Raises
    ------
    FormatError
        The file cannot be read: it is missing, a folder, or forbidden.
    """
    file = os.fspath(path)
    try:
        return Path(file).read_bytes()
    except (OSError, ValueError) as error:
        raise FormatError(f"cannot be read: {_reason(error)}", file=file) from None


def read_text(path: StrPath, *, damaged: bool = False) -> str:
    r"""Return the content of a UTF-8 file, without a byte order mark, line ends as they are.

    Parameters
    ----------
    path : path
        The file.
    damaged : bool
        Whether a few bytes may be none of UTF-8, as in a log that many programs write to at once:
        they are read as U+FFFD.

    Raises
    ------
    FormatError
        The file cannot be read (see :func:`read_bytes`), or is not UTF-8; then the error
        names line and column, or what the file is instead.
    """
    file, content = os.fspath(path), read_bytes(path)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        for start, what in _OTHERWISE.items():
            if content.startswith(start):
                raise FormatError(f"is not text in UTF-8, but {what}", file=file) from None
        text = content.decode("utf-8-sig", errors="replace")
        if damaged and text.count("\ufffd") <= _FEW_DAMAGED * len(text):
            return text
        line, column = position(error.object[: error.start].decode("utf-8"), error.start)
        raise FormatError("is not text in UTF-8", file=file, line=line, column=column) from None


def position(text: str, offset: int) -> tuple[int, int]:
    r"""Return the 1-based line and column of a place in a text; past its end, the end.

    Examples
    --------
    >>> position("ab\ncd", 4)
    (2, 2)
    """
    before = text[:offset]
    return before.count("\n") + 1, len(before) - before.rfind("\n")


def write_text(path: StrPath, text: str) -> None:
    """Write a text as UTF-8, see :func:`write_bytes`."""
    try:
        content = text.encode("utf-8")
    except UnicodeEncodeError:
        raise FormatError(
            "cannot be written: a name holds a lone surrogate", file=os.fspath(path)
        ) from None
    write_bytes(path, content)


def write_csv(
    path: StrPath, columns: Sequence[str], records: Iterable[Mapping[str, object]]
) -> None:
    """Write records as CSV, see :func:`write_bytes`.

    Parameters
    ----------
    path : path
        The file.
    columns : sequence of str
        The header: which items of a record to write, in that order.
    records : iterable of mapping
        In JSON types. A list becomes its items with spaces between, None nothing; numbers
        keep all their digits.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for record in records:
        items = (record[column] for column in columns)
        writer.writerow(
            " ".join(map(str, item)) if isinstance(item, list) else item for item in items
        )
    write_text(path, text.getvalue())


def write_bytes(path: StrPath, content: bytes) -> None:
    """Write a file so that nobody ever sees half of it.

    The content goes to a new file in the same folder, which then replaces the old one and keeps
    its permissions. What is not a regular file (a pipe, a terminal) is written to
    directly.

    Raises
    ------
    FormatError
        The folder is missing, the path is a folder, or writing is forbidden or fails. The
        old file is still there.
    """
    file = os.fspath(path)
    try:
        target = Path(file)
        if target.is_dir():
            raise IsADirectoryError(None, "it is a folder")
        if not target.parent.is_dir():
            raise FileNotFoundError(None, f"there is no folder {Path(file).parent}")
        if target.exists() and not target.is_file():
            target.write_bytes(content)
        else:
            _replace(target.resolve(), content)
    except (OSError, ValueError, RuntimeError) as error:
        raise FormatError(f"cannot be written: {_reason(error)}", file=file) from None


def _replace(target: Path, content: bytes) -> None:
    beside = target.with_name(f".pipesim-{os.urandom(8).hex()}")
    try:
        with beside.open("xb") as stream:
            stream.write(content)
        if target.exists():
            shutil.copymode(target, beside)
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)


def _reason(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)
