"""steelyard reproduce."""

import json

import matplotlib.pyplot as plt
import pytest
from typer.testing import CliRunner

from steelyard.cli.app import app
from steelyard.experiments import _cost as cost
from steelyard.experiments import _jobs as jobs
from steelyard.experiments import _paper_table as table
from steelyard.figures import Check, PaperFigure, Scale, Source, Verdict
from steelyard.figures import _figure as figure_list
from tests.experiments.jobs import Here, Interrupted

RUNS = """
title = "Two rules on digits"
paper = "Nobody, 2020"
metric = "final"
seeds = [1, 2]
deviations = ["Nothing."]
[base]
rounds = 3
model = "logistic"
[base.data]
name = "digits"
clients = 4
[[row]]
id = "fedavg"
label = "FedAvg"
set = { weighting = "fedavg" }
[[row]]
id = "fedadp"
label = "FedAdp"
set = { weighting = "fedadp" }
[[column]]
id = "iid"
label = "IID"
set = { data = { partition = "iid" } }
[numbers]
fedavg = [90.0]
fedadp = [91.0]
"""


def call(*arguments):
    return CliRunner().invoke(app, ["reproduce", *map(str, arguments)], env={"COLUMNS": "160"})


@pytest.fixture
def small(tmp_path, monkeypatch):
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "small.toml").write_text(RUNS)
    monkeypatch.setattr(table, "FOLDER", tmp_path / "tables")
    return tmp_path


def test_all_tables_are_listed_with_their_cost():
    result = call("--list")
    assert result.exit_code == 0
    for name in (*table.names(), *figure_list.names()):
        assert name in result.output
    assert "Costs are rough" in result.output


def test_cells_are_listed():
    result = call("fedadp-table1", "--list", "--cells", "mnist-1class-*/fedavg")
    assert result.exit_code == 0
    assert result.output.count("mnist-1class") == 3
    assert "N/A (94.48 %)" in result.output
    assert "in all" in result.output


@pytest.mark.parametrize("columns", ["80", "40"])
def test_names_of_cells_are_whole_on_a_narrow_terminal(columns):
    result = CliRunner().invoke(
        app, ["reproduce", "fedlaw-table3", "--list"], env={"COLUMNS": columns}
    )
    words = result.output.split()
    assert [
        cell.name for cell in table.read_table("fedlaw-table3").cells if cell.name not in words
    ] == []


def test_a_table_is_run_reused_and_written(small):
    result = call("small", "--out", small / "out", "--rounds", 2, "--seeds", "1")
    assert result.exit_code == 0, result.output
    assert "reduced: 2 rounds, the paper has 3" in result.output
    text = (small / "out" / "table.md").read_text()
    assert "| IID | FedAvg | 90 |" in text
    assert (small / "out" / "table.csv").read_text().count("\n") == 3
    again = call("small", "--out", small / "out", "--rounds", 2, "--seeds", "1")
    assert again.output.count("reused    iid") == 2


def test_an_interrupted_table_is_completed_on_another_machine(small, monkeypatch):
    monkeypatch.setattr(jobs, "Child", Interrupted)
    first = call("small", "--parallel", 1, "--out", small / "first")
    assert first.exit_code == 130, first.output
    known = (small / "first" / "table.csv").read_text().splitlines()
    assert [line.split(",")[3] for line in known] == ["seed", "1", "1"]

    monkeypatch.setattr(jobs, "Child", Here)
    results = small / "first" / "table.csv"
    second = call("small", "--results", results, "--out", small / "second")
    assert second.exit_code == 0, second.output
    assert [path.name for path in (small / "second").glob("iid/*/*")] == ["seed-2", "seed-2"]
    whole = call("small", "--out", small / "whole")
    assert whole.exit_code == 0, whole.output
    read_numbers = [
        [line.split(",")[:8] for line in (small / name / "table.csv").read_text().splitlines()]
        for name in ("second", "whole")
    ]
    assert read_numbers[0] == read_numbers[1]
    assert len(read_numbers[0]) == 5

    # Without a missing run, the table is written to a directory that does not exist yet.
    results = small / "second" / "table.csv"
    third = call("small", "--results", results, "--out", small / "third")
    assert third.exit_code == 0, third.output
    assert (small / "third" / "table.csv").read_text() == results.read_text()


def test_a_control_is_listed_and_printed_as_one(small):
    path = small / "tables" / "small.toml"
    control = '[[row]]\nid = "uniform"\nlabel = "Uniform"\ncontrol = true\nset = { weighting = "uniform" }\n[[column]]'
    path.write_text(path.read_text().replace("[[column]]", control))
    listed = call("small", "--list")
    assert listed.exit_code == 0, listed.output
    (line,) = [line for line in listed.output.splitlines() if "iid/uniform" in line]
    assert "Uniform (control)" in line
    result = call("small", "--out", small / "out", "--seeds", "1", "--cells", "*/uniform")
    assert result.exit_code == 0, result.output
    (line,) = [line for line in result.output.splitlines() if "Uniform (control)" in line]
    assert line.rstrip(" │|").endswith("control")
    assert "| control |" in (small / "out" / "table.md").read_text()


class TinyFigure(PaperFigure):
    """One run of digits and one line."""

    name = "fedlaw-figure99"
    title = "A line"
    claim = "Accuracy rises."
    source = Source("Figure 99", "nowhere", "1-2")
    quick = Scale({"a": {"rounds": 2, "model": "logistic", "data": {"name": "digits"}}}, (3,))
    paper = Scale({"a": {"rounds": 4, "model": "logistic", "data": {"name": "digits"}}}, (3, 4))

    def draw(self, results):
        """Draw the accuracies."""
        drawing, axes = plt.subplots()
        axes.plot(results["a"][0].accuracy, label="accuracy")
        return drawing

    def judge(self, results):
        """Compare the last accuracy with the first."""
        first, *_, last = results["a"][0].accuracy
        return Verdict.from_checks([Check(f"{first:.2f} to {last:.2f}", last > first)])


@pytest.fixture
def one_figure(monkeypatch):
    monkeypatch.setattr(figure_list, "FIGURES", {TinyFigure.name: TinyFigure()})


def test_a_quick_table_is_its_first_cell_for_two_rounds(small):
    result = call("small", "--quick", "--out", small / "out")
    assert result.exit_code == 0, result.output
    (run,) = (small / "out").glob("*/*/*/config.json")
    config = json.loads(run.read_text())["config"]
    assert run.parent.relative_to(small / "out").as_posix() == "iid/fedavg/seed-1"
    assert (config["rounds"], config["local"]["steps"], config["evaluate_every"]) == (2, 2, 2)
    assert "reduced: 2 rounds, the paper has 3" in result.output


def test_a_quick_table_has_little_proxy_data():
    quick = table.read_table("fedlaw-table11").make_quick()
    assert [cell.name for cell in quick.cells] == ["e1/size"]
    assert quick.cells[0].config(8).proxy.per_class == 10
    assert "proxy.per_class=10" in quick.settings
    regulariser = table.read_table("fedawa-table5").make_quick()
    assert [cell.name for cell in regulariser.cells] == ["cifar10-0.1/fedawa-none"]  # no control
    few = table.read_table("fedawa-table1").select_cells(["cifar100-0.1/fedlaw"]).make_quick()
    assert few.cells[0].config(8).proxy.per_class == 2


def test_a_figure_is_run_and_judged(tmp_path, one_figure):
    result = call("fedlaw-figure99", "--quick", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert "the paper says: Accuracy rises." in result.output
    assert "verdict: Shows it." in result.output
    assert (tmp_path / "fedlaw-figure99" / "figure.png").is_file()


def test_runs_of_a_figure_are_listed(one_figure):
    result = call("fedlaw-figure99", "--list")
    assert result.exit_code == 0, result.output
    assert [line.split()[1:4:2] for line in result.output.splitlines() if " a " in line] == [
        ["a", "3"],
        ["a", "4"],
    ]


def test_all_are_run_or_skipped_with_a_reason(small, one_figure, monkeypatch):
    monkeypatch.delenv("STEELYARD_DATA", raising=False)
    text = RUNS.replace('name = "digits"', 'name = "cifar10"')
    (small / "tables" / "absent-table1.toml").write_text(text)
    result = call("--quick", "--all", "--out", small / "out")
    assert result.exit_code == 0, result.output
    lines = [line for line in result.output.splitlines() if line[:3] in ("ran", "ski", "fai")]
    absent, ran, figure = lines
    assert absent.startswith("skipped  absent-table1")
    assert "cifar10 is read from files" in absent
    assert ran.startswith("ran  small")
    assert "(paper: 90)" in ran
    assert figure.startswith("ran  fedlaw-figure99")
    assert "Shows it." in figure


def test_a_failure_among_all_is_named(small, one_figure):
    text = RUNS.replace('model = "logistic"', 'model = "char_lstm"')  # not for images
    (small / "tables" / "wild.toml").write_text(text)
    result = call("--quick", "--all", "--out", small / "out")
    assert result.exit_code == 1
    assert "1 of 3 failed: wild" in " ".join(result.output.split())
    assert "ran  fedlaw-figure99" in result.output  # the others are run nevertheless


def test_another_network_is_printed_instead_of_a_gap(small):
    result = call(
        "small", "--out", small / "out", "--cells", "*/fedavg", "--seeds", "1", "--set", "model=mlp"
    )
    assert result.exit_code == 0, result.output
    assert "another network: mlp (paper: logistic)" in result.output
    assert (
        "|  | another network: mlp (paper: logistic) |" in (small / "out" / "table.md").read_text()
    )


def test_a_subset_is_told_from_the_whole(small, monkeypatch):
    monkeypatch.setitem(cost.SIZES, "digits", (100_000, 10_000, (1, 8, 8), 200))
    result = call("small", "--out", small / "out", "--cells", "*/fedavg", "--seeds", "1")
    assert result.exit_code == 0, result.output
    assert "subset: 1,437 samples, 10 classes" in result.output
    assert "|  | subset: 1,437 samples, 10 classes |" in (small / "out" / "table.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name a table or a figure, or list them"),
        (["--all"], "use --quick --all"),
        (
            ["--quick", "--all", "--rounds", "3"],
            "leave NAME, --cells, --rounds, --seeds, --set, --results out",
        ),
        (["fedadp-table1", "--quick", "--all"], "leave NAME"),
        (["fedadp-table9"], "did you mean 'fedadp-table1'"),
        (["fedlaw-figur1"], "did you mean 'fedlaw-figure1'"),
        (["fedlaw-figure1", "--cells", "x/*"], "is a figure and has no cells"),
        (["fedadp-table1", "--cells", "x/*"], "has no such cell"),
        (
            ["fedawa-table6", "--cells", "*/clip2fl", "--quick"],
            "needs the pretrained weights of CLIP",
        ),
        (["fedadp-table1", "--seeds", "1,a"], "write whole numbers with commas"),
        (["fedadp-table1", "--seeds", "1,1"], "use distinct numbers"),
        (["fedadp-table1", "--set", "modle=mlp"], "did you mean 'model'"),
        (["fedadp-table1", "--results", "missing.csv"], "missing.csv: cannot be read"),
        (["fedadp-table1", "--results", __file__], "not a result of a table"),
        (["fedlaw-figure1", "--results", "any.csv"], "only tables have such a file"),
    ],
)
def test_mistakes_are_one_sentence(arguments, message):
    result = call(*arguments, *(["--list"] if arguments and "--set" in arguments else []))
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
    assert "Traceback" not in result.output
