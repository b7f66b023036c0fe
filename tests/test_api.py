"""What the call takes, and what it says to the rest."""

import re

import numpy as np
import pytest
import torch

import steelyard
from tests.rounds import cohort

BASE, CLIENTS = torch.zeros(4), torch.eye(4)
NAN = float("nan")


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"base": [0.0, 1.0]}, "base is a list: pass a 1-D float tensor or a state dict"),
        ({"base": np.zeros(4)}, "base is a ndarray"),
        ({"base": torch.empty(0), "clients": torch.empty(2, 0)}, "no float parameter"),
        (
            {"base": {"a": torch.tensor(1)}, "clients": [{"a": torch.tensor(2)}]},
            "no float parameter",
        ),
        (
            {"base": {"a": BASE.to(torch.float8_e4m3fn)}},
            "torch.float8_e4m3fn, which cannot be aggregated",
        ),
        (
            {"base": {"a": torch.zeros(2, dtype=torch.uint16)}},
            "torch.uint16, which cannot be aggregated",
        ),
        ({"base": BASE * NAN}, "the base model itself holds NaN"),
        ({"base": BASE * NAN, "rule": "guard(uniform)"}, "the base model itself holds NaN"),
        ({"base": {"a": BASE, "running_var": BASE * NAN}, "clients": []}, "nothing to aggregate"),
        (
            {"clients": None},
            "clients is a NoneType: pass a [K, d] tensor, a list, a dict or a store",
        ),
        ({"clients": 5}, "clients is a int"),
        ({"state": 5}, "state is a int: pass out.state of the last round"),
        ({"kinds": ["a"], "base": {"a": BASE}}, "kinds=['a']: pass a dict"),
        *[
            ({"round": round}, f"round={round!r}: use a whole number >= 1")
            for round in (None, -1, 0, 1.5, "3", True)
        ],
    ],
)
def test_what_does_not_fit_is_refused_with_a_sentence(wrong, sentence):
    given = {"rule": "uniform", "base": BASE, "clients": CLIENTS} | wrong
    with pytest.raises(steelyard.SteelyardError, match=re.escape(sentence)):
        steelyard.aggregate(given.pop("rule"), given.pop("base"), given.pop("clients"), **given)


def test_clients_may_come_one_by_one():
    out = steelyard.aggregate("uniform", BASE, (row for row in CLIENTS))
    assert torch.equal(out.params, steelyard.aggregate("uniform", BASE, CLIENTS).params)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ({"a": torch.ones(4).to_sparse()}, "'a' is a sparse tensor or one without values"),
        ({"a": torch.empty(4, device="meta")}, "'a' is a sparse tensor or one without values"),
        ({"a": BASE, 1: BASE, "z": BASE}, "unexpected key 1"),
        ([1, 2], "a list, expected a tensor or a state dict"),
    ],
)
def test_a_model_of_another_kind_is_quarantined(bad, reason):
    out = steelyard.aggregate("uniform", {"a": BASE}, [{"a": BASE + 1}, bad])
    assert out.report["quarantined"] == {1: reason}
    assert torch.equal(out.params["a"], BASE + 1)


def test_a_tied_weight_may_come_under_either_name():
    table = torch.randn(3, 2, generator=torch.Generator().manual_seed(0))
    base = {"embed": table, "head": table}
    clients = [{"head": table + 1}, {"embed": table + 2}, {"embed": table + 3, "head": table + 3}]
    out = steelyard.aggregate("uniform", base, clients)
    assert out.report["quarantined"] == {}
    torch.testing.assert_close(out.params["embed"], table + 2)
    assert out.params["head"] is out.params["embed"]


def test_nan_in_a_float_counter_is_quarantined():
    base, clients = cohort(3)
    clients = {
        client: model | {"bn.num_batches_tracked": torch.tensor(5.0)}
        for client, model in clients.items()
    }
    clients["client-1"]["bn.num_batches_tracked"] = torch.tensor(NAN)
    out = steelyard.aggregate(
        "uniform", base | {"bn.num_batches_tracked": torch.tensor(1.0)}, clients
    )
    assert list(out.report["quarantined"]) == ["client-1"]
    assert out.params["bn.num_batches_tracked"].item() == 5.0


def test_the_state_of_another_model_is_refused():
    out = steelyard.aggregate("uniform", BASE, CLIENTS, server="adam")
    with pytest.raises(steelyard.SteelyardError, match="4 parameters, this one has 3"):
        steelyard.aggregate("uniform", torch.zeros(3), torch.eye(3), server="adam", state=out.state)


def test_an_algorithm_explains_itself():
    told = steelyard.Algorithm("guard(fedadp)", client="fedprox:mu=0.1").explain()
    assert [line.split(":")[0] for line in told.secure_aggregation] == ["guard", "fedadp"]
    assert "two passes" in told.passes
    assert any(line.startswith("num_examples") for line in told.clients_disclose)


def test_a_round_may_be_numpys():
    assert steelyard.aggregate("uniform", BASE, CLIENTS, round=np.int64(2)).report["round"] == 2
