"""What is known about a schedule and a scenario without running anything."""

from __future__ import annotations

from pipesim.analysis.blocking import bound_over_ms
from pipesim.analysis.bounds import lower_bound_ms
from pipesim.analysis.slackness import (
    check_lemma_1,
    delay_budget_ms,
    growth_rate,
    needed_slackness,
    slackness,
    smallest_warmup,
    warmup,
)

__all__ = [
    "bound_over_ms",
    "check_lemma_1",
    "delay_budget_ms",
    "growth_rate",
    "lower_bound_ms",
    "needed_slackness",
    "slackness",
    "smallest_warmup",
    "warmup",
]
