"""What an import of profiler traces says: how times were found, and what was not used."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from pipesim.formats.profiler.events import MESSAGES
from pipesim.formats.profiler.iterations import Iterations
from pipesim.formats.profiler.kineto import KinetoTrace
from pipesim.formats.tally import Dropped, Tally
from pipesim.text import counted, listed, milliseconds

__all__ = ["tallied", "told"]

_APART = 1.1
"""A rank stands apart if it works this many times as long as the same stages elsewhere."""

_HOW = {
    "receive": "for {} it was taken off up to the end of the receive inside",
    "operator": "for {} it was taken off up to the first operator inside",
    "clock": (
        "for {} nothing inside tells its end; it was taken off up to the end of the operator that "
        "made the message, on the clocks that the ranks share, which nothing contradicts, so that "
        "the way of the message counts as work"
    ),
    "unknown": (
        "for {} its end is unknown, as the clocks of the ranks contradict each other: what was "
        "read is not the time of work, but holds the wait"
    ),
}


def told(used: Iterations, copies: Sequence[Iterations]) -> Iterator[str]:
    """Yield the notes of an import."""
    traces = list(used.pipeline.ranks.values())
    yield from _times(traces)
    if not all(trace.names_stages for trace in traces):
        yield "Forward and Backward annotations name no stage: the rank is taken for it"
    if traces[0].clock == "host" or used.work.told:
        yield from _waits(used)
    yield from _pairs(used)
    if len(copies) > 1:
        yield from _copies(used, copies)
    if used.partial:
        step, missing = next(iter(used.partial.items()))
        yield (
            f"skipped {counted(len(used.partial), 'partial iteration')}: "
            f"{listed(list(used.partial))} ({step} lacks {missing})"
        )
    if used.slower:
        fast = _fast(used)
        text = (
            f"iterations are of unlike length: {_range(used, fast)} ({listed(fast)}) and "
            f"{_range(used, used.slower)} ({listed(used.slower)})"
        )
        if _by_level(used):
            text += ": the medians are over the fastest; --iterations takes others"
        yield text
    yield f"medians over {counted(len(used.used), 'iteration')}: {listed(used.used)}"
    if used.contradictions:
        step, reason = next(iter(used.contradictions.items()))
        yield (
            f"no timeline of {counted(len(used.contradictions), 'iteration')}, only operator "
            f"times: iteration {step}: {reason}"
        )


def _times(traces: Sequence[KinetoTrace]) -> Iterator[str]:
    clocks = {trace.clock for trace in traces}
    if "host" not in clocks:
        yield "times are of the GPU: from the first kernel of an annotation to its last" + (
            ", without those of communication between stages or copies"
            if clocks == {"kernels"}
            else ""
        )
    elif any(trace.has_gpu for trace in traces):
        yield (
            "no GPU annotations: times are of the host; where a GPU computes, they are launch "
            "times, not those of its operators"
        )
    else:
        yield "no GPU annotations: times are of the host"


def _waits(used: Iterations) -> Iterator[str]:
    if len(used.pipeline.ranks) > 1:
        waited = [
            text.format(counted(count, "operator"))
            for how, text in _HOW.items()
            if (count := used.work.told[how])
        ] or ["on the clocks that the ranks share, none waited"]
        yield f"annotations on the CPU include the wait for their message: {'; '.join(waited)}"


def _pairs(used: Iterations) -> Iterator[str]:
    pairs = used.work.pairs
    if count := pairs["cut"]:
        yield (
            f"{counted(count, 'overlapped pair')} (OVERLAP_F_B) ran one operator after the other: "
            "each was cut where its backward began"
        )
    if count := pairs["shared"]:
        yield (
            f"{counted(count, 'overlapped pair')} (OVERLAP_F_B): nothing in them tells where the "
            "one operator ends, so their time was shared as the two take it alone"
        )
    if count := pairs["halved"]:
        yield (
            f"{counted(count, 'overlapped pair')} (OVERLAP_F_B): nothing tells how long the two "
            "operators take alone, so each was guessed to take half"
        )


def _copies(used: Iterations, copies: Sequence[Iterations]) -> Iterator[str]:
    """Say how long each copy takes, and which ranks of the slowest stand apart."""
    times = [f"{milliseconds(one.usual_ms)} ({_ranks(one)})" for one in copies]
    yield (
        f"the files hold {len(copies)} copies of the pipeline, data- or tensor-parallel, whose "
        f"iterations take {listed(times)}: the scenario is of the slowest, for which the others "
        f"wait, {_ranks(used)}"
    )
    alike = [one for one in copies if one.pipeline.placement == used.pipeline.placement]
    others = [one.busy_ms for one in alike if one is not used] or [used.busy_ms]
    usual = np.median(others, axis=0)
    for rank, own_ms, usual_ms in zip(used.pipeline.ranks, used.busy_ms, usual, strict=True):
        if own_ms > _APART * usual_ms:
            yield (
                f"rank {rank} works {milliseconds(own_ms)} an iteration, and the same stages "
                f"{milliseconds(usual_ms)} in the other copies"
            )


def _ranks(used: Iterations) -> str:
    ranks = list(used.pipeline.ranks)
    return f"rank{'s' if len(ranks) > 1 else ''} {listed(ranks)}"


def _range(used: Iterations, steps: Sequence[int]) -> str:
    times = sorted(used.iteration_ms[step] for step in steps)
    low, high = milliseconds(times[0]), milliseconds(times[-1])
    return low if low == high else f"{low.removesuffix(' ms')} to {high}"


# -- what was used and what was not --------------------------------------------------------


def tallied(used: Iterations, copies: Sequence[Iterations]) -> tuple[Tally, ...]:
    """Return what became of the traces, their iterations and their annotated operators."""
    others = [copy for copy in copies if copy is not used]
    traces = [trace for copy in copies for trace in copy.pipeline.ranks.values()]
    why = f"slower, {_range(used, used.slower)}" if _by_level(used) else "not among the chosen"
    return (
        Tally(
            "trace",
            len(used.pipeline.ranks),
            [
                Dropped(
                    "of a faster copy of the pipeline",
                    [trace.file for copy in others for trace in copy.pipeline.ranks.values()],
                )
            ],
        ),
        Tally(
            "iteration",
            len(used.used),
            [
                Dropped("partial", [f"{step} lacks {what}" for step, what in used.partial.items()]),
                Dropped(why, list(map(str, _not_chosen(used)))),
            ],
        ),
        Tally(
            "operator",
            _operators(used, used.used),
            [
                Dropped("in a partial iteration", _named(used, used.partial)),
                Dropped(f"in an iteration that is {why}", _named(used, _not_chosen(used))),
                Dropped(
                    "of a faster copy of the pipeline",
                    [name for copy in others for name in _named(copy, copy.pipeline.iterations)],
                ),
                *_left_out(traces),
            ],
        ),
        Tally(
            "other annotation",
            0,
            [
                Dropped(
                    MESSAGES,
                    [
                        f"{trace.file}, {place}"
                        for trace in traces
                        for place in trace.dropped.get(MESSAGES, ())
                    ],
                )
            ],
        ),
    )


def _fast(used: Iterations) -> list[int]:
    return [step for step in used.complete if step not in used.slower]


def _by_level(used: Iterations) -> bool:
    """Whether the slower iterations are what was left out."""
    return bool(used.slower) and used.used == _fast(used)


def _not_chosen(used: Iterations) -> list[int]:
    return [step for step in used.complete if step not in used.used]


def _operators(used: Iterations, steps: Sequence[int]) -> int:
    return sum(len(ops) for step in steps for ops in used.pipeline.iterations[step])


def _named(used: Iterations, steps: Iterable[int]) -> list[str]:
    """The operators of some iterations, by name."""
    return [
        f"iteration {step}, {op}"
        for step in steps
        for ops in used.pipeline.iterations[step]
        for op in ops
    ]


def _left_out(traces: Sequence[KinetoTrace]) -> Iterator[Dropped]:
    """What was left out while the traces were read, by reason."""
    places: dict[str, list[str]] = {}
    for trace in traces:
        nameless = {
            "without a stage, where others name theirs": [
                f"{action.kind} {action.microbatch}"
                for ops in trace.iterations.values()
                for action in ops
                if trace.names_stages and action.stage is None
            ]
        }
        for why, found in (trace.dropped | nameless).items():
            if why != MESSAGES:
                places.setdefault(why, []).extend(f"{trace.file}, {name}" for name in found)
    return (Dropped(why, found) for why, found in places.items())
