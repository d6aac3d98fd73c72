"""Measured data-parallel jobs: run again, healed, and what holds them up."""
