"""Each dialect: its example, a known run printed in it and read back, and damage to it."""

from __future__ import annotations

import resource
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim.errors import FormatError
from pipesim.fidelity.import_check import check_import
from pipesim.formats.measurement import Measurement
from pipesim.formats.megatron import import_megatron
from pipesim.formats.megatron.dialects import DIALECTS, FOREIGN, foreign
from pipesim.formats.megatron.log import read_megatron_log
from tests.formats.megatron_dialects import DATA, EXACT, FILES, PLAIN, SILENT, WHOLE, Run, text
from tests.formats.mutations import damaged
from tests.strategies import examples, tries

LAUNCHERS = (str, "[default3]:{}".format, "3: {}".format, "\x1b[32m{}\x1b[0m".format)


def read(folder: Path, content: str, name: str, run: Run, **options: int) -> Measurement:
    path = folder / "train.log"
    path.write_text(content)
    shape = {"stages": run.stages, "microbatches": run.microbatches} if name in SILENT else {}
    return import_megatron([path], **shape, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("dialect", "who"), [(dialect, who) for dialect in DIALECTS for who in dialect.examples]
)
def test_the_example_of_each_dialect(tmp_path: Path, dialect: object, who: str) -> None:
    (own,) = (one for one in DIALECTS if one is dialect)
    path = tmp_path / "train.log"
    path.write_text(own.examples[who] + "\n")
    log = read_megatron_log(path)
    assert log.dialect == own.name
    (one,) = log.iterations
    assert one.number in (7, 8)
    assert one.elapsed_ms == pytest.approx(1225, rel=5e-3)
    assert one.batch in (None, 16)


@pytest.mark.parametrize("whose", FOREIGN)
def test_the_example_of_each_other_program(tmp_path: Path, whose: str) -> None:
    example, _ = FOREIGN[whose]
    assert foreign(example) == whose
    run = Run((10.0,) * 2, (20.0,) * 2, 4)
    path = tmp_path / "train.log"
    path.write_text(f"{example}\n" + text(WHOLE["level_0"], run))
    log = read_megatron_log(path)
    assert log.fates[0] == f"of {whose}"
    assert log.shape["ranks"].value == 2


@pytest.mark.parametrize("name", FILES)
def test_a_known_run_is_read_back(name: str) -> None:
    writer, run = FILES[name]
    path = DATA / f"{name}.log"
    assert path.read_bytes().decode() == text(writer, run), (
        "run python -m tests.formats.megatron_dialects"
    )
    shape = {"stages": 4, "microbatches": 16} if name in SILENT else {}
    measured = import_megatron([path], **shape)  # type: ignore[arg-type]
    found, real = measured.scenario, run.scenario
    assert (found.microbatches, found.placement) == (real.microbatches, real.placement)
    assert found.forward_ms == pytest.approx(real.forward_ms, rel=0.01)
    assert found.fused_backward_ms == pytest.approx(real.fused_backward_ms, rel=0.01)
    check = check_import(measured)
    assert check is not None
    assert abs(check.error) < 0.01
    assert [(tally.noun, tally.found) for tally in measured.tallies[:2]] == [
        ("line", path.read_bytes().count(b"\n")),
        ("iteration", 6),
    ]


def test_there_are_no_other_files() -> None:
    assert {path.stem for path in DATA.glob("*.log")} == set(FILES)


times = st.floats(0.5, 200)


@st.composite
def runs(draw: st.DrawFn) -> Run:
    stages = draw(st.integers(1, 5))
    chunks = draw(st.sampled_from([1, 1, 2, 4])) if stages > 1 else 1
    group = stages if chunks > 1 else 1
    return Run(
        tuple(draw(st.lists(times, min_size=stages, max_size=stages))),
        tuple(draw(st.lists(times, min_size=stages, max_size=stages))),
        group * draw(st.integers(1, 6)),
        chunks=chunks,
        copies=draw(st.integers(1, 3)),
        sharing=draw(st.integers(1, 2)),
        stage_first=draw(st.booleans()),
        iterations=draw(st.integers(1, 3)),
        period=draw(st.integers(1, 3)),
        after_ms=draw(st.sampled_from([0.0, 7.0])),
        slow_copy=draw(st.sampled_from([1.0, 1.5])),
        dressed=draw(st.sampled_from(LAUNCHERS)),
    )


@pytest.mark.parametrize("name", EXACT)
@examples(0.5)
@given(run=runs())
def test_round_trip_of_operator_times(
    tmp_path_factory: pytest.TempPathFactory, name: str, run: Run
) -> None:
    measured = read(tmp_path_factory.mktemp("log"), text(EXACT[name], run), name, run)
    real = run.scenario
    of_ranks = np.array([run.times_ms(rank)[1:] for rank in range(run.ranks)])
    if name == "all_ranks":
        forward_ms, backward_ms = real.forward_ms[:, 0], real.fused_backward_ms[:, 0]
    else:
        one = {"minmax": of_ranks.max(axis=0), "max": of_ranks.max(axis=0)}.get(
            name, of_ranks[0 if name == "megatron_deepspeed" else -1]
        )
        forward_ms, backward_ms = np.full((2, real.stages), one[:, None] / run.chunks)
    printed = 0.006 / run.microbatches + 1e-4
    found = measured.scenario
    assert found.placement == real.placement
    assert found.microbatches == run.microbatches
    assert np.abs(found.forward_ms - forward_ms[:, None]).max() < printed
    assert np.abs(found.fused_backward_ms - backward_ms[:, None]).max() < printed
    assert not measured.guessed


DIGITS = {"bigscience": 5.0, "deepspeed": 0.5, "level_1": 0.006}
RELATIVE = {"nanotron": 5.1e-3, "nemo_1": 5.1e-4, "nemo_2": 5.1e-4}


@pytest.mark.parametrize("name", WHOLE)
@examples(0.5)
@given(run=runs(), whole_ms=st.floats(1000, 90_000))
def test_round_trip_of_iteration_times(
    tmp_path_factory: pytest.TempPathFactory, name: str, run: Run, whole_ms: float
) -> None:
    """They tell one number, so F and BW are known only if all stages are alike and BW is 2 F."""
    chunks = 1 if name in PLAIN else run.chunks
    forward_ms = whole_ms / 3 / (run.microbatches + (run.stages - 1) / chunks)
    alike = Run(
        (forward_ms,) * run.stages,
        (2 * forward_ms,) * run.stages,
        run.microbatches,
        chunks=chunks,
        copies=run.copies,
        sharing=run.sharing,
        iterations=run.iterations,
        dressed=run.dressed,
    )
    assert alike.pipeline_ms == pytest.approx(whole_ms)
    measured = read(tmp_path_factory.mktemp("log"), text(WHOLE[name], alike), name, alike)
    printed = RELATIVE.get(name, DIGITS.get(name, 0.051) / whole_ms)
    scenario = alike.scenario
    assert measured.scenario.placement == scenario.placement
    for kind in ("F", "BW"):
        found_ms, real_ms = measured.scenario.durations_ms(kind), scenario.durations_ms(kind)
        assert (np.abs(found_ms - real_ms) < printed * real_ms + 1e-4).all()
    assert measured.guessed == (name != "level_1")


def fuzzed(path: Path, name: str, count: int) -> int:
    """Read damaged copies; return how many were refused."""
    writer, run = FILES[name]
    shape = {"stages": 4, "microbatches": 16} if name in SILENT else {}
    refused = 0
    for broken in damaged(text(writer, run).encode(), count, seed=len(name)):
        path.write_bytes(broken)
        try:
            assert isinstance(import_megatron([path], **shape), Measurement)  # type: ignore[arg-type]
        except FormatError as error:
            assert str(error).startswith(str(path))  # noqa: PT017
            refused += 1
    return refused


@pytest.mark.parametrize("name", FILES)
def test_fuzz(tmp_path: Path, name: str) -> None:
    assert fuzzed(tmp_path / "train.log", name, tries(1)) > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_fuzz_long(tmp_path: Path, name: str) -> None:
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert fuzzed(tmp_path / "train.log", name, 2000) > 0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 2**20
