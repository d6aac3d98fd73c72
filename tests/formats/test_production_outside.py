from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pipesim.formats.production import read_production
from pipesim.formats.production.outside import outside_ms
from pipesim.scenario import Scenario
from tests.formats.production_traces import AROUND_MS, SHIPPED, job, surrounded


def read(frame: pd.DataFrame, path: Path) -> dict[str, np.ndarray]:
    frame.to_parquet(path / "t.parquet")
    return outside_ms(read_production(path / "t.parquet"))


@pytest.fixture
def frame() -> pd.DataFrame:
    """Stage 1 of worker 1 is slow: all wait for it, some longer than others."""

    def scenario(step: int, dp_rank: int) -> Scenario:
        return Scenario(stages=3, microbatches=4, forward_ms=[10, 10 + 30 * dp_rank, 10])

    return job(scenario, steps=[4, 7])


def test_waiting_is_no_part_of_what_an_operation_takes(frame: pd.DataFrame, tmp_path: Path) -> None:
    whole = surrounded(frame)
    waiting = whole[whole.optype == "optimizer-clip-main-grad"].duration
    assert 1e3 * waiting.max() > 10 * AROUND_MS["optimizer-clip-main-grad"]
    found = read(whole, tmp_path)
    assert list(found) == list(AROUND_MS)
    for name, own in found.items():
        assert own.shape == (2, 2, 3, 1), name
        there = own if name != "embedding-grads-all-reduce" else own[:, :, [0, 2]]
        assert there == pytest.approx(np.full(there.shape, AROUND_MS[name])), name
    assert np.isnan(found["embedding-grads-all-reduce"][:, :, 1]).all()


def test_each_takes_its_own_time(frame: pd.DataFrame, tmp_path: Path) -> None:
    def took(name: str, dp_rank: int, device: int) -> float:
        return AROUND_MS[name] if name == "params-all-gather" else 5 + 3 * dp_rank + device

    found = read(surrounded(frame, took), tmp_path)
    expected = 5 + 3 * np.arange(2)[:, None] + np.arange(3)
    for name in ("gc", "grads-reduce-scatter", "optimizer-clip-main-grad", "optimizer"):
        assert found[name][1, ..., 0] == pytest.approx(expected), name


def test_several_of_a_name_stand_in_their_order(frame: pd.DataFrame, tmp_path: Path) -> None:
    whole = surrounded(frame)
    first = whole[whole.optype == "grads-reduce-scatter"]
    second = first.assign(start_ts=first.start_ts.max() + 1e-3, duration=0.02, seq_id=1)
    found = read(pd.concat([second, whole]), tmp_path)["grads-reduce-scatter"]
    assert found.shape == (2, 2, 3, 2)
    assert found[..., 0] == pytest.approx(np.full((2, 2, 3), AROUND_MS["grads-reduce-scatter"]))
    assert found[..., 1] == pytest.approx(np.full((2, 2, 3), 20))


def test_what_is_not_known_or_not_there(frame: pd.DataFrame, tmp_path: Path) -> None:
    whole = surrounded(frame)
    whole = whole[whole.optype != "gc"]
    whole.loc[whole.optype == "optimizer", "optype"] = "evaluation"
    whole = whole[~((whole.optype == "grads-reduce-scatter") & (whole.stage == 2))]
    found = read(whole, tmp_path)
    assert "gc" not in found
    assert "optimizer" not in found
    assert "evaluation" not in found
    assert np.isnan(found["grads-reduce-scatter"][:, :, 2]).all()
    assert read(frame, tmp_path) == {}


def test_clocks_that_are_set_right_are_so_outside_too(frame: pd.DataFrame, tmp_path: Path) -> None:
    whole = surrounded(frame)
    whole.loc[(whole.stage == 1) & (whole.dp_rank == 0), "start_ts"] += 50
    found = read(whole, tmp_path)
    for name in ("grads-reduce-scatter", "optimizer-clip-main-grad"):
        assert found[name] == pytest.approx(np.full((2, 2, 3, 1), AROUND_MS[name]), abs=6), name


def test_only_the_ranks_that_are_read_count(frame: pd.DataFrame, tmp_path: Path) -> None:
    """Each stage has two ranks; the second, which computes less, logs other times."""
    whole = surrounded(frame)
    peer = whole.assign(rank=whole["rank"] + 100)
    outside = ~peer.optype.str.contains("forward|backward")
    peer.loc[outside, "duration"] += 1
    peer.loc[~outside, "duration"] *= 0.5
    found = read(pd.concat([whole, peer]), tmp_path)
    assert found["optimizer"] == pytest.approx(np.full((2, 2, 3, 1), AROUND_MS["optimizer"]))


def test_the_shipped_job() -> None:
    found = outside_ms(read_production(SHIPPED))
    assert {name: own.shape for name, own in found.items()} == dict.fromkeys(
        AROUND_MS, (32, 2, 4, 1)
    )
    assert np.nanmedian(found["grads-reduce-scatter"]) == pytest.approx(50.5, abs=0.1)
    # 674 ms in the log of the last stage, which waits for the first.
    assert np.nanmedian(found["embedding-grads-all-reduce"]) == pytest.approx(10.5, abs=0.1)
