"""Streams and participation on their own."""

import math

import pytest

from steelyard.core._errors import SteelyardError
from steelyard.core._rng import number, stream
from steelyard.sim._participation import Participation


def test_streams_are_functions_of_their_key_and_nothing_else():
    first = stream(1, "batches", 3, "ann").random(4).tolist()
    stream(1, "batches", 3, "bob").random(100)
    assert stream(1, "batches", 3, "ann").random(4).tolist() == first
    keys = [(1, "batches", 3, c) for c in ("ann", 7, "7", -7, None)]
    keys += [(2, "batches", 3, "ann"), (1, "cohort", 3, "ann"), (1, "batches", 4, "ann")]
    assert len({tuple(stream(*key).random(4)) for key in keys} | {tuple(first)}) == len(keys)
    assert (
        number(1, "module", 2, "ann")
        == number(1, "module", 2, "ann")
        != number(1, "module", 2, "bob")
    )
    assert 0 <= number(1, "module", 2, "ann") < 2**63


def test_cohorts_have_the_asked_size_and_do_not_depend_on_the_length_of_the_run():
    asked = Participation(share=0.1)
    cohorts = asked.draw(seed=3, clients=1000, rounds=20)
    assert all(len(set(cohort)) == 100 and cohort == sorted(cohort) for cohort in cohorts)
    assert asked.draw(seed=3, clients=1000, rounds=5) == cohorts[:5]
    assert asked.draw(seed=4, clients=1000, rounds=5) != cohorts[:5]
    assert Participation(share=0.0001).size(100) == 1
    assert Participation(share=0.29).size(100) == 29  # int(0.29 * 100) is 28 in floating point
    assert Participation(share=0.59).size(10) == 5  # the authors' int(), not rounding
    assert Participation(count=7).size(100) == 7
    with pytest.raises(SteelyardError, match="there are only 5 clients"):
        Participation(count=7).size(5)


def test_cohorts_are_fair():
    asked = Participation(share=0.25)
    counts = [0] * 40
    for cohort in asked.draw(seed=0, clients=40, rounds=800):
        for client in cohort:
            counts[client] += 1
    assert all(abs(count - 200) < 5 * math.sqrt(800 * 0.25 * 0.75) for count in counts)


def test_a_deadline_cuts_off_the_slow():
    asked = Participation(spread=1.0, deadline=1.5)
    ids = [f"c{k}" for k in range(200)]
    work = [10.0] * 200
    dropped, late, duration = asked.draw_absent(0, 1, range(200), ids, work)
    assert dropped == []
    assert 20 < len(late) < 150
    assert asked.draw_absent(0, 1, range(200), ids, work) == (dropped, late, duration)
    assert asked.draw_absent(0, 2, range(200), ids, work)[1] != late
    again = set(asked.draw_absent(0, 2, range(200), ids, work)[1])
    assert len(again & set(late)) > len(late) / 2  # the slow stay slow
    assert Participation().draw_absent(0, 1, range(3), ids, work[:3]) == ([], [], 10.0)
    assert Participation(dropout=1.0).draw_absent(0, 1, range(3), ids, work[:3]) == (
        [0, 1, 2],
        [],
        0.0,
    )
