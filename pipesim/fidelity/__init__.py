"""Fidelity: how well pipesim predicts what was measured on real GPUs."""
