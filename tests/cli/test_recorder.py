"""`steelyard replay`, `contributions` and `watch --alert`, as a user types them."""

import csv
import json
import os
import subprocess
import sys
import webbrowser

import pytest

from tests.cli.test_cli import steelyard_command
from tests.report.runs import HOSTILE, append_grams, write_recorded_run, write_run

STEELYARD = [sys.executable, "-c", "from steelyard.cli import main; main()"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_recorded_run(tmp_path_factory.mktemp("runs") / "avg", rounds=8)


def test_replay_prints_a_table(run):
    result = steelyard_command("replay", run, "--rule", "fedadp", "--rule", "fedadp|cap:0.3")
    assert result.exit_code == 0, result.output
    for text in ("Replay of avg", "run (fedavg)", "fedadp|cap:0.3", "rank agreement", "cosine"):
        assert text in result.output


def test_replay_writes_a_page_and_a_csv_file(run, tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    page = tmp_path / "replay.html"
    table = tmp_path / "weights.csv"
    result = steelyard_command(
        "replay", run, "--rule", "fedadp", "-o", page, "--csv", table, "--open"
    )
    assert result.exit_code == 0, result.output
    assert f"{page}: 2." in result.output
    assert "counterfactual" not in page.read_text()  # it is compressed data, not markup
    assert opened == [page.as_uri()]
    with table.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 8 * 4
    assert {row["rule"] for row in rows} == {"run", "fedadp"}
    shares = [
        float(row["share"]) for row in rows if row["rule"] == "fedadp" and row["round"] == "3"
    ]
    assert sum(shares) == pytest.approx(1.0)


def test_replay_of_every_rule_names_those_that_cannot_be_replayed(run):
    result = steelyard_command("replay", run, "--all", "--rule", "fedadp|ema:0.5")
    assert result.exit_code == 0, result.output
    for text in ("fedadp|ema:0.5", "geometric_median", "krum", "uniform"):
        assert text in result.output
    assert "left out: fedlaw: learns on proxy data" in result.output
    assert "left out: ldawa: round 1 has no Gram for layers='tensor'" in result.output


def test_a_long_replay_has_a_progress_bar(run, monkeypatch):
    started = []
    monkeypatch.setattr("rich.progress.Progress.start", lambda bar: started.append(bar))
    monkeypatch.setattr("steelyard.cli.replay._PATIENCE", 1e9)
    assert steelyard_command("replay", run, "--rule", "fedadp").exit_code == 0
    assert started == []
    monkeypatch.setattr("steelyard.cli.replay._PATIENCE", -1.0)
    assert steelyard_command("replay", run, "--rule", "fedadp").exit_code == 0
    assert len(started) == 1


def test_names_of_clients_are_printed_as_text(tmp_path):
    names = ["[red]x[/]", "=1+1", "\x1b[31m", HOSTILE[0]]
    run = write_recorded_run(tmp_path / "run", ids=names, rounds=3)
    table = tmp_path / "weights.csv"
    result = steelyard_command("replay", run, "--rule", "krum", "--csv", table)
    assert result.exit_code == 0, result.output
    assert "[red]x[/]" in result.output
    assert "\x1b[31m" not in result.output
    assert "'=1+1" in table.read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{run}"], "--rule fedadp"),
        (["{run}", "--rule", "fedlaw"], "learns on proxy data"),
        (["{run}", "--rule", "fedadb"], "did you mean 'fedadp'"),
        (["{run}", "--rule", "pa3fed"], "needs 'grad_norm'"),
        (["nowhere", "--rule", "fedadp"], "nowhere: not a run directory"),
        (["{plain}", "--rule", "fedadp"], "record=gram"),
        (["{run}", "--rule", "fedadp", "-o", "page.pdf"], "page.pdf"),
        (["{run}", "--rule", "fedadp", "--csv", "no/such/x.csv"], "no/such/x.csv"),
        (["{run}", "--rule", "fedadp", "--open"], "-o replay.html"),
    ],
)
def test_mistakes_of_replay_are_one_sentence(run, tmp_path, arguments, words):
    plain = write_run(tmp_path / "plain", rounds=2)
    places = {"{run}": run, "{plain}": plain}
    result = steelyard_command("replay", *(places.get(part, part) for part in arguments))
    assert result.exit_code == 2
    assert words in result.output
    assert len(result.output.strip().splitlines()) == 1


@pytest.mark.parametrize("command", ["replay", "contributions", "watch"])
def test_help_teaches_with_examples(command):
    assert f"steelyard {command} runs/" in steelyard_command(command, "--help").output


def test_contributions_prints_a_table_and_what_it_does_not_measure(run):
    result = steelyard_command("contributions", run)
    assert result.exit_code == 0, result.output
    for text in ("Contributions to avg", "total value", "leave-one-out", "does not measure"):
        assert text in result.output
    assert "flag" not in result.output.splitlines()[-1]


def test_flags_are_printed_with_their_evidence(flagged):
    result = steelyard_command("contributions", flagged)
    assert result.exit_code == 0, result.output
    assert "flag client [b]idle[/]: free rider: its update is shorter than" in result.output


def test_contributions_as_json_and_csv(flagged, tmp_path):
    table = tmp_path / "clients.csv"
    result = steelyard_command("contributions", flagged, "--json", "--csv", table)
    assert result.exit_code == 0, result.output
    data = json.loads(result.output)
    assert sum(entry["total"] for entry in data["clients"]) == pytest.approx(data["rounds"])
    flags = {entry["client"]: entry["flags"] for entry in data["clients"] if entry["flags"]}
    assert [flag["kind"] for flag in flags["[b]idle[/]"]] == ["free rider"]
    with table.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4
    assert rows[-1]["client"] == "[b]idle[/]"  # the smallest total is last
    assert "free rider" in rows[-1]["flags"]


@pytest.fixture(scope="module")
def flagged(tmp_path_factory):
    """A run with a client that sends nothing."""
    run = write_run(
        tmp_path_factory.mktemp("runs") / "idle", ids=["[b]idle[/]", "b", "c", "d"], rounds=8
    )
    append_grams(run, ["[b]idle[/]", "b", "c", "d"], range(1, 9), idle=0)
    return run


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "nowhere: not a run directory"),
        (["{plain}"], "record=gram"),
        (["{run}", "--csv", "no/such/x.csv"], "no/such/x.csv"),
    ],
)
def test_mistakes_of_contributions_are_one_sentence(run, tmp_path, arguments, words):
    places = {"{run}": run, "{plain}": write_run(tmp_path / "plain", rounds=2)}
    result = steelyard_command("contributions", *(places.get(part, part) for part in arguments))
    assert result.exit_code == 2
    assert words in result.output
    assert len(result.output.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--alert", "weight"], "not a condition"),
        (["--alert", "void>1"], "recorded as text"),
        (["--exit-on-alert", "3"], "--alert 'weight>0.3 for 5'"),
    ],
)
def test_mistakes_of_alerts_are_one_sentence(run, arguments, words):
    result = steelyard_command("watch", run, *arguments)
    assert result.exit_code == 2
    assert words in result.output
    assert len(result.output.strip().splitlines()) == 1


def test_watch_prints_alerts_and_ends_with_the_code(run):
    command = [*STEELYARD, "watch", str(run), "--alert", "accuracy>0.3 for 2", "--alert", "zzz<1"]
    done = subprocess.run(
        [*command, "--exit-on-alert", "7"],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "COLUMNS": "300", "NO_COLOR": "1"},
    )
    assert done.returncode == 7
    assert "does not record 'zzz'" in done.stderr
    address, alert = done.stdout.splitlines()
    assert address.startswith("http://127.0.0.1:")
    assert alert.startswith(f"alert: {run}, round ")
    assert ": accuracy>0.3 for 2: 0." in alert
