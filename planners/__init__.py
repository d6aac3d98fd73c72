"""Planners make a schedule from a scenario. One file per family.

Each file of this package registers its planners when it is imported; all files are imported here.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from planners.registry import chunks, get, names, plan, planner, summary, takes_group_size

__all__ = ["chunks", "get", "names", "plan", "planner", "summary", "takes_group_size"]

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
