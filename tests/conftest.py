"""Settings of the whole suite."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "pipesim",
    deadline=None,
    derandomize=True,
    max_examples=150,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile(
    "thorough", settings.get_profile("pipesim"), max_examples=5000, derandomize=False
)
settings.load_profile("pipesim")
