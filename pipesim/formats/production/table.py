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

_MOST_ROWS = 5_000_000
"""What fits into 1 GiB with all that is made of it."""


def read_rows(path: StrPath) -> pd.DataFrame:
    """Read and check the rows of a production trace.

    Returns
    -------
    DataFrame
        The columns ``dp_rank, stage, rank, step, seq_id, mb_id, gmc`` as int32, ``optype`` as a
        categorical of texts, and ``start_ms`` and ``end_ms``.

    Raises
    ------
    FormatError
        The file cannot be read, is no parquet file or only a part of one, lacks a column,
        or a column holds what it should not; with the row, counted from 0; or it holds over
        5 million operations.
    """
    import pandas as pd
    import pyarrow  # type: ignore[import-untyped]

    file = os.fspath(path)
    content = read_bytes(path)
    names, count = _schema(content, file)
    missing = [column for column in COLUMNS if names.count(column) != 1]
    if missing:
        raise FormatError(f"is not a production trace: it lacks {', '.join(missing)}", file=file)
    if not count:
        raise FormatError("holds no operation", file=file)
    if count > _MOST_ROWS:
        raise FormatError(f"holds {count:,} operations: more than {_MOST_ROWS:,}", file=file)
    # One column after the other: together they may take several times what is kept of them.
    rows: dict[str, Any] = {
        column: _whole(_column(content, column, file), file) for column in _INDICES
    }
    rows["optype"] = _words(_column(content, "optype", file), file)
    start = _seconds(_column(content, "start_ts", file), file)
    column = _column(content, "duration", file)
    duration = _seconds(column, file)
    if (duration < 0).any():
        _fail(column, duration < 0, "must not be negative", file)
    rows["start_ms"], rows["end_ms"] = start * 1e3, (start + duration) * 1e3
    del content, column, start, duration
    del rows["mc"]  # gmc says the same of the whole model
    pyarrow.default_memory_pool().release_unused()
    return pd.DataFrame(rows, copy=False)


def _schema(content: bytes, file: str) -> tuple[list[str], int]:
    """Return the names of the columns, and the number of rows."""
    from pyarrow import parquet

    try:
        whole = parquet.ParquetFile(io.BytesIO(content))
        return list(whole.schema_arrow.names), whole.metadata.num_rows
    except MemoryError:
        raise
    except Exception as error:  # Arrow meets damage with errors of every kind
        raise _damaged(error, file) from None


def _column(content: bytes, name: str, file: str) -> pd.Series[Any]:
    import pandas as pd

    try:
        return pd.read_parquet(io.BytesIO(content), columns=[name])[name].reset_index(drop=True)
    except MemoryError:
        raise
    except Exception as error:  # so do pandas and Arrow here
        raise _damaged(error, file) from None


def _damaged(error: Exception, file: str) -> FormatError:
    reason = str(error).strip().splitlines()
    return FormatError(
        "is not a whole parquet file" + (f" ({reason[0][:120]})" if reason else ""), file=file
    )


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
    return column.to_numpy(np.int32)


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
    import pandas as pd

    try:
        if isinstance(column.dtype, pd.CategoricalDtype):  # as stored, and as it is to be
            codes, names = column.cat.codes.to_numpy(), column.cat.categories
        else:
            codes, names = pd.factorize(column.astype(object))
    except Exception:  # Arrow looks at the bytes of a text only now
        raise FormatError(f"{column.name} is not text in UTF-8", file=file) from None
    known = np.array([*(isinstance(name, str) for name in names), False])  # the last: missing
    if not known[codes].all():
        _fail(column, ~known[codes], "must be the name of an operation", file)
    return pd.Categorical.from_codes(codes, pd.Index([str(name) for name in names]))


def _fail(column: pd.Series[Any], wrong: Any, message: str, file: str) -> NoReturn:
    """Raise the error of the first wrong row."""
    row = int(np.flatnonzero(np.asarray(wrong))[0])
    raise FormatError(
        f"row {row}: {column.name} {message}, not {str(column.iloc[row])[:40]}", file=file
    )
