"""Replay a plan on real processes.

There are three steps: :func:`prepare` decides what to run, :mod:`pipesim.replay` runs it, and
:class:`pipesim.replay.report.Replayed` compares. :func:`replay` does all three on this machine.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np

from pipesim.engine import simulate
from pipesim.errors import ReplayError
from pipesim.replay.report import Replayed
from pipesim.replay.run.run import ComputeKind, DeviceKind, LinkFault, Route, Run
from pipesim.scenario import Scenario
from pipesim.schedule import Schedule
from pipesim.timeline import Timeline
from pipesim.transport import Delegated, Transport
from pipesim.transport import transport as transport_named

__all__ = ["launched", "prepare", "replay"]

_MOST_DELEGATES = 8
_FAILOVER_DELEGATES = 2
_LEAST_FAILOVER_MS = 500.0
"""A busy machine may hold up a process for a while; that is not a failed link."""
_PATIENCE_S = 5.0


def prepare(
    scenario: Scenario,
    schedule: Schedule,
    over: str | Transport,
    *,
    compute: ComputeKind = "sleep",
    device: DeviceKind = "cpu",
    iterations: int = 5,
    warmup: int | None = None,
    timeout_s: float | None = None,
    failover: bool = False,
    fault: LinkFault | None = None,
    seed: int = 0,
) -> Run:
    """Return the run, with the number of delegates and the time to wait for a peer.

    A delegated route gets one delegate more than the prediction ever has busy at once, but at
    most eight, or the transport's ``delegates``.

    Parameters
    ----------
    scenario : Scenario
        Its delays are injected.
    schedule : Schedule
        The plan.
    over : str or Transport
        ``nccl``, ``exchange`` or ``delegated``.
    compute, device : str
        See :class:`pipesim.replay.run.run.Run`.
    iterations, warmup : int
        Iterations to measure, and those to run before them: by default one, or three of a
        model, whose first ones are slow.
    timeout_s : float, optional
        A run is given up when nothing happens for this time plus twice the longest predicted
        wait. Default: five seconds.
    failover : bool
        Whether links switch to delegates when their direct path fails.
    fault : LinkFault, optional
        A link to break.
    seed : int
        Seed of the model.

    Raises
    ------
    ReplayError, ScheduleError
        These options do not go together.
    """
    transport = transport_named(over)
    if warmup is None:
        warmup = 3 if compute == "model" else 1
    if isinstance(transport, Delegated):
        transport = replace(transport, delegates=transport.delegates or _MOST_DELEGATES)
    wanted = Run(
        schedule,
        scenario,
        transport,
        compute=compute,
        device=device,
        iterations=iterations,
        warmup=warmup,
        seed=seed,
    )
    predicted = simulate(scenario, schedule, transport)
    fails = failover or fault is not None
    waits_s = 2 * _longest_wait_ms(predicted) / 1e3
    given: dict[str, Any] = {
        "timeout_s": (_PATIENCE_S if timeout_s is None else timeout_s) + waits_s,
        "failover_ms": max(predicted.iteration_ms, _LEAST_FAILOVER_MS) if fails else None,
        "fault": fault,
    }
    if isinstance(transport, Delegated):
        given["delegates"] = _delegates(wanted, predicted, transport)
    elif fails:
        given["delegates"] = {
            route: min(_FAILOVER_DELEGATES, len(messages))
            for route, messages in wanted.routes.items()
        }
    run = replace(wanted, **given)
    run.check_delegates()
    return run


def replay(
    scenario: Scenario,
    schedule: Schedule,
    over: str | Transport,
    *,
    port: int = 0,
    **options: object,
) -> Replayed:
    """Replay ``schedule`` on this machine, one process for each device.

    Parameters
    ----------
    scenario, schedule, over
        As for :func:`prepare`.
    port : int
        Port where the processes meet, on the loopback address. 0: any free one.
    **options
        As for :func:`prepare`.

    Raises
    ------
    ReplayError
        torch is missing, or the run did not reach its end; the message names rank and place.
    """
    return launched(prepare(scenario, schedule, over, **options), port)  # type: ignore[arg-type]


def launched(run: Run, port: int = 0) -> Replayed:
    """Run what was prepared on this machine, and compare."""
    try:
        from pipesim.replay.launcher import launch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ReplayError("a replay needs torch: pip install 'pipesim[replay]'") from None
    except (ImportError, OSError) as error:
        why = " (ulimit -v allows too little address space)" if "map segment" in str(error) else ""
        raise ReplayError(f"torch cannot be loaded: {error}{why}") from None
    return Replayed(launch(run, port))


def _delegates(run: Run, predicted: Timeline, transport: Delegated) -> dict[Route, int]:
    """Return how many delegates each route gets."""
    posted = {span.message for span in predicted.comm if span.path == "kernel"}
    busy: dict[Route, list[tuple[float, int]]] = defaultdict(list)
    for span in predicted.comm:
        if span.path == "delegate":
            busy[run.route(span.message)] += [(span.start_ms, 1), (span.end_ms, -1)]
    most = {
        route: int(np.cumsum([change for _, change in sorted(changes)]).max())
        for route, changes in busy.items()
    }
    assert transport.delegates is not None
    return {
        route: min(transport.delegates, most.get(route, 0) + 1, len(messages))
        for route, messages in run.routes.items()
        if not posted.issuperset(messages)
    }


def _longest_wait_ms(predicted: Timeline) -> float:
    """Return the longest time in which nothing starts or ends on some device, or in a kernel."""
    waits = [span.end_ms - span.start_ms for span in predicted.comm]
    for device in predicted.compute:
        starts = [predicted.start_ms, *(span.start_ms for span in device), predicted.end_ms]
        waits += np.diff(starts).tolist()
    return max(waits)
