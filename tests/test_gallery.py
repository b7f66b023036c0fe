"""The gallery: every figure is drawn, runs are made once, and docs/gallery.md shows what the script draws."""

import importlib
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import steelyard
from steelyard.diagnostics import group_coherence
from steelyard.rules._combinators import chain

PathCollection = pytest.importorskip(
    "matplotlib.collections", reason="pictures need matplotlib"
).PathCollection
pytest.importorskip("ot", reason="distances between data sets need POT")
Image = pytest.importorskip("PIL.Image", reason="pictures need Pillow")

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "gallery.md").read_text()
TINY = [
    "--data",
    "digits",
    "--second",
    "digits",
    "--model",
    "mlp:hidden=[8]",
    "--images",
    "240",
    "--rounds",
    "2",
    "--workers",
    "1",
    "--seeds",
    "2",
]

sys.path.insert(0, str(ROOT / "examples"))  # where gallery finds small_papers
gallery = importlib.import_module("gallery")

SHOWN = {  # by figure, how many series each panel has
    "fedlaw-2": (2, 2, 2),
    "fedlaw-3": (4, 2, 2),
    "fedlaw-5": (3, 3, 3),
    "fedlaw-6": (3, 3, 3),
    "fedadp-6": (5, 2),
    "fedadp-7": (2, 2),
    "fedcos-3": (4, 4, 1),
    "fedcos-4": (5, 3),
    "fedcos-12": (4, 4, 4),
    "fedawa-2": (1, 1, 1),
    "pa3fed-3": (2, 2),
    "pa3fed-5-7": (4, 3, 3),
}
# Clients need two rounds in critical periods and two outside; one seed saves time.
LONGER = {"pa3fed-5-7": {"rounds": 8, "seeds": 1}}


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    return gallery.Lab(
        "digits", 240, 2, tmp_path_factory.mktemp("gallery"), 1, "mlp:hidden=[8]", "digits", 2
    )


def shown(axes):
    """The numbers of a panel, by series: lines, less those that only guide the eye, points and images."""
    lines = [
        line
        for line in axes.lines
        if not line.get_label().startswith("_") and np.ptp(line.get_xdata()) > 0
    ]
    points = [
        marks.get_offsets() for marks in axes.collections if isinstance(marks, PathCollection)
    ]
    images = [image.get_array().compressed() for image in axes.images]
    return [
        np.asarray(values, dtype=float)
        for values in (*(line.get_ydata() for line in lines), *points, *images)
    ]


@pytest.mark.parametrize("name", gallery.FIGURES)
def test_every_panel_of_every_figure_shows_its_series_in_finite_numbers(lab, name):
    figure = gallery.FIGURES[name](replace(lab, **LONGER.get(name, {})))
    boxes = [axes for axes in figure.axes if axes.get_title(loc="left") or axes.get_title()]
    assert tuple(len(shown(axes)) for axes in boxes) == SHOWN[name]
    for axes in boxes:
        assert all(len(values) and np.isfinite(values).all() for values in shown(axes))


def test_a_second_call_draws_from_the_runs_of_the_first(tmp_path):
    call = [
        "fedlaw-3",
        *TINY,
        "--runs",
        str(tmp_path / "runs"),
        "--out",
        str(tmp_path / "pictures"),
    ]
    gallery.main(call)
    log = tmp_path / "runs" / "digits" / "fedlaw-3" / "rounds.jsonl"
    before = log.read_bytes()  # with timings, which a second run would not have
    picture = (tmp_path / "pictures" / "fedlaw-3.png").read_bytes()
    gallery.main(call)
    assert log.read_bytes() == before
    assert (tmp_path / "pictures" / "fedlaw-3.png").read_bytes() == picture


def test_an_unknown_figure_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        gallery.main(["fedlaw-1", "--out", str(tmp_path / "none")])
    assert "fedlaw-1: not a figure: use fedlaw-2, " in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_halves_notes_coherence_and_leaves_weights_alone():
    g = torch.Generator().manual_seed(0)
    clients = torch.randn(1, 50, generator=g) + torch.randn(6, 50, generator=g)
    sizes = {"num_examples": [1, 2, 3, 4, 5, 6]}
    out = steelyard.aggregate(
        chain("fedavg", gallery.Halves()), torch.zeros(50), clients, metrics=sizes
    )
    expected = group_coherence(
        clients, ["first"] * 3 + ["second"] * 3, sizes["num_examples"]
    ).within
    assert out.report["coherence_balanced"] == pytest.approx(expected["first"])
    assert out.report["coherence_imbalanced"] == pytest.approx(expected["second"])
    plain = steelyard.aggregate("fedavg", torch.zeros(50), clients, metrics=sizes)
    assert torch.equal(out.weights, plain.weights)


def test_twelve_clients_hold_the_first_classes_the_last_or_all(lab):
    clients = gallery.three_kinds(lab)
    counts = clients.label_counts()
    assert set(clients.sizes) == {20}
    assert not counts[:4, 5:].any()
    assert not counts[4:8, :5].any()
    assert counts[8:, :5].sum(axis=1).all()
    assert counts[8:, 5:].sum(axis=1).all()
    assert len(np.unique(np.concatenate(clients.index))) == 240


@pytest.mark.parametrize("name", gallery.FIGURES)
def test_the_page_shows_every_figure_and_how_to_draw_it(name):
    assert f"](gallery/{name}.png)" in PAGE
    assert f"python examples/gallery.py {name}\n" in PAGE
    path = ROOT / "docs" / "gallery" / f"{name}.png"
    assert path.stat().st_size < 150_000
    with Image.open(path) as picture:
        assert picture.width == 2100  # 7 inches at 300 dpi


def test_the_page_has_a_verdict_for_every_figure_and_no_picture_is_left_over():
    sections = PAGE.split("\n## ")[1:]
    shown = [section for section in sections if "](gallery/" in section]
    assert len(shown) == len(gallery.FIGURES)
    for section in shown:
        assert re.search(
            r"^\*\*Verdict: (shows it|shows it in part|does not show it|too short to tell)\.\*\*",
            section,
            re.M,
        )
    kept = {path.stem for path in (ROOT / "docs" / "gallery").iterdir()}
    assert kept == set(gallery.FIGURES)


def test_the_page_says_how_the_runs_differ_from_the_authors():
    """Settings that verdicts rest on are on the page, with the script's own numbers."""
    for rule in (gallery.GWS, gallery.LAW):
        learned = steelyard.parse_rule(rule)
        assert f"| {learned.epochs} epochs, learning rate **{learned.lr:g}** |" in PAGE
    assert f"| {gallery.LOCAL['batch_size']}, {gallery.LOCAL['lr']:g}: " in PAGE
    assert not gallery.LOCAL.get("persistent")
    assert "**fresh in every round**" in PAGE
    assert "train_share" not in gallery.LOCAL
    assert "**all** of their samples | 70 % of them" in PAGE
    assert (
        f"| {10 * gallery.PROXY['per_class']} test images in one batch | 2,000 in 16 batches |"
        in PAGE
    )
