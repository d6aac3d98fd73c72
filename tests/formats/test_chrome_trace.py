from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from pipesim.engine import simulate
from pipesim.formats.chrome_trace import chrome_trace, save_chrome_trace
from pipesim.program import Message
from pipesim.scenario import Scenario
from pipesim.schedule import Op, Schedule
from pipesim.timeline import CommSpan, OpSpan, Timeline
from pipesim.transport import Transport
from tests.strategies import cases, transports

Events = list[dict[str, Any]]


def events_of(timelines: dict[str, Timeline]) -> Events:
    events = chrome_trace(timelines)["traceEvents"]
    assert isinstance(events, list)
    return events


def nanoseconds(event: dict[str, Any]) -> tuple[int, int]:
    start = round(event["ts"] * 1000)
    return start, start + round(event["dur"] * 1000)


def check(events: Events, timelines: dict[str, Timeline]) -> None:
    threads = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            threads[event["pid"], event["tid"]].append(event)
            assert event["dur"] >= 0
    for thread in threads.values():
        for (_, end), (start, _) in pairwise(sorted(map(nanoseconds, thread))):
            assert end <= start
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert named == set(threads)
    spans = sum(len(t.comm) + sum(map(len, t.compute)) for t in timelines.values())
    assert sum(map(len, threads.values())) == spans
    arrows: dict[int, Events] = defaultdict(list)
    for event in events:
        if event["ph"] in "sf":
            arrows[event["id"]].append(event)
    assert len(arrows) == sum(len({s.message for s in t.comm}) for t in timelines.values())
    starts = {(e["pid"], e["tid"], e["ts"]) for thread in threads.values() for e in thread}
    for begin, end in arrows.values():
        assert (begin["ph"], end["ph"], end["bp"]) == ("s", "f", "e")
        assert begin["ts"] <= end["ts"]
        for event in (begin, end):
            assert (event["pid"], event["tid"], event["ts"]) in starts


def by_hand() -> Timeline:
    """Two messages overlap on the wire; the third has a lane free again."""
    f = [[Op("F", s, m) for m in range(3)] for s in range(2)]
    starts = [[0.0, 1.0, 2.1], [3.001, 6.0, 9.0]]
    compute = [
        [OpSpan(op, at, at + 1) for op, at in zip(ops, times, strict=True)]
        for ops, times in zip(f, starts, strict=True)
    ]
    comm = [
        CommSpan(Message(f[0][m], f[1][m]), "wire", 0, start, end)
        for m, start, end in [(0, 1.0, 3.001), (1, 2.0, 4.0), (2, 3.001, 5.1)]
    ]
    return Timeline(Scenario(stages=2, microbatches=3), compute, comm)


def test_lanes_names_and_exact_times() -> None:
    events = events_of({"ideal": by_hand(), "": by_hand()})
    check(events, {"a": by_hand(), "b": by_hand()})
    names = {
        (e["name"], e["pid"], e["tid"], e["args"]["name"])
        for e in events
        if e["ph"] == "M" and "name" in e["args"] and e["pid"] < 3
    }
    assert names == {
        ("process_name", 0, 0, "ideal device 0"),
        ("process_name", 1, 0, "ideal device 1"),
        ("process_name", 2, 0, "device 0"),
        ("thread_name", 0, 0, "compute"),
        ("thread_name", 0, 1, "send"),
        ("thread_name", 0, 2, "send 2"),
        ("thread_name", 1, 0, "compute"),
        ("thread_name", 2, 0, "compute"),
        ("thread_name", 2, 1, "send"),
        ("thread_name", 2, 2, "send 2"),
    }
    wires = [
        (e["name"], e["tid"], e["ts"], e["dur"])
        for e in events
        if e["ph"] == "X" and e["pid"] == 0 and e["tid"]
    ]
    assert wires == [
        ("wire 0F0→1F0", 1, 1000, 2001),
        ("wire 0F2→1F2", 1, 3001, 2099),
        ("wire 0F1→1F1", 2, 2000, 2000),
    ]
    order = [e["args"]["sort_index"] for e in events if e["name"] == "process_sort_index"]
    assert order == [0, 1, 2, 3]
    flow = [e for e in events if e["ph"] in "sf"][:2]
    assert flow == [
        {"name": "message", "cat": "message", "id": 0, "ph": "s", "pid": 0, "tid": 1, "ts": 1000},
        {
            "name": "message",
            "cat": "message",
            "id": 0,
            "ph": "f",
            "pid": 1,
            "tid": 0,
            "ts": 3001,
            "bp": "e",
        },
    ]


def test_times_are_rounded_to_nanoseconds_only() -> None:
    spans = [OpSpan(Op("F", 0, 0), 0.1 + 0.2, 1.0000015), OpSpan(Op("BW", 0, 0), 1.0000015, 1e6)]
    events = [e for e in events_of({"": Timeline(Scenario(stages=1), [spans])}) if e["ph"] == "X"]
    assert [(e["ts"], e["dur"]) for e in events] == [(300, 700.002), (1000.002, 999998999.998)]


@given(cases(), transports)
def test_nothing_overlaps_in_part(case: tuple[Scenario, Schedule], over: Transport) -> None:
    scenario, schedule = case
    timelines = {"one": simulate(scenario, schedule, over), "two": simulate(scenario, schedule)}
    events = events_of(timelines)
    check(events, timelines)
    ops = [e for e in events if e.get("cat") == "compute"]
    spans = [s for t in timelines.values() for device in t.compute for s in device]
    assert sorted(e["ts"] for e in ops) == pytest.approx(
        sorted(s.start_ms * 1000 for s in spans), abs=0.0006
    )


def test_the_file_is_the_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    timelines = {"é": by_hand()}
    save_chrome_trace(timelines, path)
    text = path.read_text(encoding="utf-8")
    assert json.loads(text) == chrome_trace(timelines)
    assert text.count("\n") == len(events_of(timelines)) + 2


def test_receive_lanes() -> None:
    message = Message(Op("F", 0, 0), Op("F", 1, 0))
    compute = [[OpSpan(Op("F", 0, 0), 0, 1)], [OpSpan(Op("F", 1, 0), 3, 4)]]
    comm = [CommSpan(message, "kernel", d, 1.0, 3.0) for d in (1, 0)]
    events = events_of({"nccl": Timeline(Scenario(stages=2), compute, comm)})
    lanes = [e["args"]["name"] for e in events if e["name"] == "thread_name"]
    assert lanes == ["compute", "send", "compute", "receive"]
    begin, end = (e for e in events if e["ph"] in "sf")
    assert (begin["pid"], begin["tid"], begin["ts"]) == (0, 1, 1000)
    assert (end["pid"], end["tid"], end["ts"]) == (1, 0, 3000)
