"""Tables of the documentation that are generated from the code: `python -m tests.tables` writes them.

A table stands between `<!-- NAME -->` and `<!-- end of NAME -->` in a page. `tests/test_docs.py`
compares it with the code.
"""

import re
from collections.abc import Callable, Iterable
from pathlib import Path

from steelyard.core._round_record import ROUND_RECORD
from steelyard.metrics import METRICS

DOCS = Path(__file__).parents[1] / "docs"


def format_table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table in Markdown."""
    lines = [list(heads)]
    lines.append(["---"] * len(lines[0]))
    for row in rows:
        lines.append([cell.replace("|", "\\|") for cell in row])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def format_records() -> str:
    """Return the table of the keys that a record can have."""
    rows = []
    for entry in ROUND_RECORD.values():
        form = f"{entry.form}, {entry.unit}" if entry.unit else entry.form
        old_name = f"`{entry.old_name}`" if entry.old_name else ""
        sources = ", ".join(entry.sources)
        rows.append(
            (f"`{entry.key}`", entry.meaning, form, sources, entry.better, entry.paper, old_name)
        )
    heads = ("key", "meaning", "form and unit", "from", "better", "paper", "old name")
    return format_table(heads, rows)


def format_metrics() -> str:
    """Return the table of the metrics that clients can report."""
    rows = [(f"`{name}`", metric.meaning, metric.used_by) for name, metric in METRICS.items()]
    return format_table(("metric", "meaning", "used by"), rows)


def list_tables() -> dict[tuple[str, str], Callable[[], str]]:
    """Return what makes each table, by its page and its name."""
    from tests import benchmark_page  # which imports this module

    return {
        ("records.md", "records"): format_records,
        ("index.md", "metrics"): format_metrics,
        ("benchmark.md", "benchmark"): benchmark_page.format_benchmark,
        ("results/composition.md", "compositions"): benchmark_page.format_compositions,
    }


def replace_table(text: str, name: str, table: str) -> str:
    """Return the text of a page with another table of this name."""
    pattern = rf"<!-- {name} -->\n.*?<!-- end of {name} -->"
    assert len(re.findall(pattern, text, flags=re.DOTALL)) == 1, name
    block = f"<!-- {name} -->\n\n{table}\n\n<!-- end of {name} -->"
    return re.sub(pattern, lambda match: block, text, flags=re.DOTALL)


def write_tables() -> None:
    """Write all tables into their pages."""
    for (page, name), make_table in list_tables().items():
        path = DOCS / page
        path.write_text(replace_table(path.read_text(), name, make_table()))


if __name__ == "__main__":
    write_tables()
