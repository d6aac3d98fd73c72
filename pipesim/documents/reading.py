"""Checked reading of parsed TOML and JSON: every value knows its place in the file.

A *parser* turns a value and its :class:`Place` into what it stands for, or raises a
:class:`~pipesim.errors.FormatError` that names the place. :class:`Table` is one of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, TypeAlias, TypeVar

from pipesim.actions import Action, Op, parse_action
from pipesim.errors import FormatError, ScheduleError

__all__ = [
    "Parser",
    "Place",
    "Table",
    "action",
    "by_name",
    "list_of",
    "number",
    "operator",
    "text",
    "truth",
    "whole",
]

T = TypeVar("T")
D = TypeVar("D")


class Place(NamedTuple):
    """A file and the key path of a value in it.

    Examples
    --------
    >>> Place("plan.json").at("orders").at(1).at(3).path
    'orders[1][3]'
    """

    file: str
    path: str = ""

    def at(self, key: str | int) -> Place:
        """Return the place of a value inside this one."""
        if isinstance(key, int):
            return self._replace(path=f"{self.path}[{key}]")
        return self._replace(path=f"{self.path}.{key}" if self.path else key)

    def error(self, message: str) -> FormatError:
        """Return the error that something is wrong here."""
        return FormatError(f"{self.path}: {message}" if self.path else message, file=self.file)


Parser: TypeAlias = Callable[[object, Place], T]


def text(value: object, place: Place) -> str:
    """Parse a string."""
    if not isinstance(value, str):
        raise place.error(f"must be text, not {_shown(value)}")
    return value


def truth(value: object, place: Place) -> bool:
    """Parse true or false."""
    if not isinstance(value, bool):
        raise place.error(f"must be true or false, not {_shown(value)}")
    return value


def whole(value: object, place: Place) -> int:
    """Parse a whole number from 0 to 2⁵³."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 2**53:
        raise place.error(f"must be a whole number of at least 0, not {_shown(value)}")
    return value


def number(value: object, place: Place) -> float:
    """Parse a finite number."""
    try:
        if isinstance(value, int | float) and not isinstance(value, bool):
            parsed = float(value)
            if math.isfinite(parsed):
                return parsed
    except OverflowError:  # an integer of hundreds of digits
        pass
    hint = "; leave the key out where there is no limit" if value == math.inf else ""
    raise place.error(f"must be a finite number, not {_shown(value)}{hint}")


def operator(value: object, place: Place) -> Op:
    """Parse the text form of an operator, such as ``0F3``."""
    try:
        return Op.parse(text(value, place))
    except ScheduleError as error:
        raise place.error(str(error)) from None


def action(value: object, place: Place) -> Action:
    """Parse the text form of an operator, such as ``0F3``, or of another action of a device."""
    try:
        return parse_action(text(value, place))
    except ScheduleError as error:
        raise place.error(str(error)) from None


def list_of(parse: Parser[T]) -> Parser[list[T]]:
    """Return the parser of a list whose items ``parse`` takes."""

    def parse_list(value: object, place: Place) -> list[T]:
        if not isinstance(value, list):
            raise place.error(f"must be a list, not {_shown(value)}")
        return [parse(item, place.at(index)) for index, item in enumerate(value)]

    return parse_list


def by_name(parse: Parser[T]) -> Parser[dict[str, T]]:
    """Return the parser of a table with any keys, whose values ``parse`` takes."""

    def parse_table(value: object, place: Place) -> dict[str, T]:
        table = Table(value, place)
        assert isinstance(value, dict)
        return {name: table.take(name, parse) for name in value}

    return parse_table


class Table:
    """A mapping whose keys are taken one by one; :meth:`close` refuses those left over.

    Parameters
    ----------
    value : object
        What the file holds there.
    place : Place
        Where that is.

    Raises
    ------
    FormatError
        The value is not a mapping.

    Examples
    --------
    >>> table = Table({"stages": 4, "color": "red"}, Place("a.toml"))
    >>> table.take("stages", whole)
    4
    >>> table.close()
    Traceback (most recent call last):
        ...
    pipesim.errors.FormatError: a.toml: color: unknown key (known: stages)
    """

    def __init__(self, value: object, place: Place) -> None:
        if not isinstance(value, dict):
            raise place.error(f"must be a table, not {_shown(value)}")
        self._left = dict(value)
        self._known: list[str] = []
        self.place = place

    def has(self, key: str) -> bool:
        """Whether the key is there and not yet taken."""
        return key in self._left

    def take(self, key: str, parse: Parser[T]) -> T:
        """Take a key that must be there."""
        self._known.append(key)
        if key not in self._left:
            raise self.place.error(f"the key {self.place.at(key).path} is missing")
        return parse(self._left.pop(key), self.place.at(key))

    def take_or(self, key: str, parse: Parser[T], default: D) -> T | D:
        """Take a key that may be there."""
        self._known.append(key)
        return self.take(key, parse) if key in self._left else default

    def take_head(self, name: str, version: int) -> None:
        """Take ``format`` and ``version``, which say what the file is."""
        if not self.has("format"):
            raise self.place.error(f'is not a {name} file: it has no format = "{name}"')
        given = self.take("format", text)
        if given != name:
            raise self.place.at("format").error(f"must be {name!r}, not {_shown(given)}")
        number = self.take("version", whole)
        if number != version:
            raise self.place.at("version").error(
                f"this release reads version {version}, not {number}"
            )

    def close(self) -> None:
        """Raise :class:`FormatError` if a key was not taken."""
        from difflib import get_close_matches

        for key in self._left:
            close = get_close_matches(key, self._known, n=1)
            known = ", ".join(dict.fromkeys(self._known)) or "none"
            hint = f"did you mean {close[0]}?" if close else f"known: {known}"
            raise self.place.at(key).error(f"unknown key ({hint})")


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, int) and not -(10**30) < value < 10**30:
        return "a number that long"
    shown = repr(value)
    return shown if len(shown) <= 40 else shown[:37] + "…"
