"""The figure of a job: what it draws is what the explanation says."""

from __future__ import annotations

import pytest

from pipesim.fidelity.jobs.stragglers import explain_job
from pipesim.formats.production import read_production
from pipesim.plot.job import steps
from tests.formats.production_traces import JOB


def test_each_bar_is_a_step() -> None:
    found = explain_job(read_production(JOB))
    (axes,) = steps(found, title="a job").axes
    bars = {bar.get_gid(): bar.get_width() for bar in axes.patches}
    assert bars == {
        "as it is": pytest.approx(found.simulated_ms),
        "without dp rank 1, stage 2": pytest.approx(found.suspects[0].without_ms),
        "without stage 3, in every worker": pytest.approx(found.suspects[1].without_ms),
        "without all of them": pytest.approx(found.healthy_ms),
    }
    assert axes.get_title(loc="left") == "a job"
    assert f"{found.simulated_ms:,.1f} ms" in {text.get_text() for text in axes.texts}
