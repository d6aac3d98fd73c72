"""Calibrations as TOML files."""

from __future__ import annotations

import os
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np

from pipesim.documents.reading import Place, Table, by_name, list_of, number, text, truth, whole
from pipesim.errors import FormatError, ScenarioError
from pipesim.fidelity.calibration import Calibration
from pipesim.fidelity.constants import CONSTANTS, MOST_FITTED
from pipesim.fidelity.testbed import Ratios, Testbed
from pipesim.files import StrPath, read_text, write_text
from pipesim.scenario import TIME_OF, Scenario

__all__ = ["load_calibration", "save_calibration"]

_FORMAT, _VERSION = "pipesim-calibration", 2


def save_calibration(calibration: Calibration, path: StrPath) -> None:
    """Write a calibration; the rows it was fitted to are named without their folder."""
    import tomli_w

    left_out = calibration.left_out
    document = {
        "format": _FORMAT,
        "version": _VERSION,
        "residual": calibration.residual,
        **({} if left_out is None else {"left_out": left_out}),
        "fitted_to": [Path(place).name for place in calibration.fitted_to],
        "testbed": {name: _table(testbed) for name, testbed in calibration.testbeds.items()},
    }
    write_text(path, tomli_w.dumps(document))


def _table(testbed: Testbed) -> dict[str, object]:
    table: dict[str, object] = {
        "whole_ms": testbed.whole_ms,
        "message_bytes": testbed.message_bytes,
        "ratios": testbed.ratios._asdict(),
        # An unlimited rate is left out: it is neutral.
        "constants": {k: v for k, v in testbed.constants.items() if np.isfinite(v)},
        "read": list(testbed.read),
    }
    if testbed.healthy_ms:
        table["healthy_ms"] = dict(testbed.healthy_ms)
    if testbed.errors:
        table["errors"] = {system: list(errors) for system, errors in testbed.errors.items()}
    if testbed.profiles:
        table["profiles"] = {model: _times(own) for model, own in testbed.profiles.items()}
    return table


def _times(profile: Scenario) -> dict[str, object]:
    """Return the operator times of a profile; one for each stage, where micro-batches are alike."""
    times = {}
    for field in TIME_OF.values():
        values = getattr(profile, field)
        alike = bool((values == values[:, :1]).all())
        times[field] = (values[:, 0] if alike else values).tolist()
    return {"stages": profile.stages, "microbatches": profile.microbatches, **times}


def load_calibration(path: StrPath) -> Calibration:
    """Read a calibration.

    Raises
    ------
    FormatError
        The file cannot be read or is not a calibration; the error names the place.
    """
    file = os.fspath(path)
    try:
        document = tomllib.loads(read_text(path))
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise FormatError(f"not TOML: {error}", file=file) from None
    table = Table(document, Place(file))
    table.take_head(_FORMAT, _VERSION)
    residual = table.take("residual", number)
    left_out = table.take_or("left_out", number, None)
    fitted_to = table.take("fitted_to", list_of(text))
    testbeds = table.take("testbed", _testbeds)
    table.close()
    return Calibration(testbeds, tuple(fitted_to), residual, left_out)


def _testbeds(value: object, place: Place) -> dict[str, Testbed]:
    testbeds = by_name(_testbed)(value, place)
    return {name: replace(testbed, name=name) for name, testbed in testbeds.items()}


def _testbed(value: object, place: Place) -> Testbed:
    table = Table(value, place)
    constants = table.take("constants", _constants)
    read = tuple(table.take("read", list_of(text)))
    testbed = Testbed(
        name="",
        constants=constants,
        read=read,
        whole_ms=table.take("whole_ms", truth),
        ratios=table.take("ratios", _ratios),
        profiles=table.take_or("profiles", by_name(_profile), {}),
        healthy_ms=table.take_or("healthy_ms", by_name(_positive), {}),
        message_bytes=table.take("message_bytes", _not_negative),
        errors=table.take_or("errors", by_name(_errors), {}),
    )
    table.close()
    fitted = set(constants) - set(read)
    if len(fitted) > MOST_FITTED:
        raise place.at("constants").error(
            f"a testbed has at most {MOST_FITTED} fitted constants, not {len(fitted)}"
        )
    return testbed


def _ratios(value: object, place: Place) -> Ratios:
    table = Table(value, place)
    found = Ratios(*(table.take(name, _positive) for name in Ratios._fields))
    table.close()
    return found


def _errors(value: object, place: Place) -> tuple[float, ...]:
    errors = tuple(list_of(number)(value, place))
    if not errors or min(errors) <= -1:
        raise place.error("must hold errors, each above −1")
    return errors


def _positive(value: object, place: Place) -> float:
    parsed = number(value, place)
    if parsed <= 0:
        raise place.error(f"must be above 0, not {parsed:g}")
    return parsed


def _not_negative(value: object, place: Place) -> float:
    parsed = number(value, place)
    if parsed < 0:
        raise place.error(f"must not be negative, but is {parsed:g}")
    return parsed


def _constants(value: object, place: Place) -> dict[str, float]:
    table = Table(value, place)
    constants = {}
    for name, constant in CONSTANTS.items():
        given = table.take_or(name, _not_negative if constant.unit == "ms" else _positive, None)
        if given is not None:
            constants[name] = given
    table.close()
    return constants


def _row(value: object, place: Place) -> float | list[float]:
    return list_of(number)(value, place) if isinstance(value, list) else number(value, place)


def _profile(value: object, place: Place) -> Scenario:
    table = Table(value, place)
    shape = {name: table.take(name, whole) for name in ("stages", "microbatches")}
    times = {name: table.take(name, list_of(_row)) for name in TIME_OF.values()}
    table.close()
    try:
        return Scenario(**shape, **times)  # type: ignore[arg-type]
    except ScenarioError as error:
        raise place.error(str(error)) from None
