"""The notebooks run from the first cell to the last, in an empty directory, and are stored without results."""

import json
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))


def read_code_cells(path):
    """Returns the code cells of a notebook, as they are in its file."""
    cells = json.loads(path.read_text())["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def test_both_notebooks_are_there():
    assert [path.stem for path in NOTEBOOKS] == [
        "compare_rules_on_your_data",
        "one_import_on_flower",
    ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_results(path):
    notebook = json.loads(path.read_text())
    assert notebook["nbformat"] == 4
    for cell in read_code_cells(path):
        assert cell["outputs"] == []
        assert cell["execution_count"] is None


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path, monkeypatch):
    pytest.importorskip("flwr" if "flower" in path.stem else "matplotlib")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    names = {"__name__": "__main__"}
    for number, cell in enumerate(read_code_cells(path)):
        exec(compile("".join(cell["source"]), f"{path.name}, code cell {number}", "exec"), names)
    assert (tmp_path / "runs").is_dir()
