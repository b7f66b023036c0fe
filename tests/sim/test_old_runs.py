"""Run directories that an older version wrote can be read, reported, compared and resumed.

`tests/data/old_runs.tar.xz` holds runs of three rounds on the embedded digits, made before the
packages were renamed.
"""

import json
import tarfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

import steelyard
from steelyard.cli.app import app
from steelyard.core._round_record import OLD_NAMES
from steelyard.diagnostics._recorded import series
from steelyard.report._build import build_report, find_figure
from steelyard.runs._directory import read_log

ARCHIVE = Path(__file__).parents[1] / "data" / "old_runs.tar.xz"
PYTHON_RUN = {
    "algorithm": steelyard.Algorithm("fedadp", client="feddyn", server="momentum"),
    "data": "digits",
    "model": "logistic",
    "clients": 4,
    "seed": 5,
    "local": {"steps": 3},
}
NEW_KEYS = {"fedavg_weighted_cosine", "heterogeneity_coherence"}  # since these runs were written
SETTINGS = {
    "fedavg": [],
    "scaffold-adam": ["client=scaffold", "server=adam", "participation.share=0.5"],
    "fedlaw": ["weighting=fedlaw:epochs=2", "proxy.per_class=2"],
    "pa3fed-fedcos": ["weighting=feddisco|pa3fed", "client=fedcos", "evaluate_clients=1"],
    "guard": [
        *("weighting=guard(fedawa_l)", "local.momentum=0.9", "local.persistent=true"),
        "participation.dropout=0.2",
    ],
}


@pytest.fixture
def old_runs(tmp_path):
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path / "old", filter="data")
    return tmp_path / "old"


def call(*arguments):
    outcome = CliRunner().invoke(app, list(map(str, arguments)))
    assert outcome.exit_code == 0, outcome.output
    return outcome.output


def assert_same_run(one, other):
    """Compare cohorts and last models; the machine that wrote the first rounds may round otherwise."""
    logs = [read_log(run) for run in (one, other)]
    assert len(logs[0]) == len(logs[1]) == 5
    assert [record["weights"].keys() for record in logs[0]] == [
        record["weights"].keys() for record in logs[1]
    ]
    models = [load_file(run / "checkpoints" / "last" / "model.safetensors") for run in (one, other)]
    assert models[0].keys() == models[1].keys()
    for name, value in models[0].items():
        torch.testing.assert_close(value, models[1][name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_run_of_the_command_line_goes_on_as_if_it_had_not_stopped(old_runs, tmp_path, name):
    call("resume", old_runs / name, "--rounds", 5, "-q")
    fixed = ["model=logistic", "rounds=5", "data.clients=4", "local.steps=3", "seed=5"]
    settings = [word for setting in (*fixed, *SETTINGS[name]) for word in ("--set", setting)]
    call("run", "-q", *settings, "--out", tmp_path / "fresh")
    assert_same_run(old_runs / name, tmp_path / "fresh")


def test_a_run_started_from_python_goes_on(old_runs, tmp_path):
    steelyard.simulate(**PYTHON_RUN, rounds=5, out=old_runs / "from-python", resume=True)
    steelyard.simulate(**PYTHON_RUN, rounds=5, out=tmp_path / "fresh")
    assert_same_run(old_runs / "from-python", tmp_path / "fresh")


def test_a_run_of_another_configuration_is_refused(old_runs):
    with pytest.raises(steelyard.SteelyardError, match="seed"):
        steelyard.simulate(
            **PYTHON_RUN | {"seed": 6}, rounds=5, out=old_runs / "from-python", resume=True
        )


def test_old_runs_are_reported_and_compared(old_runs, tmp_path):
    call("report", *sorted(old_runs.iterdir()), "-o", tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size > 100_000
    output = call("compare", old_runs / "fedavg", old_runs / "guard", "--anyway")
    assert "fedavg" in output


def test_old_records_are_read_with_the_keys_of_today(old_runs):
    lines = (old_runs / "fedavg" / "rounds.jsonl").read_text().splitlines()
    raw = [json.loads(line) for line in lines]
    records = read_log(old_runs / "fedavg")
    for old, new in OLD_NAMES.items():
        assert not any(old in record for record in records)
        assert [line.get(old) for line in raw] == [record.get(new) for record in records]
    assert {"moved", "spread", "divergence", "late", "dropped"} <= raw[0].keys()


def test_a_resumed_old_run_has_the_same_keys_in_all_rounds(old_runs):
    path = old_runs / "from-python"
    history = steelyard.simulate(**PYTHON_RUN, rounds=5, out=path, resume=True)
    before = (path / "rounds.jsonl").read_text().splitlines()[0]
    assert '"moved"' in before  # the lines of the old run are not rewritten
    for run in (history, steelyard.History.read(path)):
        # Rounds from before a key was recorded do not have it; all other keys are the same.
        assert {frozenset(record.keys() - NEW_KEYS) for record in run} == {
            frozenset(run.records[0])
        }
        assert all(record.keys() >= NEW_KEYS for record in run.records[-2:])
        assert len(run.column("mean_update_norm")) == 5
        assert run.column("moved") == run.column("mean_update_norm")
        assert series(run, "moved").rounds.tolist() == [1, 2, 3, 4, 5]
        assert len(series(run, "gradient_divergence").values) == 5
    figure = find_figure(build_report([path]), "mean_update_norm")
    assert figure.lines[0].x == (1, 2, 3, 4, 5)


def test_an_old_run_is_compared_by_the_old_name_of_a_number(old_runs):
    runs = (old_runs / "fedavg", old_runs / "guard", "--anyway")
    assert "mean_update_norm" in call("compare", *runs, "--metric", "moved")
