"""The page of a replay: its numbers, its size, and what a real Chromium shows of it."""

import csv
import io

import pytest

from steelyard.recorder import replay
from steelyard.recorder._replay import find_replayable_rules
from steelyard.report._build import write_report
from steelyard.report._replay import build_replay_report, label_rules, make_summary_table
from tests.report.conftest import draw_all
from tests.report.runs import HOSTILE, write_recorded_run

SIZES = {"desktop": (1280, 900), "phone": (390, 844)}
RULES = ["fedadp", "guard(fedadp|cap:0.3)", "uniform", "krum"]
FIGURES = ["weights", "shares", "effective_clients", "cosine", "step_norm", "agreement", "muted"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_recorded_run(
        tmp_path_factory.mktemp("run") / "avg", ids=[f"c{k}" for k in range(8)]
    )


@pytest.fixture(scope="module")
def result(run):
    return replay(run, RULES)


@pytest.fixture(scope="module")
def report(run, result):
    return build_replay_report(result, run, "replay.html", {"fedlaw": "fedlaw: needs proxy data"})


@pytest.fixture(scope="module")
def page_file(report, tmp_path_factory):
    return write_report(report, tmp_path_factory.mktemp("page") / "replay.html")


def test_the_page_has_the_numbers_of_the_replay(report, result, run):
    assert [figure.name for figure in report.figures] == FIGURES
    figures = {figure.name: figure for figure in report.figures}
    entry = result.rounds["fedadp"][4]
    heat = figures["weights"].heats[1]
    assert heat.name == "fedadp"
    assert [row[4] for row in heat.values] == list(entry.weights.values())
    assert figures["cosine"].lines[1].y[4] == entry.cosine
    run_norm = result.rounds["run"][4].step_norm
    assert figures["step_norm"].lines[1].y[4] == entry.step_norm / run_norm
    agreement = figures["agreement"].heats[0].values
    assert agreement[0][1] == pytest.approx(result.agreement("run", "fedadp"))
    assert agreement[3][0] is None  # uniform has no order
    krum = figures["muted"].heats[0].values[4]
    assert sum(krum) == pytest.approx(7)  # all but one, in every round
    rows = make_summary_table(result, label_rules(result, run)).rows
    assert [row[0] for row in rows] == ["run (fedavg)", *RULES]
    assert rows[3][3] == "all alike"


def test_the_page_says_what_it_is_and_what_is_missing(report):
    assert "counterfactual of one step" in report.notes[0]
    assert "fedlaw" in report.notes[1]
    assert "fedlaw: needs proxy data" in report.configuration[0][1]
    assert report.command.startswith("steelyard replay ")
    assert "'guard(fedadp|cap:0.3)'" in report.command


@pytest.mark.parametrize("size", SIZES)
def test_every_figure_is_drawn(page_file, report, opened, screenshot, size):
    page = opened(page_file, *SIZES[size])
    assert draw_all(page) == [f"figure-{name}" for name in FIGURES]
    for figure in report.figures:
        marks = page.locator(f"#figure-{figure.name} .plot").evaluate(
            "plot => ['scatterlayer', 'heatmaplayer'].map("
            "layer => plot.querySelectorAll(`.${layer} .trace, .${layer} image`).length)"
        )
        assert marks == [len(figure.lines), min(1, len(figure.heats))], figure.name
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert "counterfactual of one step" in page.locator("#notes").inner_text()
    assert page.locator("#summary tbody tr").count() == 1 + len(RULES)
    screenshot(page, f"replay-{size}")


def test_the_reader_chooses_the_rule_whose_weights_are_shown(page_file, result, opened):
    page = opened(page_file)
    draw_all(page)
    select = page.locator("#figure-weights select")
    assert select.locator("option").all_inner_texts() == ["run (fedavg)", *RULES]
    plot = page.locator("#figure-weights .plot")
    cell = "plot => plot.data[0].z[2][4]"
    assert plot.evaluate(cell) == pytest.approx(result.rounds["run"][4].weights["c2"], rel=1e-3)
    select.select_option(label="fedadp")
    assert plot.evaluate(cell) == pytest.approx(result.rounds["fedadp"][4].weights["c2"], rel=1e-3)
    highest = max(max(entry.weights.values()) for entry in result.rounds["fedadp"])
    scale = plot.evaluate("plot => plot.layout.coloraxis.cmax")
    assert scale == pytest.approx(highest)  # a scale of its own: krum's goes to 1
    page.locator("#figure-weights summary").click()
    with page.expect_download() as waiting:
        button = page.locator("#figure-weights").get_by_role("button", name="CSV of all cells")
        button.click()
    text = waiting.value.path().read_text(encoding="utf-8")
    assert len(list(csv.reader(io.StringIO(text)))) == 1 + 5 * 8 * 20  # of all rules


def test_names_of_clients_do_no_harm(tmp_path, opened, screenshot):
    run = write_recorded_run(tmp_path / "<b>run", ids=HOSTILE, rounds=6)
    report = build_replay_report(replay(run, ["fedadp", "krum"]), run, "<i>.html")
    page = opened(write_report(report, tmp_path / "hostile.html"), 390, 844)
    draw_all(page)
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    assert page.evaluate("window.harmed") is None
    assert page.locator("main img, main a, main style, header script, header img").count() == 0
    shown = set(page.locator("#figure-weights tbody td:nth-child(2)").all_inner_texts())
    assert {HOSTILE[0], HOSTILE[3]} <= shown
    drawn = page.evaluate(
        """() => [...document.querySelectorAll('.plot')].flatMap(plot => [
            ...plot.data.flatMap(trace => [trace.name, trace.x, trace.y]),
            Object.values(plot.layout).map(axis => axis?.ticktext),
        ]).map(part => JSON.stringify(part) || '').join(' ')"""
    )
    assert "<" not in drawn  # plotly reads tags in its text
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    screenshot(page, "replay-hostile")


@pytest.mark.slow
def test_a_long_run_with_every_rule_is_a_small_page(tmp_path, opened):
    ids = [f"client-{k:02d}" for k in range(20)]
    run = write_recorded_run(tmp_path / "long", ids=ids, rounds=200)
    rules, reasons = find_replayable_rules(run)
    chains = [f"guard({rule})" for rule in rules if rule != "ema"]
    report = build_replay_report(replay(run, [*rules, *chains]), run, "long.html", reasons)
    assert len(report.figures[0].heats) >= 20
    file = write_report(report, tmp_path / "long.html")
    assert file.stat().st_size < 4e6
    page = opened(file, wait="body[data-ready]")
    assert page.locator("#figure-weights option").count() == 1 + len(rules) + len(chains)


def test_many_cells_are_averaged(tmp_path, monkeypatch):
    run = write_recorded_run(tmp_path / "run", rounds=10)
    monkeypatch.setattr("steelyard.report._replay.MAX_CELLS", 40)
    report = build_replay_report(replay(run, ["fedadp"]), run, "page.html")
    weights = report.figures[0]
    assert weights.heats[0].columns == ("1", "3", "5", "7", "9")
    assert "mean of 2 rounds" in weights.caption
