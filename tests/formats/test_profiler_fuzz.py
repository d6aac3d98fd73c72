"""Damaged traces: one clear line, no traceback, no hang, little memory."""

from __future__ import annotations

import gzip
import json
import random
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipesim.engine import simulate
from pipesim.errors import FormatError
from pipesim.fidelity.import_check import check_import
from pipesim.formats.measurement import Measurement
from pipesim.formats.profiler import import_profiler
from pipesim.scenario import Scenario
from planners import plan
from tests.formats.mutations import damaged, strange
from tests.formats.profiler_recorder import RECORDED
from tests.formats.profiler_traces import traced
from tests.strategies import tries

MEBIBYTE = 2**20


def runs() -> Iterator[tuple[str, list[bytes]]]:
    """Traces of one run each, plain."""
    scenario = Scenario(stages=2, microbatches=2)
    timeline = simulate(scenario, plan(scenario, "1f1b"), "ideal")
    for dialect in ("annotations", "gpu annotations", "kernels"):
        documents = traced([timeline] * 2, dialect, pairs=True)
        yield dialect, [json.dumps(one, indent=0).encode() for one in documents]
    for name in ("GPipe", "DualPipeV"):
        files = sorted(RECORDED.glob(f"{name}-rank*"))
        yield name, [gzip.decompress(file.read_bytes()) for file in files]


RUNS = dict(runs())


def broken(contents: list[bytes], count: int) -> Iterator[bytes]:
    """Damage to the bytes of a trace, to those of its gzip file, and to what its JSON says."""
    chance = random.Random(1)
    yield from damaged(contents[0], count // 3)
    yield from damaged(gzip.compress(contents[0], mtime=0), count // 3)
    document = json.loads(contents[0])
    for _ in range(count - 2 * (count // 3)):
        changed: object = document
        for _ in range(chance.randrange(1, 4)):
            changed = strange(changed, chance)
        yield json.dumps(changed).encode()


def fuzzed(contents: list[bytes], count: int, folder: Path) -> int:
    """Import damaged traces; return how many were refused."""
    paths = [folder / f"rank{number}.json" for number in range(len(contents))]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    refused = 0
    for content in broken(contents, count):
        paths[0].write_bytes(content)
        try:
            made = import_profiler(paths)
        except FormatError as error:
            message = str(error)
            assert message.startswith(tuple(map(str, paths)))
            assert "\n" not in message
            refused += 1
        else:
            assert isinstance(made, Measurement)
            check_import(made)
    return refused


@pytest.mark.parametrize("name", RUNS)
def test_fuzz(name: str, tmp_path: Path) -> None:
    assert fuzzed(RUNS[name], tries(1), tmp_path) > tries(0.3)


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_fuzz_2000(name: str, tmp_path: Path) -> None:
    tracemalloc.start()
    try:
        assert fuzzed(RUNS[name], 2000, tmp_path) > 600
        assert tracemalloc.get_traced_memory()[1] < 1024 * MEBIBYTE
    finally:
        tracemalloc.stop()
