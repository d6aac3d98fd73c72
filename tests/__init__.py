"""Tests, in folders named like those of the code they test."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
