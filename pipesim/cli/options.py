"""Options that several commands share, and what they build: scenarios, plans, transports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, cast, get_args

import numpy as np
from typer import Argument, Option

from pipesim.cli import parsing
from pipesim.cli.parsing import SlowLink
from pipesim.documents.plan_json import load_plan
from pipesim.documents.scenario_toml import load_scenario
from pipesim.engine.choice import ENGINES, Engine
from pipesim.errors import ScenarioError
from pipesim.scenario import Array, Scenario
from pipesim.schedule import Schedule
from pipesim.transport import TRANSPORTS, Transport
from pipesim.transport import transport as transport_named
from planners import names as planner_names
from planners import plan as plan_with

__all__ = [
    "Chunks",
    "EngineName",
    "Json",
    "MessageCost",
    "PlanOptions",
    "Quiet",
    "ScenarioOptions",
    "TransportOptions",
    "complete_planner",
    "engine_named",
    "message_cost_ms",
    "one_starting",
    "parsed",
]

T = TypeVar("T")

Json = Annotated[bool, Option("--json", help="Print one JSON object instead of text.")]
Quiet = Annotated[
    bool, Option("--quiet", "-q", help="Print results only: no header, advice, notes or progress.")
]
Chunks = Annotated[
    int, Option(metavar="V", min=1, help="Cut each stage into V interleaved chunks.")
]

EngineName = Annotated[
    str | None,
    Option(
        "--engine",
        metavar="NAME",
        help=f"Compute times with {' or '.join(ENGINES)}, which is faster for large pipelines; "
        "both give the same times (default: by size).",
        autocompletion=lambda incomplete: [e for e in ENGINES if e.startswith(incomplete)],
    ),
]

MessageCost = Annotated[
    str | None,
    Option(
        "--message-cost",
        metavar="TIME",
        help="Time that every message takes besides delays, on every link (default 0ms).",
    ),
]

MOST_OPERATORS = 1_000_000
"""Of one kind, as in scenario files: more is a typing error."""


def parsed(option: str, parse: Callable[[str], T], text: str) -> T:
    """Parse what was given for an option; errors name it."""
    try:
        return parse(text)
    except ScenarioError as error:
        raise ScenarioError(f"{option}: {error}") from None


def message_cost_ms(text: str | None) -> float:
    """Return the time that ``--message-cost`` gives.

    Raises
    ------
    ScenarioError
        It is not a time.
    """
    return 0.0 if text is None else parsed("--message-cost", parsing.duration_ms, text)


def engine_named(text: str | None) -> Engine | None:
    """Return the engine of that name; None lets the size of the work decide.

    Raises
    ------
    ScenarioError
        There is no such engine.
    """
    if text is not None and text not in ENGINES:
        raise ScenarioError(f"--engine: {text!r} is none of {', '.join(ENGINES)}")
    return text


def complete_planner(incomplete: str) -> list[str]:
    """Names of planners, for the shell."""
    return one_starting(*planner_names())(incomplete)


def one_starting(*words: str) -> Callable[[str], list[str]]:
    """Return the shell completion that knows these words."""

    def complete(incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete)]

    return complete


# -- the scenario ------------------------------------------------------------------------


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
            "device.",
        ),
    ] = None

    def build(self, *, plan: Schedule | None = None, chunks: int = 1) -> Scenario:
        """Return the scenario.

        Parameters
        ----------
        plan : Schedule, optional
            The plan whose shape to take where none is given.
        chunks : int
            How many chunks to cut every stage into.

        Raises
        ------
        ScenarioError, FormatError
            Options contradict each other, or describe no valid scenario.
        """
        scenario = self._from_file() if self.scenario else self._from_numbers(plan)
        kind = parsed("--injection", _injection, self.injection)
        for slow in self._slow_links():
            scenario = scenario.with_delay(
                slow.delay_ms, [slow.link], directions=slow.directions, kind=kind
            )
        if self.activation_limit is not None:
            limits = parsed("--activation-limit", parsing.limits, self.activation_limit)
            scenario = replace(scenario, activation_limit=_by_device(limits, scenario))
        return scenario.interleaved(chunks) if chunks > 1 else scenario

    def _from_file(self) -> Scenario:
        assert self.scenario is not None
        shape = ("stages", "microbatches", "forward", "backward", "weight")
        for name in shape:
            if getattr(self, name) is not None:
                raise ScenarioError(f"--{name} contradicts --scenario: the file says that already")
        return load_scenario(self.scenario)

    def _from_numbers(self, plan: Schedule | None) -> Scenario:
        default = (plan.devices, plan.microbatches) if plan else (4, 12)
        stages = default[0] if self.stages is None else self.stages
        microbatches = default[1] if self.microbatches is None else self.microbatches
        for name, count in (("--stages", stages), ("--microbatches", microbatches)):
            if count < 1:
                raise ScenarioError(f"{name} must be at least 1, not {count}")
        if stages * microbatches > MOST_OPERATORS:
            raise ScenarioError(
                f"--stages × --microbatches is {stages * microbatches:,}: more than "
                f"{MOST_OPERATORS:,} operators of a kind"
            )
        times: dict[str, Any] = {
            f"{name}_ms": self._durations(name, stages)
            for name in ("forward", "backward", "weight")
            if getattr(self, name) is not None
        }
        return Scenario(stages=stages, microbatches=microbatches, **times)

    def _durations(self, name: str, stages: int) -> Array:
        values = np.array(parsed(f"--{name}", parsing.durations_ms, getattr(self, name)))
        if values.ndim and len(values) != stages:
            raise ScenarioError(f"--{name} gives {len(values)} times for {stages} stages")
        return values

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
                if (slow.link, direction) in seen:
                    raise ScenarioError(f"link {slow.link} is given two delays")
                seen.add((slow.link, direction))
        return result


def _by_device(limits: float | list[float], scenario: Scenario) -> Array:
    if isinstance(limits, list) and len(limits) != scenario.devices:
        raise ScenarioError(
            f"--activation-limit gives {len(limits)} limits for {scenario.devices} devices"
        )
    return np.array(limits)


# -- the plan ----------------------------------------------------------------------------


@dataclass(frozen=True)
class PlanOptions:
    """What to run: a plan from a file, or one made for the scenario."""

    plan: Annotated[
        Path | None, Argument(metavar="PLAN.json", help="A plan; or give --planner.")
    ] = None
    planner: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help="Plan with this planner (see `pipesim planners`).",
            autocompletion=complete_planner,
        ),
    ] = None
    chunks: Chunks = 1

    @property
    def given(self) -> bool:
        """Whether there is anything to run."""
        return self.plan is not None or self.planner is not None

    def build(
        self, scenario: ScenarioOptions, report: Callable[[str], None]
    ) -> tuple[Scenario, Schedule]:
        """Return the scenario and the plan; a shape that is not given is the plan's.

        Raises
        ------
        ScenarioError, ScheduleError, FormatError
            Options contradict each other, or there is no such plan.
        """
        if not self.given:
            raise ScenarioError("there is nothing to run: give a PLAN.json or --planner NAME")
        if self.plan is not None and self.planner is not None:
            raise ScenarioError("give a PLAN.json or --planner NAME, not both")
        if self.plan is not None:
            schedule = load_plan(self.plan)
            return scenario.build(plan=schedule, chunks=self.chunks), schedule
        what = scenario.build(chunks=self.chunks)
        report(f"planning with {self.planner}")
        return what, plan_with(what, self.planner or "")


# -- the transport -----------------------------------------------------------------------


@dataclass(frozen=True)
class TransportOptions:
    """How messages travel. The class of each transport says what its options mean."""

    transport: Annotated[
        str,
        Option(
            metavar="NAME",
            help=f"How messages travel: {', '.join(TRANSPORTS)}.",
            autocompletion=one_starting(*TRANSPORTS),
        ),
    ] = "ideal"
    base: Annotated[
        str | None,
        Option(metavar="TIME", help="Time that every message takes besides delays."),
    ] = None
    bytes_per_ms: Annotated[
        float | None, Option(metavar="RATE", help="Bandwidth of a link (nccl, exchange, isolated).")
    ] = None
    p2p_streams: Annotated[
        str | None,
        Option(
            metavar="SHARED",
            help="Let all P2P kernels of one device, peer or direction share a stream (nccl; "
            "default device).",
            autocompletion=one_starting("device", "peer", "direction"),
        ),
    ] = None
    unfused: Annotated[
        bool, Option("--unfused", help="Launch one kernel for each message, no groups (nccl).")
    ] = False
    eager_bytes: Annotated[
        float | None,
        Option(
            metavar="BYTES",
            help="Send messages up to this size without waiting for the receive (nccl).",
        ),
    ] = None
    delegates: Annotated[
        int | None,
        Option(
            metavar="K", help="Number of delegates for each neighbour and direction (delegated)."
        ),
    ] = None
    only_slow: Annotated[
        bool, Option("--only-slow", help="Delegate only the messages of slow links (delegated).")
    ] = False
    copy: Annotated[
        str | None,
        Option(
            metavar="TIME", help="Time that every copy to or from host memory takes (delegated)."
        ),
    ] = None
    copy_bytes_per_ms: Annotated[
        float | None, Option(metavar="RATE", help="Bandwidth of these copies (delegated).")
    ] = None
    compute_slowdown: Annotated[
        float | None,
        Option(
            metavar="FACTOR",
            help="Slow compute down by this at slow links (isolated; default 1.99).",
        ),
    ] = None

    def build(self) -> Transport:
        """Return the transport.

        Raises
        ------
        ScenarioError
            There is no such transport, or it does not have such an option or value.
        """
        default = transport_named(self.transport)
        values = {name: getattr(self, _OPTION_OF.get(name, name)) for name in _TRANSPORT_OPTIONS}
        given: dict[str, Any] = {
            name: value
            for name, value in values.items()
            if value is not None and value is not False
        }
        known = {field.name for field in fields(default)}
        for name in given:
            if name not in known:
                having = [t for t, cls in TRANSPORTS.items() if name in _options(cls)]
                option = _OPTION_OF.get(name, name).replace("_", "-")
                raise ScenarioError(
                    f"--{option} is for {' and '.join(having)}, not for {default.name}"
                )
        for name in ("base_ms", "copy_base_ms"):
            if name in given:
                option = f"--{_OPTION_OF[name]}"
                given[name] = parsed(option, parsing.duration_ms, str(given[name]))
        if "fused" in given:
            given["fused"] = False
        return replace(default, **given)


def _options(kind: type[Transport]) -> list[str]:
    return [field.name for field in fields(kind)]


_TRANSPORT_OPTIONS = list(
    dict.fromkeys(name for kind in get_args(Transport) for name in _options(kind))
)
_OPTION_OF = {"base_ms": "base", "copy_base_ms": "copy", "fused": "unfused"}
"""The command-line option of a transport's option, where it has another name."""
