"""Any two of terms, rules, server optimizers, broadcasts and refiners run together, or are refused with a sentence.

The registries say what there is: a new part is tried with all others as soon as it is registered.
"""

import inspect
import re
from functools import cache
from itertools import combinations

import pytest
import torch

import steelyard
import steelyard.algorithm  # registers every part
from steelyard.core._registry import BROADCASTS, OPTIMIZERS, REFINERS, RULES, TERMS
from steelyard.data import load
from steelyard.models import build
from steelyard.rules._detectors import DETECTORS

# What a part is made of where its defaults do not make it, or keep it from acting in the first two
# rounds.
ARGUMENTS = {
    "always": "gate(always,fedadp)",
    "angle_gap": "gate(angle_gap,fedadp)",
    "cap": "cap:max_weight=0.5",
    "creff": "creff:features=4,match_steps=2,epochs=2",
    "criticalfl_window": "gate(criticalfl_window,fedadp)",
    "eq6": "gate(eq6,fedadp)",
    "fedbe": "fedbe:epochs=2",
    "feddf": "feddf:epochs=2",
    "fedlaw": "fedlaw:epochs=2",
    "fedlaw_swa": "fedlaw_swa:epochs=14",
    "gate": "gate(eq6,fedadp)",
    "guard": "guard(fedadp)",
    "gws": "gws:epochs=2",
    "if_finite": "if_finite(fedadp)",
    "law": "law:epochs=2",
    "ldawa": "ldawa:warmup=0",
    # It does not move tensors whose updates disagree; mixed with their neighbours they agree.
    "model_stock": "nnm(model_stock):f=1",
    "nnm": "nnm(fedadp)",
    "per_layer": "per_layer(fedadp)",
    "shrink": "shrink:gamma=0.9",
}

DRIFT = "cancel only if the new model is the clients' average"
MOVERS = ("feddyn", *(entry.name for registry in (OPTIMIZERS, REFINERS) for entry in registry))
START = "only correct if clients start from the global model"
REFUSED = {frozenset({"vrlsgd", other}): DRIFT for other in MOVERS} | {
    frozenset({"feddyn", "fedmut"}): START
}

KINDS = {
    "client": TERMS,
    "weighting": RULES,
    "server": OPTIMIZERS,
    "broadcast": BROADCASTS,
    "refine": REFINERS,
}
PARTS = [(kind, entry.name) for kind, registry in KINDS.items() for entry in registry]
PARTS += [("weighting", entry.name) for entry in DETECTORS]  # inside gate, see ARGUMENTS
PAIRS = [
    (one, two) for one, two in combinations(PARTS, 2) if one[0] != two[0] or one[0] == "client"
]  # two terms add up; two rules, optimizers or broadcasts are no pair


def text(kind, name):
    """The part as text, with what it needs to be made."""
    if name not in ARGUMENTS:
        parameters = inspect.signature(KINDS[kind][name].make).parameters.values()
        missing = [p.name for p in parameters if p.default is p.empty]
        assert not missing, f"{name} needs {', '.join(missing)}: add it to ARGUMENTS in {__file__}"
    return ARGUMENTS.get(name, name)


@cache
def federation():
    train, test = load("digits")
    return steelyard.Federation.partitioned(
        train.take(slice(0, 200)), test, "dirichlet:alpha=1", 4, 0
    )


def run(one, two):
    """Two rounds of the two parts together."""
    chosen = {}
    for kind, name in (one, two):
        chosen[kind] = f"{chosen[kind]}+{text(kind, name)}" if kind in chosen else text(kind, name)
    return steelyard.simulate(
        steelyard.Algorithm(**chosen),
        federation(),
        "mlp:hidden=[8]",
        rounds=2,
        local={"steps": 2, "batch_size": 16},
        executor="serial",
        proxy={"per_class": 2},
        evaluate_every=0,
    )


@pytest.mark.parametrize(("one", "two"), PAIRS, ids=[f"{one[1]}-{two[1]}" for one, two in PAIRS])
def test_two_rounds_or_a_sentence(one, two):
    reason = REFUSED.get(frozenset({one[1], two[1]}))
    if reason is not None:
        with pytest.raises(steelyard.SteelyardError, match=re.escape(reason)):
            run(one, two)
        return
    history = run(one, two)
    assert [record["round"] for record in history.records] == [1, 2]
    assert not any(record["void"] for record in history.records)
    for record in history.records:
        assert set(record["weights"]) == {"0", "1", "2", "3"}
        assert all(isinstance(weight, float) for weight in record["weights"].values())
    before = build("mlp:hidden=[8]", (1, 8, 8), 10, 0).state_dict()
    assert all(value.isfinite().all() for value in history.params.values())
    assert not any(torch.equal(history.params[name], value) for name, value in before.items())


SOME = [(one, two) for one, two in PAIRS[::16] if frozenset({one[1], two[1]}) not in REFUSED]


@pytest.mark.parametrize(("one", "two"), SOME, ids=[f"{one[1]}-{two[1]}" for one, two in SOME])
def test_the_same_bits_twice(one, two):
    first, second = run(one, two), run(one, two)
    assert first.comparable() == second.comparable()
    assert all(torch.equal(value, second.params[name]) for name, value in first.params.items())


def test_refused_pairs_are_pairs():
    """A part that was renamed would leave a line of the list behind that nothing reads."""
    assert set(REFUSED) <= {frozenset({one[1], two[1]}) for one, two in PAIRS}
