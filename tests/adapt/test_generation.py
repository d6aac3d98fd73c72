"""Generated traces have the quantiles that they were asked to have, and look like bursts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipesim.adapt.generation import HOUR_MS, generate
from pipesim.adapt.levels import changes, link_levels, slowest_levels
from pipesim.documents.delay_csv import save_trace
from pipesim.errors import ScenarioError
from tests import ROOT


@given(
    seed=st.integers(0, 2**63),
    links=st.integers(1, 30),
    minutes=st.integers(15, 90),
    median=st.integers(1, 500),
    over=st.integers(1, 2000),
)
def test_quantiles_are_exact(seed: int, links: int, minutes: int, median: int, over: int) -> None:
    trace = generate(
        links,
        duration_ms=minutes * 60e3,
        median_ms=median / 10,
        p99_ms=(median + over) / 10,
        seed=seed,
    )
    levels = slowest_levels(trace)
    assert levels.quantile(0.5) == median / 10
    assert levels.quantile(0.99) == (median + over) / 10
    assert 0.10 - 1e-9 <= 1 - levels.slow_share <= 0.25 + 1e-9
    assert (trace.links, trace.by, trace.end) == (links, "time", minutes * 60e3)
    assert trace.starts[0] == 0
    assert (np.diff(trace.starts) > 0).all()
    assert trace.starts[-1] < minutes * 60e3
    for values, step in ((trace.starts, 100), (trace.delay_ms, 0.1)):
        assert np.allclose(values / step, np.round(values / step), atol=1e-6)
    assert (trace.delay_ms[1:] != trace.delay_ms[:-1]).any(axis=(1, 2)).all()


def test_an_hour_is_like_production() -> None:
    """For most of the time some link is slow, often several, each a fraction of the time."""
    for seed in range(20):
        trace = generate(seed=seed)
        assert 150 <= sum(changes(trace)) <= 400
        lasting = np.diff([*trace.starts, HOUR_MS])
        slow = (trace.delay_ms[..., 0] > 0).sum(axis=1)
        assert lasting[slow >= 2].sum() > 0.2 * HOUR_MS
        assert all(0.01 < levels.slow_share < 0.6 for levels in link_levels(trace))


def test_bursts_and_levels_last_as_long_as_asked() -> None:
    """A day of one link with other times: means within a tenth."""
    trace = generate(7, duration_ms=24 * HOUR_MS, burst_ms=20_000, level_ms=5_000, seed=1)
    bursts, jumps, slow_ms = 0, 0, 0.0
    for link in range(7):
        delays = trace.delay_ms[:, link, 0]
        bursts += int(((delays[1:] > 0) & (delays[:-1] == 0)).sum())
        jumps += int(((delays[1:] > 0) & (delays[:-1] > 0) & (delays[1:] != delays[:-1])).sum())
        slow_ms += float(np.diff([*trace.starts, trace.end or 0])[delays > 0].sum())
    assert slow_ms / bursts == pytest.approx(20_000, rel=0.1)
    assert slow_ms / jumps == pytest.approx(5_000, rel=0.1)


def test_the_seed_decides() -> None:
    one, again, other = generate(seed=1), generate(seed=1), generate(seed=2)
    assert one.starts.tolist() == again.starts.tolist()
    assert one.delay_ms.tolist() == again.delay_ms.tolist()
    assert one.starts.tolist() != other.starts.tolist()


def test_the_shipped_hour_is_reproduced(tmp_path: Path) -> None:
    path = tmp_path / "hour.csv"
    save_trace(generate(), path)
    assert path.read_bytes() == (ROOT / "traces/production_hour.csv").read_bytes()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"links": 0}, "at least one link"),
        ({"seed": -1}, "a seed is at least 0"),
        ({"median_ms": 0.0}, "must be at least 0.1 ms"),
        ({"median_ms": 80.0}, "below the 99th percentile"),
        ({"median_ms": float("nan")}, "below the 99th percentile"),
        ({"burst_ms": 0.0}, "at least 100 ms"),
        ({"level_ms": float("nan")}, "at least 100 ms"),
        ({"duration_ms": 0.0}, "too short"),
        ({"duration_ms": 500.0}, "too short for bursts of 60000 ms"),
        ({"duration_ms": float("inf")}, "too many changes"),
        ({"duration_ms": float("nan")}, "too many changes"),
        ({"p99_ms": 1e15}, "makes longer delays too long"),
    ],
)
def test_what_cannot_be(options: dict[str, float], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        generate(**options)  # type: ignore[arg-type]
