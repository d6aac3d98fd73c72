"""Unlike iterations and ranks of a log are told apart, and what is taken is said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pipesim.errors import FormatError
from pipesim.fidelity.import_check import check_import
from pipesim.formats.measurement import Measurement
from pipesim.formats.megatron import import_megatron
from tests.formats.megatron_dialects import DATA, Run, head, in_ms, line, of_all_ranks, of_v2, text
from tests.formats.megatron_logs import iteration

CASES = DATA / "cases"
RUN = Run((10.0,) * 4, (20.0,) * 4, 12, copies=3, iterations=3)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "train.log"


def made(path: Path, content: str, **options: object) -> Measurement:
    path.write_text(content)
    given: dict[str, object] = {"stages": 4, **options}
    return import_megatron([path], **given)  # type: ignore[arg-type]


def dropped(measured: Measurement, noun: str) -> dict[str, Sequence[str]]:
    (tally,) = (one for one in measured.tallies if one.noun == noun)
    return {part.why: part.places for part in tally.dropped}


def batches(*parts: tuple[int, int, float]) -> str:
    """Iterations: how many, of which global batch size, how long."""
    lines, number = [], 0
    for count, batch, ms in parts:
        for _ in range(count):
            number += 1
            lines.append(iteration(number, ms).replace("size:    12", f"size: {batch:5d}"))
    return "".join(lines)


# -- batch sizes -----------------------------------------------------------------------------


def test_of_a_ramp_up_the_iterations_with_the_given_microbatches_count() -> None:
    measured = import_megatron([CASES / "batch-ramp-up.log"], microbatches=16)
    assert measured.scenario.forward_ms == pytest.approx(np.full((4, 16), 10.0))
    assert measured.iteration_ms == (570, 570)
    assert len(dropped(measured, "iteration")["of another global batch size than 16"]) == 5
    assert any(
        "4 in iterations 1–5, 210 ms; 16 in iterations 6–7, 570" in n for n in measured.notes
    )
    early = import_megatron([CASES / "batch-ramp-up.log"], microbatches=4)
    assert early.scenario.forward_ms == pytest.approx(np.full((4, 4), 10.0))


RAMP = batches((3, 8, 210), (3, 16, 330), (2, 32, 570))
ONE_EACH = "  micro_batch_size ................ 1\n  data_parallel_size .............. 2\n"


def test_of_a_ramp_up_the_last_batch_size_counts_by_default(path: Path) -> None:
    measured = made(path, ONE_EACH + RAMP)
    assert measured.scenario.microbatches == 16
    assert measured.scenario.forward_ms[0, 0] == pytest.approx(10)
    assert (
        f"{path}: the number of micro-batches is 16: 32 samples of a batch in micro-batches "
        in ("\n".join(measured.notes))
    )
    for n, ms in ((4, 210), (8, 330), (16, 570)):
        assert made(path, ONE_EACH + RAMP, microbatches=n).iteration_ms[0] == ms


@pytest.mark.parametrize(
    ("content", "options", "says"),
    [
        (RAMP, {}, "give --microbatches (its global batch sizes are 8, 16 and 32; only iterat"),
        (
            RAMP,
            {"microbatches": 5},
            "has no iteration of 5 micro-batches: the global batch size is",
        ),
        (
            ONE_EACH + RAMP,
            {"microbatches": 32},
            "has no iteration of 32 micro-batches, at 2 samples for each: the global batch size",
        ),
        (
            ONE_EACH + batches((3, 7, 200)),
            {},
            "give --microbatches (7 samples of a batch are no multiple of 2)",
        ),
    ],
)
def test_batches_without_a_number(
    path: Path, content: str, options: dict[str, object], says: str
) -> None:
    with pytest.raises(FormatError) as error:
        made(path, content, **options)
    assert str(error.value).startswith(f"{path}: ")
    assert says in str(error.value)


def test_micro_batches_of_unknown_size_are_of_one_sample_if_that_fits(path: Path) -> None:
    copies = "  data_parallel_size .............. 2\n"
    assert made(path, copies + RAMP, microbatches=16).iteration_ms == (570, 570)
    measured = made(path, RAMP, microbatches=4)
    assert measured.iteration_ms == (570, 570)
    assert "4 micro-batches, taken to be of 8 samples each, count" in "\n".join(measured.notes)


def test_other_sizes_of_micro_batches_are_told_where_they_may_be_meant(path: Path) -> None:
    ramp = batches((3, 12, 450), (3, 24, 810))
    notes = "\n".join(made(path, ramp, microbatches=12).notes)
    assert "not told (micro_batch_size): of 2 each, those of 24 would count" in notes
    odd = batches((3, 5, 240), (3, 10, 390), (3, 12, 450))
    for log, number in ((ramp, 24), (odd, 5), (ONE_EACH + RAMP, None)):
        notes = "\n".join(made(path, log, microbatches=number).notes)
        assert "samples of a micro-batch" not in notes


def test_the_batch_of_the_arguments_counts_where_lines_tell_none(path: Path) -> None:
    bare = RAMP.replace("global batch size", "batches")
    shape = ONE_EACH + "  global_batch_size ............... 24\n"
    assert made(path, shape + bare).scenario.microbatches == 12


def test_the_number_that_a_log_states_outranks_what_follows_from_batches(path: Path) -> None:
    stated = ONE_EACH + "setting number of micro-batches to constant 12\n"
    measured = made(path, stated + batches((3, 12, 450)))
    assert measured.scenario.microbatches == 12
    with pytest.raises(FormatError, match="has no iteration of 12 micro-batches, at 2 samples"):
        made(path, ONE_EACH + batches((3, 12, 450)), microbatches=12)


def test_a_fork_that_misspells_the_batch(path: Path) -> None:
    measured = made(path, ONE_EACH + RAMP.replace("global batch", "gloabl batch"), microbatches=16)
    assert measured.iteration_ms == (570, 570)


# -- levels of time --------------------------------------------------------------------------


def test_delayed_iterations_are_not_pooled_with_healthy_ones(path: Path) -> None:
    times = [430 + i % 3 for i in range(8)] + [620 + i % 5 for i in range(21)]
    content = "".join(iteration(1 + i, float(ms)) for i, ms in enumerate(times))
    measured = made(path, content, microbatches=12)
    assert set(measured.iteration_ms) == {430, 431, 432}
    assert len(dropped(measured, "iteration")["slower, 622 ms"]) == 21
    assert any("2 levels of time (1–8: 431 ms; 9–29: 622 ms)" in note for note in measured.notes)
    slow = made(path, content, microbatches=12, iterations=range(9, 30))
    assert min(slow.iteration_ms) == 620
    both = made(path, content, microbatches=12, iterations=range(1, 30))
    assert len(both.iteration_ms) == 29
    assert any("median is the time of none of them" in note for note in both.notes)


@pytest.mark.parametrize("times", [(430, 620), (620, 430, 431), (430, 620, 431, 621)])
def test_few_iterations_are_not_pooled_either(path: Path, times: tuple[int, ...]) -> None:
    content = "".join(iteration(1 + i, float(ms)) for i, ms in enumerate(times))
    measured = made(path, content, microbatches=12)
    assert max(measured.iteration_ms) <= 431
    assert any("2 levels of time" in note for note in measured.notes)


def test_noise_is_one_level(path: Path) -> None:
    content = "".join(iteration(1 + i, 430.0 + 7 * (i % 5)) for i in range(20))
    measured = made(path, content, microbatches=12)
    assert len(measured.iteration_ms) == 20
    assert dropped(measured, "iteration") == {}


def test_a_slow_iteration_that_starts_no_job_is_an_outlier(path: Path) -> None:
    content = "".join(iteration(1 + i, 900.0 if i == 4 else 430.0) for i in range(9))
    measured = made(path, content, microbatches=12)
    assert measured.iteration_ms.count(900) == 1
    assert dropped(measured, "iteration") == {}


def test_a_job_that_goes_on_from_a_checkpoint_starts_again(path: Path) -> None:
    again = "".join(f"{one}\n" for one in head(RUN))
    numbers = [(1, 3000.0), (2, 450.0), (3, 451.0), (4, 2500.0), (5, 450.0)]
    lines = [iteration(number, ms) for number, ms in numbers]
    measured = made(path, again + "".join(lines[:3]) + again + "".join(lines[3:]))
    assert measured.iteration_ms == (450, 451, 450)
    assert len(dropped(measured, "iteration")["start-up"]) == 2


def test_each_start_of_a_job_has_its_start_up(path: Path) -> None:
    content = text(of_v2, replace(RUN, start_up=4.0))
    measured = made(path, content + content)
    assert len(measured.iteration_ms) == 4
    assert len(dropped(measured, "iteration")["start-up"]) == 2


# -- ranks -----------------------------------------------------------------------------------


def test_a_slow_worker_sets_the_step(path: Path) -> None:
    slow = replace(RUN, slow_copy=2.0)
    measured = made(path, text(of_all_ranks, slow))
    assert measured.scenario.forward_ms[:, 0] == pytest.approx([20, 10, 10, 10], abs=1e-3)
    check = check_import(measured)
    assert check is not None
    assert abs(check.error) < 1e-3
    assert "stage 0 stands apart: F and BW take 720 ms on rank 2 (data-parallel 2), 360 ms on " in (
        "\n".join(measured.notes)
    )
    assert any(
        f"of data-parallel rank 2, {slow.pipeline_ms:g} ms by 1F1B; rank 0 alone would take 450"
        in note
        for note in measured.notes
    )
    assert dropped(measured, "rank") == {
        "of another data-parallel rank": tuple(f"rank {r}" for r in (0, 1, 3, 4, 6, 7, 9, 10))
    }
    healthy = made(path, text(of_all_ranks, slow), dp_rank=1)
    assert healthy.scenario.forward_ms[:, 0] == pytest.approx([10] * 4, abs=1e-3)
    with pytest.raises(FormatError, match=r"no data-parallel rank 3 \(there are 3, from 0 on\)"):
        made(path, text(of_all_ranks, slow), dp_rank=3)


@pytest.mark.parametrize("stage_first", [False, True])
@pytest.mark.parametrize("sharing", [1, 2])
def test_the_slow_worker_is_found_in_any_order_of_ranks(
    path: Path, stage_first: bool, sharing: int
) -> None:
    run = replace(RUN, slow_copy=1.7, stage_first=stage_first, sharing=sharing, copies=2)
    measured = made(path, text(of_all_ranks, run))
    assert measured.scenario.forward_ms[:, 0] == pytest.approx([17, 10, 10, 10], abs=1e-3)
    assert any("of data-parallel rank 1" in note for note in measured.notes)


def test_workers_alike_are_pooled(path: Path) -> None:
    measured = made(path, text(of_all_ranks, replace(RUN, slow_copy=1.05)))
    assert measured.scenario.forward_ms[:, 0] == pytest.approx([10] * 4, abs=1e-3)
    assert dropped(measured, "rank") == {}


def test_without_timers_of_all_ranks_there_is_no_worker(path: Path) -> None:
    with pytest.raises(
        FormatError, match="no timers of all ranks, so none of data-parallel rank 0"
    ):
        made(path, RAMP, microbatches=16, dp_rank=0)


# -- what became of it -----------------------------------------------------------------------


def test_every_line_is_accounted_for(path: Path) -> None:
    content = (
        "\n".join(head(RUN))
        + "\n"
        + line(RUN, 1, in_ms(450.0))
        + "\nsomething else\n"
        + line(RUN, 2, in_ms(451.0))
        + "\n"
        + line(RUN, 3, in_ms(450.0))[:90]
    )
    measured = made(path, content)
    (tally,) = (one for one in measured.tallies if one.noun == "line")
    assert tally.found == content.count("\n") + 1
    lines = content.split("\n")
    for why, places in dropped(measured, "line").items():
        for place in places:
            shown = lines[int(place.removeprefix(f"{path}, line ")) - 1]
            assert ("NCCL" in shown) == (why == "of NCCL")
            assert (shown == "") == (why == "blank")
    assert dropped(measured, "line")["an iteration that is cut short"] == (
        f"{path}, line {len(lines)}",
    )
    assert dropped(measured, "iteration") == {
        "without a usable time": (f"{path}, line {len(lines)}: iteration 3 is cut short",)
    }
