"""A testbed: what a cluster adds to the model, in a handful of physical constants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from pipesim.fidelity.constants import CONSTANTS, GIB_PER_S
from pipesim.fidelity.intervals import spread
from pipesim.scenario import TIME_OF, Scenario
from pipesim.transport import Delegated, Exchange, Ideal, Isolated, Nccl, Transport, transport

__all__ = ["Ratios", "Testbed"]


class Ratios(NamedTuple):
    """Relative times of F, B and W, for models without a profile."""

    forward: float = 1.0
    backward: float = 1.0
    weight: float = 1.0


@dataclass(frozen=True)
class Testbed:
    """A cluster.

    Parameters
    ----------
    name : str
        As measured runs call it.
    constants : mapping of str to float
        Values out of :data:`.constants.CONSTANTS` by name; those left out are neutral.
    read : tuple of str
        The constants that were read off timelines; all others were fitted.
    whole_ms : bool
        Whether its injector cuts delays under NCCL to whole milliseconds.
    ratios : Ratios
        Relative times of operators where no profile fits.
    profiles : mapping of str to Scenario
        Measured operator times of models by name, used for runs of their shape.
    healthy_ms : mapping of str to float
        The healthy iteration of models by name, for runs that have none: the median of their
        zero-bubble runs over NCCL.
    message_bytes : float
        A typical message of one rank, for scenarios that tell none.
    errors : mapping of str to tuple of float
        Measured over predicted − 1 of each system's runs, each predicted from a fit that has not
        seen its setting.
    """

    name: str
    constants: Mapping[str, float] = field(default_factory=dict)
    read: tuple[str, ...] = ()
    whole_ms: bool = False
    ratios: Ratios = field(default_factory=Ratios)
    profiles: Mapping[str, Scenario] = field(default_factory=dict)
    healthy_ms: Mapping[str, float] = field(default_factory=dict)
    message_bytes: float = 0.0
    errors: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def __getitem__(self, constant: str) -> float:
        """Return the value of a constant."""
        return self.constants.get(constant, CONSTANTS[constant].neutral)

    @property
    def after_ms(self) -> float:
        """What follows the pipeline in every iteration."""
        return self["after_ms"]

    def transport(
        self, kind: str, *, ranks_per_host: int = 1, delegates: int | None = None
    ) -> Transport:
        """Return the transport of that name, as it is here.

        ZeroBubble's sends and receives over NCCL are unfused, on a stream for each peer, as the
        published runs issue them. A delegated message crosses the network too.

        Parameters
        ----------
        kind : str
            A name out of :data:`pipesim.transport.TRANSPORTS`.
        ranks_per_host : int
            Ranks that share the path of delegated messages through their host.
        delegates : int, optional
            Delegate processes for each neighbour and direction.

        Raises
        ------
        ScenarioError
            There is no such transport.

        Examples
        --------
        >>> lab = Testbed("lab", {"delegate_ms": 2.0, "host_gib_per_s": 8.0})
        >>> lab.transport("delegated", ranks_per_host=8).transfer_ms(2.0**30 / 1000)
        3.0
        """
        rate = self["transfer_gib_per_s"] * GIB_PER_S
        match transport(kind):
            case Nccl():
                return Nccl(p2p_streams="peer", fused=False, bytes_per_ms=rate)
            case Exchange():
                return Exchange(bytes_per_ms=rate)
            case Isolated():
                return Isolated(bytes_per_ms=rate)
            case Delegated():
                shared = self["host_gib_per_s"] * GIB_PER_S / ranks_per_host
                return Delegated(
                    delegates,
                    base_ms=self["delegate_ms"],
                    bytes_per_ms=min(shared, rate),
                    copy_bytes_per_ms=self["copy_gib_per_s"] * GIB_PER_S,
                    copy_on_demand=True,
                )
            case Ideal():
                return Ideal(bytes_per_ms=rate)

    def spread(self, system: str) -> float | None:
        """How far off a prediction is at most, 90 % of the time, as a part of it.

        See :func:`.intervals.spread`. The errors of all systems of the testbed count, since one
        system has few; None for systems that were never measured here.
        """
        if system not in self.errors:
            return None
        return spread(error for own in self.errors.values() for error in own)

    def operators(
        self, model: str, stages: int, microbatches: int, message_bytes: float
    ) -> Scenario:
        """Return a healthy pipeline with a model's operator times, up to a common factor.

        They are the profile's if it has as many stages; its means, if only the micro-batches differ
        in number; and else :attr:`ratios`.
        """
        profile = self.profiles.get(model)
        shape = {"stages": stages, "microbatches": microbatches, "message_bytes": message_bytes}
        if profile is None or profile.stages != stages:
            return Scenario(
                forward_ms=self.ratios.forward,
                backward_ms=self.ratios.backward,
                weight_ms=self.ratios.weight,
                **shape,  # type: ignore[arg-type]
            )
        if profile.microbatches == microbatches:
            return profile.replaced(message_bytes=message_bytes)
        means = {name: getattr(profile, name).mean(axis=1) for name in TIME_OF.values()}
        return Scenario(**means, **shape)  # type: ignore[arg-type]
