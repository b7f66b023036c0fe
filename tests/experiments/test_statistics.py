"""Statistics against scipy, by hand, and what must hold whatever the numbers are."""

import math

import pytest
import scipy.stats
from hypothesis import assume, given
from hypothesis import strategies as st

from steelyard.core._errors import SteelyardError
from steelyard.experiments._statistics import correct_for_many, deviation, difference, mean
from steelyard.experiments.scores import SCORES

BEST, ROUNDS = SCORES["best"], SCORES["rounds"]
values = st.floats(-1, 1, allow_nan=False).map(lambda x: round(x, 6))
pairs = st.lists(st.tuples(values, values), min_size=2, max_size=8)


def paired(rows, **options):
    ours = {str(n): a for n, (a, _) in enumerate(rows)}
    theirs = {str(n): b for n, (_, b) in enumerate(rows)}
    return difference("a", "b", ours, theirs, **options)


def test_mean_and_sample_deviation():
    assert mean([1.0, 2.0, 6.0]) == 3.0
    assert deviation([1.0, 2.0, 6.0]) == pytest.approx(math.sqrt(7))
    assert deviation([5.0]) is None


@given(pairs, st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_the_interval_is_that_of_scipys_paired_test(rows, confidence):
    made = paired(rows, confidence=confidence)
    assume(deviation(list(made.by_seed.values())) > 1e-7)  # scipy warns, or has no interval
    a, b = zip(*rows, strict=True)
    expected = scipy.stats.ttest_rel(a, b).confidence_interval(confidence)
    assert made.interval == pytest.approx((expected.low, expected.high), rel=1e-6, abs=1e-9)


@given(pairs)
def test_the_p_value_is_that_of_scipys_paired_test(rows):
    made = paired(rows)
    assume(deviation(list(made.by_seed.values())) > 1e-7)
    a, b = zip(*rows, strict=True)
    assert made.p_value == pytest.approx(scipy.stats.ttest_rel(a, b).pvalue, rel=1e-6, abs=1e-12)


@given(pairs, st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_the_p_value_and_the_interval_agree(rows, confidence):
    made = paired(rows, confidence=confidence)
    assume(made.p_value != pytest.approx(1 - confidence))
    assert made.beyond_noise == (made.p_value < 1 - confidence)


def test_p_values_without_spread_and_of_one_seed():
    assert paired([(0.5, 0.5), (0.25, 0.25)]).p_value == 1.0
    assert paired([(0.5, 0.25), (0.75, 0.5)]).p_value == 0.0
    assert paired([(0.5, 0.25)]).p_value is None


def test_holms_correction_by_hand():
    # sorted 0.01, 0.03, 0.04 by 3, 2, 1: 0.03, 0.06, and 0.04 is lifted to 0.06
    assert correct_for_many([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert correct_for_many([None, 0.6, 0.5]) == [None, 1.0, 1.0]
    assert correct_for_many([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_corrected_p_values_keep_their_order_and_are_no_smaller(p_values):
    corrected = correct_for_many(p_values)
    assert all(before <= after <= 1 for before, after in zip(p_values, corrected, strict=True))
    by_value = [
        corrected[position] for position in sorted(range(len(p_values)), key=p_values.__getitem__)
    ]
    assert by_value == sorted(by_value)
    assert min(corrected) == pytest.approx(min(1.0, len(p_values) * min(p_values)))


@given(pairs)
def test_the_other_way_round_is_the_negative(rows):
    one, other = paired(rows), paired([(b, a) for a, b in rows])
    assert one.mean == -other.mean
    assert one.interval == tuple(-end for end in reversed(other.interval))
    assert one.beyond_noise == other.beyond_noise


@given(pairs, st.integers(-8, 8))
def test_what_a_seed_does_to_both_cancels(rows, shift):
    moved = paired([(a + shift * n, b + shift * n) for n, (a, b) in enumerate(rows)])
    assert moved.interval == pytest.approx(paired(rows).interval, abs=1e-9)


@given(pairs, st.integers(-8, 8))
def test_a_constant_lead_moves_the_interval(rows, lead):
    moved = paired([(a + lead, b) for a, b in rows])
    assert moved.mean == pytest.approx(paired(rows).mean + lead, abs=1e-9)
    assert moved.half_width == pytest.approx(paired(rows).half_width, abs=1e-9)


def test_sentences():
    clear = difference(
        "fedawa", "fedavg", {"1": 0.91, "2": 0.92, "3": 0.93}, {"1": 0.90, "2": 0.905, "3": 0.917}
    )
    assert clear.sentence(BEST) == (
        "fedawa is 1.27 points above fedavg over 3 common seeds (95 % interval 0.64 to 1.89): more "
        "than seed noise."
    )
    noisy = difference(
        "fedawa", "fedavg", {"1": 0.90, "2": 0.93, "3": 0.92}, {"1": 0.91, "2": 0.90, "3": 0.92}
    )
    assert noisy.sentence(BEST) == (
        "fedawa is 0.67 points above fedavg over 3 common seeds (95 % interval -4.50 to 5.84): "
        "within seed noise; "
        "3 seeds cannot tell differences under 5.17 points."
    )
    behind = difference(
        "a", "b", {"1": 10.0, "2": 12.0, "3": 11.0}, {"1": 20.0, "2": 21.0, "3": 21.0}, 0.9
    )
    assert behind.sentence(ROUNDS) == (
        "a takes 9.67 rounds less than b over 3 common seeds (90 % interval 8.69 to 10.64): more "
        "than seed noise."
    )
    tiny = difference("a", "b", {"1": 0.50001, "2": 0.50002}, {"1": 0.5, "2": 0.5})
    assert tiny.sentence(BEST).startswith("a is 0.0015 points above b over 2 common seeds")


def test_one_seed_none_and_equal_results():
    one = difference("a", "b", {"7": 0.6}, {"7": 0.5})
    assert one.interval is None
    assert not one.beyond_noise
    assert (
        one.sentence(BEST)
        == "a is 10.00 points above b with seed 7: one seed says nothing about noise."
    )
    none = difference("a", "b", {"1": 0.6}, {"2": 0.5})
    assert none.mean is None
    assert none.sentence(BEST) == (
        "a and b have no seed in common with a value of each. Left out: seed 1 (only of a), seed 2 "
        "(only of b)."
    )
    equal = difference("a", "b", {"1": 0.6, "2": 0.7}, {"1": 0.6, "2": 0.7})
    assert equal.interval == (0.0, 0.0)
    assert not equal.beyond_noise
    assert equal.sentence(BEST) == "a and b are equal with each of 2 common seeds."
    swapped = difference("a", "b", {"1": 0.75, "2": 0.5}, {"1": 0.5, "2": 0.75})
    assert swapped.sentence(BEST).startswith(
        "a and b are equal in the mean over 2 common seeds (95 % interval -"
    )


def test_seeds_of_one_side_and_targets_not_reached_are_left_out_by_name():
    made = difference(
        "a",
        "b",
        {"1": 10.0, "2": 11.0, "3": None, "5": None},
        {"1": 12.0, "2": 14.0, "3": 9.0, "4": 8.0, "5": None},
    )
    assert made.by_seed == {"1": -2.0, "2": -3.0}
    assert made.left_out == {"3": "a has no value", "5": "neither has a value", "4": "only of b"}
    assert "Left out: seed 3 (a has no value)" in made.sentence(ROUNDS)


def test_bad_arguments():
    for confidence in (0.0, 1.0, 95.0, 0.99999999999999994, math.nan):
        with pytest.raises(SteelyardError, match="use a number between 0 and 1"):
            difference("a", "b", {}, {}, confidence)
    with pytest.raises(SteelyardError, match="mean of no values"):
        mean([])
