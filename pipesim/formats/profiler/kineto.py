"""PyTorch profiler traces: the operators that pipeline schedules annotate.

A trace is JSON, plain or ``.json.gz``, one file per rank. This reads the complete events
(``ph: X``) of the categories ``user_annotation`` (CPU) and ``gpu_user_annotation`` (first to
last kernel, one for each stream) whose names are

- ``PP:0F1``, torch ≥ 2.9: stage, action, micro-batch. Actions F, I (our B), W, and B, the
  full backward (our BW);
- ``Forward 1`` and ``Backward 1`` of torch's single-stage schedules, which name no stage;
- ``ProfilerStep#7``: the iteration. Without these, an iteration begins where a name
  is repeated.

``distributedInfo`` holds the rank, how many there are (``world_size``) and, in newer releases,
the process groups (``pg_config``); one whose description names ``pp`` or ``pipeline`` holds the
ranks of a pipeline.

This module reads and checks one file; :mod:`pipesim.formats.profiler.importer` puts ranks together.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import zlib
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from pipesim.documents.reading import Place, number, whole
from pipesim.errors import FormatError
from pipesim.files import StrPath, read_bytes
from pipesim.scenario import Kind

__all__ = ["Action", "KinetoTrace", "Span", "read_kineto"]

_CPU, _GPU = "user_annotation", "gpu_user_annotation"
_ACTION = re.compile(r"PP:([0-9]{1,6})([FIWB])([0-9]{1,6})")
_OTHER_ACTION = re.compile(
    r"PP:(?:[0-9]+(?:UNSHARD|RESHARD|REDUCE_GRAD|(?:SEND|RECV)_[FB])[0-9]*|\(.*\)OVERLAP_F_B)"
)
_SENDS_ON = re.compile(r"PP:([0-9]{1,6})(?:SEND_F|RECV_B)[0-9]*")
_PIPELINE = re.compile(r"(?:.*[^a-z])?(?:pp|pipe|pipeline)(?:[^a-z].*)?", re.I | re.S)
_SINGLE = re.compile(r"(Forward|Backward) ([0-9]{1,6})")
_STEP = re.compile(r"ProfilerStep\s*#([0-9]{1,9})")
_KINDS: dict[str, Kind] = {"F": "F", "I": "B", "W": "W", "B": "BW"}
"""torch's letters in ours."""


class Action(NamedTuple):
    """What an annotation names; ``stage`` is None where it names none."""

    kind: Kind
    stage: int | None
    microbatch: int


class Span(NamedTuple):
    """Start and end in milliseconds, from the rank's first annotation on."""

    start_ms: float
    end_ms: float


@dataclass(frozen=True)
class KinetoTrace:
    """The annotated operators of one rank.

    Parameters
    ----------
    file : str
        Its name.
    rank : int or None
        ``distributedInfo.rank``, which traces of a single process lack.
    world_size : int or None
        ``distributedInfo.world_size``: how many ranks there were.
    group : frozenset of int
        The ranks of the pipeline that this one is in; empty where the trace does not tell.
    sends_on : frozenset of int
        Stages that are not the pipeline's last: they send forwards, or receive backwards.
    iterations : mapping of int to mapping of Action to Span
        By profiler step; counted from 0 where the trace has no steps.
    origin_ms : float
        The first annotation on the clock that the ranks share, as far as they do.
    on_gpu : bool
        Whether all spans are of the GPU; else all are of the CPU.
    dropped : mapping of str to int
        Which annotations were left out, and how many of them.
    """

    file: str
    rank: int | None
    world_size: int | None
    group: frozenset[int]
    sends_on: frozenset[int]
    iterations: Mapping[int, Mapping[Action, Span]]
    origin_ms: float
    on_gpu: bool
    dropped: Mapping[str, int]


class _Event(NamedTuple):
    """An annotation: its times in microseconds, and its process and thread or stream."""

    start_us: float
    end_us: float
    name: str
    lane: tuple[str, str]

    @property
    def is_step(self) -> bool:
        """Whether it is a profiler step."""
        return _STEP.fullmatch(self.name) is not None


def read_kineto(path: StrPath) -> KinetoTrace:
    """Read and check the trace of one rank.

    Raises
    ------
    FormatError
        The file cannot be read, is cut short, is not JSON or no trace, has an annotation
        that starts with ``PP:`` and is none of torch's, or none at all; with the place.
    """
    file = os.fspath(path)
    document = _document(read_bytes(path), file)
    if not isinstance(document, dict) or not isinstance(document.get("traceEvents"), list):
        raise FormatError("is not a profiler trace: it has no traceEvents", file=file)
    place = Place(file)
    rank, world_size, group = _distributed(
        document.get("distributedInfo"), place.at("distributedInfo")
    )
    base_ns = number(document.get("baseTimeNanoseconds", 0), place.at("baseTimeNanoseconds"))
    lanes: dict[str, list[_Event]] = {_CPU: [], _GPU: []}
    dropped: Counter[str] = Counter()
    sends_on: set[int] = set()
    for index, event in enumerate(document["traceEvents"]):
        if isinstance(event, dict) and event.get("ph") == "X":
            category = str(event.get("cat")).lower()  # some releases write gpu_user_Annotation
            name = event.get("name")
            if category not in lanes or not isinstance(name, str):
                continue
            if sends := _SENDS_ON.fullmatch(name):
                sends_on.add(int(sends[1]))
            if _wanted(name, dropped):
                lanes[category].append(_event(name, event, place.at("traceEvents").at(index)))
    on_gpu = any(not event.is_step for event in lanes[_GPU])
    found = _iterations(sorted(lanes[_CPU]), sorted(lanes[_GPU]) if on_gpu else None, dropped)
    if not found:
        raise FormatError("has no pipeline annotations: PP:0F0 …, or Forward 0 …", file=file)
    origin_us = min(event.start_us for spans in found.values() for event in spans.values())
    iterations = {
        step: {
            action: Span((event.start_us - origin_us) / 1e3, (event.end_us - origin_us) / 1e3)
            for action, event in events.items()
        }
        for step, events in sorted(found.items())
    }
    origin_ms = base_ns / 1e6 + origin_us / 1e3
    return KinetoTrace(
        file, rank, world_size, group, frozenset(sends_on), iterations, origin_ms, on_gpu, dropped
    )


def _distributed(info: Any, place: Place) -> tuple[int | None, int | None, frozenset[int]]:
    """Return the rank, the number of ranks and the ranks of its pipeline, as far as known."""
    if not isinstance(info, dict):
        return None, None, frozenset()
    rank, world_size = (
        whole(info[key], place.at(key)) if key in info else None for key in ("rank", "world_size")
    )
    if rank is not None and world_size is not None and rank >= world_size:
        raise place.at("rank").error(f"must be below the world_size {world_size}, not {rank}")
    groups = info.get("pg_config")
    found = [
        ranks
        for group in (groups if isinstance(groups, list) else [])
        if isinstance(group, dict) and _PIPELINE.fullmatch(str(group.get("pg_desc")))
        if (ranks := _members(group)) and rank in ranks
    ]
    # Groups of several dimensions, as dp_pp, hold more than one pipeline.
    return rank, world_size, min(found, key=len, default=frozenset())


def _members(group: Mapping[str, Any]) -> frozenset[int]:
    """Return the ranks of a process group; nothing where the list of them is cut."""
    ranks = group.get("ranks")
    if not isinstance(ranks, list) or not all(type(rank) is int for rank in ranks):
        return frozenset()
    return frozenset(ranks) if group.get("pg_size", len(ranks)) == len(ranks) else frozenset()


def _document(content: bytes, file: str) -> Any:
    if content[:2] == b"\x1f\x8b":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise FormatError(f"is not a whole gzip file ({error})", file=file) from None
    try:
        return json.loads(content.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        raise FormatError(
            f"is not JSON: {error.msg}", file=file, line=error.lineno, column=error.colno
        ) from None
    except UnicodeDecodeError as error:
        raise FormatError(f"is not text in UTF-8 (byte {error.start})", file=file) from None
    except (RecursionError, ValueError) as error:  # nested too deep; a number too long
        raise FormatError(f"is not JSON that can be read: {error}", file=file) from None


def _wanted(name: str, dropped: Counter[str]) -> bool:
    """Whether an annotation counts; a known one that does not is noted."""
    if _OTHER_ACTION.fullmatch(name):
        pair = name.endswith("OVERLAP_F_B")
        dropped["of overlapped pairs" if pair else "of messages and sharding"] += 1
        return False
    return bool(name.startswith("PP:") or _SINGLE.fullmatch(name) or _STEP.fullmatch(name))


def _event(name: str, event: dict[str, Any], place: Place) -> _Event:
    if name.startswith("PP:") and not _ACTION.fullmatch(name):
        raise place.error(f"{name[:40]!r} is not an annotation such as PP:0F0, PP:1I2 or PP:1B2")
    start, duration = (number(event.get(key), place.at(key)) for key in ("ts", "dur"))
    if duration < 0:
        raise place.at("dur").error(f"must not be negative, not {duration:g}")
    lane = str(event.get("pid")), str(event.get("tid"))
    return _Event(start, start + duration, name, lane)


# -- which iteration an annotation belongs to ----------------------------------------------


def _iterations(
    cpu: list[_Event], gpu: list[_Event] | None, dropped: Counter[str]
) -> dict[int, dict[Action, _Event]]:
    """Return what each iteration ran, on the GPU if that is given; both are in time order.

    The n-th annotation of a name on a stream of the GPU is the work of the n-th on the CPU,
    which stands inside its profiler step: the GPU lags behind. An operator on several
    streams lasts from its first start to its last end.
    """
    steps = _steps(cpu)
    of_name: dict[str, list[int | None]] = defaultdict(list)
    for event in cpu:
        if not event.is_step:
            of_name[event.name].append(steps(event, len(of_name[event.name])))
    found: dict[int, dict[Action, _Event]] = {}
    ordinals: Counter[tuple[str, tuple[str, str]]] = Counter()
    seen: set[tuple[int, str, tuple[str, str]]] = set()
    for event in cpu if gpu is None else gpu:
        if event.is_step:
            continue
        lane = ("", "") if gpu is None else event.lane
        ordinal = ordinals[event.name, lane]
        ordinals[event.name, lane] += 1
        known = of_name.get(event.name)
        step = ordinal if known is None else known[ordinal] if ordinal < len(known) else None
        if step is None:
            dropped["outside the profiler steps"] += 1
        elif (step, event.name, lane) in seen:
            dropped["repeated in their step"] += 1
        else:
            seen.add((step, event.name, lane))
            events, action = found.setdefault(step, {}), _action(event.name)
            old = events.get(action, event)
            events[action] = event._replace(
                start_us=min(old.start_us, event.start_us), end_us=max(old.end_us, event.end_us)
            )
    return found


def _steps(cpu: list[_Event]) -> Callable[[_Event, int], int | None]:
    """Return a rule that says which step the n-th annotation of a name belongs to."""
    steps = [event for event in cpu if event.is_step]
    if not steps:
        return lambda event, ordinal: ordinal
    starts = [step.start_us for step in steps]

    def step_of(event: _Event, ordinal: int) -> int | None:
        latest = steps[max(bisect_right(starts, event.start_us) - 1, 0)]
        match = _STEP.fullmatch(latest.name)
        inside = latest.start_us <= event.start_us <= latest.end_us
        return int(match[1]) if match and inside else None

    return step_of


def _action(name: str) -> Action:
    if match := _ACTION.fullmatch(name):
        return Action(_KINDS[match[2]], int(match[1]), int(match[3]))
    match = _SINGLE.fullmatch(name)
    assert match is not None
    return Action("F" if match[1] == "Forward" else "BW", None, int(match[2]))
