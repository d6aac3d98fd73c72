"""What metadata and documents say about the package is true, and said once."""

from __future__ import annotations

import tomllib

from tests import ROOT


def test_the_version_is_written_down_once() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["dynamic"] == ["version"]
    assert "version" not in project["project"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "pipesim.__version__"}
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8").splitlines()
    assert not [line for line in citation if line.startswith("version:")]


def test_testbeds_come_along() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = project["tool"]["setuptools"]["package-data"]["pipesim.fidelity"]
    folder = ROOT / "pipesim" / "fidelity"
    packed = {file for pattern in patterns for file in folder.glob(pattern)}
    assert packed == set(folder.rglob("*.toml")) != set()
