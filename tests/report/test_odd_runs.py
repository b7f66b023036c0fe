"""Run directories whose files hold wrong types, huge numbers or deep nesting: an error that names the file."""

import contextlib
import copy
import json
import os
import random
import shutil

import pytest
from typer.testing import CliRunner

from steelyard.cli.app import app
from steelyard.core._errors import SteelyardError
from steelyard.diagnostics import _recorded as recorded
from steelyard.runs._directory import read_clients, read_cohorts, read_config, read_log
from steelyard.runs._files import parse_json
from steelyard.runs._history import History

FILES = ("config.json", "rounds.jsonl", "clients.json", "cohorts.json", "environment.json")
DEEP = "[" * 200 + "]" * 200
VALUES = [
    *(
        "null",
        "true",
        "0",
        "-1",
        "1.5",
        "1e999",
        "NaN",
        "1e308",
        '""',
        '"x"',
        '"\\ud800"',
        '"\\u001b[31m"',
    ),
    *(
        "[]",
        "[1]",
        '["a"]',
        "[[1]]",
        "[null]",
        "{}",
        '{"a":1}',
        '{"a":"b"}',
        '{"a":{"b":1}}',
        '{"a":[1]}',
        DEEP,
    ),
    *(
        "9" * 30,
        "9" * 320,
        "-" + "9" * 320,
        "9" * 5000,
        '{"client-0":' + "9" * 320 + "}",
        '{"a":' * 99 + "1" + "}" * 99,
    ),
]
WHOLE = [
    "",
    "\0",
    "{",
    "[",
    "nothing",
    "[" * 100_000,
    '{"a":' * 50_000,
    "9" * 10_000,
    "\xff\xfe",
    *VALUES,
]


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """Two runs of the command line, which can be resumed."""
    home = tmp_path_factory.mktemp("runs")
    for rule in ("fedawa", "pa3fed"):
        settings = [
            f"weighting={rule}",
            "rounds=2",
            "data.clients=3",
            "evaluate_clients=1",
            "executor=serial",
        ]
        said = CliRunner().invoke(
            app,
            [
                "run",
                "--quiet",
                "--out",
                str(home / rule),
                *(w for s in settings for w in ("--set", s)),
            ],
        )
        assert said.exit_code == 0, said.output
    return home


@pytest.fixture
def runs(original, tmp_path):
    shutil.copytree(original, tmp_path / "runs", symlinks=True)
    return tmp_path / "runs"


def check_commands(runs):
    """Every command says something, and ends by itself."""
    for command in (
        ["report", str(runs), "-o", str(runs.parent / "report.html")],
        ["compare", str(runs), "--anyway"],
        ["plot", str(runs), "accuracy", "-o", str(runs.parent / "figure.csv")],
        ["resume", str(runs / "fedawa"), "--quiet"],
    ):
        said = CliRunner().invoke(app, command)
        assert said.exception is None or isinstance(said.exception, SystemExit), (
            command,
            said.exception,
        )


def check_reading(run):
    """Whatever is read from Python is there, or there is an error of ours."""
    for read in (
        History.read,
        read_config,
        read_clients,
        read_cohorts,
        read_log,
        lambda path: History.read(path).to_pandas(),
        lambda path: recorded.series(path, "coherence"),
        lambda path: recorded.by_client(path, "weights"),
    ):
        with contextlib.suppress(SteelyardError):
            read(run)


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_something_else(name, runs):
    for text in WHOLE:
        (runs / "fedawa" / name).write_text(text + "\n", errors="surrogateescape")
        check_reading(runs / "fedawa")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    "text", ["", "[[1]]", "[" * 100_000, "9" * 320], ids=lambda text: repr(text[:12])
)
def test_commands_on_a_file_that_is_something_else(name, text, runs):
    (runs / "fedawa" / name).write_text(text + "\n")
    check_commands(runs)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["directory", "pipe", "loop"])
def test_a_file_that_is_not_a_file(name, kind, runs):
    path = runs / "fedawa" / name
    path.unlink()
    if kind == "directory":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(path)
    check_reading(runs / "fedawa")
    check_commands(runs)


def places(value, at=()):
    """Where there is anything, in nested dicts and lists."""
    yield at
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value[:2])
        if isinstance(value, list)
        else ()
    )
    for key, item in items:
        yield from places(item, (*at, key))


def changed(value, at, mark):
    value = copy.deepcopy(value)
    inner = value
    for key in at[:-1]:
        inner = inner[key]
    inner[at[-1]] = mark
    return value


@pytest.mark.parametrize("seed", range(12))
def test_one_value_of_the_wrong_kind(seed, runs):
    rng = random.Random(seed)
    path = runs / "fedawa" / rng.choice(FILES)
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    number = rng.randrange(len(lines))
    before = json.loads(lines[number])
    at = rng.choice([place for place in places(before) if place])
    lines[number] = json.dumps(changed(before, at, "MARK")).replace('"MARK"', rng.choice(VALUES))
    path.write_text("\n".join(lines) + "\n")
    check_reading(runs / "fedawa")
    check_commands(runs)


RECORDS = {
    "accuracy": '"high"',
    "loss": "9" * 320,
    "weights": "[1]",
    "quarantined": '{"a":1}',
    "timings": '{"total":null}',
    "dropped_clients": "3",
    "void": "{}",
    "reported": '{"loss":3}',
    "client_accuracy": '{"a":"b"}',
    "round": "2.5",
}


@pytest.mark.parametrize("name", RECORDS)
def test_a_line_is_refused_by_its_number_and_the_key(name, runs):
    path = runs / "fedawa" / "rounds.jsonl"
    lines = path.read_text().splitlines()
    lines[1] = json.dumps({**json.loads(lines[1]), name: "MARK"}).replace('"MARK"', RECORDS[name])
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(SteelyardError, match=rf"rounds.jsonl, line 2: .*({name}|bits|round)"):
        read_log(runs / "fedawa")


def test_numbers_and_nesting_beyond_reason_are_no_json():
    assert parse_json(b'{"a": [1, {"b": 1e999}]}')["a"][0] == 1
    for data in (b"[" * 40 + b"]" * 40, b"[" * 200_000, b"9" * 400, b"9" * 5000):
        with pytest.raises(ValueError, match=r"nested|bits|digits"):
            parse_json(data)
