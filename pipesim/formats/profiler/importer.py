"""From the PyTorch profiler traces of all ranks of one run to a scenario.

- Every rank is a device; every stage is on one of them. Annotations that name no stage
  (``Forward 1``) are of the stage with the number of the rank in its pipeline.
- All ranks of a pipeline must be given. Ranks beyond them are taken to be copies of it, if
  the process groups say so, or if nothing in the traces contradicts it. If the copies are given
  too, the scenario is that of the slowest, for which the others wait.
- Times are of the GPU in all traces, or of the host in all; those of the host are without the
  wait for a message, as far as the traces tell.
- An iteration is complete if every stage ran F, and B and W or the full backward, of every
  micro-batch. Others are skipped. Of iterations whose times lie on several levels, the fastest
  are used.
- Operator times need no common clock. The timeline of an iteration does: it is left out
  where an operator starts before what it needs has ended.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from pipesim.errors import ScenarioError
from pipesim.files import StrPath
from pipesim.formats.measurement import Measurement, OperatorTimes
from pipesim.formats.profiler.iterations import Iterations
from pipesim.formats.profiler.kineto import read_kineto
from pipesim.formats.profiler.pipeline import Pipeline
from pipesim.formats.profiler.ranks import by_rank, pipelines
from pipesim.formats.profiler.report import tallied, told

__all__ = ["import_profiler"]


def import_profiler(
    paths: Sequence[StrPath],
    *,
    iterations: Collection[int | str] | None = None,
    message_bytes: float = 0.0,
    name: str = "",
    source: str = "",
) -> Measurement:
    """Read the traces of all ranks of one run.

    Parameters
    ----------
    paths : sequence of path
        One file for each rank, as :mod:`pipesim.formats.profiler.kineto` describes; where they name
        no rank, in rank order.
    iterations : collection of int or str, optional
        The profiler steps to take the medians over, or ranges of them such as ``"20-40"``.
        Default: all complete ones, or the fastest where their times lie on several levels.
    message_bytes : float
        Size of a message, which is not read from traces.
    name, source : str
        Of the scenario. Default name: the first file's.

    Raises
    ------
    FormatError
        A file is damaged or foreign; a rank or stage comes twice or is missing; some times
        are of the GPU and some of the host; no chosen iteration is complete.
    ScenarioError
        There is no file.
    """
    if not paths:
        raise ScenarioError("there is no file to import")
    notes: list[str] = []
    given = by_rank([read_kineto(path) for path in paths], notes)
    copies = [
        Iterations(Pipeline(ranks, given, notes), iterations) for ranks in pipelines(given, notes)
    ]
    slowest = max(copies, key=lambda copy: copy.usual_ms)
    times = OperatorTimes.of(slowest.samples())
    scenario = slowest.shape.replaced(
        **times.fields(),
        message_bytes=message_bytes,
        name=name or Path(slowest.pipeline.file).name.split(".")[0],
        source=source,
    )
    return Measurement(
        scenario,
        slowest.measured(scenario),
        (*notes, *told(slowest, copies), *times.notes),
        tuple(slowest.iteration_ms[step] for step in slowest.used),
        times.spread_ms,
        tallied(slowest, copies),
        slowest.schedule(),
    )
