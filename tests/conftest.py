"""Settings of the whole suite.

The profile sets how many examples a property test tries: ``default`` for a quick
look, ``ci`` in .ci/run, ``thorough`` for a long search. ``HYPOTHESIS_PROFILE`` in the
environment names one, as does pytest's ``--hypothesis-profile``.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "default",
    deadline=None,  # how long an example takes says how busy the machine is
    derandomize=True,
    max_examples=35,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile("ci", settings.get_profile("default"), max_examples=100)
settings.register_profile(
    "thorough", settings.get_profile("default"), max_examples=5000, derandomize=False
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


# A shell in the background, as some CI systems run, hands on an ignored Ctrl-C, and whoever
# inherits that keeps to it: so do the commands under test.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# The width of somebody's terminal, which breaks lines; test runners set it, too.
os.environ.pop("COLUMNS", None)


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder, without any user's settings of the command line."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PIPESIM_TRACEBACK", raising=False)
    return tmp_path
