"""Options that make the scenario one of several data-parallel ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated

from typer import Option

from pipesim.adapt.mapping import Delay, Node
from pipesim.adapt.ring import AllReduce
from pipesim.cli import parsing
from pipesim.cli.options.shared import parsed
from pipesim.errors import ScenarioError
from pipesim.scenario import Scenario

if TYPE_CHECKING:
    from pipesim.cli.options.scenario import Injection
    from pipesim.studies.cluster import Cluster

__all__ = ["DataParallelOptions"]

MOST_RANKS = 1024
"""More is a typing error."""


@dataclass(frozen=True)
class DataParallelOptions:
    """How many ranks, the slow links between them, and the gradients that they sum up."""

    dp: Annotated[
        int | None,
        Option(
            metavar="D",
            help="Run D data-parallel ranks, each a pipeline like this one, whose stages "
            "all-reduce their gradients. --slow and --link are of rank 0's pipeline, --slow "
            "LINK:RANK=TIME of another's.",
        ),
    ] = None
    slow_dp: Annotated[
        list[str] | None,
        Option(
            metavar="STAGE[:RANK]=TIME",
            help="With --dp: delay the link between the nodes of a stage in this rank (default 0) "
            "and the next, both ways. Repeatable.",
        ),
    ] = None
    gradient_mib: Annotated[
        float | None,
        Option(
            metavar="MIB",
            help="With --dp: gradients of one stage, in MiB (default 7200: 6 layers of a 7B GPT, 4 "
            "bytes each).",
        ),
    ] = None
    gradient_bytes: Annotated[float | None, Option(metavar="BYTES", help="The same in bytes.")] = (
        None
    )
    bucket_mib: Annotated[
        float | None,
        Option(
            metavar="MIB",
            help="With --dp: size of the buckets that are all-reduced one after the other (default "
            "152.6: Megatron-LM's 40 million parameters; more from 41 ranks on).",
        ),
    ] = None
    dp_bytes_per_ms: Annotated[
        float | None,
        Option(
            metavar="RATE",
            help="With --dp: bandwidth of a link of the all-reduce (default: the testbed's, or "
            "only delays count).",
        ),
    ] = None
    overlap: Annotated[
        bool | None,
        Option(
            "--overlap/--no-overlap",
            help="With --dp: all-reduce a stage's gradients as soon as that stage has ended on all "
            "ranks, or wait for all stages to end (default: --overlap).",
        ),
    ] = None

    def check_used(self) -> None:
        """Raise :class:`ScenarioError` if an option is given that says something of no rank."""
        for option in fields(self):
            if self.dp is None and getattr(self, option.name) not in (None, []):
                name = (
                    "--no-overlap"
                    if self.overlap is False and option.name == "overlap"
                    else (f"--{option.name.replace('_', '-')}")
                )
                raise ScenarioError(f"{name} is for data-parallel ranks: give --dp, too")
        if self.dp is not None and not 2 <= self.dp <= MOST_RANKS:
            raise ScenarioError(f"--dp must be from 2 to {MOST_RANKS}, not {self.dp}")

    def reduction(self, cluster: Cluster | None = None) -> AllReduce:
        """Return the all-reduce of one stage's gradients.

        Raises
        ------
        ScenarioError
            A size or the bandwidth cannot be, or the size of gradients is given twice.
        """
        if self.gradient_mib is not None and self.gradient_bytes is not None:
            raise ScenarioError("give --gradient-mib or --gradient-bytes, not both")
        given = {
            "--gradient-mib": ("gradient_bytes", _bytes(self.gradient_mib)),
            "--gradient-bytes": ("gradient_bytes", self.gradient_bytes),
            "--bucket-mib": ("bucket_bytes", _bytes(self.bucket_mib)),
            "--dp-bytes-per-ms": ("bytes_per_ms", self.dp_bytes_per_ms),
        }
        values = {} if cluster is None else {"bytes_per_ms": cluster.link_bytes_per_ms}
        for option, (field, value) in given.items():
            if value is not None:
                try:
                    AllReduce(**{field: value})
                except ScenarioError as error:
                    raise ScenarioError(f"{option}: {error}") from None
                values[field] = value
        return AllReduce(**values)

    def rings(self, scenario: Scenario, kind: Injection) -> Mapping[tuple[Node, Node], Delay]:
        """Return the slow ways between ranks.

        Parameters
        ----------
        scenario : Scenario
            The pipeline of a rank.
        kind : {"occupancy", "latency"}
            Where messages spend the delay, should they be those of a pipeline.

        Raises
        ------
        ScenarioError
            A stage or rank does not exist, or a link is given two delays.
        """
        assert self.dp is not None
        result: dict[tuple[Node, Node], Delay] = {}
        for text in self.slow_dp or ():
            slow = parsed("--slow-dp", parsing.slow_ring, text)
            counts = {"stage": (slow.stage, scenario.stages), "rank": (slow.rank, self.dp)}
            for what, (number, count) in counts.items():
                if number >= count:
                    known = f"{what}s: 0 to {count - 1}"
                    raise ScenarioError(f"--slow-dp {text}: there is no {what} {number} ({known})")
            ends = Node(slow.rank, slow.stage), Node((slow.rank + 1) % self.dp, slow.stage)
            if ends in result:
                raise ScenarioError(f"--slow-dp {text}: this link is given two delays")
            result[ends] = result[ends[::-1]] = Delay(**{f"{kind}_ms": slow.delay_ms})
        return {ends: delay for ends, delay in result.items() if any(delay)}


def _bytes(mib: float | None) -> float | None:
    return None if mib is None else mib * 2**20
