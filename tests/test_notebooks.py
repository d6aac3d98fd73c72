"""Every notebook runs from a clean kernel, and is stored with what it then prints and draws.

``python -m tests.test_notebooks`` runs them all and stores their outputs again, with figures
that are small enough to live in the history of a repository.
"""

from __future__ import annotations

import base64
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import nbformat
import pytest
from ipykernel.kernelspec import write_kernel_spec
from nbclient import NotebookClient

from tests import ROOT
from tests.palette import few_colours
from tests.processes import PATIENCE_S

FOLDER = ROOT / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))

LARGEST_BYTES = 150_000
"""Size limit of a notebook: each of its versions stays in the repository for ever."""

METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
MACHINE_PATH = re.compile(
    r"(?<![\w/])/(?:home|Users|root|tmp|var|opt|usr|work|mnt|private)/|[A-Za-z]:\\\\"
)


def executed(path: Path, directory: Path) -> Any:
    """Run a notebook in ``directory``, in a kernel of this interpreter, without user settings."""
    quiet = ["--log-level=ERROR"]
    write_kernel_spec(str(directory / "kernels" / "python3"), extra_arguments=quiet)
    clean = {
        "JUPYTER_PATH": str(directory),  # searched before any registered kernel
        "JUPYTER_PLATFORM_DIRS": "1",
        "JUPYTER_RUNTIME_DIR": str(directory / "runtime"),
        "JUPYTER_CONFIG_DIR": str(directory / "config"),
        "IPYTHONDIR": str(directory / "ipython"),
    }
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        kernel_name="python3",
        timeout=int(PATIENCE_S),
        startup_timeout=int(PATIENCE_S),
        record_timing=False,
        resources={"metadata": {"path": str(directory)}},
    )
    with mock.patch.dict(os.environ, clean):
        client.execute()
    notebook.metadata = nbformat.from_dict(METADATA)
    return notebook


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def outputs(notebook: Any) -> list[Any]:
    return [output for cell in code_cells(notebook) for output in cell.outputs]


def compact(notebook: Any) -> Any:
    """Give a notebook's figures few colours."""
    for output in outputs(notebook):
        data = output.get("data", {})
        if "image/png" in data:
            figure = few_colours(base64.b64decode(data["image/png"]))
            data["image/png"] = base64.b64encode(figure).decode()
    return notebook


def texts(notebook: Any) -> list[str]:
    """All that can be read in a notebook: sources, and outputs but for their images."""
    found = [cell.source for cell in notebook.cells]
    for output in outputs(notebook):
        found += [str(output.get("text", ""))]
        data = output.get("data", {})
        found += [str(value) for kind, value in data.items() if not kind.startswith("image/")]
    return found


def shapes(notebook: Any) -> list[list[list[str]]]:
    """The kinds of output of each code cell."""
    return [
        [sorted(output.get("data", {output.output_type: ""})) for output in cell.outputs]
        for cell in code_cells(notebook)
    ]


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs_from_a_clean_kernel(path: Path, tmp_path: Path) -> None:
    fresh = executed(path, tmp_path)
    assert [
        o for o in outputs(fresh) if o.output_type == "error" or o.get("name") == "stderr"
    ] == []
    assert shapes(fresh) == shapes(nbformat.read(path, as_version=4)), "outputs are out of date"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_is_stored_with_its_outputs_and_nothing_of_the_machine(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    counts = [cell.execution_count for cell in code_cells(notebook)]
    assert counts == list(range(1, len(counts) + 1))
    assert any("image/png" in output.get("data", {}) for output in outputs(notebook))
    for output in outputs(notebook):
        assert output.output_type != "error"
        assert output.get("name") != "stderr"
    assert [text for text in texts(notebook) if MACHINE_PATH.search(text)] == []
    assert notebook.metadata == METADATA
    assert all(cell.metadata == {} for cell in notebook.cells)
    assert path.stat().st_size <= LARGEST_BYTES, (
        "too large: store it with python -m tests.test_notebooks"
    )


@pytest.mark.parametrize("text", ["File /home/ann/x.py", "'/tmp/k'", "C:\\\\Users", "(/mnt/a)"])
def test_a_machine_path_is_seen(text: str) -> None:
    assert MACHINE_PATH.search(text)
    assert not MACHINE_PATH.search("ms/home and https://example.org/mnt/x")


if __name__ == "__main__":
    for stored in NOTEBOOKS:
        with tempfile.TemporaryDirectory() as folder:
            nbformat.write(compact(executed(stored, Path(folder))), stored)
        sys.stdout.write(f"{stored.name}\n")
