"""Calibration: the constants of each testbed, fitted to measured runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipesim.errors import ScenarioError
from pipesim.fidelity.fitting import Fitter
from pipesim.fidelity.prediction import Prediction, predict
from pipesim.fidelity.profiles import OperatorTimes, from_timelines, ratios
from pipesim.fidelity.runs import MeasuredRun, healthy_of
from pipesim.fidelity.testbed import Testbed
from pipesim.formats.measurement import Measurement
from pipesim.scenario import Scenario

__all__ = ["Calibration", "Calibrator", "predict_all"]


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


class Calibrator:
    """Fits testbeds to measured runs.

    Parameters
    ----------
    runs : sequence of MeasuredRun
        What to fit to.
    timelines : Measurement, optional
        Operator timelines of one model. They are its profile on the testbed whose healthy
        iterations they match, and tell some of that testbed's constants.
    operators : mapping of str to OperatorTimes, optional
        The profiles of models by name, on all testbeds where one of them was run.
    progress : callable
        Told what is being fitted.
    """

    def __init__(
        self,
        runs: Sequence[MeasuredRun],
        timelines: Measurement | None = None,
        operators: Mapping[str, OperatorTimes] | None = None,
        *,
        progress: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.runs = tuple(runs)
        self.timelines = timelines
        self.operators = operators or {}
        self.progress = progress
        self._fitter = Fitter()

    def calibrate(self) -> Calibration:
        """Fit a testbed for each name among the runs."""
        testbeds = {}
        for name in dict.fromkeys(run.testbed for run in self.runs):
            self.progress(f"fitting {name}")
            testbeds[name] = self._fitted(name, [run for run in self.runs if run.testbed == name])
        errors = [self._fitter.error(run, testbeds[run.testbed]) for run in self.runs]
        return Calibration(testbeds, tuple(run.place for run in self.runs), float(np.mean(errors)))

    def leave_one_setting_out(self) -> list[Prediction]:
        """Predict each run from a fit that has not seen any run of its setting.

        Runs of a testbed with a single setting are left out: nothing would be seen.
        """
        predictions = []
        for setting in dict.fromkeys(run.setting for run in self.runs):
            name = setting[0]
            self.progress(f"leaving out {' '.join(map(str, setting))}")
            seen = [run for run in self.runs if run.testbed == name and run.setting != setting]
            if seen:
                testbed = self._fitted(name, seen)
                left_out = [run for run in self.runs if run.setting == setting]
                predictions += [predict(run, testbed) for run in left_out]
        return predictions

    def checked(self) -> Calibration:
        """Fit, and add what leaving one setting out says of the fit.

        The testbeds get the errors of their runs. A testbed with a single setting has none.
        """
        calibration = self.calibrate()
        predictions = self.leave_one_setting_out()
        if not predictions:
            return calibration
        testbeds = dict(calibration.testbeds)
        for name, testbed in testbeds.items():
            errors: dict[str, tuple[float, ...]] = {}
            for one in predictions:
                if one.measured.testbed == name:
                    error = one.measured_ms / one.predicted_ms - 1
                    system = one.system
                    errors[system] = (*errors.get(system, ()), round(error, 5))
            testbeds[name] = replace(testbed, errors=errors)
        left_out = float(np.mean([abs(one.error) for one in predictions]))
        return replace(calibration, testbeds=testbeds, left_out=left_out)

    def _fitted(self, name: str, runs: Sequence[MeasuredRun]) -> Testbed:
        return self._fitter.fitted(self._bare(name, runs), runs)

    def _bare(self, name: str, runs: Sequence[MeasuredRun]) -> Testbed:
        """Return a testbed with what was measured, before anything is fitted."""
        profiles: dict[str, Scenario] = {}
        constants: dict[str, float] = {}
        if any(run.model in self.operators for run in runs):
            # The table is of this testbed, with its models that were not run here.
            shapes = {run.model: run.microbatches for run in runs}
            for model, own in self.operators.items():
                profiles[model] = own.scenario(shapes.get(model, 1))
        for model, matching in self._timed(runs).items():
            assert self.timelines is not None
            found = from_timelines(self.timelines, matching)
            profiles[model] = found.scenario
            constants.update(found.constants)
        known = list(profiles.values())
        if not known and self.timelines is not None:
            known = [self.timelines.scenario]
        return Testbed(
            name,
            constants,
            read=tuple(constants),
            ratios=ratios(known),
            profiles=profiles,
            healthy_ms=healthy_of(run for run in runs if run.testbed == name),
            message_bytes=float(np.median([run.message_bytes for run in runs])),
        )

    def _timed(self, runs: Sequence[MeasuredRun]) -> dict[str, list[MeasuredRun]]:
        """The runs of the model that the timelines are of, by its name; at most one."""
        if self.timelines is None:
            return {}
        times = self.timelines.scenario
        shape = times.stages, times.microbatches
        healthy = [one.timeline.iteration_ms for one in self.timelines.iterations if one.used]
        usual_ms = float(np.median(healthy))
        for model in dict.fromkeys(run.model for run in runs):
            own = [run for run in runs if run.model == model]
            alike = [
                run
                for run in own
                if (run.stages, run.microbatches) == shape
                and abs(run.healthy_ms / usual_ms - 1) < _SAME_MODEL
            ]
            if alike:
                return {model: own}
        return {}


def predict_all(runs: Iterable[MeasuredRun], calibration: Calibration) -> list[Prediction]:
    """Predict every run from its testbed.

    Raises
    ------
    ScenarioError
        The calibration lacks a testbed, or a run's healthy iteration cannot be.
    """
    return [predict(run, calibration.testbed(run)) for run in runs]


_SAME_MODEL = 0.2
"""Timelines are of the runs of their shape whose healthy iteration is this close."""
