"""Validation: predictions of the runs with a delayed link, and how far off they are."""

from __future__ import annotations

from pipesim.fidelity.prediction import Prediction
from pipesim.fidelity.scores import Scores

__all__ = ["Validation"]


class Validation(Scores[Prediction]):
    """Predictions of measured runs, and what they are worth."""

    def by_testbed(self) -> dict[str, Scores[Prediction]]:
        """The scores of each testbed."""
        return self.grouped(lambda prediction: prediction.measured.testbed)

    def as_dict(self) -> dict[str, object]:
        """The validation in JSON types."""
        return {
            "rows": [
                {
                    "testbed": one.measured.testbed,
                    "model": one.measured.model,
                    "system": one.system,
                    "slow_links": one.measured.slow_links,
                    "delay_ms": one.measured.delay_ms,
                    "measured_ms": one.measured_ms,
                    "predicted_ms": one.predicted_ms,
                    "error": one.error,
                    "interval_ms": one.interval_ms,
                }
                for one in self.predictions
            ],
            **self.figures(),
            "worst": self.worst,
            "coverage": self.coverage,
            "by_testbed": {
                name: {
                    **one.figures(),
                    "by_system": {s: own.figures() for s, own in one.by_system().items()},
                }
                for name, one in self.by_testbed().items()
            },
            "by_system": {name: one.figures() for name, one in self.by_system().items()},
            "ranking_agreement": self.ranking_agreement,
        }
