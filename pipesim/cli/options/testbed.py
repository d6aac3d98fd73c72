"""Options that say on which testbed: what its messages cost is calibrated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from typer import Option

from pipesim.cli.options.shared import one_starting
from pipesim.documents.words import described
from pipesim.errors import ScenarioError
from pipesim.scenario import Scenario
from pipesim.target import Target

if TYPE_CHECKING:
    from pipesim.studies.cluster import Cluster

__all__ = ["TestbedOptions", "head"]


def _complete(incomplete: str) -> list[str]:
    """Names of testbeds, for the shell."""
    from pipesim.fidelity.shipped import shipped

    return one_starting(*shipped().testbeds)(incomplete)


@dataclass(frozen=True)
class TestbedOptions:
    """A testbed, and how many ranks of the job share one of its hosts."""

    testbed: Annotated[
        str | None,
        Option(
            metavar="NAME|FILE",
            help="Let messages cost what they do on this testbed: h800, a10, or a file of `pipesim "
            "calibrate` (FILE:NAME if it has several). Planners that know of delays plan for it. "
            "Other options of transports go before it.",
            autocompletion=_complete,
        ),
    ] = None
    ranks_per_host: Annotated[
        int | None,
        Option(
            metavar="N",
            min=1,
            help="With --testbed: number of ranks that send at once through one host (default 1).",
        ),
    ] = None

    def cluster(self, message_cost: str | None = None) -> Cluster | None:
        """Return the testbed as this job uses it; None if none is given.

        Parameters
        ----------
        message_cost : str, optional
            What ``--message-cost`` gives.

        Raises
        ------
        ScenarioError, FormatError
            There is no such testbed, or the options contradict each other.
        """
        if self.testbed is None:
            if self.ranks_per_host is not None:
                raise ScenarioError("--ranks-per-host is for --testbed")
            return None
        if message_cost is not None:
            raise ScenarioError(
                "--message-cost contradicts --testbed, which says what messages cost"
            )
        from pipesim.studies.cluster import cluster  # and with it measured runs

        return cluster(self.testbed, self.ranks_per_host or 1)


def head(
    scenario: Scenario,
    message_cost_ms: float,
    cluster: Cluster | None,
    *,
    runtime: Target | None = None,
    slow: str | None = None,
) -> list[str]:
    """Return the first lines of a result: what was run, on which testbed and in which runtime.

    ``slow`` says which links are slow, where that is more than the scenario's.
    """
    lines = [described(scenario, message_cost_ms, slow=slow)]
    if cluster:
        lines.append(cluster.described(scenario))
    return [*lines, runtime.described] if runtime else lines
