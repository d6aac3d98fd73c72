"""Planners: whatever makes a schedule from a scenario. One file for one family."""

from __future__ import annotations

from planners import fused, pipemorph, search, zerobubble  # noqa: F401 - they register themselves
from planners.registry import get, names, plan, planner, summary

__all__ = ["get", "names", "plan", "planner", "summary"]
