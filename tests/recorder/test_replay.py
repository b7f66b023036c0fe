"""Replaying a rule on the run that used it gives the weights of the run."""

import numpy as np
import pytest
from scipy import stats

import steelyard
from steelyard import SteelyardError
from steelyard.core._registry import RULES
from steelyard.recorder._replay import rank_correlation
from steelyard.rules._combinators import parse_rule, with_default_source

# How to write rules that need a part or an option.
WRITTEN = {
    "cap": "cap:0.5",
    "gate": "gate(angle_gap,fedadp)",
    "guard": "guard(fedadp)",
    "if_finite": "if_finite(fedadp)",
    "nnm": "nnm(fedadp)",
    "per_layer": "per_layer(fedadp)",
    "shrink": "shrink:0.9",
}
CHAINS = (
    "feddisco|fedawa",
    "fedadp|ema:0.5|cap:0.3",
    "guard(feddisco|fedadp)",
    "guard(nnm(fedadp))",
    "fedavg|shrink:gamma=0.9",
    "gate(always,fedawa)",
)


def list_gram_rules():
    """Returns the text of every registered rule that needs only inner products and reports."""
    texts = []
    for entry in RULES:
        text = WRITTEN.get(entry.name, entry.name)
        try:
            rule = parse_rule(text)
        except SteelyardError:
            continue  # a detector
        if not rule.needs.probe and not rule.needs.coordinates:
            texts.append(text)
    return texts


@pytest.mark.parametrize("text", [*list_gram_rules(), *CHAINS])
def test_replaying_the_rule_of_a_run_gives_its_weights(text, tmp_path):
    layers = with_default_source(parse_rule(text)).needs.per_layer
    history = steelyard.simulate(
        text,
        "digits",
        rounds=5,
        clients=8,
        participation={"share": 0.7},
        executor="serial",
        record="gram" if layers is None else f"gram:layers={layers}",
        out=tmp_path,
    )
    result = steelyard.replay(history, [text])
    assert result.missing == ()
    (name,) = set(result.rounds) - {"run"}
    assert len(result.rounds[name]) == len(history)
    for record, replayed in zip(history.records, result.rounds[name], strict=True):
        weights = {str(client): weight for client, weight in replayed.weights.items()}
        assert weights.keys() == record["weights"].keys()
        for client, weight in record["weights"].items():
            assert weights[client] == pytest.approx(weight, abs=1e-12, rel=1e-12)
        assert replayed.cosine == pytest.approx(1.0, abs=1e-9)


def test_most_rules_are_tested():
    assert len(list_gram_rules()) >= 18


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("run")
    steelyard.simulate("fedavg", "digits", rounds=4, clients=6, out=path, seed=3)
    return path


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ("fedlaw", "learns on proxy data"),
        ("median", "looks at single coordinates"),
        ("fedawa_l", "gram:layers=tensor"),
        ("pa3fed", "did not report in round 1"),
    ],
)
def test_a_rule_that_needs_more_is_refused_with_a_sentence(rule, reason, run):
    with pytest.raises(SteelyardError, match=reason):
        steelyard.replay(run, [rule])


def test_label_counts_come_from_the_run_directory(run):
    result = steelyard.replay(run, ["feddisco"])
    assert len(result.rounds["feddisco"]) == 4


def test_a_run_without_a_recording_names_the_cure(tmp_path):
    steelyard.simulate("fedavg", "digits", rounds=1, out=tmp_path, record="none")
    with pytest.raises(SteelyardError, match="record=gram"):
        steelyard.replay(tmp_path, ["fedadp"])
    with pytest.raises(SteelyardError, match="not a run directory"):
        steelyard.replay(tmp_path / "nothing", ["fedadp"])


def test_numbers_of_a_replay_follow_from_the_updates():
    """One round by hand: steps, cosines and effective clients from the updates themselves."""
    import torch

    from steelyard.recorder._replay import _describe
    from steelyard.recorder._weigh import weigh

    rng = torch.Generator().manual_seed(0)
    base = torch.randn(40, generator=rng, dtype=torch.float64)
    models = base + torch.randn(5, 40, generator=rng, dtype=torch.float64)
    sizes = {"num_examples": [5, 1, 7, 2, 9]}
    real = steelyard.aggregate("fedavg", base, models, metrics=sizes, diagnose=True)
    other = steelyard.aggregate("fedadp|shrink:0.8", base, models, metrics=sizes)
    rule = with_default_source(parse_rule("fedadp|shrink:0.8"))
    replayed = _describe(real.gram, weigh(rule, real.gram, {}))
    step = other.params - base
    run_step = real.params - base
    assert replayed.step_norm == pytest.approx(float(step.norm()), rel=1e-9)
    cosine = torch.nn.functional.cosine_similarity(step, run_step, dim=0)
    assert replayed.cosine == pytest.approx(float(cosine), abs=1e-9)
    shares = other.weights / other.weights.sum()
    assert replayed.effective_clients == pytest.approx(float(1 / (shares**2).sum()))


def test_rank_correlation_is_that_of_scipy():
    rng = np.random.default_rng(0)
    for _ in range(20):
        first = rng.integers(0, 5, 9).astype(float)
        second = rng.normal(size=9)
        expected = stats.spearmanr(first, second).statistic
        assert rank_correlation(first, second) == pytest.approx(expected, abs=1e-12)
    assert rank_correlation([1.0, 1.0], [1.0, 2.0]) is None


def test_agreement_and_table(run):
    result = steelyard.replay(run, ["fedadp", "uniform"])
    assert result.agreement("fedadp", "fedadp") == pytest.approx(1.0)
    assert result.agreement("run", "uniform") is None
    table = result.to_pandas()
    assert len(table) == 3 * 4 * 6
    assert table.groupby(["rule", "round"]).share.sum().to_numpy() == pytest.approx(1.0)


def test_rounds_that_are_not_recorded_are_listed(tmp_path):
    steelyard.simulate("fedavg", "digits", rounds=2, out=tmp_path, record="none")
    with pytest.warns(RuntimeWarning, match="rounds 1 to 2 cannot be replayed"):
        steelyard.simulate("fedavg", "digits", rounds=4, out=tmp_path, record="gram", resume=True)
    result = steelyard.replay(tmp_path, ["fedadp"])
    assert result.missing == (1, 2)
    assert [entry.round for entry in result.rounds["fedadp"]] == [3, 4]
