"""Which iteration an annotation belongs to.

An annotation of the host stands inside its profiler step. Without steps, an iteration begins
where a name is repeated. The n-th annotation of a name on a stream of the GPU is the work of the
n-th on the host: the GPU lags behind.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from pipesim.formats.profiler.events import Event, Events
from pipesim.formats.profiler.names import Action, actions, step_number

__all__ = ["by_iteration"]

Found = dict[int, dict[str, Event]]


def by_iteration(events: Events, dropped: dict[str, list[str]]) -> tuple[Found, Found]:
    """Return the annotations of each iteration by name, of the host and of the GPU.

    An operator on several streams lasts from its first start to its last end.

    Parameters
    ----------
    events : Events
        Of one trace.
    dropped : mapping of str to list of str
        Receives the names of annotations that are left out, by reason.
    """
    host = list(_numbered(events.host, events.steps))
    of_name: dict[str, list[int | None]] = defaultdict(list)
    for event, step in host:
        of_name[event.name].append(step)
    ordinals: Counter[tuple[str, tuple[str, str]]] = Counter()
    gpu: list[tuple[Event, int | None]] = []
    for event in events.gpu:
        ordinal = ordinals[event.name, event.lane]
        ordinals[event.name, event.lane] += 1
        known = of_name.get(event.name)
        step = ordinal if known is None else known[ordinal] if ordinal < len(known) else None
        gpu.append((event, step))
    # What is left out on the host is so on the GPU: it is told once.
    return _merged(host, {} if gpu else dropped, streams=False), _merged(gpu, dropped)


def _numbered(host: Sequence[Event], steps: Sequence[Event]) -> Iterator[tuple[Event, int | None]]:
    starts = [step.start_ms for step in steps]
    ordinals: Counter[str] = Counter()
    for event in host:
        if not steps:
            yield event, ordinals[event.name]
            ordinals[event.name] += 1
            continue
        latest = steps[max(bisect_right(starts, event.start_ms) - 1, 0)]
        inside = latest.start_ms <= event.start_ms <= latest.end_ms
        yield event, step_number(latest.name) if inside else None


def _merged(
    events: Sequence[tuple[Event, int | None]],
    dropped: dict[str, list[str]],
    *,
    streams: bool = True,
) -> Found:
    found: Found = {}
    seen: set[tuple[int, Action, tuple[str, str] | None]] = set()
    for event, step in events:
        if step is None:
            dropped.setdefault("outside the profiler steps", []).append(event.name)
            continue
        lane = event.lane if streams else None
        mine = {(step, action, lane) for action in actions(event.name)}
        if mine & seen:
            dropped.setdefault("repeated in their step", []).append(event.name)
            continue
        seen |= mine
        ops = found.setdefault(step, {})
        old = ops.get(event.name, event)
        ops[event.name] = event._replace(
            start_ms=min(old.start_ms, event.start_ms), end_ms=max(old.end_ms, event.end_ms)
        )
    return found
