"""The application: its commands, its version, and how errors end."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import pipesim
from pipesim.cli import (
    budget,
    calibrate,
    compare,
    explain,
    export,
    importing,
    optimal,
    plan,
    planners,
    replay,
    simulate,
    validate,
)
from pipesim.cli.exit import fail
from pipesim.cli.grouping import grouped
from pipesim.cli.output import show_text
from pipesim.errors import PipesimError

__all__ = ["app"]

# Typer names only a subclass of what it and Click raise for wrong usage.
(_UsageError,) = typer.BadParameter.__bases__

_INTERRUPTED = 130
"""What a command returns to Typer's main, by its own account, on Ctrl-C."""


class _Commands(TyperGroup):
    """A group of commands whose errors are one line on standard error and exit code 2."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run one command and exit."""
        given = list(sys.argv[1:] if args is None else args)
        try:
            code = super().main(
                args=given or ["--help"],
                prog_name=prog_name,
                complete_var=complete_var,
                standalone_mode=False,
                windows_expand_args=windows_expand_args,
                **extra,
            )
        except PipesimError as error:
            fail(str(error))
        except MemoryError:
            fail("out of memory: is the scenario really that large?")
        except OSError as error:
            place = f"{error.filename}: " if error.filename else ""
            fail(f"{place}{error.strerror or error}")
        except typer.Abort:
            fail("interrupted")
        except Exception as error:
            if isinstance(error, _UsageError):
                fail(_usage(error))
            if os.environ.get("PIPESIM_TRACEBACK"):
                raise
            fail(
                f"a bug in pipesim, {type(error).__name__}: {error} "
                "(set PIPESIM_TRACEBACK=1 to see where)"
            )
        if code == _INTERRUPTED:
            fail("interrupted")
        sys.exit(code if isinstance(code, int) else 0)


def _usage(error: Any) -> str:
    """Return the message of a usage error in our style, and where to read on."""
    message = str(error.format_message()).strip().rstrip(".")
    message = message[:1].lower() + message[1:]
    path = error.ctx.command_path if error.ctx else "pipesim"
    return f"{message} (see {path} --help)"


app = typer.Typer(
    name="pipesim",
    cls=_Commands,
    help="Simulate and plan pipeline-parallel training over slow links.",
    epilog="\b\nExample:\n  pipesim compare --delay 20ms --link 0",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        show_text(f"pipesim {pipesim.__version__}\n")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Simulate and plan pipeline-parallel training over slow links."""


def _example(*lines: str) -> str:
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)


for command, epilog in (
    (
        compare.compare,
        _example(
            "pipesim compare --delay 20ms --link 0",
            "pipesim compare --scenario traces/a10-gpt-7b.toml --slow 2=60ms --plot a10.png",
        ),
    ),
    (plan.plan, _example("pipesim plan --delay 20ms --link 0 -o plan.json")),
    (
        optimal.optimal,
        _example(
            "pipesim optimal --delay 20ms --link 0",
            "pipesim optimal --slow 1=20ms --memory-limit 5 --solver cpsat --json",
        ),
    ),
    (
        simulate.simulate,
        _example(
            "pipesim simulate plan.json --delay 20ms --link 0 --transport delegated",
            "pipesim simulate --planner 1f1b --stages 8 --transport exchange --plot 1f1b.svg",
        ),
    ),
    (
        replay.replay,
        _example(
            "pipesim replay --planner pipemorph --delay 20ms --link 0 --transport delegated",
            "pipesim replay plan.json --transport nccl --compute model --trace run.json",
        ),
    ),
    (budget.budget, _example("pipesim budget --slow 0=20ms --slow 2=5ms")),
    (
        explain.explain,
        _example(
            "pipesim explain traces/a10-gpt-7b.toml --slow 2=60ms --transport nccl",
            "pipesim explain run.toml plan.json --transport exchange --plot causes.png",
        ),
    ),
    (
        export.export,
        _example("pipesim export plan.json --format chrome-trace -o plan-trace.json"),
    ),
    (
        calibrate.calibrate,
        _example(
            "pipesim calibrate traces/measured_iterations.csv --timelines traces/a10_timelines "
            "-o calibration.toml"
        ),
    ),
    (
        validate.validate,
        _example(
            "pipesim validate traces/measured_iterations.csv --calibration traces/calibration.toml",
            "pipesim validate traces/production/trace-ST.parquet --format production",
        ),
    ),
    (planners.planners, _example("pipesim planners")),
):
    app.command(epilog=epilog)(grouped(command))

imports = typer.Typer(
    name="import",
    help="Make a scenario or a plan from the files of another tool.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
for kind, epilog in (
    (
        importing.timeline,
        _example("pipesim import timeline zerobubble.csv 1f1b.csv -o scenario.toml"),
    ),
    (
        importing.production,
        _example("pipesim import production traces/production/trace-ST.parquet -o scenario.toml"),
    ),
    (
        importing.megatron,
        _example("pipesim import megatron --stages 4 --microbatches 12 train.log -o scenario.toml"),
    ),
    (
        importing.profiler,
        _example("pipesim import profiler rank0.json.gz rank1.json.gz -o scenario.toml"),
    ),
    (
        importing.torch_csv,
        _example("pipesim import torch-csv schedule.csv -o plan.json"),
    ),
):
    imports.command(epilog=epilog)(grouped(kind))


@imports.callback()
def _imports() -> None:
    """Make a scenario or a plan from the files of another tool."""


app.add_typer(imports)
