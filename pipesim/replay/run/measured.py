"""What a replay has measured: Timelines of each iteration, clocks, failed links and reports.

Each worker reports in JSON, with times on rank 0's clock; rank 0 writes one file:

.. code-block:: json

    {
      "format": "pipesim-replay-result",
      "version": 2,
      "run": {"format": "pipesim-replay", "…": "see run_json"},
      "ranks": [{
        "clock": {"offset_ms": 0.0, "drift_ppm": 0.0, "uncertainty_ms": 0.0},
        "iterations": [{
          "compute": [["0F0", 1400000, 11100000]],
          "logical": [[1000000, 11000000]],
          "steps": [[0, "kernel", 11000000, 12000000]]
        }],
        "switches": [],
        "report": {}
      }]
    }

Times are whole nanoseconds. ``compute`` holds when each operator physically ran, ``logical`` when
it counted as running, in the same order; without logical times
(:attr:`pipesim.replay.run.run.Run.has_logical_times`) it is empty. A step begins with the number
of its message in the order of :attr:`pipesim.replay.run.run.Run.messages`, and lasts from when it
could begin until it had ended.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple, cast, get_args

from pipesim.documents.reading import Parser, Place, Table, list_of, number, operator, text, whole
from pipesim.documents.strict_json import parse_json
from pipesim.files import StrPath, read_text
from pipesim.program import Message
from pipesim.replay.run.run import Run
from pipesim.replay.run.run_json import read_run
from pipesim.schedule import Op
from pipesim.timeline import CommSpan, OpSpan, PathKind, Timeline

__all__ = ["ClockFacts", "Measured", "SwitchFacts", "load_result"]

_FORMAT, _VERSION = "pipesim-replay-result", 2


class ClockFacts(NamedTuple):
    """How a rank's clock differs from rank 0's."""

    offset_ms: float
    drift_ppm: float
    uncertainty_ms: float


class SwitchFacts(NamedTuple):
    """A link that switched to delegates.

    Attributes
    ----------
    rank : int
        Who noticed.
    iteration : int
        When; from 0, warm-up iterations included.
    message : Message
        The first that a delegate carried.
    at_ms : float
        When, from the start of the iteration.
    waited_ms : float
        How long after its direct path was tried.
    """

    rank: int
    iteration: int
    message: Message
    at_ms: float
    waited_ms: float


@dataclass(frozen=True)
class Measured:
    """A finished replay.

    Parameters
    ----------
    run : Run
        What was run.
    timelines : sequence of Timeline
        When operators physically ran: one for each iteration, those to warm up included; each
        begins at 0.
    clocks : sequence of ClockFacts, shape [D]
        How well times of different ranks compare.
    switches : sequence of SwitchFacts
        Links that failed.
    reports : sequence of mapping, shape [D]
        What each rank's work said in the end.
    logical : sequence of Timeline
        When operators counted as running, on the time axes of ``timelines``; empty where the run
        has no such times. See :attr:`pipesim.replay.run.run.Run.has_logical_times`.
    """

    run: Run
    timelines: Sequence[Timeline]
    clocks: Sequence[ClockFacts]
    switches: Sequence[SwitchFacts]
    reports: Sequence[Mapping[str, object]]
    logical: Sequence[Timeline] = ()

    @property
    def counted(self) -> Sequence[Timeline]:
        """The iterations after those to warm up."""
        return self.timelines[self.run.warmup :]

    @property
    def counted_logical(self) -> Sequence[Timeline]:
        """The same in logical times; empty where there are none."""
        return self.logical[self.run.warmup :]


def load_result(path: StrPath) -> Measured:
    """Read what rank 0 has written.

    Raises
    ------
    FormatError
        The file cannot be read, is not such a file, an operator is missing, or times contradict
        each other.
    """
    file = os.fspath(path)
    table = Table(parse_json(read_text(path), file), Place(file))
    table.take_head(_FORMAT, _VERSION)
    run: Run = table.take("run", read_run)

    def rank(value: object, place: Place) -> _Rank:
        return _read_rank(run, Table(value, place))

    ranks = table.take("ranks", list_of(rank))
    table.close()
    if len(ranks) != run.devices:
        raise table.place.at("ranks").error(f"must hold {run.devices}, one for each device")
    for device, own in enumerate(ranks):
        place = table.place.at("ranks").at(device)
        if len(own.iterations) != run.total_iterations:
            raise place.error(f"must hold {run.total_iterations} iterations")
        for number_, seen in enumerate(own.iterations):
            _check(run, device, seen, place.at("iterations").at(number_))
    return _measured(run, ranks)


def _check(run: Run, device: int, seen: _Iteration, place: Place) -> None:
    if [op for op, _, _ in seen.compute] != list(run.schedule.orders[device]):
        raise place.error("did not run in the plan's order")
    if len(seen.logical) != (len(seen.compute) if run.has_logical_times else 0):
        raise place.at("logical").error("must hold one for each operator that sleeps")
    for spans in [span for _, *span in seen.compute], seen.logical:
        times = list(chain.from_iterable(spans))
        if times != sorted(times):
            raise place.error("operators overlap")


# -- putting together --------------------------------------------------------------------


class _Iteration(NamedTuple):
    compute: list[tuple[Op, int, int]]
    logical: list[tuple[int, int]]
    steps: list[tuple[Message, PathKind, int, int]]


class _Rank(NamedTuple):
    clock: ClockFacts
    iterations: list[_Iteration]
    switches: list[tuple[int, Message, int, int]]
    report: Mapping[str, object]


def _measured(run: Run, ranks: Sequence[_Rank]) -> Measured:
    starts: list[int] = []
    timelines: list[Timeline] = []
    logical: list[Timeline] = []
    for seen in zip(*(rank.iterations for rank in ranks), strict=True):
        start = min(own.compute[0][1] for own in seen)
        starts.append(start)

        def ms(time_ns: int, start: int = start) -> float:
            return (time_ns - start) / 1e6

        compute = tuple(tuple(OpSpan(op, ms(b), ms(e)) for op, b, e in own.compute) for own in seen)
        comm = tuple(
            CommSpan(message, path, device, ms(begin), ms(end))
            for device, own in enumerate(seen)
            for message, path, begin, end in own.steps
        )
        timelines.append(Timeline(run.scenario, compute, comm))
        if run.has_logical_times:
            counted = tuple(
                tuple(
                    OpSpan(op, ms(b), ms(e))
                    for (op, _, _), (b, e) in zip(own.compute, own.logical, strict=True)
                )
                for own in seen
            )
            logical.append(Timeline(run.scenario, counted, comm))
    switches = [
        SwitchFacts(device, iteration, message, (at - starts[iteration]) / 1e6, waited / 1e6)
        for device, rank in enumerate(ranks)
        for iteration, message, at, waited in rank.switches
    ]
    return Measured(
        run,
        timelines,
        [rank.clock for rank in ranks],
        sorted(switches, key=lambda switch: (switch.iteration, switch.at_ms)),
        [rank.report for rank in ranks],
        logical,
    )


# -- reading -----------------------------------------------------------------------------


def _read_rank(run: Run, table: Table) -> _Rank:
    def message(value: object, place: Place) -> Message:
        index = whole(value, place)
        if index >= len(run.messages):
            raise place.error(f"there is no message {index}")
        return run.messages[index]

    def iteration(value: object, place: Place) -> _Iteration:
        entry = Table(value, place)
        compute = entry.take("compute", list_of(_row(operator, _time, _time)))
        logical = entry.take("logical", list_of(_row(_time, _time)))
        steps = entry.take("steps", list_of(_row(message, _path, _time, _time)))
        entry.close()
        if any(end < begin for _, _, begin, end in steps):
            raise place.at("steps").error("one ends before it begins")
        return _Iteration(compute, logical, steps)

    def iteration_number(value: object, place: Place) -> int:
        index = whole(value, place)
        if index >= run.total_iterations:
            raise place.error(f"there is no iteration {index}")
        return index

    clock = table.take("clock", Table)
    rank = _Rank(
        ClockFacts(*(clock.take(field, number) for field in ClockFacts._fields)),
        table.take("iterations", list_of(iteration)),
        table.take("switches", list_of(_row(iteration_number, message, _time, _time))),
        table.take("report", _report),
    )
    clock.close()
    table.close()
    return rank


def _row(*parsers: Parser[Any]) -> Parser[Any]:
    """Return the parser of a list with one value for each parser."""

    def row(value: object, place: Place) -> tuple[Any, ...]:
        if not isinstance(value, list) or len(value) != len(parsers):
            raise place.error(f"must be a list of {len(parsers)}")
        pairs = zip(parsers, value, strict=True)
        return tuple(parse(item, place.at(i)) for i, (parse, item) in enumerate(pairs))

    return row


def _or_null(parser: Parser[Any]) -> Parser[Any]:
    """Return a parser that lets null pass: a number that is not finite."""
    return lambda value, place: None if value is None else parser(value, place)


_REPORTED: dict[str, Parser[Any]] = {
    "gradient_errors": list_of(_or_null(number)),
    "wrong_gradients": list_of(_row(whole, whole, text, _or_null(number))),
    "loss_errors": list_of(_or_null(number)),
    "losses": list_of(_or_null(number)),
    "host_bytes": whole,
}


def _path(value: object, place: Place) -> PathKind:
    if value not in get_args(PathKind):
        raise place.error(f"must be one of {', '.join(get_args(PathKind))}")
    return cast(PathKind, value)


def _time(value: object, place: Place) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > 2**62:
        raise place.error("must be a whole number of nanoseconds")
    return value


def _report(value: object, place: Place) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise place.error("must be an object")
    checked = {key: _REPORTED[key](value[key], place.at(key)) for key in _REPORTED if key in value}
    return value | checked
