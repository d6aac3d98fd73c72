"""The target: the runtime that a plan is made for, as a compiler has targets.

A scenario says what operators take when they do what they are called. A runtime may do something
else, and groups and queues messages in its own way. What a message costs is no part of it: that
depends on the machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from pipesim.errors import ScenarioError
from pipesim.scenario import Scenario
from pipesim.schedule import Schedule
from pipesim.transport import Exchange, Ideal, Nccl, Transport, transport

__all__ = ["IDEAL", "TARGETS", "Target", "target"]


@dataclass(frozen=True)
class Target:
    """What a runtime does with operators and messages, where nobody says otherwise.

    Parameters
    ----------
    name : str
        What users call it.
    title : str
        What messages call it.
    usual : Transport
        How messages travel.
    of_planner : mapping of str to Transport
        How they travel for the orders of some planners instead.
    splits_first : bool
        Whether the first stage runs B and W apart. Where it does not, its B takes no time and
        gives back nothing, and its W is the whole backward.
    delegates : bool
        Whether messages can go through CPU delegates.
    """

    name: str
    title: str
    usual: Transport
    of_planner: Mapping[str, Transport] = field(default_factory=dict)
    splits_first: bool = True
    delegates: bool = False

    @property
    def described(self) -> str:
        """What it does, in words.

        Examples
        --------
        >>> target("torch").described
        'stock torch runs the whole backward of the first stage in W'
        """
        how = "apart" if self.splits_first else "in W"
        what = "B and W" if self.splits_first else "the whole backward"
        return f"{self.title} runs {what} of the first stage {how}"

    def transport(self, name: str | None = None, *, planner: str = "") -> Transport:
        """Return the transport of that name as it is here, or the one for a planner's orders.

        Raises
        ------
        ScenarioError
            There is no such transport.

        Examples
        --------
        >>> str(target("megatron").transport(planner="1f1b"))
        'exchange'
        >>> target("torch").transport("nccl").p2p_streams
        'peer'
        """
        if name is None:
            return self.of_planner.get(planner, self.usual)
        return self.usual if name == self.usual.name else transport(name)

    def adapted(self, scenario: Scenario) -> Scenario:
        """Return the scenario with what its operators really do here.

        Stages are those that the runtime has: cut them into chunks first. Adapted twice is
        adapted once, and fused backwards stay as they are.

        Examples
        --------
        >>> there = target("torch").adapted(Scenario(stages=2, microbatches=1))
        >>> there.backward_ms.ravel().tolist(), there.weight_ms.ravel().tolist()
        ([0.0, 10.0], [20.0, 10.0])
        >>> there.released_by_b.tolist()
        [0.0, 0.5]
        """
        if self.splits_first:
            return scenario
        backward, weight = np.array(scenario.backward_ms), np.array(scenario.weight_ms)
        released = np.array(scenario.released_by_b)
        weight[0] += backward[0]
        backward[0] = released[0] = 0.0
        return scenario.replaced(backward_ms=backward, weight_ms=weight, released_by_b=released)

    def made(self, schedule: Schedule) -> Schedule:
        """Return the schedule, saying that it was made for this runtime."""
        return replace(schedule, assumed=replace(schedule.assumed, runtime=self.name))

    def runs_as_planned(self, schedule: Schedule) -> bool:
        """Whether operators do here what the plan was made for.

        A plan that says nothing was made for operators that do what they are called. Where all
        backwards of the first stage are fused, it is the same everywhere.
        """
        splits = TARGETS.get(schedule.assumed.runtime or "", IDEAL).splits_first
        return splits == self.splits_first or bool(schedule.is_fused[0].all())


IDEAL = Target("ideal", "an ideal runtime", Ideal())

TARGETS = {
    target.name: target
    for target in (
        Target(
            "torch",
            "stock torch",
            # Messages of one direction are not coalesced (`_batch_p2p`), and NCCL has a
            # communicator, and with it a stream, for each pair of ranks.
            Nccl(p2p_streams="peer", fused=False),
            # `backward_one_chunk` skips the first stage unless it is the full backward, and
            # keeps all for `backward_weight_one_chunk`, which then runs the full one.
            splits_first=False,
        ),
        Target(
            "megatron",
            "Megatron-LM",
            Nccl(),
            {"1f1b": Exchange(), "gpipe": Exchange()},
            delegates=True,
        ),
        IDEAL,
    )
}
"""All runtimes by name; torch is torch.distributed.pipelining as of 2.13, unchanged."""


def target(name: str) -> Target:
    """Return the runtime of that name.

    Raises
    ------
    ScenarioError
        There is no such runtime.
    """
    if name not in TARGETS:
        raise ScenarioError(f"unknown runtime {name!r}: one of {', '.join(TARGETS)}")
    return TARGETS[name]
