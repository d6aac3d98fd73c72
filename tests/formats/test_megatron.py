from __future__ import annotations

import re
from pathlib import Path

import pytest

from pipesim.errors import FormatError, ScenarioError
from pipesim.formats.measurement import Measurement
from pipesim.formats.megatron import import_megatron
from pipesim.formats.megatron.log import read_megatron_log
from tests.formats.megatron_logs import ALL, MINMAX, PLAIN, SETUP, TIMERS, iteration
from tests.formats.mutations import damaged
from tests.strategies import tries


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "train.log"


def made(path: Path, content: str, **options: object) -> Measurement:
    path.write_text(content)
    given: dict[str, object] = {"stages": 2, "microbatches": 12, **options}
    return import_megatron([path], **given)  # type: ignore[arg-type]


def test_timers_of_all_ranks(path: Path) -> None:
    measured = made(path, ALL, message_bytes=5, name="n", source="s")
    scenario = measured.scenario
    # Ranks 0 and 1 are stage 0: means 120 and 132 ms; ranks 2 and 3 stage 1. By 12.
    assert scenario.forward_ms[:, 0].tolist() == [10.5, 11]
    assert scenario.fused_backward_ms[:, 11].tolist() == [20, 21]
    assert scenario.weight_ms[:, 3].tolist() == [10, 10.5]
    assert (scenario.stages, scenario.microbatches, scenario.name) == (2, 12, "n")
    assert measured.spread_ms["F"][:, 0].tolist() == [0.5, 0]
    assert measured.iteration_ms == (429.3, 430.3)
    assert measured.iterations == ()
    assert measured.notes == (
        "2 iterations: median 429.8 ms, quartiles 429.6 and 430.1 ms, including what follows the "
        "pipeline",
        f"{path}: 4 ranks are 2 stages × 2 data-parallel; rank r of R on stage r·S // R",
        f"{path}: left out iteration 1 (4293.3 ms): start-up",
        "F and BW of each stage: median over its ranks of 2 and over 2 iterations with timers, "
        "divided by 12 micro-batches",
        "F 10.75 ms ± 0.12, BW 20.5 ms ± 0 (medians over the operators; ±: half their quartile "
        "range)",
        "B and W were not measured: each guessed to be half of the fused backward",
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("\x1b[32m", "\x1b[0m"),
        ("\x1b[38:5:3m", "\x1b(B\x1b[m"),
        ("\x1b]0;train\x07", "\x07"),
        ("\x1b]8;;http://host\x1b\\", "\x1b]8;;\x1b\\"),
        ("\0\0", ""),
    ],
)
@pytest.mark.parametrize("content", [ALL, MINMAX], ids=["all", "minmax"])
def test_what_terminals_take_for_no_text(path: Path, content: str, before: str, after: str) -> None:
    whole = made(path, content)
    lines = "".join(f"{before}{line}{after}\n" for line in content.splitlines())
    assert made(path, lines).scenario == whole.scenario


@pytest.mark.parametrize("content", [ALL, MINMAX], ids=["all", "minmax"])
def test_logs_without_their_indents(path: Path, content: str) -> None:
    whole = made(path, content)
    stripped = "".join(f"{line.strip()}\n" for line in content.splitlines())
    assert made(path, stripped).scenario == whole.scenario


def test_words_at_the_edge_are_no_timers_where_timers_are_indented(path: Path) -> None:
    whole = made(path, ALL)
    odd = ALL.replace("     rank  2: 130", "warnings:\nrank 2: 999.00\n     rank  2: 130")
    assert made(path, odd).scenario == whole.scenario


def test_timers_in_a_form_that_is_not_known_are_told(path: Path) -> None:
    wrapped = "".join(f'{{"log": "{line}"}}\n' for line in ALL.splitlines())
    measured = made(path, wrapped)
    assert measured.guessed
    assert any("names a timer of F or BW, but in no form" in note for note in measured.notes)
    lines = next(tally for tally in measured.tallies if tally.noun == "line")
    assert any(part.why == "timers in a form that is not known" for part in lines.dropped)


def test_a_log_that_is_given_twice(path: Path) -> None:
    made(path, ALL)
    again = path.parent / "again.log"
    again.symlink_to(path)
    with pytest.raises(FormatError, match=r"train\.log: is given twice"):
        import_megatron([path, again], stages=2, microbatches=12)


def test_damaged_bytes_of_other_lines(path: Path) -> None:
    whole = made(path, ALL)
    torn = ALL.encode().replace(b"UserWarning", b"\xe2\x96 User\xffWarning")
    path.write_bytes(torn)
    assert import_megatron([path], stages=2, microbatches=12).scenario == whole.scenario
    path.write_bytes(torn.replace(b"429.3", b"4\xff9.3"))
    with pytest.raises(FormatError, match=r"must be a time in milliseconds, not '4\ufffd9\.3'"):
        import_megatron([path], stages=2, microbatches=12)


def test_extremes_of_timers(path: Path) -> None:
    measured = made(path, MINMAX)
    assert measured.scenario.forward_ms[:, 0].tolist() == [12, 12]
    assert measured.scenario.fused_backward_ms[:, 0].tolist() == [22, 22]
    assert any("the shortest take 29.83 ms of 34 ms" in note for note in measured.notes)
    longest = re.sub(r"\([0-9.]+, ([0-9.]+)\)", r"\1", MINMAX).replace("(min, max)", "max")
    alone = made(path, longest)
    assert alone.scenario == measured.scenario
    assert any("guessed to be the longest" in note for note in alone.notes)
    assert not any("shortest" in note for note in alone.notes)


def test_iteration_times_alone(path: Path) -> None:
    measured = made(path, PLAIN, stages=4, microbatches=19)
    assert measured.iteration_ms == (430, 450, 440)
    assert measured.scenario.forward_ms.tolist() == [[6.6667] * 19] * 4
    # (19 + 4 − 1)·(F + BW) is the iteration time.
    pair = measured.scenario.forward_ms[0, 0] + measured.scenario.fused_backward_ms[0, 0]
    assert 22 * pair == pytest.approx(440, abs=1e-2)
    assert any("guessed from the iteration time by 1F1B" in note for note in measured.notes)
    assert measured.notes[0].startswith("3 iterations: median 440 ms, quartiles 435 and 445 ms")


@pytest.mark.parametrize(
    "dress",
    [
        lambda line: f"[default3]:{line}",
        lambda line: f"3: {line}",
        lambda line: f"[rank3]: \x1b[32m{line}\x1b[0m",
        lambda line: f"[2025-01-02T03:04:05.123][INFO] {line}",
        lambda line: f"2025-01-02 03:04:05 {line}",
        lambda line: f"2025-01-02T03:04:05.123Z {line}",
        lambda line: f"2025-01-02 03:04:05,123 - INFO - {line}",
        lambda line: f"INFO:megatron.training: {line}",
        lambda line: f"worker-0 | {line}",
        lambda line: line + "\r",
    ],
)
def test_logs_as_launchers_dress_them(path: Path, dress: object) -> None:
    assert callable(dress)
    expected = made(path, ALL).scenario
    assert made(path, "".join(dress(line) + "\n" for line in ALL.splitlines())).scenario == expected


def test_logs_without_timestamps(path: Path) -> None:
    assert made(path, PLAIN.replace("[2025-01-02 03:04:05] ", "")).iteration_ms == (430, 450, 440)


def test_chosen_iterations(path: Path) -> None:
    assert made(path, ALL, iterations=[1, "3"]).iteration_ms == (4293.3, 430.3)
    assert made(path, ALL, iterations=["3-9"]).iteration_ms == (430.3,)
    with pytest.raises(FormatError, match=r"train.log: there is no iteration 7–9"):
        made(path, ALL, iterations=["7–9"])
    with pytest.raises(FormatError, match=r"train.log: there is no iteration 9"):
        made(path, ALL, iterations=[1, 9])


def test_several_logs(path: Path, tmp_path: Path) -> None:
    path.write_text(PLAIN)
    other = tmp_path / "again.log"
    other.write_text(iteration(8, 460))
    measured = import_megatron([path, other], stages=2, microbatches=2)
    assert measured.iteration_ms == (430, 450, 440, 460)
    assert measured.scenario.name == "train"
    with pytest.raises(ScenarioError, match="there is no file to import"):
        import_megatron([], stages=2, microbatches=2)


def test_iterations_without_all_ranks_give_their_time_alone(path: Path) -> None:
    cut = TIMERS.replace("     rank  2: 251.00\n", "")
    measured = made(path, iteration(1, 430.0) + TIMERS + iteration(2, 431.0) + cut)
    assert measured.iteration_ms == (430, 431)
    assert (
        "1 iteration without the timers of all 4 ranks: only the iteration time is used"
        in measured.notes
    )
    with pytest.raises(
        FormatError,
        match=r"train.log:1: iteration 2 lacks the backward-compute of rank 2, and no other",
    ):
        made(path, iteration(2, 431.0) + cut)


@pytest.mark.parametrize(
    ("damage", "skipped"),
    [
        (iteration(8, 430.0)[:60], "line 4: iteration 8 is cut short"),
        (iteration(8, 430.0).split(" | learning")[0], "line 4: iteration 8 is cut short"),
        (iteration(8, 430.0).split(".0 | learning")[0], "line 4: iteration 8 is cut short"),
        (iteration(8, -3.0), "line 4: iteration 8: the clock jumps"),
        (iteration(8, 0.0), "line 4: iteration 8: the clock jumps"),
        (
            iteration(8, 430.0, "[2025-01-02 03:04:04] "),
            "line 4: iteration 8: the clock jumps",
        ),
    ],
)
def test_partial_iterations_are_skipped_and_counted(path: Path, damage: str, skipped: str) -> None:
    measured = made(path, PLAIN + damage)
    assert measured.iteration_ms == (430, 450, 440)
    assert any(skipped in note for note in measured.notes)


def test_timers_cut_at_the_end_of_the_file(path: Path) -> None:
    measured = made(path, iteration(1, 430.0) + TIMERS + iteration(2, 430.0) + TIMERS[:-3])
    assert any("skipped line 34: the last line is cut short" in note for note in measured.notes)
    assert measured.scenario.fused_backward_ms[:, 0].tolist() == [20, 21]


def test_timers_belong_to_the_iteration_before_them(path: Path) -> None:
    path.write_text(SETUP + iteration(1, -1.0) + TIMERS + iteration(2, 430.0))
    log = read_megatron_log(path)
    assert [(one.number, one.line, dict(one.ranks_ms)) for one in log.iterations] == [(2, 25, {})]


@pytest.mark.parametrize(
    ("content", "place", "says"),
    [
        ("", "", 'has no "iteration N/ M | '),
        (SETUP, "", 'has no "iteration N/ M | '),
        (" iteration        2/      15 | consumed sam", "", "(line 1: iteration 2 is cut short)"),
        (iteration(2, "nan"), ":1:120", "must be a time in milliseconds, not 'nan'"),
        (iteration(2, "4x"), ":1:120", "must be a time in milliseconds, not '4x'"),
        (ALL.replace("118.00", "1e9"), ":18:15", "must be a time in milliseconds, not '1e9'"),
        (MINMAX.replace("(118.00", "(-1"), ":4:56", "must be a time in milliseconds, not '-1'"),
        ("\udcff".encode("utf-8", "surrogatepass").decode("latin-1"), "", "has no"),
    ],
)
def test_errors_name_file_and_place(path: Path, content: str, place: str, says: str) -> None:
    with pytest.raises(FormatError) as error:
        made(path, content)
    assert str(error.value).startswith(f"{path}{place}: ")
    assert says in str(error.value)


def test_ranks_must_fit_the_stages(path: Path) -> None:
    with pytest.raises(FormatError, match=r"iteration 2 has timers of 4 ranks, which 3 stages can"):
        made(path, ALL.replace(SETUP, ""), stages=3)


TELLING = """\
using world size: 4, data-parallel-size: 2, context-parallel size: 1, \
encoder-pipeline-model-parallel size: 0, pipeline-model-parallel size: 2
------------------------ arguments ------------------------
  encoder_pipeline_model_parallel_size ............ 0
  num_microbatches ................................ None
  pipeline_model_parallel_size .................... 2
  world_size ...................................... 4
INFO:megatron.core.num_microbatches_calculator:setting number of microbatches to constant 12
"""


def test_the_shape_that_a_log_tells(path: Path) -> None:
    measured = made(path, TELLING + ALL, stages=None, microbatches=None)
    assert measured.scenario == made(path, ALL).scenario
    assert f"{path}: the number of stages is 2, by line 1" in measured.notes
    assert f"{path}: the number of micro-batches is 12, by line 7" in measured.notes
    older = "setting number of micro-batches to constant 12\n"
    assert made(path, older + ALL, microbatches=None).scenario == measured.scenario
    dump = "  pipeline_model_parallel_size .................... 3\n"
    assert made(path, dump + PLAIN, stages=None).scenario.stages == 3


@pytest.mark.parametrize(
    ("content", "options", "says"),
    [
        (TELLING + ALL, {"stages": 4}, ":1: says that the number of stages is 2, but --stages is"),
        (
            TELLING + ALL,
            {"microbatches": 8},
            ":7: says that the number of micro-batches is 12, but --microbatches is 8",
        ),
        (PLAIN, {"stages": None}, ": does not say the number of stages: give --stages"),
        (ALL, {"microbatches": None}, ": does not say the number of micro-batches: give --microb"),
        (
            TELLING + PLAIN + TELLING.replace("constant 12", "constant 24"),
            {},
            ":17: says that the number of micro-batches is 24, but line 7 12",
        ),
        (TELLING.replace("l size: 2", "l size: 0") + PLAIN, {}, ":1: says that the number of stag"),
        (
            TELLING.replace("constant 12", "constant 999999999") + PLAIN,
            {"microbatches": None},
            ": stages × micro-batches is 1,999,999,998: more than 1,000,000 operators of a",
        ),
    ],
)
def test_shapes_that_contradict(
    path: Path, content: str, options: dict[str, object], says: str
) -> None:
    with pytest.raises(FormatError) as error:
        made(path, content, **options)
    assert str(error.value).startswith(f"{path}{says}")


def test_logs_of_two_shapes(path: Path, tmp_path: Path) -> None:
    path.write_text(TELLING + ALL)
    other = tmp_path / "again.log"
    other.write_text(TELLING.replace("constant 12", "constant 6") + ALL)
    with pytest.raises(FormatError, match=r"again.log:7: .* is 6, but .*train.log says 12"):
        import_megatron([path, other])


def test_all_ranks_of_the_world_must_have_timers(path: Path) -> None:
    """Blocks that lack the last ranks look whole unless the log tells how many there are."""
    cut = re.sub(r"     rank  [23]: .*\n", "", TIMERS)
    run = iteration(1, 430.0) + TIMERS + iteration(2, 431.0) + cut
    measured = made(path, SETUP + run)
    assert measured.scenario.forward_ms[:, 0].tolist() == [10, 11]
    assert (
        "1 iteration without the timers of all 4 ranks: only the iteration time is used"
        in measured.notes
    )
    with pytest.raises(
        FormatError,
        match=r"train.log:8: iteration 2 lacks the forward-compute of rank 2, and no other",
    ):
        made(path, SETUP + iteration(2, 431.0) + cut)
    with pytest.raises(FormatError, match=r"has timers of rank 3, but there are 2 ranks"):
        made(path, SETUP.replace("world size: 4", "world size: 2") + run)


@pytest.mark.parametrize("content", [ALL, MINMAX], ids=["all", "minmax"])
def test_fuzz(path: Path, content: str) -> None:
    errors = 0
    for broken in damaged(content.encode(), tries(10)):
        path.write_bytes(broken)
        try:
            assert isinstance(import_megatron([path], stages=2, microbatches=3), Measurement)
        except FormatError as error:
            assert str(error).startswith(str(path))  # noqa: PT017
            errors += 1
    assert errors > tries(1 / 3)
