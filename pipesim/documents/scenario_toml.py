r"""Scenarios as TOML, to be read and written by people.

.. code-block:: toml

    format = "pipesim-scenario"
    version = 1
    name = "7B on four A10"
    source = "who measured it"

    [pipeline]
    stages = 4
    microbatches = 12
    placement = "plain"            # or "interleaved" or "v" with chunks, or a list

    [operators]                    # milliseconds: one number, [S] or [S][N]
    forward_ms = 10.0
    backward_ms = [10.0, 10.0, 10.0, 12.0]
    weight_ms = 10.0
    fused_backward_ms = 20.0       # default: backward + weight

    [links]
    message_bytes = 8388608        # one number or [S−1]

    [memory]                       # all optional; no limit where none is given; limits count
                                   # stages × micro-batches: several stages on a device, several
    activation_limit = [7, 7, "unlimited", "unlimited"]
    host_limit = 48
    activation_bytes = 1e9
    released_by_b = 0.5            # one number or [S]: what B gives back, and W the rest

    [[delay]]                      # one for each slow link
    link = 2
    occupancy_ms = 60.0            # both ways; [down, up] where they differ
    latency_ms = [1.0, 0.0]
"""

from __future__ import annotations

import os
import re
import tomllib
from typing import TypeAlias, cast

import numpy as np
from numpy.typing import ArrayLike

from pipesim.documents.reading import Place, Table, list_of, number, text, whole
from pipesim.errors import FormatError, ScenarioError
from pipesim.files import StrPath, position, read_text, write_text
from pipesim.scenario import Array, Placement, Scenario

__all__ = ["load_scenario", "read_scenario", "save_scenario", "scenario_document"]

_FORMAT, _VERSION = "pipesim-scenario", 1
_UNLIMITED = "unlimited"
_DELAYS = ("latency_ms", "occupancy_ms")
_MOST_OPERATORS = 1_000_000

_TOML_PLACE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
_FLAT_ARRAY = re.compile(r"\[\n([^\[\]]*)\]")

Nested: TypeAlias = "float | int | str | list[Nested]"


def load_scenario(path: StrPath) -> Scenario:
    """Read a scenario.

    Parameters
    ----------
    path : path
        A TOML file, as shown above.

    Raises
    ------
    FormatError
        The file cannot be read, is not TOML (with line and column), has an unknown,
        missing or wrong key (with its key path), or describes no valid scenario.
    """
    file = os.fspath(path)
    return read_scenario(_parse_toml(read_text(path), file), Place(file))


def read_scenario(value: object, place: Place) -> Scenario:
    """Parse a scenario's document; see :func:`load_scenario`."""
    document = Table(value, place)
    document.take_head(_FORMAT, _VERSION)
    fields: dict[str, object] = {key: document.take_or(key, text, "") for key in ("name", "source")}
    fields |= _read_pipeline(document.take("pipeline", Table))
    fields |= _read_operators(document.take("operators", Table))
    for section, read in (("links", _read_links), ("memory", _read_memory)):
        fields |= read(document.take_or(section, Table, Table({}, place.at(section))))
    delays: list[Table] = document.take_or("delay", list_of(Table), [])
    fields |= _read_delays(delays, cast(int, fields["stages"]) - 1)
    document.close()
    try:
        return Scenario(**fields)  # type: ignore[arg-type]
    except ScenarioError as error:
        raise place.error(str(error)) from None


def save_scenario(scenario: Scenario, path: StrPath) -> None:
    """Write a scenario; loading the file gives an equal one, since no number is rounded.

    Raises
    ------
    FormatError
        The file cannot be written.
    """
    import tomli_w

    written = tomli_w.dumps(scenario_document(scenario))
    # tomli_w gives a line to each number; rows of numbers are easier to read.
    rows = _FLAT_ARRAY.sub(lambda row: f"[{' '.join(row[1].split()).rstrip(',')}]", written)
    write_text(path, rows)


# -- reading -----------------------------------------------------------------------------


def _parse_toml(content: str, file: str) -> dict[str, object]:
    try:
        return tomllib.loads(content)
    except RecursionError:
        raise FormatError("is nested too deeply", file=file) from None
    except ValueError as error:  # also what int() and datetime() say of odd values
        message = str(error)
        line: int | None = None
        column: int | None = None
        if place := _TOML_PLACE.search(message):
            message = message[: place.start()]
            line, column = position(content, len(content))
            if place[1]:
                line, column = int(place[1]), int(place[2])
            else:
                message += ": the file ends too early"
        raise FormatError(f"not TOML: {message}", file=file, line=line, column=column) from None


def _read_pipeline(table: Table) -> dict[str, object]:
    stages = table.take("stages", whole)
    microbatches = table.take("microbatches", whole)
    if stages * microbatches > _MOST_OPERATORS:
        raise table.place.error(
            f"{stages} stages × {microbatches} micro-batches are more than "
            f"{_MOST_OPERATORS:,} operators of a kind"
        )
    given: Placement | list[int] = table.take_or("placement", _placement, "plain")
    chunks = table.take_or("chunks", whole, None)
    table.close()
    if isinstance(given, list):
        placement = given
        if len(placement) != stages or max(placement, default=0) >= stages:
            raise table.place.at("placement").error(
                f"must name a device, 0 to {stages - 1} at most, for each of {stages} stages"
            )
    elif given != "plain":
        if not chunks or stages % chunks:
            raise table.place.at("chunks").error(
                f"a placement {given!r} needs a number of chunks that divides {stages} stages"
            )
        placement = list(Scenario.place(given, stages // chunks, chunks))
    else:
        placement = list(range(stages))
    if chunks is not None and (isinstance(given, list) or given == "plain"):
        raise table.place.at("chunks").error('is for the placements "interleaved" and "v"')
    return {"stages": stages, "microbatches": microbatches, "placement": placement}


def _placement(value: object, place: Place) -> Placement | list[int]:
    if isinstance(value, list):
        return list_of(whole)(value, place)
    if value in ("plain", "interleaved", "v"):
        return value
    raise place.error('must be "plain", "interleaved", "v" or a list of devices')


def _read_operators(table: Table) -> dict[str, object]:
    fields: dict[str, object] = {
        key: table.take(key, _numbers) for key in ("forward_ms", "backward_ms", "weight_ms")
    }
    fields["fused_backward_ms"] = table.take_or("fused_backward_ms", _numbers, None)
    table.close()
    return fields


def _read_links(table: Table) -> dict[str, object]:
    fields: dict[str, object] = {"message_bytes": table.take_or("message_bytes", _numbers, 0.0)}
    table.close()
    return fields


def _read_memory(table: Table) -> dict[str, object]:
    fields: dict[str, object] = {
        key: table.take_or(key, _limits, np.inf) for key in ("activation_limit", "host_limit")
    }
    fields["activation_bytes"] = table.take_or("activation_bytes", number, 0.0)
    fields["released_by_b"] = table.take_or("released_by_b", _numbers, 0.5)
    table.close()
    return fields


def _read_delays(tables: list[Table], links: int) -> dict[str, object]:
    delays = {field: np.zeros((max(links, 0), 2)) for field in _DELAYS}
    seen: set[int] = set()
    for table in tables:
        link = table.take("link", whole)
        if link >= links:
            raise table.place.at("link").error(f"there is no link {link}, only {links} links")
        if link in seen:
            raise table.place.at("link").error(f"link {link} already has a delay above")
        seen.add(link)
        for field, delay in delays.items():
            delay[link] = table.take_or(field, _both_ways, [0.0, 0.0])
        table.close()
    return dict(delays)


def _numbers(value: object, place: Place) -> Nested:
    return list_of(_numbers)(value, place) if isinstance(value, list) else number(value, place)


def _limits(value: object, place: Place) -> Nested:
    if isinstance(value, list):
        return list_of(_limits)(value, place)
    return np.inf if value == _UNLIMITED else number(value, place)


def _both_ways(value: object, place: Place) -> list[float]:
    if not isinstance(value, list):
        return [number(value, place)] * 2
    if len(value) != 2:
        raise place.error("must be one number, or two: [down, up]")
    return list_of(number)(value, place)


# -- writing -----------------------------------------------------------------------------


def scenario_document(scenario: Scenario) -> dict[str, object]:
    """Return what a scenario's file holds, in types of TOML and JSON."""
    document: dict[str, object] = {"format": _FORMAT, "version": _VERSION}
    document |= {key: getattr(scenario, key) for key in ("name", "source")}
    document["pipeline"] = {
        "stages": scenario.stages,
        "microbatches": scenario.microbatches,
        **_placement_of(scenario),
    }
    document["operators"] = _operators_of(scenario)
    if scenario.message_bytes.any():
        document["links"] = {"message_bytes": _sizes(scenario.message_bytes)}
    if memory := _memory_of(scenario):
        document["memory"] = memory
    if scenario.slow_links:
        document["delay"] = [_delay_of(scenario, link) for link in scenario.slow_links]
    return document


def _placement_of(scenario: Scenario) -> dict[str, object]:
    if scenario.is_plain:
        return {"placement": "plain"}
    chunks = scenario.stages // scenario.devices
    names: tuple[Placement, ...] = ("interleaved", "v")
    for name in names:
        if scenario.placement == Scenario.place(name, scenario.devices, chunks):
            return {"placement": name, "chunks": chunks}
    return {"placement": list(scenario.placement)}


def _operators_of(scenario: Scenario) -> dict[str, object]:
    fields = ["forward_ms", "backward_ms", "weight_ms"]
    if (scenario.fused_backward_ms != scenario.backward_ms + scenario.weight_ms).any():
        fields.append("fused_backward_ms")
    return {field: _compact(getattr(scenario, field)).tolist() for field in fields}


def _memory_of(scenario: Scenario) -> dict[str, object]:
    memory = {
        field: _sizes(getattr(scenario, field))
        for field in ("activation_limit", "host_limit")
        if np.isfinite(getattr(scenario, field)).any()
    }
    if scenario.activation_bytes:
        memory["activation_bytes"] = _sizes(scenario.activation_bytes)
    if (scenario.released_by_b != 0.5).any():
        memory["released_by_b"] = _compact(scenario.released_by_b).tolist()
    return dict(memory)


def _delay_of(scenario: Scenario, link: int) -> dict[str, object]:
    delays = {field: getattr(scenario, field)[link] for field in _DELAYS}
    return {"link": link} | {f: _compact(d).tolist() for f, d in delays.items() if d.any()}


def _compact(values: Array) -> Array:
    """Undo broadcasting along the last axes, exactly."""
    while values.ndim and values.shape[-1] and (values == values[..., :1]).all():
        values = values[..., 0]
    return values


def _sizes(values: ArrayLike) -> Nested:
    """Counts and bytes; whole numbers are written without a fraction."""

    def plain(value: float) -> Nested:
        if np.isinf(value):
            return _UNLIMITED
        return int(value) if value.is_integer() and value <= 2**53 else value

    compact = _compact(np.asarray(values, dtype=np.float64))
    return [plain(v) for v in compact.tolist()] if compact.ndim else plain(float(compact))
