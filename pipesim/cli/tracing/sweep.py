"""``pipesim trace sweep``: how often to re-plan where delays change all the time."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from typer import Option

from pipesim.cli import parsing
from pipesim.cli.options import (
    Json,
    MessageOptions,
    Quiet,
    ScenarioOptions,
    TestbedOptions,
    head,
    parsed,
)
from pipesim.cli.output import Column, bar, show, show_json, show_rows
from pipesim.errors import ScenarioError
from pipesim.text import fixed, milliseconds

__all__ = ["sweep"]

EXAMPLES = (
    "pipesim trace sweep",
    "pipesim trace sweep --stages 8 --microbatches 24 --change-every 300ms,3s,30s",
)


def sweep(
    scenario: ScenarioOptions,
    messages: MessageOptions,
    where: TestbedOptions,
    change_every: Annotated[
        str, Option(metavar="TIMES", help="Mean times from one change of delays to the next.")
    ] = "300ms,1s,3s,10s,30s",
    replan_every: Annotated[
        str, Option(metavar="NUMBERS", help="Plan at most once in so many iterations.")
    ] = "1,2,5,10",
    duration: Annotated[str, Option(metavar="TIME", help="Length of each job.")] = "1min",
    detector: Annotated[
        str, Option(metavar="NAME[:OPTION=VALUE,…]", help="What tells slow links.")
    ] = "ratio",
    seed: Annotated[int, Option(metavar="N", min=0, help="Seed of the traces.")] = 0,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show how much pace is lost to changes that come faster than new plans.

    All links are slow all the time, by 30 ms on average (standard deviation 10 ms). From one change
    to the next it is 2/3 to 4/3 of the time given; then some links get other delays, as in the
    published dynamic experiments. The gap is to an oracle that knows the delays of each iteration.
    """
    from pipesim.studies.replanning import replanning  # and with it planners

    cluster = where.cluster(messages.message_cost)
    what = scenario.build(cluster=cluster)
    if scenario.injected_as != "occupancy":
        raise ScenarioError("--injection: delays are spent on the sender here (occupancy)")
    if what.occupancy_ms.any():
        raise ScenarioError("all links are slow here: leave out --delay and --slow")
    messages.check_used(["nccl", "delegated"])

    changes = [
        parsed("--change-every", parsing.duration_ms, text) for text in change_every.split(",")
    ]
    with bar(quiet) as report:
        result = replanning(
            what,
            changes,
            parsed("--replan-every", parsing.counts, replan_every),
            duration_ms=parsed("--duration", parsing.duration_ms, duration),
            detector=detector,
            seed=seed,
            over=partial(messages.with_cost, cluster=cluster),
            progress=report,
        )
    if json:
        show_json(
            {
                "scenario": what.summary(),
                "change_every_ms": list(result.change_ms),
                "replan_every": list(result.replan_every),
                "share_of_oracle": result.kept.tolist(),
                "share_of_oracle_without_replanning": result.unplanned.tolist(),
                "oracle_iteration_ms": result.iteration_ms.tolist(),
            }
        )
        return
    if not quiet:
        show(
            *head(what, messages.message_cost_ms, cluster, slow="all links slow"),
            "Gap to the oracle in %, of iterations a minute:",
            "",
        )
    show_rows(
        Column("changes every", [milliseconds(ms) for ms in result.change_ms], numeric=False),
        [
            Column("iteration\nms", [fixed(ms, 1) for ms in result.iteration_ms]),
            *(
                Column(f"re-planned\nevery {every}", [_gap(part) for part in column])
                for every, column in zip(result.replan_every, result.kept.T, strict=True)
            ),
            Column("delegated\nonly", [_gap(part) for part in result.unplanned]),
        ],
    )


def _gap(part: float) -> str:
    return fixed(100 * (1 - part), 1)
