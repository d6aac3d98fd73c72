"""Strict JSON: the part of JSON that our files may use, with the place of every error."""

from __future__ import annotations

import json
import math
from typing import NoReturn

from pipesim.errors import FormatError

__all__ = ["parse_json"]


def parse_json(content: str, file: str) -> object:
    """Parse a text; refuse NaN, infinities and repeated keys.

    Raises
    ------
    FormatError
        It is not JSON; with line and column, where known.
    """
    try:
        value = json.loads(
            content,
            object_pairs_hook=_unique,
            parse_constant=_not_finite,
            parse_float=_finite,
        )
        # A lone surrogate escape is JSON, but no text that could be shown or saved.
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except json.JSONDecodeError as error:
        raise FormatError(
            f"not JSON: {error.msg}", file=file, line=error.lineno, column=error.colno
        ) from None
    except RecursionError:
        raise FormatError("is nested too deeply", file=file) from None
    except UnicodeEncodeError:
        raise FormatError("not JSON: a string holds a lone surrogate", file=file) from None
    except ValueError as error:
        raise FormatError(f"not JSON: {error}", file=file) from None
    return value


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result: dict[str, object] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"the key {key!r} is given twice")
        result[key] = value
    return result


def _not_finite(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{digits} is too large a number")
    return value
