"""The rows of a production trace: a parquet file, read whole and checked column by column.

One row is one operation of one rank; start and duration are in seconds. This module knows
what a valid row is; :mod:`pipesim.formats.production.importer` knows what rows mean.
"""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from pipesim.errors import FormatError
from pipesim.files import StrPath, read_bytes

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["COLUMNS", "read_rows"]

_INDICES = ("dp_rank", "stage", "rank", "step", "seq_id", "mc", "mb_id", "gmc")
_TIMES = ("start_ts", "duration")
COLUMNS = (*_INDICES, "optype", *_TIMES)
"""The columns that a trace must have; it may have more."""

_LARGEST = 1e9
"""Of an index, and of a time in seconds: 31 years, a clock that counts from 1970 included."""


def read_rows(path: StrPath) -> pd.DataFrame:
    """Read and check the rows of a production trace.

    Returns
    -------
    DataFrame
        The columns ``dp_rank, stage, rank, step, seq_id, mc, mb_id, gmc`` as int64,
        ``optype`` as text, and ``start_ms`` and ``end_ms``.

    Raises
    ------
    FormatError
        The file cannot be read, is no parquet file or only a part of one, lacks a column,
        or a column holds what it should not; with the row, counted from 0.
    """
    import pandas as pd

    file = os.fspath(path)
    content = read_bytes(path)
    try:
        frame = pd.read_parquet(io.BytesIO(content))
    except MemoryError:
        raise
    except Exception as error:  # Arrow and pandas meet damage with errors of every kind
        reason = str(error).strip().splitlines()
        raise FormatError(
            "is not a whole parquet file" + (f" ({reason[0][:120]})" if reason else ""), file=file
        ) from None
    missing = [column for column in COLUMNS if list(frame.columns).count(column) != 1]
    if missing:
        raise FormatError(f"is not a production trace: it lacks {', '.join(missing)}", file=file)
    if frame.empty:
        raise FormatError("holds no operation", file=file)
    rows: dict[str, Any] = {column: _whole(frame[column], file) for column in _INDICES}
    rows["optype"] = _words(frame["optype"], file)
    start, duration = (_seconds(frame[column], file) for column in _TIMES)
    if (duration < 0).any():
        _fail(frame["duration"], duration < 0, "must not be negative", file)
    rows["start_ms"], rows["end_ms"] = start * 1e3, (start + duration) * 1e3
    return pd.DataFrame(rows)


def _whole(column: pd.Series[Any], file: str) -> Any:
    from pandas.api.types import is_integer_dtype

    if not is_integer_dtype(column.dtype):
        raise FormatError(f"{column.name} must hold whole numbers, not {column.dtype}", file=file)
    if column.isna().any():
        _fail(column, column.isna(), "is missing", file)
    # -1 stands for "does not apply".
    wrong = (column < -1) | (column > _LARGEST)
    if wrong.any():
        _fail(column, wrong, "must be a whole number from -1 to 10⁹", file)
    return column.to_numpy(np.int64)


def _seconds(column: pd.Series[Any], file: str) -> Any:
    from pandas.api.types import is_float_dtype, is_integer_dtype

    if not (is_float_dtype(column.dtype) or is_integer_dtype(column.dtype)):
        raise FormatError(f"{column.name} must hold seconds, not {column.dtype}", file=file)
    values = column.to_numpy(np.float64, na_value=np.nan)
    wrong = ~(np.abs(values) <= 10 * _LARGEST)
    if wrong.any():
        _fail(column, wrong, "must be a time in seconds", file)
    return values


def _words(column: pd.Series[Any], file: str) -> Any:
    try:
        words = column.to_numpy(object)
    except Exception:  # Arrow looks at the bytes of a text only now
        raise FormatError(f"{column.name} is not text in UTF-8", file=file) from None
    wrong = [not isinstance(word, str) for word in words]
    if any(wrong):
        _fail(column, wrong, "must be the name of an operation", file)
    return words


def _fail(column: pd.Series[Any], wrong: Any, message: str, file: str) -> NoReturn:
    """Raise the error of the first wrong row."""
    row = int(np.flatnonzero(np.asarray(wrong))[0])
    raise FormatError(
        f"row {row}: {column.name} {message}, not {str(column.iloc[row])[:40]}", file=file
    )
