"""What a production trace says about the simulation, and the simulation about the job.

Three questions, of which only the last is a prediction:

- Is the graph right? Each step again from its own durations: :mod:`.replay_check`.
- What do its stragglers cost? The published what-if: :mod:`.whatif`.
- What will a step take, from other steps only, and is that better than their median?
  :mod:`.from_other_steps`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pipesim.fidelity.jobs.from_other_steps import FromOtherSteps, from_other_steps
from pipesim.fidelity.jobs.job import job_of
from pipesim.fidelity.jobs.replay_check import ReplayCheck, check_replay
from pipesim.fidelity.jobs.whatif import WhatIf, what_if
from pipesim.formats.production import ProductionTrace

__all__ = ["ProductionCheck", "check_production"]


@dataclass(frozen=True, eq=False)
class ProductionCheck:
    """The answers to all three.

    Parameters
    ----------
    replay : ReplayCheck
        Of every complete iteration.
    what_if : WhatIf
        Of the steps in which all workers are complete.
    from_other_steps : FromOtherSteps, optional
        Of the same; None where there is one only.
    notes : tuple of str
        For people.
    """

    replay: ReplayCheck
    what_if: WhatIf
    from_other_steps: FromOtherSteps | None
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, object]:
        """Return it in JSON types; errors and shares are fractions."""
        others = self.from_other_steps
        return {
            **self.replay.as_dict(),
            **self.what_if.as_dict(),
            "from_other_steps": others.as_dict() if others else None,
        }


def check_production(
    trace: ProductionTrace, report: Callable[[str], None] = lambda _: None
) -> ProductionCheck:
    """Answer all three for a production trace.

    Parameters
    ----------
    trace : ProductionTrace
        See :func:`pipesim.formats.production.read_production`.
    report : callable
        Told what is being simulated.
    """
    report("replaying every step")
    replay = check_replay(trace)
    job, notes = job_of(trace)
    without = what_if(trace, job, report)
    report("predicting every step from the others")
    return ProductionCheck(replay, without, from_other_steps(job), (*replay.notes, *notes))
