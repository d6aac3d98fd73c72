"""The runtime that a plan is for."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from pipesim.cli.options.shared import one_starting, parsed
from pipesim.schedule import Schedule
from pipesim.target import IDEAL, TARGETS, Target, target

__all__ = ["RuntimeName", "made_for_another", "runtime_named"]

RuntimeName = Annotated[
    str | None,
    Option(
        "--runtime",
        metavar="NAME",
        help="Take operators and messages as this runtime runs them. torch, unchanged: the first "
        "stage's B does nothing and its W is the whole backward; NCCL with a stream for each peer, "
        "no groups, no delegates. megatron: exchanges for 1F1B, grouped NCCL or delegates for "
        "others. ideal: nothing blocks. Another transport wins if it is named (default: operators "
        "do what they are called, and transports are as said for each command).",
        autocompletion=one_starting(*TARGETS),
    ),
]


def runtime_named(text: str | None) -> Target | None:
    """Return the runtime that ``--runtime`` names; None if it is not given.

    Raises
    ------
    ScenarioError
        There is no such runtime.
    """
    return None if text is None else parsed("--runtime", target, text)


def made_for_another(schedule: Schedule, runtime: Target | None) -> list[str]:
    """Say, if so, that a plan was made for operators that do something else than they do here.

    Nothing is said of a plan that names no runtime: what was asked for says enough.
    """
    meant = TARGETS.get(schedule.assumed.runtime or "")
    if meant is None or (runtime or IDEAL).runs_as_planned(schedule):
        return []
    return [f"this plan was made for {meant.title}: --runtime {meant.name} runs it as that does"]
