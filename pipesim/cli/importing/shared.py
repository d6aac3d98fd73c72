"""What the kinds of ``pipesim import`` share: their options, and what is said in the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

from typer import Option

from pipesim.cli import parsing
from pipesim.cli.options import parsed
from pipesim.cli.output import Column, Outputs, note, progress, show, show_rows, wrapped
from pipesim.documents.scenario_toml import save_scenario
from pipesim.documents.words import described
from pipesim.fidelity.import_check import ImportCheck, check_import
from pipesim.formats.measurement import Measurement
from pipesim.formats.tally import Tally
from pipesim.text import counted, fixed, milliseconds

__all__ = [
    "ExplainDrops",
    "MessageBytes",
    "Name",
    "Output",
    "Source",
    "imported",
    "labels",
    "show_tallies",
]

_FEW = 60
"""Characters in which places are named, unless all are asked for."""

Output = Annotated[Path, Option("--output", "-o", metavar="FILE", help="The scenario to write.")]
MessageBytes = Annotated[
    float, Option(metavar="BYTES", min=0, help="Size of a message; the files do not tell it.")
]
Name = Annotated[
    str, Option(metavar="TEXT", help="Name of the scenario (default: the first file's).")
]
ExplainDrops = Annotated[
    bool,
    Option(
        "--explain-drops", help="List each line, iteration and rank that was not used, and why."
    ),
]
Source = Annotated[str, Option(metavar="TEXT", help="Who measured it, and where.")]


def labels(iterations: str | None) -> list[str] | None:
    """Read the iterations that were named."""
    return None if iterations is None else parsed("--iterations", parsing.names, iterations)


def imported(
    read: Callable[[], Measurement],
    files: Sequence[Path],
    output: Path,
    quiet: bool,
    explain_drops: bool = False,
) -> None:
    """Read a measurement, write its scenario, and say what became of the files.

    Whether it can be trusted is told even where nothing else is.
    """
    outputs = Outputs({"--output": output}, *files)
    with progress(quiet) as report:
        report(f"reading {counted(len(files), 'file')}")
        measurement = read()
        report("simulating the scenario")
        check = check_import(measurement)
    save_scenario(measurement.scenario, output)
    if not quiet:
        show(wrapped(described(measurement.scenario), "  "), "")
        if measurement.tallies:
            show_tallies(measurement.tallies, explain_drops, files)
        show(*(wrapped(f"- {_short(text, files)}", "  ") for text in measurement.notes), "")
    show(wrapped(_checked(check), "  "))
    if check is not None and check.doubtful:
        note(f"warning: {_warned(check)}")
    outputs.written(quiet=quiet)


def _short(text: str, files: Sequence[Path]) -> str:
    """Call files by their names alone, where these tell them apart."""
    if len({file.name for file in files}) == len(files):
        for file in files:
            text = text.replace(str(file), file.name)
    return text


def show_tallies(tallies: Sequence[Tally], explain_drops: bool, files: Sequence[Path] = ()) -> None:
    """Print how much was found, used and not used; and, if asked, each thing that was not."""
    show_rows(
        Column("", [f"{tally.noun}s" for tally in tallies], numeric=False),
        [
            Column("found", [f"{tally.found:,}" for tally in tallies]),
            Column("used", [f"{tally.used:,}" for tally in tallies]),
            Column("", [tally.of for tally in tallies], numeric=False),
        ],
    )
    show("")
    dropped = [(tally.noun, part) for tally in tallies for part in tally.dropped]
    for noun, part in dropped:
        count = f"{part.count:,} {noun}{'' if part.count == 1 else 's'}"
        text = f"not used: {count}, {part.why}"
        if explain_drops:
            show(wrapped(f"{text}:", "  "))
            show(*(wrapped(f"  {_short(place, files)}", "    ") for place in part.places))
        else:
            places = _few([_short(place, files) for place in part.places[:_FEW]])
            show(wrapped(f"{text} ({places})", "  "))
    if dropped or explain_drops:
        show(*([] if dropped else ["nothing was dropped"]), "")


def _few(places: Sequence[str]) -> str:
    """As many places as fit on a line, at least one."""
    comma = "; " if any(", " in place for place in places) else ", "
    shown = list(places[:1])
    for place in places[1:]:
        if len(comma.join([*shown, place])) > _FEW:
            return comma.join([*shown, "…"])
        shown.append(place)
    return comma.join(shown)


def _checked(check: ImportCheck | None) -> str:
    if check is None:
        return "Check: the files tell no iteration time to compare the scenario with"
    if check.guessed:
        return (
            f"Check: none. The operator times were guessed from the iteration time, "
            f"{milliseconds(check.measured_ms)}, which {check.how} gives back as "
            f"{milliseconds(check.simulated_ms)}"
        )
    return (
        f"Check: the scenario takes {milliseconds(check.simulated_ms)} simulated ({check.how}), "
        f"and {milliseconds(check.measured_ms)} in the files: {_error(check)}"
    )


def _warned(check: ImportCheck) -> str:
    return (
        f"the scenario takes {milliseconds(check.simulated_ms)} and the files say "
        f"{milliseconds(check.measured_ms)}, {_error(check)}: what was read is in doubt"
    )


def _error(check: ImportCheck) -> str:
    return f"{fixed(100 * check.error, 1, signed=True)} %"
