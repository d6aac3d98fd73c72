"""Runs under delays that change all the time, predicted iteration by iteration.

The injector of the published runs is a thread that starts with iteration 8 and sets the delays of
a trace at their times, as far as it is awake: it sleeps 0.1 s at a time. Senders look at what is
set only now and then: a rank before every 64th of its NCCL sends, a delegate before each of its.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipesim.delays import DelayTrace
from pipesim.documents.rows import Row, count, name, one_of
from pipesim.engine import Injection, run
from pipesim.errors import FormatError, ScenarioError
from pipesim.fidelity.iterations import (
    FIRST_SLOW,
    IterationScores,
    LastIterations,
    PredictedIterations,
    elapsed_ms,
    rows_of_runs,
)
from pipesim.fidelity.prediction import (
    clocked,
    delegated_plan,
    direct,
    equal_times,
    injected_ms,
    profiled,
    usual_plan,
)
from pipesim.fidelity.runs import DELEGATED, SYSTEMS, MeasuredRun
from pipesim.fidelity.testbed import Testbed
from pipesim.files import StrPath
from pipesim.lowering import lower
from pipesim.program import Program
from pipesim.scenario import UP, Scenario
from planners import plan

__all__ = [
    "COLUMNS",
    "DynamicRun",
    "load_dynamic",
    "predict_dynamic",
    "predict_iterations",
    "trace_beside",
]

COLUMNS = (
    "testbed",
    "model",
    "stages",
    "microbatches",
    "system",
    "change_every_ms",
    "iteration",
    "elapsed_ms",
)

NCCL_LOOKS_EVERY, DELEGATE_LOOKS_EVERY = 64, 1
"""Sends from one look at the delays to the next, in the published experiments."""

POLLED_MS = 100.0
"""The injector's sleep."""

CLOCKS_MS = tuple(POLLED_MS * part for part in (-0.5, -0.25, 0.0, 0.25, 0.5))
"""How far the senders' clocks may be ahead of the injector's: up to half of its sleep either way.

A rank that looks just before or just after a change keeps what it finds for several iterations,
so one that is off by 30 ms may change their median by a fifth.
"""

DELEGATES = 6
MESSAGE_BYTES = 10 * 2**20
"""Delegates for each direction, and a message: of the 7B runs, all that there are of this kind."""


@dataclass(frozen=True)
class DynamicRun:
    """One run.

    Attributes
    ----------
    measured : MeasuredRun
        Its shape, system and healthy iteration; ``slow_ms`` is the median of the settled ones.
    changes : str
        How often the delays change, such as ``200-400``, in ms.
    settled : LastIterations
        All after the first slow one, in which delays are adopted and memory for new plans is got.
    """

    measured: MeasuredRun
    changes: str
    settled: LastIterations


def load_dynamic(path: StrPath) -> tuple[DynamicRun, ...]:
    """Read a CSV with a row for each iteration of each run.

    Raises
    ------
    FormatError
        The file cannot be read, lacks a column, or has a value that cannot be; a run lacks
        iterations.
    """
    return tuple(map(_run, rows_of_runs(path, COLUMNS)))


def _run(rows: Sequence[Row]) -> DynamicRun:
    row = rows[0]
    system = row.take("system", one_of(SYSTEMS), f"one of {', '.join(SYSTEMS)}")
    settled = elapsed_ms(rows, FIRST_SLOW + 1)
    measured = MeasuredRun(
        testbed=row.take("testbed", name, "a name"),
        model=row.take("model", name, "a name"),
        system=system,
        stages=row.take("stages", count, "a whole number above 0"),
        microbatches=row.take("microbatches", count, "a whole number above 0"),
        gpus_per_node=1,
        message_bytes=MESSAGE_BYTES,
        slow_links="all",
        slow_sends=(),
        delay_ms=0.0,
        delegates=DELEGATES if system in DELEGATED else None,
        healthy_ms=elapsed_ms(rows, FIRST_SLOW - 2, FIRST_SLOW - 1).median_ms,
        slow_ms=settled.median_ms,
        place=row.place,
    )
    return DynamicRun(
        measured, row.take("change_every_ms", _changes, "a name such as 200-400"), settled
    )


def _changes(text: str) -> str:
    """Parse what is a part of a file's name."""
    if not re.fullmatch(r"[\w.-]{1,40}", text):
        raise ValueError
    return text


def trace_beside(path: StrPath, changes: str) -> Path:
    """Return the file with the delays of a run: ``dynamic_trace_{changes}ms.csv`` beside it.

    Raises
    ------
    FormatError
        There is none.
    """
    beside = Path(path).parent / f"dynamic_trace_{changes}ms.csv"
    if not beside.is_file():
        raise FormatError(f"needs {beside.name} beside it, or --trace FILE", file=os.fspath(path))
    return beside


def predict_dynamic(
    runs: Sequence[DynamicRun],
    testbed: Callable[[MeasuredRun], Testbed],
    trace: Callable[[DynamicRun], DelayTrace],
) -> IterationScores:
    """Predict the settled iterations of runs, each from its healthy ones and the delays.

    An iteration is the median over what the injector's clock may have been (:data:`CLOCKS_MS`), and
    the interval of a run holds what any of them gives.

    Raises
    ------
    ScenarioError
        A trace has not as many links as its run, or no operator times give the healthy iteration.
    """
    predictions = []
    for one in runs:
        own, delays, count_slow = testbed(one.measured), trace(one), 1 + len(one.settled.elapsed_ms)
        settled = np.array(
            [
                predict_iterations(one.measured, own, delays, count_slow, ahead_ms=ahead_ms)[1:]
                for ahead_ms in CLOCKS_MS
            ]
        )
        predictions.append(
            PredictedIterations(
                one.measured,
                one.changes,
                one.measured.system,
                one.settled,
                tuple(np.median(settled, axis=0).tolist()),
                own.spread(one.measured.system),
                tuple(np.median(settled, axis=1).tolist()),
            )
        )
    return IterationScores(predictions)


def predict_iterations(
    measured: MeasuredRun,
    testbed: Testbed,
    trace: DelayTrace,
    iterations: int,
    *,
    ahead_ms: float = 0.0,
) -> tuple[float, ...]:
    """Predict the iterations from the first slow one on, in ms.

    They follow each other on the trace's clock, which starts with the last healthy iteration, or
    ``ahead_ms`` before it; no measured time but the healthy one is used. ``pipemorph`` plans anew
    at the start of each but the first, for the delays that are set then.

    Raises
    ------
    ScenarioError
        The trace has not as many links as the run, or no operator times give the healthy iteration.
    """
    if trace.links != measured.stages - 1:
        raise ScenarioError(
            f"{measured.place}: the delay trace is for {trace.links} links, the run has "
            f"{measured.stages - 1}"
        )
    scenario = profiled(measured, testbed)
    if not measured.delegated:
        scenario = clocked(scenario, testbed)
    injection = _injection(measured, testbed, trace)
    clock_ms, times = measured.healthy_ms + ahead_ms, []
    for index in range(iterations):
        replans = measured.system == "pipemorph" and index > 0
        now = np.array(injection.trace.at(clock_ms)) if replans else None
        injection.start = clock_ms
        timeline = run(_program(measured, testbed, scenario, now), scenario, injection)
        times.append(timeline.iteration_ms + testbed.after_ms)
        clock_ms += times[-1]
    return tuple(times)


def _injection(measured: MeasuredRun, testbed: Testbed, trace: DelayTrace) -> Injection:
    """Return what senders find set, and count what they have sent in the healthy iterations."""
    times = np.ceil(trace.starts / POLLED_MS) * POLLED_MS
    last = np.append(np.diff(times) > 0, True)  # of changes within one sleep
    delays = np.array(trace.delay_ms[last])
    if measured.delegated:
        return Injection(DelayTrace(times[last], delays), every=DELEGATE_LOOKS_EVERY)
    delays = np.vectorize(lambda delay: injected_ms(delay, testbed))(delays)
    if measured.system == "1f1b" and measured.stages > 3:
        delays[:, 1, UP] = delays[:, 2, UP]  # taken for sends to stage 3, as in all 1F1B runs
    injection = Injection(DelayTrace(times[last], delays), every=NCCL_LOOKS_EVERY)
    for stage in range(measured.stages):
        neighbours = (stage > 0) + (stage < measured.stages - 1)
        injection.sent(stage, (FIRST_SLOW - 1) * measured.microbatches * neighbours)
    return injection


def _program(
    measured: MeasuredRun, testbed: Testbed, scenario: Scenario, delays: np.ndarray | None
) -> Program:
    """Return the program of an iteration; ``delays`` are those to plan for, if it plans."""
    if not measured.delegated:
        return lower(usual_plan(measured), equal_times(measured), direct(measured, testbed))
    schedule = (
        delegated_plan(measured)
        if delays is None
        else plan(scenario.replaced(occupancy_ms=delays), "pipemorph-artifact")
    )
    return lower(schedule, scenario, testbed.transport("delegated", delegates=measured.delegates))
