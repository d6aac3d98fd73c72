from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipesim.errors import FormatError, ScenarioError
from pipesim.formats.measurement import Measurement
from pipesim.formats.profiler import import_profiler
from pipesim.formats.profiler.kineto import read_kineto
from tests.formats.mutations import damaged
from tests.formats.profiler_traces import RANK0, RANK1, document, event, rank
from tests.strategies import tries


def gpu(name: str, start_ms: float, end_ms: float, stream: int = 7) -> dict[str, object]:
    return event(name, start_ms, end_ms, cat="gpu_user_annotation", pid=0, tid=stream)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., list[Path]]:
    def save(*documents: Any) -> list[Path]:
        paths = [tmp_path / f"rank{n}.json" for n in range(len(documents))]
        for path, content in zip(paths, documents, strict=True):
            path.write_text(json.dumps(content))
        return paths

    return save


Write = Callable[..., list[Path]]


def unused(made: Measurement, noun: str) -> dict[str, list[str]]:
    """What was not used of one kind of thing, by reason."""
    (tally,) = (tally for tally in made.tallies if tally.noun == noun)
    return {part.why: list(part.places) for part in tally.dropped}


def test_two_ranks_two_steps(write: Write) -> None:
    paths = write(rank(1, RANK1), rank(0, RANK0))
    made = import_profiler(paths, message_bytes=5, name="n", source="s")
    scenario = made.scenario
    assert (scenario.stages, scenario.microbatches, scenario.name) == (2, 1, "n")
    assert scenario.forward_ms[:, 0].tolist() == [10.5, 18.5]
    assert scenario.backward_ms[:, 0].tolist() == [8.5, 14.75]  # torch's I; half of torch's B
    assert scenario.weight_ms[:, 0].tolist() == [6.5, 14.75]
    assert scenario.fused_backward_ms[:, 0].tolist() == [15, 29.5]
    assert made.spread_ms["F"][0, 0] == 0.5
    assert [(one.label, one.used) for one in made.iterations] == [("5", True), ("6", True)]
    assert made.iteration_ms == pytest.approx((78, 79))
    spans = made.iterations[0].timeline.compute
    assert [(str(s.op), round(s.start_ms, 6), round(s.end_ms, 6)) for d in spans for s in d] == [
        ("0F0", 0, 10), ("0B0", 62, 70), ("0W0", 72, 78), ("1F0", 12, 30), ("1BW0", 31, 60),
    ]  # fmt: skip
    assert unused(made, "other annotation")["of messages and sharding"] == [
        f"{path}, traceEvents[{at}]" for path, at in ((paths[1], 5), (paths[1], 10), (paths[0], 4),
        (paths[0], 8))
    ]  # fmt: skip
    assert "medians over 2 iterations: 5 and 6" in made.notes
    assert any("no GPU annotations: times are of the host" in note for note in made.notes)
    assert any(note.startswith("F 14.5 ms ± 0.25, B 8.5 ms") for note in made.notes)


def test_chosen_steps(write: Write) -> None:
    paths = write(rank(0, RANK0), rank(1, RANK1))
    made = import_profiler(paths, iterations=["6"])
    assert made.scenario.forward_ms[0, 0] == 11
    assert [one.used for one in made.iterations] == [False, True]
    with pytest.raises(FormatError, match=r"no complete iteration 7 \(complete: 5–6\)"):
        import_profiler(paths, iterations=[7])


def test_gpu_annotations_win(write: Write) -> None:
    """The GPU lags into the next step; an operator on two streams lasts over both."""
    cpu = rank(0, {"PP:0F0": (0.0, 1.0), "PP:0B0": (1.0, 2.0)}, world_size=1)
    for step in range(2):
        cpu["traceEvents"] += [
            gpu("PP:0F0", 100 * step + 90, 100 * step + 110),
            gpu("PP:0F0", 100 * step + 95, 100 * step + 112, stream=20),
            gpu("PP:0B0", 100 * step + 112, 100 * step + 142),
        ]
    made = import_profiler(write(cpu))
    assert [one.label for one in made.iterations] == ["5", "6"]
    assert made.scenario.forward_ms.tolist() == [[22]]
    assert made.scenario.fused_backward_ms.tolist() == [[30]]
    assert "times are of the GPU: from the first kernel of an annotation to its last" in made.notes


def test_without_profiler_steps_a_name_that_comes_again_is_an_iteration(write: Write) -> None:
    once = [event("PP:0F0", 0, 10), event("PP:0B0", 10, 30)]
    again = [event("PP:0F0", 40, 52), event("PP:0B0", 52, 70)]
    made = import_profiler(write(document([*once, *again])))
    assert [one.label for one in made.iterations] == ["0", "1"]
    assert made.scenario.forward_ms.tolist() == [[11]]


def test_single_stage_schedules_have_the_rank_as_stage(write: Write) -> None:
    ops = {f"{kind} {m}": (at, at + 9.0) for kind, m, at in (
        ("Forward", 0, 0.0), ("Forward", 1, 10.0), ("Backward", 0, 60.0), ("Backward", 1, 70.0),
    )}  # fmt: skip
    later = {"Forward 0": (10.0, 19.0), "Forward 1": (20.0, 29.0), "Backward 0": (40.0, 49.0),
             "Backward 1": (50.0, 59.0)}  # fmt: skip
    made = import_profiler(write(rank(0, ops), rank(1, later)))
    assert (made.scenario.stages, made.scenario.microbatches) == (2, 2)
    assert made.scenario.fused_backward_ms[1].tolist() == [9.5, 9.5]
    assert any("name no stage: the rank is taken" in note for note in made.notes)
    with pytest.raises(FormatError, match=r"no file has stage 0"):
        import_profiler(write(rank(1, later)))


def test_without_ranks_the_order_of_the_files_counts(write: Write) -> None:
    documents = [rank(0, RANK0), rank(0, RANK1)]
    for one in documents:
        del one["distributedInfo"]
    made = import_profiler(write(*documents))
    assert made.scenario.stages == 2
    assert any(note.startswith("no rank in ") for note in made.notes)


def test_gzip(write: Write, tmp_path: Path) -> None:
    paths = write(rank(0, RANK0), rank(1, RANK1))
    packed = [path.with_suffix(".json.gz") for path in paths]
    for path, into in zip(paths, packed, strict=True):
        into.write_bytes(gzip.compress(path.read_bytes()))
    made = import_profiler(packed)
    assert made.scenario == import_profiler(paths).scenario
    assert made.scenario.name == "rank0"
    packed[0].write_bytes(packed[0].read_bytes()[:-20])
    with pytest.raises(FormatError, match=r"rank0.json.gz: is not a whole gzip file"):
        import_profiler(packed)


def test_interleaved_stages_on_a_rank(write: Write) -> None:
    first = {"PP:0F0": (0.0, 5.0), "PP:2F0": (20.0, 25.0), "PP:2B0": (40.0, 45.0),
             "PP:0B0": (60.0, 65.0)}  # fmt: skip
    second = {"PP:1F0": (10.0, 15.0), "PP:3F0": (30.0, 33.0), "PP:3B0": (34.0, 38.0),
              "PP:1B0": (50.0, 55.0)}  # fmt: skip
    made = import_profiler(write(rank(0, first), rank(1, second)))
    assert made.scenario.placement == (0, 1, 0, 1)
    assert len(made.iterations) == 2


def test_partial_iterations_are_skipped_and_counted(write: Write) -> None:
    cut = rank(1, RANK1)
    cut["traceEvents"] = [e for e in cut["traceEvents"] if e["name"] != "PP:1B0" or e["ts"] < 1e6
                          + 1e5]  # fmt: skip
    paths = write(rank(0, RANK0, steps=3), cut)
    made = import_profiler(paths)
    assert [one.label for one in made.iterations] == ["5"]
    assert (
        "skipped 2 partial iterations: 6 and 7 (6 lacks the backward of stage 1, micro-batch 0)"
        in made.notes
    )


def test_clocks_that_disagree_cost_the_timeline_only(write: Write) -> None:
    skewed = rank(1, RANK1)
    skewed["baseTimeNanoseconds"] -= 50_000_000
    made = import_profiler(write(rank(0, RANK0), skewed))
    assert made.scenario.forward_ms[:, 0].tolist() == [10.5, 18.5]
    assert made.iterations == ()
    assert made.iteration_ms == pytest.approx((78, 79))  # of the first rank, by its own clock
    assert any("no timeline of 2 iterations, only operator times" in note for note in made.notes)


def test_annotations_outside_steps_and_doubled(write: Write) -> None:
    one = rank(0, RANK0, steps=1)
    one["traceEvents"] += [event("PP:0F0", 500, 501), event("PP:0W0", 80, 90)]
    two = rank(1, RANK1, steps=1)
    paths = write(one, two)
    made = import_profiler(paths)
    assert made.scenario.weight_ms[0, 0] == 6
    left_out = unused(made, "operator")
    assert left_out["outside the profiler steps"] == [f"{paths[0]}, PP:0F0"]
    assert left_out["repeated in their step"] == [f"{paths[0]}, PP:0W0"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: [], "is not a profiler trace: it has no traceEvents"),
        (lambda d: {**d, "traceEvents": 3}, "is not a profiler trace: it has no traceEvents"),
        (
            lambda d: {**d, "traceEvents": []},
            "has no pipeline annotations such as PP:0F0 or Forward 0",
        ),
        (
            lambda d: {**d, "distributedInfo": {"rank": "0"}},
            "distributedInfo.rank: must be a whole number of at least 0, not '0'",
        ),
        (
            lambda d: {**d, "baseTimeNanoseconds": None},
            "baseTimeNanoseconds: must be a finite number, not None",
        ),
        (
            lambda d: document([event("PP:0F0xyz", 0, 1)]),
            "traceEvents[3]: 'PP:0F0xyz' is not an annotation such as PP:0F0",
        ),
        (lambda d: document([event("PP:0BW3", 0, 1)]), "traceEvents[3]: 'PP:0BW3' is not an annot"),
        (
            lambda d: document([event("PP:0F0", 0, -1)]),
            "traceEvents[3].dur: must not be negative, not -1000",
        ),
        (
            lambda d: document([event("PP:0F0", 0, 1, ts="now")]),
            "traceEvents[3].ts: must be a finite number, not 'now'",
        ),
        (
            lambda d: document([event("PP:0F0", 0, 1)]),
            "no iteration is complete (iteration 0 lacks the backward of stage 0, micro-batch 0)",
        ),
        (
            lambda d: document([event("PP:0F999999", 0, 1), event("PP:1F0", 0, 1)]),
            "too large a micro-batch",
        ),
        (lambda d: document([event("PP:5F0", 0, 1)]), "no file has stage 0"),
    ],
)
def test_errors_name_file_and_place(
    write: Write, change: Callable[[dict[str, Any]], Any], says: str
) -> None:
    (path,) = write(change(rank(0, RANK0)))
    with pytest.raises(FormatError) as error:
        import_profiler([path])
    assert str(error.value).startswith(f"{path}: ")
    assert says in str(error.value)


def test_files_that_do_not_belong_together(write: Write) -> None:
    with pytest.raises(FormatError, match=r"rank1.json: is of rank 0, and so is .*rank0.json"):
        import_profiler(write(rank(0, RANK0), rank(0, RANK1)))
    with pytest.raises(FormatError, match=r"rank1.json: stage 0 is in .*rank0.json too: give th"):
        import_profiler(write(rank(0, RANK0), rank(1, RANK0)))
    with pytest.raises(ScenarioError, match="there is no file to import"):
        import_profiler([])


def stage(number: int, *, sends: bool = False) -> dict[str, tuple[float, float]]:
    """One micro-batch of a stage in a pipeline of at most four."""
    ops = {
        f"PP:{number}F0": (10.0 * number, 10.0 * number + 8),
        f"PP:{number}B0": (70.0 - 10 * number, 78.0 - 10 * number),
    }
    return ops | ({f"PP:{number}SEND_F0": (10.0 * number + 8, 10.0 * number + 9)} if sends else {})


def test_missing_ranks_are_named(write: Write) -> None:
    three = [rank(n, stage(n), world_size=4) for n in range(3)]
    with pytest.raises(
        FormatError, match=r"rank0.json: is from a run of 4 ranks, but no file is from rank 3$"
    ):
        import_profiler(write(*three))
    with pytest.raises(FormatError, match=r"is from a run of 2 ranks, but no file is from rank 1$"):
        import_profiler(write(rank(0, stage(0))))
    # Stages that send on are not the last.
    two = [rank(n, stage(n, sends=True), world_size=4) for n in range(2)]
    with pytest.raises(
        FormatError,
        match=r"rank1.json: stage 1 sends forwards on, but no file has stage 2 \(no file is from "
        r"ranks 2 and 3\)",
    ):
        import_profiler(write(*two))
    with pytest.raises(FormatError, match=r"no file has stage 1 \(no file is from ranks 1 and 3\)"):
        import_profiler(write(*(rank(n, stage(n), world_size=4) for n in (0, 2))))
    many = rank(0, stage(0), world_size=10**9)
    with pytest.raises(FormatError, match=r"ranks 1, 2, 3, 4, 5, 6, 7, 8 and 999999991 more$"):
        import_profiler(write(many))


def test_missing_ranks_that_may_be_copies_are_noted(write: Write) -> None:
    made = import_profiler(write(*(rank(n, stage(n), world_size=4) for n in range(2))))
    assert made.scenario.stages == 2
    assert "no file is from ranks 2 and 3: taken to be copies of this pipeline" in made.notes


def groups(*ranks: int) -> list[dict[str, object]]:
    return [
        {"pg_name": "0", "pg_desc": "default_pg", "pg_size": 4, "ranks": [0, 1, 2, 3]},
        {"pg_name": "1", "pg_desc": "mesh_dp_pp", "pg_size": 4, "ranks": [0, 1, 2, 3]},
        {"pg_name": "2", "pg_desc": "mesh_pp", "pg_size": len(ranks), "ranks": list(ranks)},
    ]


def test_process_groups_tell_the_ranks_of_a_pipeline(write: Write) -> None:
    def of(*ranks: int) -> list[Path]:
        return write(
            *(
                rank(n, stage(number), world_size=4, pg_config=groups(*ranks))
                for number, n in enumerate((0, 2))
            )
        )

    made = import_profiler(of(0, 2))
    assert made.scenario.stages == 2
    assert (
        "no file is from ranks 1 and 3: not in this pipeline, by the process groups" in made.notes
    )
    with pytest.raises(
        FormatError,
        match=r"rank0.json: its pipeline has 4 ranks, but no file is from ranks 1 and 3$",
    ):
        import_profiler(of(0, 1, 2, 3))


def test_odd_process_groups_are_passed_over(write: Write) -> None:
    for odd in ({}, [3], [{"pg_desc": "pp", "ranks": 0}], [{"pg_desc": "pp", "ranks": [[0]]}],
                [{"pg_desc": "pp", "pg_size": 4, "ranks": [0, 1]}]):  # fmt: skip
        assert read_kineto(write(rank(0, RANK0, pg_config=odd))[0]).group == frozenset()


def test_ranks_of_different_runs(write: Write) -> None:
    with pytest.raises(
        FormatError,
        match=r"rank1.json: is from a run of 3 ranks, but .*rank0.json from one of 2 ranks",
    ):
        import_profiler(write(rank(0, RANK0), rank(1, RANK1, world_size=3)))
    with pytest.raises(FormatError, match=r"distributedInfo.rank: must be below the world_size 2"):
        import_profiler(write(rank(2, RANK0)))


def test_times_of_gpu_and_cpu_are_not_mixed(write: Write) -> None:
    first = rank(0, RANK0)
    first["traceEvents"].append(gpu("PP:0F0", 10, 20))
    with pytest.raises(FormatError, match=r"rank1.json: has no GPU annotations, but .*rank0.json"):
        import_profiler(write(first, rank(1, RANK1)))


def test_a_file_cut_short_names_its_place(write: Write) -> None:
    (path,) = write(rank(0, RANK0))
    path.write_text(path.read_text()[:200])
    with pytest.raises(FormatError, match=re.escape(f"{path}:1:") + r"\d+: is not JSON: "):
        import_profiler([path])
    path.write_text("[" * 100_000)
    with pytest.raises(FormatError, match=r"is not JSON that can be read"):
        import_profiler([path])


def test_fuzz(write: Write) -> None:
    paths = write(rank(0, RANK0), rank(1, RANK1))
    valid = json.dumps(rank(0, RANK0), indent=0).encode()
    errors = 0
    for broken in damaged(valid, tries(13)):
        paths[0].write_bytes(broken)
        try:
            assert isinstance(import_profiler(paths), Measurement)
        except FormatError as error:
            assert str(error).startswith(tuple(map(str, paths)))  # noqa: PT017
            errors += 1
    assert errors > tries(6)
