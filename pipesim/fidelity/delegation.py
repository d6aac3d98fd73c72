"""Runs that show what delegation costs: all transfers delegated, no delay or one on a single link.

``overhead`` runs delegate from the start, so none of their iterations tells how long one takes over
NCCL: that is taken from other runs of the model. ``dpvspp`` runs have two data-parallel ranks and a
link that becomes slow; their healthy iterations tell it. In runs of several data-parallel ranks
iterations become longer and longer, before the delay as well as after it, which nothing here
explains: the last two healthy ones are taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipesim.documents.rows import Row, count, name, not_negative, one_of, positive
from pipesim.errors import FormatError, ScenarioError
from pipesim.fidelity.iterations import (
    FIRST_SLOW,
    IterationScores,
    LastIterations,
    PredictedIterations,
    elapsed_ms,
    rows_of_runs,
)
from pipesim.fidelity.prediction import predict
from pipesim.fidelity.runs import MeasuredRun
from pipesim.fidelity.testbed import Testbed
from pipesim.files import StrPath

__all__ = ["COLUMNS", "TESTBED", "DelegationRun", "load_delegation", "predict_delegation"]

COLUMNS = (
    "experiment",
    "model",
    "stages",
    "microbatches",
    "dp",
    "gpus_per_node",
    "message_mib",
    "system",
    "slow_links",
    "delay_ms",
    "iteration",
    "elapsed_ms",
)

ALL_DELEGATED = "all-cpu"
"""The system that delegates from the start, with the plan of ``pipemorph-cpu``."""

FIRST_SETTLED = 5
"""Of such a run. Two iterations set it up, two more are shorter in every run of these testbeds."""

DELEGATES = {ALL_DELEGATED: 1, "pipemorph-cpu": 3, "pipemorph": 3}
"""Delegates for each direction in the published experiments."""

TESTBED = "h800"
"""Where all of these ran; the file does not say it."""


@dataclass(frozen=True)
class DelegationRun:
    """One run.

    Attributes
    ----------
    measured : MeasuredRun
        Its shape, delay and healthy iteration, which is not a number where it has none.
    experiment, system : str
        As the file calls them.
    settled : LastIterations
        The iterations to predict: all that are neither set-up nor the first with a delay.
    """

    measured: MeasuredRun
    experiment: str
    system: str
    settled: LastIterations

    @property
    def has_healthy(self) -> bool:
        """Whether its healthy iteration is known."""
        return not np.isnan(self.measured.healthy_ms)

    def with_healthy(self, healthy_ms: Mapping[str, float]) -> DelegationRun:
        """Return the run; if it has no healthy iteration, with its model's, where that is known."""
        known = healthy_ms.get(self.measured.model)
        if self.has_healthy or known is None:
            return self
        return replace(self, measured=replace(self.measured, healthy_ms=known))


def load_delegation(path: StrPath) -> tuple[DelegationRun, ...]:
    """Read a CSV with a row for each iteration of each run.

    Raises
    ------
    FormatError
        The file cannot be read, lacks a column, or has a value that cannot be; a run lacks
        iterations.
    """
    return tuple(map(_run, rows_of_runs(path, COLUMNS)))


def _run(rows: Sequence[Row]) -> DelegationRun:
    row = rows[0]
    system = row.take("system", one_of(DELEGATES), f"one of {', '.join(DELEGATES)}")
    stages = row.take("stages", count, "a whole number above 0")
    always = system == ALL_DELEGATED
    settled = elapsed_ms(rows, FIRST_SETTLED if always else FIRST_SLOW + 1)
    healthy = np.nan if always else elapsed_ms(rows, FIRST_SLOW - 2, FIRST_SLOW - 1).median_ms
    links = row.take(
        "slow_links",
        lambda text: tuple(_link(part, stages) for part in text.split()),
        f"links from 0 to {stages - 2}",
    )
    delay_ms = row.take("delay_ms", not_negative, "a time of at least 0")
    if delay_ms and not links:
        raise FormatError(
            f"delay_ms is {delay_ms:g}, but slow_links names no link", file=row.file, line=row.line
        )
    measured = MeasuredRun(
        testbed=TESTBED,
        model=row.take("model", name, "a name"),
        system="pipemorph-cpu" if always else system,
        stages=stages,
        microbatches=row.take("microbatches", count, "a whole number above 0"),
        gpus_per_node=row.take("gpus_per_node", count, "a whole number above 0"),
        message_bytes=row.take("message_mib", positive, "a size above 0") * 2**20,
        slow_links=row.values["slow_links"].strip(),
        slow_sends=tuple(end for i in links for end in ((i, i + 1), (i + 1, i))),
        delay_ms=delay_ms,
        delegates=DELEGATES[system],
        healthy_ms=float(healthy),
        slow_ms=settled.median_ms,
        place=row.place,
    )
    return DelegationRun(measured, row.take("experiment", name, "a name"), system, settled)


def _link(text: str, stages: int) -> int:
    link = int(text)
    if not 0 <= link < stages - 1:
        raise ValueError
    return link


def predict_delegation(
    runs: Sequence[DelegationRun], testbed: Callable[[MeasuredRun], Testbed]
) -> IterationScores:
    """Predict the settled iterations of runs: all those of a run alike.

    Runs whose healthy iteration is not known are left out.

    Raises
    ------
    ScenarioError
        It is known of none, or no operator times give it.
    """
    known = [one for one in runs if one.has_healthy]
    if not known:
        raise ScenarioError(f"{runs[0].measured.place}: no healthy iteration is known of any run")
    predictions = []
    for one in known:
        predicted = predict(one.measured, testbed(one.measured))
        each = (predicted.predicted_ms,) * len(one.settled.elapsed_ms)
        predictions.append(
            PredictedIterations(
                one.measured, one.experiment, one.system, one.settled, each, predicted.spread
            )
        )
    return IterationScores(predictions)
