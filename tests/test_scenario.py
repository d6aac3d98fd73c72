"""Scenarios refuse impossible values, and are made from one another."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from pipesim import Scenario
from pipesim.errors import ScenarioError
from pipesim.transport import Delegated, Isolated, Nccl, transport


def test_values_broadcast_from_a_number_or_one_a_stage() -> None:
    scenario = Scenario(stages=2, microbatches=3, forward_ms=[1, 2], backward_ms=4)
    assert scenario.forward_ms.tolist() == [[1, 1, 1], [2, 2, 2]]
    assert scenario.fused_backward_ms.tolist() == [[14] * 3] * 2
    assert not scenario.forward_ms.flags.writeable


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stages": 0}, "stages must be a whole number of at least 1, not 0"),
        ({"stages": True}, "stages must be a whole number"),
        ({"microbatches": 2.5}, "microbatches must be a whole number of at least 1, not 2.5"),
        ({"forward_ms": -1.0}, "forward_ms must be a number from 0 to 1e+15, not -1"),
        ({"weight_ms": math.nan}, "weight_ms must be a number from 0 to 1e+15, not nan"),
        ({"backward_ms": math.inf}, "backward_ms must be a number from 0 to 1e+15, not inf"),
        (
            {"forward_ms": [1, 2, 3]},
            "forward_ms has shape [3], expected one number or [4] or [4, 12]",
        ),
        ({"forward_ms": "fast"}, "forward_ms must hold numbers"),
        ({"forward_ms": [[1], [2, 3]]}, "forward_ms must hold numbers, in rows of one length"),
        ({"latency_ms": [1, 2]}, "latency_ms has shape [2], expected one number or [3] or [3, 2]"),
        ({"activation_limit": -1}, "activation_limit must be a number from 0 to 1e+15, not -1"),
        ({"released_by_b": 1.5}, "released_by_b must be between 0 and 1, not 1.5"),
        ({"placement": [0, 1, 2, 2.7]}, "placement [0, 1, 2, 2.7] must be a list of devices"),
        ({"placement": [0, 1, 2, 10**12]}, "must use devices 0 … D−1, all of them"),
        ({"forward_ms": 10**400}, "forward_ms must hold numbers"),
        ({"backward_ms": 1e308}, "backward_ms must be a number from 0 to 1e+15, not 1e+308"),
        ({"name": 3}, "name must be text, not 3"),
        ({"placement": [0, 1]}, "placement names 2 devices for 4 stages"),
        ({"placement": [0, 1, 3, 1]}, "must use devices 0 … D−1, all of them"),
        (
            {"placement": [0, 1, 1, 0], "latency_ms": [0, 1, 0]},
            "link 1 joins stages 1 and 2, both on device 1: it cannot have a delay",
        ),
    ],
)
def test_impossible_values_say_so(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        Scenario(**changes)
    assert message in str(caught.value)


def test_delays_add_up_and_have_a_direction() -> None:
    scenario = Scenario().with_delay(20, [0], directions=["down"])
    scenario = scenario.with_delay(5, [0, 2], kind="latency")
    assert scenario.delay_ms.tolist() == [[25, 5], [0, 0], [5, 5]]
    assert scenario.slow_links == (0, 2)
    assert scenario.without_delay() == Scenario()


def test_a_message_cost_is_for_messages_between_devices() -> None:
    folded = Scenario(stages=4, placement=[0, 1, 1, 0]).with_delay(20, [0], directions=["down"])
    assert folded.with_message_cost(2).delay_ms.tolist() == [[22, 2], [0, 0], [2, 2]]
    assert folded.with_message_cost([2, 5, 7]).delay_ms.tolist() == [[22, 2], [0, 0], [7, 7]]
    assert Scenario(stages=1).with_message_cost(2) == Scenario(stages=1)
    with pytest.raises(ScenarioError, match="message cost must be a number from 0"):
        Scenario().with_message_cost(-1)


def test_unknown_links_are_refused() -> None:
    with pytest.raises(ScenarioError, match=r"there is no link 3 \(links: 0 to 2\)"):
        Scenario().with_delay(1, [3])
    with pytest.raises(ScenarioError, match="there is no link -1"):
        Scenario().with_delay(1, [-1])
    with pytest.raises(ScenarioError, match="none: there is one stage"):
        Scenario(stages=1).with_delay(1, [0])


def test_placements_by_name() -> None:
    assert Scenario.place("interleaved", 2, 2) == (0, 1, 0, 1)
    assert Scenario.place("v", 3, 3) == (0, 1, 2, 2, 1, 0, 0, 1, 2)
    with pytest.raises(ScenarioError, match="unknown placement"):
        Scenario.place("w", 2)  # type: ignore[arg-type]
    with pytest.raises(ScenarioError, match="one chunk per device"):
        Scenario.place("plain", 2, 2)


def test_interleaving_follows_the_physical_links() -> None:
    cut = Scenario(stages=3, message_bytes=[1.0, 2.0]).with_delay(6, [1]).interleaved(2)
    assert cut.placement == (0, 1, 2, 0, 1, 2)
    assert cut.delay_ms[:, 0].tolist() == [0, 6, 0, 0, 6]
    assert cut.forward_ms.sum() == 3 * 12 * 10
    back = Scenario(stages=2).with_delay(6, [0], directions=["down"]).interleaved(2)
    assert back.delay_ms.tolist() == [[6, 0], [0, 6], [6, 0]]  # stage 1 → 2 runs back over link 0
    with pytest.raises(ScenarioError, match="only a plain placement"):
        cut.interleaved(2)


def test_equality_is_by_value() -> None:
    assert Scenario() == Scenario(forward_ms=np.full((4, 12), 10))
    assert Scenario() != Scenario(name="other")
    assert Scenario() != "scenario"


def test_transports_by_name_and_their_options() -> None:
    assert transport("nccl") == Nccl()
    assert str(transport(Delegated(delegates=2))) == "delegated"
    for make, message in [
        (lambda: transport("udp"), "unknown transport 'udp': one of ideal, nccl"),
        (lambda: Nccl(base_ms=-1), "nccl: base_ms must not be -1"),
        (lambda: Nccl(base_ms=math.inf), "nccl: base_ms must not be inf"),
        (lambda: Nccl(p2p_streams="one"), "unknown p2p_streams 'one'"),  # type: ignore[arg-type]
        (lambda: Delegated(delegates=0), "delegates must be above 0"),
        (lambda: Delegated(copy_bytes_per_ms=0.0), "copy_bytes_per_ms must be above 0"),
        (lambda: Isolated(compute_slowdown=0.5), "compute_slowdown must be at least 1"),
    ]:
        with pytest.raises(ScenarioError) as caught:
            make()
        assert message in str(caught.value)
