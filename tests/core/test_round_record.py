"""The table of the keys that a round's record can have."""

import pytest

import steelyard
from steelyard.core._round_record import OLD_NAMES, ROUND_RECORD, get_value, rename_old_keys
from steelyard.rules._combinators import parse_rule
from steelyard.testing._rounds import make_cohort, make_reports
from steelyard.testing._rule_checks import aggregate
from tests.rounds import every_rule
from tests.sim.runs import clients, simulate

NOT_RECORDED = {"clients", "layers"}  # in the report of `aggregate` only


RULES = every_rule() | {
    text: parse_rule(text) for text in ("fedlaw:epochs=2,trace=true", "guard(fedadp)", "nnm(krum)")
}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_every_key_that_a_rule_reports_is_in_the_table(rule):
    out = aggregate(rule, *make_cohort(6), diagnose=True)
    assert set(out.report) - NOT_RECORDED <= ROUND_RECORD.keys()


def test_every_key_that_the_simulator_records_is_in_the_table():
    history = simulate(
        steelyard.Algorithm("pa3fed|shrink:0.99", client="fedcos"),
        rounds=2,
        test=clients(1, seed=9)["client-0"],
        evaluate_clients=1,
        participation={"spread": 1.0, "dropout": 0.2},
    )
    for record in history:
        assert record.keys() <= ROUND_RECORD.keys()


def test_keys_are_described_once():
    for key, entry in ROUND_RECORD.items():
        assert entry.key == key
        assert entry.meaning
        assert entry.sources
    assert not OLD_NAMES.keys() & ROUND_RECORD.keys()


def test_old_keys_are_renamed_also_in_the_evaluation():
    record = {"round": 1, "late": [], "moved": 2.0, "evaluation": {"strays": ["a"], "median": {}}}
    assert rename_old_keys(record) == {
        "round": 1,
        "late_clients": [],
        "mean_update_norm": 2.0,
        "evaluation": {"unmatched_replies": ["a"], "median": {}},
    }


def test_a_key_of_the_user_keeps_its_name_in_new_records():
    record = {"round": 1, "late_clients": [], "spread": 5.0}
    assert rename_old_keys(record) == record


def test_numbers_that_are_computed_when_read():
    record = {"update_divergence": 2.0, "lr": 0.5, "cosines": {"a": 1.0, "b": 0.0, "c": None}}
    assert get_value(record, "gradient_divergence") == 4.0
    assert get_value(record, "mean_cosines") == 0.5
    assert get_value({}, "gradient_divergence") is None
    assert get_value({}, "no such key") is None


def test_a_report_names_the_new_key():
    base, models = make_cohort(3)
    out = steelyard.aggregate("fedadp", base, models, metrics=make_reports(list(models)))
    with pytest.raises(KeyError, match="mean_update_norm"):
        out.report["moved"]
