"""steelyard bench."""

import csv
import io

import pytest
from typer.testing import CliRunner

from steelyard.cli.app import app
from steelyard.experiments import _benchmark as bench
from steelyard.experiments import _jobs as jobs
from tests.experiments.jobs import Here, Interrupted

SMALL = [
    "--set",
    "data.name=digits",
    "--set",
    "rounds=2",
    "--set",
    "model=mlp:hidden=[8]",
    "--set",
    "executor=serial",
]


def call(*arguments):
    return CliRunner().invoke(app, ["bench", *map(str, arguments)], env={"COLUMNS": "160"})


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch):
    """Runs in this process: a fresh one needs seconds to load torch."""
    monkeypatch.setattr(jobs, "Child", Here)


def read(path):
    return list(csv.DictReader(io.StringIO(path.read_text())))


def test_rules_and_settings_are_listed():
    outcome = call("--list")
    assert outcome.exit_code == 0
    for name in ("geometric-median", "100-clients", "540 runs"):
        assert name in outcome.output


def test_it_runs_leaves_both_pages_and_reuses_what_is_finished(tmp_path):
    chosen = [
        "--rules",
        "fedavg,control",
        "--settings",
        "dirichlet-0.5",
        "--seeds",
        "1,2",
        *SMALL,
        "--out",
        tmp_path,
    ]
    outcome = call(*chosen)
    assert outcome.exit_code == 0, outcome.output
    lines = read(tmp_path / "results.csv")
    assert [(line["rule"], line["seed"]) for line in lines] == [
        ("fedavg", "1"),
        ("control", "1"),
        ("fedavg", "2"),
        ("control", "2"),
    ]
    assert lines[0]["last10"] != lines[1]["last10"]  # other batches
    assert all(line["worst_client"] for line in lines)
    assert "FedAvg, other batches" in (tmp_path / "benchmark.md").read_text()
    assert (tmp_path / "benchmark.html").exists()
    again = call(*chosen)
    assert again.output.count("reused") == 4


def test_a_row_of_ones_own_stands_beside_the_published_results(tmp_path, monkeypatch):
    """Only the new row is run."""
    monkeypatch.setattr(bench, "DEFINITION", make_small_benchmark(tmp_path / "small.toml"))
    monkeypatch.setattr(bench, "PUBLISHED", tmp_path / "published.csv")
    common = ["--settings", "dirichlet-0.5", "--seeds", "1,2"]
    first = call("--rules", "fedavg", *common, "--out", tmp_path / "first")
    assert first.exit_code == 0, first.output
    (tmp_path / "first" / "results.csv").rename(tmp_path / "published.csv")
    second = call(
        "--add", "Mine: fedadp:alpha=3 client=fedcos", *common, "--out", tmp_path / "second"
    )
    assert second.exit_code == 0, second.output
    assert not (tmp_path / "second" / "dirichlet-0.5" / "fedavg").exists()
    lines = read(tmp_path / "second" / "results.csv")
    assert [line["rule"] for line in lines] == ["fedavg", "fedavg", "mine", "mine"]
    assert lines[-1]["algorithm"] == "fedadp:alpha=3 client=fedcos"
    assert "| Mine |" in (tmp_path / "second" / "benchmark.md").read_text()
    page = call("--page-only", "--out", tmp_path / "page")
    assert page.exit_code == 0, page.output
    assert "| FedAvg |" in (tmp_path / "page" / "benchmark.md").read_text()


def make_small_benchmark(path):
    """Write the benchmark with digits and a small network instead of Fashion-MNIST."""
    text = bench.DEFINITION.read_text()
    text = text.replace('"fashion-mnist"', '"digits"').replace("rounds = 50", "rounds = 2")
    path.write_text(text.replace("hidden=[200,200]", "hidden=[8]"))
    return path


def test_results_of_an_interrupted_benchmark_are_used_on_another_machine(tmp_path, monkeypatch):
    file = make_small_benchmark(tmp_path / "small.toml")
    chosen = ["--file", file, "--rules", "fedavg,control", "--settings", "dirichlet-0.5"]
    chosen += ["--seeds", "1,2", "--parallel", "1"]
    monkeypatch.setattr(jobs, "Child", Interrupted)
    first = call(*chosen, "--out", tmp_path / "first")
    assert first.exit_code == 130, first.output
    known = read(tmp_path / "first" / "results.csv")
    assert [(line["rule"], line["seed"]) for line in known] == [("fedavg", "1"), ("control", "1")]

    monkeypatch.setattr(jobs, "Child", Here)
    results = tmp_path / "first" / "results.csv"
    second = call(*chosen, "--results", results, "--out", tmp_path / "second")
    assert second.exit_code == 0, second.output
    assert not (tmp_path / "second" / "dirichlet-0.5" / "fedavg" / "seed-1").exists()
    lines = read(tmp_path / "second" / "results.csv")
    assert lines[:2] == known
    assert [(line["rule"], line["seed"]) for line in lines[2:]] == [
        ("fedavg", "2"),
        ("control", "2"),
    ]


def test_runs_that_failed_are_not_known():
    benchmark = bench.read_benchmark().select(["fedavg"], ["quantity"])
    all_jobs = benchmark.jobs([1, 2])
    (rule,) = benchmark.rules
    known = [bench.Result(rule, "quantity", 1, {}, error="diverged")]
    assert bench.select_missing_jobs(benchmark, all_jobs, known) == all_jobs
    known = [bench.Result(rule, "quantity", 1, {}), bench.Result(rule, "two-classes", 2, {})]
    assert bench.select_missing_jobs(benchmark, all_jobs, known) == all_jobs[1:]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--rules", "fedapd"], "fedadp"),
        (["--settings", "nowhere"], "quantity"),
        (["--seeds", "one"], "--seeds"),
        (["--add", "fedadp"], "NAME: RULE"),
        (["--add", "mine: nosuchrule"], "nosuchrule"),
        (["--add", "mine: fedadp", "--set", "rounds=3"], "published"),
        (["--file", "missing.toml"], "missing.toml"),
        (["--results", "missing.csv"], "missing.csv"),
    ],
)
def test_mistakes_are_named(tmp_path, arguments, named):
    outcome = call(*arguments, "--out", tmp_path)
    assert outcome.exit_code == 2
    assert named in outcome.output
    assert not (tmp_path / "results.csv").exists()


def test_results_of_another_algorithm_with_the_same_name_are_refused(tmp_path):
    rule = bench.Rule("fedprox", "FedProx", "fedavg client=fedprox:mu=7")
    scores = dict.fromkeys(bench.SCORE_NAMES, 0.5)
    path = tmp_path / "results.csv"
    path.write_text(bench.format_results([bench.Result(rule, "quantity", 1, scores)]))
    outcome = call("--rules", "fedprox", "--results", path, "--out", tmp_path / "runs")
    assert outcome.exit_code == 2
    assert "mu=7" in outcome.output
    assert "another name" in outcome.output


def test_results_of_another_configuration_are_refused(tmp_path):
    chosen = ["--rules", "fedavg", "--settings", "dirichlet-0.5", "--seeds", "1", *SMALL]
    first = call(*chosen, "--out", tmp_path / "first")
    assert first.exit_code == 0, first.output
    known = ["--results", tmp_path / "first" / "results.csv"]

    # Other learning rate: the result does not fit.
    other = call(*chosen, "--set", "local.lr=0.1", *known, "--out", tmp_path / "other")
    assert other.exit_code == 2
    assert "dirichlet-0.5/fedavg/seed-1" in other.output
    assert "--set" in other.output

    # The same settings, with the data elsewhere: nothing is run.
    same = call(*chosen, "--set", "data.dir=elsewhere", *known, "--out", tmp_path / "same")
    assert same.exit_code == 0, same.output
    assert not (tmp_path / "same" / "dirichlet-0.5").exists()

    # Another benchmark, which does not have the setting.
    file = tmp_path / "renamed.toml"
    file.write_text(bench.DEFINITION.read_text().replace("dirichlet-0.5", "mild"))
    renamed = call("--file", file, "--settings", "mild", *known, "--out", tmp_path / "renamed")
    assert renamed.exit_code == 2
    assert "dirichlet-0.5" in renamed.output


def test_options_that_were_tried_are_compared(tmp_path):
    outcome = call(
        "--tune", "--rules", "fedprox", "--settings", "dirichlet-0.5", *SMALL, "--out", tmp_path
    )
    assert outcome.exit_code == 0, outcome.output
    lines = read(tmp_path / "results.csv")
    assert [line["rule"] for line in lines] == ["fedprox-1", "fedprox-2", "fedprox-3"] * 2
    assert {line["seed"] for line in lines} == {"101", "102"}
