"""A table, as CSV, read strictly: a wrong value is named with its file, line and column.

A *parser* turns a value's text into what it stands for, or raises ValueError.
"""

from __future__ import annotations

import csv
import io
import math
import os
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pipesim.errors import FormatError
from pipesim.files import StrPath, read_text
from pipesim.scenario import LARGEST

__all__ = [
    "Row",
    "count",
    "name",
    "not_negative",
    "one_of",
    "positive",
    "read_rows",
    "rows_of",
    "whole",
]

T = TypeVar("T")


@dataclass(frozen=True)
class Row:
    """One line of a CSV.

    Attributes
    ----------
    values : dict of str to str
        The text of each column.
    file : str
        Where it was read.
    line : int
        Its last line in there, counted from 1.
    """

    values: dict[str, str]
    file: str
    line: int

    @property
    def place(self) -> str:
        """File and line, for messages."""
        return f"{self.file}:{self.line}"

    def take(self, column: str, parse: Callable[[str], T], what: str) -> T:
        """Parse a value.

        Raises
        ------
        FormatError
            It is not ``what`` it must be.
        """
        text = self.values[column].strip()
        try:
            return parse(text)
        except ValueError:
            raise FormatError(
                f"{column} must be {what}, not {text[:40]!r}", file=self.file, line=self.line
            ) from None


def read_rows(path: StrPath, columns: Collection[str]) -> list[Row]:
    """Read a CSV that has at least these columns, and at least one row.

    Raises
    ------
    FormatError
        The file cannot be read, is no CSV, lacks a column or has one twice, or a line has too many
        or too few values.
    """
    return rows_of(read_text(path), columns, file=os.fspath(path))


def rows_of(
    text: str,
    columns: Collection[str] = (),
    *,
    file: str,
    header: Sequence[str] | None = None,
    delimiter: str = ",",
) -> list[Row]:
    """Read the rows of a text, as :func:`read_rows` does those of a file.

    Parameters
    ----------
    text : str
        The content of the file.
    columns : collection of str
        Those that must be there.
    file : str
        The file, for errors.
    header : sequence of str, optional
        The columns, where the text does not begin with a line that names them.
    delimiter : str
        What stands between values.
    """
    reader = csv.DictReader(io.StringIO(text, newline=""), header, delimiter=delimiter, strict=True)
    names = "the header" if header is None else delimiter.join(header)
    rows = []
    try:
        known = reader.fieldnames
        if not known:
            raise FormatError("is empty", file=file, line=1)
        missing = [column for column in columns if column not in known]
        if missing:
            raise FormatError(f"has no column {missing[0]}", file=file, line=1)
        if twice := [column for column in known if known.count(column) > 1]:
            raise FormatError(f"has several columns {twice[0][:40]}", file=file, line=1)
        for values in reader:
            if None in values or None in values.values():
                raise FormatError(
                    f"does not have as many values as {names}", file=file, line=reader.line_num
                )
            rows.append(Row(values, file, reader.line_num))
    except csv.Error as error:
        raise FormatError(f"is not CSV: {error}", file=file, line=reader.line_num) from None
    if not rows:
        what = "has a header, but no rows" if header is None else "is empty"
        raise FormatError(what, file=file, line=max(1, reader.line_num))
    return rows


def name(text: str) -> str:
    """Parse a name, which is not empty."""
    if not text:
        raise ValueError
    return text


def one_of(known: Collection[str]) -> Callable[[str], str]:
    """Return the parser of one of these words."""

    def parse(text: str) -> str:
        if text not in known:
            raise ValueError
        return text

    return parse


def whole(text: str) -> int:
    """Parse a whole number of up to six digits."""
    if not re.fullmatch(r"[0-9]{1,6}", text):
        raise ValueError
    return int(text)


def count(text: str) -> int:
    """Parse such a number above 0."""
    if not (number := whole(text)):
        raise ValueError
    return number


def not_negative(text: str) -> float:
    """Parse a number from 0 to 10¹⁵, as any program writes it."""
    number = float(text)
    if "_" in text or not text.isascii() or not (math.isfinite(number) and 0 <= number <= LARGEST):
        raise ValueError
    return number


def positive(text: str) -> float:
    """Parse such a number above 0."""
    if not (number := not_negative(text)):
        raise ValueError
    return number
