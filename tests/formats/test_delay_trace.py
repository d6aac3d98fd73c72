"""Delay traces from files: three forms, one reader, and what is wrong named with its line."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim.delays import By, DelayTrace
from pipesim.documents.delay_csv import save_trace
from pipesim.errors import FormatError, ScenarioError
from pipesim.formats.delay_trace import line_of, load_trace
from tests import ROOT
from tests.formats.mutations import damaged
from tests.strategies import examples

INF = float("inf")


def read(
    tmp_path: Path, text: str, *, links: int | None = None, by: By | None = None
) -> DelayTrace:
    path = tmp_path / "t.csv"
    path.write_text(text)
    return load_trace(path, links=links, by=by)


def same(one: DelayTrace, other: DelayTrace) -> bool:
    return (
        (one.by, one.end) == (other.by, other.end)
        and np.array_equal(one.starts, other.starts)
        and np.array_equal(one.delay_ms, other.delay_ms)
    )


ALL_LINKS = "time_ms,delay_link0_ms,delay_link1_ms\n0,0,20\n1500,5,0\n2000,,\n"
AS_SECONDS = "time_s,delay_link0_ms,delay_link1_ms\n0,0,20\n1.5,5,0\n2,end,end\n"
AS_CHANGES = "time_ms,slow_links,delay_ms\n0,1,20\n1500,0,5\n2000,,\n"
AS_ARTIFACT = "0.0;1_2;0.02\n1.5;0_1;0.005\n2.0;;inf\n"
BOTH = DelayTrace([0, 1500], [[0, 20], [5, 0]], end=2000)


def test_all_forms_say_the_same(tmp_path: Path) -> None:
    for text in (ALL_LINKS, AS_SECONDS, AS_ARTIFACT):
        assert same(read(tmp_path, text), BOTH)
    kept = DelayTrace([0, 1500], [[0, 20], [5, 20]], end=2000)
    assert same(read(tmp_path, AS_CHANGES), kept)  # link 1 was not named: it keeps its delay
    assert same(read(tmp_path, AS_CHANGES.replace("\n", "\r\n")), kept)


def test_changes_name_directions_and_failures(tmp_path: Path) -> None:
    text = "time_s,slow_links,delay_ms\n1,0>1; 2>1,7\n2,1,failed\n3,1;0,0\n4,,end\n"
    down_and_up = [[[7, 0], [0, 7]], [[7, 0], [INF, INF]], [[0, 0], [0, 0]]]
    for ended in (text, text.replace(",,end", ",end,"), text.replace(",,end", ",end,end")):
        assert same(read(tmp_path, ended), DelayTrace([1000, 2000, 3000], down_and_up, end=4000))
    apart = "iteration,delay_link0_down_ms,delay_link0_up_ms\n3,1,2\n"
    assert same(read(tmp_path, apart), DelayTrace([3], [[[1, 2]]], by="iteration"))


def test_the_number_of_links(tmp_path: Path) -> None:
    assert read(tmp_path, AS_CHANGES).links == 2
    assert read(tmp_path, AS_CHANGES, links=7).links == 7
    assert read(tmp_path, AS_ARTIFACT, links=7).links == 7
    assert read(tmp_path, "iteration,slow_links,delay_ms\n9,,\n", links=3).end == 9
    with pytest.raises(FormatError, match=r"t.csv:1: is for 2 links, the pipeline has 7"):
        read(tmp_path, ALL_LINKS, links=7)


def test_the_artifact_counts_iterations_or_seconds(tmp_path: Path) -> None:
    text = "15;2_3;0.03\n120;0_1,5_6;0.04,0.0793\n190;;0\n230;0_1,5_6;0.01\n300;;inf"
    trace = read(tmp_path, text)
    assert (trace.by, trace.end, trace.links) == ("iteration", 300, 6)
    assert trace.delay_ms[..., 0].tolist() == [
        [0, 0, 30, 0, 0, 0],
        [40, 0, 0, 0, 0, 79.3],
        [0] * 6,
        [10, 0, 0, 0, 0, 10],
    ]
    assert np.array_equal(trace.delay_ms[..., 0], trace.delay_ms[..., 1])
    assert read(tmp_path, text, by="time").starts.tolist() == [15e3, 120e3, 190e3, 230e3]
    assert read(tmp_path, text.replace("15;", "15.5;")).by == "time"
    with pytest.raises(FormatError, match=r"t.csv:1: when must be a whole number"):
        read(tmp_path, text.replace("15;", "15.5;"), by="iteration")
    with pytest.raises(FormatError, match="counts by time, not by iteration"):
        read(tmp_path, ALL_LINKS, by="iteration")


@pytest.mark.parametrize("text", [ALL_LINKS, AS_CHANGES, AS_ARTIFACT])
def test_the_line_of_a_change(tmp_path: Path, text: str) -> None:
    file = tmp_path / "t.csv"
    for blank in ("", "\n"):
        file.write_text(text.replace("1500,", f"{blank}1500,").replace("1.5;", f"{blank}1.5;"))
        first = 1 if text == AS_ARTIFACT else 2
        assert [line_of(file, change) for change in range(2)] == [first, first + 1 + len(blank)]
    assert line_of(tmp_path / "gone", 0) is None


HEAD, LIST = "time_ms,delay_link0_ms,delay_link1_ms\n", "iteration,slow_links,delay_ms\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "t.csv:1: is empty"),
        ("\n\n", "t.csv:1: is empty"),
        (HEAD, "t.csv:1: has a header, but no rows"),
        (HEAD + "2,1,1\n1,1,1\n", "csv:3: goes back from 2 ms"),
        (HEAD + "2,1,1\n2,1,1\n", "csv:3: repeats 2 ms"),
        (LIST + "2,1,1\n1,1,1\n", "csv:3: goes back from iteration 2"),
        (HEAD + "2,1,-1\n", "csv:2: delay_link1_ms must be a time of at least 0, or failed"),
        (HEAD + "2,1,1_0\n", "csv:2: delay_link1_ms must be a time"),
        (HEAD + "2,1,٣\n", "csv:2: delay_link1_ms must be a time"),
        (HEAD + "2,1,nan\n", "csv:2: delay_link1_ms must be a time"),
        (HEAD + "2,1,\n", "csv:2: delay_link1_ms must be a time"),
        (HEAD + "-2,1,1\n", "csv:2: time_ms must be a time of at least 0, not '-2'"),
        (HEAD + "2,1\n", "csv:2: does not have as many values as the header"),
        (HEAD + "2,1,1\n5,12,3", "csv:3: is cut"),
        (HEAD + "2,1,1\n5,,\n9,1,1\n", "csv:4: stands after the end of the trace, 5 ms"),
        (HEAD + "2,1,1\n1,,\n", "csv:3: goes back from 2 ms"),
        ("time_ms\n1\n", "csv:1: has no column delay_link0_ms"),
        ("time_ms,delay_link1_ms\n1,2\n", "csv:1: has no column delay_link0_ms"),
        ("time_ms,delay_link0_up_ms\n1,2\n", "csv:1: has no column delay_link0_down_ms"),
        (
            "time_ms,delay_link0_ms,delay_link0_up_ms\n1,2,3\n",
            "link0_up_ms contradicts delay",
        ),
        (
            "time_ms,delay_link0_ms,delay_link0_ms\n1,2,3\n",
            "csv:1: has several columns delay",
        ),
        ("time_ms,delay_link0_ms,note\n1,2,3\n", "csv:1: unknown column 'note'"),
        ("time_ms,iteration,delay_link0_ms\n1,2,3\n", "this has time_ms and iteration"),
        (
            "when,delay_link0_ms\n1,2\n",
            "csv:1: a delay trace has one column of time_ms",
        ),
        (LIST + "1.5,1,1\n", "csv:2: iteration must be a whole number"),
        (LIST + "1,1,failed\n", "csv:2: link 1 fails at an iteration, which would never end"),
        (LIST + "1,2;2>3,5\n", "csv:2: lists link 2 twice"),
        (LIST + "1,2>4,5\n", "csv:2: '2>4': no link joins stages 2 and 4"),
        (LIST + "1,x,5\n", "csv:2: 'x' is not a link"),
        (LIST + "1,,5\n", "csv:2: delay_ms must be empty where no link is listed, not '5'"),
        (LIST + "1,7,5\n", "csv:2: there is no link 7: links are 0 to 6"),
        (LIST + "9,,\n", "names no link: say how many there are"),
        (HEAD + "0,,\n", "csv:2: is empty: it ends where it begins"),
        ("iteration,slow_links,delay_s\n1,1,5\n", "csv:1: "),
        ("1;2_3\n", "csv:1: does not have as many values as when;links;seconds"),
        ("1;2_4;1\n", "csv:1: '2_4' is not a link such as 2_3"),
        ("1;2_3,2_3;1\n", "csv:1: lists link 2_3 twice"),
        ("1;2_3,3_4,4_5;1,2\n", "csv:1: has 2 delays for 3 links"),
        ("1;2_3;-1\n", "csv:1: seconds must be a time of at least 0, or failed"),
        ("1;;5\n", "csv:1: seconds must be inf or 0 where no link is listed, not '5'"),
        ("2;2_3;1\n1;2_3;1\n", "csv:2: goes back from iteration 2"),
        ("1;2_3;1\n2;;inf\n3;2_3;1\n", "csv:3: stands after the end"),
        ("1;7_8;1\n", "csv:1: there is no link 7: links are 0 to 6"),
        ("1;2_3;0.0", "csv:1: is cut"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, message: str) -> None:
    links = 7 if "no link 7" in message else None
    with pytest.raises(FormatError) as caught:
        read(tmp_path, text, links=links)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_link_of_a_mistyped_number_takes_no_memory(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="there is no link 999999999: links are 0 to 999"):
        read(tmp_path, LIST + "1,999999999,5\n")


def test_a_cut_file_is_refused_wherever_it_is_cut(tmp_path: Path) -> None:
    """Unless what is lost is the end of the line that ends the trace, or whole lines."""
    for text in (ALL_LINKS, AS_CHANGES, AS_ARTIFACT):
        for at in range(len(text) - 1):
            if text[at - 1] != "\n":
                cut = text[:at]
                if cut.count("\n") == text.count("\n") - 1 and at > len(text) - 4:
                    continue
                with pytest.raises(FormatError):
                    read(tmp_path, cut)


@given(
    st.sampled_from([ALL_LINKS, AS_SECONDS, AS_CHANGES, AS_ARTIFACT]),
    st.integers(0, 10**6),
)
def test_damage_is_an_error_or_no_damage(
    tmp_path_factory: pytest.TempPathFactory, text: str, seed: int
) -> None:
    path = tmp_path_factory.mktemp("damaged") / "t.csv"
    for content in damaged(text.encode(), 10, seed):
        path.write_bytes(content)
        with suppress(FormatError):
            save_trace(load_trace(path), path)


@st.composite
def traces(draw: st.DrawFn) -> DelayTrace:
    by: By = draw(st.sampled_from(["time", "iteration"]))
    points = st.integers(0, 10**15) if by == "iteration" else st.floats(0, 1e15)
    times = sorted(draw(st.sets(points.map(float), max_size=5)))
    delay = st.floats(0, 1e15) | st.just(0.0)
    if by == "time":
        delay |= st.just(INF)
    links, apart = draw(st.integers(1, 4)), draw(st.booleans())
    delays = [
        [[draw(delay), draw(delay)] if apart else [draw(delay)] * 2 for _ in range(links)]
        for _ in times
    ]
    end = draw(st.none() | points.filter(bool).map(float))
    if (end is not None and times and end <= times[-1]) or (not times and end is None):
        times = []
        delays, end = [], end or 1.0
    return DelayTrace(times, np.reshape(delays, (len(times), links, 2)), by=by, end=end)


@examples(2)
@given(traces())
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, trace: DelayTrace
) -> None:
    path = tmp_path_factory.mktemp("written") / "t.csv"
    save_trace(trace, path)
    assert same(load_trace(path), trace)
    assert same(load_trace(path, links=trace.links, by=trace.by), trace)


def test_what_no_file_can_hold(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    for trace in (DelayTrace([0], np.zeros((1, 0))), DelayTrace([-1], [[5]])):
        with pytest.raises(ScenarioError, match="at least one link, and begins at 0"):
            save_trace(trace, path)
    save_trace(DelayTrace([], np.zeros((0, 2))), path)
    assert path.read_text() == "time_ms,delay_link0_ms,delay_link1_ms\n0,0,0\n"


def test_shipped_traces() -> None:
    superpod = load_trace(ROOT / "traces/superpod.csv")
    assert (superpod.by, superpod.end, superpod.links) == ("iteration", 1200, 7)
    assert superpod.at(14) == superpod.at(85) == ((0, 0),) * 7
    assert [down for down, _ in superpod.at(119)] == [0] * 7
    assert [down for down, _ in superpod.at(120)] == [40, 0, 0, 0, 0, 40, 0]
    dynamic = load_trace(ROOT / "traces/dynamic_trace_200-400ms.csv")
    assert (dynamic.by, dynamic.end, dynamic.links) == ("time", None, 3)
    assert dynamic.at(257.4)[2] == (35.942, 35.942)
