"""The commands `data list` and `data fetch`, as typed."""

import hashlib
import re

import pytest
from typer.testing import CliRunner

from steelyard.cli.app import app
from steelyard.core._errors import SteelyardError
from steelyard.data import SOURCES, load
from steelyard.data import _images as images
from steelyard.data._download import DOWNLOADS, File
from steelyard.sim._experiment import read_experiment
from tests.datasets import files
from tests.datasets.server import serving


@pytest.fixture(autouse=True)
def _no_data_around(monkeypatch, tmp_path):
    monkeypatch.setattr(images, "DEBIAN", tmp_path / "nowhere")
    monkeypatch.delenv("STEELYARD_DATA", raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def call(*arguments):
    return CliRunner().invoke(
        app, ["data", *map(str, arguments)], env={"COLUMNS": "250", "NO_COLOR": "1"}
    )


def served(server, root, name="mnist"):
    """Files of a folder as the home of a data set."""
    out = []
    for path in sorted((root / name).iterdir()):
        server.files[f"/{path.name}"] = path.read_bytes()
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        out.append(File(f"{server.url}/{path.name}", f"{name}/{path.name}", sha256=digest))
    return tuple(out)


def test_list_says_what_there_is_and_where(tmp_path):
    files.write_mnist(tmp_path / "mnist")
    made = call("list", "--dir", tmp_path)
    assert made.exit_code == 0, made.output
    rows = {
        row.split("│")[1].strip(): row for row in made.output.splitlines() if row.startswith("│")
    }
    assert {entry.name for entry in SOURCES} | set(DOWNLOADS) == set(rows)
    assert str(tmp_path / "mnist") in rows["mnist"]
    assert "12 MB" in rows["mnist"]
    assert "digits.safetensors" in rows["digits"]
    assert "28x28 clothes" in rows["fashion-mnist"]
    assert str(tmp_path) not in rows["fashion-mnist"]
    assert "> 258 MB" in rows["digits-5"]
    assert " ? " in rows["usps"]


def test_fetch_then_load(tmp_path, monkeypatch):
    files.write_mnist(tmp_path / "there" / "mnist")
    with pytest.raises(SteelyardError, match="fetch it: ") as caught:
        load("mnist", tmp_path)
    command = str(caught.value).split("fetch it: steelyard data ")[1].split()
    with serving({}) as server:
        monkeypatch.setitem(DOWNLOADS, "mnist", served(server, tmp_path / "there"))
        made = call(*command)
    assert made.exit_code == 0, made.output
    assert f"mnist is in {tmp_path}" in made.output
    assert len(load("mnist", tmp_path)[0]) == 7


def test_the_directory_may_come_from_the_environment(tmp_path, monkeypatch):
    files.write_mnist(tmp_path / "there" / "mnist")
    assert "name one with --dir, or set STEELYARD_DATA" in call("fetch", "mnist").output
    place = tmp_path / "my [bold]data [/x]"  # which is no markup
    monkeypatch.setenv("STEELYARD_DATA", str(place))
    with serving({}) as server:
        monkeypatch.setitem(DOWNLOADS, "mnist", served(server, tmp_path / "there"))
        made = call("fetch", "mnist")
    assert made.exit_code == 0
    assert f"mnist is in {place}\n" in made.output
    assert len(load("mnist")[0]) == 7


def test_what_cannot_be_fetched_is_said_in_one_sentence(tmp_path, monkeypatch):
    made = call("fetch", "mnist", "synth", "--dir", tmp_path)
    assert made.exit_code == 2
    assert "'synth' cannot be fetched: use one of ag-news, cifar10" in made.output
    with serving({}) as server:
        monkeypatch.setitem(DOWNLOADS, "mnist", (File(f"{server.url}/x", "mnist/x", md5="0" * 32),))
        made = call("fetch", "mnist", "--dir", tmp_path)
    assert made.exit_code == 2
    assert re.fullmatch(r"steelyard: http://\S+/x: .*404 Not Found: try again later\n", made.output)


def test_an_interrupt_says_how_to_go_on(tmp_path, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("steelyard.cli.data.fetch_dataset", interrupted)
    made = call("fetch", "mnist", "--dir", tmp_path)
    assert made.exit_code == 130
    assert f"interrupted; resume with: steelyard data fetch mnist --dir {tmp_path}" in made.output
    made = call("fetch", "mnist", "--dir", tmp_path / "my data")
    assert f"steelyard data fetch mnist --dir '{tmp_path}/my data'" in made.output


def test_a_run_takes_options_in_the_name_of_its_data(tmp_path, monkeypatch):
    config = read_experiment(None, ["data.name=digits:scale=half"])
    assert config.data.name == "digits:scale=half"
    with pytest.raises(
        SteelyardError, match=r"data\.name='digits:scal=half': .* did you mean 'scale'\?"
    ):
        read_experiment(None, ["data.name=digits:scal=half"])
    with pytest.raises(
        SteelyardError, match=r"data\.name='digits:scale=double': scale='double': use one of"
    ):
        read_experiment(None, ["data.name=digits:scale=double"])
    monkeypatch.chdir(tmp_path)
    made = CliRunner().invoke(app, ["run", "-s", "data.name=digits:scale=half", "-s", "rounds=1"])
    assert made.exit_code == 0, made.output
    assert (tmp_path / "runs" / "fedavg-digits-scale-half-s0" / "rounds.jsonl").exists()
