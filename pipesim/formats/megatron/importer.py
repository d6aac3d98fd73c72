"""From the logs of Megatron-LM and its relatives to a scenario.

A log tells the shape of the run before the iterations (:mod:`~pipesim.formats.megatron.layout`),
which iterations are alike (:mod:`~pipesim.formats.megatron.selection`), and, more or less
directly, how long F and BW take on each stage (:mod:`~pipesim.formats.megatron.operators`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np

from pipesim.errors import FormatError, ScenarioError
from pipesim.files import StrPath
from pipesim.formats.measurement import Measurement
from pipesim.formats.megatron.layout import Layout
from pipesim.formats.megatron.log import read_megatron_log, without_iterations
from pipesim.formats.megatron.operators import operators_of
from pipesim.formats.megatron.record import MegatronLog, Told, named
from pipesim.formats.megatron.selection import Selection, microbatches_of
from pipesim.formats.tally import Dropped, Tally
from pipesim.scenario import Scenario
from pipesim.text import counted, listed, plain

__all__ = ["import_megatron"]

_MOST_OPERATORS = 1_000_000


def import_megatron(
    paths: Sequence[StrPath],
    *,
    stages: int | None = None,
    microbatches: int | None = None,
    iterations: Collection[int | str] | None = None,
    dp_rank: int | None = None,
    message_bytes: float = 0.0,
    name: str = "",
    source: str = "",
) -> Measurement:
    """Read logs of one training run, or of several of the same shape.

    Of the logs of each rank, one has the iterations and another the arguments.
    Virtual stages become stages of an interleaved placement: a scenario of v·S stages on S
    devices, whose times are those of the chunks.

    Parameters
    ----------
    paths : sequence of path
        Files as :mod:`pipesim.formats.megatron.dialects` shows.
    stages, microbatches : int, optional
        Pipeline stages S and micro-batches N of an iteration. Default: as the logs tell. Of
        several batch sizes, as in a ramp-up, only the iterations with N micro-batches count;
        if N is not given, those of the last one.
    iterations : collection of int or str, optional
        The iterations to take, or ranges of them such as ``"20-40"``. Default: all; without the
        first of a job if that is start-up, over 1.5 times the median of the others; and if their
        times lie on several levels, those of the fastest.
    dp_rank : int, optional
        The data-parallel rank whose operator times to take. Default: medians over all, or the
        slowest's if some stand apart.
    message_bytes : float
        Size of a message, which no log tells.
    name, source : str
        Of the scenario. Default name: the first file's.

    Raises
    ------
    FormatError
        A file is damaged or foreign, tells another shape than the given one, or none where
        none is given; its ranks cannot be shared out among the stages; no iteration has the
        timers of all ranks; no file has a chosen iteration; or one is given twice.
    ScenarioError
        There is no file, or the given shape is none.
    """
    if not paths:
        raise ScenarioError("there is no file to import")
    logs = [read_megatron_log(path) for path in paths]
    for path, count in Counter(Path(path).resolve() for path in paths).items():
        if count > 1:
            raise FormatError("is given twice", file=str(path))
    file = logs[0].file
    if not any(log.iterations for log in logs):
        raise without_iterations(logs[0])
    notes: list[str] = []
    shape = _shape(logs)
    devices = _given(logs, "stages", stages, notes)
    if devices is None:
        raise FormatError("does not say the number of stages: give --stages", file=file)
    told = _given(logs, "micro-batches", microbatches, notes)
    layout = Layout.of(shape, devices, next((log.file for log in logs if log.shape), file))
    selection = Selection.of(logs)
    if iterations is not None:
        selection.named(iterations)
    number, why = _microbatches(selection, layout, shape, told)
    if why:
        notes.append(f"{file}: the number of micro-batches is {why}")
    if layout.stages * number > _MOST_OPERATORS:
        raise FormatError(
            f"stages × micro-batches is {layout.stages * number:,}: more than "
            f"{_MOST_OPERATORS:,} operators of a kind",
            file=file,
        )
    if iterations is None:
        selection.without_start_up()
    selection.fastest_level(keep=iterations is not None)
    found = operators_of(selection.kept, layout, number, dp_rank)
    elapsed_ms = tuple(one.elapsed_ms for _, one in selection.kept)
    low, middle, high = np.quantile(elapsed_ms, (0.25, 0.5, 0.75)).tolist()
    usual = (
        f"{counted(len(elapsed_ms), 'iteration')}: median {plain(middle)} ms, quartiles "
        f"{plain(low)} and {plain(high)} ms, including what follows the pipeline"
    )
    placement = () if layout.chunks == 1 else Scenario.place("interleaved", devices, layout.chunks)
    scenario = Scenario(
        stages=layout.stages,
        microbatches=number,
        placement=placement,
        message_bytes=message_bytes,
        name=name or Path(file).stem,
        source=source,
        **found.times.fields(),
    )
    return Measurement(
        scenario,
        (),
        (usual, *notes, *layout.notes, *selection.notes, *found.notes),
        elapsed_ms,
        found.times.spread_ms,
        (*_lines(logs), selection.tally(), *([found.ranks] if found.ranks else [])),
        guessed=found.guessed,
        after_ms=found.after_ms,
    )


def _shape(logs: Sequence[MegatronLog]) -> dict[str, Told]:
    """Return what the logs tell of the run; none may tell otherwise than one before."""
    shape: dict[str, Told] = {}
    for what in dict.fromkeys(what for log in logs for what in log.shape):
        _told(logs, what)
        shape[what] = next(log.shape[what] for log in logs if what in log.shape)
    return shape


def _given(
    logs: Sequence[MegatronLog], what: str, given: int | None, notes: list[str]
) -> int | None:
    """Return the number of stages or micro-batches, as given or as the logs tell it."""
    if given is not None:
        _told(logs, what, Told(given, 0), f"--{what.replace('-', '')} is {given}")
        return given
    log = _told(logs, what)
    if log is None:
        return None
    value, line, _ = log.shape[what]
    notes.append(f"{log.file}: the number of {what} is {value}, by line {line}")
    return value


def _told(
    logs: Sequence[MegatronLog], what: str, given: Told | None = None, origin: str = ""
) -> MegatronLog | None:
    """Return the first log that tells something; none may tell otherwise."""
    telling = [log for log in logs if what in log.shape]
    for log in telling:
        own = log.shape[what]
        if given is None:
            given, origin = own, f"{log.file} says {own.text or own.value}"
        elif (own.value, own.text) != (given.value, given.text):
            raise FormatError(
                f"says that {named(what)} is {own.text or own.value}, but {origin}",
                file=log.file,
                line=own.line,
            )
    return telling[0] if telling else None


def _microbatches(
    selection: Selection,
    layout: Layout,
    shape: dict[str, Told],
    known: int | None,
) -> tuple[int, str]:
    samples = {what: told.value for what, told in shape.items()}
    each = samples.get("samples of a micro-batch")
    group = each * layout.copies if each and layout.copies else None
    if "micro-batches" in shape:
        group = None  # the log says their number itself
    return microbatches_of(
        selection, known, group, layout.copies, samples.get("samples of a batch")
    )


def _lines(logs: Sequence[MegatronLog]) -> list[Tally]:
    """Say what became of each line."""
    dropped: dict[str, list[str]] = {}
    for log in logs:
        for number, fate in enumerate(log.fates, start=1):
            if fate:
                dropped.setdefault(fate, []).append(f"{log.file}, line {number}")
    used = Counter(bool(fate) for log in logs for fate in log.fates)[False]
    ways = listed(list(dict.fromkeys(log.dialect for log in logs if log.dialect)))
    return [
        Tally(
            "line",
            used,
            [Dropped(why, places) for why, places in dropped.items()],
            of=f"iterations, timers and shape, as {ways} prints them",
        )
    ]
