"""Options that say what to run: a plan from a file, or a planner and its options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from pipesim.cli.options.plan_file import plan_from
from pipesim.cli.options.runtime import RuntimeName, runtime_named
from pipesim.cli.options.scenario import ScenarioOptions
from pipesim.cli.options.shared import one_starting
from pipesim.errors import ScenarioError
from pipesim.scenario import Scenario
from pipesim.schedule import Schedule
from pipesim.studies.planning import in_chunks
from pipesim.target import IDEAL, Target
from pipesim.transport import Transport
from planners import names as planner_names
from planners import plan as plan_with

if TYPE_CHECKING:
    from pipesim.studies.cluster import Cluster

__all__ = ["Chunks", "GroupSize", "PlanOptions", "PlannerOptions", "complete_planner"]

Chunks = Annotated[
    int | None,
    Option(
        metavar="V",
        min=1,
        help="Cut each stage into V interleaved chunks (default: none; 2 with the planner "
        "interleaved-1f1b).",
    ),
]

GroupSize = Annotated[
    int | None,
    Option(
        metavar="G",
        min=1,
        help="Let G micro-batches go through a chunk before the next, as Megatron-LM's "
        "--microbatch-group-size-per-virtual-pipeline-stage does (interleaved-1f1b; default: "
        "torch's, which is the number of devices where it divides that of micro-batches).",
    ),
]


def complete_planner(incomplete: str) -> list[str]:
    """Names of planners, for the shell."""
    return one_starting(*planner_names())(incomplete)


@dataclass(frozen=True)
class PlannerOptions:
    """A planner, and what it can be told besides the scenario."""

    planner: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help="Plan with this planner (see `pipesim planners`).",
            autocompletion=complete_planner,
        ),
    ] = None
    chunks: Chunks = None
    group_size: GroupSize = None
    runtime: RuntimeName = None

    @property
    def target(self) -> Target | None:
        """The runtime to plan for; None where nobody says."""
        return runtime_named(self.runtime)

    def adapted(self, scenario: Scenario) -> Scenario:
        """Return a scenario, cut into chunks already, with what operators do in the runtime."""
        return (self.target or IDEAL).adapted(scenario)

    def planned(
        self,
        scenario: ScenarioOptions,
        over: Transport,
        report: Callable[[str], None],
        *,
        planner: str = "",
        cluster: Cluster | None = None,
    ) -> tuple[Scenario, Schedule]:
        """Return the scenario, in the planner's chunks, and its plan for that transport.

        Parameters
        ----------
        planner : str
            Who plans where no planner is given.
        cluster : Cluster, optional
            Where it runs.

        Raises
        ------
        ScenarioError, ScheduleError, FormatError
            Options contradict each other, or there is no such plan.
        """
        name = self.planner or planner
        what = self.adapted(in_chunks(scenario.build(cluster=cluster), name, self.chunks))
        report(f"planning with {name}")
        return what, plan_with(
            what, name, over=over, group_size=self.group_size, runtime=self.target
        )


@dataclass(frozen=True)
class PlanOptions(PlannerOptions):
    """What to run: a plan from a file, or one made for the scenario."""

    plan: Annotated[
        Path | None, Argument(metavar="PLAN.json", help="A plan; or give --planner.")
    ] = None

    @property
    def made_by(self) -> str:
        """Whose orders are run; empty where a plan does not say."""
        return plan_from(self.plan).planner if self.plan else self.planner or ""

    def build(
        self,
        scenario: ScenarioOptions,
        over: Transport,
        report: Callable[[str], None],
        *,
        cluster: Cluster | None = None,
    ) -> tuple[Scenario, Schedule]:
        """Return the scenario and the plan; a plan from a file says its shape itself.

        Raises
        ------
        ScenarioError, ScheduleError, FormatError
            Options contradict each other or the plan, or there is no such plan.
        """
        if self.plan is None:
            if self.planner is None:
                raise ScenarioError("there is nothing to run: give a PLAN.json or --planner NAME")
            return self.planned(scenario, over, report, cluster=cluster)
        if self.planner is not None:
            raise ScenarioError("give a PLAN.json or --planner NAME, not both")
        if self.group_size is not None:
            raise ScenarioError("--group-size is for --planner: a plan says its order itself")
        schedule = plan_from(self.plan)
        what = scenario.build(plan=schedule, chunks=self.chunks, cluster=cluster)
        return self.adapted(what), schedule
