"""Runs of a task that is not classification, in `run`, `compare`, `sweep`, `report` and `plot`."""

import json

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from steelyard import History, simulate
from steelyard.cli.app import app
from steelyard.experiments import scores
from steelyard.experiments._run_groups import read_runs
from steelyard.report._build import build_report, find_figure
from steelyard.runs._monitor import Monitor

DRAW = torch.Generator().manual_seed(0)
X = torch.randn(160, 4, generator=DRAW)
Y = X @ torch.tensor([1.0, -2.0, 0.5, 3.0])


def call(*arguments):
    made = CliRunner().invoke(
        app, [str(argument) for argument in arguments], env={"COLUMNS": "200"}
    )
    return made.exit_code, " ".join(made.output.split())


def mae(outputs, targets):
    return (outputs.squeeze(1) - targets).abs().mean()


def near(outputs, targets):
    """The share of samples that are near: more is better."""
    return ((outputs.squeeze(1) - targets).abs() < 1).float().mean()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two algorithms and two seeds."""
    out = tmp_path_factory.mktemp("runs") / "runs"
    torch.manual_seed(1)
    options = {
        "data": ((X[:100], Y[:100]), (X[100:], Y[100:])),
        "model": nn.Linear(4, 1),
        "loss": "mse",
    }
    options |= {"partition": "iid", "clients": 4, "executor": "serial", "local": {"lr": 0.02}}
    options |= {"test_metrics": {"mae": mae, "near": near}, "monitor": "mae", "rounds": 6}
    for seed in (0, 1):
        simulate("fedavg", **options, seed=seed, out=out / f"avg-{seed}")
        simulate("uniform|shrink:0.9", **options, seed=seed, out=out / f"shrink-{seed}")
    return out


def test_compare_by_any_number_on_record(folder):
    values = {path.name: History.read(path).column("mae")[-1] for path in folder.iterdir()}
    code, output = call("compare", folder, "--metric", "mae", "--json")
    assert code == 0, output
    found = json.loads(output)[0]
    expected = sum(values[f"shrink-{seed}"] - values[f"avg-{seed}"] for seed in (0, 1)) / 2
    assert found["difference"] == pytest.approx(expected)
    assert expected > 0  # worse
    code, output = call("compare", folder, "--metric", "mae")
    assert code == 0, output
    assert f"{expected:.2f} mae above fedavg" in output
    assert "mae of the last evaluation; mean" in output
    assert call("compare", folder, "--metric", "loss")[0] == 0
    assert call("compare", folder, "--metric", "near")[0] == 0


def test_compare_speaks_of_the_monitored_metric(folder):
    code, output = call("compare", folder)
    assert code == 0, output
    assert "mae, mean of the last 10 evaluations" in output
    assert "rounds to its final mae" in output or "never reaches the final mae" in output
    code, output = call("compare", folder, "--metric", "rounds", "--target", 3.0)
    assert code == 0, output
    code, output = call("compare", folder, "--metric", "mea")
    assert code == 2
    assert "metric 'mea': unknown" in output
    assert "mae, " in output


def test_which_way_is_better(folder):
    histories = [run.history for run in read_runs([folder])[0]]
    assert [
        scores.find_score(name, histories).higher
        for name in ("mae", "near", "loss", "best", "last10", "rounds")
    ] == [*(False, True, False, False, False, False)]
    history = histories[0]
    assert scores.best(history) == min(history.column("mae"))
    assert scores.best_mean(history, 2) == pytest.approx(sum(sorted(history.column("mae"))[:2]) / 2)
    assert scores.final(history) == history.column("mae")[-1]
    assert scores.rounds_to(history, history.column("mae")[2]) == 3
    assert scores.speedup(history, history) == 1.0


def test_runs_that_monitor_different_metrics_are_not_mixed():
    records = [{"round": 1, "accuracy": 0.5, "mae": 1.0}]
    both = [History("a", records), History("b", records, monitor=Monitor("mae", "min"))]
    with pytest.raises(ValueError, match=r"monitor different metrics \(accuracy and mae\)"):
        scores.find_score("best", both)
    assert scores.find_score("mae", both).of(both[0], None) == 1.0


def test_the_report_shows_own_metrics(folder, tmp_path):
    report = build_report([folder], target=3.0)
    figure = find_figure(report, "mae")
    assert (figure.section, figure.title) == ("Results", "mae on the test set")
    assert "bands" in figure.caption
    assert "accuracy" not in {figure.name for figure in report.figures}
    assert report.summary.heads[3:7] == ("mae, last 10", "±", "best mae", "rounds to 3")
    best = [row[5] for row in report.summary.rows]
    assert best[0] == pytest.approx(
        sum(History.read(folder / f"avg-{seed}").best for seed in (0, 1)) / 2
    )
    reach = find_figure(report, "rounds")
    assert (reach.x, reach.categories) == ("mae", ("3",))
    code, output = call("report", folder, "-o", tmp_path / "page.html")
    assert code == 0, output
    code, output = call("plot", folder, "mae", "-o", tmp_path / "mae.csv")
    assert code == 0, output
    assert "fedavg" in (tmp_path / "mae.csv").read_text()


def test_a_run_from_python_that_ended_at_its_target_is_finished(tmp_path):
    options = {"rounds": 30, "executor": "serial", "out": tmp_path / "run"}
    history = simulate("fedavg", "digits", target=0.3, **options)
    assert len(history) < 30
    runs, notes = read_runs([tmp_path / "run"])
    assert [run.path for run in runs] == [tmp_path / "run"]
    assert notes == []


def test_run_and_resume_with_another_loss(tmp_path):
    settings = [
        "--set",
        "loss=mse",
        "--set",
        "local.lr=0.01",
        "--set",
        "rounds=2",
        "--set",
        "workers=1",
    ]
    code, output = call("run", *settings, "--out", tmp_path / "run")
    assert code == 0, output
    assert "round 2/2 loss " in output
    assert "accuracy" not in output
    code, output = call("resume", tmp_path / "run", "--rounds", 3)
    assert code == 0, output
    assert History.read(tmp_path / "run").monitor == Monitor("loss", "min")
    assert len(History.read(tmp_path / "run")) == 3


def test_a_sweep_over_another_loss(tmp_path):
    (tmp_path / "s.toml").write_text(
        'target = 5.0\n[base]\nloss = "mse"\nmonitor = "loss"\nrounds = 2\nlocal.lr = 0.01\ndata.clients = 3\n'
        '[grid]\nweighting = ["fedavg", "uniform"]\nseed = [1, 2]\n'
    )
    code, output = call(
        "sweep", tmp_path / "s.toml", "--out", tmp_path / "out", "--metric", "final"
    )
    assert code == 0, output
    assert "loss of the last evaluation; mean" in output
    page = (tmp_path / "out" / "results.md").read_text()
    assert "n/a" not in page.split("## All measures")[0]
