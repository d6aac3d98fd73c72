"""Our own files: scenarios as TOML, plans as JSON, and the checked reading that they share.

Every reader gives a valid object or a :class:`pipesim.errors.FormatError` that names the
file and the place in it; every writer leaves the whole file or none.
"""

from __future__ import annotations

from pipesim.documents.plan_json import load_plan, save_plan
from pipesim.documents.scenario_toml import load_scenario, save_scenario

__all__ = ["load_plan", "load_scenario", "save_plan", "save_scenario"]
