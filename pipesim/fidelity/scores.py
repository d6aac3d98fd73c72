"""How far predictions are from measurements, and whether they rank systems right."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Generic, Protocol, TypeVar

import numpy as np

__all__ = ["TELLING_APART", "Scored", "Scores"]

TELLING_APART = 0.03
"""Systems of one setting whose measured times differ by less than this are not ranked."""


class Scored(Protocol):
    """A predicted iteration time beside the measured one."""

    @property
    def system(self) -> str:
        """What ran."""

    @property
    def setting(self) -> Hashable:
        """What was the same for all systems that can be ranked against each other."""

    @property
    def measured_ms(self) -> float:
        """The measured iteration time."""

    @property
    def predicted_ms(self) -> float:
        """The predicted one."""

    @property
    def interval_ms(self) -> tuple[float, float] | None:
        """Where it is 90 % of the time; None where that is not known."""


P = TypeVar("P", bound=Scored)


@dataclass(frozen=True)
class Scores(Generic[P]):
    """Predictions of measurements, and what they are worth.

    Errors are relative and signed: above 0 the prediction is too long.
    """

    predictions: Sequence[P]

    @property
    def errors(self) -> list[float]:
        """The error of each prediction."""
        return [one.predicted_ms / one.measured_ms - 1 for one in self.predictions]

    @property
    def mape(self) -> float:
        """Mean absolute relative error."""
        return float(np.abs(self.errors).mean())

    @property
    def bias(self) -> float:
        """Mean signed relative error."""
        return float(np.mean(self.errors))

    @property
    def worst(self) -> float:
        """Largest absolute relative error."""
        return float(np.abs(self.errors).max())

    def grouped(self, key: Callable[[P], str]) -> dict[str, Scores[P]]:
        """Return the scores of each group of predictions, in order of appearance."""
        groups: dict[str, list[P]] = {}
        for prediction in self.predictions:
            groups.setdefault(key(prediction), []).append(prediction)
        return {name: Scores(group) for name, group in groups.items()}

    def by_system(self) -> dict[str, Scores[P]]:
        """The scores of each system."""
        return self.grouped(lambda prediction: prediction.system)

    def rankings(self) -> dict[Hashable, bool]:
        """Whether each setting's systems are ranked as measured, by setting.

        Only settings with systems that the measurement tells apart are listed, and only
        pairs that it tells apart count.
        """
        settings: dict[Hashable, list[P]] = {}
        for prediction in self.predictions:
            settings.setdefault(prediction.setting, []).append(prediction)
        right = {}
        for setting, group in settings.items():
            pairs = [
                (a, b) for a, b in combinations(group, 2) if _apart(a.measured_ms, b.measured_ms)
            ]
            if pairs:
                right[setting] = all(
                    (a.predicted_ms < b.predicted_ms) == (a.measured_ms < b.measured_ms)
                    for a, b in pairs
                )
        return right

    @property
    def ranking_agreement(self) -> float | None:
        """Part of the settings that are ranked right; None where there is none to rank."""
        right = list(self.rankings().values())
        return float(np.mean(right)) if right else None

    @property
    def covered(self) -> tuple[int, int]:
        """How many measurements are in their intervals, and how many have one."""
        inside = [
            low <= one.measured_ms <= high
            for one in self.predictions
            if one.interval_ms is not None
            for low, high in (one.interval_ms,)
        ]
        return sum(inside), len(inside)

    @property
    def coverage(self) -> float | None:
        """The former as a part of the latter; None where there are no intervals."""
        inside, known = self.covered
        return inside / known if known else None

    def figures(self) -> dict[str, object]:
        """How many predictions, their mean absolute error and their bias, in JSON types."""
        return {"runs": len(self.predictions), "mape": self.mape, "bias": self.bias}


def _apart(one_ms: float, other_ms: float) -> bool:
    return max(one_ms, other_ms) / min(one_ms, other_ms) > 1 + TELLING_APART
