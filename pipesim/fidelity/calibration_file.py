"""Calibrations as TOML files."""

from __future__ import annotations

import os
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np

from pipesim.documents.reading import Place, Table, list_of, number, text, whole
from pipesim.errors import FormatError, ScenarioError
from pipesim.fidelity.calibration import STREAMS, Calibration
from pipesim.fidelity.runs import SYSTEMS
from pipesim.fidelity.testbed import CONSTANTS, MOST_CONSTANTS, Testbed
from pipesim.files import StrPath, read_text, write_text
from pipesim.scenario import Scenario

__all__ = ["load_calibration", "save_calibration"]

_FORMAT, _VERSION = "pipesim-calibration", 1
_PROFILE = ("forward_ms", "backward_ms", "weight_ms", "fused_backward_ms")


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
        "p2p_streams": testbed.p2p_streams,
        "forward": testbed.forward,
        "backward": testbed.backward,
        "weight": testbed.weight,
        # An unlimited rate is left out: it is neutral.
        "constants": {k: v for k, v in testbed.constants.items() if np.isfinite(v)},
        "message_bytes": testbed.message_bytes,
    }
    if testbed.errors:
        table["errors"] = {system: list(errors) for system, errors in testbed.errors.items()}
    if testbed.profile is not None:
        profile = testbed.profile
        table["profile"] = {
            "stages": profile.stages,
            "microbatches": profile.microbatches,
            **{field: getattr(profile, field).tolist() for field in _PROFILE},
        }
    return table


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
    names = list(value) if isinstance(value, dict) else []
    table = Table(value, place)
    return {name: replace(table.take(name, _testbed), name=name) for name in names}


def _testbed(value: object, place: Place) -> Testbed:
    table = Table(value, place)
    streams = table.take("p2p_streams", text)
    if streams not in STREAMS:
        raise place.at("p2p_streams").error(f"must be one of {', '.join(STREAMS)}")
    testbed = Testbed(
        name="",
        p2p_streams=streams,
        forward=table.take("forward", _positive),
        backward=table.take("backward", _positive),
        weight=table.take("weight", _positive),
        profile=table.take_or("profile", _profile, None),
        constants=table.take("constants", _constants),
        message_bytes=table.take_or("message_bytes", number, 0.0),
        errors=table.take_or("errors", _errors, {}),
    )
    table.close()
    return testbed


def _errors(value: object, place: Place) -> dict[str, tuple[float, ...]]:
    table = Table(value, place)
    errors = {name: tuple(table.take_or(name, list_of(number), ())) for name in SYSTEMS}
    table.close()
    return {name: own for name, own in errors.items() if own}


def _positive(value: object, place: Place) -> float:
    parsed = number(value, place)
    if parsed <= 0:
        raise place.error(f"must be above 0, not {parsed:g}")
    return parsed


def _constants(value: object, place: Place) -> dict[str, float]:
    table = Table(value, place)
    constants = {}
    for name, constant in CONSTANTS.items():
        parse = number if constant.unit == "ms" else _positive
        given = table.take_or(name, parse, None)
        if given is not None:
            if given < 0:
                raise place.at(name).error(f"must not be negative, but is {given:g}")
            constants[name] = given
    table.close()
    if len(constants) > MOST_CONSTANTS:
        raise place.error(f"a testbed has at most {MOST_CONSTANTS} constants, not {len(constants)}")
    return constants


def _profile(value: object, place: Place) -> Scenario:
    table = Table(value, place)
    shape = {name: table.take(name, whole) for name in ("stages", "microbatches")}
    times = {name: table.take(name, list_of(list_of(number))) for name in _PROFILE}
    table.close()
    try:
        return Scenario(**shape, **times)  # type: ignore[arg-type]
    except ScenarioError as error:
        raise place.error(str(error)) from None
