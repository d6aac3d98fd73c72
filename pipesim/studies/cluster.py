"""A testbed as one job uses it: what its messages cost, and how far off predictions have been."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipesim.documents.words import between
from pipesim.fidelity.constants import GIB_PER_S
from pipesim.fidelity.shipped import testbed_named
from pipesim.fidelity.testbed import Testbed
from pipesim.files import StrPath
from pipesim.scenario import Array, Scenario
from pipesim.studies.systems import SYSTEMS, System
from pipesim.text import listed, milliseconds, plain
from pipesim.transport import Transport

__all__ = ["Cluster", "cluster"]

_MIB = 2**20


@dataclass(frozen=True)
class Cluster:
    """A testbed with so many ranks of the job on each host.

    Attributes
    ----------
    testbed : Testbed
        Its constants, and the errors of predictions there.
    ranks_per_host : int
        Ranks that send at once through one host.
    """

    testbed: Testbed
    ranks_per_host: int = 1

    @property
    def name(self) -> str:
        """The testbed's name."""
        return self.testbed.name

    @property
    def link_bytes_per_ms(self) -> float:
        """Bandwidth of a rank's link over NCCL; ``inf`` where it is not known."""
        return self.testbed["transfer_gib_per_s"] * GIB_PER_S

    def transport(self, name: str) -> Transport:
        """Return a transport with what messages cost here."""
        return self.testbed.transport(name, ranks_per_host=self.ranks_per_host)

    def sized(self, scenario: Scenario) -> Scenario:
        """Return a scenario whose messages have a size: where it says none, the testbed's."""
        given = scenario.message_bytes
        sizes = np.where(given > 0, given, self.testbed.message_bytes)
        return scenario if (sizes == given).all() else scenario.replaced(message_bytes=sizes)

    def errors(self, one: System) -> tuple[float, ...]:
        """How far off predictions of a system were in other settings: measured / predicted − 1."""
        return self.testbed.errors.get(_measured_as(one), ())

    def spread(self, one: System) -> float | None:
        """How far off a prediction is at most, 90 % of the time; None where that is not known."""
        return self.testbed.spread(_measured_as(one))

    def interval_ms(self, one: System, iteration_ms: float) -> tuple[float, float] | None:
        """Where 90 % of measurements of an iteration lie, less what follows the pipeline."""
        spread = self.spread(one)
        if spread is None:
            return None
        off_ms = (iteration_ms + self.testbed.after_ms) * spread
        return max(0.0, iteration_ms - off_ms), iteration_ms + off_ms

    def described(self, scenario: Scenario) -> str:
        """Say which testbed it is, and what a message of the scenario costs there.

        Examples
        --------
        >>> mine = Cluster(Testbed("mine", {"transfer_gib_per_s": 1.0}))
        >>> mine.described(Scenario(message_bytes=2**21))
        'testbed mine: a message of 2 MiB takes 1.95 ms over NCCL, 1.95 ms through delegates'
        """
        ranks, sizes = self.ranks_per_host, scenario.message_bytes
        name = f"testbed {self.testbed.name}" + (f", {ranks} ranks per host" if ranks > 1 else "")
        if ranks > 1 and "host_gib_per_s" not in self.testbed.constants:
            name += " (what they share is not known, and taken as nothing)"
        if not sizes.size:
            return f"{name}: one stage sends no messages"
        costs = ", ".join(
            f"{_cost(self.transport(way).costs_ms(scenario))} {how}"
            for way, how in (("nccl", "over NCCL"), ("delegated", "through delegates"))
        )
        small, large = (plain(float(size) / _MIB) for size in (sizes.min(), sizes.max()))
        what = (
            f"a message of {large} MiB takes"
            if small == large
            else f"messages of {small} to {large} MiB take"
        )
        rest = listed(
            [
                f"{milliseconds(ms)} {when}"
                for ms, when in (
                    (self.testbed.after_ms, "after the pipeline"),
                    (self.testbed["replanned_ms"], "after re-planned ones"),
                )
                if ms
            ]
        )
        return f"{name}: {what} {costs}" + (f"; {rest} are not included" if rest else "")

    def as_dict(self, scenario: Scenario) -> dict[str, object]:
        """The testbed, and what messages of the scenario cost on each link, in JSON types."""
        return {
            "name": self.testbed.name,
            "ranks_per_host": self.ranks_per_host,
            "message_bytes": scenario.message_bytes.tolist(),
            "nccl_ms": self.transport("nccl").costs_ms(scenario).tolist(),
            "delegated_ms": self.transport("delegated").costs_ms(scenario).tolist(),
            "after_ms": self.testbed.after_ms,
            "replanned_ms": self.testbed["replanned_ms"],
        }


def _cost(costs_ms: Array) -> str:
    return between(costs_ms.round(2)) if costs_ms.any() else "too little to tell"


def cluster(testbed: StrPath | Testbed, ranks_per_host: int = 1) -> Cluster:
    """Return a testbed as a job uses it.

    Parameters
    ----------
    testbed : str, path or Testbed
        See :func:`pipesim.fidelity.shipped.testbed_named`.
    ranks_per_host : int
        Ranks of the job that send at once through one host.

    Raises
    ------
    ScenarioError, FormatError
        There is no such testbed.
    """
    found = testbed if isinstance(testbed, Testbed) else testbed_named(testbed)
    return Cluster(found, ranks_per_host)


def _measured_as(one: System) -> str:
    """What measured runs call a system: planner and transport say which it is."""
    same = (
        known.name
        for known in SYSTEMS.values()
        if (known.planner, known.transport) == (one.planner, one.transport)
    )
    return next(same, one.name)
