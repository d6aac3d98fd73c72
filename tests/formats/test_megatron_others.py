"""What other programs say of their own is not Megatron-LM's, and restarts are one run."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipesim.errors import FormatError
from pipesim.formats.measurement import Measurement
from pipesim.formats.megatron import import_megatron
from pipesim.formats.megatron.log import read_megatron_log
from tests.formats.megatron_dialects import Run, of_nemo_2, of_v2, text, without_timers

RUN = Run((10.0,) * 4, (20.0,) * 4, 12, copies=2)


def made(folder: Path, content: str, **options: int) -> Measurement:
    path = folder / "train.log"
    path.write_text(content)
    return import_megatron([path], **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "spoken",
    [
        "[2024-01-01 00:00:00,000] [INFO] [config.py:900:print]   world_size ................... 2",
        "[2024-01-01 00:00:00,000] [INFO] [engine.py:12:f]   num_layers .................... 2",
        "[rank0]: [2024-01-01 00:00:00,000] [INFO] [ds/config.py:9:print]   world_size ... 2",
        "2024-01-01 00:00:00 | INFO | config.py:900 -   world_size ................... 2",
        "INFO:deepspeed.runtime.config:  world_size ................... 2",
        "INFO:torch.distributed.launcher.api:  world_size ................... 2",
        "node1:17:42 [3] NCCL INFO world_size ... 2",
        "  world_size ................... 2",  # outside the list of arguments
        "  pipeline_model_parallel_size ................... 1",
        "WORLD_SIZE=2",
        "declare -x WORLD_SIZE=2",
        "world_size: 2",
        "  world_size : 2",
        '{"world_size": 2, "pipeline_model_parallel_size": 1}',
        "torchrun: nnodes=2, nproc_per_node=1, world_size=2",
        "+ python pretrain_gpt.py --pipeline-model-parallel-size 1",
    ],
)
@pytest.mark.parametrize("before", [False, True])
def test_what_others_say_changes_nothing(tmp_path: Path, spoken: str, before: bool) -> None:
    own = text(without_timers, RUN)
    expected = made(tmp_path, own)
    parts = [spoken + "\n", own] if before else own.split("> initializing", 1)
    joint = "" if before else f"{spoken}\n> initializing"
    measured = made(tmp_path, joint.join(parts))
    assert measured.scenario == expected.scenario
    assert measured.tallies[0].used == expected.tallies[0].used + (
        before and spoken.startswith("  ") and ". " in spoken  # read, until the list says better
    )


def test_settings_are_read_of_nemo_alone(tmp_path: Path) -> None:
    measured = made(tmp_path, text(of_nemo_2, RUN))
    assert (measured.scenario.stages, measured.scenario.microbatches) == (4, 12)
    with pytest.raises(FormatError, match="does not say the number of stages"):
        made(tmp_path, "  pipeline_model_parallel_size: 4\n iteration 1/ 2 | " + TIME)


TIME = "elapsed time per iteration (ms): 450.0 | global batch size: 12 |\n"


def test_arguments_as_gpt_neox_prints_them(tmp_path: Path) -> None:
    content = (
        "-------------------- arguments --------------------\n"
        "  gradient_accumulation_steps ..... 12..........................updated\n"
        "  model_parallel_size ............. 1...........................default\n"
        "  pipe_parallel_size .............. 4...........................updated\n"
        "---------------- end of arguments ----------------\n"
        " samples/sec: 26.7 | iteration        1/     100 | " + TIME
    )
    measured = made(tmp_path, content)
    assert (measured.scenario.stages, measured.scenario.microbatches) == (4, 12)
    assert measured.scenario.forward_ms[0, 0] == pytest.approx(10)
    single = made(tmp_path, content.replace(". 4....", ". 0...."))
    assert single.scenario.stages == 1


def test_a_restart_of_the_same_shape_is_one_run(tmp_path: Path) -> None:
    content = text(of_v2, RUN)
    measured = made(tmp_path, content + content)
    assert len(measured.iteration_ms) == 8
    assert [one.starts for one in read_megatron_log(tmp_path / "train.log").iterations] == [
        True, False, False, False, True, False, False, False,
    ]  # fmt: skip


def test_a_restart_of_another_shape_is_another_run(tmp_path: Path) -> None:
    other = Run((10.0,) * 2, (20.0,) * 2, 12, copies=2)
    content = text(of_v2, RUN)
    with pytest.raises(FormatError) as error:
        made(tmp_path, content + text(of_v2, other))
    line = content.count("\n") + 1
    assert f"train.log:{line}: says that the number of ranks is 4, but line 1 8" in str(error.value)


def test_logs_of_two_ranks_tell_together_what_neither_does(tmp_path: Path) -> None:
    lines = text(of_v2, RUN).splitlines(keepends=True)
    first = next(n for n, line in enumerate(lines) if line.startswith(" iteration"))
    for name, part in (("rank0.log", lines[:first]), ("rank7.log", lines[first:])):
        (tmp_path / name).write_text("".join(part))
    measured = import_megatron([tmp_path / "rank0.log", tmp_path / "rank7.log"])
    assert measured.scenario.forward_ms == pytest.approx(RUN.scenario.forward_ms, abs=1e-3)
    assert measured.tallies[0].found == len(lines)
    with pytest.raises(FormatError, match=r'rank0.log: has no "iteration N/ M'):
        import_megatron([tmp_path / "rank0.log"])
    (tmp_path / "notes.txt").write_text("nothing of this\n")
    with pytest.raises(FormatError, match=r'notes.txt: has no "iteration N/ M'):
        import_megatron([tmp_path / "rank7.log", tmp_path / "notes.txt"])


def test_steps_that_deepspeed_counts_beside_megatron_are_not_iterations(tmp_path: Path) -> None:
    beside = "steps: 1 loss: 9.7 iter time (s): 99.0 samples/sec: 1.0\n"
    own = text(without_timers, RUN)
    assert made(tmp_path, beside + own).iteration_ms == made(tmp_path, own).iteration_ms


def test_one_slow_rank_of_those_that_share_a_stage_sets_its_time(tmp_path: Path) -> None:
    blocks = "times across ranks (ms):\n" + "".join(
        f"  {name}:\n"
        + "".join(f"     rank {r}: {ms * (2 if r == 1 else 1):.2f}\n" for r in range(4))
        for name, ms in (("forward-compute", 120), ("backward-compute", 240))
    )
    head = "using world size: 4, tensor-model-parallel size: 2, pipeline-model-parallel size: 2\n"
    measured = made(tmp_path, f"{head} iteration 1/ 2 | {TIME}{blocks}", microbatches=12)
    assert measured.scenario.forward_ms[:, 0].tolist() == [20, 10]
    assert any(
        "stage 0: F and BW take 720 ms on rank 1, and from 360 ms" in n for n in measured.notes
    )
