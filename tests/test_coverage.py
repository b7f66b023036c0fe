"""The coverage page: every table and figure of the papers has a command, and its state is current."""

import re

from steelyard.experiments import table_names
from steelyard.figures import names as figure_names
from tests import coverage_page

PAGE = coverage_page.DOCS / "results" / "coverage.md"


def test_the_page_is_current():
    """If this fails, run `python -m tests.coverage_page > docs/results/coverage.md`."""
    assert PAGE.read_text(encoding="utf-8") == coverage_page.write_page()


def test_it_counts_what_the_papers_have():
    rows = re.findall(r"^\| (\w+) \| (\d+) \| (\d+) \| ", PAGE.read_text(), flags=re.MULTILINE)
    assert rows == [
        ("FedLAW", "11", "16"),
        ("FedAWA", "8", "6"),
        ("FedCos", "5", "10"),
        ("PA3Fed", "2", "7"),
        ("FedAdp", "1", "7"),
    ]
    assert len(table_names()) == 27
    assert len(coverage_page.list_figures()) == 46


def test_it_counts_every_number_once():
    """788 numbers of methods, and the 13 averages that FedAWA prints beside them."""
    tables = [coverage_page.read_table(name) for name in table_names()]
    assert sum(map(coverage_page.count_numbers, tables)) == 788 + 13


def test_every_table_has_a_command_and_the_lines_of_its_numbers():
    text = PAGE.read_text()
    for name in table_names():
        (row,) = [line for line in text.splitlines() if f"`steelyard reproduce {name}`" in line]
        *_, state, source = row.removesuffix(" |").split(" | ")
        assert state.startswith(("in full", "in part", "quick", "not run"))
        assert re.search(r"; lines \d+", source)


def test_no_figure_has_a_command_without_being_in_the_papers():
    assert set(figure_names()) <= set(coverage_page.list_figures())


def test_every_figure_has_a_command():
    assert [name for name in coverage_page.list_figures() if name not in figure_names()] == []


def test_a_state_is_read_from_results(tmp_path, monkeypatch):
    """FedAdp's 24 cells: none, a reduced one, one in full, all in full."""
    monkeypatch.setattr(coverage_page, "DOCS", tmp_path)
    (tmp_path / "results").mkdir()
    assert coverage_page.describe_table("fedadp-table1") == "not run"
    quick = tmp_path / "results" / "quick.csv"
    quick.write_text(
        "name,state,result,seconds\nfedadp-table1,ran,x,1\nfedlaw-table1,skipped,x,0\n"
    )
    assert coverage_page.describe_table("fedadp-table1") == "quick"
    assert coverage_page.describe_table("fedlaw-table1") == "not run"
    cells = [
        cell.name for cell in coverage_page.read_table("fedadp-table1").cells if not cell.is_control
    ]
    file = tmp_path / "results" / "fedadp-table1.csv"
    head = "cell,seed,rounds_planned,remark\n"
    file.write_text(f"{head}{cells[0]},1,20,\n{cells[1]},1,300,another network\n")
    assert coverage_page.describe_table("fedadp-table1").startswith("in part: 2 of 24 cells, red")
    rows = [f"{cell},{seed},300," for cell in cells for seed in (1, 2, 3)]
    file.write_text(head + "\n".join(rows[:3]) + "\n")
    assert coverage_page.describe_table("fedadp-table1").startswith("in part: 1 of 24 cells in fu")
    file.write_text(head + "\n".join(rows) + "\n")
    assert coverage_page.describe_table("fedadp-table1").startswith("in full")
