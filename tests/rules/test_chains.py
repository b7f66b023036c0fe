"""Any two rules in a row weigh a cohort, or are refused with a sentence: the registry says what there is."""

from itertools import product

import pytest

import steelyard
from tests.rounds import Quadratic, cohort, every_rule, reports

BASE, CLIENTS = cohort(4, wide=8)
METRICS = reports(CLIENTS) | {"loss_before": dict.fromkeys(CLIENTS, 1.0)}
RULES = every_rule()
SENSELESS = (
    "ignores the rules before it",
    "layer by layer",
    "limits them for the last time",
    "does not compute a weighted sum",
    "different layers",
)


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


@pytest.mark.parametrize("after", ["fedlaw", "fedadp", "cap:max_weight=0.1", "ema"])
def test_what_is_no_weighted_sum_has_no_weights_to_divide(after):
    with pytest.raises(
        steelyard.SteelyardError, match="median before it does not compute a weighted sum"
    ):
        steelyard.chain("median", after)
    assert steelyard.chain("median", "shrink:gamma=0.9")


@pytest.mark.parametrize(
    "guarded", ["guard(fedavg)", "if_finite(guard(fedadp))", "nnm(guard(fedadp)):f=1"]
)
@pytest.mark.parametrize("after", ["fedawa", "cap:max_weight=0.1", "ema"])
def test_what_a_guard_bounds_stays_bounded(guarded, after):
    with pytest.raises(steelyard.SteelyardError, match=r"inside, guard\(\.\.\.\|"):
        steelyard.chain(guarded, after)
    assert steelyard.chain("guard(fedavg)", "shrink:gamma=0.9")


@pytest.mark.parametrize("rule", ["ldawa:warmup=1|ema", "gate(eq6,fedawa_l)|ema"])
def test_layers_are_there_from_the_first_round_on(rule):
    """A rule that is warming up, or whose gate is closed, says the same of every layer: others may remember it so."""
    state, critical = None, []
    for round in range(1, 5):
        calm = {client: value / round for client, value in METRICS["grad_norm"].items()}
        metrics = METRICS | {"grad_norm": calm}
        out = steelyard.aggregate(rule, BASE, CLIENTS, metrics=metrics, state=state, round=round)
        assert out.weights.shape == (len(out.report["layers"]), len(CLIENTS))
        state = out.state
        critical.append(out.report.get("critical"))
    assert rule.startswith("ldawa") or critical == [True, False, False, False]
