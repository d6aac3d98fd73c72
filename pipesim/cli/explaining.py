"""What ``pipesim explain`` does with a production trace: a whole job, worker by worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from pipesim.cli.options.plan_file import begins
from pipesim.cli.output import Column, Outputs, note, progress, show, show_json, show_rows, wrapped
from pipesim.errors import ScenarioError
from pipesim.explain.diagnosis import NEGLIGIBLE
from pipesim.explain.operator_times import OUTLIER
from pipesim.fidelity.import_check import DOUBTFUL
from pipesim.files import write_csv
from pipesim.text import counted, decimals, fixed, milliseconds, percent

if TYPE_CHECKING:
    from pipesim.fidelity.jobs.stragglers import JobExplanation
    from pipesim.fidelity.jobs.suspects import Suspect

__all__ = ["explain_trace", "is_trace", "only_for_scenarios"]


def is_trace(file: Path) -> bool:
    """Whether a file is a production trace, by its name or its first bytes."""
    return file.suffix.lower() in (".parquet", ".pq") or begins(file, b"PAR1")


def only_for_scenarios(given: Sequence[object], **options: object) -> None:
    """Refuse options that say what else to run: a trace is explained as it ran.

    Parameters
    ----------
    given : sequence of dataclass
        Groups of options, which must all be at their defaults.
    options
        Single ones by name; None if not given.
    """
    for group in given:
        for one in fields(group):  # type: ignore[arg-type]
            value = getattr(group, one.name)
            if value != one.default:
                options[one.name] = value
    for name, value in options.items():
        if value is not None:
            raise ScenarioError(
                f"--{name.replace('_', '-')} is for scenarios: a production trace is explained as "
                "it ran"
            )


def explain_trace(
    file: Path, *, outlier: float, json: bool, csv_file: Path | None, plot: Path | None, quiet: bool
) -> None:
    """Explain a production trace: which worker, which stage, which link."""
    from pipesim.fidelity.jobs.stragglers import explain_job
    from pipesim.fidelity.jobs.suspects import Suspect
    from pipesim.formats.production import read_production

    outputs = Outputs({"--csv": csv_file, "--plot": plot}, file)
    with progress(quiet) as report:
        report(f"reading {file}")
        trace = read_production(file)
        pause = {} if outlier == OUTLIER else {"pause": outlier}
        found = explain_job(trace, **pause, report=lambda what: report(f"simulating {what}"))
        if plot:
            from pipesim.plot import save
            from pipesim.plot.job import steps

            save(steps(found, title=file.stem), plot)
        if csv_file:
            empty = Suspect("", "", 0.0).as_dict()
            write_csv(csv_file, list(empty), [one.as_dict() for one in found.suspects])
    if json:
        show_json(found.as_dict())
    else:
        _show(found, file, quiet)
    if not quiet:
        for text in found.notes:
            note(text)
    if abs(found.error) > DOUBTFUL:
        note(
            f"warning: the step comes out as {milliseconds(found.simulated_ms)}, and "
            f"{milliseconds(found.measured_ms)} were measured: what-ifs are in doubt"
        )
    outputs.written(quiet=quiet)


def _show(found: JobExplanation, file: Path, quiet: bool) -> None:
    digits = decimals(found.simulated_ms)

    def ms(value: float) -> str:
        return fixed(value, digits)

    def gain(value: float) -> str:
        return fixed(100 * (value / found.simulated_ms - 1), 1, signed=True)

    if not quiet:
        show(f"{file.stem}: {found.shape}, medians over {counted(found.steps, 'step')}", "")
    if found.suspects:
        show_rows(
            Column("without", ["nothing", *(_label(one) for one in found.suspects)], numeric=False),
            [
                Column("alone\nms", [ms(found.simulated_ms), *(ms(one.without_ms) for one in
                                                               found.suspects)]),
                Column("\n%", ["", *(gain(one.without_ms) for one in found.suspects)]),
                Column("in order\nms", [ms(found.simulated_ms), *(ms(one.in_order_ms) for one in
                                                                  found.suspects)]),
                Column("\n%", ["", *(gain(one.in_order_ms) for one in found.suspects)]),
            ],
        )  # fmt: skip
        show("", *(wrapped(f"- {one.what}", "  ") for one in found.suspects))
    if found.slow_steps:
        show(*([""] if found.suspects else []), "Steps that take longer than most:", "")
        show_rows(
            Column("step", [str(one.step) for one in found.slow_steps], numeric=False),
            [
                Column("measured\nms", [ms(one.measured_ms) for one in found.slow_steps]),
                Column("simulated\nms", [ms(one.simulated_ms) for one in found.slow_steps]),
                Column("without\nms", [ms(one.without_ms) for one in found.slow_steps]),
                Column("what stands out", [one.what for one in found.slow_steps], numeric=False),
            ],
        )
    if quiet:
        return
    show(*([""] if found.suspects or found.slow_steps else []), _workers(found))
    show(
        wrapped(
            f"Check: the step takes {milliseconds(found.simulated_ms)} simulated from its own "
            f"times (messages over {found.transport}), and {milliseconds(found.measured_ms)} "
            f"measured: {fixed(100 * found.error, 1, signed=True)} %",
            "  ",
        ),
        "",
        _diagnosis(found),
    )


def _label(one: Suspect) -> str:
    """Where it is, without how much: the factors stand below the table."""
    return one.what.partition(":")[0]


def _workers(found: JobExplanation) -> str:
    ordered = sorted(found.workers, key=lambda one: -one[1])
    (slowest, own), others = ordered[0], ordered[1:]
    text = f"The slowest worker is dp rank {slowest}, {milliseconds(own)}"
    if not others:
        return f"The only worker is dp rank {slowest}, {milliseconds(own)}"
    low, high = others[-1][1], others[0][1]
    span = milliseconds(high) if low == high else f"{low:.1f} to {milliseconds(high)}"
    return f"{text}; the other{'s' if len(others) > 1 else ''}: {span}"


def _diagnosis(found: JobExplanation) -> str:
    """The one sentence that says what to look at first."""
    as_it_is = found.simulated_ms
    costly = [one for one in found.suspects if 1 - one.in_order_ms / as_it_is > NEGLIGIBLE]
    if not costly:
        if found.slow_steps:
            return "In the usual steps nothing stands apart; look at the slow ones."
        return (
            "No worker, stage or link stands apart. What the pipeline itself loses: import it, "
            "and explain the scenario."
        )
    first = costly[0]
    where, _, how = first.what.partition(": ")
    cause = {
        "worker": f"It is a slow worker: {where} ({how})",
        "rank": f"It is a slow rank: {where} ({how})",
        "link": f"It is a slow link: {where} ({how})",
        "stage": f"It is the imbalance of the stages, not a slow worker: {where} ({how})",
        "pauses": f"It is operators that pause ({how})",
        "micro-batches": f"It is the unlike length of micro-batches, not a slow worker ({how})",
    }[first.kind]
    text = (
        f"{cause}. The step takes {milliseconds(first.in_order_ms)} without it, "
        f"{percent(1 - first.in_order_ms / as_it_is)} less"
    )
    if len(costly) > 1:
        text += (
            f", and {milliseconds(found.healthy_ms)} without all of those above, "
            f"{percent(1 - found.healthy_ms / as_it_is)} less"
        )
    return f"{text}."
