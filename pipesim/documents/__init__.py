"""Our own files: scenarios as TOML, plans as JSON, and the checked reading that they share.

Every reader returns a valid object or raises a :class:`pipesim.errors.FormatError` that names the
file and the place in it; every writer writes the whole file or nothing.
"""

from __future__ import annotations

from pipesim.documents.plan_json import load_plan, save_plan
from pipesim.documents.scenario_toml import load_scenario, save_scenario

__all__ = ["load_plan", "load_scenario", "save_plan", "save_scenario"]
