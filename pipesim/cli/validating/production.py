"""``pipesim validate`` of a production trace: a replay, a what-if, and a prediction."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pipesim.cli.output import Column, note, progress, show, show_json, show_rows, wrapped
from pipesim.text import fixed, listed, milliseconds, percent

if TYPE_CHECKING:
    from pipesim.fidelity.jobs.from_other_steps import FromOtherSteps
    from pipesim.fidelity.jobs.replay_check import ReplayCheck
    from pipesim.fidelity.jobs.whatif import WhatIf

__all__ = ["validate_production"]

MOST_WORKERS = 6
"""Columns of the attribution: of more workers, those that cost most are shown."""


def validate_production(measured: Path, json: bool, quiet: bool) -> None:
    """Check a production trace, and print what was found."""
    from pipesim.fidelity.jobs.production import check_production
    from pipesim.formats.production import read_production

    with progress(quiet) as report:
        report(f"reading {measured}")
        found = check_production(read_production(measured), report)
    if json:
        show_json(found.as_dict())
        return
    _show_replay(found.replay, quiet)
    _show_what_if(found.what_if, quiet)
    if found.from_other_steps:
        _show_prediction(found.from_other_steps)
    if not quiet:
        for line in found.notes:
            note(line)


def _show_replay(found: ReplayCheck, quiet: bool) -> None:
    median, ninetieth, largest = np.quantile(found.abs_errors, [0.5, 0.9, 1.0]).tolist()
    if not quiet:
        show(
            "Replay check: every step is run again from its own measured durations. It predicts "
            "nothing.",
            "",
        )
    show(
        f"steps                  {found.steps} ({len(found.rows)} over all data-parallel ranks)",
        f"median absolute error  {percent(median, 4)}",
        f"90th percentile        {percent(ninetieth, 4)}",
        f"largest                {percent(largest, 4)}",
        "",
    )


def _show_what_if(found: WhatIf, quiet: bool) -> None:
    if not quiet:
        show(
            "What-if: without stragglers every operator takes the mean of its kind, all "
            "communication the median of its kind.",
            "",
        )
    gaps = found.step_ms / found.measured_ms - 1
    show(
        f"step, measured         {milliseconds(found.measured_ms)}",
        f"step, simulated        {milliseconds(found.step_ms)} "
        f"({fixed(100 * gaps, 1, signed=True)} %: without launch delays)",
        f"without stragglers     {milliseconds(found.ideal_ms)}",
        f"slowdown               {fixed(found.slowdown, 3)}",
        "",
    )
    if found.attributed:
        _show_attribution(found, quiet)


def _show_attribution(found: WhatIf, quiet: bool) -> None:
    if not quiet:
        lost = milliseconds(found.step_ms - found.ideal_ms)
        show(
            wrapped(
                f"Share of the {lost} lost that comes back if one part only is healed (below 0: it "
                "is faster than the mean), and the slowdown if all others are:",
                "",
            ),
            "",
        )
    shown = np.sort(np.argsort(-found.healed_workers, kind="stable")[:MOST_WORKERS]).tolist()
    devices = range(len(found.healed_stages))
    show_rows(
        Column("pp rank", [*map(str, devices), "all", "slowdown"], numeric=False),
        [
            Column("all\n%", [*map(_share, found.healed_stages), "", ""]),
            *(
                Column(
                    f"dp rank {found.workers[w]}\n%",
                    [
                        *(_share(found.healed_ranks[d, w]) for d in devices),
                        _share(found.healed_workers[w]),
                        fixed(found.alone_workers[w], 3),
                    ],
                )
                for w in shown
            ),
            Column("slow-\ndown", [*(fixed(s, 3) for s in found.alone_stages), "", ""]),
        ],
    )
    if len(found.workers) > len(shown) and not quiet:
        show("", f"Of {len(found.workers)} workers, those that cost most.")
    kinds = listed([f"{kind} {_share(share)} %" for kind, share in found.healed_kinds.items()])
    ranks = [f"pp rank {d} of dp rank {found.workers[w]}" for d, w in found.slowest]
    some = listed(ranks if len(ranks) < 5 else [*ranks[:3], f"{len(ranks) - 3} more"])
    show(
        "",
        wrapped(f"By kind: {kinds}", "  "),
        f"The last stage: {_share(found.healed_stages[-1])} % (M_S)",
        wrapped(f"The slowest 3 % of ranks: {_share(found.healed_slowest)} % (M_W; {some})", "  "),
        "",
    )


def _share(share: float) -> str:
    return fixed(100 * share, 1)


def _show_prediction(found: FromOtherSteps) -> None:
    own, naive = (f"{fixed(100 * one, 2)} %" for one in (found.mape, found.naive_mape))
    verdict = "is closer" if found.mape < found.naive_mape else "is not closer"
    show(
        wrapped(
            f"Each step predicted from the other {len(found.steps) - 1} only: mean absolute error "
            f"{own} simulated from the medians of their operators, {naive} if it is taken to last "
            f"as long as their median. The simulation {verdict}.",
            "  ",
        )
    )
