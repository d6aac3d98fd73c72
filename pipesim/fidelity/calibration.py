"""Calibration: the constants of each testbed, fitted to measured runs.

Every constant has a handful of candidate values, and a testbed at most four constants. The
fit minimises the mean absolute relative error over the testbed's runs, one constant at a
time until none gets better.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from pipesim.errors import ScenarioError
from pipesim.fidelity.runs import MeasuredRun
from pipesim.fidelity.testbed import CONSTANTS, Prediction, Testbed, predict
from pipesim.formats.measurement import Measurement

__all__ = ["Calibration", "calibrate", "leave_one_setting_out", "predict_all"]

STREAMS = ("device", "peer")


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
    """

    testbeds: dict[str, Testbed]
    fitted_to: tuple[str, ...]
    residual: float

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


Progress = Callable[[str], None]


def calibrate(
    runs: Sequence[MeasuredRun],
    timelines: Measurement | None = None,
    *,
    progress: Progress = lambda text: None,
) -> Calibration:
    """Fit a testbed for each name among ``runs``.

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
    fit = _Fit()
    names = dict.fromkeys(run.testbed for run in runs)
    testbeds = {}
    for name in names:
        progress(f"fitting {name}")
        own = [run for run in runs if run.testbed == name]
        testbeds[name] = fit.testbed(_bare(name, own, timelines), own)
    errors = [fit.error(run, testbeds[run.testbed]) for run in runs]
    return Calibration(testbeds, tuple(run.place for run in runs), float(np.mean(errors)))


def predict_all(runs: Iterable[MeasuredRun], calibration: Calibration) -> list[Prediction]:
    """Predict every run from its testbed."""
    return [predict(run, calibration.testbed(run)) for run in runs]


def leave_one_setting_out(
    runs: Sequence[MeasuredRun],
    timelines: Measurement | None = None,
    *,
    progress: Progress = lambda text: None,
) -> list[Prediction]:
    """Predict each run from a fit that has not seen any run of its setting."""
    fit = _Fit()
    predictions = []
    settings = list(dict.fromkeys(run.setting for run in runs))
    for setting in settings:
        progress(f"leaving out {' '.join(map(str, setting))}")
        name = setting[0]
        seen = [run for run in runs if run.testbed == name and run.setting != setting]
        if not seen:
            raise ScenarioError(f"{name} has one setting only: nothing is left to fit to")
        fitted = fit.testbed(_bare(name, seen, timelines), seen)
        predictions += [predict(run, fitted) for run in runs if run.setting == setting]
    return predictions


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
    """Fits testbeds; predictions are remembered, since many candidates share them."""

    def __init__(self) -> None:
        self._errors: dict[tuple[object, ...], float] = {}

    def error(self, run: MeasuredRun, testbed: Testbed) -> float:
        """Absolute relative error of a run; infinite where the constants are impossible."""
        key = (run, testbed.p2p_streams, *(testbed[name] for name in _matter_to(run)))
        if key not in self._errors:
            try:
                self._errors[key] = abs(predict(run, testbed).error)
            except ScenarioError:
                self._errors[key] = np.inf
        return self._errors[key]

    def testbed(self, bare: Testbed, runs: Sequence[MeasuredRun]) -> Testbed:
        """Return ``bare`` with the constants and streams that fit ``runs`` best."""
        names = _fitted_constants(runs)
        starts = (
            replace(bare, p2p_streams=streams, constants=dict.fromkeys(names, 0.0) | start)
            for streams, start in product(STREAMS, [_START])
        )
        fitted = [self._descend(_restricted(start, names), names, runs) for start in starts]
        return min(fitted, key=lambda testbed: self._mean(testbed, runs))

    def _descend(
        self, testbed: Testbed, names: Sequence[str], runs: Sequence[MeasuredRun]
    ) -> Testbed:
        best = self._mean(testbed, runs)
        improved = True
        while improved:
            improved = False
            for name in names:
                for value in CONSTANTS[name].candidates:
                    other = replace(testbed, constants=testbed.constants | {name: float(value)})
                    mean = self._mean(other, runs)
                    if mean < best - 1e-12:
                        testbed, best, improved = other, mean, True
        return testbed

    def _mean(self, testbed: Testbed, runs: Sequence[MeasuredRun]) -> float:
        return float(np.mean([self.error(run, testbed) for run in runs]))


_START = {"after_ms": 30.0, "transfer_gib_per_s": 10.0, "delegate_ms": 4.0, "host_gib_per_s": 10.0}


def _restricted(testbed: Testbed, names: Sequence[str]) -> Testbed:
    constants = {name: value for name, value in testbed.constants.items() if name in names}
    return replace(testbed, constants=constants)


def _fitted_constants(runs: Sequence[MeasuredRun]) -> list[str]:
    """The four constants of a testbed: nodes of several GPUs tell the host path apart."""
    several = any(run.gpus_per_node > 1 for run in runs)
    return [
        "after_ms",
        "transfer_gib_per_s",
        "delegate_ms",
        "host_gib_per_s" if several else "swap_ms",
    ]


def _matter_to(run: MeasuredRun) -> list[str]:
    """The constants that a run's prediction depends on."""
    names = ["after_ms", "transfer_gib_per_s"]
    if run.system.startswith("pipemorph"):
        names += ["delegate_ms", "host_gib_per_s"]
    if run.system == "pipemorph":
        names.append("swap_ms")
    return names
