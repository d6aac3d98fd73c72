from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim.documents.scenario_toml import load_scenario
from pipesim.engine import simulate
from pipesim.errors import FormatError, ScenarioError
from pipesim.fidelity.import_check import check_import
from pipesim.formats.measurement import Measurement
from pipesim.formats.operator_timeline import import_timelines
from pipesim.formats.operator_timeline.rows import read_operator_csv
from pipesim.scenario import Scenario
from pipesim.schedule import Op
from planners import plan
from tests import ROOT
from tests.formats.mutations import damaged
from tests.formats.operator_timelines import MADE, made_timeline, timeline_csv
from tests.strategies import tries

DATA = ROOT / "traces" / "a10_timelines"
ONE_F, ZERO, PIPE = (
    DATA / f"{name}_link2_60ms.csv" for name in ("1f1b", "zerobubble", "pipemorph")
)
SHIPPED = ROOT / "traces" / "a10-gpt-7b.toml"

HEADER = "iteration,stage,op,index,host_start_ms,host_end_ms,gpu_ms\n"
# One stage, three micro-batches; the last W stands for W1 and W2.
SPLIT = (
    HEADER
    + """\
7,0,F,0,0,10,10
7,0,F,1,10,20.5,10
7,0,F,2,21,30,9
7,0,B,0,30,40,10
7,0,W,0,40,50,4.5
7,0,B,1,50,60,10
7,0,B,2,60,70,10
7,0,W,1,70,81,10
"""
)


def single(path: Path, content: str, **options: object) -> Measurement:
    path.write_text(content)
    return import_timelines([path], **options)  # type: ignore[arg-type]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ops.csv"


def test_the_last_w_is_shared_and_starts_are_the_gpus(path: Path) -> None:
    made = single(path, SPLIT, message_bytes=5, name="n", source="s")
    scenario = made.scenario
    assert scenario.forward_ms.tolist() == [[10, 10, 9]]
    assert scenario.weight_ms.tolist() == [[4.5, 5, 5]]
    assert scenario.fused_backward_ms.tolist() == [[14.5, 15, 15]]
    assert (scenario.name, scenario.source) == ("n", "s")
    (iteration,) = made.iterations
    assert (iteration.label, iteration.used) == ("7", True)
    assert iteration.timeline.scenario is scenario
    assert [(str(s.op), s.start_ms, s.end_ms) for s in iteration.timeline.compute[0]] == [
        ("0F0", 0, 10),
        ("0F1", 10.5, 20.5),
        ("0F2", 21, 30),
        ("0B0", 30, 40),
        ("0W0", 45.5, 50),
        ("0B1", 50, 60),
        ("0B2", 60, 70),
        ("0W1", 71, 76),
        ("0W2", 76, 81),
    ]
    assert made.notes == (
        "1 stage × 3 micro-batches, F, B and W",
        "medians over iteration 7 (81 ms)",
        "the last W of a stage stands for several micro-batches, which share its time "
        "equally (stage 0: 2)",
        "the fused backward was not measured: guessed to take B + W",
    )


def test_a_log_cut_before_its_last_w_is_partial_not_shared(path: Path) -> None:
    cut = SPLIT.rsplit("7,0,W,1", 1)[0]
    with pytest.raises(
        FormatError,
        match=r"ops.csv: holds no complete iteration \(iteration 7 lacks W \(line 8\)\)",
    ):
        single(path, cut)
    made = single(path, cut + SPLIT.removeprefix(HEADER).replace("7,0", "8,0"))
    assert [i.label for i in made.iterations] == ["8"]
    assert "skipped 1 partial iteration: 7 (7 lacks W (line 8))" in made.notes


def test_medians_over_the_chosen_iterations(path: Path) -> None:
    rows = SPLIT.removeprefix(HEADER)
    slow = rows.replace("7,0", "8,0").replace("21,30,9", "21,30,5").replace("81,10", "99,28")
    content = SPLIT + slow + rows.replace("21,30,9", "21,30,8")  # 7 comes again
    made = single(path, content)
    assert [(i.label, i.used) for i in made.iterations] == [
        ("7", True),
        ("8", False),
        ("7/2", True),
    ]
    assert made.scenario.forward_ms.tolist() == [[10, 10, 8.5]]
    assert single(path, content, iterations=[8]).scenario.forward_ms.tolist() == [[10, 10, 5]]
    assert single(path, content, iterations=["7/2", 8]).scenario.forward_ms[0, 2] == 6.5
    assert single(path, content, iterations=["8-9"]).scenario.forward_ms[0, 2] == 5
    with pytest.raises(FormatError, match=r"ops.csv: there is no iteration 9"):
        single(path, content, iterations=[7, 9])
    spread = single(path, content, iterations=[7, 8])
    assert spread.spread_ms["F"].tolist() == [[0, 0, 2]]
    assert set(spread.spread_ms) == {"F", "B", "W"}
    assert any(note.startswith("F 10 ms ± 0, B 10 ms ± 0, W ") for note in spread.notes)
    other = path.with_name("other.csv")
    other.write_text(HEADER + slow)
    with pytest.raises(FormatError, match=r"other.csv: none of the chosen .*\(complete: 8\)"):
        import_timelines([path, other], iterations=[7])


def test_zerobubble() -> None:
    made = import_timelines([ZERO])
    assert [(i.label, i.used) for i in made.iterations] == [
        (label, label in ("5", "6", "7")) for label in ("5", "6", "7", "12", "13", "14")
    ]
    healthy, slow = made.iterations[0].timeline, made.iterations[3].timeline
    assert healthy.start_ms == 0
    assert healthy.iteration_ms == pytest.approx(1392.651, abs=0.002)
    assert slow.iteration_ms == pytest.approx(2440.982, abs=0.002)
    warmup = [[s.op.kind for s in device].index("B") for device in healthy.compute]
    assert warmup == [7, 5, 3, 1]
    # The last line of stage 3 in iteration 5 is W4, for W4 … W11 together.
    shares = [healthy.spans[Op("W", 3, m)] for m in range(4, 12)]
    assert [s.end_ms - s.start_ms for s in shares] == pytest.approx([191.748 / 8] * 8)
    assert any("(stage 1: 4, stage 2: 6, stage 3: 8)" in note for note in made.notes)
    assert np.median(made.scenario.weight_ms, axis=1) == pytest.approx(
        [15.8, 25.2, 26.6, 24.1], abs=0.2
    )


def test_timelines_run_every_operator_once_and_after_its_needs() -> None:
    for path, kinds in ((ZERO, "FBW"), (ONE_F, ("F", "BW")), (PIPE, "FBW")):
        for iteration in import_timelines([path]).iterations:
            spans = iteration.timeline.spans
            assert set(spans) == {
                Op(kind, s, m)  # type: ignore[arg-type]
                for kind in kinds
                for s in range(4)
                for m in range(12)
            }
            for device in iteration.timeline.compute:
                times = [t for s in device for t in (s.start_ms, s.end_ms)]
                assert times == sorted(times)


def test_1f1b_gives_the_fused_backward() -> None:
    made = import_timelines([ONE_F])
    assert [i.used for i in made.iterations] == [True] * 3 + [False] * 3
    assert np.median(made.scenario.fused_backward_ms, axis=1) == pytest.approx(
        [48.6, 69.0, 70.0, 60.6], abs=0.2
    )
    halves = made.scenario.backward_ms + made.scenario.weight_ms
    assert np.array_equal(halves, made.scenario.fused_backward_ms)
    assert made.notes[-1].startswith("B and W were not measured: each guessed to be half")
    orders = [[s.op for s in device] for device in made.iterations[0].timeline.compute]
    assert [order.index(Op("BW", d, 0)) for d, order in enumerate(orders)] == [4, 3, 2, 1]


def test_pipemorph_counts_its_iterations_twice() -> None:
    made = import_timelines([PIPE])
    assert [(i.label, i.used) for i in made.iterations] == [
        ("5", True),
        ("6", True),
        ("5/2", False),
        ("6/2", False),
        ("7/2", False),
    ]
    times = [i.timeline.iteration_ms for i in made.iterations]
    assert times == pytest.approx([1385.2, 1389.8, 1452.6, 1449.5, 1450.4], abs=0.1)
    warmups = [[s.op.kind for s in i.timeline.compute[0]].index("B") for i in made.iterations]
    assert warmups == [7, 7, 9, 9, 9]
    assert any(note.startswith("skipped 1 partial iteration: 7 (7 lacks B") for note in made.notes)
    (_, _, passes, lines) = made.tallies
    assert [(part.why, part.count) for part in passes.dropped] == [
        ("incomplete", 1),
        ("not among the healthy ones", 3),
    ]
    assert "line 74 on: iteration 7 lacks B of micro-batch 0" in passes.dropped[0].places[0]
    assert lines.found == len(PIPE.read_text().splitlines()) - 1
    assert any("5/2, 6/2 and 7/2 are taken as iterations of their own" in n for n in made.notes)


def test_passes_whose_clocks_disagree_are_skipped(path: Path) -> None:
    def shifted(label: str, stage: int, ms: float) -> str:
        lines = []
        for line in ZERO.read_text().splitlines():
            fields = line.split(",")
            if fields[0] == label:
                if fields[1] == str(stage):
                    fields[4:6] = [str(float(field) + ms) for field in fields[4:6]]
                lines.append(",".join(fields) + "\n")
        return "".join(lines)

    made = single(path, HEADER + shifted("5", 1, 0) + shifted("6", 1, 1e5) + shifted("7", 2, -7))
    assert [one.label for one in made.iterations] == ["5"]
    (note,) = (note for note in made.notes if "clocks disagree" in note)
    assert note.startswith("clocks disagree: skipped 2 iterations: 6 and 7 (6: 0B0 star")
    # A few milliseconds are within what clocks may differ by.
    assert single(path, HEADER + shifted("5", 3, 6)).iterations
    with pytest.raises(
        FormatError,
        match=r"ops.csv: holds no complete iteration whose clocks agree \(iteration 5: 2F0 starts "
        r"\d+\.\d ms before 1F0 ends\)",
    ):
        single(path, HEADER + shifted("5", 2, -1e5))


def test_a_stated_number_of_stages(path: Path) -> None:
    without_last = "".join(
        line for line in ZERO.read_text().splitlines(keepends=True) if ",3," not in line[:5]
    )
    assert single(path, without_last).scenario.stages == 3
    with pytest.raises(
        FormatError, match=r"ops.csv: holds no complete iteration \(iteration 5 lacks stage 3\)"
    ):
        single(path, without_last, stages=4)
    rows = SPLIT.removeprefix(HEADER)
    second = rows.replace("7,0,", "7,1,")
    with pytest.raises(FormatError, match=r"ops.csv:10: is of stage 1, but the number of stages"):
        single(path, SPLIT + second, stages=1)
    assert import_timelines([ZERO], stages=4).scenario == import_timelines([ZERO]).scenario


def test_split_and_fused_files_together() -> None:
    made = import_timelines([ZERO, ONE_F], iterations=[5, 6, 7]).scenario
    assert np.array_equal(made.forward_ms, import_timelines([ZERO]).scenario.forward_ms)
    fused = import_timelines([ONE_F]).scenario.fused_backward_ms
    assert np.array_equal(made.fused_backward_ms, fused)


def test_iteration_times_are_of_the_order_that_is_told() -> None:
    """Two files ran two orders: their iterations take unlike times."""
    for files, first in (((ZERO, ONE_F), ZERO), ((ONE_F, ZERO), ONE_F)):
        made, own = import_timelines(files), import_timelines([first])
        assert (made.iteration_ms, made.schedule) == (own.iteration_ms, own.schedule)
        assert any("different orders: checked against the 3 of 6" in note for note in made.notes)
        assert f"{first.name}: {own.notes[1]}" in made.notes
        found = check_import(own)
        assert found is not None
        assert abs(found.error) < 0.06


def test_the_shipped_scenario_is_of_this_data() -> None:
    shipped = load_scenario(SHIPPED)
    made = import_timelines([ZERO, ONE_F], iterations=[5, 6, 7]).scenario
    assert (shipped.stages, shipped.microbatches) == (4, 12)
    assert shipped.message_bytes.tolist() == [2**23] * 3
    assert shipped.slow_links == ()
    assert "Attack of the Bubbles" in shipped.source
    # The shipped medians are over one more file of each kind.
    for kind in ("F", "B", "W", "BW"):
        assert np.median(shipped.durations_ms(kind), axis=1) == pytest.approx(
            np.median(made.durations_ms(kind), axis=1), rel=0.02
        )


def test_shapes_must_agree(path: Path) -> None:
    path.write_text(SPLIT)
    with pytest.raises(FormatError, match=r"ops.csv: has 1 stage × 3 .* has 4 stages × 12"):
        import_timelines([ZERO, path])
    with pytest.raises(ScenarioError, match="there is no file to import"):
        import_timelines([])


@pytest.mark.parametrize(
    ("old", "new", "place", "says"),
    [
        ("iteration,", "", ":1:1", "the header must be iteration,stage,op,index"),
        (SPLIT, "", ":1:1", "the header must be"),
        (SPLIT, HEADER, ":1", "holds no operator"),
        (SPLIT, HEADER.strip(), ":1", "the last line is cut short"),
        ("81,10\n", "81,10", ":9", "the last line is cut short"),
        ("81,10\n", "8", ":9", "the last line is cut short"),
        ("10,20.5,10\n", "10,20.5\n", ":3", "has 6 fields instead of 7"),
        ("10,20.5,10\n", "10,20.5,10,\n", ":3", "has 8 fields instead of 7"),
        ("10,20.5,10\n", "10,20.5,10\n\n", ":4", "has 1 field instead of 7"),
        ("7,0,F,1", "7,0,G,1", ":3:5", "op must be F, B or W, not 'G'"),
        ("7,0,F,1", "x,0,F,1", ":3:1", "iteration must be a whole number"),
        ("7,0,F,1", "7,-1,F,1", ":3:3", "stage must be a whole number"),
        ("7,0,F,1", "7,0,F,1.0", ":3:7", "index must be a whole number"),
        ("7,0,F,1", "7,0,F,٣", ":3:7", "index must be a whole number"),
        (
            "7,0,F,1",
            "7,0,F,9999999",
            ":3:7",
            "index must be a whole number from 0 to 999999, not '9999999'",
        ),
        ("20.5,", "nan,", ":3:12", "host_end_ms must be a time in milliseconds, not 'nan'"),
        ("20.5,", "1e999,", ":3:12", "host_end_ms must be a time"),
        ("20.5,", ",", ":3:12", "host_end_ms must be a time"),
        ("20.5,", "9.5,", ":3:12", "host_end_ms must not be before host_start_ms"),
        ("20.5,10", "20.5,-10", ":3:17", "gpu_ms must not be negative"),
        ("20.5,10", "20.5,inf", ":3:17", "gpu_ms must be a time"),
        ("20.5,10", "20.5,12", ":3:17", "gpu_ms must not be longer than"),
        ("21,30,9", "9,30,9", ":4", "the clock of stage 0 runs backwards after line 3"),
        ("21,30,9", "11,20,9", ":4", "the clock of stage 0 runs backwards after line 3"),
        ("7,0,F,0,", "7,0,B,0,", "", "holds no complete iteration"),
    ],
)
def test_errors_name_file_and_place(path: Path, old: str, new: str, place: str, says: str) -> None:
    assert old in SPLIT
    wanted = re.escape(f"{path}{place}: {says}")
    with pytest.raises(FormatError, match=wanted) as error:
        single(path, SPLIT.replace(old, new, 1))
    assert "\n" not in str(error.value)


def test_an_order_that_cannot_have_run_is_refused(path: Path) -> None:
    content = SPLIT.replace("7,0,F,0", "7,0,X,0").replace("7,0,B,0", "7,0,F,0")
    with pytest.raises(FormatError, match=r"ops.csv:2: iteration 7: .*cannot make progress"):
        single(path, content.replace("7,0,X,0", "7,0,B,0"))


def test_line_ends_of_windows(path: Path) -> None:
    expected = single(path, SPLIT).scenario
    path.write_bytes(SPLIT.replace("\n", "\r\n").encode())
    assert import_timelines([path]).scenario == expected


def test_the_clock_may_start_anywhere(path: Path) -> None:
    """The 1F1B logs count milliseconds since 1970, to three digits."""
    first = read_operator_csv(ONE_F).passes[0].rows[0][0]
    assert first.host_start_ms > 1.7e12
    spans = import_timelines([ONE_F]).iterations[0].timeline.compute[0]
    assert spans[0].end_ms - spans[0].start_ms == pytest.approx(first.gpu_ms, abs=3e-4)


SHORT = HEADER + "".join(
    line for line in ZERO.read_text().splitlines(keepends=True) if line.startswith(("5,", "12,"))
)


@pytest.mark.parametrize("content", [SPLIT, SHORT], ids=["small", "measured"])
def test_fuzz(path: Path, content: str) -> None:
    count: Callable[[str], int] = {SPLIT: tries(20), SHORT: tries(8 / 3)}.__getitem__
    errors = 0
    for broken in damaged(content.encode(), count(content)):
        path.write_bytes(broken)
        try:
            assert isinstance(import_timelines([path]), Measurement)
        except FormatError as error:
            assert str(error).startswith(str(path))  # noqa: PT017
            errors += 1
    assert errors > count(content) / 3


@given(st.data())
def test_operator_times_are_read_back(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """A scenario → the engine → a timeline → the same scenario and order."""
    stages, n = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 5))
    draws = st.lists(st.integers(10, 500), min_size=stages * n, max_size=stages * n)
    forward, backward, weight = (np.reshape(data.draw(draws), (stages, n)) / 10 for _ in range(3))
    planner = data.draw(st.sampled_from(["zerobubble", "zb-h1"]))
    fused = data.draw(st.booleans())
    scenario = Scenario(
        stages=stages, microbatches=n, forward_ms=forward, backward_ms=backward,
        weight_ms=weight, latency_ms=data.draw(st.sampled_from([0, 0.5, 20])),
    )  # fmt: skip
    planner = "1f1b" if fused else planner
    path = tmp_path_factory.mktemp("ops") / "ops.csv"
    path.write_text(timeline_csv(lambda _: scenario, planner=planner, origin_ms=1.7e12))
    made = import_timelines([path])
    near = {"rtol": 0, "atol": 2e-3}  # a W that stands for none but itself
    assert np.allclose(made.scenario.forward_ms, forward, **near)
    assert np.allclose(made.scenario.fused_backward_ms, backward + weight, **near)
    if not fused:
        assert np.allclose(made.scenario.backward_ms, backward, **near)
        assert np.allclose(made.scenario.weight_ms, weight, **near)
    assert made.schedule is not None
    assert made.schedule.orders == plan(scenario, planner).orders
    assert made.iteration_ms == pytest.approx(
        [simulate(scenario, made.schedule).iteration_ms] * 3, abs=0.01
    )


def test_the_made_timeline() -> None:
    """The file in tests/data is made by the generator, and says what it was made from."""
    assert MADE.read_text() == made_timeline()
    made = import_timelines([MADE])
    for kind, base in (("F", 30), ("B", 34), ("W", 26)):
        usual = np.median(made.scenario.durations_ms(kind), axis=1)  # type: ignore[arg-type]
        assert usual == pytest.approx([base, base, base, 1.2 * base], rel=0.01)
    assert any(note.startswith("left out iterations 12, 13 and 14 (") for note in made.notes)
    assert [(tally.noun, tally.used, tally.found) for tally in made.tallies] == [
        ("file", 1, 1), ("stage", 4, 4), ("iteration", 3, 6), ("line", 288, 576),
    ]  # fmt: skip
