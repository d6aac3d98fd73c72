"""Re-planning for a job that really runs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim.adapt.replanner import Replanner, TorchPlan
from pipesim.engine import evaluate
from pipesim.formats.torch_csv import load_torch_csv
from pipesim.scenario import Scenario
from pipesim.target import target
from pipesim.transport import Ideal

HEALTHY = np.full((3, 2), 0.4)


def told(replan: Replanner, *measured: np.ndarray) -> list[TorchPlan | None]:
    return [replan.after(times) for times in measured]


def late(link: int, delay_ms: float) -> np.ndarray:
    times = HEALTHY.copy()
    times[link] += delay_ms
    return times


def test_the_first_plan_is_for_healthy_links_under_the_rules_of_torch() -> None:
    first = Replanner(Scenario(), direct=Ideal(0.5)).first()
    there = target("torch").adapted(Scenario())
    assert first.delegated == frozenset()
    assert first.expected_ms == evaluate(there, first.schedule, Ideal(0.5)) == 391.5


@given(link=st.integers(0, 2), delay_ms=st.sampled_from([5.0, 20.0, 60.0]))
def test_it_plans_once_a_link_is_late_and_once_it_is_not(link: int, delay_ms: float) -> None:
    replan = Replanner(Scenario(), direct=Ideal())
    plans = told(replan, *[HEALTHY] * 5, *[late(link, delay_ms)] * 3, *[HEALTHY] * 3)
    assert [plan is not None for plan in plans] == [False] * 5 + [True, False, False] * 2
    there = target("torch").adapted(Scenario())
    slow, recovered = plans[5], plans[8]
    assert slow is not None
    assert recovered is not None
    assert slow.expected_ms == evaluate(
        there.with_delay(delay_ms, links=[link]), slow.schedule, Ideal()
    )
    assert slow.delegated <= {(link, "down"), (link, "up")}
    assert recovered.schedule == replan.first().schedule
    assert recovered.expected_ms == 390


def test_late_links_are_delegated_where_messages_block() -> None:
    replan = Replanner(Scenario())  # NCCL, as torch uses it
    plan = told(replan, *[HEALTHY] * 5, late(0, 20))[-1]
    assert plan is not None
    assert plan.delegated == {(0, "down"), (0, "up")}
    assert plan.expected_ms < 420


def test_its_rows_are_a_schedule_of_torch(tmp_path: pytest.TempPathFactory) -> None:
    plan = told(Replanner(Scenario()), *[HEALTHY] * 5, late(1, 20))[-1]
    assert plan is not None
    file = tmp_path / "plan.csv"  # type: ignore[operator]
    file.write_text("\n".join(plan.rows))
    assert load_torch_csv(file).orders == plan.schedule.orders
