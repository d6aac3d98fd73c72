"""The layout: which room imports which, and what every file must have."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests import ROOT

NOUNS = (
    "errors",
    "files",
    "text",
    "scenario",
    "delays",
    "units",
    "actions",
    "communication",
    "schedule",
    "transport",
    "target",
    "program",
    "timeline",
    "lowering",
)
"""From the ground up: each may import those before it."""

ROOMS = {
    "pipesim.documents": set(),
    "pipesim.analysis": set(),
    "pipesim.engine": set(),
    "pipesim.formats": {"pipesim.documents"},
    "pipesim.explain": {"pipesim.engine"},
    "milp": {"pipesim.analysis"},
    "planners": {"pipesim.analysis", "pipesim.engine"},
    "pipesim.runtime": set(),
    "pipesim.replay": {"pipesim.runtime", "pipesim.engine", "pipesim.documents"},
    "pipesim.fidelity": {
        "planners",
        "pipesim.engine",
        "pipesim.formats",
        "pipesim.documents",
        "pipesim.analysis",
    },
    "pipesim.adapt": {
        "planners",
        "pipesim.analysis",
        "pipesim.documents",
        "pipesim.engine",
        "pipesim.formats",
    },
    "pipesim.studies": {
        "planners",
        "milp",
        "pipesim.analysis",
        "pipesim.documents",
        "pipesim.engine",
        "pipesim.explain",
        "pipesim.fidelity",
        "pipesim.adapt",
    },
}
"""The rooms, and which others each may import besides the nouns; plot and cli import any."""

ALONE = {"pipesim.runtime"}
"""Those that import no noun either: people take them into programs of their own."""

TOP = {"pipesim.plot": {"pipesim.cli"}, "pipesim.cli": set()}
"""The rooms under the roof, and what they may not import."""

FILES = sorted(
    file for place in ("pipesim", "planners", "milp") for file in (ROOT / place).rglob("*.py")
)


def _module(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {_module(file): file for file in FILES}


@cache
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def _imports(tree: ast.AST) -> Iterator[str]:
    """The modules of ours that a file names in imports, wherever they stand."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                if inner in MODULES:
                    yield inner
                elif node.module in MODULES:
                    yield node.module


def _at_run_time(tree: ast.Module) -> ast.Module:
    """A module without its `if TYPE_CHECKING:`."""
    body = [
        node
        for node in tree.body
        if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
    ]
    return ast.Module(body, [])


def _room(module: str) -> str:
    top, _, rest = module.partition(".")
    if top in ("planners", "milp"):
        return top
    inner = rest.partition(".")[0]
    return f"pipesim.{inner}" if (ROOT / "pipesim" / inner).is_dir() and inner else module


@pytest.mark.parametrize("module", MODULES)
def test_no_room_imports_one_above_it(module: str) -> None:
    room = _room(module)
    for other in _imports(_tree(MODULES[module])):
        there = _room(other)
        if there == room or module in ("pipesim", "pipesim.__main__"):
            continue
        noun = there.removeprefix("pipesim.")
        if room.removeprefix("pipesim.") in NOUNS:
            assert noun in NOUNS[: NOUNS.index(room.removeprefix("pipesim."))], f"{module}: {other}"
        elif room in TOP:
            assert there not in TOP[room], f"{module}: {other}"
        else:
            noun_may_be = noun in NOUNS and room not in ALONE
            assert noun_may_be or there in ROOMS[room], f"{module}: {other}"


def test_there_is_no_import_circle() -> None:
    """`pipesim` itself and the command line's entry load what they need when they need it."""
    graph = {
        module: {other for other in _imports(_at_run_time(_tree(file))) if other != "pipesim"}
        for module, file in MODULES.items()
        if module not in ("pipesim", "pipesim.__main__", "pipesim.cli")
    }
    assert tuple(TopologicalSorter(graph).static_order())  # or CycleError


def test_the_ground_floor_holds_the_nouns_alone() -> None:
    files = {file.name for file in (ROOT / "pipesim").iterdir() if file.is_file()}
    assert files == {f"{noun}.py" for noun in NOUNS} | {"__init__.py", "__main__.py", "py.typed"}


@pytest.mark.parametrize("module", MODULES)
def test_everything_public_has_a_docstring(module: str) -> None:
    tree = _tree(MODULES[module])
    assert ast.get_docstring(tree), module
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            if any(ast.unparse(decorator) == "overload" for decorator in node.decorator_list):
                continue
            assert ast.get_docstring(node), f"{module}.{node.name}"


def test_tests_stand_where_what_they_test_stands() -> None:
    rooms = {
        folder.name for folder in (ROOT / "tests").iterdir() if (folder / "__init__.py").is_file()
    }
    assert {room.removeprefix("pipesim.") for room in (*ROOMS, *TOP)} == rooms
