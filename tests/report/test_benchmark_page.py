"""The benchmark's pages: Markdown, and the interactive page in a real Chromium."""

import csv
import io
import json
import re
import tomllib
from dataclasses import replace

import pytest

from steelyard.experiments._benchmark import SCORE_NAMES, parse_rule_text, read_benchmark
from steelyard.experiments._ranking import Ranks, analyse
from steelyard.report._benchmark import draw_ranks, write_html, write_markdown
from steelyard.sim._experiment import Experiment
from tests.experiments.test_benchmark import result, some_results

HOSTILE = "</script><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Both pages of a few results, one of them of a row with a hostile label."""
    out = tmp_path_factory.mktemp("benchmark")
    rule = parse_rule_text(f"evil {HOSTILE}: fedadp:alpha=3")
    results = some_results()
    for seed in (1, 2, 3, 4):
        for setting in ("dirichlet-0.1", "quantity"):
            one = result(
                "evil",
                setting,
                seed,
                0.5 + seed / 1000,
                worst_client=0.25,
                rounds=20.0 if seed > 1 else None,
            )
            results.append(type(one)(rule, setting, seed, one.scores))
    benchmark = read_benchmark().with_rules([rule])
    analysis = analyse(benchmark, results, SCORE_NAMES)
    write_markdown(benchmark, analysis, out / "benchmark.md")
    write_html(benchmark, analysis, results, out / "benchmark.html")
    return out


def test_the_table_of_the_page(folder):
    lines = (folder / "benchmark.md").read_text().splitlines()
    adp = next(line for line in lines if line.startswith("| FedAdp |"))
    assert adp.startswith("| FedAdp | +5.0 ± 0.0 \\* | +5.0 ± 0.0 \\* |")
    avg = next(line for line in lines if line.startswith("| FedAvg |"))
    assert avg.startswith("| FedAvg | 72.5 % | 82.5 % |")
    ldawa = [line for line in lines if line.startswith("| L-DAWA")]
    assert ldawa[0].startswith("| L-DAWA | +10.0 ± 0.0 (1 failed) | +10.0 ± 0.0 \\* |")
    assert ldawa[1].startswith("| L-DAWA (1 failed) | 82.3 ± 1.5 (3 of 4) |")
    assert not any(re.search(r"(?<!\\)<img", line) for line in lines)


def test_rules_of_another_processor_are_named(folder, tmp_path):
    assert "Processors" not in (folder / "benchmark.md").read_text()  # all on the same
    benchmark = read_benchmark()
    results = []
    for one in some_results():
        results.append(replace(one, processor="A<b>" if one.rule.name == "fedavg" else ""))
    analysis = analyse(benchmark, results, SCORE_NAMES)
    write_markdown(benchmark, analysis, tmp_path / "benchmark.md")
    write_html(benchmark, analysis, results, tmp_path / "benchmark.html")
    sentence = next(
        line
        for line in (tmp_path / "benchmark.md").read_text().splitlines()
        if line.startswith("Processors: ")
    )
    assert "A\\<b\\>: FedAvg; on a processor that was not recorded: FedAdp, FedAWA" in sentence
    assert "Processors: on A\\u003cb>: FedAvg" in (tmp_path / "benchmark.html").read_text()


def test_configurations_can_be_run(folder):
    page = (folder / "benchmark.html").read_text()
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.S)[1])
    config = Experiment.from_dict(tomllib.loads(data["configurations"]["quantity/fedadp"]), "page")
    assert config.weighting == "fedadp"
    assert config.data.partition == "quantity:alpha=0.5"
    assert len(data["configurations"]) == 2 * 5


def test_ranks_are_drawn_with_names_escaped():
    drawing = draw_ranks(Ranks({"a": 1.5, "b": 1.5}, 4, 0.5, None), {"a": HOSTILE, "b": "B"})
    assert "<img" not in drawing
    assert drawing.count("<circle") == 2
    assert draw_ranks(Ranks({}, 0, None, None), {}) == ""


def test_long_names_in_the_drawing_of_ranks_are_not_cut(tmp_path, opened):
    labels = {"a": "FedDisco, gated FedAdp + Adam 0.005, and more", "b": "B"}
    path = tmp_path / "ranks.html"
    path.write_text(draw_ranks(Ranks({"a": 1.0, "b": 2.0}, 4, 0.5, None), labels))
    page = opened(path, wait="svg")
    lefts = page.locator("svg text").evaluate_all("texts => texts.map(text => text.getBBox().x)")
    assert min(lefts) >= 0


@pytest.mark.parametrize("size", [(1280, 900), (390, 844)])
def test_the_page_is_sorted_and_shows_each_setting(folder, opened, screenshot, size):
    page = opened(folder / "benchmark.html", *size, wait="#view table")
    names = page.locator("#view tbody tr").evaluate_all("rows => rows.map(row => row.dataset.rule)")
    assert names == ["fedavg", "fedadp", "fedawa", "ldawa", "evil-script-img-src-x-onerror-alert-1"]
    assert "+10.0 (1 failed)" in page.locator("#view tr[data-rule=ldawa]").inner_text()
    assert page.locator("img").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    screenshot(page, f"benchmark-{size[0]}")

    # The best of the second setting comes first when its head is clicked.
    page.locator("#view th button").nth(2).click()
    assert page.locator("#view th").nth(2).get_attribute("aria-sort") == "descending"
    names = page.locator("#view tbody tr").evaluate_all("rows => rows.map(row => row.dataset.rule)")
    assert names[:3] == ["ldawa", "fedadp", "fedawa"]

    # One setting, with the interval drawn; told apart is a filled dot.
    page.locator('#settings button[data-view="quantity"]').click()
    filled = page.locator("#view tr[data-rule=fedadp] circle").get_attribute("fill")
    hollow = page.locator("#view tr[data-rule=fedawa] circle").get_attribute("fill")
    assert filled == "#0072b2"
    assert hollow == "#fff"
    assert page.locator("#view tr[data-rule=fedavg] circle").count() == 0
    page.locator("#view tr[data-rule=fedadp] a").click()
    assert page.locator("#config-quantity-fedadp").get_attribute("open") is not None
    assert 'weighting = "fedadp"' in page.locator("#config-quantity-fedadp pre").inner_text()

    # Another score: fewer rounds are better, and a target that was not reached is said to be so.
    page.locator("#score").select_option("rounds")
    assert "not reached" in page.locator("#view tr[data-rule=fedadp]").inner_text()
    assert "20.0 (3 of 4)" in page.locator("#view tr[data-rule^=evil]").inner_text()


def test_the_control_is_marked_and_runs_can_be_downloaded(tmp_path, opened):
    benchmark = read_benchmark()
    control = next(rule for rule in benchmark.rules if rule.is_control)
    results = some_results()
    results += [type(results[0])(control, "quantity", seed, results[0].scores) for seed in (1, 2)]
    write_html(
        benchmark, analyse(benchmark, results, SCORE_NAMES), results, tmp_path / "benchmark.html"
    )
    page = opened(tmp_path / "benchmark.html", wait="#view table")
    assert page.locator("tr.control").get_attribute("data-rule") == "control"
    assert page.locator("tr.reference").get_attribute("data-rule") == "fedavg"
    with page.expect_download() as download:
        page.locator("#download").click()
    lines = list(csv.DictReader(io.StringIO(download.value.path().read_text())))
    assert len(lines) == len(results)
    assert lines[-1]["rule"] == "control"
