"""Runs of which every iteration was measured: a row each, and what their prediction is worth."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from pipesim.documents.rows import Row, count, positive, read_rows
from pipesim.errors import FormatError
from pipesim.fidelity.runs import MeasuredRun
from pipesim.fidelity.scores import Scores
from pipesim.files import StrPath

__all__ = [
    "FIRST_SLOW",
    "IterationScores",
    "LastIterations",
    "PredictedIterations",
    "elapsed_ms",
    "rows_of_runs",
]

FIRST_SLOW = 9
"""The first iteration that may be slow. The injector starts with the one before, and is late."""


@dataclass(frozen=True)
class LastIterations:
    """The last iterations of a part of a run: the healthy ones, or those under the delay.

    Attributes
    ----------
    first : int
        Number of the first one, counted from 1.
    elapsed_ms : tuple of float
        Their times.
    """

    first: int
    elapsed_ms: tuple[float, ...]

    @property
    def median_ms(self) -> float:
        """Their median."""
        return float(np.median(self.elapsed_ms))


def rows_of_runs(path: StrPath, columns: Collection[str]) -> list[list[Row]]:
    """Read a CSV with a row for each iteration of each run, and return the rows of each run.

    Rows are of one run where all these columns but ``iteration`` and ``elapsed_ms`` agree.

    Raises
    ------
    FormatError
        See :func:`.rows.read_rows`.
    """
    same = [column for column in columns if column not in ("iteration", "elapsed_ms")]
    runs: dict[tuple[str, ...], list[Row]] = {}
    for row in read_rows(path, columns):
        runs.setdefault(tuple(row.values[column].strip() for column in same), []).append(row)
    return list(runs.values())


def elapsed_ms(rows: Sequence[Row], first: int, last: int | None = None) -> LastIterations:
    """Return the times of the iterations ``first`` to ``last`` (default: all that follow).

    Raises
    ------
    FormatError
        One of them is missing, or iterations are not 1, 2, 3 …
    """
    numbers = [row.take("iteration", count, "a whole number above 0") for row in rows]
    if numbers != list(range(1, len(rows) + 1)):
        raise FormatError(
            "the iterations of a run must be in order, each once, counted from 1",
            file=rows[0].file,
            line=rows[0].line,
        )
    if len(rows) < (last or first):
        raise FormatError(
            f"a run of {len(rows)} iterations, but iteration {last or first} is needed",
            file=rows[0].file,
            line=rows[-1].line,
        )
    times = [row.take("elapsed_ms", positive, "a time above 0") for row in rows]
    return LastIterations(first, tuple(times[first - 1 : last]))


@dataclass(frozen=True)
class PredictedIterations:
    """A run, and its settled iterations as predicted.

    Attributes
    ----------
    measured : MeasuredRun
        The run; ``slow_ms`` is the median of its settled iterations.
    name : str
        The experiment that it belongs to.
    system : str
        What ran, as its file calls it.
    settled : LastIterations
        Its settled iterations, as measured.
    each_ms : tuple of float
        The same as predicted.
    spread : float, optional
        How far off predictions of runs whose delay does not change have been at most, 90 % of the
        time, as a part of them.
    medians_ms : tuple of float
        What their median may be instead, where what was injected is not known to the moment.
    """

    measured: MeasuredRun
    name: str
    system: str
    settled: LastIterations
    each_ms: tuple[float, ...]
    spread: float | None = None
    medians_ms: tuple[float, ...] = ()

    @property
    def setting(self) -> tuple[object, ...]:
        """What was the same for all systems that can be ranked against each other."""
        return (self.name, *self.measured.setting)

    @property
    def measured_ms(self) -> float:
        """The median of the settled iterations, as measured."""
        return self.settled.median_ms

    @property
    def predicted_ms(self) -> float:
        """The median of the settled iterations, as predicted."""
        return float(np.median(self.each_ms))

    @property
    def interval_ms(self) -> tuple[float, float] | None:
        """Where the measured median is 90 % of the time; None where that is not known."""
        if self.spread is None:
            return None
        possible_ms = (self.predicted_ms, *self.medians_ms)
        return min(possible_ms) * (1 - self.spread), max(possible_ms) * (1 + self.spread)

    @property
    def errors(self) -> list[float]:
        """The relative error of each settled iteration."""
        pairs = zip(self.each_ms, self.settled.elapsed_ms, strict=True)
        return [predicted / measured - 1 for predicted, measured in pairs]


class IterationScores(Scores[PredictedIterations]):
    """Runs predicted iteration by iteration. Errors are those of the medians of runs."""

    @property
    def each_mape(self) -> float:
        """Mean absolute relative error of single iterations."""
        return float(np.abs([error for one in self.predictions for error in one.errors]).mean())

    def as_dict(self) -> dict[str, object]:
        """The scores in JSON types."""
        return {
            "rows": [
                {
                    "name": one.name,
                    "model": one.measured.model,
                    "system": one.system,
                    "slow_links": one.measured.slow_links,
                    "delay_ms": one.measured.delay_ms,
                    "measured_ms": one.measured_ms,
                    "predicted_ms": one.predicted_ms,
                    "error": error,
                    "interval_ms": one.interval_ms,
                    "first_iteration": one.settled.first,
                    "iterations_measured_ms": list(one.settled.elapsed_ms),
                    "iterations_predicted_ms": list(one.each_ms),
                }
                for one, error in zip(self.predictions, self.errors, strict=True)
            ],
            **self.figures(),
            "worst": self.worst,
            "coverage": self.coverage,
            "mape_of_iterations": self.each_mape,
            "by_system": {name: one.figures() for name, one in self.by_system().items()},
            "ranking_agreement": self.ranking_agreement,
        }
