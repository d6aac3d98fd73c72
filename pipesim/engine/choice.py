"""Which engine runs, if the user has not chosen one.

Both give the same times, up to rounding. SimPy starts at once. The compiled evaluator is up to
a thousand times faster, but it has to be loaded first, which takes as long as SimPy takes for
some ten thousand operators. So SimPy runs until it has spent that much time; then the compiled
evaluator takes over. Whatever follows, this takes at most twice as long as the better choice.
"""

from __future__ import annotations

import sys
from typing import Literal, TypeAlias, get_args

from pipesim.errors import ScenarioError

__all__ = ["ENGINES", "Engine", "chosen"]

Engine: TypeAlias = Literal["simpy", "compiled"]
ENGINES: tuple[Engine, ...] = get_args(Engine)

WORTH_LOADING = 50_000
"""Operators that SimPy runs while numba and its machine code are loaded: half a second."""

_spent = 0


def chosen(engine: Engine | None, operators: int) -> Engine:
    """Return the engine for a run of this many operators: ``engine``, unless it is None.

    Raises
    ------
    ScenarioError
        There is no such engine.
    """
    global _spent
    if engine is not None:
        if engine not in ENGINES:
            raise ScenarioError(f"unknown engine {engine!r}: {' or '.join(ENGINES)}")
        return engine
    _spent += operators
    return "compiled" if _spent > WORTH_LOADING or "numba" in sys.modules else "simpy"
