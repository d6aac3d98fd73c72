"""The figure of a job along a trace."""

from __future__ import annotations

import numpy as np
import pytest

from pipesim.delays import DelayTrace
from pipesim.plot.pace import pace
from pipesim.scenario import Scenario
from pipesim.studies.adaptation import adapt

SCENARIO = Scenario(stages=2, microbatches=4)


def test_each_system_has_a_line_with_its_pace() -> None:
    trace = DelayTrace([6, 12], [[20], [0]], by="iteration", end=20)
    result = adapt(SCENARIO, trace, ["1f1b", "pipemorph"])
    above, below = pace(result, title="mine").axes
    lines = {str(line.get_gid()): line for line in below.lines}
    assert list(lines) == ["1f1b", "pipemorph", "oracle"]
    drawn = np.asarray(lines["1f1b"].get_ydata())
    assert drawn == pytest.approx(60_000 / result.outcomes["1f1b"].duration_ms)
    assert (below.get_xlim(), below.get_xlabel()) == ((0, 20), "iteration")
    assert above.get_title(loc="left") == "mine"


def test_failures_are_marked() -> None:
    trace = DelayTrace([2000, 6000], [[np.inf], [0]], end=9000)
    above, below = pace(adapt(SCENARIO, trace, ["1f1b"])).axes
    assert [text.get_text() for text in above.texts] == ["failed"]
    assert below.get_xlabel() == "time (min)"
    assert below.get_xlim() == pytest.approx((0, 9000 / 60_000))
