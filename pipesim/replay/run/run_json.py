"""Runs as JSON: what the launcher writes, and all that a worker reads.

.. code-block:: json

    {
      "format": "pipesim-replay",
      "version": 1,
      "plan": {"format": "pipesim-plan", "…": "see plan_json"},
      "scenario": {"format": "pipesim-scenario", "…": "see scenario_toml"},
      "transport": {"name": "delegated", "base_ms": 1.0},
      "compute": "sleep",
      "device": "cpu",
      "iterations": 5,
      "warmup": 1,
      "delegates": [{"sender": 0, "receiver": 1, "direction": "down", "processes": 3}],
      "timeout_s": 10.0,
      "seed": 0
    }

``failover_ms`` and ``fault`` (``iteration``, ``producer``, ``how``) may follow.
"""

from __future__ import annotations

import json
import os
from dataclasses import fields, replace
from typing import Any, cast, get_args

from pipesim.documents.plan_json import plan_json, read_plan
from pipesim.documents.reading import Place, Table, list_of, number, operator, text, whole
from pipesim.documents.scenario_toml import read_scenario, scenario_document
from pipesim.documents.strict_json import parse_json
from pipesim.errors import PipesimError
from pipesim.files import StrPath, read_text, write_text
from pipesim.replay.run.run import ComputeKind, DeviceKind, FaultKind, LinkFault, Route, Run
from pipesim.scenario import DIRECTIONS
from pipesim.transport import Transport
from pipesim.transport import transport as transport_named

__all__ = ["load_run", "read_run", "run_document", "save_run"]

_FORMAT, _VERSION = "pipesim-replay", 1


def load_run(path: StrPath) -> Run:
    """Read a run.

    Raises
    ------
    FormatError
        The file cannot be read, is not JSON, has an unknown, missing or wrong key, or its
        parts do not fit each other.
    """
    file = os.fspath(path)
    return read_run(parse_json(read_text(path), file), Place(file))


def save_run(run: Run, path: StrPath) -> None:
    """Write a run, such that loading it gives an equal one.

    Raises
    ------
    FormatError
        The file cannot be written.
    """
    write_text(path, json.dumps(run_document(run), ensure_ascii=False) + "\n")


def run_document(run: Run) -> dict[str, object]:
    """Return what a run's file holds."""
    document: dict[str, object] = {
        "format": _FORMAT,
        "version": _VERSION,
        "plan": json.loads(plan_json(run.schedule)),
        "scenario": scenario_document(run.scenario),
        "transport": _transport_document(run.transport),
        "compute": run.compute,
        "device": run.device,
        "iterations": run.iterations,
        "warmup": run.warmup,
        "delegates": [
            {
                "sender": route.sender,
                "receiver": route.receiver,
                "direction": DIRECTIONS[route.direction],
                "processes": processes,
            }
            for route, processes in run.delegates.items()
        ],
        "timeout_s": run.timeout_s,
        "seed": run.seed,
    }
    if run.failover_ms is not None:
        document["failover_ms"] = run.failover_ms
    if run.fault is not None:
        document["fault"] = run.fault._asdict() | {"producer": str(run.fault.producer)}
    return document


def read_run(value: object, place: Place) -> Run:
    """Parse a run; see :func:`load_run`."""
    table = Table(value, place)
    table.take_head(_FORMAT, _VERSION)
    given: dict[str, Any] = {
        "schedule": table.take("plan", read_plan),
        "scenario": table.take("scenario", read_scenario),
        "transport": table.take("transport", _transport),
        "compute": cast(ComputeKind, table.take("compute", text)),
        "device": cast(DeviceKind, table.take("device", text)),
        "iterations": table.take("iterations", whole),
        "warmup": table.take("warmup", whole),
        "delegates": table.take("delegates", _delegates),
        "timeout_s": table.take("timeout_s", number),
        "seed": table.take("seed", whole),
        "failover_ms": table.take_or("failover_ms", number, None),
        "fault": table.take_or("fault", _fault, None),
    }
    table.close()
    try:
        run = Run(**given)
        run.check_delegates()
    except PipesimError as error:
        raise place.error(str(error)) from None
    return run


def _transport_document(transport: Transport) -> dict[str, object]:
    default = transport_named(transport.name)
    options = {field.name: getattr(transport, field.name) for field in fields(transport)}
    given = {k: value for k, value in options.items() if value != getattr(default, k)}
    return {"name": transport.name, **given}


def _transport(value: object, place: Place) -> Transport:
    table = Table(value, place)
    try:
        default = transport_named(table.take("name", text))
        parsers: dict[str, Any] = {"p2p_streams": text, "delegates": whole}
        parsers |= {"fused": _flag, "only_slow": _flag}
        given: dict[str, Any] = {
            field.name: table.take(field.name, parsers.get(field.name, number))
            for field in fields(default)
            if table.has(field.name)
        }
        table.close()
        return replace(default, **given)
    except PipesimError as error:
        if str(error).startswith(place.file):
            raise
        raise place.error(str(error)) from None


def _flag(value: object, place: Place) -> bool:
    if not isinstance(value, bool):
        raise place.error("must be true or false")
    return value


def _delegates(value: object, place: Place) -> dict[Route, int]:
    given: dict[Route, int] = {}
    for index, (route, processes) in enumerate(list_of(_of_route)(value, place)):
        if route in given:
            raise place.at(index).error(f"{route} is given twice")
        given[route] = processes
    return given


def _of_route(value: object, place: Place) -> tuple[Route, int]:
    table = Table(value, place)
    sender, receiver = table.take("sender", whole), table.take("receiver", whole)
    direction = table.take("direction", text)
    processes = table.take("processes", whole)
    table.close()
    if direction not in DIRECTIONS:
        raise place.at("direction").error(f"must be one of {', '.join(DIRECTIONS)}")
    return Route(sender, receiver, DIRECTIONS.index(direction)), processes


def _fault(value: object, place: Place) -> LinkFault:
    table = Table(value, place)
    iteration = table.take("iteration", whole)
    producer = table.take("producer", operator)
    how = table.take("how", text)
    table.close()
    if how not in get_args(FaultKind):
        raise place.at("how").error(f"must be one of {', '.join(get_args(FaultKind))}")
    return LinkFault(iteration, producer, cast(FaultKind, how))
