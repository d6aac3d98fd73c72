"""Delays that change for hours: traces, detectors, re-planning, and data-parallel jobs."""
