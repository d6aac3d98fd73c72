"""milp: the exact optimum, to measure planners against.

One model, several solvers, one :class:`Result` that always carries a status and a bound.
"""

from __future__ import annotations

from milp.result import Result
from milp.solvers import SOLVERS, solve

__all__ = ["SOLVERS", "Result", "solve"]
