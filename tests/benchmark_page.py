"""The pages of the benchmark, from the results that come with Steelyard.

`python -m tests.tables` writes the tables of docs/benchmark.md and docs/results/composition.md;
`python -m tests.benchmark_page` writes the interactive table, the picture of the ranks, and the
numbers in prose that link to a row of the tables.
"""

import re
from pathlib import Path

from steelyard.experiments import difference, mean
from steelyard.experiments._benchmark import PUBLISHED, SCORE_NAMES, read_benchmark, read_results
from steelyard.experiments._ranking import analyse
from steelyard.report._benchmark import draw_ranks, format_difference, format_tables, write_html
from tests.tables import format_table

DOCS = Path(__file__).parents[1] / "docs"
RANKS = DOCS / "pictures" / "benchmark-ranks.svg"
INTERACTIVE = DOCS / "benchmark-table.html"
SCORE = SCORE_NAMES[0]
PAGES_WITH_CLAIMS = (DOCS.parent / "README.md", DOCS / "choosing.md")
# [+2.9 ± 0.5](benchmark.md#100-clients-10-per-round "FedAdam"): the setting's heading, the rule.
CLAIM = re.compile(r"\[([+-]\d[^\]]*)\](\([^)#\s]*benchmark\.md#([\w-]+) \"([^\"]+)\"\))")


def read_published():
    """Return the benchmark, its published results, and what they say."""
    benchmark = read_benchmark()
    results = read_results(PUBLISHED)
    return benchmark, results, analyse(benchmark, results, SCORE_NAMES)


def write_files(interactive=INTERACTIVE, ranks=RANKS):
    """Write the interactive table and the picture of the ranks."""
    benchmark, results, analysis = read_published()
    write_html(benchmark, analysis, results, interactive)
    labels = {rule.name: rule.label for rule in analysis.rules}
    ranks.write_text(draw_ranks(analysis.ranks, labels) + "\n", encoding="utf-8")


def update_claims(text):
    """Return the text of a page in which each number that links to a row is that of the row."""
    benchmark, _, analysis = read_published()
    settings = {make_anchor(setting.label): setting.name for setting in benchmark.settings}
    rules = {rule.label: rule.name for rule in analysis.rules}

    def update(match):
        _, link, anchor, label = match.groups()
        score = analysis.scores[settings[anchor]][SCORE][rules[label]]
        number = format_difference(score).replace("*", "\\*")
        return f"[{number}]{link}"

    return CLAIM.sub(update, text)


def make_anchor(heading):
    """Return the anchor of a heading, as Markdown makes it."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())


def format_benchmark():
    """Return all tables of the benchmark, and which rules have no results yet."""
    benchmark, _, analysis = read_published()
    names = {rule.name for rule in analysis.rules}
    missing = [rule.label for rule in benchmark.rules if rule.name not in names]
    tables = format_tables(benchmark, analysis).strip()
    return f"**Not run yet**: {', '.join(missing)}.\n\n{tables}" if missing else tables


def format_compositions():
    """Return the table of compositions: points against the best single method of each setting.

    Compositions are the rows that the file of the benchmark does not have, and that are not controls.
    """
    benchmark, results, analysis = read_published()

    # The last-10 accuracy by setting, rule and seed.
    values = {}
    for result in results:
        by_rule = values.setdefault(result.setting, {})
        by_rule.setdefault(result.rule.name, {})[str(result.seed)] = result.scores[SCORE]
    labels = {rule.name: rule.label for rule in analysis.rules if not rule.is_control}
    known = [rule.name for rule in benchmark.rules]
    singles = [name for name in labels if name in known]
    compositions = [name for name in labels if name not in known]

    # The best single method of each setting.
    heads = ["against the best single method, points"]
    best = {}
    best_row = ["the best single method"]
    for setting in benchmark.settings:
        means = {}
        for name in singles:
            accuracies = list(values[setting.name][name].values())
            if None not in accuracies:  # a run that failed
                means[name] = mean(accuracies)
        best[setting.name] = max(means, key=means.get)
        heads.append(setting.label)
        accuracy = 100 * means[best[setting.name]]
        best_row.append(f"{labels[best[setting.name]]}: {accuracy:.1f} %")

    # One row per composition; its regret is what it loses in its worst setting.
    rows = [[*best_row, ""]]
    for name in compositions:
        cells = []
        losses = []
        for setting in benchmark.settings:
            here = values[setting.name]
            paired = difference(name, "best", here[name], here[best[setting.name]])
            losses.append(-paired.mean)
            cells.append(f"{100 * paired.mean:+.1f} ± {100 * paired.half_width:.1f}")
        rows.append([labels[name], *cells, f"{100 * max(0.0, *losses):.1f}"])
    return format_table([*heads, "regret"], rows)


if __name__ == "__main__":
    write_files()
    for path in PAGES_WITH_CLAIMS:
        path.write_text(update_claims(path.read_text(encoding="utf-8")), encoding="utf-8")
