"""Calibration: the constants of each testbed, fitted to measured runs.

Every constant has a handful of candidate values, and a testbed at most four constants. The
fit minimises the mean absolute relative error over the testbed's runs, plus that of the
system that comes out worst, by changing one or two constants at a time while that helps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product

import numpy as np

from pipesim.errors import ScenarioError
from pipesim.fidelity.runs import MeasuredRun
from pipesim.fidelity.testbed import CONSTANTS, Prediction, Testbed, predict, profiled
from pipesim.formats.measurement import Measurement
from pipesim.scenario import Scenario

__all__ = ["STREAMS", "Calibration", "Calibrator", "predict_all"]

STREAMS = ("device", "peer")
"""Which NCCL kernels share a stream is chosen with the constants.

Evidence, zero-bubble runs under the shipped constants: on the A10, one stream per device is 1.2 %
off on average, one per peer 4.2 %; on the H800, one per device is 7.5 % off and 19 % at worst, one
per peer 5.6 % and 15 %.
"""


@dataclass(frozen=True)
class Calibration:
    """The testbeds that were fitted, and to what.

    Attributes
    ----------
    testbeds : dict of str to Testbed
        By name.
    fitted_to : tuple of str
        File and line of each row.
    residual : float
        Mean absolute relative error over these rows.
    left_out : float, optional
        The same where each setting is predicted from a fit without it.
    """

    testbeds: dict[str, Testbed]
    fitted_to: tuple[str, ...]
    residual: float
    left_out: float | None = None

    def testbed(self, run: MeasuredRun) -> Testbed:
        """Return the testbed of a run.

        Raises
        ------
        ScenarioError
            The calibration does not know it.
        """
        if run.testbed not in self.testbeds:
            known = ", ".join(self.testbeds)
            raise ScenarioError(
                f"{run.place}: the calibration has no testbed {run.testbed!r} (it has: {known})"
            )
        return self.testbeds[run.testbed]

    def checked(self, left_out: Sequence[Prediction]) -> Calibration:
        """Return this calibration with how far off predictions of settings left out were.

        Parameters
        ----------
        left_out : sequence of Prediction
            See :meth:`Calibrator.leave_one_setting_out`.
        """
        errors: dict[str, dict[str, tuple[float, ...]]] = {name: {} for name in self.testbeds}
        for one in left_out:
            own, system = errors[one.measured.testbed], one.measured.system
            own[system] = (*own.get(system, ()), one.measured.slow_ms / one.slow_ms - 1)
        testbeds = {
            name: replace(testbed, errors=errors[name]) for name, testbed in self.testbeds.items()
        }
        mean = float(np.mean([abs(one.error) for one in left_out])) if left_out else None
        return replace(self, testbeds=testbeds, left_out=mean)


class Calibrator:
    """Fits testbeds to measured runs.

    Parameters
    ----------
    runs : sequence of MeasuredRun
        What to fit to.
    timelines : Measurement, optional
        Operator timelines of one model. They are the profile of the testbed whose healthy
        iterations they match, and give the relative times of F, B and W everywhere.
    progress : callable
        Told what is being fitted.
    """

    def __init__(
        self,
        runs: Sequence[MeasuredRun],
        timelines: Measurement | None = None,
        *,
        progress: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.runs = tuple(runs)
        self.timelines = timelines
        self.progress = progress
        self._fit = _Fit()

    def calibrate(self) -> Calibration:
        """Fit a testbed for each name among the runs."""
        testbeds = {}
        for name in dict.fromkeys(run.testbed for run in self.runs):
            self.progress(f"fitting {name}")
            testbeds[name] = self._fitted(name, [run for run in self.runs if run.testbed == name])
        errors = [self._fit.error(run, testbeds[run.testbed]) for run in self.runs]
        return Calibration(testbeds, tuple(run.place for run in self.runs), float(np.mean(errors)))

    def leave_one_setting_out(self) -> list[Prediction]:
        """Predict each run from a fit that has not seen any run of its setting.

        Testbeds in :attr:`alone` are left out: there is nothing to fit to.
        """
        predictions = []
        for setting in dict.fromkeys(run.setting for run in self.runs):
            name = setting[0]
            if name in self.alone:
                continue
            self.progress(f"leaving out {' '.join(map(str, setting))}")
            seen = [run for run in self.runs if run.testbed == name and run.setting != setting]
            testbed = self._fitted(name, seen)
            predictions += [predict(run, testbed) for run in self.runs if run.setting == setting]
        return predictions

    @property
    def alone(self) -> tuple[str, ...]:
        """The testbeds with a single setting: how far off they are in others cannot be known."""
        settings: dict[str, set[object]] = {}
        for run in self.runs:
            settings.setdefault(run.testbed, set()).add(run.setting)
        return tuple(name for name, own in settings.items() if len(own) == 1)

    def _fitted(self, name: str, runs: Sequence[MeasuredRun]) -> Testbed:
        bare = _bare(name, runs, self.timelines)
        bare = replace(bare, message_bytes=float(np.median([run.message_bytes for run in runs])))
        return self._fit.testbed(bare, runs)


def predict_all(runs: Iterable[MeasuredRun], calibration: Calibration) -> list[Prediction]:
    """Predict every run from its testbed.

    Raises
    ------
    ScenarioError
        The calibration lacks a testbed, or a run's healthy iteration cannot be.
    """
    return [predict(run, calibration.testbed(run)) for run in runs]


def _bare(name: str, runs: Sequence[MeasuredRun], timelines: Measurement | None) -> Testbed:
    """Return a testbed with what was measured, before anything is fitted."""
    if timelines is None:
        return Testbed(name)
    times = timelines.scenario
    means = [float(times.durations_ms(kind).mean()) for kind in ("F", "B", "W")]
    forward, backward, weight = (round(mean / means[0], 3) for mean in means)
    healthy = [one.timeline.iteration_ms for one in timelines.iterations if one.used]
    matching = [
        run
        for run in runs
        if (run.stages, run.microbatches) == (times.stages, times.microbatches)
        and abs(run.healthy_ms / float(np.median(healthy)) - 1) < _SAME_MODEL
    ]
    profile = times if matching else None
    return Testbed(name, forward=forward, backward=backward, weight=weight, profile=profile)


_SAME_MODEL = 0.2
"""Timelines are of the runs of their shape whose healthy iteration is this close."""


class _Fit:
    """Fits testbeds; profiles and errors are remembered, since many candidates share them."""

    def __init__(self) -> None:
        self._errors: dict[tuple[object, ...], float] = {}
        self._profiles: dict[tuple[object, ...], Scenario] = {}

    def error(self, run: MeasuredRun, testbed: Testbed) -> float:
        """Absolute relative error of a run; infinite where the constants are impossible."""
        healthy = (run, testbed.p2p_streams, *(testbed[name] for name in _OF_HEALTHY))
        delayed = (*healthy, *(testbed[name] for name in _OF_DELAYED[run.system]))
        if delayed not in self._errors:
            try:
                if healthy not in self._profiles:
                    self._profiles[healthy] = profiled(run, testbed)
                prediction = predict(run, testbed, self._profiles[healthy])
                self._errors[delayed] = abs(prediction.error)
            except ScenarioError:
                self._errors[delayed] = np.inf
        return self._errors[delayed]

    def testbed(self, bare: Testbed, runs: Sequence[MeasuredRun]) -> Testbed:
        """Return ``bare`` with the constants and streams that fit ``runs`` best."""
        start = {name: _START[name] for name in _fitted_constants(runs)}
        fitted = [
            self._descend(replace(bare, p2p_streams=streams, constants=start), runs)
            for streams in STREAMS
        ]
        return min(fitted, key=lambda testbed: self._loss(testbed, runs))

    def _descend(self, testbed: Testbed, runs: Sequence[MeasuredRun]) -> Testbed:
        """Change one constant at a time, then two by up to two steps each, while that helps."""
        best, moves = self._loss(testbed, runs), _single_moves
        while True:
            for constants in moves(testbed.constants):
                other = replace(testbed, constants=testbed.constants | constants)
                loss = self._loss(other, runs)
                if loss < best - 1e-12:
                    testbed, best, moves = other, loss, _single_moves
                    break
            else:
                if moves is _double_moves:
                    return testbed
                moves = _double_moves

    def _loss(self, testbed: Testbed, runs: Sequence[MeasuredRun]) -> float:
        errors = np.array([self.error(run, testbed) for run in runs])
        systems = np.array([run.system for run in runs])
        return float(errors.mean() + max(errors[systems == s].mean() for s in set(systems)))


def _single_moves(constants: dict[str, float]) -> Iterator[dict[str, float]]:
    """Every candidate of every constant."""
    for name in constants:
        for value in CONSTANTS[name].candidates:
            yield {name: float(value)}


def _double_moves(constants: dict[str, float]) -> Iterator[dict[str, float]]:
    """Two steps of two constants: what one adds, another may have to give back."""
    near = {name: _neighbours(name, value) for name, value in constants.items()}
    for one, other in combinations(constants, 2):
        for a, b in product(near[one], near[other]):
            yield {one: a, other: b}


def _neighbours(name: str, value: float) -> list[float]:
    candidates = [float(candidate) for candidate in CONSTANTS[name].candidates]
    at = candidates.index(value)
    return candidates[max(at - 2, 0) : at] + candidates[at + 1 : at + 3]


_START = {
    "after_ms": 30.0,
    "transfer_gib_per_s": 5.0,
    "delegate_ms": 4.0,
    "host_gib_per_s": 10.0,
    "replanned_ms": 0.0,
}
_OF_HEALTHY = ("after_ms", "transfer_gib_per_s")
_OF_DELAYED = {
    "1f1b": (),
    "zerobubble": (),
    "pipemorph-cpu": ("delegate_ms", "host_gib_per_s"),
    "pipemorph": ("delegate_ms", "host_gib_per_s", "replanned_ms"),
}
"""The constants that a run's profile depends on, and its prediction on top."""


def _fitted_constants(runs: Sequence[MeasuredRun]) -> list[str]:
    """The four constants of a testbed: nodes of several GPUs tell the host path apart."""
    several = any(run.gpus_per_node > 1 for run in runs)
    return [
        "after_ms",
        "transfer_gib_per_s",
        "delegate_ms",
        "host_gib_per_s" if several else "replanned_ms",
    ]
