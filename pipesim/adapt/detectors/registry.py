"""The detectors by name, with their options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from inspect import signature
from numbers import Real
from types import MappingProxyType
from typing import Any

from pipesim.adapt.detectors.bayesian import Bayesian
from pipesim.adapt.detectors.cusum import Cusum
from pipesim.adapt.detectors.decision import Decision
from pipesim.adapt.detectors.detector import Detector
from pipesim.adapt.detectors.drift import Adwin, PageHinkley
from pipesim.adapt.detectors.ratio import Ratio
from pipesim.adapt.detectors.watch import Changes, Watch
from pipesim.errors import ScenarioError

__all__ = ["DETECTORS", "detector", "detector_from"]

DETECTORS: Mapping[str, Callable[..., Changes]] = MappingProxyType(
    {
        "ratio": Ratio,
        "page-hinkley": PageHinkley,
        "cusum": Cusum,
        "adwin": Adwin,
        "bayesian": Bayesian,
    }
)
"""What says where levels change, by the name of the detector; the first is the default."""

_SHARED = {field.name: str(field.type) for field in fields(Decision)}


def detector(name: str = "ratio", **options: float) -> Callable[[], Detector]:
    """Return what makes a detector: call it once for each link and direction.

    Parameters
    ----------
    name : str
        One of :data:`DETECTORS`.
    **options : float
        Those of :class:`~pipesim.adapt.detectors.decision.Decision`, and the detector's own.

    Raises
    ------
    ScenarioError
        There is no such detector or option, or an option is out of its range.

    Examples
    --------
    >>> link = detector("ratio", warm_up=3)()
    >>> for measured_ms in (10, 10, 10, 30):
    ...     link.update(measured_ms)
    >>> link.slow, link.delay_ms
    (True, 20.0)
    """
    own = _options(name)
    shared: dict[str, Any] = {}
    private: dict[str, Any] = {}
    for option, value in options.items():
        if option not in own and option not in _SHARED:
            known = ", ".join([*_SHARED, *own])
            raise ScenarioError(f"the detector {name} has no option {option!r}: one of {known}")
        if isinstance(value, bool) or not isinstance(value, Real):
            raise ScenarioError(f"{name}: {option} must be a number, not {value!r}")
        whole = (own | _SHARED)[option] == "int"
        if whole and value % 1 != 0:
            raise ScenarioError(f"{name}: {option} must be a whole number, not {value:g}")
        (shared if option in _SHARED else private)[option] = int(value) if whole else float(value)

    def make() -> Detector:
        return Watch(decision, DETECTORS[name](decision, **private))

    try:
        decision = Decision(**shared)
        make()
    except ScenarioError as error:
        raise ScenarioError(f"{name}: {error}") from None
    return make


def detector_from(text: str) -> Callable[[], Detector]:
    """Return what makes a detector, from ``NAME`` or ``NAME:OPTION=NUMBER,…``.

    Raises
    ------
    ScenarioError
        The text is not of that form, or see :func:`detector`.

    Examples
    --------
    >>> detector_from("ratio:threshold=1.5,warm_up=10")().baseline_ms is None
    True
    """
    name, colon, rest = text.partition(":")
    options: dict[str, float] = {}
    for part in rest.split(",") if colon else ():
        option, equals, number = (piece.strip() for piece in part.partition("="))
        if not equals or not option:
            raise ScenarioError(
                f"{text!r}: {part.strip()!r} is not OPTION=NUMBER, such as threshold=1.5"
            )
        if option in options:
            raise ScenarioError(f"{text!r} gives {option} twice")
        try:
            options[option] = int(number) if number.isdecimal() else float(number)
        except ValueError:
            raise ScenarioError(f"{text!r}: {number!r} is not a number") from None
    return detector(name.strip(), **options)


def _options(name: str) -> dict[str, str]:
    """Return the types of a detector's own options, by their names."""
    if name not in DETECTORS:
        raise ScenarioError(f"unknown detector {name!r}: one of {', '.join(DETECTORS)}")
    own = list(signature(DETECTORS[name]).parameters.values())[1:]
    return {parameter.name: str(parameter.annotation) for parameter in own}
