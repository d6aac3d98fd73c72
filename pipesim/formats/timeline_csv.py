"""Timelines as CSV, one operator a line, for spreadsheets and pandas."""

from __future__ import annotations

import csv
import io

from pipesim.files import StrPath, write_text
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
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(COLUMNS)
    for device, spans in enumerate(timeline.compute):
        for (kind, stage, microbatch), start, end in spans:
            writer.writerow((device, stage, kind, microbatch, float(start), float(end)))
    write_text(path, lines.getvalue())
