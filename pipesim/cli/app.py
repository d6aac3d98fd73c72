"""The application: its commands, its version, and how errors end."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

import pipesim.cli
from pipesim.cli import importing, tracing
from pipesim.cli.exit import fail, out_of_memory
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
            fail(out_of_memory())
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


class _Command(TyperCommand):
    """A command whose help shows a list of files as files, not as the type that holds them."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for param in self.params:
            if param.param_type_name == "argument" and param.nargs != 1:
                vars(param)["display_type"] = lambda ctx: "<path>"


_PLAINLY = {
    r"Input should be a valid integer.*": "it must be a whole number",
    r"Input should be a valid number.*": "it must be a number",
    r"Input should be greater than or equal to": "it must be at least",
    r"Input should be less than or equal to": "it must be at most",
}
"""What Typer says of a value, and how we say it."""


def _usage(error: Any) -> str:
    """Return the message of a usage error in our style, and where to read on."""
    message = str(error.format_message()).strip().rstrip(".")
    for pattern, words in _PLAINLY.items():
        message = re.sub(pattern, words, message)
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


_ORDER = (
    "compare",
    "plan",
    "optimal",
    "simulate",
    "replay",
    "budget",
    "explain",
    "export",
    "calibrate",
    "validate",
    "planners",
)
"""In which commands are listed; any others come after them."""


def _commands(
    package: ModuleType, first: Sequence[str] = ()
) -> Iterator[tuple[Callable[..., None], Sequence[str]]]:
    """Yield the commands of a package and their examples: its modules that have some.

    A command is the function that has its module's name.
    """
    names = [module.name for module in iter_modules(package.__path__)]
    for name in sorted(names, key=lambda name: (*first, name).index(name)):
        module = import_module(f"{package.__name__}.{name}")
        if hasattr(module, "EXAMPLES"):
            yield getattr(module, name), module.EXAMPLES


def _epilog(examples: Sequence[str]) -> str:
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in examples)


for command, examples in _commands(pipesim.cli, first=_ORDER):
    app.command(cls=_Command, epilog=_epilog(examples))(grouped(command))


def _add_group(name: str, package: ModuleType, about: str) -> None:
    """Add the commands of a package as ``pipesim NAME COMMAND``."""
    group = typer.Typer(
        name=name, help=about, rich_markup_mode=None, pretty_exceptions_enable=False
    )
    for command, examples in _commands(package):
        group.command(cls=_Command, epilog=_epilog(examples))(grouped(command))
    group.callback()(lambda: None)  # else a group of one command is that command
    app.add_typer(group, help=about)


_add_group("import", importing, "Make a scenario or a plan from the files of another tool.")
_add_group("trace", tracing, "Make, show and run traces of delays that change over time.")
