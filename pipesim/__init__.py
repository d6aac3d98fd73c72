"""pipesim: simulate and plan pipeline-parallel training over slow links.

Scenario → Schedule → Program → Timeline: a planner makes a schedule, a schedule and a transport
make a program, an engine runs the program, and everything else reads its timeline.

>>> import pipesim
>>> scenario = pipesim.Scenario().with_delay(20, links=[0])
>>> schedule = pipesim.plan(scenario, "pipemorph")
>>> pipesim.simulate(scenario, schedule, "delegated").iteration_ms
410.0
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # as in typing, whose import takes longer than all else until Ctrl-C is heard

if TYPE_CHECKING:
    from pipesim.documents.plan_json import load_plan, save_plan
    from pipesim.documents.scenario_toml import load_scenario, save_scenario
    from pipesim.engine import evaluate, simulate
    from pipesim.errors import PipesimError
    from pipesim.scenario import Scenario
    from pipesim.schedule import Op, Schedule
    from pipesim.studies.comparison import compare
    from pipesim.timeline import Timeline
    from planners import plan

__all__ = [
    "Op",
    "PipesimError",
    "Scenario",
    "Schedule",
    "Timeline",
    "compare",
    "evaluate",
    "load_plan",
    "load_scenario",
    "plan",
    "save_plan",
    "save_scenario",
    "simulate",
]

__version__ = "0.1.0"

# Imported when first used: the nouns know no planner and no engine, and a command that
# needs none of them starts at once.
_HOMES = {
    "Op": "pipesim.schedule",
    "PipesimError": "pipesim.errors",
    "Scenario": "pipesim.scenario",
    "Schedule": "pipesim.schedule",
    "Timeline": "pipesim.timeline",
    "compare": "pipesim.studies.comparison",
    "load_plan": "pipesim.documents.plan_json",
    "load_scenario": "pipesim.documents.scenario_toml",
    "plan": "planners",
    "save_plan": "pipesim.documents.plan_json",
    "save_scenario": "pipesim.documents.scenario_toml",
    "evaluate": "pipesim.engine",
    "simulate": "pipesim.engine",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *_HOMES]
