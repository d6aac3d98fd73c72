"""The figures of a comparison, and how its parts add up."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from milp import Result
from pipesim import Scenario, compare, evaluate, plan
from pipesim.errors import ScenarioError, ScheduleError
from pipesim.studies.optimum import best_within_limits
from pipesim.studies.systems import DEFAULT_SYSTEMS, SYSTEMS
from pipesim.transport import Delegated, Exchange, Ideal, Nccl, Transport
from tests.processes import PATIENCE_S
from tests.strategies import examples, scenarios, transports

EXAMPLE = Scenario()
CONTRACT = """
system planner transport iteration_ms no_delay_ms slowdown dependency_ms hol_ms bubble_fraction
stage_span_ms warmup slackness peak_activations plan_seconds
"""


@pytest.mark.parametrize(
    ("delay", "cpu", "replanned", "expected_warmup"),
    [(10, 400, 400, (7, 5, 3, 1)), (20, 440, 410, (8, 5, 3, 1))],
)
def test_worked_example(
    delay: float, cpu: float, replanned: float, expected_warmup: tuple[int, ...]
) -> None:
    result = compare(EXAMPLE.with_delay(delay, [0]))
    assert [row.system.name for row in result.rows] == [
        "1f1b", "zerobubble", "pipemorph-cpu", "pipemorph",
    ]  # fmt: skip
    assert result["zerobubble"].no_delay_ms == 390
    assert result["pipemorph-cpu"].iteration_ms == cpu
    assert result["pipemorph"].iteration_ms == replanned == result.lower_bound_ms
    assert result["pipemorph"].warmup == expected_warmup
    blocked = result["zerobubble"].iteration_ms - result["pipemorph-cpu"].iteration_ms
    assert blocked == result["zerobubble"].hol_ms > 0


def _slower(stages: int, delay_ms: float, *, link: int = 1, message_bytes: float = 0.0) -> Scenario:
    """Where plans for more, or for less, than there is happen to be better."""
    times = {"backward_ms": 13, "weight_ms": 7}
    scenario = Scenario(stages=stages, microbatches=8, message_bytes=message_bytes, **times)
    return scenario.with_delay(delay_ms, links=[link])


@examples(4 / 3)
@given(scenarios(limited=True), transports, st.sampled_from(["pipemorph", "search"]))
@example(_slower(4, 5, link=2, message_bytes=4e6), Exchange(bytes_per_ms=1e6), "pipemorph")
@example(_slower(3, 20, message_bytes=4e6), Nccl(bytes_per_ms=1e6), "pipemorph")
@example(
    _slower(3, 5, message_bytes=4e6),
    Delegated(delegates=1, base_ms=1, copy_bytes_per_ms=1e6, copy_on_demand=True),
    "pipemorph",
)
def test_re_planning_is_never_slower_over_the_same_transport(
    scenario: Scenario, over: Transport, planner: str
) -> None:
    names = f"{planner}:{over.name}", f"zerobubble:{over.name}"
    result = compare(scenario, names, transports=[over])
    assert result[names[0]].iteration_ms <= result[names[1]].iteration_ms * (1 + 1e-9)


@examples(1)
@given(scenarios(limited=True), transports)
@example(_slower(4, 25), Delegated(base_ms=4.0))
@example(_slower(5, 15), Delegated(delegates=1, base_ms=4.0))
def test_to_know_what_messages_cost_never_hurts(scenario: Scenario, over: Transport) -> None:
    assume(isinstance(over, Ideal | Delegated) and not getattr(over, "only_slow", False))
    knowing, ignorant = (
        evaluate(scenario, plan(scenario, "pipemorph", over=way), over) for way in (over, Ideal())
    )
    assert knowing <= ignorant * (1 + 1e-9)


@examples(1 / 4)
@given(
    scenarios(),
    st.sampled_from([0.0, 0.0, 0.5, 3.0]),
    st.sampled_from([math.inf, math.inf, 1e6]),
)
def test_the_parts_of_a_delay_add_up(scenario: Scenario, cost: float, rate: float) -> None:
    if not scenario.is_plain:
        return
    over = [Nccl(bytes_per_ms=rate), Exchange(bytes_per_ms=rate)]
    for row in compare(scenario, message_cost_ms=cost, transports=over).rows:
        assert row.hol_ms >= -1e-9
        assert row.iteration_ms >= row.lower_bound_ms * (1 - 1e-9)
        told = scenario.with_message_cost(row.over.costs_ms(scenario))
        ideal_ms = evaluate(told, row.schedule)
        assert row.iteration_ms - row.hol_ms == pytest.approx(ideal_ms)
        if row.system.transport == "delegated":
            assert row.hol_ms == pytest.approx(0, abs=1e-6)
            assert row.iteration_ms == pytest.approx(row.no_delay_ms + row.dependency_ms)


def test_a_message_costs_time_under_every_system() -> None:
    slow = EXAMPLE.with_delay(20, [0])
    instant, costly = (compare(slow, list(SYSTEMS), message_cost_ms=ms) for ms in (0.0, 2.0))
    assert costly.as_dict()["message_cost_ms"] == 2
    assert costly.lower_bound_ms == 410 + 3 * 2  # down to the last device, before all its work
    for before, after in zip(instant.rows, costly.rows, strict=True):
        assert after.over == replace(before.over, base_ms=2.0)
        assert after.iteration_ms > before.iteration_ms
        assert after.no_delay_ms > before.no_delay_ms
        assert after.replanned == before.replanned == (after.system.name in ("pipemorph", "search"))
    assert costly["zerobubble"].schedule == instant["zerobubble"].schedule
    assert costly["pipemorph"].iteration_ms == costly.lower_bound_ms
    assert costly["pipemorph"].lower_bound_ms == costly.lower_bound_ms
    assert not any(row.replanned for row in compare(EXAMPLE, message_cost_ms=2).rows)
    assert costly["pipemorph"].schedule.assumed.delay_ms == ((22, 22), (2, 2), (2, 2))
    assert costly["zerobubble"].schedule.assumed.delay_ms == 0


def test_search_joins_where_a_limit_is_reached() -> None:
    def names(delay: float = 20, **changes: object) -> list[str]:
        scenario = EXAMPLE.with_delay(delay, [0]).replaced(**changes)
        return [row.system.name for row in compare(scenario).rows]

    assert names() == names(activation_limit=11) == list(DEFAULT_SYSTEMS)
    assert names(activation_limit=10) == [*DEFAULT_SYSTEMS, "search"]  # pipemorph holds 10
    assert names(0, activation_limit=10.5) == list(DEFAULT_SYSTEMS)  # none holds more than 9.5
    assert names(0, activation_limit=10) == [*DEFAULT_SYSTEMS, "search"]
    assert names(activation_limit=[99, 99, 6, 99]) == [*DEFAULT_SYSTEMS, "search"]
    two = compare(EXAMPLE.replaced(activation_limit=4), ["1f1b", "zerobubble"])
    assert len(two.rows) == 2  # as asked


def test_what_does_not_fit_the_host_does_not_fit() -> None:
    v = Scenario(
        stages=6, placement=Scenario.place("v", 3, 2), microbatches=8, activation_limit=3,
        host_limit=1,
    ).with_delay(60, [0])  # fmt: skip
    row = compare(v, ["pipemorph"]).rows[0]
    assert max(row.host_activations) > 1
    assert not row.fits
    assert compare(v.replaced(host_limit=np.inf), ["pipemorph"]).rows[0].fits


def test_interleaved_counts_activations_of_whole_stages() -> None:
    row = compare(EXAMPLE, ["interleaved-1f1b"]).rows[0]
    assert row.iteration_ms == 405
    assert row.peak_activations[0] == 5.5
    assert len(row.warmup) == 8


def test_a_default_row_that_cannot_be_planned_is_left_out_and_named() -> None:
    uneven = Scenario(microbatches=9)
    result = compare(uneven, chunks=2)
    assert [row.system.name for row in result.rows] == [*DEFAULT_SYSTEMS[1:]]
    assert "or a group size of 5" in result.left_out["interleaved-1f1b"]
    assert result.as_dict()["left_out"] == result.left_out
    assert not compare(uneven, chunks=2, group_size=5).left_out
    for asked in ({"systems": ["interleaved-1f1b"]}, {"chunks": 2, "group_size": 3}):
        with pytest.raises(ScheduleError, match="interleaved-1f1b needs"):
            compare(uneven, **asked)  # type: ignore[arg-type]


def test_any_planner_over_any_transport_is_a_system() -> None:
    row = compare(EXAMPLE, ["zb-h1:ideal"]).rows[0]
    assert (row.system.planner, row.system.transport, row.iteration_ms) == ("zb-h1", "ideal", 390)


def test_fewer_delegates_than_messages_in_flight_make_a_queue() -> None:
    slow = EXAMPLE.with_delay(60, [0])
    one, many = (
        compare(slow, ["pipemorph"], transports=[Delegated(delegates=k)]).rows[0] for k in (1, None)
    )
    assert one.iteration_ms > many.iteration_ms


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("2f2b", ScenarioError, "unknown system '2f2b': one of 1f1b, interleaved-1f1b"),
        ("1f1b:udp", ScenarioError, "unknown transport 'udp'"),
        ("nobody:nccl", ScheduleError, "unknown planner 'nobody'"),
    ],
)
def test_unknown_systems_are_refused(name: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        compare(EXAMPLE, [name])
    assert message in str(caught.value)


def test_the_json_form_is_plain_and_complete() -> None:
    told: list[str] = []
    result = compare(EXAMPLE.with_delay(5, [2]), list(SYSTEMS), progress=told.append)
    assert told == [system.title for system in SYSTEMS.values()]
    document = json.loads(json.dumps(result.as_dict(), allow_nan=False))
    assert document["scenario"]["slow_links"] == [2]
    assert set(CONTRACT.split()) <= set(document["rows"][0])


def test_the_optimum_is_a_row_on_request() -> None:
    row = compare(
        EXAMPLE.with_delay(20, [0]), ["zerobubble:ideal"], optimum_seconds=PATIENCE_S
    ).rows[-1]
    assert (row.system.title, row.iteration_ms, row.no_delay_ms) == ("Optimum", 410, 390)
    assert row.lower_bound_ms == 410


def test_an_interrupted_optimum_is_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(scenario: Scenario, *, time_limit_s: float) -> Result:
        known = best_within_limits(scenario)
        return Result("feasible", 450.0, 390.0, time_limit_s, "highs", known, interrupted=True)

    monkeypatch.setattr("pipesim.studies.optimum.optimum", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compare(EXAMPLE, ["zerobubble:ideal"], optimum_seconds=1.0)


def test_what_messages_cost_on_each_link_is_in_no_column_of_blocking() -> None:
    """Sizes differ by link: where nothing blocks, all that they add is in the ideal columns."""
    slow = EXAMPLE.with_delay(20, [0]).replaced(message_bytes=[1e6, 3e6, 0])
    over = Delegated(base_ms=1, copy_base_ms=0.5, copy_bytes_per_ms=1e6)
    assert over.costs_ms(slow).tolist() == [4, 8, 2]
    row = compare(slow, ["pipemorph"], transports=[over]).rows[0]
    assert row.hol_ms == pytest.approx(0)
    assert row.lower_bound_ms == 390 + 20 + 4 + 8 + 2 == row.iteration_ms
    assert row.schedule.assumed.delay_ms == ((24, 24), (8, 8), (2, 2))
    assert row.replanned
    assert not compare(slow.without_delay(), ["pipemorph"], transports=[over]).rows[0].replanned
