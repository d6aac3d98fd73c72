"""``pipesim trace make``: generate a delay trace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from pipesim.adapt.generation import generate
from pipesim.cli import parsing
from pipesim.cli.options import Quiet, parsed
from pipesim.cli.output import Outputs, show
from pipesim.cli.tracing.words import summary
from pipesim.documents.delay_csv import save_trace

__all__ = ["make"]

EXAMPLES = (
    "pipesim trace make -o hour.csv",
    "pipesim trace make --links 3 --duration 10min --burst 20s --seed 1 -o short.csv",
)


def make(
    output: Annotated[Path, Option("--output", "-o", metavar="FILE", help="The trace to write.")],
    links: Annotated[int, Option(metavar="N", min=1, max=1000, help="Number of links.")] = 7,
    duration: Annotated[str, Option(metavar="TIME", help="Length of the trace.")] = "1h",
    median: Annotated[
        str, Option(metavar="TIME", help="Median of the slowest link's delay over all the time.")
    ] = "13ms",
    p99: Annotated[str, Option("--p99", metavar="TIME", help="Its 99th percentile.")] = "79.3ms",
    burst: Annotated[str, Option(metavar="TIME", help="Mean length of a burst.")] = "60s",
    level: Annotated[
        str, Option(metavar="TIME", help="Mean time from one delay to the next in a burst.")
    ] = "40s",
    seed: Annotated[int, Option(metavar="N", min=0, help="Another seed gives another trace.")] = 0,
    quiet: Quiet = False,
) -> None:
    """Generate a delay trace like an hour in production: links that are slow in bursts.

    Each link is calm or in a burst, for exponential times; within a burst the delay changes now and
    then, and delays are lognormal. The delay of the slowest link at each moment, over the whole
    trace, has exactly the median and the 99th percentile that are asked for; the defaults are those
    published of a production hour. For 10 to 25 % of the time no link is slow.

    The file has a line for each change, with the delay of each link from then on.
    """
    outputs = Outputs({"--output": output})
    trace = generate(
        links,
        duration_ms=parsed("--duration", parsing.duration_ms, duration),
        median_ms=parsed("--median", parsing.duration_ms, median),
        p99_ms=parsed("--p99", parsing.duration_ms, p99),
        burst_ms=parsed("--burst", parsing.duration_ms, burst),
        level_ms=parsed("--level", parsing.duration_ms, level),
        seed=seed,
    )
    save_trace(trace, output)
    if not quiet:
        show(*summary(trace))
    outputs.written(quiet=quiet)
