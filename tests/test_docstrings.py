"""The examples in docstrings run, and the API reference names everything public."""

import doctest
import importlib
import re
from pathlib import Path

import pytest

import steelyard

ROOT = Path(__file__).parent.parent
FILES = [path for path in sorted((ROOT / "steelyard").rglob("*.py")) if ">>> " in path.read_text()]
REFERENCE = sorted((ROOT / "docs" / "reference").glob("*.md"))
SHOWN = [
    "aggregate",
    "simulate",
    "Algorithm",
    "Merge",
    "Probe",
    "History",
    "chain",
    "fedadp",
    "parse_rule",
    "parse_terms",
    "save_state",
]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_examples_in_docstrings_run(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    parts = path.relative_to(ROOT).with_suffix("").parts
    module = importlib.import_module(".".join(part for part in parts if part != "__init__"))
    result = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.parametrize("name", SHOWN)
def test_the_most_used_names_have_an_example(name):
    assert ">>> " in getattr(steelyard, name).__doc__


def identifiers():
    return [
        name
        for page in REFERENCE
        for name in re.findall(r"^::: (\S+)$", page.read_text(), flags=re.MULTILINE)
    ]


@pytest.mark.parametrize("name", identifiers())
def test_what_the_reference_names_exists(name):
    module, _, attribute = name.rpartition(".")
    assert getattr(importlib.import_module(module), attribute).__doc__


def test_the_reference_has_every_public_name():
    missing = {
        f"steelyard.{name}" for name in vars(steelyard.public) if not name.startswith("_")
    } - set(identifiers())
    assert missing == set()


def test_no_name_is_in_the_reference_twice():
    assert len(identifiers()) == len(set(identifiers()))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_examples_stand_under_the_heading_that_the_reference_knows(path):
    """Under `Example:` mkdocstrings reads a list in the output as a link, and the strict build fails."""
    assert not re.search(r"^ +Example:$", path.read_text(), flags=re.MULTILINE)
