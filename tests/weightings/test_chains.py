"""Any two rules in a row weigh a cohort, or are refused with a sentence: the registry says what there is."""

from itertools import product

import pytest

import steelyard
from tests.rounds import Quadratic, cohort, every_rule, reports

BASE, CLIENTS = cohort(4, wide=8)
METRICS = reports(CLIENTS) | {"loss_before": dict.fromkeys(CLIENTS, 1.0)}
RULES = every_rule()
SENSELESS = ("ignores what comes before it", "layer by layer", "makes none", "cut the model into different layers")


@pytest.mark.parametrize("first", RULES)
def test_two_in_a_row(first):
    weighed = 0
    for one, two in product([RULES[first]], RULES.values()):
        try:
            rule = steelyard.chain(one, two)
        except steelyard.SteelyardError as error:
            if not any(reason in str(error) for reason in SENSELESS):
                raise
            continue
        out = steelyard.aggregate(rule, BASE, CLIENTS, metrics=METRICS, probe=Quadratic())
        assert out.weights.isfinite().all()
        assert all(value.isfinite().all() for value in out.params.values())
        weighed += 1
    assert weighed


@pytest.mark.parametrize("layered", ["fedawa_l", "ldawa", "per_layer(fedadp)"])
@pytest.mark.parametrize("learned", ["fedlaw", "fedlaw_swa", "gws", "law"])
def test_weights_learned_for_the_whole_model_come_before_layers(layered, learned):
    with pytest.raises(steelyard.SteelyardError, match=r"put fedlaw(_swa)? first"):
        steelyard.chain(layered, learned)


def test_what_is_no_sum_has_no_weights_to_learn():
    with pytest.raises(steelyard.SteelyardError, match="median before it makes none"):
        steelyard.chain("median", "fedlaw")
