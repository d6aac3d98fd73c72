"""``pipesim validate``: compare predictions, or replays, with measurements."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from pipesim.cli.options import Json, Quiet
from pipesim.cli.output import Outputs
from pipesim.errors import ScenarioError
from pipesim.fidelity.kinds import KINDS, kind_of

__all__ = ["validate"]

EXAMPLES = (
    "pipesim validate traces/measured_iterations.csv",
    "pipesim validate traces/zero_bubble_throughput.csv",
    "pipesim validate traces/dynamic_iterations.csv",
    "pipesim validate traces/delegation_iterations.csv",
    "pipesim validate traces/production/trace-ST.parquet",
)


def validate(
    measured: Annotated[
        Path, Argument(metavar="FILE", help="Measured runs (CSV), or a production trace (parquet).")
    ],
    calibration: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="The testbeds' constants, from `pipesim calibrate` (for H800 and A10 runs; "
            "default: those that come with pipesim).",
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="The delays over time of dynamic runs (default: dynamic_trace_*.csv beside FILE).",
        ),
    ] = None,
    source: Annotated[
        str | None,
        Option(
            "--format",
            metavar="FORMAT",
            help=f"What FILE holds: {', '.join(KINDS)} (default: found out from the file).",
        ),
    ] = None,
    json: Json = False,
    plot: Annotated[
        Path | None,
        Option(metavar="FILE", help="Draw predicted against measured times (.png, .svg, .pdf)."),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Predict measured runs and say how far off the predictions are.

    For each run, the iteration under the delay is predicted from its shape, its healthy
    iteration and the constants of its testbed.

    Runs of which FILE has every iteration are predicted iteration by iteration: dynamic ones,
    whose delays change while they run, and those that delegate all transfers. Their figures are
    those of the medians of settled iterations.

    Measured throughput needs no calibration: rows are predicted from the profiled times beside
    them and one measured row of their model.

    A production trace gets a replay check, which predicts nothing: each step is run again from
    its own operator times. Its length shows whether the dependencies are right. Then come the
    job's slowdown by stragglers (the published what-if analysis), the share of each stage, worker
    and rank, and each step predicted from the other steps only, beside their median.
    """
    outputs = Outputs({"--plot": plot}, measured, calibration, trace)
    kind = source or kind_of(measured)
    if kind not in KINDS:
        raise ScenarioError(f"--format {kind!r} is none of {', '.join(KINDS)}")
    for option, value, kinds in (
        ("--calibration", calibration, ("runs", "dynamic", "delegation")),
        ("--plot", plot, ("runs",)),
        ("--trace", trace, ("dynamic",)),
    ):
        if value and kind not in kinds:
            raise ScenarioError(f"{option} is for {_NAMES[kinds[0]]}, not for {_NAMES[kind]}")
    if kind == "production":
        from pipesim.cli.validating.production import validate_production

        validate_production(measured, json, quiet)
    elif kind == "throughput":
        from pipesim.cli.validating.throughput import validate_throughput

        validate_throughput(measured, json, quiet)
    else:
        from pipesim.cli.validating.iterations import validate_delegation, validate_dynamic
        from pipesim.cli.validating.runs import validate_runs
        from pipesim.fidelity.calibration_file import load_calibration
        from pipesim.fidelity.shipped import shipped

        testbeds = load_calibration(calibration) if calibration else shipped()
        if kind == "dynamic":
            validate_dynamic(measured, testbeds, trace, json, quiet)
        elif kind == "delegation":
            validate_delegation(measured, testbeds, json, quiet)
        else:
            validate_runs(measured, testbeds, json, plot, quiet)
    outputs.written(quiet=quiet)


_NAMES = {
    "runs": "runs",
    "dynamic": "dynamic runs",
    "delegation": "delegation runs",
    "production": "production traces",
    "throughput": "measured throughput",
}
