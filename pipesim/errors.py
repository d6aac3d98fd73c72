"""Everything that can go wrong, as one small tree.

The command line turns any :class:`PipesimError` into one line and exit code 2.
"""

from __future__ import annotations

__all__ = [
    "DeadlockError",
    "FormatError",
    "PipesimError",
    "ReplayError",
    "ScenarioError",
    "ScheduleError",
    "SolverError",
]


class PipesimError(Exception):
    """Base of every error that pipesim raises on purpose."""


class ScenarioError(PipesimError):
    """A scenario whose values cannot describe a pipeline."""


class ScheduleError(PipesimError):
    """A schedule that is incomplete, misplaced, or does not fit its scenario.

    Parameters
    ----------
    message : str
        What is wrong.
    device : int, optional
        The device whose order is to blame, where one is.
    action : object, optional
        What in that order, where one thing is; the last of equal ones.
    """

    def __init__(
        self, message: str, device: int | None = None, action: object | None = None
    ) -> None:
        super().__init__(message)
        self.device, self.action = device, action


class DeadlockError(PipesimError):
    """A program that cannot finish.

    Attributes
    ----------
    blocked : tuple of str
        For each stuck device, the instruction it waits in and what for.
    """

    def __init__(self, blocked: tuple[str, ...]) -> None:
        super().__init__("deadlock: " + "; ".join(blocked))
        self.blocked = blocked


class FormatError(PipesimError):
    """A file that is not what it claims to be.

    Parameters
    ----------
    message : str
        What is wrong, without the place.
    file : str
        The file, as the user named it.
    line, column : int, optional
        1-based place in the file, where known.
    """

    def __init__(
        self,
        message: str,
        *,
        file: str,
        line: int | None = None,
        column: int | None = None,
    ) -> None:
        place = ":".join(str(part) for part in (file, line, column) if part is not None)
        super().__init__(f"{place}: {message}")
        self.file, self.line, self.column = file, line, column


class SolverError(PipesimError):
    """A solver that is missing, or gave no usable answer."""


class ReplayError(PipesimError):
    """A run on real processes that could not start, or did not reach its end."""
