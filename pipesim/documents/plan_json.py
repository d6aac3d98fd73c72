"""Plans, that is schedules, as JSON: one line for each device's order.

.. code-block:: json

    {
      "format": "pipesim-plan",
      "version": 1,
      "planner": "gpipe",
      "assumed": {},
      "placement": [0, 1],
      "microbatches": 1,
      "orders": [
        ["0F0", "0BW0"],
        ["1F0", "1BW0"]
      ]
    }

``planner`` and ``assumed`` may be left out.
"""

from __future__ import annotations

import json
import os

from pipesim.documents.reading import Place, Table, list_of, operator, text, whole
from pipesim.documents.strict_json import parse_json
from pipesim.errors import ScheduleError
from pipesim.files import StrPath, read_text, write_text
from pipesim.schedule import Schedule

__all__ = ["load_plan", "plan_json", "read_plan", "save_plan"]

_FORMAT, _VERSION = "pipesim-plan", 1


def load_plan(path: StrPath) -> Schedule:
    """Read a schedule.

    Raises
    ------
    FormatError
        The file cannot be read, is not JSON (with line and column; NaN, infinities and
        doubled keys are refused too), has an unknown, missing or wrong key (with its key
        path), or its operators are incomplete, misplaced or cannot make progress.
    """
    file = os.fspath(path)
    return read_plan(parse_json(read_text(path), file), Place(file))


def read_plan(value: object, place: Place) -> Schedule:
    """Parse a schedule; see :func:`load_plan`."""
    plan = Table(value, place)
    plan.take_head(_FORMAT, _VERSION)
    planner = plan.take_or("planner", text, "")
    assumed: dict[str, object] = plan.take_or("assumed", _mapping, {})
    placement = plan.take("placement", list_of(whole))
    microbatches = plan.take("microbatches", whole)
    orders = plan.take("orders", list_of(list_of(operator)))
    plan.take_or("result", _mapping, {})  # what the plan was worth when it was made
    plan.close()
    if microbatches < 1:
        raise plan.place.at("microbatches").error("must be at least 1")
    try:
        return Schedule(orders, placement, microbatches, planner, assumed)
    except ScheduleError as error:
        raise place.error(str(error)) from None


def save_plan(schedule: Schedule, path: StrPath) -> None:
    """Write a schedule, such that loading it gives an equal one.

    Raises
    ------
    FormatError
        The file cannot be written.
    ScheduleError
        ``assumed`` holds what JSON cannot (an infinity, an array).
    """
    write_text(path, plan_json(schedule))


def plan_json(schedule: Schedule) -> str:
    """Return the text of a plan's file."""
    try:
        assumed = json.dumps(dict(schedule.assumed), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ScheduleError(f"what the plan assumed is not JSON: {error}") from None
    orders = ",\n".join(f"    {json.dumps([str(op) for op in order])}" for order in schedule.orders)
    lines = {
        "format": json.dumps(_FORMAT),
        "version": str(_VERSION),
        "planner": json.dumps(schedule.planner, ensure_ascii=False),
        "assumed": assumed,
        "placement": json.dumps([int(device) for device in schedule.placement]),
        "microbatches": str(int(schedule.microbatches)),
        "orders": f"[\n{orders}\n  ]",
    }
    body = ",\n".join(f'  "{key}": {value}' for key, value in lines.items())
    return f"{{\n{body}\n}}\n"


def _mapping(value: object, place: Place) -> dict[str, object]:
    if not isinstance(value, dict):
        raise place.error("must be an object")
    return value
