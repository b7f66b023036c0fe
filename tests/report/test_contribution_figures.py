"""Contributions in the report of a run: where inner products are recorded, and only there."""

import json

import pytest

import steelyard
from steelyard.report._build import build_report, write_report
from steelyard.report._contribution_figures import MAX_LINES
from steelyard.report._watch import Source
from tests.report.conftest import draw_all
from tests.report.runs import (
    HOSTILE,
    append_grams,
    comparison,
    record,
    write_recorded_run,
    write_run,
)

SIZES = {"desktop": (1280, 900), "phone": (390, 844)}


def find_figures(report):
    return [figure for figure in report.figures if figure.section == "Contributions of clients"]


def test_a_run_without_a_recording_has_no_section(tmp_path):
    assert find_figures(build_report([comparison(tmp_path / "runs")])) == []


def test_a_damaged_recording_does_not_break_the_report(tmp_path):
    run = write_recorded_run(tmp_path / "run", rounds=3)
    (run / "grams.bin").write_bytes(b"nothing of the kind")
    report = build_report([run])
    assert report.figures
    assert find_figures(report) == []


def test_the_figure_has_cumulative_values_with_their_intervals(tmp_path):
    run = write_recorded_run(tmp_path / "run", rounds=12)
    (figure,) = find_figures(build_report([run]))
    result = steelyard.contributions(run)
    assert len(figure.lines) == 4
    for line, entry in zip(figure.lines, result.clients, strict=True):
        assert line.name == f"client {entry.client}"
        assert line.y[-1] == pytest.approx(entry.total)
        assert line.high[-1] - line.y[-1] == pytest.approx(entry.margin)
    table = {row[0]: row for row in figure.table.rows}
    assert table["a"][2] == result["a"].total
    assert "does not measure" in figure.caption


def test_flagged_clients_are_named_and_drawn(tmp_path):
    ids = [f"c{k:02d}" for k in range(20)]
    run = write_run(tmp_path / "run", ids=ids, rounds=8)
    append_grams(run, ids, range(1, 9), idle=7)
    (figure,) = find_figures(build_report([run]))
    assert "c07 (free rider)" in figure.caption
    assert len(figure.lines) == MAX_LINES
    assert "client c07" in {line.name for line in figure.lines}
    assert len(figure.table.rows) == 20
    assert f"{MAX_LINES} of 20 clients are drawn" in figure.caption


def test_every_algorithm_has_a_figure(tmp_path):
    for rule in ("fedavg", "fedadp"):
        write_recorded_run(tmp_path / rule, rule=rule, rounds=6)
    names = [figure.name for figure in find_figures(build_report([tmp_path]))]
    assert names == ["contributions", "contributions-2"]


def test_the_live_page_shows_new_rounds(tmp_path):
    import numpy as np

    run = write_recorded_run(tmp_path / "run", rounds=9, done=5)
    source = Source([run])

    def read_rounds():
        figures = json.loads(source.answer(""))["report"]["figures"]
        (figure,) = [figure for figure in figures if figure["name"] == "contributions"]
        return figure["lines"][0]["x"]

    assert read_rounds() == [1, 2, 3, 4, 5]
    append_grams(run, ("a", "b", "c", "d"), range(6, 7))
    line = record(6, ("a", "b", "c", "d"), np.random.default_rng(6))
    with (run / "rounds.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    assert read_rounds() == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("size", SIZES)
def test_the_section_is_drawn_with_hostile_names(tmp_path, opened, screenshot, size):
    run = write_run(tmp_path / "run", ids=HOSTILE, rounds=8)
    append_grams(run, HOSTILE, range(1, 9), idle=0)
    report = build_report([run])
    page = opened(write_report(report, tmp_path / "page.html"), *SIZES[size])
    draw_all(page)
    page.locator("#figure-contributions summary").click()
    assert page.evaluate("window.harmed") is None
    assert page.locator("main img, main a, main style").count() == 0
    shown = page.locator("#figure-contributions tbody td:first-child").all_inner_texts()
    assert HOSTILE[0] in shown
    traces = page.locator("#figure-contributions .scatterlayer .trace").count()
    assert traces == 3 * len(HOSTILE)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    screenshot(page, f"contributions-{size}")
