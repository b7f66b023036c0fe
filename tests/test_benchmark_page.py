"""The files of the benchmark are current, and every claim in prose is one of its rows."""

import pytest

from steelyard.experiments._benchmark import (
    PUBLISHED,
    check_fingerprints,
    parse_rule_text,
    read_benchmark,
    read_results,
)
from tests import benchmark_page


def test_the_interactive_table_and_the_ranks_are_current(tmp_path):
    """If this fails, run `python -m tests.benchmark_page`."""
    benchmark_page.write_files(tmp_path / "table.html", tmp_path / "ranks.svg")
    assert (tmp_path / "table.html").read_bytes() == benchmark_page.INTERACTIVE.read_bytes()
    assert (tmp_path / "ranks.svg").read_bytes() == benchmark_page.RANKS.read_bytes()


def test_each_published_rule_has_all_settings_and_seeds():
    """A mean over some seeds, or a rank over some settings, would say something else."""
    benchmark = read_benchmark()
    expected = {(setting.name, seed) for setting in benchmark.settings for seed in benchmark.seeds}
    runs = {}
    for result in read_results(PUBLISHED):
        runs.setdefault(result.rule.name, set()).add((result.setting, result.seed))
    assert {benchmark.reference, "control"} <= runs.keys()
    for name, cells in runs.items():
        assert cells == expected, name


def test_published_results_are_small_and_of_the_configurations_in_the_file():
    assert PUBLISHED.stat().st_size < 2_000_000
    benchmark = read_benchmark()
    results = read_results(PUBLISHED)
    assert all(result.fingerprint for result in results)
    check_fingerprints(benchmark, results)
    algorithms = {rule.name: rule.algorithm for rule in benchmark.rules}
    for result in results:
        rule = result.rule
        # A row that was added has the name that `--add` gives it, so that it is found again.
        added = parse_rule_text(f"{rule.label}: {rule.algorithm}")
        assert algorithms.get(rule.name, added.algorithm) == rule.algorithm
        assert rule.name in (*algorithms, added.name)


@pytest.mark.parametrize("path", benchmark_page.PAGES_WITH_CLAIMS, ids=lambda path: path.name)
def test_every_claim_is_a_row_of_the_benchmark(path):
    """If this fails, run `python -m tests.benchmark_page`, and read the sentences again."""
    text = path.read_text(encoding="utf-8")
    assert benchmark_page.CLAIM.search(text)
    assert benchmark_page.update_claims(text) == text


def test_a_claim_that_is_not_the_row_is_replaced():
    wrong = '[+99.9 ± 0.1 \\*](benchmark.md#quantity-skew "FedCos")'
    mended = benchmark_page.update_claims(wrong)
    assert mended != wrong
    assert benchmark_page.CLAIM.fullmatch(mended)


def test_each_line_of_the_choosing_page_has_a_claim():
    text = (benchmark_page.DOCS / "choosing.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(rows) > 2
    for row in rows[1:]:
        assert benchmark_page.CLAIM.search(row), row
