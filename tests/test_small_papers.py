"""The script behind the tables of FedAdp's, FedCos's and PA3Fed's pages."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location(
        "small_papers", ROOT / "examples" / "small_papers.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("paper", ["fedadp", "fedcos", "pa3fed"])
def test_the_page_shows_every_row_of_the_script(script, paper):
    page = (ROOT / "docs" / f"{paper}.md").read_text()
    about = script.STUDIES[paper]
    assert f"python examples/small_papers.py {paper}" in page
    for label in about.algorithms:
        assert page.count(f"\n| `{label}` | ") >= len(about.settings), label
    for title, setting in about.settings.items():
        assert f"**{title}** (`{setting.partition}`, target {100 * setting.target:g} %)" in page


def test_a_row_is_a_paired_difference_with_its_interval(script, capsys, monkeypatch):
    about = script.STUDIES["pa3fed"]
    few = {name: about.algorithms[name] for name in ("fedavg", "pa3fed:detector=always")}
    one = dict(list(about.settings.items())[:1])
    monkeypatch.setitem(script.STUDIES, "pa3fed", replace(about, settings=one, algorithms=few))
    script.study("pa3fed", range(2), rounds=3)
    *_, reference, row = capsys.readouterr().out.splitlines()
    assert reference.startswith("| fedavg | ")
    assert reference.endswith(" |  |  | 0 |")
    cells = [cell.strip() for cell in row.split("|")[1:-1]]
    assert cells[0] == "pa3fed:detector=always"
    assert " ± " in cells[1]
    assert float(cells[3]) == 1.0
    assert float(cells[4]) > 1.0
    assert float(cells[5]) > 0.0
