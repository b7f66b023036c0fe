"""`steelyard partitions` and `steelyard models`, as a user types them."""

import itertools
import json

import numpy as np
import pytest
import torch

from steelyard.data import PARTITIONS, SOURCES, Dataset, Federation, corrupt, load
from steelyard.models import MODELS, build
from tests.cli.test_cli import steelyard_command


def shown(*arguments):
    result = steelyard_command("partitions", "show", *arguments)
    assert result.exit_code == 0, result.output
    return result.output


def numbers(output, clients, classes=10):
    """The table's counts; columns are as wide as their widest number, and none is an empty cell."""
    lines = output.splitlines()
    head = next(at for at, line in enumerate(lines) if line.lstrip().startswith("client "))
    ends = [lines[head].index("samples") + len("samples")]
    for label in range(classes):
        ends.append(lines[head].index(str(label), ends[-1]) + 1)
    rows = lines[head + 1 : head + 1 + clients]
    return np.array(
        [[int(row[a:b].strip() or 0) for a, b in itertools.pairwise(ends)] for row in rows]
    )


@pytest.mark.parametrize(
    "partition", ["dirichlet:alpha=0.1", "shards", "x_class:samples=50", "quantity"]
)
def test_the_table_is_what_a_run_would_hold(partition):
    train, test = load("digits")
    counts = Federation.partitioned(train, test, partition, 7, 3).label_counts()
    assert np.array_equal(numbers(shown(partition, "--clients", 7, "--seed", 3), 7), counts)


def test_corruption_shows():
    train, test = load("digits")
    federation = corrupt(Federation.partitioned(train, test, "sorted", 5, 1), 0.6, "flip", seed=1)
    output = shown("sorted", "--clients", 5, "--seed", 1, "--corrupt", "0.6:flip")
    assert np.array_equal(numbers(output, 5), federation.label_counts())
    assert "corrupted 0.6:flip" in output
    counts = output.split("corrupted 0.6:flip")[1]
    spelled = shown("sorted", "--clients", 5, "--seed", 1, "--corrupt", "flip:share=0.6")
    assert spelled.split("corrupted flip:share=0.6")[1] == counts


def test_many_clients_and_classes_are_summarised(monkeypatch):
    labels = torch.arange(3000) % 300
    made = Dataset(torch.zeros(3000, 1), labels, 300, "wide", labels % 2)
    monkeypatch.setitem(
        SOURCES._entries,
        "wide",
        type(SOURCES["digits"])("wide", lambda: lambda _: (made, made), None),
    )
    output = shown("shards:per_client=3", "--data", "wide", "--clients", 50, "--by", "groups")
    assert "classes 0 to 299" in output
    assert "... and 10 more clients" in output
    assert "3,000 samples; per client 60 to 60, median 60, none empty" in output
    assert len([line for line in output.splitlines() if "█" in line]) == 40


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_a_picture_is_written(suffix, tmp_path):
    pytest.importorskip("matplotlib", reason="pictures need matplotlib")
    path = tmp_path / f"[bold]p.{suffix}"
    assert str(path) in shown("dirichlet:0.1", "-o", path)
    assert path.stat().st_size > 5000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["dirichlot"], "unknown partition 'dirichlot': did you mean 'dirichlet'?"),
        (["dirichlet:alpha=-1"], "alpha=-1"),
        (["iid", "-o", "p.gif"], "p.gif: pictures are .png, .svg, .pdf"),
        (["iid", "-o", "missing/p.png"], "there is no directory missing"),
        (["iid", "-o", "/dev/full/p.png"], "there is no directory /dev/full"),
        (["iid", "--corrupt", "half"], "--corrupt 'half': unknown corruption 'half'"),
        (["iid", "--corrupt", "0.5:melt"], "unknown corruption 'melt'"),
        (["iid", "--by", "colour"], "--by colour: use labels or groups"),
        (["iid", "--by", "groups"], "the data has no groups"),
        (["iid", "--clients", "0"], "clients=0"),
        (["iid", "--data", "digit"], "unknown data set 'digit': did you mean 'digits'?"),
    ],
)
def test_mistakes_are_one_sentence(arguments, message):
    result = steelyard_command("partitions", "show", *arguments)
    assert result.exit_code == 2
    assert message in result.output
    assert len(result.output.strip().splitlines()) == 1


def test_partitions_are_listed_with_their_options():
    rows = json.loads(steelyard_command("partitions", "list", "--json").output)
    assert [row["name"] for row in rows] == [entry.name for entry in PARTITIONS]
    assert {row["name"]: row["options"] for row in rows}["hybrid_dirichlet"] == {
        "alpha1": "10.0",
        "alpha2": "0.1",
    }
    table = steelyard_command("partitions", "list").output
    assert all(entry.name in table and entry.info.paper in table for entry in PARTITIONS)


def test_models_are_listed_with_their_parameters():
    rows = json.loads(
        steelyard_command("models", "list", "--shape", "1x28x28", "--classes", 7, "--json").output
    )
    assert [row["name"] for row in rows] == [entry.name for entry in MODELS]
    counted = {row["name"]: row["parameters"] for row in rows}
    for name in ("logistic", "mcmahan_cnn", "resnet20"):
        assert counted[name] == sum(p.numel() for p in build(name, (1, 28, 28), 7, 0).parameters())
    assert counted["char_lstm"] is None
    assert "11,173,962" in steelyard_command("models", "list").output


@pytest.mark.parametrize("arguments", [["--shape", "3,a"], ["--shape", "0,3"], ["--classes", "0"]])
def test_a_bad_shape_is_one_sentence(arguments):
    result = steelyard_command("models", "list", *arguments)
    assert result.exit_code == 2
    assert arguments[0] in result.output
