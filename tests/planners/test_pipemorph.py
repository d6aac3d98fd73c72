"""Algorithm 2: how much slackness a slow link may take from those above it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim import Scenario, plan
from pipesim.analysis import slackness, warmup
from planners.pipemorph import replanned_warmup

ENDLESS = 10_000.0
"""A delay that no slackness absorbs."""


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        (0, [12, 5, 3, 1]),  # Δ₀ ≤ 12 − 5 − 0
        (1, [12, 10, 3, 1]),  # Δ₁ ≤ 12 − 3 − 2, and 2 for link 0
        (2, [12, 10, 8, 1]),  # Δ₂ ≤ 12 − 1 − 4, and 2 for each link above
    ],
)
def test_a_link_takes_all_but_two_forwards_for_each_link_above(
    link: int, expected: list[int]
) -> None:
    scenario = Scenario().with_delay(ENDLESS, [link])
    assert replanned_warmup(scenario) == expected
    assert list(warmup(plan(scenario, "pipemorph-published"))) == expected


@given(st.data())
def test_below_an_endless_delay_all_micro_batches_are_warm_up(data: st.DataObject) -> None:
    """The links above have 2 each, which takes the first stage to exactly N."""
    stages = data.draw(st.integers(2, 8), label="stages")
    link = data.draw(st.integers(0, stages - 2), label="link")
    below = 1 + 2 * (stages - 2 - link)
    n = data.draw(st.integers(below + 2 + 2 * link, 40), label="micro-batches")
    scenario = Scenario(stages=stages, microbatches=n).with_delay(ENDLESS, [link])
    found = replanned_warmup(scenario)
    assert found[0] == n
    assert list(slackness(found[: link + 1])) == [2] * link
    assert found[link + 1 :] == list(range(below, 0, -2))


@pytest.mark.parametrize(("delay", "expected"), [(50, 6), (51, 7), (60, 7), (61, 7), (200, 7)])
def test_up_to_there_a_link_gets_what_its_delay_needs(delay: float, expected: int) -> None:
    """With operators of 10 ms, slackness Δ holds a delay of 10·(Δ − 1); at most 12 − 5 is left."""
    scenario = Scenario().with_delay(delay, [0])
    assert slackness(replanned_warmup(scenario)) == (expected, 2, 2)


def test_a_healthy_pipeline_has_slackness_two_everywhere() -> None:
    assert replanned_warmup(Scenario(stages=5, microbatches=20)) == [9, 7, 5, 3, 1]


def test_two_come_before_what_is_left_for_the_links_above() -> None:
    """With six micro-batches N − x − 2i is 1 for every link; the first stage runs out of them."""
    assert replanned_warmup(Scenario(microbatches=6)) == [6, 5, 3, 1]
