"""Testbeds by name: those that come with pipesim, and those of a calibration file."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path

from pipesim.errors import ScenarioError
from pipesim.fidelity.calibration import Calibration
from pipesim.fidelity.calibration_file import load_calibration
from pipesim.fidelity.testbed import Testbed
from pipesim.files import StrPath

__all__ = ["shipped", "testbed_named"]

_SHIPPED = str(files("pipesim.fidelity") / "testbeds.toml")
"""The calibration of this repository's ``traces/``."""


def shipped() -> Calibration:
    """Return the calibration of the testbeds that come with pipesim.

    Examples
    --------
    >>> list(shipped().testbeds)
    ['h800', 'a10']
    """
    return load_calibration(_SHIPPED)


def testbed_named(name: StrPath) -> Testbed:
    """Return a testbed.

    Parameters
    ----------
    name : str or path
        One of those that come with pipesim; or a calibration file, with ``:NAME`` where it has
        several.

    Raises
    ------
    ScenarioError
        There is no such testbed.
    FormatError
        The file cannot be read, or is no calibration.

    Examples
    --------
    >>> testbed_named("h800").name
    'h800'
    """
    text = os.fspath(name)
    ours = shipped().testbeds
    if text in ours:
        return ours[text]
    file, colon, wanted = text.rpartition(":")
    if colon and not Path(text).exists():
        return _only(file, wanted)
    is_name = Path(text).name == text and Path(text).suffix != ".toml"
    if not text or (is_name and not Path(text).exists()):
        known = ", ".join(ours)
        raise ScenarioError(f"unknown testbed {text!r}: one of {known}, or a calibration file")
    return _only(text, "")


def _only(file: str, wanted: str) -> Testbed:
    """The testbed of a file that is called ``wanted``, or its only one."""
    testbeds = load_calibration(file).testbeds
    if not wanted and len(testbeds) == 1:
        return next(iter(testbeds.values()))
    if wanted in testbeds:
        return testbeds[wanted]
    known = ", ".join(testbeds) or "none"
    if wanted:
        raise ScenarioError(f"{file} has no testbed {wanted!r} (it has: {known})")
    raise ScenarioError(f"{file} has several testbeds ({known}): give one, as in {file}:NAME")
