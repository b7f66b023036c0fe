"""docs/gallery.md is what `python -m tests.gallery_page` writes, with a picture of every figure."""

import re

import pytest

from steelyard.figures import names
from tests.gallery_page import ROOT, make_heading, read_verdict, write_page

PAGE = (ROOT / "docs" / "gallery.md").read_text()
FOLDER = ROOT / "docs" / "gallery"


def read_section(name):
    """Return the section of a figure."""
    (section,) = re.findall(rf"^## {make_heading(name)}\n(.*?)(?=^## )", PAGE, re.M | re.S)
    return section


def test_the_page_is_current():
    """Claims, settings and commands are those of the figures; verdicts are those of the page."""
    assert write_page({name: read_section(name) for name in names()}) == PAGE


@pytest.mark.parametrize("name", names())
def test_every_figure_has_a_small_picture_and_a_verdict_with_numbers(name):
    section = read_section(name)
    assert f"](gallery/{name}.png)" in section
    assert (FOLDER / f"{name}.png").stat().st_size < 80_000
    state, sentence = read_verdict(section)
    assert state in ("shows it", "shows it in part", "does not show it", "cannot be told")
    assert re.search(r"\d", sentence)


def test_no_picture_is_left_over():
    assert {path.name for path in FOLDER.iterdir()} == {f"{name}.png" for name in names()}
