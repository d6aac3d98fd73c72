"""Options that several commands share, and what they build: scenarios, plans, transports."""

from pipesim.cli.options.data_parallel import DataParallelOptions
from pipesim.cli.options.plan import (
    Chunks,
    GroupSize,
    PlannerOptions,
    PlanOptions,
    complete_planner,
)
from pipesim.cli.options.plan_file import plan_from
from pipesim.cli.options.runtime import RuntimeName, made_for_another, runtime_named
from pipesim.cli.options.scenario import ScenarioOptions
from pipesim.cli.options.shared import (
    EngineName,
    Json,
    MessageCost,
    Quiet,
    engine_named,
    message_cost_ms,
    one_starting,
    parsed,
)
from pipesim.cli.options.testbed import TestbedOptions, head
from pipesim.cli.options.transport import MessageOptions, TransportOptions

__all__ = [
    "Chunks",
    "DataParallelOptions",
    "EngineName",
    "GroupSize",
    "Json",
    "MessageCost",
    "MessageOptions",
    "PlanOptions",
    "PlannerOptions",
    "Quiet",
    "RuntimeName",
    "ScenarioOptions",
    "TestbedOptions",
    "TransportOptions",
    "complete_planner",
    "engine_named",
    "head",
    "made_for_another",
    "message_cost_ms",
    "one_starting",
    "parsed",
    "plan_from",
    "runtime_named",
]
