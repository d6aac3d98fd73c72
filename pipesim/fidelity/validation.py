"""Validation: how far predictions are from measurements, and whether they rank systems right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from pipesim.fidelity.prediction import Prediction

__all__ = ["TELLING_APART", "Validation"]

TELLING_APART = 0.03
"""Systems of one setting whose measured times differ by less than this are not ranked."""


def _apart(one_ms: float, other_ms: float) -> bool:
    return max(one_ms, other_ms) / min(one_ms, other_ms) > 1 + TELLING_APART


@dataclass(frozen=True)
class Validation:
    """Predictions of measured runs, and what they are worth.

    Errors are relative and signed: above 0 the prediction is too long.
    """

    predictions: Sequence[Prediction]

    @property
    def errors(self) -> list[float]:
        """The error of each prediction."""
        return [prediction.error for prediction in self.predictions]

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

    def grouped(self, key: Callable[[Prediction], str]) -> dict[str, Validation]:
        """Return a validation of each group of predictions, in order of appearance."""
        groups: dict[str, list[Prediction]] = {}
        for prediction in self.predictions:
            groups.setdefault(key(prediction), []).append(prediction)
        return {name: Validation(group) for name, group in groups.items()}

    def by_testbed(self) -> dict[str, Validation]:
        """A validation of each testbed."""
        return self.grouped(lambda prediction: prediction.measured.testbed)

    def by_system(self) -> dict[str, Validation]:
        """A validation of each system."""
        return self.grouped(lambda prediction: prediction.measured.system)

    def rankings(self) -> dict[tuple[str, str, str, float], bool]:
        """Whether each setting's systems are ranked as measured, by setting.

        Only settings with systems that the measurement tells apart are listed, and only
        pairs that it tells apart count.
        """
        settings: dict[tuple[str, str, str, float], list[Prediction]] = {}
        for prediction in self.predictions:
            settings.setdefault(prediction.measured.setting, []).append(prediction)
        right = {}
        for setting, group in settings.items():
            pairs = [
                (a, b)
                for a, b in combinations(group, 2)
                if _apart(a.measured.slow_ms, b.measured.slow_ms)
            ]
            if pairs:
                right[setting] = all(
                    (a.slow_ms < b.slow_ms) == (a.measured.slow_ms < b.measured.slow_ms)
                    for a, b in pairs
                )
        return right

    @property
    def ranking_agreement(self) -> float | None:
        """Part of the settings that are ranked right; None where there is none to rank."""
        right = list(self.rankings().values())
        return float(np.mean(right)) if right else None

    def as_dict(self) -> dict[str, object]:
        """The validation in JSON types."""
        return {
            "rows": [
                {
                    "testbed": one.measured.testbed,
                    "model": one.measured.model,
                    "system": one.measured.system,
                    "slow_links": one.measured.slow_links,
                    "delay_ms": one.measured.delay_ms,
                    "measured_ms": one.measured.slow_ms,
                    "predicted_ms": one.slow_ms,
                    "error": one.error,
                }
                for one in self.predictions
            ],
            **self._figures(),
            "worst": self.worst,
            "by_testbed": {
                name: {
                    **one._figures(),
                    "by_system": {s: own._figures() for s, own in one.by_system().items()},
                }
                for name, one in self.by_testbed().items()
            },
            "by_system": {name: one._figures() for name, one in self.by_system().items()},
            "ranking_agreement": self.ranking_agreement,
        }

    def _figures(self) -> dict[str, object]:
        return {"runs": len(self.predictions), "mape": self.mape, "bias": self.bias}
