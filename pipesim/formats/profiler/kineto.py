"""PyTorch profiler traces: the operators that pipeline schedules annotate.

A trace is JSON, plain or ``.json.gz``, one file per rank. This reads and checks one:

- :mod:`pipesim.formats.profiler.document` its JSON, and which rank it is of;
- :mod:`pipesim.formats.profiler.names` what its events' names say;
- :mod:`pipesim.formats.profiler.events` its events;
- :mod:`pipesim.formats.profiler.steps` which iteration they belong to;
- :mod:`pipesim.formats.profiler.gpu` and :mod:`pipesim.formats.profiler.host` when an operator
  ran: its kernels tell, else the annotations of the GPU, else those of the host.

:mod:`pipesim.formats.profiler.importer` puts ranks together.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pipesim.errors import FormatError
from pipesim.files import StrPath, read_bytes
from pipesim.formats.profiler.document import read_document
from pipesim.formats.profiler.events import Event, Events, collected
from pipesim.formats.profiler.gpu import Kernels
from pipesim.formats.profiler.host import Host
from pipesim.formats.profiler.names import Action, actions
from pipesim.formats.profiler.span import Span
from pipesim.formats.profiler.steps import Found, by_iteration

__all__ = ["Clock", "KinetoTrace", "read_kineto"]

Clock = Literal["kernels", "gpu", "host"]
"""What tells the times: kernels, annotations of the GPU, or annotations of the host."""


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
    clock : "kernels", "gpu" or "host"
        What tells the times of all its spans.
    has_gpu : bool
        Whether the trace names a GPU.
    dropped : dict of str to list of str
        Annotations that were left out, by reason.
    """

    file: str
    rank: int | None
    world_size: int | None
    group: frozenset[int]
    sends_on: frozenset[int]
    iterations: Mapping[int, Mapping[Action, Span]]
    origin_ms: float
    clock: Clock
    has_gpu: bool
    dropped: dict[str, list[str]]

    @property
    def names_stages(self) -> bool:
        """Whether any annotation names its stage."""
        return any(action.stage is not None for ops in self.iterations.values() for action in ops)


def read_kineto(path: StrPath) -> KinetoTrace:
    """Read and check the trace of one rank.

    Raises
    ------
    FormatError
        The file cannot be read, is cut short, is not JSON or no trace, has an annotation
        that starts with ``PP:`` and is none of torch's, or none at all; with the place.
    """
    file = os.fspath(path)
    document = read_document(read_bytes(path), file)
    events = collected(document)
    dropped = events.dropped
    host, gpu = by_iteration(events, dropped)
    if not host and not gpu:
        raise FormatError(_nothing(events), file=file)
    clock, found = _timed(events, host, gpu)
    origin_ms = min(span.start_ms for spans in found.values() for span in spans.values())
    return KinetoTrace(
        file,
        document.rank,
        document.world_size,
        document.group,
        events.sends_on,
        {
            step: {action: span.since(origin_ms) for action, span in spans.items()}
            for step, spans in sorted(found.items())
        },
        document.base_ms + origin_ms,
        clock,
        document.has_gpu or bool(events.gpu or events.kernels),
        dropped,
    )


Spans = dict[int, dict[Action, Span]]


def _timed(events: Events, host: Found, gpu: Found) -> tuple[Clock, Spans]:
    """Return when each operator ran, and what tells it."""
    on_host = Host(events)
    if events.kernels:
        kernels = Kernels(events.kernels, events.launches)
        ran = _spans(host, lambda one, parts: kernels.spans(one, parts, on_host.cut(one)))
        if _whole(host, ran := _with_empty(host, ran)):
            return "kernels", ran
    if gpu:
        ran = _spans(
            gpu, lambda one, n: (Span(one.start_ms, one.end_ms, pair="whole" if n > 1 else ""),) * n
        )
        return "gpu", _with_empty(host, ran)
    return "host", _spans(host, on_host.spans)


def _spans(found: Found, told: Callable[[Event, int], Sequence[Span]]) -> Spans:
    """Return the spans of all operators, by what tells those of one annotation."""
    return {
        step: {
            action: span
            for name, event in events.items()
            for action, span in zip(actions(name), told(event, len(actions(name))), strict=False)
        }
        for step, events in found.items()
    }


def _whole(host: Found, ran: Spans) -> bool:
    return all(
        action in ran[step] for step in host for name in host[step] for action in actions(name)
    )


def _with_empty(host: Found, ran: Spans) -> Spans:
    """Add the B that the GPU had nothing to do for: they take no time.

    torch runs the whole backward of the first stage in W, and annotates an empty I.
    """
    for step, events in host.items():
        spans = ran.get(step, {})
        order = [
            action for name in sorted(events, key=events.__getitem__) for action in actions(name)
        ]
        before: Span | None = None
        for action in order:
            if action in spans:
                before = spans[action]
            elif action.kind == "B" and before is not None:
                spans[action] = Span(before.end_ms, before.end_ms)
    return ran


def _nothing(events: Events) -> str:
    """Say that a trace has no annotated operators, and what may be the reason."""
    text = "has no pipeline annotations such as PP:0F0 or Forward 0"
    if events.communicates:
        return (
            f"{text}, though it sends and receives: torch's Schedule1F1B, which has one stage a "
            "rank, annotates nothing, and its schedules of several stages do from torch 2.9 on; "
            "have such a one run the order (pipesim export --format torch-csv), or put "
            "record_function('PP:0F0') around each operator"
        )
    return f"{text}: is it of a rank of a pipeline, recorded with the CPU's activities?"
