"""What tells when the wait for a message was over, case by case."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipesim.engine import simulate
from pipesim.errors import FormatError
from pipesim.fidelity.import_check import check_import
from pipesim.formats.measurement import Measurement
from pipesim.formats.profiler import import_profiler
from pipesim.formats.profiler.kineto import read_kineto
from pipesim.scenario import Scenario
from planners import plan
from tests.formats.profiler_traces import document, event, saved, traced


def trace(rank: int, *events: dict[str, Any], **fields: object) -> dict[str, Any]:
    info = {"backend": "gloo", "rank": rank, "world_size": 2}
    return document(events, distributedInfo=info, **fields)


def spans(**ops: tuple[float, float]) -> list[dict[str, Any]]:
    return [event(f"PP:{name[1:]}", start, end) for name, (start, end) in ops.items()]


WAITING = (
    trace(0, *spans(_0F0=(0, 10), _0F1=(10, 20), _0B0=(20, 60), _0B1=(60, 90))),
    trace(1, *spans(_1F0=(0, 20), _1B0=(20, 40), _1F1=(40, 50), _1B1=(50, 70))),
)
"""F takes 10 ms and the full backward 20; 1F0, 0B0 and 0B1 are annotated with their wait."""


def notes(made: Measurement, word: str) -> list[str]:
    return [note for note in made.notes if word in note]


def test_one_clock_tells_the_wait(tmp_path: Path) -> None:
    made = import_profiler(saved(WAITING, tmp_path))
    assert made.scenario.forward_ms.tolist() == [[10, 10], [10, 10]]
    assert made.scenario.fused_backward_ms.tolist() == [[20, 20], [20, 20]]
    (note,) = notes(made, "wait")
    assert note.startswith(
        "annotations on the CPU include the wait for their message: for 3 operators nothing "
        "inside tells its end"
    )
    assert not notes(made, "contradict each other")
    assert made.iteration_ms == (90,)
    check = check_import(made)
    assert check is not None
    assert check.simulated_ms == 90


def test_clocks_that_contradict_each_other_leave_the_wait_unknown(tmp_path: Path) -> None:
    """1F0 ends before 0F0, whose message it needs: its 20 ms may be anything below."""
    late = trace(1, *WAITING[1]["traceEvents"][3:], baseTimeNanoseconds=-15_000_000)
    made = import_profiler(saved((WAITING[0], late), tmp_path))
    assert made.scenario.forward_ms[1].tolist() == [20, 10]
    (note,) = notes(made, "is not the time of work, but holds the wait")
    assert "for 4 operators its end is unknown" in note
    (note,) = notes(made, "no timeline of 1 iteration")
    assert note.endswith("iteration 0: 1F0 ends 5.0 ms before 0F0, whose message it needs")
    assert made.iterations == ()
    assert made.iteration_ms == (90,)


def test_a_receive_tells_more_than_clocks(tmp_path: Path) -> None:
    late = [event("gloo:recv", 0, 12), event("gloo:recv", 40, 40.5)]
    told = trace(1, *late, *WAITING[1]["traceEvents"][3:], baseTimeNanoseconds=-15_000_000)
    made = import_profiler(saved((WAITING[0], told), tmp_path))
    assert made.scenario.forward_ms[1].tolist() == [8, 9.5]
    (note,) = notes(made, "include the wait")
    assert "for 2 operators it was taken off up to the end of the receive inside" in note


def test_a_receive_that_nobody_waits_for_tells_nothing(tmp_path: Path) -> None:
    """An operator runs when it ends; the wait was over before that operator."""
    extra = [event("aten::linear", 10, 20, cat="cpu_op"), event("gloo:recv", 0, 15)]
    told = trace(1, *extra, *WAITING[1]["traceEvents"][3:])
    made = import_profiler(saved((WAITING[0], told), tmp_path))
    assert made.scenario.forward_ms[1, 0] == 10


def test_host_annotations_of_gpu_runs_are_launches(tmp_path: Path) -> None:
    made = import_profiler(saved(WAITING, tmp_path))
    assert notes(made, "times are of the host") == ["no GPU annotations: times are of the host"]
    on_gpus = [one | {"deviceProperties": [{"id": 0, "name": "H200"}]} for one in WAITING]
    made = import_profiler(saved(on_gpus, tmp_path))
    (note,) = notes(made, "times are of the host")
    assert "launch times" in note


def zero_bubble() -> tuple[Scenario, list[dict[str, Any]]]:
    """torch runs the whole backward of the first stage in W: its I launches nothing."""
    scenario = Scenario(
        stages=2, microbatches=3, forward_ms=4.0, backward_ms=[0.0, 5.0], weight_ms=[9.0, 3.0]
    )
    timeline = simulate(scenario, plan(scenario, "zerobubble"), "ideal")
    return scenario, traced([timeline] * 2, "gpu annotations")


def test_an_empty_backward_has_nothing_on_the_gpu(tmp_path: Path) -> None:
    scenario, documents = zero_bubble()
    events = documents[0]["traceEvents"]
    documents[0]["traceEvents"] = [
        one
        for one in events
        if not (one["name"].startswith("PP:0I") and one["cat"] == "gpu_user_annotation")
    ]
    assert len(documents[0]["traceEvents"]) == len(events) - 6
    made = import_profiler(saved(documents, tmp_path))
    assert made.scenario.backward_ms.tolist() == [[0, 0, 0], [5, 5, 5]]
    assert made.scenario.weight_ms == pytest.approx(scenario.weight_ms)
    assert len(made.iterations) == 2


def test_kernels_of_communication_are_no_work(tmp_path: Path) -> None:
    """Single-stage schedules receive inside the annotation, on the GPU too."""
    scenario = Scenario(stages=2, microbatches=3, latency_ms=30.0)
    timeline = simulate(scenario, plan(scenario, "gpipe"), "ideal")
    made = import_profiler(saved(traced([timeline], "kernels", stages=False), tmp_path))
    assert made.scenario.forward_ms == pytest.approx(scenario.forward_ms)
    assert made.scenario.fused_backward_ms == pytest.approx(scenario.fused_backward_ms)
    assert notes(made, "without those of communication")


@pytest.mark.parametrize(("group", "own_ms"), [("mesh_tp", 10.0), ("mesh_dp_shard_cp", 5.0)])
def test_tensor_parallel_kernels_are_work(tmp_path: Path, group: str, own_ms: float) -> None:
    """Each operator ends with one, of a group that its arguments name."""
    scenario = Scenario(stages=2, microbatches=3)
    timeline = simulate(scenario, plan(scenario, "gpipe"), "ideal")
    documents = traced([timeline], "kernels")
    for recorded in documents:
        for one in recorded["traceEvents"]:
            if one["name"] == "gelu":
                one["name"] = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
                one["args"]["Process Group Description"] = group
    made = import_profiler(saved(documents, tmp_path))
    assert made.scenario.forward_ms == pytest.approx(own_ms)


@pytest.mark.parametrize(("kernel", "says"), [("SendRecv", "annotates nothing"), ("AllReduce", "")])
def test_a_trace_of_the_gpu_without_annotations(tmp_path: Path, kernel: str, says: str) -> None:
    events = [
        event(f"ncclDevKernel_{kernel}(ncclDevKernelArgsStorage<4096ul>)", 1, 2, cat="kernel"),
        event("c10d::allreduce_", 1, 2, cat="cpu_op"),
    ]
    with pytest.raises(FormatError, match="has no pipeline annotations") as error:
        import_profiler(saved([trace(0, *events)], tmp_path))
    assert says in str(error.value)
    assert ("sends and receives" in str(error.value)) == bool(says)


def test_without_all_launches_the_annotations_of_the_gpu_count(tmp_path: Path) -> None:
    _, documents = zero_bubble()
    stray = {"cat": "kernel", "args": {"correlation": 7}}
    launch = {"cat": "cuda_runtime", "args": {"correlation": 7}}
    documents[0]["traceEvents"] += [event("gemm", 1, 2, **stray), event("launch", 1, 2, **launch)]
    paths = saved(documents, tmp_path)
    assert read_kineto(paths[0]).clock == "gpu"
    assert import_profiler(paths).scenario.forward_ms.tolist() == [[4] * 3] * 2


def test_pairs(tmp_path: Path) -> None:
    """Both operators of a pair that nothing cuts; neither runs alone."""
    paired = spans(_0F0=(0, 10))
    paired.append(event("PP:(0F1;0B0)OVERLAP_F_B", 10, 40))
    paired += spans(_0B1=(40, 60))
    (path,) = saved([document(paired)], tmp_path)
    made = import_profiler([path])
    # Alone, F takes 10 ms and the backward 20: so they do in the 30 ms of the pair.
    assert made.scenario.forward_ms.tolist() == [[10, 10]]
    assert made.scenario.fused_backward_ms.tolist() == [[20, 20]]
    assert notes(made, "1 overlapped pair (OVERLAP_F_B): nothing in them tells")
    del paired[0], paired[-1]
    halves = spans(_0F0=(0, 10), _0I1=(40, 52), _0W1=(52, 60))  # take as long as the whole
    (path,) = saved([document([*paired, *halves])], tmp_path)
    assert import_profiler([path]).scenario.forward_ms.tolist() == [[10, 10]]
    for name in ("PP:(0F1;0F1)OVERLAP_F_B", "PP:(0F1)OVERLAP_F_B", "PP:(0F1;0X1)OVERLAP_F_B"):
        (path,) = saved([document([event(name, 0, 1)])], tmp_path)
        with pytest.raises(FormatError, match="is not an annotation such as"):
            import_profiler([path])


def test_a_pair_that_never_runs_alone_is_halved(tmp_path: Path) -> None:
    (path,) = saved([document([event("PP:(0F0;0B0)OVERLAP_F_B", 0, 30)])], tmp_path)
    made = import_profiler([path])
    assert made.scenario.forward_ms.tolist() == [[15]]
    assert notes(made, "each was guessed to take half")


def test_an_operator_both_in_a_pair_and_alone_is_repeated(tmp_path: Path) -> None:
    twice = [*spans(_0F0=(0, 10), _0B0=(10, 30)), event("PP:(0F0;0B0)OVERLAP_F_B", 40, 90)]
    (path,) = saved([document([event("ProfilerStep#1", 0, 99), *twice])], tmp_path)
    made = import_profiler([path])
    assert made.scenario.forward_ms.tolist() == [[10]]
    (operators,) = (tally for tally in made.tallies if tally.noun == "operator")
    assert [part.why for part in operators.dropped] == ["repeated in their step"]


def test_the_wait_inside_a_pair(tmp_path: Path) -> None:
    """0F2 takes 10 ms, as alone; 0B0 waits for 1B0 until 55."""
    first = spans(_0F0=(0, 10), _0F1=(10, 20), _0B1=(75, 120), _0B2=(120, 165))
    first.append(event("PP:(0F2;0B0)OVERLAP_F_B", 20, 75))
    second = spans(
        _1F0=(0, 25), _1B0=(25, 55), _1F1=(55, 70), _1B1=(70, 100), _1F2=(100, 115), _1B2=(115, 145)
    )
    made = import_profiler(saved((trace(0, *first), trace(1, *second)), tmp_path))
    assert made.scenario.forward_ms.tolist() == [[10, 10, 10], [15, 15, 15]]
    assert made.scenario.fused_backward_ms.tolist() == [[20, 20, 20], [30, 30, 30]]
    assert made.iterations[0].timeline.iteration_ms == 165


def test_operators_tell_the_wait_inside_a_pair(tmp_path: Path) -> None:
    """The backward may run something before the autograd engine does."""
    engine = "autograd::engine::evaluate_function: MulBackward0"
    ops = {"aten::mm": (10, 18), "aten::add": (18.5, 20), "aten::to": (51, 52), engine: (55, 75)}
    inside = [event(name, *times, cat="cpu_op") for name, times in ops.items()]
    early, waited = event("gloo:recv", 0, 15), event("gloo:recv", 0, 50)
    rest = spans(_0F0=(-9, 0), _0B1=(80, 99))
    pair = event("PP:(0F1;0B0)OVERLAP_F_B", 10, 75)
    for receives, begins in (([early, waited], 50), ([early], 55)):
        paths = saved([document([*rest, pair, *inside, *receives])], tmp_path)
        (ops_of,) = read_kineto(paths[0]).iterations.values()
        forward, backward = sorted(one for one in ops_of.values() if one.pair == "cut")
        shift = 9  # from the first annotation on
        assert forward.end_ms == pytest.approx(shift + (20 if waited in receives else 52))
        told = backward.operator_ms if backward.received_ms is None else backward.received_ms
        assert told == pytest.approx(shift + begins)


def test_kernels_cut_pairs(tmp_path: Path) -> None:
    """Micro-batches differ, so that nothing but the kernels tells where."""
    times = np.arange(1.0, 9.0).reshape(2, 4)
    scenario = Scenario(
        stages=2, microbatches=4, forward_ms=times, fused_backward_ms=20 - 2 * times
    )
    timeline = simulate(scenario, plan(scenario, "1f1b"), "ideal")
    made = import_profiler(saved(traced([timeline], "kernels", pairs=True), tmp_path))
    assert notes(made, "OVERLAP_F_B")
    assert made.scenario.forward_ms == pytest.approx(scenario.forward_ms, abs=1e-3)
    assert made.scenario.fused_backward_ms == pytest.approx(scenario.fused_backward_ms, abs=1e-3)


def test_kernels_without_launches_belong_where_they_ran(tmp_path: Path) -> None:
    """Unless one of them is late: then it says nothing of the annotation that it runs in."""
    kernels = [event("gemm", 10, 20, cat="kernel"), event("gemm", 22, 39, cat="kernel")]
    one = saved([document([*spans(_0F0=(0, 20), _0B0=(20, 40)), *kernels])], tmp_path)
    made = import_profiler(one)
    assert made.scenario.forward_ms.tolist() == [[10]]
    assert made.scenario.fused_backward_ms.tolist() == [[17]]
    late = event("gemm", 35, 45, cat="kernel")
    one = saved([document([*spans(_0F0=(0, 20), _0B0=(20, 40)), *kernels, late])], tmp_path)
    assert import_profiler(one).scenario.forward_ms.tolist() == [[20]]


def test_annotations_of_the_gpu_that_name_no_stage_hold_the_receive(tmp_path: Path) -> None:
    """Without kernels in the trace, clocks tell it, as on the host."""
    documents = [
        trace(
            rank,
            *(
                event(name, *times, cat=category)
                for name, times in ops.items()
                for category in ("user_annotation", "gpu_user_annotation")
            ),
        )
        for rank, ops in enumerate(
            (
                {"Forward 0": (0, 10), "Backward 0": (10, 60)},
                {"Forward 0": (0, 20), "Backward 0": (20, 40)},
            )
        )
    ]
    made = import_profiler(saved(documents, tmp_path))
    assert made.scenario.forward_ms.tolist() == [[10], [10]]
    assert made.scenario.fused_backward_ms.tolist() == [[20], [20]]


def test_an_annotation_on_two_threads_is_one(tmp_path: Path) -> None:
    events = [*spans(_0F0=(0, 10), _0B0=(10, 30)), event("PP:0F0", 40, 90, tid=2)]
    (path,) = saved([document([event("ProfilerStep#1", 0, 99), *events])], tmp_path)
    assert import_profiler([path]).scenario.forward_ms.tolist() == [[10]]
