"""Timelines as CSV, one operator a line, for spreadsheets and pandas."""

from __future__ import annotations

from pipesim.files import StrPath, write_csv
from pipesim.timeline import Timeline

__all__ = ["COLUMNS", "save_timeline_csv"]

COLUMNS = ("device", "stage", "op", "microbatch", "start_ms", "end_ms")


def save_timeline_csv(timeline: Timeline, path: StrPath) -> None:
    """Write a timeline's operators, device by device in the order in which they ran.

    Times are in milliseconds with all their digits: reading them back as floats gives the
    same floats.

    Raises
    ------
    FormatError
        The file cannot be written.
    """
    rows = (
        (device, stage, kind, microbatch, float(start), float(end))
        for device, spans in enumerate(timeline.compute)
        for (kind, stage, microbatch), start, end in spans
    )
    write_csv(path, COLUMNS, (dict(zip(COLUMNS, row, strict=True)) for row in rows))
