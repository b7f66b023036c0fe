"""The report's figures with matplotlib: every one, in every format, the same bytes each time."""

import csv

import pytest

from steelyard.core._errors import SteelyardError
from steelyard.report._build import build_report, find_figure
from tests.report.runs import HOSTILE, comparison, write_run

pytest.importorskip("matplotlib", reason="pictures need matplotlib")
from steelyard.report._matplotlib_figures import _count_columns, draw_figure, save_figure

MAGIC = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return build_report([comparison(tmp_path_factory.mktemp("runs") / "runs", rounds=12)])


@pytest.mark.parametrize("suffix", MAGIC)
def test_a_figure_is_written_and_again_is_the_same_file(report, tmp_path, suffix):
    figure = find_figure(report, "coherence")
    first, second = (
        save_figure(figure, tmp_path / f"{name}.{suffix}").read_bytes() for name in "ab"
    )
    assert first.startswith(MAGIC[suffix])
    assert first == second


def test_every_figure_is_drawn_with_what_it_holds(report):
    for figure in report.figures:
        axes = draw_figure(figure).get_axes()
        if figure.heats:
            assert sum(len(one.images) for one in axes) == len(figure.heats), figure.name
        elif figure.lines:
            assert len(axes[0].lines) == len(figure.lines) + len(figure.marks), figure.name
            assert len(axes[0].patches) == len(figure.spans), figure.name
            assert len(axes[0].collections) == sum(bool(line.high) for line in figure.lines), (
                figure.name
            )
        else:
            assert len(axes[0].containers) == len(figure.bars), figure.name


def test_lines_are_told_apart_in_grey(report):
    lines = draw_figure(find_figure(report, "accuracy")).get_axes()[0].lines
    assert len({line.get_marker() for line in lines}) == len(lines)
    assert len({str(line._unscaled_dash_pattern) for line in lines}) == len(lines)


def test_names_do_no_harm(tmp_path):
    formula = r"$\frac{$ <script>"  # no formula matplotlib could set: it must not try
    for number, rule in enumerate((formula, *HOSTILE[5:8])):
        write_run(
            tmp_path / f"{number}",
            rule=rule,
            ids=[*HOSTILE, formula],
            rounds=4,
            angles=True,
            bad=HOSTILE[2],
        )
    report = build_report([tmp_path])
    for figure in report.figures:
        text = save_figure(figure, tmp_path / "figure.svg").read_text(encoding="utf-8")
        assert "<script" not in text
    legend = save_figure(find_figure(report, "accuracy"), tmp_path / "legend.svg").read_text(
        encoding="utf-8"
    )
    assert r"$\frac{$ &lt;script&gt;" in legend


def test_the_numbers_as_csv(report, tmp_path):
    figure = find_figure(report, "accuracy")
    with open(save_figure(figure, tmp_path / "accuracy.csv"), encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == list(figure.table.heads)
    assert [float(cell) for cell in rows[-1]] == pytest.approx(figure.table.rows[-1])


def test_a_legend_is_as_broad_as_fits():
    assert _count_columns(["a", "b", "c"]) == 3
    assert _count_columns(["x" * 60, "y" * 60]) == 1
    assert _count_columns(["fedadp", "fedavg", "fedawa:steps=10", "uniform", "x" * 48]) == 3
    assert _count_columns(["a", "x" * 40, "b", "y" * 40]) == 2


def test_a_wrong_path_is_answered(report, tmp_path):
    with pytest.raises(SteelyardError, match=r"pictures are \.png, \.svg, \.pdf"):
        save_figure(report.figures[0], tmp_path / "figure.gif")
    with pytest.raises(SteelyardError, match="cannot be written"):
        save_figure(report.figures[0], tmp_path / "no" / "figure.csv")
