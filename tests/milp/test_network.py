"""What is taken for granted of schedules."""

from __future__ import annotations

from hypothesis import given

from milp.network import Network
from pipesim.engine import evaluate
from pipesim.scenario import Scenario
from pipesim.schedule import Schedule
from tests.strategies import cases, examples


@examples(2)
@given(cases())
def test_adapted_schedules_are_in_order_and_no_longer(case: tuple[Scenario, Schedule]) -> None:
    scenario, schedule = case
    network = Network(scenario)
    adapted = network.adapted(schedule)
    adapted.check_fits(scenario)
    groups = network.groups
    # Where a BW is split, its W is not last in the queue.
    kinds = "FB" if any(op.kind == "BW" for op in schedule.ops) else "FBW"
    for stage in range(scenario.stages):
        for kind in kinds:
            for group in set(groups):
                run = [
                    op.microbatch
                    for order in adapted.orders
                    for op in order
                    if (op.kind[0], op.stage, groups[op.microbatch]) == (kind, stage, group)
                ]
                assert run == [m for m, other in enumerate(groups) if other == group]
    # The same steps, by operators that take the same time; BW counts as B and W.
    for was, now in zip(schedule.orders, adapted.orders, strict=True):
        before, after = (
            [(kind, op.stage, groups[op.microbatch]) for op in order for kind in op.kind]
            for order in (was, now)
        )
        assert before == after
    assert network.makespan_ms(adapted) <= evaluate(scenario, schedule) * (1 + 1e-9)
