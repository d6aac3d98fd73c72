"""A system is a planner and a transport, and its name is only a name."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim import Scenario, compare
from pipesim.errors import ScheduleError
from pipesim.studies.planning import Plans, in_chunks
from pipesim.studies.systems import SYSTEMS, default_systems, system
from pipesim.transport import Delegated, Nccl, Transport
from planners import chunks as chunks_of
from planners import names, plan
from tests.strategies import examples, scenarios, transports

SPELLED = {f"{one.planner}:{one.transport}": one for one in SYSTEMS.values()}


def test_a_pair_is_the_system_with_that_planner_and_transport() -> None:
    for pair, one in SPELLED.items():
        assert asdict(system(pair)) == asdict(one) | {"name": pair, "title": pair}


@examples(1 / 4)
@given(
    scenarios(limited=True),
    st.sampled_from(sorted(SPELLED)),
    st.sampled_from([None, None, 1, 2, 3]),
    st.sampled_from([0.0, 2.0]),
    st.none() | transports,
)
def test_every_spelling_of_a_system_gives_one_result(
    scenario: Scenario, pair: str, chunks: int | None, cost: float, over: Transport | None
) -> None:
    """Each is compared by itself, so that no plan is shared."""

    def outcome(name: str) -> dict[str, object] | str:
        try:
            result = compare(
                scenario, [name], chunks=chunks if scenario.is_plain else None,
                message_cost_ms=cost, transports=[over] if over else [],
            )  # fmt: skip
        except ScheduleError as error:
            return str(error)
        row = result.rows[0].as_dict()
        return {key: row[key] for key in row.keys() - {"system", "title", "plan_seconds"}}

    expected = outcome(SPELLED[pair].name)
    assert outcome(pair) == expected
    if isinstance(expected, str):
        return
    bound, took = expected["lower_bound_ms"], expected["iteration_ms"]
    assert isinstance(bound, float)
    assert isinstance(took, float)
    assert bound <= took * (1 + 1e-9) + 1e-9


@pytest.mark.parametrize("name", names())
def test_a_planner_decides_on_chunks_where_nobody_says(name: str) -> None:
    wanted = chunks_of(name)
    assert in_chunks(Scenario(), name).stages == 4 * (wanted or 1)
    assert in_chunks(Scenario(), name, 1) == Scenario()
    looped = Scenario().interleaved(3)
    assert in_chunks(looped, name) == looped
    if wanted is None:
        with pytest.raises(ScheduleError, match=f"{name} runs one stage on each device"):
            in_chunks(Scenario(), name, 2)
    else:
        assert in_chunks(Scenario(), name, 3) == looped
        over = "nccl" if name == "one-queue" else "ideal"
        assert plan(looped, name, over=over).placement == looped.placement


def test_systems_by_default_take_the_placement() -> None:
    v = Scenario(stages=4, placement=[0, 1, 1, 0])
    assert default_systems(v) == ("zerobubble", "pipemorph-cpu", "pipemorph")
    assert default_systems(Scenario(), 1) == default_systems(Scenario())
    assert default_systems(Scenario(), 2) == default_systems(Scenario().interleaved(2))


def test_plans_are_kept_apart_by_what_messages_cost_and_by_the_transport() -> None:
    plans, slow = Plans(), Scenario().with_delay(20, [0])

    def made(planner: str, over: Transport, *, healthy: bool = False) -> object:
        return plans.of(slow, planner, over, healthy=healthy)[0]

    assert made("zerobubble", Nccl()) is made("zerobubble", Delegated(), healthy=True)
    assert made("pipemorph", Delegated()) is made("pipemorph", Delegated())
    assert made("pipemorph", Delegated()) is not made("pipemorph", Delegated(), healthy=True)
    assert made("pipemorph", Delegated()) != made("pipemorph", Delegated(base_ms=30.0))
    assert made("pipemorph", Nccl()) == plan(slow, "pipemorph", over=Nccl())
    assert made("pipemorph", Nccl()) != plan(slow, "pipemorph")
