"""`steelyard replay`, as a user types it."""

import csv
import webbrowser

import pytest

from tests.cli.test_cli import steelyard_command
from tests.report.runs import HOSTILE, write_recorded_run, write_run


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


def test_help_teaches_with_examples():
    assert "steelyard replay runs/" in steelyard_command("replay", "--help").output
