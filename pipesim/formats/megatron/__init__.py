"""Training logs of Megatron-LM."""

from __future__ import annotations

from pipesim.formats.megatron.importer import import_megatron

__all__ = ["import_megatron"]
