"""Measured throughput beside profiled times, predicted from the profile and one row of each model.

The table of "Zero Bubble Pipeline Parallelism" (Qi et al., arXiv 2401.10241) has for each model the
times of F, B, W and a message, as the authors' profiler measured them, and what four schedules
reached on A100 GPUs. In a run everything takes longer than in the profile, by the same part for
any number of micro-batches: up to 8 % in these tables. One row of a model says by how much.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from pipesim.documents.rows import Row, count, name, not_negative, one_of, positive, read_rows
from pipesim.engine import simulate
from pipesim.errors import ScenarioError, ScheduleError
from pipesim.fidelity.intervals import around, spread
from pipesim.fidelity.scores import Scores
from pipesim.files import StrPath
from pipesim.scenario import Scenario
from pipesim.transport import Exchange, Nccl
from planners import plan

__all__ = [
    "SYSTEMS",
    "Throughput",
    "ThroughputPrediction",
    "ThroughputScores",
    "load_throughput",
    "predict_throughput",
    "profiled_ms",
]

SYSTEMS = {
    "1F1B": ("1f1b", 0.0),
    "1F1B-I": ("interleaved-1f1b", 0.0),
    "ZB-H1": ("zb-h1", 0.0),
    "ZB-H2": ("zb-h2", 0.0),
    "ZB-1p": ("zb-auto", 1.0),
    "ZB-2p": ("zb-auto", 2.0),
}
"""The schedules: who plans them, and the activations that fit, in those of 1F1B (0: all)."""


@dataclass(frozen=True)
class Throughput:
    """One schedule of one model. Times in milliseconds.

    Attributes
    ----------
    model, system : str
        What ran, and how (one of ``SYSTEMS``).
    layers, stages, microbatch_size, microbatches : int
        Shape; stages on as many GPUs. Where the layers do not fill the stages, the first and the
        last one, which embed and classify, have fewer.
    forward_ms, backward_ms, weight_ms, comm_ms : float
        Profiled times of a stage and of a message.
    iteration_ms : float or None
        The measured time of an iteration; None: not measured.
    place : str
        File and line, for messages.
    """

    model: str
    system: str
    layers: int
    stages: int
    microbatch_size: int
    microbatches: int
    forward_ms: float
    backward_ms: float
    weight_ms: float
    comm_ms: float
    iteration_ms: float | None
    place: str = ""


def load_throughput(path: StrPath) -> tuple[Throughput, ...]:
    """Read a CSV of measured throughput; columns that are not needed are ignored.

    Raises
    ------
    FormatError
        The file cannot be read, lacks a column, or has a value that cannot be; the error
        names line and, for values, the column.
    """
    return tuple(_throughput(row) for row in read_rows(path, _COLUMNS))


_COLUMNS = (
    "model",
    "layers",
    "stages",
    "microbatch_size",
    "microbatches",
    "system",
    "forward_ms",
    "backward_ms",
    "weight_ms",
    "comm_ms",
    "iteration_ms",
)


def _throughput(row: Row) -> Throughput:
    def number(column: str) -> int:
        return row.take(column, count, "a whole number above 0")

    def time(column: str) -> float:
        return row.take(column, positive, "a time above 0")

    return Throughput(
        model=row.take("model", name, "a name"),
        system=row.take("system", one_of(SYSTEMS), f"one of {', '.join(SYSTEMS)}"),
        layers=number("layers"),
        stages=number("stages"),
        microbatch_size=number("microbatch_size"),
        microbatches=number("microbatches"),
        forward_ms=time("forward_ms"),
        backward_ms=time("backward_ms"),
        weight_ms=time("weight_ms"),
        comm_ms=row.take("comm_ms", not_negative, "a time of at least 0"),
        iteration_ms=row.take(
            "iteration_ms",
            lambda text: positive(text) if text else None,
            "a time above 0, or empty where nothing was measured",
        ),
        place=row.place,
    )


@dataclass(frozen=True)
class ThroughputPrediction:
    """What the model says of one schedule.

    Attributes
    ----------
    measured : Throughput
        The row.
    measured_ms : float
        Its measured iteration time.
    factor : float
        How much longer a run of this model takes than its profile.
    predicted_ms : float
        Its predicted iteration time.
    scaled_on : Throughput
        The row of the same model that the factor is from.
    spread : float, optional
        How far off predictions of other models are at most, 90 % of the time, as a part of it.
    """

    measured: Throughput
    measured_ms: float
    factor: float
    predicted_ms: float
    scaled_on: Throughput
    spread: float | None = None

    @property
    def interval_ms(self) -> tuple[float, float] | None:
        """Where the measured time is 90 % of the time; None where no other model tells it."""
        return around(self.predicted_ms, self.spread)

    @property
    def system(self) -> str:
        """What ran."""
        return self.measured.system

    @property
    def setting(self) -> tuple[str, int, int, int]:
        """What was the same for all systems that can be ranked against each other."""
        run = self.measured
        return run.model, run.stages, run.microbatch_size, run.microbatches


class ThroughputScores(Scores[ThroughputPrediction]):
    """Predictions of measured throughput, and what they are worth."""

    @property
    def rounding(self) -> float:
        """How far three digits of samples a GPU and second may be off at most, relative."""
        return max(_rounding(one.measured, one.measured_ms) for one in self.predictions)

    @property
    def scaled_on(self) -> dict[str, tuple[Throughput, float]]:
        """The row that each model was scaled on, and its factor."""
        return {one.measured.model: (one.scaled_on, one.factor) for one in self.predictions}

    def as_dict(self) -> dict[str, object]:
        """The scores in JSON types."""
        return {
            "rows": [
                {
                    "model": one.measured.model,
                    "microbatches": one.measured.microbatches,
                    "system": one.system,
                    "measured_ms": one.measured_ms,
                    "predicted_ms": one.predicted_ms,
                    "error": error,
                    "interval_ms": one.interval_ms,
                }
                for one, error in zip(self.predictions, self.errors, strict=True)
            ],
            **self.figures(),
            "worst": self.worst,
            "coverage": self.coverage,
            "rounding": self.rounding,
            "scaled_on": {
                model: {
                    "system": first.system,
                    "microbatches": first.microbatches,
                    "factor": factor,
                }
                for model, (first, factor) in self.scaled_on.items()
            },
            "by_system": {name: one.figures() for name, one in self.by_system().items()},
            "ranking_agreement": self.ranking_agreement,
        }


def _rounding(measured: Throughput, iteration_ms: float) -> float:
    """Half a unit in the third digit of samples a GPU and second, as a part of them."""
    samples = measured.microbatch_size * measured.microbatches / measured.stages
    per_second = 1000 * samples / iteration_ms
    return 0.005 * 10.0 ** math.floor(math.log10(per_second)) / per_second


def predict_throughput(rows: Sequence[Throughput]) -> ThroughputScores:
    """Predict each measured row from its profile and one other row of its model.

    That row is the first system of ``SYSTEMS`` that was measured, with the fewest micro-batches. A
    model's other rows take as much longer than their profiles say as that one did. It is not
    among the predictions itself.

    Raises
    ------
    ScenarioError
        No model has two measured rows, or a row's shape has no schedule.
    """
    measured = [(row, row.iteration_ms) for row in rows if row.iteration_ms is not None]
    order = list(SYSTEMS)
    firsts = sorted(measured, key=lambda one: (order.index(one[0].system), one[0].microbatches))
    scaling = {row.model: (row, time_ms) for row, time_ms in reversed(firsts)}
    factors = {model: time_ms / profiled_ms(row) for model, (row, time_ms) in scaling.items()}
    predictions = [
        ThroughputPrediction(
            row, time_ms, factors[row.model], factors[row.model] * profiled_ms(row), first
        )
        for row, time_ms in measured
        if row is not (first := scaling[row.model][0])
    ]
    if not predictions:
        raise ScenarioError("no model has two measured rows, one to scale on and one to predict")
    return ThroughputScores(_with_spreads(predictions))


def _with_spreads(predictions: Sequence[ThroughputPrediction]) -> list[ThroughputPrediction]:
    """Add how far off other models were: those among these predictions, and those known before."""
    errors: dict[str, list[float]] = {}
    for one in predictions:
        errors.setdefault(one.measured.model, []).append(one.measured_ms / one.predicted_ms - 1)
    known: dict[str, Sequence[float]] = {**_ERRORS, **errors}
    return [
        replace(
            one,
            spread=spread(
                error for model in known if model != one.measured.model for error in known[model]
            ),
        )
        for one in predictions
    ]


_ERRORS: dict[str, Sequence[float]] = {
    "1.5B": (
        *(-0.0005, 0.0024, 0.0086, 0.0054, -0.0138),
        *(0.019, 0.0213, 0.0255, 0.0303, 0.0514, 0.0452),
    ),
    "14.6B": (
        *(0.0009, 0.002, 0.0311, 0.0243, 0.0155),
        *(0.0054, 0.0061, 0.007, 0.0307, 0.0233, 0.013),
    ),
}
"""Measured over predicted − 1 of the rows of ``traces/zero_bubble_throughput.csv``, by model.

They make no prediction better; they say how far off those of a single other model may be.
"""


@cache
def profiled_ms(row: Throughput) -> float:
    """Return what an iteration takes if everything takes what the profile says.

    All stages take the profiled times. 1F1B and interleaved 1F1B, of one layer a chunk, run fused
    backwards of B + W over Megatron's blocking exchanges; each batch takes the profiled time of a
    message. The others are planned with it and run over NCCL. Their iteration is the longest stage
    span, not the makespan: with their optimizer's post-validation no stage waits for the last one
    before it begins the next iteration.

    Raises
    ------
    ScenarioError
        The row's shape has no schedule.

    Examples
    --------
    Two stages, one micro-batch, and messages of 1 ms:

    >>> shape = {"layers": 2, "stages": 2, "microbatch_size": 1, "microbatches": 1}
    >>> times = {"forward_ms": 2, "backward_ms": 3, "weight_ms": 1, "comm_ms": 1}
    >>> for system in ("1F1B", "ZB-1p"):
    ...     print(profiled_ms(Throughput("tiny", system, **shape, **times, iteration_ms=None)))
    14.0
    13.0
    """
    planner, limit = SYSTEMS[row.system]
    scenario = Scenario(
        stages=row.stages,
        microbatches=row.microbatches,
        forward_ms=row.forward_ms,
        backward_ms=row.backward_ms,
        weight_ms=row.weight_ms,
        activation_limit=limit * row.stages or math.inf,
    )
    if row.system == "1F1B-I":
        if row.layers <= row.stages:
            raise ScenarioError(f"{row.place}: 1F1B-I needs more layers than stages")
        if row.microbatches % row.stages:
            raise ScenarioError(
                f"{row.place}: 1F1B-I needs a multiple of {row.stages} micro-batches"
            )
        scenario = scenario.interleaved(-(-row.layers // row.stages))
    try:
        schedule = plan(scenario.with_message_cost(row.comm_ms), planner)
    except ScheduleError as error:
        raise ScenarioError(f"{row.place}: {error}") from None
    if row.system.startswith("1F1B"):
        return simulate(scenario, schedule, Exchange(base_ms=row.comm_ms)).iteration_ms
    return simulate(scenario, schedule, Nccl(base_ms=row.comm_ms)).stage_span_ms
