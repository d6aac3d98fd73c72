"""Measured runs: one row per setting and system, with times before and during a delay."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from pipesim.documents.rows import (
    Row,
    count,
    name,
    not_negative,
    one_of,
    positive,
    read_rows,
    whole,
)
from pipesim.errors import FormatError
from pipesim.files import StrPath

__all__ = ["DELEGATED", "SYSTEMS", "MeasuredRun", "healthy_of", "load_runs"]

SYSTEMS = ("1f1b", "zerobubble", "pipemorph-cpu", "pipemorph")
"""What was measured: the first two over NCCL, the others delegated while the link was slow."""

DELEGATED = SYSTEMS[2:]


@dataclass(frozen=True)
class MeasuredRun:
    """One run: a training job whose link became slow. Times in milliseconds.

    Attributes
    ----------
    testbed, model, system : str
        Where it ran, what, and how (one of ``SYSTEMS``).
    stages, microbatches : int
        Shape of the pipeline.
    gpus_per_node : int
        Ranks that share one host and its path to the network.
    message_bytes : float
        One message of one rank.
    slow_sends : tuple of (int, int)
        The delayed sends, from stage and to stage.
    delay_ms : float
        Of each of them.
    delegates : int or None
        Delegate processes for each direction; None: the system has none.
    healthy_ms, slow_ms : float
        Median iteration before the delay was switched on, and after.
    place : str
        File and line, for messages.
    """

    testbed: str
    model: str
    system: str
    stages: int
    microbatches: int
    gpus_per_node: int
    message_bytes: float
    slow_links: str
    slow_sends: tuple[tuple[int, int], ...]
    delay_ms: float
    delegates: int | None
    healthy_ms: float
    slow_ms: float
    place: str = ""

    @property
    def delegated(self) -> bool:
        """Whether its messages are delegated while a link is slow."""
        return self.system in DELEGATED

    @property
    def setting(self) -> tuple[str, str, str, float]:
        """What was the same for all systems that can be ranked against each other."""
        return self.testbed, self.model, self.slow_links, self.delay_ms


def load_runs(path: StrPath) -> tuple[MeasuredRun, ...]:
    """Read a CSV of measured runs; columns that are not needed are ignored.

    Raises
    ------
    FormatError
        The file cannot be read, lacks a column, or has a value that cannot be, or a delay of
        nothing; the error names line and, for values, the column.
    """
    return tuple(_run(row) for row in read_rows(path, _COLUMNS))


def healthy_of(runs: Iterable[MeasuredRun]) -> dict[str, float]:
    """Return the healthy iteration of each model, the median of its zero-bubble runs over NCCL.

    These are those of all systems but 1F1B, which share their healthy plan.
    """
    times: dict[str, list[float]] = {}
    for run in runs:
        if run.system != "1f1b":
            times.setdefault(run.model, []).append(run.healthy_ms)
    return {model: float(np.median(own)) for model, own in times.items()}


_COLUMNS = (
    "testbed",
    "model",
    "stages",
    "microbatches",
    "gpus_per_node",
    "message_mib",
    "system",
    "slow_links",
    "slow_sends",
    "delay_ms",
    "delegates_per_direction",
    "healthy_ms",
    "slow_ms",
)


def _run(row: Row) -> MeasuredRun:
    stages = row.take("stages", count, "a whole number above 0")
    system = row.take("system", one_of(SYSTEMS), f"one of {', '.join(SYSTEMS)}")
    delegated = system in DELEGATED
    delegates = row.take(
        "delegates_per_direction",
        count if delegated else whole,
        "a whole number above 0" if delegated else "a whole number",
    )
    delay_ms = row.take("delay_ms", not_negative, "a time of at least 0")
    slow_sends = row.take(
        "slow_sends",
        lambda text: _sends(text, stages),
        f"sends between neighbours such as '2>3 3>2', stages 0 to {stages - 1}",
    )
    if delay_ms and not slow_sends:
        raise FormatError(
            f"delay_ms is {delay_ms:g}, but slow_sends names no send", file=row.file, line=row.line
        )
    return MeasuredRun(
        testbed=row.take("testbed", name, "a name"),
        model=row.take("model", name, "a name"),
        system=system,
        stages=stages,
        microbatches=row.take("microbatches", count, "a whole number above 0"),
        gpus_per_node=row.take("gpus_per_node", count, "a whole number above 0"),
        message_bytes=row.take("message_mib", positive, "a size above 0") * 2**20,
        slow_links=row.take("slow_links", str, "links"),
        slow_sends=slow_sends,
        delay_ms=delay_ms,
        delegates=delegates or None,
        healthy_ms=row.take("healthy_ms", positive, "a time above 0"),
        slow_ms=row.take("slow_ms", positive, "a time above 0"),
        place=row.place,
    )


def _sends(text: str, stages: int) -> tuple[tuple[int, int], ...]:
    sends = []
    for part in text.split():
        match = re.fullmatch(r"([0-9]{1,4})>([0-9]{1,4})", part)
        if match is None:
            raise ValueError
        start, end = int(match[1]), int(match[2])
        if abs(start - end) != 1 or max(start, end) >= stages:
            raise ValueError
        sends.append((start, end))
    return tuple(sends)
