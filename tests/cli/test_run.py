"""The commands run and resume, as typed."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from steelyard.cli.app import app
from steelyard.core._errors import SteelyardError
from steelyard.runs._directory import read_log
from steelyard.sim._experiment import Experiment, read_experiment
from tests.waiting import PATIENCE, wait_until

STEELYARD = [sys.executable, "-c", "from steelyard.cli import main; main()"]


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_run_with_settings_prints_progress_and_a_table(tmp_path):
    made = call(
        "run", "--set", "weighting=fedawa", "--set", "client=fedcos:mu=0.02", "--set", "server=momentum",
        "--set", "data.partition=dirichlet:0.1", "--set", "rounds=3", "--set", "seed=3", "--out", tmp_path / "run",
    )  # fmt: skip
    assert made.exit_code == 0, made.output
    assert (
        "fedawa client=fedcos server=momentum on 10 clients of digits, dirichlet:0.1" in made.output
    )
    assert "round 3/3  accuracy 0." in made.output
    assert "rounds/s" in made.output
    assert "run: " in made.output
    stored = json.loads((tmp_path / "run" / "config.json").read_text())
    assert stored["config"]["seed"] == 3
    assert stored["resolved"]["algorithm"] == {
        "weighting": "fedawa",
        "client": "fedcos",
        "server": "momentum",
    }


def test_a_toml_file_and_settings_on_top(tmp_path):
    file = tmp_path / "experiment.toml"
    file.write_text(
        'weighting = "fedadp"\nrounds = 9\n[data]\npartition = "iid"\nclients = 4\n[local]\nlr = 1\n'
    )
    made = call("run", file, "--set", "rounds=2", "--out", tmp_path / "run", "--json")
    assert made.exit_code == 0, made.output
    lines = [json.loads(line) for line in made.output.splitlines()]
    assert [line["round"] for line in lines] == [1, 2]
    assert len(lines[0]["weights"]) == 4
    assert (
        call("run", file, "--set", "rounds=1", "--out", tmp_path / "quiet", "--quiet").output == ""
    )


def test_a_rule_on_proxy_data_is_refused_without_any_before_the_first_round(tmp_path):
    refused = call("run", "--weighting", "fedlaw", "--out", tmp_path / "run")
    assert refused.exit_code == 2
    assert "fedlaw looks at proxy data and there is none: --set proxy.per_class=10" in " ".join(
        refused.output.split()
    )
    assert not (tmp_path / "run").exists()
    made = call(
        "run",
        "-w",
        "fedlaw:epochs=2",
        "-s",
        "proxy.per_class=3",
        "-s",
        "rounds=1",
        "--out",
        tmp_path / "run",
    )
    assert made.exit_code == 0, made.output
    assert read_log(tmp_path / "run")[0]["gamma"] != 1.0


def test_a_new_directory_is_made_under_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for expected in ("runs/fedavg-digits-s0", "runs/fedavg-digits-s0-2"):
        assert call("run", "-s", "rounds=1", "-q").exit_code == 0
        assert (tmp_path / expected / "rounds.jsonl").exists()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("ruonds=3", "unknown key 'ruonds': did you mean 'rounds'?"),
        ("data.nme=x", "unknown key 'data.nme': did you mean 'name'?"),
        ("lr=0.1", "unknown key 'lr': did you mean 'local.lr'?"),
        ("zzz=1", "unknown key 'zzz': known: weighting, client"),
        ("rounds=many", "rounds='many': use a whole number >= 1"),
        ("rounds=0", "rounds=0: use a whole number >= 1"),
        ("local.momentum=2", "local.momentum=2: use a number in [0.0, 1.0]"),
        ("local.optimizer=rmsprop", "local.optimizer='rmsprop': use one of 'sgd', 'adam'"),
        ("weighting=fedwa", "weighting='fedwa': unknown rule 'fedwa': did you mean 'fedawa'?"),
        (
            "client=fedprox:m=1",
            "client='fedprox:m=1': client term 'fedprox:m=1': fedprox has no option 'm'",
        ),
        ("server=adma", "server='adma': unknown server optimizer 'adma': did you mean 'adam'?"),
        ("broadcast=mut", "unknown broadcast 'mut'"),
        (
            "model=restnet20",
            "model='restnet20': unknown model 'restnet20': did you mean 'resnet20'?",
        ),
        ("data.name=mnst", "data.name='mnst': unknown data set 'mnst': did you mean 'mnist'?"),
        ("data.partition=dirichlt", "unknown partition 'dirichlt': did you mean 'dirichlet'?"),
        ("data.partition=dirichlet:-1", "alpha=-1"),
        ("local.schedule=linear", "unknown schedule 'linear'"),
        ("local.steps=3", None),
        ("rounds", "write key=value"),
        ("data=3", "data = 3"),
        ("rounds.x=3", "unknown key|rounds"),
    ],
)
def test_a_mistake_gets_its_place_its_value_and_the_cure(setting, message, tmp_path):
    made = (
        call("run", "--set", setting, "--set", "rounds=1", "--out", tmp_path / "run", "-q")
        if message is None
        else call("run", "--set", setting, "--out", tmp_path / "run")
    )
    if message is None:
        assert made.exit_code == 0, made.output
        return
    assert made.exit_code == 2
    assert "Traceback" not in made.output
    assert any(part in " ".join(made.output.split()) for part in message.split("|")), made.output
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rounds = ", "not TOML"),
        ("rounds = 3\nrounds = 4", "not TOML"),
        ("[[data]]\nname='x'", "data"),
        (None, "no such"),
    ],
)
def test_a_bad_file_is_one_sentence(text, message, tmp_path):
    file = tmp_path / "bad.toml"
    if text is not None:
        file.write_text(text)
    made = call("run", file)
    assert made.exit_code == 2
    assert message in made.output
    assert "Traceback" not in made.output


def test_values_are_read_as_toml_or_text():
    config = read_experiment(
        None,
        [
            "metrics=['loss']",
            "local.betas=[0.5, 0.9]",
            "workers=none",
            "weighting='fedadp:alpha=4'",
        ],
    )
    assert config.metrics == ("loss",)
    assert config.local.betas == (0.5, 0.9)
    assert config.execution.workers is None
    assert config.weighting == "fedadp:alpha=4"
    assert Experiment.from_dict(config.to_dict(), "again") == config
    with pytest.raises(SteelyardError, match="'rounds' is a value, not a section"):
        read_experiment(None, ["rounds=3", "rounds.x=4"])


def test_options_lists_every_key():
    made = call("run", "--options")
    assert made.exit_code == 0
    for key in ("weighting", "local.batch_size", "participation.dropout", "data.partition"):
        assert key in made.output


def test_resume_of_what_is_no_run(tmp_path):
    made = call("resume", tmp_path)
    assert made.exit_code == 2
    assert "holds no run" in made.output


def test_the_command_killed_and_resumed(tmp_path):
    """End to end: the real command, SIGKILL, then `steelyard resume`; a second process is refused meanwhile."""
    settings = [
        "--set",
        "rounds=12",
        "--set",
        "local.epochs=20",
        "--set",
        "weighting=fedadp",
        "--set",
        "server=adam",
    ]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    subprocess.run([*STEELYARD, "run", *settings, "--out", str(whole), "-q"], check=True)
    process = subprocess.Popen([*STEELYARD, "run", *settings, "--out", str(cut), "-q"])
    wait_until(
        (cut / "checkpoints" / "last").exists, "the first checkpoint is written", pause=0.005
    )
    refused = call("resume", cut)
    if process.poll() is None:
        assert refused.exit_code == 2
        assert f"in use by pid {process.pid}" in " ".join(refused.output.split())
        os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert subprocess.run([*STEELYARD, "resume", str(cut), "-q"], check=False).returncode == 0
    last = Path("checkpoints") / "last"
    for name in ("model.safetensors", "state.safetensors"):
        assert (cut / last / name).read_bytes() == (whole / last / name).read_bytes()
    assert [r["accuracy"] for r in read_log(cut)] == [r["accuracy"] for r in read_log(whole)]
    made = call("resume", cut, "--rounds", 13)
    assert made.exit_code == 0, made.output
    assert len(read_log(cut)) == 13


def test_ctrl_c_says_how_to_go_on(tmp_path):
    out = tmp_path / "my run"
    process = subprocess.Popen(
        [*STEELYARD, "run", "--set", "rounds=100000", "--out", str(out)],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    wait_until((out / "checkpoints" / "last").exists, "the first checkpoint is written")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert f"interrupted; resume with: steelyard resume '{out}'" in errors
    assert "Traceback" not in errors


def test_rules_lists_every_part_of_an_algorithm():
    made = call("rules")
    assert made.exit_code == 0
    for title in (
        "Rules",
        "Client terms (client=)",
        "Server optimizers (server=)",
        "Broadcasts (broadcast=)",
    ):
        assert title in made.output
    rows = json.loads(call("rules", "--json").output)
    kinds = {row["name"]: row["kind"] for row in rows}
    assert kinds["fedcos"] == "client term"
    assert kinds["fedmut"] == "broadcast"
    assert next(row for row in rows if row["name"] == "fedcos")["needs"] == ["last global step"]


@pytest.mark.parametrize("form", ["set", "toml"])
def test_a_detector_with_options_and_nodes_of_several_kinds_are_plain_settings(form, tmp_path):
    settings = {
        "weighting": "pa3fed:detector=eq6:delta=0.05,beta=0.5",
        "client": "fedcos:mu=0.02,direction=move",
        "data.partition": "x_class:classes=[1,1,2],iid=1,samples=50",
        "data.clients": 4,
        "rounds": 2,
    }
    out = tmp_path / "run"
    if form == "toml":
        file = tmp_path / "run.toml"
        file.write_text(
            "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())
        )
        result = call("run", file, "--out", out, "-q")
    else:
        options = [
            part for name, value in settings.items() for part in ("--set", f"{name}={value}")
        ]
        result = call("run", *options, "--out", out, "-q")
    assert result.exit_code == 0, result.output
    resolved = json.loads((out / "config.json").read_text())["resolved"]["algorithm"]
    assert resolved == {
        "weighting": "pa3fed(eq6:delta=0.05):beta=0.5",
        "client": "fedcos:direction=move",
    }
    records = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    assert "direction_cosines" in records[1]
    assert "loss_before" in records[1]["reported"]
    held = json.loads((out / "clients.json").read_text())
    assert [sum(count > 0 for count in row) for row in held["counts"]] == [10, 1, 1, 2]
