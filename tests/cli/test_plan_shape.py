"""A plan carries its own shape: no command needs to be told it, and none takes another."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim import Scenario, plan, save_plan, simulate
from pipesim.documents.scenario_toml import save_scenario
from tests.cli.running import error, invoke, stdout
from tests.strategies import examples

pytestmark = pytest.mark.usefixtures("in_folder")

V_CSV = "0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0\n"
"""Two stages on each of two ranks, in a V, for torch."""


def simulated(*args: str) -> dict[str, object]:
    document: dict[str, object] = json.loads(stdout("simulate", *args, "--json"))
    return document


@st.composite
def placements(draw: st.DrawFn) -> list[int]:
    """Up to three stages on each of up to four devices, in any order and unlike numbers."""
    each = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    return draw(st.permutations([d for d, count in enumerate(each) for _ in range(count)]))


@st.composite
def shapes(draw: st.DrawFn) -> Scenario:
    placement = draw(placements())
    stages, n = len(placement), draw(st.integers(1, 6))
    return Scenario(stages=stages, microbatches=n, placement=placement)


PLANNERS = st.sampled_from(["gpipe", "zerobubble"])
"""Those that take any placement, and are the same for every transport."""


@pytest.fixture
def v_plan() -> str:
    Path("schedule.csv").write_text(V_CSV)
    stdout("import", "torch-csv", "schedule.csv", "-o", "plan.json")
    return "plan.json"


# -- no flags ----------------------------------------------------------------------------


def test_an_imported_v_runs_on_its_own_placement(v_plan: str) -> None:
    """One micro-batch: 4 forwards of 10 ms and 4 fused backwards of 20 ms, one after the other."""
    document = simulated(v_plan)
    assert document["iteration_ms"] == 120
    assert document["scenario"]["placement"] == [0, 1, 1, 0]  # type: ignore[index]
    assert document["busy_ms"] == [60, 60]
    assert document["peak_activations"] == [1, 1]
    assert json.loads(stdout("explain", v_plan, "--json"))["iteration_ms"] == 120
    assert invoke("export", v_plan, "--format", "timeline-csv", "-o", "t.csv").exit_code == 0
    assert len(Path("t.csv").read_text().splitlines()) == 1 + 8
    prepared = invoke("replay", v_plan, "--transport", "nccl", "--prepare", "run.json")
    assert prepared.exit_code == 0, prepared.output


@examples(1 / 2)
@given(shape=shapes(), planner=PLANNERS, transport=st.sampled_from(["ideal", "nccl", "delegated"]))
def test_a_plan_without_flags_runs_as_on_a_scenario_of_its_placement(
    shape: Scenario, planner: str, transport: str
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file, toml = f"{folder}/plan.json", f"{folder}/s.toml"
        save_plan(plan(shape, planner), file)
        save_scenario(shape, toml)
        alone = simulated(file, "--transport", transport)
        assert alone == simulated(file, "--transport", transport, "--scenario", toml)
        given = ["--stages", str(shape.stages), "--microbatches", str(shape.microbatches)]
        assert alone == simulated(file, "--transport", transport, *given)
    timeline = simulate(shape, plan(shape, planner), transport)
    assert alone["iteration_ms"] == timeline.iteration_ms


@examples(1 / 2)
@given(shape=shapes(), planner=PLANNERS, data=st.data())
def test_times_delays_and_limits_are_those_of_the_plan_s_stages_links_and_devices(
    shape: Scenario, planner: str, data: st.DataObject
) -> None:
    times = data.draw(st.lists(st.integers(1, 20), min_size=shape.stages, max_size=shape.stages))
    limits = data.draw(st.lists(st.integers(1, 6), min_size=shape.devices, max_size=shape.devices))
    links = [link for link in range(shape.stages - 1) if shape.crosses(link)]
    slow = data.draw(st.sampled_from(links)) if links else None
    schedule = plan(shape, planner)
    scenario = shape.replaced(
        forward_ms=[float(time) for time in times], fused_backward_ms=None,
        activation_limit=[
            limit * len(stages) for limit, stages in zip(limits, shape.stages_of, strict=True)
        ],
    )  # fmt: skip
    args = ["--forward", ",".join(f"{time}ms" for time in times)]
    args += ["--activation-limit", ",".join(map(str, limits))]
    if slow is not None:
        scenario = scenario.with_delay(7, [slow])
        args += ["--slow", f"{slow}=7ms"]
    with tempfile.TemporaryDirectory() as folder:
        save_plan(schedule, f"{folder}/plan.json")
        document = simulated(f"{folder}/plan.json", *args)
    assert document["iteration_ms"] == simulate(scenario, schedule).iteration_ms
    hosted = simulate(scenario, schedule).peak_host_activations
    assert document["host_activations"] == scenario.in_micro_batches(hosted).tolist()


@examples(1 / 2)
@given(shape=shapes(), planner=PLANNERS, kind=st.sampled_from(["torch-csv", "torch-csv-comms"]))
def test_what_is_exported_and_imported_again_runs_the_same(
    shape: Scenario, planner: str, kind: str
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        first, csv, second = (f"{folder}/{name}" for name in ("plan.json", "p.csv", "again.json"))
        save_plan(plan(shape, planner), first)
        stdout("export", first, "--format", kind, "-o", csv)
        stdout("import", "torch-csv", csv, "-o", second)
        before, after = simulated(first), simulated(second)
    assert before.pop("planner") == planner
    after.pop("planner")
    assert after == before


def test_a_plan_in_chunks_takes_whole_stages_in_chunks_too() -> None:
    """--chunks says that the given stages are cut: 405 ms, as the planner was told."""
    made = ["--planner", "interleaved-1f1b", "--chunks", "2"]
    stdout("plan", *made, "-o", "plan.json", "--quiet")
    whole = simulated("plan.json", "--chunks", "2", "--slow", "0=20ms")
    assert whole == simulated(*made, "--slow", "0=20ms")
    assert simulated("plan.json", "--chunks", "2")["iteration_ms"] == 405
    assert simulated("plan.json")["iteration_ms"] == 810  # each of eight stages takes 10 ms
    save_scenario(Scenario(), "s.toml")
    cut = simulated("plan.json", "--scenario", "s.toml", "--chunks", "2")
    assert cut["iteration_ms"] == 405


# -- contradictions ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ("--stages 2", "the plan places its stages on devices [0, 1, 1, 0]: --stages 2"),
        ("--microbatches 3", "the plan has 1 micro-batch: --microbatches 3 contradicts it"),
        ("--chunks 2", "devices [0, 1, 1, 0], --chunks 2 on [0, 1, 0, 1]"),
        ("--chunks 3", "the plan places its stages on devices [0, 1, 1, 0]: --chunks 3"),
        ("--scenario four.toml", "devices [0, 1, 1, 0], four.toml on [0, 1, 2, 3]"),
        ("--scenario v.toml", "the plan has 1 micro-batch, v.toml 12"),
        ("--forward 1ms,2ms", "--forward gives 2 times for 4 stages"),
        ("--slow 1=5ms", "link 1 joins stages 1 and 2, both on device 1: it cannot have a delay"),
        ("--slow 3=5ms", "there is no link 3 (links: 0 to 2)"),
        ("--activation-limit 1,2,3", "3 limits for 2 devices"),
        ("--group-size 2", "--group-size is for --planner"),
    ],
)  # fmt: skip
def test_what_contradicts_the_plan_is_one_line(v_plan: str, args: str, words: str) -> None:
    save_scenario(Scenario(), "four.toml")
    save_scenario(Scenario(placement=[0, 1, 1, 0]), "v.toml")
    for command in (["simulate"], ["replay", "--transport", "nccl"]):
        assert words in error(*command, v_plan, *args.split())
    if "group-size" not in args:
        assert words in error("explain", v_plan, *args.split())
        assert words in error("export", v_plan, *args.split(), "--format", "timeline-csv",
                              "-o", "t.csv")  # fmt: skip


def test_a_hint_names_the_chunks_that_would_fit() -> None:
    stdout("plan", "--planner", "interleaved-1f1b", "-o", "plan.json", "--quiet")
    save_scenario(Scenario(), "s.toml")
    assert "(--chunks 2 cuts them to fit)" in error("simulate", "plan.json", "--scenario", "s.toml")
