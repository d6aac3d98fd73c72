"""Options that say how messages travel. The class of each transport says what they mean."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, get_args

from typer import Option

from pipesim.cli.options.shared import MessageCost, message_cost_ms, one_starting, parsed
from pipesim.cli.parsing import duration_ms
from pipesim.errors import ScenarioError
from pipesim.target import IDEAL, Target
from pipesim.transport import TRANSPORTS, Transport, transport

if TYPE_CHECKING:
    from pipesim.studies.cluster import Cluster

__all__ = ["MessageOptions", "TransportOptions"]


@dataclass(frozen=True)
class MessageOptions:
    """The options of transports, for whichever of them has each."""

    message_cost: MessageCost = None
    bytes_per_ms: Annotated[float | None, Option(metavar="RATE", help="Bandwidth of a link.")] = (
        None
    )
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
            metavar="K",
            help="Number of delegates for each neighbour and direction (delegated; default: enough "
            "that one is always free).",
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
    copy_on_demand: Annotated[
        bool,
        Option(
            "--copy-on-demand",
            help="Copy a message to the device when the operator that needs it is next "
            "(delegated).",
        ),
    ] = False
    compute_slowdown: Annotated[
        float | None,
        Option(
            metavar="FACTOR",
            help="Slow compute down by this at slow links (isolated; default 1.99).",
        ),
    ] = None

    @property
    def message_cost_ms(self) -> float:
        """What every message takes besides delays."""
        return message_cost_ms(self.message_cost)

    def over(
        self, name: str, cluster: Cluster | None = None, runtime: Target | None = None
    ) -> Transport:
        """Return the transport of that name, with those of the options that it has.

        Parameters
        ----------
        name : str
            Of the transport.
        cluster : Cluster, optional
            What the other options are, instead of their defaults.
        runtime : Target, optional
            The same where there is no cluster.

        Raises
        ------
        ScenarioError
            There is no such transport, or an option of it cannot have such a value.
        """
        result = (cluster or runtime or IDEAL).transport(name)
        known = _options(type(result))
        for field, option, value in self._given():
            if field in known:
                result = _changed(result, field, option, value)
        return result

    def with_cost(self, name: str, cluster: Cluster | None = None) -> Transport:
        """Return the transport as :meth:`over` does, with the cost of messages on top of its own.

        Parameters and errors are those of :meth:`over`.
        """
        free = replace(self, message_cost=None).over(name, cluster)
        return replace(free, base_ms=free.base_ms + self.message_cost_ms)

    def check_used(self, names: Collection[str]) -> None:
        """Raise :class:`ScenarioError` if an option is given that none of these transports has."""
        for field, option, _ in self._given():
            having = [name for name, kind in TRANSPORTS.items() if field in _options(kind)]
            if not set(having) & set(names):
                raise ScenarioError(
                    f"{option} is for {' and '.join(having)}, not for {' or '.join(names)}"
                )

    def _given(self) -> Iterable[tuple[str, str, Any]]:
        """The transports' field, the option's name, and the value of each option given."""
        for field in _TRANSPORT_OPTIONS:
            name = _NAMED.get(field, field)
            value = getattr(self, name)
            if value is not None and value is not False:
                yield field, f"--{name.replace('_', '-')}", value


@dataclass(frozen=True)
class _Named:
    """Which transport."""

    transport: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help=f"How messages travel: {', '.join(TRANSPORTS)} (default: the runtime's, or else "
            "ideal).",
            autocompletion=one_starting(*TRANSPORTS),
        ),
    ] = None


@dataclass(frozen=True)
class TransportOptions(MessageOptions, _Named):
    """One transport and its options."""

    def build(
        self,
        cluster: Cluster | None = None,
        runtime: Target | None = None,
        *,
        planner: str = "",
        default: str = "ideal",
    ) -> Transport:
        """Return the transport; on a cluster or a runtime, see :meth:`over`.

        Parameters
        ----------
        planner : str
            Whose orders a runtime runs, where it chooses the transport.
        default : str
            The transport where neither an option nor a runtime says which.

        Raises
        ------
        ScenarioError
            There is no such transport, or it does not have such an option or value.
        """
        usual = runtime.transport(planner=planner).name if runtime else default
        name = transport(self.transport or usual).name
        self.check_used([name])
        return self.over(name, cluster, runtime)


def _changed(over: Transport, field: str, option: str, value: Any) -> Transport:
    """The transport with one option changed; errors name the option."""
    if field.endswith("base_ms"):
        value = parsed(option, duration_ms, value)
    changes: dict[str, Any] = {field: False if field == "fused" else value}
    try:
        return replace(over, **changes)
    except ScenarioError as error:
        raise ScenarioError(f"{option}: {error}") from None


def _options(kind: type[Transport]) -> list[str]:
    return [field.name for field in fields(kind)]


_TRANSPORT_OPTIONS = list(
    dict.fromkeys(name for kind in get_args(Transport) for name in _options(kind))
)
_NAMED = {"base_ms": "message_cost", "copy_base_ms": "copy", "fused": "unfused"}
"""The command-line option of a transport's option, where it has another name."""
