"""Every number of the papers' tables stands on the line of the paper's text that its file names.

The texts are not part of the repository: set `$STEELYARD_PAPERS` to a directory with `fedlaw.txt`,
`fedawa.txt`, `fedcos.txt`, `pa3fed.txt` and `fedadp.txt`.
"""

import os
import re
import tomllib
from pathlib import Path

import pytest

from steelyard.experiments._paper_table import FOLDER, names, read_table

TEXTS = os.environ.get("STEELYARD_PAPERS")
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?")


def read_line(table, number):
    """Return line `number` of the text of a table's paper."""
    path = Path(TEXTS) / f"{table.partition('-')[0]}.txt"
    return path.read_text(encoding="utf-8").split("\n")[number - 1]


def read_numbers(line):
    """Return the numbers of a line, as they are printed.

    Numbers in parentheses are gains over another row, except after `N/A`, where they are the best
    accuracy. A number that belongs to a word, such as ResNet20, is left out.
    """
    line = re.sub(r"N/A \((\d+(?:\.\d+)?)%\)", r"\1", line)
    line = re.sub(r"\([^)]*\)", " ", line)
    line = re.sub(r"\[\d+\]", " ", line)  # references
    return NUMBER.findall(line.replace("|", " ").replace("[", " "))


def is_same(text, value):
    """Return whether a printed number is a value; the recognition of PA3Fed's text lost points."""
    if float(text) == value:
        return True
    return "." not in text and float(text) / 100 == pytest.approx(value, abs=1e-9)


def find_places(numbers, printed):
    """Return where a run of numbers begins in a line, counted from the end of the line."""
    places = []
    for start in range(len(printed) - len(numbers) + 1):
        if all(map(is_same, printed[start:], numbers)):
            places.append(start - len(printed))
    return places


def read_rows(name):
    """Return the numbers of each row, with the lines that hold them."""
    raw = tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    rows = {}
    for row, entries in raw["numbers"].items():
        values = [float(str(entry).removeprefix("N/A ")) for entry in entries if entry != "-"]
        rows[row] = (values, raw["lines"][row])
    return rows


@pytest.mark.parametrize("name", names())
def test_every_row_names_its_lines(name):
    table = read_table(name)
    assert table.source
    rows = {cell.name.partition("/")[2] for cell in table.cells if not cell.is_control}
    assert set(table.lines) == rows
    for values, lines in read_rows(name).values():
        assert len(values) % len(lines) == 0


@pytest.mark.skipif(TEXTS is None, reason="needs the papers' texts in $STEELYARD_PAPERS")
@pytest.mark.parametrize("name", names())
def test_numbers_stand_on_the_lines(name):
    """Each line holds an equal part of the row's numbers, side by side, at the same place."""
    rows_by_place = {}
    for row, (values, lines) in read_rows(name).items():
        length = len(values) // len(lines)
        places = None
        for part, number in enumerate(lines):
            chunk = values[part * length : (part + 1) * length]
            found = set(find_places(chunk, read_numbers(read_line(name, number))))
            assert found, (row, number, chunk, read_line(name, number))
            places = found if places is None else places & found
        assert places, f"{row}: its numbers are not in one column of the lines {lines}"
        place = (max(places), length, tuple(lines))
        rows_by_place.setdefault(place, []).append(values)

    # Two rows may stand at one place only if they are readings of the same numbers.
    for rows in rows_by_place.values():
        assert all(values == rows[0] for values in rows)


def test_a_wrong_number_would_be_noticed():
    printed = read_numbers(
        "FedCos(0.02)	54.80 (5.24↑)	69.83 (5.53†)	71.46 (4.64↑)	73.30 (4.52↑)"
    )
    assert printed == ["54.80", "69.83", "71.46", "73.30"]
    assert find_places([54.8, 69.83, 71.46, 73.3], printed) == [-4]
    assert find_places([54.8, 69.83, 71.46, 73.4], printed) == []
    assert find_places([54.8, 71.46], printed) == []
    assert read_numbers("FedAvg N/A (94.48%) 133 99") == ["94.48", "133", "99"]
    assert find_places([42.54], read_numbers("|54.74 | 4254 |57.75|")) == [-2]
