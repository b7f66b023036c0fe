"""Files that grow: only their new part is read."""

import numpy as np
import pytest

import steelyard
from steelyard.recorder._ledger import Ledger, Ledgers
from steelyard.runs._files import GRAMS
from steelyard.runs._following import AppendedFile, follow_grams
from tests.report.runs import append_grams, round_gram, write_recorded_run, write_run


def test_only_new_entries_are_read(tmp_path, monkeypatch):
    run = write_recorded_run(tmp_path / "run", rounds=9, done=4)
    ledger = Ledger(run)
    numbers = []
    monkeypatch.setattr(
        "steelyard.recorder._ledger.value_round",
        lambda seen: numbers.append(seen.round) or original(seen),
    )
    from steelyard.recorder._contributions import value_round as original

    assert len(ledger.read().rounds) == 4
    append_grams(run, ("a", "b", "c", "d"), range(5, 8))
    result = ledger.read()
    assert numbers == [1, 2, 3, 4, 5, 6, 7]
    assert ledger.read() is result
    whole = steelyard.contributions(run)
    assert [entry.total for entry in result.clients] == [entry.total for entry in whole.clients]


def test_an_entry_that_is_not_complete_waits(tmp_path):
    run = write_recorded_run(tmp_path / "run", rounds=3)
    content = (run / GRAMS).read_bytes()
    (run / GRAMS).write_bytes(content[:-5])
    file = AppendedFile(run / GRAMS)
    rounds, is_other = follow_grams(file)
    assert ([seen.round for seen in rounds], is_other) == ([1, 2], True)
    with (run / GRAMS).open("ab") as handle:
        handle.write(content[-5:])
    rounds, is_other = follow_grams(file)
    assert ([seen.round for seen in rounds], is_other) == ([3], False)


def test_a_file_that_was_cut_or_replaced_is_read_again(tmp_path):
    run = write_recorded_run(tmp_path / "run", rounds=5)
    file = AppendedFile(run / GRAMS)
    follow_grams(file)
    append_grams(run, ("a", "b", "c", "d"), range(3, 4))  # resumed after round 2
    rounds, is_other = follow_grams(file)
    assert ([seen.round for seen in rounds], is_other) == ([1, 2, 3], True)
    (run / GRAMS).unlink()
    assert follow_grams(file) == ([], True)
    assert follow_grams(file) == ([], False)
    append_grams(run, ("x", "y"), range(1, 2))
    rounds, is_other = follow_grams(file)
    assert is_other
    assert rounds[0].ids == ("x", "y")
    np.testing.assert_array_equal(rounds[0].whole.dots, round_gram(1, ("x", "y")).whole.dots)


def test_a_run_that_is_not_recorded_has_no_ledger(tmp_path):
    assert Ledgers().read(write_run(tmp_path / "run", rounds=2)) is None


def test_a_damaged_file_names_itself(tmp_path):
    run = write_recorded_run(tmp_path / "run", rounds=3)
    content = bytearray((run / GRAMS).read_bytes())
    content[30] ^= 255
    (run / GRAMS).write_bytes(content)
    with pytest.raises(steelyard.SteelyardError, match=GRAMS):
        Ledger(run).read()
