"""``pipesim trace detect``: how soon detectors notice slow links, and what they only imagine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from pipesim.adapt.detectors import DETECTORS, detector_from
from pipesim.adapt.scores import Score, evaluate
from pipesim.adapt.series import WAYS, traced
from pipesim.cli import parsing
from pipesim.cli.options import Json, Quiet, parsed
from pipesim.cli.output import Column, Outputs, progress, show, show_json, show_rows
from pipesim.cli.tracing.reading import CountsBy, trace_in
from pipesim.errors import ScenarioError
from pipesim.files import write_csv
from pipesim.text import fixed, percent

__all__ = ["detect"]

EXAMPLES = (
    "pipesim trace detect",
    "pipesim trace detect --detectors ratio,ratio:enter=2,cusum:jitter=0.1 --jitter 10%",
    "pipesim trace detect traces/production_hour.csv --base 2ms",
)


def detect(
    trace: Annotated[
        Path | None,
        Argument(metavar="[TRACE]", help="A delay trace to judge by, instead of made-up series."),
    ] = None,
    detectors: Annotated[
        str,
        Option(
            metavar="NAMES",
            help="Judge these: a comma list of NAME[:OPTION=NUMBER,…], where NAME is "
            f"{', '.join(DETECTORS)} (default: all).",
        ),
    ] = ",".join(DETECTORS),
    by: CountsBy = None,
    jitter: Annotated[
        str, Option(metavar="PART", help="Standard deviation of measured times, such as 5%.")
    ] = "5%",
    base: Annotated[
        str, Option(metavar="TIME", help="What a message takes over a healthy link.")
    ] = "10ms",
    iteration: Annotated[
        str,
        Option(metavar="TIME", help="How long an iteration takes, under a TRACE over time."),
    ] = "800ms",
    trials: Annotated[
        int, Option(metavar="N", min=1, max=10_000, help="Series of each made-up case.")
    ] = WAYS,
    seed: Annotated[int, Option(metavar="N", min=0, help="Seed of the noise.")] = 0,
    json: Json = False,
    csv_file: Annotated[
        Path | None, Option("--csv", metavar="FILE", help="Write the rows as CSV.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Judge detectors of slow links by series whose truth is known.

    A detector sees one number an iteration for each link and direction, the median transfer time
    of its messages. Counted are the slowdowns that it missed, the iterations until it called a
    link slow and then healthy again (1: by the first measurement; mean and 90th percentile),
    false alarms in 1,000 iterations of healthy links, the mean error of the estimated delay, and
    how often the estimate changed for each change of the delay: more than 1 is planning for
    nothing.

    The made-up series are steps of several sizes, bursts of several lengths, changing levels, a
    ramp, a drifting baseline, a link whose messages take no time, single outliers, and hours
    in which nothing happens.
    """
    outputs = Outputs({"--csv": csv_file}, trace)
    names = parsed("--detectors", _detectors, detectors)
    noise = parsed("--jitter", parsing.part, jitter)
    base_ms = parsed("--base", parsing.duration_ms, base)
    iteration_ms = parsed("--iteration", parsing.duration_ms, iteration)
    if not iteration_ms:
        raise ScenarioError("--iteration: an iteration takes longer than 0ms")
    ways = trace and list(
        traced(
            trace_in(trace, by),
            iteration_ms=iteration_ms,
            jitter=noise,
            seed=seed,
            base_ms=base_ms,
        )
    )
    with progress(quiet) as report:
        scores = evaluate(
            names,
            jitter=noise,
            seed=seed,
            trials=trials,
            base_ms=base_ms,
            series={trace.name: ways} if trace and ways else None,
            report=report,
        )
    records = [score.as_dict() for score in scores]
    if csv_file:
        write_csv(csv_file, list(records[0]), records)
    if json:
        show_json({"jitter": noise, "base_ms": base_ms, "seed": seed, "rows": records})
    else:
        if not quiet:
            series = "directions of a link" if ways else "series of each case"
            count = len(ways) if ways else trials
            show(f"{count} {series}, {base} a message, jitter {percent(noise)}, seed {seed}", "")
        _show_scores(scores, one_case=trace is not None)
    outputs.written(quiet=quiet)


def _detectors(text: str) -> list[str]:
    """Split a comma list of detectors with options, which have commas between them too."""
    found: list[str] = []
    for part in text.split(","):
        if "=" in part and ":" not in part and found:
            found[-1] += f",{part}"
        else:
            found.append(part.strip())
    if len(set(found)) < len(found):
        raise ScenarioError(f"{text!r} names a detector twice")
    for name in found:
        detector_from(name)
    return found


def _show_scores(scores: Sequence[Score], *, one_case: bool) -> None:
    cases = [score.case for score in scores]
    new = [case not in cases[:row] for row, case in enumerate(cases)]
    shown = [case if first else "" for case, first in zip(cases, new, strict=True)]
    detectors = Column("detector", [score.detector for score in scores], numeric=False)
    first, *others = (detectors,) if one_case else (Column("case", shown, numeric=False), detectors)
    show_rows(
        first,
        [
            *others,
            Column("slow-\ndowns", [str(score.slowdowns) for score in scores]),
            Column("missed", [str(score.missed) for score in scores]),
            Column("slow after\niterations", _spans(scores, "detected")),
            Column("healthy after\niterations", _spans(scores, "recovered")),
            Column("false alarms\nin 1,000", [_number(s.false_per_1000, 2) for s in scores]),
            Column("error\n%", [_number(s.error, 1, 100) for s in scores]),
            Column("estimates\na change", [_number(s.estimates, 2) for s in scores]),
        ],
    )


def _spans(scores: Sequence[Score], what: str) -> list[str]:
    """Mean and 90th percentile of a number of iterations."""
    spans = [(getattr(score, what), getattr(score, f"{what}_p90")) for score in scores]
    return [f"{_number(mean, 1)} {_number(most, 0):>3}" for mean, most in spans]


def _number(value: float | None, digits: int, factor: float = 1) -> str:
    return "–" if value is None else fixed(factor * value, digits)
