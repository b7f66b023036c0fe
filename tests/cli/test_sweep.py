"""The commands sweep and compare, as typed."""

import io
import json
import os
import shutil
import signal
import subprocess
from types import SimpleNamespace

import pytest
from rich.console import Console
from typer.testing import CliRunner

from steelyard.cli.app import app
from steelyard.cli.sweep import Board, print_table
from steelyard.experiments import _jobs as module
from steelyard.experiments._jobs import Outcome
from steelyard.experiments._tables import Cell, Table
from steelyard.runs._history import History
from steelyard.runs._lock import lock_directory
from tests.cli.test_run import STEELYARD
from tests.experiments.jobs import Here, job
from tests.waiting import PATIENCE, wait_until

FILE = """
target = 0.2
[base]
rounds = 3
data.clients = 4
[grid]
weighting = ["fedavg", "fedadp"]
seed = [1, 2]
"""


def call(*arguments):
    made = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return made.exit_code, " ".join(made.output.split())


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A finished sweep, and what the command printed."""
    home = tmp_path_factory.mktemp("sweep")
    (home / "small.toml").write_text(FILE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "Child", Here)
        return home, call("sweep", home / "small.toml", "--out", home / "out")


@pytest.fixture
def swept(original, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "Child", Here)
    return shutil.copytree(original[0], tmp_path / "home")


def test_a_sweep_prints_lines_a_table_and_sentences(original):
    home, (code, output) = original
    assert code == 0, output
    assert "started fedavg/seed-1" in output
    assert "finished fedadp/seed-2 round 3 accuracy 0." in output
    assert "(4/4)" in output
    assert (
        "accuracy, mean of the last 10 evaluations, in %; mean ± deviation over 2 seeds"
        in " ".join(output.split())
    )
    assert "fedadp is" in output
    assert "95 % interval" in output
    assert "Traceback" not in output
    assert {path.name for path in (home / "out").iterdir()} == {
        "fedavg", "fedadp", "lock", "results.md", "results.csv", "results.tex", "table.csv",
    }  # fmt: skip


def test_finished_runs_are_listed_reused_and_not_overwritten_by_others(swept):
    file, out = swept / "small.toml", swept / "out"
    shutil.rmtree(out / "fedadp" / "seed-2")
    log = out / "fedavg" / "seed-2" / "rounds.jsonl"
    log.write_text("")
    shutil.rmtree(log.parent / "checkpoints")
    code, output = call("sweep", file, "--out", out, "--dry-run")
    assert code == 0
    for line in (
        "finished fedavg/seed-1",
        "unfinished fedavg/seed-2",
        "to do fedadp/seed-2",
        "2 finished",
    ):
        assert line in output
    assert log.read_text() == ""
    code, output = call("sweep", file, "--out", out, "--metric", "rounds")
    assert code == 0
    assert "reused fedavg/seed-1" in output
    assert "rounds to the target accuracy 0.2" in output
    file.write_text(FILE.replace("rounds = 3", "rounds = 3\nlocal.lr = 0.5"))
    code, output = call("sweep", file, "--out", out)
    assert code == 2
    assert "holds another run (local.lr = 0.1 there, 0.5 here)" in output
    assert call("sweep", file, "--out", out, "--overwrite", "--quiet") == (0, "")
    assert (
        json.loads((out / "fedavg" / "seed-1" / "config.json").read_text())["config"]["local"]["lr"]
        == 0.5
    )


def test_a_second_sweep_in_the_same_place_is_refused_and_changes_nothing(swept):
    file, out = swept / "small.toml", swept / "out"
    before = {path: path.read_bytes() for path in out.glob("*.*")}
    with lock_directory(out, "sweep"):
        code, output = call("sweep", file, "--out", out)
    assert code == 2
    assert "this sweep is in use by pid" in output
    assert {path: path.read_bytes() for path in out.glob("*.*")} == before


def test_a_place_that_cannot_be_written_to_is_one_sentence(tmp_path):
    (tmp_path / "s.toml").write_text(FILE)
    (tmp_path / "file").touch()
    code, output = call("sweep", tmp_path / "s.toml", "--out", tmp_path / "file" / "out")
    assert code == 2
    assert output.endswith(
        "cannot be a sweep directory: Not a directory: choose another directory (--out)"
    )
    code, output = call("reproduce", "fedadp-table1", "--out", tmp_path / "file" / "out")
    assert code == 2
    assert output.endswith(
        "cannot be a reproduction directory: Not a directory: choose another directory (--out)"
    )


def test_a_failed_run_is_named_and_is_the_exit_code(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "Child", Here)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.toml").write_text('[base]\nrounds = 2\n[grid]\n"local.lr" = [0.1, 1e30]\n')
    code, output = call("sweep", "bad.toml")
    assert code == 1
    assert "failed lr-1e+30/seed-0: round 2: 2 rounds in a row were void" in output
    assert "1 of 2 runs failed" in output
    assert "note: one seed (0) says nothing about noise" in output
    assert (tmp_path / "runs" / "bad" / "results.md").exists()


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("[gird]", [], "unknown key 'gird': did you mean 'grid'?"),
        ("[base", [], "not TOML"),
        (None, [], "no such file"),
        ("", ["--metric", "accuracy"], "metric 'accuracy': unknown"),
        ("", ["--metric", "rounds"], "no target is given"),
        ("", ["--parallel", "0"], "parallel=0: use at least 1"),
    ],
)
def test_mistakes_are_one_sentence(text, options, message, tmp_path):
    if text is not None:
        (tmp_path / "s.toml").write_text(text)
    code, output = call("sweep", tmp_path / "s.toml", "--out", tmp_path / "out", *options)
    assert code == 2
    assert message in output
    assert "Traceback" not in output
    assert not (tmp_path / "out").exists()


def test_compare_says_what_may_be_said(swept):
    code, output = call("compare", swept / "out", "--confidence", 0.9)
    assert code == 0, output
    assert "fedadp is" in output
    assert "fedavg over 2 common seeds (90 % interval" in output
    assert "times as many rounds to its final accuracy" in output or "never reaches" in output
    code, output = call("compare", *(swept / "out").glob("*/seed-1"), "--json", "--metric", "best")
    (made,) = json.loads(output)
    assert made["algorithm"] == "fedadp"
    assert made["against"] == "fedavg"
    assert made["seeds"] == ["1"]
    assert made["interval"] is None
    assert made["sentence"].endswith("one seed says nothing about noise.")
    code, output = call(
        "compare", swept / "out", "--against", "fedadp", "--metric", "rounds", "--target", 0.2
    )
    assert code == 0
    assert "fedavg" in output


def test_compare_by_the_mean_of_a_recorded_number(swept):
    metric = "mean(mean_cosine,1-2)"
    code, output = call("compare", swept / "out", "--json", "--metric", metric)
    assert code == 0
    assert json.loads(output)[0]["metric"] == metric
    code, output = call("compare", swept / "out", "--metric", "mean(warmth)")
    assert code == 2
    assert "'warmth' is not on record" in output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--metric", "rounds", "--target", 5], "target=5: use an accuracy in (0, 1], such as 0.9"),
        (["--target", "nan"], "target=nan: use an accuracy"),
        (["--confidence", "0.99999999999999994"], "use a number between 0 and 1, such as 0.95"),
    ],
)
def test_compare_refuses_odd_numbers(options, message, swept):
    code, output = call("compare", swept / "out", *options)
    assert code == 2
    assert message in output


def test_compare_refuses_what_did_not_start_alike(swept):
    path = swept / "out" / "fedadp" / "seed-2" / "config.json"
    stored = json.loads(path.read_text())
    stored["resolved"]["model"]["initial"] = "another"
    path.write_text(json.dumps(stored))
    code, output = call("compare", swept / "out")
    assert code == 2
    assert "(seed 2) did not start alike (another initial model)" in output
    assert "--anyway" in output
    code, output = call("compare", swept / "out", "--anyway")
    assert code == 0
    assert "note: " in output
    assert "2 common seeds" in output


def test_compare_refuses_runs_that_differ_in_more_than_the_algorithm(swept):
    for name in ("seed-1", "seed-2"):
        path = swept / "out" / "fedadp" / name / "config.json"
        stored = json.loads(path.read_text())
        stored["config"]["data"]["partition"] = "iid"
        path.write_text(json.dumps(stored))
    code, output = call("compare", swept / "out")
    assert code == 2
    assert "the runs differ in data.partition, not in the algorithm alone" in output
    code, output = call("compare", swept / "out", "--anyway")
    assert code == 0
    assert "fedadp, iid" in output
    assert "2 common seeds" in output


def test_compare_needs_two_algorithms_and_runs(swept, tmp_path):
    code, output = call("compare", swept / "out" / "fedavg")
    assert code == 2
    assert "all 2 runs are of the same algorithm (fedavg)" in output
    assert "holds no run" in call("compare", tmp_path / "nowhere")[1]
    for log in (swept / "out").glob("*/*/rounds.jsonl"):
        log.write_text(log.read_text().splitlines(keepends=True)[0])
    assert "no finished run to compare" in call("compare", swept / "out")[1]


LONG = "weighting-of-a-very-long-name-that-nobody-would-type-twice-but-must-once"


def table():
    cell = Cell(71.234, 0.456, 3, 3)
    heads = tuple(f"dirichlet:alpha={n},share=0.25" for n in range(8))
    return Table("a title", "algorithm", heads, ((LONG, (cell,) * 8),))


def test_a_table_in_a_pipe_is_as_wide_as_it_must_be():
    console = Console(file=io.StringIO(), width=80)
    print_table(table(), console)
    lines = console.file.getvalue().splitlines()
    (row,) = (line for line in lines if LONG in line)
    assert row.count("71.23 ± 0.46") == 8
    assert all(head in " ".join(lines) for head in table().heads)
    assert "…" not in " ".join(lines)


def test_a_table_on_a_terminal_is_folded_and_not_cut():
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    print_table(table(), console)
    shown = console.file.getvalue()
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= 80
    rows = [line.split("│")[1].strip() for line in shown.splitlines() if line.startswith("│")]
    assert "".join(rows) == LONG


def test_a_terminal_without_the_sign_gets_another(original):
    made = subprocess.run(
        [*STEELYARD, "compare", str(original[0] / "out")],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    assert "mean ? deviation over 2 seeds" in " ".join(made.stdout.split())


def test_help_teaches():
    for command in ("sweep", "compare"):
        code, output = call(command, "--help")
        assert code == 0
        assert "seed" in output
    assert '"data.partition" = ["iid", "dirichlet:0.1"]' in call("sweep", "--help")[1]


def board(count):
    jobs = [job(seed=seed, rounds=10) for seed in range(count)]
    made = Board(jobs)
    made.on_start(jobs[0])
    made.on_progress(jobs[0], {"round": 1, "accuracy": 0.5, "loss": 1.0})
    made.on_progress(jobs[0], {"round": 2, "accuracy": None, "loss": None})
    made.on_finish(Outcome(jobs[1], None, None, "broke"))
    made.on_finish(
        Outcome(jobs[2], None, History("h", [{"round": 1, "accuracy": 0.75}]), reused=True)
    )
    console = Console(file=io.StringIO(), width=100)
    console.print(made)
    return console.file.getvalue()


def test_the_live_table_shows_every_job_of_a_few():
    shown = board(5)
    rows = [" ".join(line.replace("│", " ").split()) for line in shown.splitlines()]
    assert any(row.startswith("fedavg/seed-0 running 2/10 0.5000 0 s") for row in rows)
    assert "fedavg/seed-1 failed 0/10" in rows
    assert "fedavg/seed-2 reused 1/10 0.7500" in rows
    assert "fedavg/seed-4 waiting 0/10" in rows
    assert rows[-1] == "5 runs: 1 running, 1 failed, 1 reused, 2 waiting"


def test_the_live_table_shows_only_what_runs_of_many():
    shown = board(40)
    assert "seed-0" in shown
    assert "seed-1 " not in shown
    assert "40 runs: 1 running, 1 failed, 1 reused, 37 waiting" in shown


def test_time_left_follows_the_pace_of_this_session(monkeypatch):
    clock = iter([100.0, 103.0])
    monkeypatch.setattr("steelyard.cli.sweep.time", SimpleNamespace(monotonic=lambda: next(clock)))
    made = Board([job(rounds=20)])
    made.on_start(made.jobs[0])
    assert made.seconds_left(made.jobs[0]) is None
    made.on_progress(made.jobs[0], {"round": 8})  # resumed
    made.on_progress(made.jobs[0], {"round": 10})
    assert made.seconds_left(made.jobs[0]) == pytest.approx(15.0)


def test_ctrl_c_keeps_what_is_finished(tmp_path):
    """The real command, in processes of its own."""
    (tmp_path / "long.toml").write_text('[base]\nrounds = 100000\n[grid]\nweighting = ["fedavg"]\n')
    out = tmp_path / "out"
    command = [*STEELYARD, "sweep", str(tmp_path / "long.toml"), "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_until((out / "fedavg" / "seed-0" / "rounds.jsonl").exists, "the first round is written")
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert "started" in output
    assert "start the same command again" in errors
    assert "Traceback" not in errors
