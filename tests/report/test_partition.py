"""Pictures of partitions: what they say, that they can be made again, and that those of the docs are up to date."""

import importlib.util
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from steelyard.core._errors import SteelyardError
from steelyard.data import PARTITIONS, Dataset, Federation
from steelyard.report import _panels as panels
from steelyard.report._partition import (
    Summary,
    draw_partition,
    fingerprint,
    group_counts,
    partition_figure,
)

matplotlib = pytest.importorskip("matplotlib", reason="pictures need matplotlib")

ROOT = Path(__file__).parent.parent.parent
COUNTS = np.array([[4, 0, 0], [1, 2, 1], [0, 0, 0], [0, 0, 8]])
MAGIC = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}


def example():
    spec = importlib.util.spec_from_file_location(
        "partition_pictures", ROOT / "examples" / "partition_pictures.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def federation(clients=6, classes=4, groups=3, seed=0):
    g = torch.Generator().manual_seed(seed)
    labels, origin = (torch.randint(0, most, (120,), generator=g) for most in (classes, groups))
    data = Dataset(torch.zeros(120, 1), labels, classes, "made", origin)
    return Federation.partitioned(data, None, "dirichlet:alpha=0.5", clients, seed)


def words(figure):
    return " ".join(text.get_text() for text in figure.texts)


def test_a_summary_by_hand():
    whole = np.array([5, 2, 9]) / 16
    distances = [
        0.5 * np.abs(np.array(row) - whole).sum()
        for row in ([1, 0, 0], [0.25, 0.5, 0.25], [0, 0, 1])
    ]
    summary = Summary.of(COUNTS)
    assert summary == Summary(16, 0, 4.0, 8, 1, 5 / 3, pytest.approx(np.mean(distances)))
    assert str(summary).startswith(
        "16 samples; per client 0 to 8, median 4, 1 empty; 1.7 classes per client;"
    )


@pytest.mark.parametrize(
    ("counts", "distance"), [([[3, 6], [1, 2]], 0), ([[5, 0], [0, 5]], 0.5), ([[0, 0]], 0)]
)
def test_distances_of_like_and_unlike_clients(counts, distance):
    assert Summary.of(np.array(counts)).distance == pytest.approx(distance)


def test_bubbles_are_drawn_where_samples_are_their_area_the_count():
    counts = np.array([[100, 0, 25], [1, 50, 0]])
    figure = partition_figure(counts, "a title")
    drawn = {
        (int(x), int(y)): line.get_markersize()
        for line in figure.axes[0].lines
        for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)
    }
    assert set(drawn) == {(0, 0), (0, 2), (1, 0), (1, 1)}
    for at, width in drawn.items():
        assert width == pytest.approx(drawn[0, 0] * (counts[at] / 100) ** 0.5, abs=0.5)
    assert "a title" in words(figure)
    assert str(Summary.of(counts)).split("; ")[0] in words(figure)


def test_many_clients_are_a_heat_map_of_the_counts():
    counts = np.random.default_rng(0).integers(0, 4, (60, 5))
    image = partition_figure(counts).axes[0].images[0]
    assert np.array_equal(image.get_array().filled(0), counts.T)


def test_more_clients_than_columns_are_means_of_neighbours(monkeypatch):
    monkeypatch.setattr(panels, "MAX_COLUMNS", 20)
    counts = np.random.default_rng(0).integers(1, 9, (60, 5))
    axes = partition_figure(counts).axes[0]
    assert np.allclose(axes.images[0].get_array(), counts.reshape(20, 3, 5).mean(axis=1).T)
    assert "mean of 3" in axes.get_xlabel()


@pytest.mark.parametrize("clients", [7, 150])
def test_bars_are_the_sizes_stacked_by_group(clients):
    rng = np.random.default_rng(0)
    groups = rng.integers(0, 5, (clients, 3))
    counts = rng.multinomial(1, [0.2] * 5, clients) * groups.sum(axis=1, keepdims=True)
    steps = [patch.get_data() for patch in partition_figure(counts, groups=groups).axes[1].patches]
    middles = [
        np.searchsorted(steps[0].edges, client, side="right") - 1 for client in range(clients)
    ]
    heights = np.stack([(step.values - step.baseline)[middles] for step in steps], axis=1)
    assert np.array_equal(heights, groups)


@pytest.mark.parametrize("shape", [(1, 1), (1, 10), (40, 25), (41, 2), (3, 100), (2500, 10)])
def test_any_size_can_be_drawn(shape, tmp_path):
    rng = np.random.default_rng(0)
    for counts in (rng.integers(0, 50, shape), np.zeros(shape, dtype=np.int64)):
        partition_figure(counts, "$x^{ \\ [/b] % and a very long title " * 4).savefig(
            tmp_path / "p.png", dpi=40
        )
        assert (tmp_path / "p.png").read_bytes().startswith(MAGIC[".png"])


@pytest.mark.parametrize("suffix", MAGIC)
def test_the_same_federation_is_the_same_file(suffix, tmp_path):
    first, again, other = (
        tmp_path / f"a{suffix}",
        tmp_path / f"b{suffix.upper()}",
        tmp_path / f"c{suffix}",
    )
    assert draw_partition(federation(), first) == first
    draw_partition(federation(), again)
    draw_partition(federation(seed=1), other)
    assert first.read_bytes().startswith(MAGIC[suffix])
    assert first.read_bytes() == again.read_bytes() != other.read_bytes()


def test_groups_are_told_apart(tmp_path):
    made = federation()
    counts = group_counts(made)
    assert counts.sum(axis=1).tolist() == made.sizes.tolist()
    assert counts.sum(axis=0).tolist() == torch.bincount(made.train.groups).tolist()
    drawn = draw_partition(made, tmp_path / "p.svg", by="groups").read_text()
    assert all(colour in drawn for colour in panels.COLOURS[:3])
    assert panels.COLOURS[0] not in draw_partition(made, tmp_path / "p.svg").read_text()


def folder(path):
    path.mkdir()
    return path


MISTAKES = {
    "suffix": (
        lambda path: draw_partition(federation(), path.with_suffix(".gif")),
        r"\.gif: pictures are \.png, \.svg, \.pdf",
    ),
    "no directory": (
        lambda path: draw_partition(federation(), path / "p.png"),
        "there is no directory",
    ),
    "a directory": (
        lambda path: draw_partition(federation(), folder(path)),
        "cannot be written: Is a directory",
    ),
    "by": (
        lambda path: draw_partition(federation(), path, by="colour"),
        "by='colour': use 'labels' or 'groups'",
    ),
    "many groups": (
        lambda path: draw_partition(federation(groups=9), path, by="groups"),
        r"groups are \[\d+, 9\]",
    ),
    "no groups": (
        lambda _: group_counts(Federation.of({0: (torch.zeros(2, 1), torch.arange(2))})),
        "the data has no groups",
    ),
    "floats": (lambda _: partition_figure(np.ones((2, 2))), r"counts are float64 \[2, 2\]"),
    "flat": (lambda _: Summary.of(np.ones(3, dtype=np.int64)), r"counts are int64 \[3\]"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_one_sentence(name, tmp_path):
    make, message = MISTAKES[name]
    with pytest.raises(SteelyardError, match=message) as caught:
        make(tmp_path / "p.png")
    assert "\n" not in str(caught.value)


def test_without_matplotlib_the_cure_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(
        SteelyardError, match=r'^pictures need matplotlib: pip install "steelyard\[plot\]"$'
    ):
        partition_figure(COUNTS)


def test_pyplot_and_its_global_state_are_left_alone(tmp_path, monkeypatch):
    before = dict(matplotlib.rcParams)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # importing it would fail
    draw_partition(federation(), tmp_path / "p.png")
    assert dict(matplotlib.rcParams) == before


@pytest.fixture(scope="module")
def pictures():
    return example()


def test_the_docs_show_every_partition(pictures):
    page = (ROOT / "docs" / "partitions.md").read_text()
    for entry in PARTITIONS:
        assert entry.name in pictures.PICTURES
        assert f"(pictures/partitions/{entry.name}.svg)" in page
    kept = {path.stem for path in pictures.DIRECTORY.iterdir()}
    assert kept == set(pictures.PICTURES)
    assert all(path.stat().st_size < 40_000 for path in pictures.DIRECTORY.iterdir())


@pytest.mark.parametrize("entry", list(PARTITIONS), ids=lambda entry: entry.name)
def test_the_pictures_in_the_docs_are_up_to_date(entry, pictures):
    """By the counts they were made of: bytes hang on matplotlib's version."""
    kept = (pictures.DIRECTORY / f"{entry.name}.svg").read_text()
    assert pictures.PICTURES[entry.name][0] in kept
    stamp = fingerprint(pictures.federation(entry.name).label_counts())
    assert f"counts {stamp}" in kept, f"{entry.name}: run examples/partition_pictures.py again"


def test_the_script_draws_a_picture_as_it_is_kept(pictures, tmp_path):
    kept = (pictures.DIRECTORY / "shards.svg").read_text()
    fresh = pictures.picture("shards", tmp_path).read_text()
    assert re.findall("<text.*?>(.*?)</text>", fresh) == re.findall("<text.*?>(.*?)</text>", kept)
