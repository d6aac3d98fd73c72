"""Plans, that is schedules, as JSON: one line for each device's order.

.. code-block:: json

    {
      "format": "pipesim-plan",
      "version": 1,
      "planner": "gpipe",
      "assumed": {"delay_ms": 0.0},
      "placement": [0, 1],
      "microbatches": 1,
      "orders": [
        ["0F0", "0BW0"],
        ["1F0", "1BW0"]
      ]
    }

``planner`` and ``assumed`` may be left out, and so may each key of ``assumed``, or be null:
``delay_ms`` (one number, or [down, up] for each link), ``activation_limit`` and
``host_limit`` (for each device, null for no limit), ``warmup`` (for each stage),
``transport`` and ``runtime``. No number is below 0.

A plan with sends and receives of its own has them in ``orders`` too, between its operators, as
well as overlaps and upkeep of stages: ``["0F0", "0SEND_F0", "0RECV_B0", "0BW0"]``; see
:mod:`pipesim.actions`.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict

from pipesim.actions import Action
from pipesim.documents.reading import Place, Table, action, list_of, number, text, whole
from pipesim.documents.strict_json import parse_json
from pipesim.errors import ScheduleError
from pipesim.files import StrPath, read_text, write_text
from pipesim.scenario import DIRECTIONS
from pipesim.schedule import Assumptions, Schedule
from pipesim.text import counted

__all__ = ["load_plan", "plan_json", "read_plan", "save_plan"]

_FORMAT, _VERSION = "pipesim-plan", 1


def load_plan(path: StrPath) -> Schedule:
    """Read a schedule.

    Raises
    ------
    FormatError
        The file cannot be read, is not JSON (with line and column; NaN, infinities and
        repeated keys are refused too), has an unknown, missing or wrong key (with its key
        path), or its operators are incomplete, misplaced or cannot make progress.
    """
    file = os.fspath(path)
    return read_plan(parse_json(read_text(path), file), Place(file))


def read_plan(value: object, place: Place) -> Schedule:
    """Parse a schedule; see :func:`load_plan`."""
    plan = Table(value, place)
    plan.take_head(_FORMAT, _VERSION)
    planner = plan.take_or("planner", text, "")
    assumed = plan.take_or("assumed", _assumptions, Assumptions())
    placement = plan.take("placement", list_of(whole))
    microbatches = plan.take("microbatches", whole)
    orders = plan.take("orders", list_of(list_of(action)))
    plan.take_or("result", _mapping, {})  # what the plan was worth when it was made
    plan.close()
    if microbatches < 1:
        raise plan.place.at("microbatches").error("must be at least 1")
    try:
        schedule = Schedule.of_actions(orders, placement, microbatches, planner, assumed)
    except ScheduleError as error:
        raise _blamed(error, orders, place).error(str(error)) from None
    _check_lengths(schedule, place.at("assumed"))
    return schedule


def _blamed(error: ScheduleError, orders: list[list[Action]], place: Place) -> Place:
    """Where in the file what is to blame for an error stands, as closely as it is known."""
    if error.device is None or error.device >= len(orders):
        return place
    order = place.at("orders").at(error.device)
    acts = [index for index, act in enumerate(orders[error.device]) if act == error.action]
    return order.at(acts[-1]) if acts else order


def save_plan(schedule: Schedule, path: StrPath) -> None:
    """Write a schedule; loading the file gives an equal one.

    Raises
    ------
    FormatError
        The file cannot be written.
    """
    write_text(path, plan_json(schedule))


def plan_json(schedule: Schedule) -> str:
    """Return the text of a plan's file."""
    rows = schedule.actions or schedule.orders
    orders = ",\n".join(f"    {json.dumps(list(map(str, row)))}" for row in rows)
    lines = {
        "format": json.dumps(_FORMAT),
        "version": str(_VERSION),
        "planner": json.dumps(schedule.planner, ensure_ascii=False),
        "assumed": json.dumps(_assumed(schedule.assumed), ensure_ascii=False, allow_nan=False),
        "placement": json.dumps([int(device) for device in schedule.placement]),
        "microbatches": str(int(schedule.microbatches)),
        "orders": f"[\n{orders}\n  ]",
    }
    body = ",\n".join(f'  "{key}": {value}' for key, value in lines.items())
    return f"{{\n{body}\n}}\n"


def _assumed(assumed: Assumptions) -> dict[str, object]:
    """What a planner assumed, in JSON types; what it left open is left out."""
    said = {key: value for key, value in asdict(assumed).items() if value is not None}
    for key in ("activation_limit", "host_limit"):
        if key in said:
            said[key] = [None if math.isinf(limit) else limit for limit in said[key]]
    return said


def _assumptions(value: object, place: Place) -> Assumptions:
    said = value
    if isinstance(value, dict):  # earlier plans hold null for what their planner left open
        said = {key: what for key, what in value.items() if what is not None}
    table = Table(said, place)
    assumed = Assumptions(
        delay_ms=table.take_or("delay_ms", _delays, None),
        activation_limit=table.take_or("activation_limit", list_of(_limit), None),
        host_limit=table.take_or("host_limit", list_of(_limit), None),
        warmup=table.take_or("warmup", list_of(whole), None),
        transport=table.take_or("transport", text, None),
        runtime=table.take_or("runtime", text, None),
    )
    table.close()
    return assumed


def _check_lengths(schedule: Schedule, place: Place) -> None:
    """Check that what was assumed is for as many links, devices and stages as there are."""
    for name, wanted, each in (
        ("delay_ms", schedule.stages - 1, "link"),
        ("activation_limit", schedule.devices, "device"),
        ("host_limit", schedule.devices, "device"),
        ("warmup", schedule.stages, "stage"),
    ):
        given = getattr(schedule.assumed, name)
        if isinstance(given, tuple) and len(given) != wanted:
            raise place.at(name).error(
                f"must hold one for each {each}, {wanted} in all, not {len(given)}"
            )


def _delays(value: object, place: Place) -> float | list[list[float]]:
    if not isinstance(value, list):
        return _amount(value, place)
    links = list_of(list_of(_amount))(value, place)
    for link, ways in enumerate(links):
        if len(ways) != len(DIRECTIONS):
            raise place.at(link).error(f"must be [down, up], not {counted(len(ways), 'number')}")
    return links


def _limit(value: object, place: Place) -> float:
    return math.inf if value is None else _amount(value, place)


def _amount(value: object, place: Place) -> float:
    amount = number(value, place)
    if amount < 0:
        raise place.error(f"must not be below 0, which {amount:g} is")
    return amount


def _mapping(value: object, place: Place) -> dict[str, object]:
    if not isinstance(value, dict):
        raise place.error("must be an object")
    return value
