"""pipesim: simulate and plan pipeline-parallel training over slow links.

Scenario → Schedule → Program → Timeline. Whatever makes a schedule is a planner, whatever
runs a program is a backend, everything else reads a timeline.

>>> import pipesim
>>> scenario = pipesim.Scenario().with_delay(20, links=[0])
>>> schedule = pipesim.plan(scenario, "pipemorph")
>>> pipesim.simulate(scenario, schedule, "delegated").iteration_ms
410.0
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from pipesim.errors import PipesimError
from pipesim.scenario import Scenario
from pipesim.schedule import Op, Schedule
from pipesim.timeline import Timeline

if TYPE_CHECKING:
    from pipesim.comparison import compare as compare
    from pipesim.engine import simulate as simulate
    from pipesim.formats.plan_json import load_plan as load_plan
    from pipesim.formats.plan_json import save_plan as save_plan
    from pipesim.formats.scenario_toml import load_scenario as load_scenario
    from pipesim.formats.scenario_toml import save_scenario as save_scenario
    from planners import plan as plan

__all__ = [
    "Op",
    "PipesimError",
    "Scenario",
    "Schedule",
    "Timeline",
    "compare",
    "load_plan",
    "load_scenario",
    "plan",
    "save_plan",
    "save_scenario",
    "simulate",
]

__version__ = "0.1.0"

# The nouns know no planner and no backend: what joins them is imported when first used.
_LAZY = {
    "compare": "pipesim.comparison",
    "load_plan": "pipesim.formats.plan_json",
    "load_scenario": "pipesim.formats.scenario_toml",
    "plan": "planners",
    "save_plan": "pipesim.formats.plan_json",
    "save_scenario": "pipesim.formats.scenario_toml",
    "simulate": "pipesim.engine",
}


def __getattr__(name: str) -> object:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
