"""Rules that hold for whatever is advised, on comparisons made up and simulated."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipesim import Scenario, compare
from pipesim.errors import ScheduleError
from pipesim.schedule import Assumptions
from pipesim.studies.advice import NEGLIGIBLE, WORTH_HOST_MEMORY, advice, advised
from pipesim.studies.comparison import Comparison, Row
from pipesim.studies.systems import SYSTEMS
from tests.strategies import examples, scenarios

SLOW = Scenario(microbatches=1).with_delay(20, links=[0])
BASE = compare(SLOW, ["zerobubble"]).rows[0]

times = st.sampled_from([100.0, 100.05, 100.1, 100.15, 100.9, 101.0, 101.05, 102.0, 110.0])
held = st.sampled_from([3.0, 4.0, 5.0, 6.5])


@st.composite
def made_up(draw: st.DrawFn) -> Comparison:
    """Rows with times close to each other, some of which need host memory or do not fit."""
    rows = []
    for name in draw(st.lists(st.sampled_from(list(SYSTEMS)), min_size=1, unique=True)):
        peaks = tuple(draw(held) for _ in range(4))
        over = draw(st.booleans()) and draw(st.booleans())
        replanned = name in ("pipemorph", "search")
        schedule = replace(
            BASE.schedule, assumed=Assumptions(delay_ms=SLOW.delay_ms.tolist() if replanned else 0)
        )
        rows.append(
            replace(
                BASE,
                system=SYSTEMS[name],
                schedule=schedule,
                iteration_ms=draw(times),
                lower_bound_ms=100.0,
                peak_activations=peaks,
                host_activations=(1.0, 0.0, 0.0, 0.0) if over else (0.0,) * 4,
                fits=not over or draw(st.booleans()),
            )
        )
    return Comparison(SLOW, 100.0, tuple(rows))


@st.composite
def simulated(draw: st.DrawFn) -> Comparison:
    """Small pipelines, most of them with limits that bind."""
    stages = draw(st.integers(2, 4))
    some = st.integers(1, 20).map(float)
    per_stage = st.lists(some, min_size=stages, max_size=stages)
    limit = st.integers(1, 6).map(float)
    scenario = Scenario(
        stages=stages,
        microbatches=draw(st.integers(1, 6)),
        forward_ms=draw(some | per_stage),
        backward_ms=draw(some | per_stage),
        weight_ms=draw(some | per_stage),
        latency_ms=draw(st.lists(some | st.just(0.0), min_size=stages - 1, max_size=stages - 1)),
        activation_limit=draw(st.one_of(st.just(np.inf), limit)),
        host_limit=draw(st.one_of(st.just(np.inf), st.integers(0, 2).map(float))),
    )
    return compare(scenario, message_cost_ms=draw(st.sampled_from([0.0, 0.5, 2.0])))


def check(comparison: Comparison) -> None:
    """Hold what is advised to the rules, and the words to the figures."""
    rows = [row for row in comparison.rows if row.fits and row.system.transport != "ideal"]
    row, text = advised(comparison), advice(comparison)
    if row is None:
        assert not rows
        assert "Nothing to advise" in text
        return
    assert row in rows
    within = [other for other in rows if not any(other.host_activations)]
    if any(row.host_activations):
        for other in within:
            assert other.iteration_ms > row.iteration_ms * (1 + WORTH_HOST_MEMORY)
    rivals = within if within and not any(row.host_activations) else rows
    fastest_ms = min(other.iteration_ms for other in rivals)
    assert row.iteration_ms <= fastest_ms * (1 + NEGLIGIBLE) * (1 + 1e-12)
    for other in rivals:
        if other.iteration_ms <= row.iteration_ms:
            assert memory(other) >= memory(row)
    assert row.iteration_ms <= min(r.iteration_ms for r in rows) * (1 + WORTH_HOST_MEMORY) * (
        1 + NEGLIGIBLE
    )
    check_words(comparison, row, text)


def check_words(comparison: Comparison, row: Row, text: str) -> None:
    rows = [other for other in comparison.rows if other.fits]
    sentence, _, assumed = text.partition(" Assumes ")
    assert row.system.title in sentence
    assert ("lower bound)" in sentence or ", the lower bound" in sentence) == (
        row.iteration_ms <= row.lower_bound_ms * (1 + 1e-9)
    )
    if "no other system here is faster." in sentence:
        assert all(other.iteration_ms >= row.iteration_ms * (1 - 1e-9) for other in rows)
    gains = [other for other in rows if other.iteration_ms < row.iteration_ms * (1 - 1e-9)]
    if "gain nothing." in sentence or "gains nothing." in sentence:
        assert not [other for other in gains if other.system.transport == "delegated"]
    if "gains nothing on top." in sentence:
        assert not [other for other in gains if other.replanned]
    worth = [o for o in gains if 1 - o.iteration_ms / row.iteration_ms > NEGLIGIBLE]
    assert ("; with host memory, " in sentence) == bool(worth)
    assert ("CPU delegation" in assumed) == (row.system.transport == "delegated")
    assert ("host memory" in assumed) == any(row.host_activations)
    sends = comparison.scenario.devices > 1
    assert ("messages" in assumed) == (sends and comparison.message_cost_ms == 0)
    assert " 0 % less" not in text
    assert "-" not in sentence.replace("Re-plan", "").replace("re-plan", "").replace("-CPU", "")


def memory(row: Row) -> tuple[float, float]:
    return round(max(row.peak_activations), 9), round(sum(row.peak_activations), 9)


@examples(4 / 3)
@given(made_up())
def test_the_rules_hold_for_rows_close_to_each_other(comparison: Comparison) -> None:
    check(comparison)


@examples(4 / 3)
@given(simulated())
def test_the_rules_hold_for_what_is_simulated(comparison: Comparison) -> None:
    check(comparison)
    names = [row.system.name for row in comparison.rows]
    limit = comparison.scenario.activation_limit
    filled = [
        (np.array(row.peak_activations) > limit - 1).any()
        for row in comparison.rows
        if row.system.name != "search"
    ]
    assert ("search" in names) == any(filled)


@examples(1 / 2)
@given(scenarios(limited=True))
def test_the_rules_hold_for_any_placement_times_and_delays(scenario: Scenario) -> None:
    try:
        comparison = compare(scenario)
    except ScheduleError:  # no interleaved plan for this number of micro-batches
        return
    check(comparison)


def test_no_row_fits() -> None:
    over = replace(BASE, host_activations=(1.0, 0.0, 0.0, 0.0), fits=False)
    assert advised(Comparison(SLOW, 100.0, (over,))) is None
