"""Options that describe a scenario, or what changes in that of a file or a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast, get_args

import numpy as np
from typer import Option

from pipesim.cli import parsing
from pipesim.cli.options.plan_shape import check_fits, check_shape
from pipesim.cli.options.shared import one_starting, parsed
from pipesim.cli.parsing import SlowLink
from pipesim.documents.scenario_toml import load_scenario
from pipesim.errors import ScenarioError
from pipesim.scenario import LARGEST, Array, Scenario
from pipesim.schedule import Schedule

if TYPE_CHECKING:
    from pipesim.studies.cluster import Cluster

__all__ = ["ScenarioOptions"]

MOST_OPERATORS = 1_000_000
"""Of one kind, as in scenario files: more is a typing error."""

Injection = Literal["occupancy", "latency"]


def _injection(text: str) -> Injection:
    if text not in get_args(Injection):
        raise ScenarioError(f"{text!r} is neither occupancy nor latency")
    return cast(Injection, text)


@dataclass(frozen=True)
class ScenarioOptions:
    """A scenario, from a file or from numbers, with slow links on top."""

    scenario: Annotated[
        Path | None,
        Option(metavar="FILE", help="Read a scenario from TOML, instead of the next five options."),
    ] = None
    stages: Annotated[
        int | None, Option(metavar="S", help="Number of pipeline stages (default 4).")
    ] = None
    microbatches: Annotated[
        int | None, Option(metavar="N", help="Number of micro-batches per iteration (default 12).")
    ] = None
    forward: Annotated[
        str | None,
        Option(
            metavar="TIME",
            help="Time of F, the forward: one, or a comma list with one per stage (default 10ms).",
        ),
    ] = None
    backward: Annotated[
        str | None,
        Option(metavar="TIME", help="Time of B, the backward for the input (default 10ms)."),
    ] = None
    weight: Annotated[
        str | None,
        Option(metavar="TIME", help="Time of W, the backward for the weights (default 10ms)."),
    ] = None
    delay: Annotated[
        str | None,
        Option(
            metavar="TIME",
            help="Delay messages on the links of --link by this, such as 20ms, 1.5s or 300us.",
        ),
    ] = None
    link: Annotated[
        list[str] | None,
        Option(
            metavar="LINKS",
            help="Links that --delay delays, such as 0 or 0,2. Link i joins stages i and i+1.",
        ),
    ] = None
    slow: Annotated[
        list[str] | None,
        Option(
            metavar="LINK=TIME",
            help="Delay one link: 2=5ms both ways, '0>1=5ms' activations only, '1>0=5ms' gradients "
            "only. Repeatable.",
        ),
    ] = None
    injection: Annotated[
        str,
        Option(
            metavar="KIND",
            autocompletion=one_starting(*get_args(Injection)),
            help="Where messages spend a delay. occupancy: in a busy kernel on the sender, as in "
            "published experiments; latency: in flight.",
        ),
    ] = "occupancy"
    activation_limit: Annotated[
        str | None,
        Option(
            "--activation-limit",
            "--memory-limit",
            metavar="COUNT",
            help="Number of activations that fit on a device: one, or a comma list with one per "
            "device. 1 is what a device saves for a micro-batch in all its stages.",
        ),
    ] = None

    message_mib: Annotated[
        float | None,
        Option(
            metavar="MIB", help="Size of one message, in MiB (default: none, or the testbed's)."
        ),
    ] = None
    message_bytes: Annotated[float | None, Option(metavar="BYTES", help="The same in bytes.")] = (
        None
    )

    def build(
        self,
        *,
        plan: Schedule | None = None,
        chunks: int | None = None,
        cluster: Cluster | None = None,
        rank: int | None = None,
    ) -> Scenario:
        """Return the scenario.

        Parameters
        ----------
        plan : Schedule, optional
            The plan to run: stages, their devices and micro-batches are the plan's.
        chunks : int, optional
            How many chunks to cut every stage into; with a plan, how many chunks of one stage its
            stages are. Default: none.
        cluster : Cluster, optional
            Where it runs; it knows the size of messages where nobody says.
        rank : int, optional
            The pipeline of which rank of a data-parallel job. Delays that name no rank, and those
            of a file, are rank 0's. Default: there is one pipeline, and no delay may name a rank.

        Raises
        ------
        ScenarioError, FormatError
            Options contradict each other or the plan, or describe no valid scenario.
        """
        cut = chunks or 1
        scenario = self._from_file() if self.scenario else self._from_numbers(plan, cut)
        kind = self.injected_as
        if rank:
            scenario = scenario.without_delay()
        for slow in self._slow_links():
            if slow.rank and rank is None:
                raise ScenarioError(
                    f"--slow: ranks, such as {slow.rank}, are for pipesim compare --dp"
                )
            if slow.rank == (rank or 0):
                scenario = scenario.with_delay(
                    slow.delay_ms, [slow.link], directions=slow.directions, kind=kind
                )
        if self.activation_limit is not None:
            limits = parsed("--activation-limit", parsing.limits, self.activation_limit)
            scenario = replace(scenario, activation_limit=_by_device(limits, scenario))
        if (size := self._message_size()) is not None:
            if cluster and not size:
                raise ScenarioError(
                    "a size of 0 stands for none given, and --testbed gives those one: leave it "
                    "out, or give another size"
                )
            scenario = scenario.replaced(message_bytes=size)
        scenario = cluster.sized(scenario) if cluster else scenario
        scenario = scenario.interleaved(cut) if cut > 1 else scenario
        if plan is not None:
            check_fits(plan, scenario, self.scenario or f"--chunks {cut}")
        return scenario

    def ranks(self, count: int, cluster: Cluster | None = None) -> list[Scenario]:
        """Return the pipeline of each rank of a data-parallel job.

        Raises
        ------
        ScenarioError, FormatError
            As by :meth:`build`, or a delay names a rank that there is not.
        """
        named = {slow.rank for slow in self._slow_links()}
        for rank in sorted(named):
            if rank >= count:
                raise ScenarioError(f"--slow: there is no rank {rank} (ranks: 0 to {count - 1})")
        first = self.build(cluster=cluster, rank=0)
        others = {rank: self.build(cluster=cluster, rank=rank) for rank in named if rank}
        healthy = first.without_delay()
        return [first, *(others.get(rank, healthy) for rank in range(1, count))]

    @property
    def injected_as(self) -> Injection:
        """Where messages spend the delays of options."""
        return parsed("--injection", _injection, self.injection)

    def _from_file(self) -> Scenario:
        assert self.scenario is not None
        shape = ("stages", "microbatches", "forward", "backward", "weight")
        for name in shape:
            if getattr(self, name) is not None:
                raise ScenarioError(f"--{name} contradicts --scenario: the file says that already")
        return load_scenario(self.scenario)

    def _from_numbers(self, plan: Schedule | None, cut: int) -> Scenario:
        stages = 4 if self.stages is None else self.stages
        microbatches = 12 if self.microbatches is None else self.microbatches
        for name, count in (("--stages", stages), ("--microbatches", microbatches)):
            if count < 1:
                raise ScenarioError(f"{name} must be at least 1, not {count}")
        if stages * microbatches > MOST_OPERATORS:
            raise ScenarioError(
                f"--stages × --microbatches is {stages * microbatches:,}: more than "
                f"{MOST_OPERATORS:,} operators of a kind"
            )
        placement: Sequence[int] = ()
        if plan is not None:
            check_shape(plan, cut, self.stages, self.microbatches)
            stages, microbatches = plan.stages // cut, plan.microbatches
            placement = plan.placement if cut == 1 else ()
        times: dict[str, Any] = {
            f"{name}_ms": self._durations(name, stages)
            for name in ("forward", "backward", "weight")
            if getattr(self, name) is not None
        }
        return Scenario(stages=stages, microbatches=microbatches, placement=placement, **times)

    def _durations(self, name: str, stages: int) -> Array:
        values = np.array(parsed(f"--{name}", parsing.durations_ms, getattr(self, name)))
        if values.ndim and len(values) != stages:
            raise ScenarioError(f"--{name} gives {len(values)} times for {stages} stages")
        return values

    def _message_size(self) -> float | None:
        """The size of a message in bytes; None if it is not given."""
        if self.message_mib is None:
            option, size = "--message-bytes", self.message_bytes
        elif self.message_bytes is None:
            option, size = "--message-mib", self.message_mib * 2**20
        else:
            raise ScenarioError("give --message-mib or --message-bytes, not both")
        if size is not None and not 0 <= size <= LARGEST:
            raise ScenarioError(f"{option} must be a size of at least 0")
        return size

    def _slow_links(self) -> list[SlowLink]:
        """All slow links; each direction of each link at most once."""
        if self.delay is not None and not self.link:
            raise ScenarioError("--delay needs --link: which links are slow?")
        if self.link and self.delay is None:
            raise ScenarioError("--link needs --delay: how slow are they?")
        result = []
        if self.delay is not None:
            delay_ms = parsed("--delay", parsing.duration_ms, self.delay)
            for text in self.link or ():
                indices = parsed("--link", parsing.link_indices, text)
                result += [SlowLink(link, parsing.BOTH_WAYS, delay_ms) for link in indices]
        result += [parsed("--slow", parsing.slow_link, text) for text in self.slow or ()]
        seen = set()
        for slow in result:
            for direction in slow.directions:
                if (slow.rank, slow.link, direction) in seen:
                    raise ScenarioError(f"link {slow.link} is given two delays")
                seen.add((slow.rank, slow.link, direction))
        return result


def _by_device(limits: float | list[float], scenario: Scenario) -> Array:
    """The limits of all devices in stage activations; they are given in micro-batches."""
    if isinstance(limits, list) and len(limits) != scenario.devices:
        raise ScenarioError(
            f"--activation-limit gives {len(limits)} limits for {scenario.devices} devices"
        )
    return np.array(limits) * list(map(len, scenario.stages_of))
