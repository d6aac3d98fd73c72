"""``pipesim replay``: a plan on real processes, beside its prediction."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Context, Option

from pipesim.cli import parsing
from pipesim.cli.options import (
    Json,
    PlanOptions,
    Quiet,
    ScenarioOptions,
    TransportOptions,
    one_starting,
    parsed,
)
from pipesim.cli.output import Column, Outputs, progress, show, show_json, show_rows
from pipesim.documents.words import described
from pipesim.errors import ScenarioError, ScheduleError
from pipesim.formats.chrome_trace import save_chrome_trace
from pipesim.replay.prepare import launched, prepare
from pipesim.replay.report import Replayed
from pipesim.replay.run.measured import load_result
from pipesim.replay.run.run import LinkFault, Run
from pipesim.replay.run.run_json import save_run
from pipesim.schedule import Op
from pipesim.target import Target
from pipesim.text import counted, fixed, plain
from pipesim.transport import Transport

if TYPE_CHECKING:
    from pipesim.studies.cluster import Cluster

__all__ = ["replay"]

EXAMPLES = (
    "pipesim replay --planner pipemorph --delay 20ms --link 0 --transport delegated",
    "pipesim replay plan.json --transport nccl --compute model --trace run.json",
)

_TRANSPORTS = ("nccl", "exchange", "delegated")
_FAULT = re.compile(r"([0-9A-Z]+)(?:@([0-9]{1,9}))?(?::(raise|stop))?")
_SHOWING = frozenset({"json", "trace", "plot"})
"""Options that only a measurement can serve."""


@dataclass(frozen=True)
class _Transports(TransportOptions):
    """The transports, and their options, that real processes have."""

    transport: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help=f"How messages travel: {', '.join(_TRANSPORTS)}.",
            show_default=False,
            autocompletion=one_starting(*_TRANSPORTS),
        ),
    ] = None
    eager_bytes: Annotated[float | None, Option(hidden=True)] = None
    compute_slowdown: Annotated[float | None, Option(hidden=True)] = None

    def build(
        self,
        cluster: Cluster | None = None,
        runtime: Target | None = None,
        *,
        planner: str = "",
        default: str = "",
    ) -> Transport:
        """Return the transport.

        Raises
        ------
        ScenarioError
            As of any transport, or a replay has no such transport.
        """
        if self.transport not in _TRANSPORTS:
            raise ScenarioError("replay needs --transport nccl, exchange or delegated")
        return super().build(cluster, runtime)


def replay(
    context: Context,
    scenario: ScenarioOptions,
    planned: PlanOptions,
    over: _Transports,
    compute: Annotated[
        str,
        Option(
            metavar="KIND",
            help="What operators do. sleep: wait for their time; matmul: multiply matrices for "
            "that long; model: train a small GPT.",
        ),
    ] = "sleep",
    device: Annotated[str, Option(metavar="KIND", help="Run on cpu or cuda.")] = "cpu",
    iterations: Annotated[int, Option(metavar="N", help="Measure this many iterations.")] = 5,
    warmup: Annotated[
        int | None,
        Option(
            metavar="N",
            help="Run this many before them, unmeasured (default 1, or 3 with --compute model).",
        ),
    ] = None,
    failover: Annotated[
        bool,
        Option("--failover", help="Switch a link to delegates when its direct path fails."),
    ] = False,
    fail: Annotated[
        str | None,
        Option(
            metavar="OP[@ITERATION][:HOW]",
            help="Break a link at the message of an operator, as in 0F5 or 0F5@1:stop: from then "
            "on sends raise an error (raise, the default) or never end (stop). Implies --failover.",
        ),
    ] = None,
    timeout: Annotated[
        str | None,
        Option(
            metavar="TIME",
            help="Give up when nothing happens for this time plus twice the longest predicted "
            "wait (default 5s).",
        ),
    ] = None,
    port: Annotated[
        int,
        Option(
            metavar="PORT", min=0, max=65535, help="Port where processes meet (0: any free one)."
        ),
    ] = 0,
    seed: Annotated[
        int, Option(metavar="SEED", min=0, help="Seed of the model's parameters and data.")
    ] = 0,
    prepare_: Annotated[
        Path | None,
        Option(
            "--prepare",
            metavar="FILE",
            help="Write the run to a file for workers under torchrun, instead of running it.",
        ),
    ] = None,
    result: Annotated[
        Path | None,
        Option(
            metavar="FILE", help="Show what such workers measured, instead of running anything."
        ),
    ] = None,
    json: Json = False,
    trace: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="Write a Chrome trace of prediction and measurement (physical times), for "
            "Perfetto.",
        ),
    ] = None,
    plot: Annotated[
        Path | None, Option(metavar="FILE", help="Draw both as Gantt charts (.png, .svg, .pdf).")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Run a plan on real processes, one per device.

    Prints measured iteration times beside the predicted one: from the first operator's start to
    the last one's end, as the clock showed them. With sleep it prints beside them logical times,
    in which an operator counts as started when it could have, and ends its time later. Delays are
    injected, and the processes talk over the loopback address.
    """
    given = _given(context)
    if result is not None:
        _refuse(given, given.keys() - _SHOWING - {"result", "quiet"}, "--result says what was run")
    if prepare_ is not None:
        _refuse(given, _SHOWING | {"port"}, "--prepare runs nothing")
    files = {"--prepare": prepare_, "--trace": trace, "--plot": plot}
    outputs = Outputs(files, scenario.scenario, planned.plan, result)
    with progress(quiet) as report:
        if result is not None:
            replayed = Replayed(load_result(result))
        else:
            transport = over.build(runtime=planned.target)
            if compute == "model" and planned.target and not planned.target.splits_first:
                raise ScenarioError(
                    f"--runtime {planned.runtime} and --compute model contradict each other: the "
                    "model's first stage splits its backward"
                )
            run = prepare(
                *planned.build(scenario, transport, report),
                transport,
                compute=_one_of("--compute", compute, ("sleep", "matmul", "model")),
                device=_one_of("--device", device, ("cpu", "cuda")),
                iterations=iterations,
                warmup=warmup,
                timeout_s=_seconds(timeout),
                failover=failover,
                fault=None if fail is None else parsed("--fail", link_fault, fail),
                seed=seed,
            )
            if prepare_ is not None:
                save_run(run, prepare_)
                outputs.written(quiet=quiet)
                return
            report(f"running {counted(run.devices, 'worker')}")
            replayed = launched(run, port)
        if trace:
            save_chrome_trace(replayed.timelines(), trace)
        if plot:
            from pipesim.plot import gantt, save

            report("drawing")
            save(gantt(replayed.timelines()), plot)
    if json:
        show_json(replayed.as_dict())
    else:
        _show(replayed, quiet)
    outputs.written(quiet=quiet)


def _given(context: Context) -> dict[str, str]:
    """Return what users call each parameter that they gave, by its name."""
    parameters = {parameter.name or "": parameter for parameter in context.command.params}
    return {
        name: parameter.opts[0] if parameter.param_type_name == "option" else "the plan"
        for name, parameter in parameters.items()
        if getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"
    }


def _refuse(given: dict[str, str], unwanted: AbstractSet[str], why: str) -> None:
    for name, option in given.items():
        if name in unwanted:
            raise ScenarioError(f"{why}: leave out {option}")


def _one_of(option: str, text: str, choices: tuple[str, ...]) -> Any:
    if text not in choices:
        raise ScenarioError(f"{option}: {text!r} is none of {', '.join(choices)}")
    return text


def _seconds(timeout: str | None) -> float | None:
    if timeout is None:
        return None
    seconds = parsed("--timeout", parsing.duration_ms, timeout) / 1e3
    if seconds <= 0:
        raise ScenarioError("--timeout must be above 0")
    return seconds


def link_fault(text: str) -> LinkFault:
    """Read a link's failure: the operator that sends, the iteration, and how.

    Examples
    --------
    >>> link_fault("0F5@2:stop")
    LinkFault(iteration=2, producer=Op(kind='F', stage=0, microbatch=5), how='stop')
    >>> link_fault("1B3").iteration
    0
    """
    match = _FAULT.fullmatch(text.strip())
    if match is None:
        raise ScenarioError(f"{text!r} is not a failure such as 0F5, 0F5@2 or 0F5@2:stop")
    try:
        return LinkFault(int(match[2] or 0), Op.parse(match[1]), match[3] or "raise")  # type: ignore[arg-type]
    except ScheduleError as error:
        raise ScenarioError(str(error)) from None


def _show(replayed: Replayed, quiet: bool) -> None:
    run, predicted = replayed.run, replayed.predicted_ms
    if not quiet:
        name = f"{run.schedule.planner or 'plan'} over {run.transport}"
        show(described(replayed.scenario), f"{name} · {_processes(run)}", "")
    times = replayed.iterations_ms
    names = [*(f"iteration {i}" for i in range(len(times))), "median"]
    measured = [*times, replayed.measured_ms]
    errors = [time / predicted - 1 if predicted else 0.0 for time in measured]
    columns = [
        Column("predicted\nms", [f"{predicted:.1f}"] * len(measured)),
        Column("measured\nms", [f"{time:.1f}" for time in measured]),
        Column("error\n%", [fixed(100 * error, 1, signed=True) for error in errors]),
    ]
    if replayed.logical_ms is not None:
        logical = [*replayed.logical_iterations_ms, replayed.logical_ms]
        columns.append(Column("logical\nms", [f"{time:.1f}" for time in logical]))
    show_rows(Column("", names, numeric=False), columns)
    if not quiet:
        _show_notes(replayed)
    if found := list(_findings(replayed)):
        show(*([""] if quiet else []), *found)


def _show_notes(replayed: Replayed) -> None:
    """Say how well times are known, and what the prediction includes."""
    run = replayed.run
    show("", f"operators start {_ms(replayed.median_start_error_ms)} off their prediction (median)")
    _show_logical(replayed)
    if replayed.base_ms:
        nominal = _ms(replayed.nominal.iteration_ms, 1)
        where = " over links without delay" if run.transport.name == "delegated" else ""
        show(
            f"the prediction includes {_ms(replayed.base_ms)} that a message takes here{where}; "
            f"without them it is {nominal}, and starts are "
            f"{_ms(replayed.nominal_start_error_ms)} off"
        )
    clocks = replayed.measured.clocks
    show(
        f"clocks agree to {_ms(max(c.uncertainty_ms for c in clocks))}"
        f" (offset up to {_ms(max(abs(c.offset_ms) for c in clocks))}{_drift(replayed)})"
    )
    if shared := _shared_cores(run):
        show(shared)


def _findings(replayed: Replayed) -> Iterator[str]:
    """What else was measured: wrong gradients, activations on hosts, links that failed."""
    if replayed.gradient_error is not None:
        yield f"gradients differ from the unpipelined model's by {replayed.gradient_error:.1g}"
    for device, size in enumerate(replayed.host_bytes or []):
        if size:
            yield f"device {device} kept up to {size / 2**20:.1f} MiB of activations on its host"
    yield from map(_sentence, replayed.events)


def _show_logical(replayed: Replayed) -> None:
    """Say what agrees with the prediction by construction, and what was measured."""
    error_ms, lag_ms = replayed.logical_start_error_ms, replayed.longest_lag_ms
    if error_ms is None or lag_ms is None:
        return
    show(
        f"logical starts are {_ms(error_ms)} off: an operator counts there from when it could "
        "start, for its stated time",
        "so only messages are measured in logical times, and the rest agrees by construction; "
        f"operators physically started or ended up to {_ms(lag_ms)} later",
    )


def _drift(replayed: Replayed) -> str:
    """Say how clocks drift, where that is more than the uncertainty of their readings."""
    length_ms = sum(timeline.iteration_ms for timeline in replayed.measured.timelines)
    drifts = [
        abs(clock.drift_ppm)
        for clock in replayed.measured.clocks
        if abs(clock.drift_ppm) / 1e6 * length_ms > clock.uncertainty_ms
    ]
    return f", drift up to {plain(max(drifts), 1)} ppm" if drifts else ""


def _ms(time_ms: float, digits: int = 2) -> str:
    return f"{plain(time_ms, digits)} ms"


def _shared_cores(run: Run) -> str:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if run.compute == "sleep" or run.device == "cuda" or run.devices <= (cores or 1):
        return ""
    shared = counted(cores or 1, "core")
    return f"{run.devices} workers share {shared} here: operators slow each other down"


def _processes(run: Run) -> str:
    delegates = 2 * sum(run.delegates.values())
    workers = counted(run.devices, "worker")
    return f"{workers}, {counted(delegates, 'delegate')}" if delegates else workers


def _sentence(event: dict[str, Any]) -> str:
    phase = "warm-up iteration" if event["warmup"] else "iteration"
    return (
        f"link {event['link']} failed in {phase} {event['iteration']}: rank {event['rank']} "
        f"switched to delegates for {event['message']} at {_ms(event['at_ms'], 1)}, after waiting "
        f"{_ms(event['waited_ms'], 1)}; that iteration took {_ms(event['cost_ms'], 1)} longer than "
        "the others"
    )
