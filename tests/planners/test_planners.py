"""What each planner promises, and how others are added."""

from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim import Scenario, plan, simulate
from pipesim.analysis import slackness, warmup
from pipesim.errors import ScheduleError
from pipesim.schedule import Assumptions, Schedule
from pipesim.transport import Delegated
from planners import names, registry, summary
from planners.pipemorph import initial_warmup, replanned_warmup
from tests.strategies import scenarios

EXAMPLE = Scenario()


def text(schedule: Schedule, device: int) -> str:
    return " ".join(str(op) for op in schedule.orders[device])


def test_the_registry_names_and_describes_all_planners() -> None:
    built_in = {"gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-h2", "zerobubble"}
    assert built_in | {"pipemorph-initial", "pipemorph", "search", "quick-search"} <= set(names())
    assert all(summary(name) for name in names())


def test_one_f_one_b() -> None:
    schedule = plan(Scenario(stages=3, microbatches=4), "1f1b")
    assert text(schedule, 0) == "0F0 0F1 0F2 0BW0 0F3 0BW1 0BW2 0BW3"
    assert text(schedule, 2) == "2F0 2BW0 2F1 2BW1 2F2 2BW2 2F3 2BW3"


def test_gpipe_on_virtual_stages_goes_stage_by_stage() -> None:
    schedule = plan(Scenario(stages=2, microbatches=2, placement=[0, 0]), "gpipe")
    assert text(schedule, 0) == "0F0 0F1 1F0 1F1 1BW0 1BW1 0BW0 0BW1"


def test_interleaved_1f1b_is_megatrons_order() -> None:
    """v = 2, D = 2, N = 4: warm-up 2·(D − d − 1) + (v − 1)·D on device d."""
    schedule = plan(Scenario(stages=2, microbatches=4).interleaved(2), "interleaved-1f1b")
    assert text(schedule, 0) == (
        "0F0 0F1 2F0 2F1 0F2 2BW0 0F3 2BW1 2F2 0BW0 2F3 0BW1 2BW2 2BW3 0BW2 0BW3"
    )
    assert text(schedule, 1) == (
        "1F0 1F1 3F0 3BW0 3F1 3BW1 1F2 1BW0 1F3 1BW1 3F2 3BW2 3F3 3BW3 1BW2 1BW3"
    )


@pytest.mark.parametrize(
    ("planner", "scenario", "message"),
    [
        ("1f1b", EXAMPLE.interleaved(2), "1f1b needs one stage on each device"),
        ("zb-h1", EXAMPLE.interleaved(2), "zb-h1 needs one stage on each device"),
        (
            "interleaved-1f1b",
            Scenario(microbatches=9).interleaved(2),
            "needs 2 groups of equally many micro-batches",
        ),
        ("nobody", EXAMPLE, "unknown planner 'nobody': one of gpipe"),
        (
            "zerobubble",
            EXAMPLE.interleaved(2).replaced(activation_limit=1),
            "device 0 may hold 0.5 activations; one micro-batch needs 1 there",
        ),
        ("zerobubble", Scenario(activation_limit=0.5), "device 0 may hold 0.5 activations"),
    ],
)
def test_a_planner_says_what_it_needs(planner: str, scenario: Scenario, message: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        plan(scenario, planner)
    assert message in str(caught.value)


def test_zb_h1_peaks_like_1f1b_and_is_faster() -> None:
    h1, fused = (simulate(EXAMPLE, plan(EXAMPLE, name)) for name in ("zb-h1", "1f1b"))
    assert h1.peak_activations.max() <= fused.peak_activations.max()
    assert h1.iteration_ms < fused.iteration_ms


def test_zb_h2_warms_up_with_odd_numbers() -> None:
    schedule = plan(EXAMPLE, "zb-h2")
    assert warmup(schedule) == (7, 5, 3, 1)
    assert simulate(EXAMPLE, schedule).peak_activations.max() == 7


@pytest.mark.parametrize(
    ("limit", "expected"),
    [(7, [7, 5, 3, 1]), (5, [5, 3, 2, 1]), (4, [4, 3, 2, 1]), (3, [3, 2, 1, 1]), (1, [1, 1, 1, 1])],
)
def test_algorithm_1_spreads_what_fits(limit: float, expected: list[int]) -> None:
    assert initial_warmup(EXAMPLE.replaced(activation_limit=limit)) == expected


def test_algorithm_1_without_a_limit_and_with_one_stage() -> None:
    assert initial_warmup(EXAMPLE) == [7, 5, 3, 1]
    assert initial_warmup(Scenario(microbatches=3)) == [3, 2, 1, 1]
    assert initial_warmup(Scenario(stages=1)) == [1]


@given(scenarios(limited=True))
def test_algorithm_2_keeps_its_bounds(scenario: Scenario) -> None:
    found = replanned_warmup(scenario)
    n = scenario.microbatches
    assert found[-1] == 1
    assert all(1 <= x <= n for x in found)
    assert all(delta >= 0 for delta in slackness(found))
    for link, delta in enumerate(slackness(found)):
        assert delta <= max(2, n - found[link + 1] - 2 * link)


def test_with_few_micro_batches_slackness_goes_to_the_links_below() -> None:
    scenario = Scenario(microbatches=2).with_delay(5, [2])
    assert replanned_warmup(scenario) == [2, 2, 2, 1]
    planned = simulate(scenario, plan(scenario, "pipemorph"))
    assert planned.iteration_ms == simulate(scenario, plan(scenario, "zerobubble")).iteration_ms


def test_algorithm_2_lives_on_host_memory_up_to_its_limit() -> None:
    limited = EXAMPLE.replaced(activation_limit=7).with_delay(30, [0])
    schedule = plan(limited, "pipemorph-published")
    assert warmup(schedule) == (9, 5, 3, 1)
    held = simulate(limited, schedule)
    assert held.peak_activations.tolist()[0] == 9
    assert held.peak_host_activations.tolist() == [2, 0, 0, 0]
    capped = limited.replaced(host_limit=1)
    assert warmup(plan(capped, "pipemorph-published"))[0] == 8
    assert simulate(capped, plan(capped, "pipemorph-published")).peak_host_activations.max() <= 1


@pytest.mark.parametrize("planner", ["pipemorph-published", "pipemorph"])
@given(scenario=scenarios(limited=True), host=st.floats(0, 8))
def test_pipemorph_holds_no_more_than_device_and_host(
    planner: str, scenario: Scenario, host: float
) -> None:
    scenario = scenario.replaced(host_limit=host)
    if not scenario.is_plain:
        return
    held = simulate(scenario, plan(scenario, planner))
    assert (held.peak_host_activations <= host + 1e-9).all()


def test_a_plan_says_what_it_assumed() -> None:
    scenario = Scenario(activation_limit=[8, 8, 8, float("inf")]).with_delay(20, [0])
    blind = plan(scenario, "zerobubble").assumed
    assert blind == Assumptions(delay_ms=0.0, activation_limit=[8, 8, 8, float("inf")])
    assert blind.blind_to_delays
    assert not blind.slow_links
    assumed = plan(scenario, "pipemorph").assumed
    assert assumed.delay_ms == ((20, 20), (0, 0), (0, 0))
    assert assumed.warmup == (8, 5, 3, 1)
    assert assumed.slow_links
    assert not assumed.blind_to_delays


def reversed_gpipe(scenario: Scenario) -> Schedule:
    """GPipe under another name."""
    return plan(scenario, "gpipe")


def test_other_packages_add_planners_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(*, group: str) -> EntryPoints:
        return EntryPoints(
            [
                EntryPoint("theirs", f"{__name__}:reversed_gpipe", group),
                EntryPoint("broken", "no_such_package:plan", group),
            ]
        )

    monkeypatch.setattr(registry, "entry_points", found)
    assert names()[-2:] == ["broken", "theirs"]
    assert plan(EXAMPLE, "theirs").orders == plan(EXAMPLE, "gpipe").orders
    with pytest.raises(ScheduleError, match=r"'broken' \(no_such_package:plan\) cannot be loaded"):
        plan(EXAMPLE, "broken")


def test_planners_that_know_no_transport_are_told_what_messages_cost() -> None:
    slow = Scenario(message_bytes=1e6).with_delay(20, [0])
    over = Delegated(base_ms=1, copy_bytes_per_ms=2e6)  # 2 ms a message
    for name in ("pipemorph-published", "pipemorph", "search"):
        assumed = plan(slow, name, over=over).assumed
        assert assumed.delay_ms == ((22, 22), (2, 2), (2, 2))
    assert plan(slow, "zerobubble", over=over) == plan(slow, "zerobubble")
    assert plan(slow, "pipemorph-published").assumed.delay_ms == ((20, 20), (0, 0), (0, 0))
