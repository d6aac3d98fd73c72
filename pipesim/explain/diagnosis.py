"""An attribution for people: its lines, and the one sentence that says what to look at first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pipesim.explain.causes import Attribution, Cause, CauseName, StageEffect
from pipesim.text import counted, links, milliseconds, percent, plain

__all__ = ["Line", "diagnosis", "first", "lines"]

NEGLIGIBLE = 0.01
"""A cause that costs up to this part of the iteration is not worth a look."""

MOST_STAGES = 8
"""How many stages get a line of their own: those whose imbalance matters most."""

VISIBLE = 5e-4
"""A stage whose imbalance costs less than this part of the iteration gets no line."""

NAMES: dict[CauseName, str] = {
    "hol": "HOL blocking",
    "dependency": "dependency bubbles",
    "slow operators": "slow operators",
    "stage imbalance": "stage imbalance",
    "micro-batch variation": "micro-batch variation",
    "transport": "transport, on healthy links",
    "warm-up and drain": "warm-up and drain",
    "work": "work of the average device",
}


@dataclass(frozen=True)
class Line:
    """One line of a table or a chart: a cause, or below it one part of it.

    ``cumulative_ms`` is None for a part, ``removal_ms`` for what cannot be removed.
    """

    cause: CauseName
    label: str
    removal_ms: float | None
    cumulative_ms: float | None

    def as_dict(self) -> dict[str, object]:
        """The line in JSON types; ``part`` is empty for a whole cause."""
        return {
            "cause": self.cause,
            "part": self.label if self.is_part else "",
            "removal_ms": self.removal_ms,
            "cumulative_ms": self.cumulative_ms,
        }

    @property
    def is_part(self) -> bool:
        """Whether this is a part of the cause above it."""
        return self.cumulative_ms is None


def lines(found: Attribution) -> tuple[Line, ...]:
    """Return the causes in cumulative order, each followed by those of its parts that matter.

    Parts are single links (where several are slow), the stages with slow operators and the
    worst of these, and the stages that differ most from the mean.

    Examples
    --------
    >>> from pipesim import Scenario, plan
    >>> from pipesim.explain.attribution import attribute
    >>> scenario = Scenario(stages=2, forward_ms=[10, 20])
    >>> [line.label for line in lines(attribute(scenario, plan(scenario, "1f1b")))][3:6]
    ['stage imbalance', 'stage 0 (0.86× the mean)', 'stage 1 (1.14× the mean)']
    """
    result: list[Line] = []
    for cause in found.causes:
        result.append(_line(found, cause))
        result += [Line(cause.name, label, gain, None) for label, gain in _parts(found, cause.name)]
    return tuple(result)


def _line(found: Attribution, cause: Cause) -> Line:
    label = NAMES[cause.name]
    if cause.name in ("hol", "dependency"):
        slow = [link.link for link in found.links]
        label = f"{links(slow) if len(slow) == 1 else 'slow links'}: {label}"
    return Line(cause.name, label, cause.removal_ms, cause.cumulative_ms)


def _parts(found: Attribution, name: CauseName) -> Iterator[tuple[str, float]]:
    if name in ("hol", "dependency") and len(found.links) > 1:
        for link in found.links:
            yield links([link.link]), link.hol_ms if name == "hol" else link.dependency_ms
    if name == "slow operators":
        if len(found.slow_operators) > 1:
            for stage in found.stages:
                if stage.slow_operators:
                    count = counted(stage.slow_operators, "operator")
                    yield f"stage {stage.stage} ({count})", stage.slow_operators_ms
        for slow in found.slow_operators:
            if slow.removal_ms is not None:
                took = f"{plain(slow.duration_ms)} instead of {milliseconds(slow.median_ms)}"
                yield f"{slow.op} ({took})", slow.removal_ms
    if name == "stage imbalance":
        for stage in _uneven(found):
            ratio = f"{stage.ratio:.2f}× the mean"
            yield f"stage {stage.stage} ({ratio})", stage.imbalance_ms


def _uneven(found: Attribution) -> list[StageEffect]:
    """The stages whose imbalance matters most, in model order."""
    seen = [
        stage
        for stage in found.stages
        if abs(stage.imbalance_ms) > VISIBLE * found.iteration_ms
        or (stage.ratio - 1 and round(stage.ratio, 2) != 1)
    ]
    worst = sorted(seen, key=lambda stage: -abs(stage.imbalance_ms))[:MOST_STAGES]
    return sorted(worst, key=lambda stage: stage.stage)


def first(found: Attribution) -> CauseName | None:
    """Return the cause to look at first: the one whose removal alone gains most.

    The slow links count as one cause; the larger of HOL and dependency stands for them.
    None where no removal gains over 1 % of the iteration.
    """
    gains: dict[CauseName, float] = {
        name: found.cause(name).removal_ms or 0.0
        for name in ("slow operators", "stage imbalance", "micro-batch variation", "transport")
    }
    hol, dependency = (found.cause(name).removal_ms or 0.0 for name in ("hol", "dependency"))
    gains["hol" if hol > dependency else "dependency"] = found.links_ms
    best = max(gains, key=lambda name: gains[name])
    return best if gains[best] > NEGLIGIBLE * found.iteration_ms else None


def diagnosis(found: Attribution) -> str:
    """Return one sentence: what to look at first, and what it would gain.

    Examples
    --------
    >>> from pipesim import Scenario, plan
    >>> from pipesim.explain.attribution import attribute
    >>> slow = Scenario().with_delay(20, links=[0])
    >>> print(diagnosis(attribute(slow, plan(slow, "zerobubble"), "nccl")))
    ... # doctest: +NORMALIZE_WHITESPACE
    Look at link 0 first: a healthy one would save 410 ms (51.2 % of the iteration), 88 % of
    it from HOL blocking.
    """
    match first(found):
        case "hol" | "dependency" as worse:
            return f"{_links(found, worse)}."
        case "slow operators":
            return f"{_slow_operators(found)}."
        case "stage imbalance":
            return f"{_imbalance(found)}."
        case "micro-batch variation":
            saved = _saved(found, found.cause("micro-batch variation").removal_ms or 0.0)
            return f"Look at the micro-batches first: equally long ones would save {saved}."
        case "transport":
            cost = _saved(found, found.cause("transport").removal_ms or 0.0)
            return f"Look at the transport first: it costs {cost} on healthy links too."
    rest = found.cause("warm-up and drain").cumulative_ms
    return (
        f"Nothing is slow or uneven enough to matter: warm-up and drain take "
        f"{percent(found.fraction(rest))} of the iteration, the rest is work."
    )


def _links(found: Attribution, worse: CauseName) -> str:
    saved = _saved(found, found.links_ms)
    share = 100 * (found.cause(worse).removal_ms or 0.0) / found.links_ms
    which = f"{'all' if share >= 99.95 else f'{min(share, 99.9):.0f} %'} of it from {NAMES[worse]}"
    if len(found.links) == 1:
        name = links([found.links[0].link])
        return f"Look at {name} first: a healthy one would save {saved}, {which}"
    worst = max(found.links, key=lambda link: link.removal_ms)
    alone = (
        f"{links([worst.link])} alone would save {milliseconds(_rounded(found, worst.removal_ms))}"
        if worst.removal_ms > 0
        else "none of them alone would save anything"
    )
    names = links([link.link for link in found.links])
    return f"Look at {names} first: healthy ones would save {saved}, {which}; {alone}"


def _slow_operators(found: Attribution) -> str:
    saved = _saved(found, found.cause("slow operators").removal_ms or 0.0)
    count = len(found.slow_operators)
    worst = max(found.slow_operators, key=lambda slow: slow.removal_ms or 0.0)
    took = f"takes {milliseconds(worst.duration_ms)} instead of {plain(worst.median_ms)}"
    if count == 1:
        return f"Look at operator {worst.op} first: it {took}, which costs {saved}"
    return (
        f"Look at the {counted(count, 'slow operator')} first: if they were as fast as the others "
        f"of their stage and kind, that would save {saved}; {worst.op} {took}"
    )


def _imbalance(found: Attribution) -> str:
    saved = _saved(found, found.cause("stage imbalance").removal_ms or 0.0)
    worst = max(found.stages, key=lambda stage: stage.imbalance_ms)
    if worst.imbalance_ms <= 0:
        return f"Look at the balance of the stages first: equal stages would save {saved}"
    work = f"it has {worst.ratio:.2f}× the work of the mean stage"
    return f"Look at stage {worst.stage} first: {work}; equal stages would save {saved}"


def _saved(found: Attribution, gain_ms: float) -> str:
    time = milliseconds(_rounded(found, gain_ms))
    return f"{time} ({percent(found.fraction(gain_ms))} of the iteration)"


def _rounded(found: Attribution, time_ms: float) -> float:
    """To a tenth of a millisecond where the iteration takes many."""
    return round(time_ms, 1) if found.iteration_ms >= 100 else time_ms
