"""A plan from a file, and what to say where the file is another tool's."""

from __future__ import annotations

from pathlib import Path

from pipesim.documents.plan_json import load_plan
from pipesim.errors import ScenarioError
from pipesim.schedule import Schedule

__all__ = ["begins", "plan_from"]

_KINDS = {".csv": "timeline", ".log": "megatron", ".txt": "megatron", ".gz": "profiler"}
"""Which import reads a file, by its ending."""

_OF_A_PROFILER = (b'"traceEvents"', b'"schemaVersion"')
_HEAD = 4096


def plan_from(file: Path) -> Schedule:
    """Read a plan.

    Raises
    ------
    ScenarioError
        The file is a scenario, or one that has to be imported first.
    FormatError
        See :func:`pipesim.documents.plan_json.load_plan`.
    """
    if kind := _imported_as(file):
        made = "plan.json" if kind == "torch-csv" else "run.toml"
        raise ScenarioError(
            f"{file} is no scenario and no plan: import it first, `pipesim import {kind} {file} "
            f"-o {made}`"
        )
    if file.suffix.lower() == ".toml":
        raise ScenarioError(f"{file} is a scenario and no plan: give it as --scenario {file}")
    return load_plan(file)


def begins(file: Path, content: bytes) -> bool:
    """Whether these are the file's first bytes."""
    return _head(file, len(content)) == content


def _imported_as(file: Path) -> str:
    """Return the import that reads a file, by its name and how it begins; empty if none does."""
    if begins(file, b"PAR1"):
        return "production"
    kind = _KINDS.get(file.suffix.lower(), "")
    if kind == "timeline" and not begins(file, b"iteration,"):
        return "torch-csv"
    if not kind and any(key in _head(file, _HEAD) for key in _OF_A_PROFILER):
        return "profiler"
    return kind


def _head(file: Path, size: int) -> bytes:
    try:
        with file.open("rb") as opened:
            return opened.read(size)
    except OSError:
        return b""
