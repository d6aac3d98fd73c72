"""Commands are found, not listed: each is one file."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import pipesim.cli
from pipesim.cli import importing, tracing
from pipesim.cli.app import app


@pytest.mark.parametrize(
    ("package", "words"),
    [
        (pipesim.cli, "pipesim"),
        (importing, "pipesim import"),
        (tracing, "pipesim trace"),
    ],
)
def test_every_command_is_a_file_with_examples(package: object, words: str) -> None:
    folder = Path(package.__path__[0])  # type: ignore[attr-defined]
    found = 0
    for file in folder.glob("*.py"):
        module = importlib.import_module(f"{package.__name__}.{file.stem}")  # type: ignore[attr-defined]
        for example in getattr(module, "EXAMPLES", ()):
            assert example.startswith(f"{words} {file.stem.replace('_', '-')} ".rstrip())
            found += 1
    assert found >= 3


def test_examples_stand_in_the_help() -> None:
    done = CliRunner().invoke(app, ["import", "profiler", "--help"])
    assert "pipesim import profiler rank0.json.gz rank1.json.gz -o scenario.toml" in done.stdout


def test_the_help_speaks_of_files_not_of_types() -> None:
    for words in (["explain"], ["import", "megatron"], ["import", "profiler"]):
        text = CliRunner().invoke(app, [*words, "--help"]).stdout
        assert "list[" not in text
        assert "<path>" in text


def test_a_new_file_is_a_new_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "say_hello_once.py").write_text(
        "EXAMPLES = ('pipesim say_hello_once',)\n"
        "def say_hello_once() -> None:\n"
        "    '''Say hello.'''\n"
        "    print('hello')\n"
    )
    monkeypatch.setattr(pipesim.cli, "__path__", [*pipesim.cli.__path__, str(tmp_path)])
    from pipesim.cli.app import _commands

    try:
        (command,) = [c for c, _ in _commands(pipesim.cli) if c.__name__ == "say_hello_once"]
    finally:
        sys.modules.pop("pipesim.cli.say_hello_once", None)
    small = typer.Typer()
    small.command()(command)
    assert CliRunner().invoke(small, []).stdout == "hello\n"
