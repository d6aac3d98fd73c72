"""What must hold for every scenario, planner and transport."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pipesim.analysis import check_lemma_1, lower_bound_ms
from pipesim.engine import Engine, run, simulate
from pipesim.lowering import lower
from pipesim.scenario import Scenario
from pipesim.schedule import Schedule
from pipesim.timeline import Timeline
from pipesim.transport import Delegated, Ideal, Isolated, Nccl, Transport
from planners import names
from tests.strategies import cases, planned, scenarios, transports

TOLERANCE = 1e-9


def close(value: float) -> object:
    return pytest.approx(value, rel=TOLERANCE, abs=TOLERANCE)


def assert_feasible(timeline: Timeline, scenario: Scenario, schedule: Schedule) -> None:
    """Orders are kept, nothing overlaps, and data arrives before it is used."""
    assert [[s.op for s in device] for device in timeline.compute] == [
        list(order) for order in schedule.orders
    ]
    for device in timeline.compute:
        ends = [span.end_ms for span in device]
        starts = [span.start_ms for span in device]
        assert all(e <= s + TOLERANCE for e, s in zip(ends, starts[1:], strict=False))
    spans = timeline.spans
    for op, span in spans.items():
        for need in schedule.needs(op):
            delay = 0.0
            if scenario.placement[need.stage] != scenario.placement[op.stage]:
                link, up = min(need.stage, op.stage), int(need.stage > op.stage)
                delay = scenario.delay_ms[link, up]
            assert span.start_ms >= spans[need].end_ms + delay - TOLERANCE


@given(scenarios(limited=True))
def test_every_planner_makes_a_complete_schedule_within_the_limits(scenario: Scenario) -> None:
    schedules = planned(scenario)
    assert "gpipe" in schedules
    assert "zerobubble" in schedules
    if scenario.is_plain:
        assert set(names()) - set(schedules) <= {"interleaved-1f1b", "one-queue"}
    for name in ("zerobubble", "zb-h1", "zb-h2", "zb-auto", "pipemorph-initial"):
        if name in schedules:
            peaks = simulate(scenario, schedules[name]).peak_activations
            assert (peaks <= scenario.activation_limit + TOLERANCE).all(), name


@given(cases(), transports)
def test_runs_are_feasible_and_never_beat_the_bound(
    case: tuple[Scenario, Schedule], transport: Transport
) -> None:
    scenario, schedule = case
    timeline = simulate(scenario, schedule, transport)
    assert_feasible(timeline, scenario, schedule)
    assert timeline.iteration_ms >= lower_bound_ms(scenario) * (1 - TOLERANCE) - TOLERANCE
    assert timeline.stage_span_ms <= timeline.iteration_ms + TOLERANCE
    assert -TOLERANCE <= timeline.bubble_fraction <= 1


@given(cases(), transports)
def test_busy_time_is_the_sum_of_durations(
    case: tuple[Scenario, Schedule], transport: Transport
) -> None:
    scenario, schedule = case
    assume(not isinstance(transport, Isolated))
    timeline = simulate(scenario, schedule, transport)
    for order, busy in zip(schedule.orders, timeline.busy_ms, strict=True):
        total = sum(scenario.durations_ms(op.kind)[op.stage, op.microbatch] for op in order)
        assert busy == pytest.approx(total, rel=1e-6, abs=1e-6)


@given(cases(limited=True))
def test_activations_are_all_given_back(case: tuple[Scenario, Schedule]) -> None:
    timeline = simulate(*case)
    for device in range(len(timeline.compute)):
        _, held = timeline.in_flight(device)
        assert held.min() >= 0
        assert held[-1] == 0
        assert timeline.host_held(device)[1][-1] == 0


@given(cases(), transports, st.data())
def test_a_fixed_program_never_gets_faster_when_something_gets_slower(
    case: tuple[Scenario, Schedule], transport: Transport, data: st.DataObject
) -> None:
    scenario, schedule = case
    program = lower(schedule, scenario, transport)
    before = run(program, scenario).iteration_ms
    extra = data.draw(st.floats(0, 40))
    field = data.draw(st.sampled_from(["F", "B", "W", "BW", "latency_ms", "occupancy_ms"]))
    fields = {"F": "forward_ms", "B": "backward_ms", "W": "weight_ms", "BW": "fused_backward_ms"}
    values = getattr(scenario, fields.get(field, field)).copy()
    if field in fields:
        stage = data.draw(st.integers(0, scenario.stages - 1))
        values[stage, data.draw(st.integers(0, scenario.microbatches - 1))] += extra
    else:
        links = [i for i in range(scenario.stages - 1) if scenario.crosses(i)]
        assume(links)
        values[data.draw(st.sampled_from(links)), data.draw(st.integers(0, 1))] += extra
    slower = scenario.replaced(**{fields.get(field, field): values})
    assert run(program, slower).iteration_ms >= before - TOLERANCE * max(1.0, before)


@given(cases(), transports, st.floats(0.1, 30))
def test_scaling_all_times_scales_the_iteration(
    case: tuple[Scenario, Schedule], transport: Transport, factor: float
) -> None:
    scenario, schedule = case
    free = {"base_ms": 0.0, "copy_base_ms": 0.0, "bytes_per_ms": inf, "copy_bytes_per_ms": inf}
    without = {name: none for name, none in free.items() if hasattr(transport, name)}
    program = lower(schedule, scenario, replace(transport, **without))
    once, scaled = run(program, scenario), run(program, scenario.scaled(factor))
    assert scaled.iteration_ms == close(factor * once.iteration_ms)


@given(cases(), transports, st.one_of(st.sampled_from([0.1, 1 / 3, 1.7]), st.floats(0.1, 30)))
def test_programs_do_not_depend_on_the_unit_of_time(
    case: tuple[Scenario, Schedule], transport: Transport, factor: float
) -> None:
    scenario, schedule = case
    scaled = lower(schedule, scenario.scaled(factor), transport)
    assert scaled.instructions == lower(schedule, scenario, transport).instructions


@given(cases(), st.sampled_from(["device", "peer", "direction"]), st.booleans())
def test_nccl_with_latency_is_no_faster_than_ideal(
    case: tuple[Scenario, Schedule], streams: str, fused: bool
) -> None:
    scenario, schedule = case
    latency = scenario.replaced(latency_ms=scenario.delay_ms, occupancy_ms=0.0)
    nccl = Nccl(p2p_streams=streams, fused=fused)  # type: ignore[arg-type]
    ideal = simulate(latency, schedule, Ideal()).iteration_ms
    assert simulate(latency, schedule, nccl).iteration_ms >= ideal - TOLERANCE * max(1.0, ideal)


@given(cases(), st.sampled_from([0.5, 3.0]), st.booleans())
def test_where_nothing_blocks_a_message_costs_what_a_latency_does(
    case: tuple[Scenario, Schedule], cost: float, compiled: bool
) -> None:
    scenario, schedule = case
    longer = scenario.with_message_cost(cost)
    engine: Engine = "compiled" if compiled else "simpy"
    expected = simulate(longer, schedule, engine=engine).iteration_ms
    for over in (Ideal(base_ms=cost), Delegated(base_ms=cost)):
        assert simulate(scenario, schedule, over, engine=engine).iteration_ms == close(expected)
    assert lower_bound_ms(longer) <= expected + TOLERANCE * max(1.0, expected)


@given(cases(limited=True))
def test_lemma_1_holds_for_every_planner(case: tuple[Scenario, Schedule]) -> None:
    check_lemma_1(case[1])


@given(cases(), transports)
def test_communication_lies_between_its_two_operators(
    case: tuple[Scenario, Schedule], transport: Transport
) -> None:
    scenario, schedule = case
    timeline = simulate(scenario, schedule, transport)
    spans = timeline.spans
    for comm in timeline.comm:
        assert comm.start_ms <= comm.end_ms
        assert comm.end_ms <= spans[comm.message.consumer].start_ms + TOLERANCE or (
            comm.path == "kernel"  # a group is held open by its slowest transfer
        )
        if comm.path != "kernel" or comm.device == scenario.placement[comm.message.producer.stage]:
            assert comm.start_ms >= spans[comm.message.producer].end_ms - TOLERANCE


@given(scenarios())
def test_interleaving_keeps_the_work_and_the_slow_links(scenario: Scenario) -> None:
    assume(scenario.is_plain)
    cut = scenario.interleaved(2)
    for kind in ("F", "B", "W"):
        whole, parts = scenario.durations_ms(kind).sum(), cut.durations_ms(kind).sum()  # type: ignore[arg-type]
        assert parts == pytest.approx(whole)
    assert np.array_equal(cut.delay_ms[: scenario.stages - 1], scenario.delay_ms)
