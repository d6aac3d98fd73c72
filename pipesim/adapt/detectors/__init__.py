"""Detectors of slow links: each sees the transfer times of one link and direction, nothing else."""

from pipesim.adapt.detectors.detector import Detector
from pipesim.adapt.detectors.registry import DETECTORS, detector, detector_from

__all__ = ["DETECTORS", "Detector", "detector", "detector_from"]
