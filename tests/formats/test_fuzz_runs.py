"""Damaged traces and timelines: one clear line, whatever is wrong, in little time and memory.

A few files here, thousands with ``pytest -m slow``.
"""

from __future__ import annotations

import multiprocessing
import random
import resource
import sys
from pathlib import Path

import pytest

from pipesim.errors import PipesimError
from pipesim.fidelity.import_check import check_import
from pipesim.fidelity.jobs.stragglers import explain_job
from pipesim.formats.operator_timeline import import_timelines
from pipesim.formats.production import import_production, read_production
from pipesim.scenario import Scenario
from tests.formats.mutations import damaged, strange_frame
from tests.formats.operator_timelines import MADE
from tests.formats.production_traces import job

MOST_BYTES = 2**30


def read_damaged_traces(folder: Path, count: int, seed: int) -> tuple[int, int]:
    """Read many damaged traces; return how many are refused, and the most memory in use."""
    frame = job(lambda t, w: Scenario(stages=2, microbatches=3), steps=range(3), peers=2)
    path = folder / "job.parquet"
    frame.to_parquet(path, index=False)
    bytes_of = damaged(path.read_bytes(), count // 4 + 1, seed)
    chance = random.Random(seed)
    errors = 0
    for number in range(count):
        if number % 4 == 0:
            path.write_bytes(next(bytes_of))
        else:
            strange = frame
            for _ in range(chance.choice([1, 1, 2, 3])):
                strange = strange_frame(strange, chance)
            try:
                strange.to_parquet(path, index=False)
            except Exception:  # Arrow cannot write what it cannot hold
                continue
        try:
            made = import_production(path)
            assert sum(tally.found for tally in made.tallies) > 0
            check_import(made)
            explain_job(read_production(path))
        except PipesimError as error:
            assert str(error).startswith(str(path))  # noqa: PT017
            assert "\n" not in str(error)  # noqa: PT017
            errors += 1
    return errors, peak_bytes()


def read_damaged_timelines(folder: Path, count: int, seed: int) -> tuple[int, int]:
    """Read many damaged timelines; return how many are refused, and the most memory in use."""
    path = folder / "ops.csv"
    errors = 0
    for broken in damaged(MADE.read_bytes(), count, seed):
        path.write_bytes(broken)
        try:
            check_import(import_timelines([path]))
        except PipesimError as error:
            assert str(error).startswith(str(path))  # noqa: PT017
            assert "\n" not in str(error)  # noqa: PT017
            errors += 1
    return errors, peak_bytes()


def peak_bytes() -> int:
    """The most memory that this process has had."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


FORMATS = {"production": read_damaged_traces, "timeline": read_damaged_timelines}


@pytest.mark.parametrize("kind", FORMATS)
def test_some(tmp_path: Path, kind: str) -> None:
    errors, _ = FORMATS[kind](tmp_path, 60, 0)
    assert errors > 10


@pytest.mark.slow
@pytest.mark.parametrize("kind", FORMATS)
def test_two_thousand(tmp_path: Path, kind: str) -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        errors, peak = pool.apply(FORMATS[kind], (tmp_path, 2000, 1))
    assert errors > 200
    assert peak < MOST_BYTES
