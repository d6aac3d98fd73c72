"""Memory of a scenario whose stages are cut into chunks: nothing is lost and nothing added."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pipesim import Scenario, compare, plan, simulate
from tests.strategies import scenarios


@given(scenarios(limited=True), st.integers(1, 4), st.floats(1, 1e9))
def test_the_chunks_of_a_device_save_as_much_as_its_stage_did(
    scenario: Scenario, chunks: int, size: float
) -> None:
    assume(scenario.is_plain)
    whole = scenario.replaced(activation_bytes=size, host_limit=3.0)
    cut = whole.interleaved(chunks)
    assert cut.activation_bytes * chunks == pytest.approx(size)
    # A device and its host hold as many bytes as before.
    for field in ("activation_limit", "host_limit"):
        before, after = getattr(whole, field), getattr(cut, field)
        assert after * cut.activation_bytes == pytest.approx(before * size)


def test_gpipe_holds_as_many_bytes_in_chunks_as_in_one() -> None:
    """All forwards come first: a device holds N micro-batches, however its stage is cut."""
    whole = Scenario(microbatches=6, activation_bytes=120.0, activation_limit=2)
    for chunks in (1, 2, 3):
        cut = whole.interleaved(chunks)
        timeline = simulate(cut, plan(cut, "gpipe"))
        assert (timeline.peak_activations * cut.activation_bytes).tolist() == [720.0] * 4
        assert timeline.peak_host_bytes.tolist() == [480.0] * 4


def test_an_interleaved_system_s_host_memory_is_counted_in_whole_stages_and_in_bytes() -> None:
    """Device 0 runs 2·3 + 4 forwards of half a stage ahead, and one more: it holds 5.5 stages.

    Each device further on runs two less ahead. With room for 4.5 the hosts take what is over.
    """
    scenario = Scenario(activation_limit=4.5, activation_bytes=100.0)
    row = compare(scenario, ["interleaved-1f1b"]).rows[0]
    assert row.peak_activations == (5.5, 4.5, 3.5, 2.5)
    assert row.host_activations == (1, 0, 0, 0)
    assert row.host_bytes == (100, 0, 0, 0)
