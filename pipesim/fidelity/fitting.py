"""The search for the constants of a testbed.

Few constants, round values: a constant is let in only where it pays, the one that helps most
first, and none that the runs cannot tell.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, product

import numpy as np

from pipesim.errors import ScenarioError
from pipesim.fidelity.constants import CONSTANTS, MOST_FITTED
from pipesim.fidelity.prediction import predict, profiled
from pipesim.fidelity.runs import MeasuredRun
from pipesim.fidelity.testbed import Testbed
from pipesim.scenario import Scenario

__all__ = ["RUNS_EACH", "WORTH", "Fitter"]

WORTH = 0.001
"""By how much a constant has to lower the loss: a tenth of a percent."""

RUNS_EACH = 2
"""Runs that a constant needs."""


class Fitter:
    """Fits testbeds; profiles and errors are remembered, since many candidates share them."""

    def __init__(self) -> None:
        self._errors: dict[tuple[object, ...], float] = {}
        self._profiles: dict[tuple[object, ...], Scenario] = {}

    def error(self, run: MeasuredRun, testbed: Testbed) -> float:
        """Absolute relative error of a run; infinite where the constants are impossible."""
        healthy = (run, *(testbed[name] for name in _OF_HEALTHY))
        own = _OF_DELEGATED if run.delegated else _OF_NCCL
        delayed = (*healthy, testbed.whole_ms, *(testbed[name] for name in own))
        if delayed not in self._errors:
            try:
                if healthy not in self._profiles:
                    self._profiles[healthy] = profiled(run, testbed)
                prediction = predict(run, testbed, self._profiles[healthy])
                self._errors[delayed] = abs(prediction.error)
            except ScenarioError:
                self._errors[delayed] = np.inf
        return self._errors[delayed]

    def loss(self, testbed: Testbed, runs: Sequence[MeasuredRun]) -> float:
        """Mean absolute error of the runs, plus that of the system that comes out worst."""
        errors = np.array([self.error(run, testbed) for run in runs])
        systems = np.array([run.system for run in runs])
        return float(errors.mean() + max(errors[systems == s].mean() for s in set(systems)))

    def fitted(self, bare: Testbed, runs: Sequence[MeasuredRun]) -> Testbed:
        """Return ``bare`` with the constants that fit ``runs`` best.

        Those that it has already stay as they are.
        """
        whole = replace(bare, whole_ms=True)
        best = min((bare, whole), key=lambda testbed: self.loss(testbed, runs))
        chosen: tuple[str, ...] = ()
        for _ in range(min(MOST_FITTED, len(runs) // RUNS_EACH)):
            trials = [
                (self._descend(best, (*chosen, name), runs), name)
                for name in CONSTANTS
                if name not in chosen and name not in bare.constants
            ]
            testbed, name = min(trials, key=lambda trial: self.loss(trial[0], runs))
            if self.loss(testbed, runs) > self.loss(best, runs) - WORTH:
                break
            best, chosen = testbed, (*chosen, name)
        return best

    def _descend(
        self, testbed: Testbed, names: Sequence[str], runs: Sequence[MeasuredRun]
    ) -> Testbed:
        """Change one of some constants at a time, then two by up to two steps, while that helps."""
        best, moves = self.loss(testbed, runs), _single_moves
        while True:
            for changes in moves(testbed, names):
                other = replace(testbed, constants={**testbed.constants, **changes})
                loss = self.loss(other, runs)
                if loss < best - 1e-12:
                    testbed, best, moves = other, loss, _single_moves
                    break
            else:
                if moves is _double_moves:
                    return testbed
                moves = _double_moves


def _single_moves(testbed: Testbed, names: Sequence[str]) -> Iterator[Mapping[str, float]]:
    """Every candidate of every constant, those of the last one first."""
    for name in reversed(names):
        for value in CONSTANTS[name].candidates:
            yield {name: float(value)}


def _double_moves(testbed: Testbed, names: Sequence[str]) -> Iterator[Mapping[str, float]]:
    """Two steps of two constants: what one adds, another may have to give back."""
    near = {name: _neighbours(name, testbed[name]) for name in names}
    for one, other in combinations(names, 2):
        for a, b in product(near[one], near[other]):
            yield {one: a, other: b}


def _neighbours(name: str, value: float) -> list[float]:
    candidates = [float(candidate) for candidate in CONSTANTS[name].candidates]
    at = candidates.index(value)
    return candidates[max(at - 2, 0) : at] + candidates[at + 1 : at + 3]


_OF_HEALTHY = ("after_ms", "transfer_gib_per_s")
_OF_NCCL = ("overshoot_ms", "idle_speed")
_OF_DELEGATED = ("copy_gib_per_s", "delegate_ms", "host_gib_per_s", "replanned_ms")
"""The constants that a run's profile depends on, and its prediction on top."""
