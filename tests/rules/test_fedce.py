"""FedCE against the steps of NVFlare 2.9, written on whole vectors with a class that remembers."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import steelyard
from steelyard.core._spec import to_text
from steelyard.testing import check_rule


class Server:
    """The aggregator: one dict of updates, and possibly of scores, in; one dict of weights out."""

    def __init__(self, mode="plus", eps=1e-6):
        self.mode = mode
        self.eps = eps
        self.weights = {}
        self.history = {}

    def normalize(self, values):
        raised = {client: max(value, self.eps) for client, value in values.items()}
        return {client: value / sum(raised.values()) for client, value in raised.items()}

    def aggregate(self, updates, scores=None):
        last = dict.fromkeys(updates, 1 / len(updates))
        if self.weights:
            last = {
                client: self.weights.get(client, 1 / (len(self.weights) + 1)) for client in last
            }
        novelty = {}
        for client, update in updates.items():
            others = sum(last[other] * updates[other] for other in updates if other != client)
            lengths = np.linalg.norm(update) * np.linalg.norm(others)
            cosine = update @ others / lengths if lengths > 0 else 0.0
            self.history.setdefault(client, []).append(cosine)
            novelty[client] = max(0.0, 1 - np.mean(self.history[client]))
        weights = self.normalize(novelty)
        if scores is not None:
            data = self.normalize(scores)
            for client, weight in weights.items():
                joined = weight + data[client] if self.mode == "plus" else weight * data[client]
                weights[client] = joined
            weights = self.normalize(weights)
        self.weights.update(weights)
        return weights


def draw_round(rng, clients, dim=15):
    common = rng.normal(size=dim)
    return {client: 0.5 * common + rng.normal(size=dim) for client in clients}


def aggregate(rule, updates, scores=None, **options):
    base = torch.zeros(15, dtype=torch.float64)
    clients = {client: torch.from_numpy(update) for client, update in updates.items()}
    metrics = None if scores is None else {"error": scores}
    out = steelyard.aggregate(rule, base, clients, metrics=metrics, **options)
    return dict(zip(sorted(updates), out.weights.tolist(), strict=True)), out


@pytest.mark.parametrize("mode", ["plus", "times"])
@pytest.mark.parametrize("has_scores", [False, True])
def test_the_steps_of_nvflare(mode, has_scores):
    """Ten rounds with clients that come and go. NVFlare's clients report means of their scores."""
    rng = np.random.default_rng(0)
    server = Server(mode)
    reported = {}
    rule = steelyard.fedce(score="error" if has_scores else None, mode=mode)
    state = None
    for number in range(1, 11):
        clients = sorted(rng.choice(list("abcdef"), size=rng.integers(2, 7), replace=False))
        updates = draw_round(rng, clients)
        scores = means = None
        if has_scores:
            scores = {client: rng.uniform() for client in clients}
            for client in clients:
                reported.setdefault(client, []).append(scores[client])
            means = {client: np.mean(reported[client]) for client in clients}
        expected = server.aggregate(updates, means)
        weights, out = aggregate(rule, updates, scores, state=state, round=number)
        state = out.state
        for client in clients:
            assert weights[client] == pytest.approx(expected[client], rel=1e-10)


def test_the_numbers_of_nvflares_own_tests():
    """Two clients at a right angle with scores 0.9 and 0.1; then one that is new."""
    updates = {"site-1": np.eye(15)[0], "site-2": np.eye(15)[1]}
    weights, _ = aggregate("fedce:score=error", updates, {"site-1": 0.9, "site-2": 0.1})
    assert weights["site-1"] == pytest.approx((0.5 + 0.9) / 2, abs=1e-12)
    first = {"site-1": np.eye(15)[0], "site-3": np.eye(15)[1]}
    _, out = aggregate("fedce:score=none", first)
    assert out.state["fedce"]["weights"] == {"site-1": 0.5, "site-3": 0.5}
    second = {"site-2": np.eye(15)[0] + np.eye(15)[1], "site-3": np.eye(15)[1]}
    _, out = aggregate("fedce:score=none", second, state=out.state, round=2)
    kept = out.state["fedce"]["weights"]
    assert set(kept) == {"site-1", "site-2", "site-3"}
    assert kept["site-1"] == 0.5
    assert kept["site-2"] + kept["site-3"] == pytest.approx(1)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 10), size=st.floats(1e-6, 1e6))
def test_weights_are_shares_and_free_of_scale(seed, count, size):
    rng = np.random.default_rng(seed)
    updates = draw_round(rng, [f"c{k}" for k in range(count)])
    weights, _ = aggregate("fedce:score=none", updates)
    assert sum(weights.values()) == pytest.approx(1, abs=1e-12)
    assert min(weights.values()) > 0
    scaled, _ = aggregate(
        "fedce:score=none", {client: size * update for client, update in updates.items()}
    )
    for client, weight in weights.items():
        assert scaled[client] == pytest.approx(weight, rel=1e-9)


def test_edge_cases():
    update = np.arange(15.0)
    # Equal clients have no new direction: equal weights, from eps alone.
    weights, _ = aggregate("fedce:score=none", dict.fromkeys("abc", update))
    assert list(weights.values()) == pytest.approx([1 / 3] * 3)
    # One client, and clients that do not move.
    assert aggregate("fedce:score=none", {"a": update})[0] == {"a": 1.0}
    weights, _ = aggregate("fedce:score=none", dict.fromkeys("abcd", 0 * update))
    assert list(weights.values()) == pytest.approx([1 / 4] * 4)
    # A zero update has the cosine 0.
    weights, _ = aggregate("fedce:score=none", {"a": update, "b": update, "c": 0 * update})
    assert weights["c"] == pytest.approx(1, abs=1e-5)


def test_the_state_survives_a_file(tmp_path):
    rng = np.random.default_rng(3)
    _, out = aggregate("fedce:score=none", draw_round(rng, "abcd"))
    steelyard.save_state(tmp_path / "state", out.state)
    updates = draw_round(rng, "abcd")
    one, _ = aggregate("fedce:score=none", updates, state=out.state, round=2)
    two, _ = aggregate(
        "fedce:score=none", updates, state=steelyard.load_state(tmp_path / "state"), round=2
    )
    assert one == two


def test_wrong_scores():
    updates = draw_round(np.random.default_rng(0), "ab")
    with pytest.raises(steelyard.SteelyardError, match="error"):
        aggregate("fedce:score=error", updates)
    _, out = aggregate("fedce:score=error", updates, {"a": 1.0, "b": -1.0}, state=None)
    assert list(out.report["quarantined"]) == ["b"]


def test_text_and_contract():
    rule = steelyard.fedce(score="error", mode="times", eps=0.01)
    assert steelyard.parse_rule(to_text(rule)) == rule
    check_rule(rule)
    assert "half of FedCE" in steelyard.fedce(score=None).remarks[0]
    assert not steelyard.fedce().remarks
    for wrong in ("fedce:mode=minus", "fedce:eps=0", "fedce:score=3"):
        with pytest.raises(steelyard.SteelyardError):
            steelyard.parse_rule(wrong)
