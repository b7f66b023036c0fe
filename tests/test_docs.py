"""Every Python block of the README and the docs runs, in order, in an empty directory."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from steelyard.core._registry import BROADCASTS, OPTIMIZERS, REFINERS, RULES, TERMS
from steelyard.data import PARTITIONS, SOURCES
from steelyard.models import MODELS
from steelyard.rules._detectors import DETECTORS
from steelyard.testing import check_rule
from tests import options_page
from tests.tables import list_tables, replace_table
from tests.test_plugins import install

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
REGISTRIES = (RULES, TERMS, OPTIMIZERS, BROADCASTS, REFINERS, PARTITIONS, SOURCES, MODELS)


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for registry in REGISTRIES:
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    names = {"__name__": "__main__"}
    for block in blocks(page):
        exec(compile(block, str(page), "exec"), names)
    assert blocks(page) or page.name == "architecture.md"


def test_every_part_of_a_paper_says_what_it_is_verified_against():
    section = (
        (ROOT / "docs" / "rules.md")
        .read_text()
        .partition("## What each part is verified against")[2]
    )
    section = section.partition("\n## ")[0]
    parts = {
        entry.name
        for registry in (RULES, DETECTORS, TERMS, OPTIMIZERS, REFINERS, BROADCASTS)
        for entry in registry
        if entry.info.paper
    }
    named = set(re.findall(r"`([a-z0-9_]+)", section))
    assert parts - named == set()


def test_readme_claims_no_more_than_was_compared():
    text = " ".join((ROOT / "README.md").read_text().split())
    assert (
        "against the authors' code, or where none is public against independent implementations"
        in text
    )
    assert "verified against their authors' code" not in text
    assert "all baselines" not in text


def test_the_worked_example_is_about_forty_lines():
    example = blocks(ROOT / "docs" / "adding-a-rule.md")[0]
    assert len(example.strip().splitlines()) <= 45


def test_the_worked_example_keeps_the_contract():
    before = dict(RULES._entries)
    names = {"__name__": "example"}
    try:
        exec(blocks(ROOT / "docs" / "adding-a-rule.md")[0], names)
        rule = names["InverseDistance"]()
        check_rule(rule)
    finally:
        RULES._entries.clear()
        RULES._entries.update(before)
    assert "inverse_distance" not in RULES._entries


def test_the_worked_example_works_as_a_package_of_its_own(tmp_path):
    page = ROOT / "docs" / "adding-a-rule.md"
    project = tomllib.loads(
        re.search(r"^```toml\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)[1]
    )
    (group, points), *_ = project["project"]["entry-points"].items()
    (name, value), *_ = points.items()
    module, _, attribute = value.partition(":")
    source = blocks(page)[0].replace("@RULES.register\n", "")
    assert f"class {attribute}(" in source
    install(tmp_path, project["project"]["name"], [(group, {name: value})], {module: source})
    command = [sys.executable, "-m", "steelyard", "explain", f"guard({name}:eps=0.1)"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env=environment, cwd=tmp_path
    )
    assert "weighs clients by closeness to the mean" in done.stdout


def test_every_rule_has_a_row_in_the_docs():
    page = (ROOT / "docs" / "rules.md").read_text()
    missing = [
        entry.name for entry in (*RULES, *DETECTORS, *REFINERS) if f"`{entry.name}" not in page
    ]
    assert missing == []


@pytest.mark.parametrize(
    ("page", "registry"), [("data", SOURCES), ("partitions", PARTITIONS), ("models", MODELS)]
)
def test_every_partition_model_and_data_set_has_a_row_in_the_docs(page, registry):
    text = (ROOT / "docs" / f"{page}.md").read_text()
    assert [entry.name for entry in registry if f"`{entry.name}" not in text] == []


def test_every_client_term_has_a_row_in_the_docs():
    page = (ROOT / "docs" / "simulator.md").read_text()
    assert [
        entry.name
        for registry in (TERMS, BROADCASTS)
        for entry in registry
        if f"{entry.name}" not in page
    ] == []


def test_contributing_names_only_files_that_exist():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    paths = set(re.findall(r"`((?:steelyard|tests|docs)/[\w./-]+)`", text))
    assert len(paths) > 30
    missing = sorted(path for path in paths if "NAME" not in path and not (ROOT / path).exists())
    assert missing == []
    # Names of variables that a recipe sends the reader to.
    for name, path in (
        ("FORMULAS", "tests/client/test_terms.py"),
        ("default_model", "steelyard/data/_sources.py"),
        ("METRICS", "steelyard/metrics.py"),
        ("_compute_metrics", "steelyard/sim/_group.py"),
        ("_compute_class_metric", "steelyard/sim/_group.py"),
        ("ROUND_RECORD", "steelyard/core/_round_record.py"),
        ("_round", "steelyard/sim/_simulator.py"),
        ("LocalTraining", "steelyard/client/_local.py"),
        ("Execution", "steelyard/sim/_experiment.py"),
        ("SOME", "tests/experiments/test_paper_tables.py"),
    ):
        assert f"`{name}`" in text
        assert re.search(
            rf"^ *(def |class )?{name}\b", (ROOT / path).read_text(), flags=re.MULTILINE
        ), (name, path)


@pytest.mark.parametrize(("page", "name"), list_tables())
def test_generated_tables_are_current(page, name):
    """If this fails, run `python -m tests.tables`."""
    text = (ROOT / "docs" / page).read_text()
    assert replace_table(text, name, list_tables()[page, name]()) == text


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists(), (page.name, target)


def test_the_picture_of_the_packages_shows_the_layers():
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ][0]
    layers = [sorted(re.findall(r"steelyard\.(\w+)", layer)) for layer in contract["layers"]]
    picture = (ROOT / "docs" / "pictures" / "packages.svg").read_text()
    rows = {}
    for height, name in re.findall(r'class="name" x="[^"]+" y="(\d+)"[^>]*>(\w+)<', picture):
        rows.setdefault(int(height), []).append(name)
    assert [sorted(rows[height]) for height in sorted(rows)] == layers


def test_the_architecture_names_every_package_and_only_files_that_exist():
    text = (ROOT / "docs" / "architecture.md").read_text()
    packages = {
        path.name for path in (ROOT / "steelyard").iterdir() if (path / "__init__.py").is_file()
    }
    assert {package for package in packages if f"| `{package}` |" not in text} == set()
    files = re.findall(r"`(?:steelyard/)?([a-z_]+/\w+\.py|public\.py)`", text)
    assert files
    assert [file for file in files if not (ROOT / "steelyard" / file).is_file()] == []


def test_every_page_is_in_the_navigation():
    listed = set(re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), flags=re.MULTILINE))
    pages = {page.name for page in (ROOT / "docs").glob("*.md")}
    assert pages - listed == set()
    assert [page for page in listed if not (ROOT / "docs" / page).is_file()] == []


def test_the_page_of_options_is_current():
    assert (ROOT / "docs" / "reference" / "options.md").read_text() == options_page.write_page()
