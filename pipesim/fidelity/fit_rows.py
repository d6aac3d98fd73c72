"""The rows that testbeds are fitted to, from files of several kinds."""

from __future__ import annotations

import os
from collections.abc import Sequence

from pipesim.errors import FormatError
from pipesim.fidelity.delegation import TESTBED, load_delegation
from pipesim.fidelity.kinds import kind_of
from pipesim.fidelity.runs import MeasuredRun, healthy_of, load_runs
from pipesim.files import StrPath

__all__ = ["load_fit_rows"]


def load_fit_rows(paths: Sequence[StrPath]) -> tuple[MeasuredRun, ...]:
    """Read measured runs, and runs that show what delegation costs as such.

    Of the latter, those without a healthy iteration get that of their model in the former, and are
    left out where there is none.

    Raises
    ------
    FormatError
        A file is of another kind, or has a value that cannot be.
    """
    kinds = {path: kind_of(path) for path in paths}
    for path, kind in kinds.items():
        if kind not in ("runs", "delegation"):
            raise FormatError(f"holds {kind}, to which nothing is fitted", file=os.fspath(path))
    runs = [run for path, kind in kinds.items() if kind == "runs" for run in load_runs(path)]
    healthy_ms = healthy_of(run for run in runs if run.testbed == TESTBED)
    delegation = [
        one.with_healthy(healthy_ms)
        for path, kind in kinds.items()
        if kind == "delegation"
        for one in load_delegation(path)
    ]
    return (*runs, *(one.measured for one in delegation if one.has_healthy))
