"""Production traces: a parquet file with one row for each operation."""

from __future__ import annotations

from pipesim.formats.production.importer import import_production
from pipesim.formats.production.trace import ProductionIteration, ProductionTrace, read_production

__all__ = ["ProductionIteration", "ProductionTrace", "import_production", "read_production"]
