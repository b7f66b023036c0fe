"""`steelyard report`, `plot` and `watch`, as a user types them."""

import os
import signal
import subprocess
import sys
import urllib.request
import webbrowser
from pathlib import Path

import pytest

from tests.cli.test_cli import steelyard_command
from tests.report.runs import HOSTILE, comparison, write_run

STEELYARD = [sys.executable, "-c", "from steelyard.cli import main; main()"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return comparison(tmp_path_factory.mktemp("runs") / "runs", rounds=10)


def test_a_report_is_written_and_its_path_printed(folder, tmp_path):
    made = steelyard_command("report", folder, "-o", tmp_path / "report.html", "--target", 0.5)
    assert made.exit_code == 0, made.output
    assert f"{tmp_path / 'report.html'}: 15 figures, 2." in made.output
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    assert "3 algorithms on digits" in text


def test_open_shows_it_in_the_browser(folder, tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    steelyard_command("report", folder, "-o", tmp_path / "a b.html", "--open")
    assert opened == [(tmp_path / "a b.html").as_uri()]


def test_unfinished_runs_and_hostile_names_are_noted_as_text(tmp_path):
    write_run(tmp_path / "[red]run[/]", rule=HOSTILE[0], done=3)
    made = steelyard_command("report", tmp_path, "-o", tmp_path / "report.html")
    assert made.exit_code == 0, made.output
    assert "[red]run[/]: unfinished (3 of 20 rounds)" in made.output


def test_plot_lists_the_figures_and_draws_one(folder, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib", reason="pictures need matplotlib")
    monkeypatch.chdir(tmp_path)
    listed = steelyard_command("plot", folder)
    assert listed.exit_code == 0
    assert all(
        name in listed.output
        for name in ("accuracy", "coherence", "partition", "timings", "NAME.pdf")
    )
    drawn = steelyard_command(
        "plot", folder / "avg-0", folder / "law-0", "coherence", "-o", "coherence.svg"
    )
    assert drawn.output.strip() == "coherence.svg"
    assert "<svg" in Path("coherence.svg").read_text()
    assert steelyard_command("plot", folder, "gamma").output.strip() == "gamma.pdf"
    assert Path("gamma.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["report", "nowhere"], "nowhere: holds no run: give run directories"),
        (["report", "{runs}", "-o", "report.pdf"], "report.pdf: a report is an HTML page"),
        (["report", "{runs}", "--target", "90"], "target=90: use an accuracy in (0, 1]"),
        (["plot", "{runs}", "coherense"], "unknown figure 'coherense': did you mean 'coherence'?"),
        (["plot", "{runs}", "x" * 5000], "unknown figure 'xxxx"),
        (["plot", "{runs}", "loss", "-o", "loss.gif"], "pictures are .png, .svg, .pdf"),
        (["watch", "nowhere"], "nowhere: no such directory"),
        (["watch", "{runs}", "--port", "99999"], "port 99999: cannot be used"),
    ],
)
def test_mistakes_are_one_sentence(folder, arguments, words):
    made = steelyard_command(*(str(folder) if one == "{runs}" else one for one in arguments))
    assert made.exit_code == 2
    assert words in made.output
    assert len(made.output.strip().splitlines()) == 1


@pytest.mark.parametrize("command", ["report", "plot", "watch"])
def test_help_teaches_with_examples(command):
    assert f"steelyard {command} runs/" in steelyard_command(command, "--help").output


def test_watch_prints_its_address_and_ends_clean(folder):
    with subprocess.Popen(
        [*STEELYARD, "watch", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:
        address = process.stdout.readline().split()[0]
        with urllib.request.urlopen(address, timeout=60) as answer:
            assert b"<!doctype html>" in answer.read()
        process.send_signal(signal.SIGINT)
        said, errors = process.communicate(timeout=600)
    assert (process.returncode, said.strip(), errors) == (0, "stopped", "")
