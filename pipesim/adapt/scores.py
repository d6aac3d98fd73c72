"""How good detectors are: how late they notice, what they miss, and what they only imagine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from pipesim.adapt.detectors import Detector, detector_from
from pipesim.adapt.series import CASES, WAYS, Series, synthetic
from pipesim.scenario import Array

__all__ = ["Flags", "Score", "evaluate", "scored"]

Flags: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True)
class Score:
    """What a detector made of labelled series. A link is slow, in truth, while it has a delay.

    Parameters
    ----------
    detector, case : str
        Who, and on what.
    slowdowns : int
        How often a link became slow.
    missed : int
        How many of them were over before the detector called the link slow.
    detected, detected_p90 : float or None
        Iterations until it did: mean, and in nine of ten cases at most; 1: by the first
        measurement. None: there were none.
    recovered, recovered_p90 : float or None
        The same from the end of a slowdown until it called the link healthy.
    false_alarms : int
        How often it called a healthy link slow.
    healthy : int
        Iterations of healthy links.
    error : float or None
        Mean error of the estimate while the link was slow and called so, as a part of the delay.
    estimates : float or None
        How often the estimate changed, for each change of a link's delay.
    """

    detector: str
    case: str
    slowdowns: int
    missed: int
    detected: float | None
    detected_p90: float | None
    recovered: float | None
    recovered_p90: float | None
    false_alarms: int
    healthy: int
    error: float | None
    estimates: float | None

    @property
    def false_per_1000(self) -> float | None:
        """False alarms in a thousand iterations of a healthy link; None: it never was healthy."""
        return 1000 * self.false_alarms / self.healthy if self.healthy else None

    def as_dict(self) -> dict[str, object]:
        """Return all in JSON types."""
        return asdict(self) | {"false_per_1000": self.false_per_1000}


def evaluate(
    detectors: Iterable[str],
    *,
    jitter: float = 0.05,
    seed: int = 0,
    trials: int = WAYS,
    base_ms: float = 10.0,
    report: Callable[[str], None] = lambda text: None,
    series: Mapping[str, Sequence[Series]] | None = None,
) -> list[Score]:
    """Return the scores of detectors: of each on every case, case by case.

    Parameters
    ----------
    detectors : iterable of str
        As :func:`~pipesim.adapt.detectors.detector_from` reads them.
    jitter, seed, trials, base_ms
        See :func:`~pipesim.adapt.series.synthetic`.
    report : callable, optional
        Told what is being done.
    series : mapping of str to series, optional
        Cases to judge by, instead of the synthetic ones.

    Raises
    ------
    ScenarioError
        There is no such detector.
    """
    makers = {text: detector_from(text) for text in detectors}
    scores = []
    for case in CASES if series is None else series:
        known = (
            list(synthetic(case, jitter=jitter, seed=seed, trials=trials, base_ms=base_ms))
            if series is None
            else series[case]
        )
        for text, make in makers.items():
            report(f"{text}: {case}")
            scores.append(scored(text, case, make, known))
    return scores


def scored(name: str, case: str, make: Callable[[], Detector], series: Iterable[Series]) -> Score:
    """Return the score of one detector on one case, of any number of series."""
    sums = _Sums()
    for one in series:
        sums.add(one, *_watched(make(), one.measured_ms))
    return Score(
        detector=name,
        case=case,
        slowdowns=sums.slowdowns,
        missed=sums.slowdowns - len(sums.detected),
        detected=_mean(sums.detected),
        detected_p90=_ninetieth(sums.detected),
        recovered=_mean(sums.recovered),
        recovered_p90=_ninetieth(sums.recovered),
        false_alarms=sums.false_alarms,
        healthy=sums.healthy,
        error=_mean(sums.errors),
        estimates=sums.estimates / sums.changes if sums.changes else None,
    )


def _watched(detector: Detector, measured_ms: Array) -> tuple[Flags, Array]:
    """Return what a detector says after each measurement: whether slow, and the estimate."""
    said = []
    for measured in measured_ms.tolist():
        detector.update(measured)
        said.append((detector.slow, detector.delay_ms))
    slow, delay_ms = zip(*said, strict=True)
    return np.array(slow), np.array(delay_ms)


@dataclass
class _Sums:
    """What scores are made of, over several series."""

    slowdowns: int = 0
    detected: list[float] = field(default_factory=list)
    recovered: list[float] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    false_alarms: int = 0
    healthy: int = 0
    estimates: int = 0
    changes: int = 0

    def add(self, series: Series, slow: Flags, delay_ms: Array) -> None:
        """Add what a detector said of a series."""
        truth = series.delay_ms > 0
        for begin, end, following in _slowdowns(truth):
            self.slowdowns += 1
            called = np.flatnonzero(slow[begin:end])
            if len(called):
                self.detected.append(int(called[0]) + 1)
                healthy_again = np.flatnonzero(~slow[end:following])
                if slow[end - 1] and len(healthy_again):
                    self.recovered.append(int(healthy_again[0]) + 1)
        became = slow & ~np.append(False, slow[:-1])
        self.false_alarms += int((became & ~truth).sum())
        self.healthy += int((~truth).sum())
        judged = truth & slow & np.isfinite(series.delay_ms)
        off = np.abs(delay_ms[judged] / series.delay_ms[judged] - 1)
        self.errors.extend(off.tolist())
        self.estimates += int((np.diff(delay_ms) != 0).sum())
        self.changes += int((np.diff(series.delay_ms) != 0).sum())


def _slowdowns(slow: Flags) -> Iterator[tuple[int, int, int]]:
    """Yield where each slowdown begins, ends, and where the next begins."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], slow, [False]]).astype(int)))
    begins, ends = edges[::2], edges[1::2]
    following = np.append(begins, len(slow))[1:]
    yield from zip(begins.tolist(), ends.tolist(), following.tolist(), strict=True)


def _mean(values: list[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _ninetieth(values: list[float]) -> float | None:
    return float(np.quantile(values, 0.9, method="inverted_cdf")) if values else None
