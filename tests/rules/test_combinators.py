"""Caps, averages, gates and chains."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import steelyard
from steelyard.core._errors import SteelyardError
from steelyard.core._spec import to_text
from steelyard.diagnostics._periods import detect
from steelyard.rules._bulyan import select
from steelyard.rules._combinators import parse_rule
from steelyard.rules._modifiers import water_fill
from tests.rounds import Broken


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=12), st.floats(0.01, 1))
@settings(max_examples=500, deadline=None, derandomize=True)
def test_water_filling(weights, limit):
    shares = np.array([weights]) + 1e-9
    shares /= shares.sum()
    out = water_fill(shares, limit)
    count = len(weights)
    assert out.sum() == pytest.approx(1.0)
    assert (out <= max(limit, 1 / count) + 1e-12).all()
    if limit * count > 1:
        free = out[0] < limit * (1 - 1e-9)
        ratio = out[0][free] / shares[0][free]
        assert ratio == pytest.approx(np.full(free.sum(), ratio[0]) if free.any() else [], rel=1e-6)
        assert (np.diff(out[0][np.argsort(shares[0], kind="stable")]) >= -1e-12).all()


def weights_of(rule, sizes, state=None, **more):
    base = torch.zeros(6)
    g = torch.Generator().manual_seed(len(sizes))
    out = steelyard.aggregate(
        rule,
        base,
        torch.randn(len(sizes), 6, generator=g),
        metrics={"num_examples": sizes, **more},
        state=state,
    )
    return out.weights.numpy(), out.state


def test_cap_and_shrink():
    weights, _ = weights_of(steelyard.cap(steelyard.fedavg(), 0.4), [90, 5, 5])
    assert weights == pytest.approx([0.4, 0.3, 0.3])
    weights, _ = weights_of("fedavg|shrink:gamma=0.5|cap:max_weight=0.4", [90, 5, 5])
    assert weights == pytest.approx([0.2, 0.15, 0.15])


def test_ema_is_by_client():
    _, state = weights_of("fedavg|ema:decay=0.5", [1, 3])
    weights, state = weights_of("fedavg|ema:decay=0.5", [3, 1], state)
    assert weights == pytest.approx([0.5, 0.5])
    assert state["ema"]["shares"] == pytest.approx({0: 0.5, 1: 0.5})


def test_the_same_rule_twice_has_two_states():
    _, state = weights_of("fedavg|ema:decay=0.5|ema:decay=0.9", [1, 3])
    assert set(state) == {"ema", "ema#2"}


def test_feddisco_passes_the_prior_where_it_would_leave_nobody():
    weights, _ = weights_of("feddisco:a=100,b=0", [1, 3], label_hist=[[9, 0], [0, 9]])
    assert weights == pytest.approx([0.25, 0.75])


def test_window_detector_checks_every_second_round():
    detector = steelyard.criticalfl_window(forced=0, window=2)
    state, flags = {}, []
    for fgn in [1.0, 50.0, 1.0, 50.0, 0.5, 50.0]:
        flag, state = detector.check(fgn, state)
        flags.append(flag)
    assert flags == [True, True, True, True, False, False]  # only the 1s and the 0.5 are looked at


def test_eq6_first_round_and_rise_from_zero():
    assert steelyard.fgn_increase().check(1.0, {})[0]
    assert not steelyard.fgn_increase(first=False).check(1.0, {})[0]
    assert steelyard.fgn_increase().check(1.0, {"fgn": 0.0})[0]
    assert not steelyard.fgn_increase().check(0.0, {"fgn": 0.0})[0]


@pytest.mark.parametrize("average", ["weighted", "mean", "median"])
def test_detectors_average_the_reports(average):
    rule = steelyard.gate(steelyard.fgn_increase(average=average), steelyard.krum())
    _, state = weights_of(
        steelyard.chain(steelyard.uniform(), rule), [1, 1, 8], grad_norm=[1.0, 2.0, 9.0]
    )
    expected = {"weighted": 7.5, "mean": 4.0, "median": 2.0}[average]
    assert state["gate"]["eq6"]["fgn"] == pytest.approx(expected)


def test_pa3fed_remembers_scores_outside_critical_periods():
    rule = steelyard.pa3fed(detector=steelyard.fgn_increase(first=False))
    _, state = weights_of(rule, [1, 1], loss_before=[2.0, 2.0], grad_norm=[1.0, 1.0])
    weights, state = weights_of(rule, [1, 1], state, loss_before=[1.0, 1.9], grad_norm=[0.5, 0.5])
    assert weights == pytest.approx([0.5, 0.5])  # closed
    weights, _ = weights_of(rule, [1, 1], state, loss_before=[1.0, 0.9], grad_norm=[2.0, 2.0])
    alpha = np.exp([0.0, 0.3 * 1.0])
    assert weights == pytest.approx(alpha / alpha.sum())


def test_bulyan_against_a_plain_reading():
    rng = np.random.default_rng(0)
    for count, f in ((7, 1), (11, 2), (12, 2)):
        clients = rng.standard_normal((count, 9))
        clients[:f] += 30
        left, chosen = list(range(count)), []
        while len(chosen) < count - 2 * f:
            scores = []
            for i in left:
                near = sorted(((clients[i] - clients[j]) ** 2).sum() for j in left if j != i)
                scores.append(sum(near[: max(1, len(left) - f - 2)]))
            chosen.append(left.pop(int(np.argmin(scores))))
        picked = clients[sorted(chosen)]
        keep = count - 4 * f
        middle = np.median(picked, axis=0)
        expected = [
            picked[np.argsort(np.abs(picked[:, c] - middle[c]))[:keep], c].mean() for c in range(9)
        ]
        out = steelyard.aggregate(
            steelyard.bulyan(f=f), torch.zeros(9, dtype=torch.float64), torch.from_numpy(clients)
        )
        np.testing.assert_allclose(out.params.numpy(), expected, atol=1e-9)
        assert out.report["selected"] == sorted(chosen)


def test_krum_in_blanchards_convention():
    rng = np.random.default_rng(1)
    clients, f = rng.standard_normal((9, 5)), 2
    distances = ((clients[:, None] - clients[None]) ** 2).sum(-1)
    scores = [np.sort(np.delete(distances[i], i))[: 9 - f - 2].sum() for i in range(9)]
    out = steelyard.aggregate(
        steelyard.krum(f=f, neighbours="blanchard"),
        torch.zeros(5, dtype=torch.float64),
        torch.from_numpy(clients),
    )
    assert out.weights.argmax().item() == int(np.argmin(scores))


def test_bulyan_selects_everyone_without_byzantine_clients():
    assert select(np.ones((4, 4)) - np.eye(4), 4, 0) == [0, 1, 2, 3]


def test_coordinate_rules_report_mean_coefficients():
    clients = torch.tensor([[0.0, 0.0], [1.0, 5.0], [2.0, 1.0]])
    out = steelyard.aggregate("median", torch.zeros(2), clients)
    assert out.params.tolist() == [1.0, 1.0]
    assert out.weights.tolist() == [0.0, 0.5, 0.5]


@pytest.mark.parametrize(
    "detector", ["eq6:delta=0.5", steelyard.fgn_increase(delta=0.5), steelyard.fgn_increase]
)
def test_a_detector_is_an_object_or_its_text(detector):
    delta = 0.01 if detector is steelyard.fgn_increase else 0.5
    assert steelyard.gate(detector, "fedadp").detector == steelyard.fgn_increase(delta=delta)
    rule = steelyard.pa3fed(detector=detector)
    assert rule.detector == steelyard.fgn_increase(delta=delta)
    assert steelyard.parse_rule(to_text(rule)) == rule


def test_the_plain_name_of_a_detector_stays_text():
    assert (
        to_text(steelyard.pa3fed(detector="criticalfl_window"))
        == "pa3fed:detector=criticalfl_window"
    )


@pytest.mark.parametrize("detector", ["fedadp", 3])
@pytest.mark.parametrize(
    "make",
    [lambda d: steelyard.gate(d, "fedadp"), lambda d: steelyard.pa3fed(detector=d)],
    ids=["gate", "pa3fed"],
)
def test_what_is_no_detector_is_refused(make, detector):
    with pytest.raises(
        steelyard.SteelyardError,
        match="not a detector: use always, angle_gap, criticalfl_window, eq6",
    ):
        make(detector)


def test_a_negative_weight_quarantines_its_client_and_nobody_else():
    out = steelyard.aggregate(
        "fedavg:by=loss", torch.zeros(2), torch.eye(3, 2), metrics={"loss": [1.0, -1.0, 3.0]}
    )
    assert out.weights.tolist() == [0.25, 0.0, 0.75]
    assert out.report["quarantined"] == {1: "negative loss=-1"}


def test_weights_that_are_all_zero_weigh_nobody():
    with pytest.raises(steelyard.SteelyardError, match="every client reports 0"):
        steelyard.aggregate(
            "fedavg:by=score", torch.zeros(2), torch.eye(2), metrics={"score": [0.0, 0.0]}
        )


def test_a_score_beyond_all_measure_is_all_the_weight_and_not_nan():
    rule = "pa3fed:preset=literal"
    _, state = weights_of(rule, sizes=[1, 1], loss_before=[1.0, 1.0], grad_norm=[1.0, 1.0])
    weights, _ = weights_of(rule, [1, 1], state, loss_before=[1.0, 5000.0], grad_norm=[2.0, 2.0])
    assert weights.tolist() == [0.0, 1.0]


def test_weights_that_are_not_finite_are_named_as_such():
    with pytest.raises(
        steelyard.SteelyardError, match=r"fedavg\|broken:weight=inf .*NaN or infinite"
    ):
        weights_of(Broken(np.inf), [1, 1])
    weights, _ = weights_of(steelyard.if_finite(Broken(np.inf)), [1, 1])
    assert weights.tolist() == [0.5, 0.5]


def test_pa3fed_scores_the_global_model_and_favours_who_improves():
    weights = {}
    for rule in ("pa3fed", "pa3fed:preset=literal"):
        before = {"loss_before": [2.0, 2.0], "grad_norm": [1.0, 1.0], "loss": [9.0, 0.0]}
        _, state = weights_of(rule, [1, 1], **before)
        weights[rule], _ = weights_of(
            rule, [1, 1], state, loss_before=[1.0, 2.0], grad_norm=[2.0, 2.0], loss=[0.0, 9.0]
        )
    alpha = np.exp([0.3, 0.0])
    assert weights["pa3fed"] == pytest.approx(alpha / alpha.sum())
    assert weights["pa3fed:preset=literal"] == pytest.approx(
        (alpha / alpha.sum())[::-1]
    )  # against the paper's text


def test_pa3fed_does_not_compare_scores_of_different_readings():
    _, state = weights_of("pa3fed:detector=always", [1, 1], loss_before=[2.0, 1.0])
    for rule in ("pa3fed:detector=always,preset=literal", "pa3fed:detector=always,score=accuracy"):
        weights, _ = weights_of(
            rule, [1, 1], state, loss_before=[2.0, 1.0], accuracy_before=[0.1, 0.9]
        )
        assert weights == pytest.approx([0.5, 0.5]), rule


def test_always_adapts_in_every_round_and_asks_for_no_gradient_norms():
    rule = steelyard.pa3fed(detector="always")
    assert rule.needs.metrics == {"loss_before"}
    state, weights = None, []
    for losses in ([2.0, 2.0], [1.0, 2.0], [1.0, 1.5]):
        share, state = weights_of(rule, [1, 1], state, loss_before=losses)
        weights.append(share[0])
    assert weights == pytest.approx([0.5, 1 / (1 + np.exp(-0.3)), 1 / (1 + np.exp(0.15))])
    assert steelyard.always().check(1.0, {}) == (True, {})


def test_pa3fed_on_trained_models_is_said_to_hardly_act():
    assert "change little" in steelyard.Algorithm("pa3fed:model=local").explain().remarks[0]
    assert not steelyard.Algorithm("pa3fed").explain().remarks


def test_pa3fed_undivided_is_the_sum_of_models_times_factors():
    generator = torch.Generator().manual_seed(0)
    theta = torch.randn(30, generator=generator, dtype=torch.float64)
    clients = torch.randn(3, 30, generator=generator, dtype=torch.float64)
    sizes, before, now = np.array([1, 2, 5]), np.array([2.0, 1.0, 3.0]), np.array([1.0, 1.5, 3.2])
    rule = steelyard.pa3fed(detector="always", divide=False)
    metrics = {"num_examples": sizes.tolist(), "loss_before": before.tolist()}
    with pytest.warns(RuntimeWarning, match="can diverge"):
        first = steelyard.aggregate(rule, theta, clients, metrics=metrics)
    metrics["loss_before"] = now.tolist()
    out = steelyard.aggregate(rule, theta, clients, metrics=metrics, state=first.state)
    # Algorithm 1, line 20: the sum of m_i alpha_i w_i, with the score -loss.
    alpha = np.exp(-0.3 * (now - before))
    factors = torch.from_numpy(sizes / sizes.sum() * alpha)
    torch.testing.assert_close(out.params, factors @ clients, rtol=1e-12, atol=1e-12)
    assert out.report["gamma"] == pytest.approx(float(factors.sum()))
    assert "diverge" in steelyard.Algorithm(rule).explain().remarks[0]


def test_pa3fed_undivided_is_divided_outside_critical_periods():
    base, clients = torch.zeros(4), torch.eye(2, 4)
    rule = steelyard.pa3fed(detector=steelyard.fgn_increase(first=False), divide=False)
    metrics = {"num_examples": [1, 1], "loss_before": [2.0, 1.0], "grad_norm": [1.0, 1.0]}
    with pytest.warns(RuntimeWarning, match="divide=false"):
        out = steelyard.aggregate(rule, base, clients, metrics=metrics)
    assert out.weights == pytest.approx([0.5, 0.5])
    assert out.report["gamma"] == 1.0


def test_no_guard_around_pa3fed_undivided():
    for text in ("guard(pa3fed:divide=false)", "guard(fedavg|pa3fed:divide=false)"):
        with pytest.raises(SteelyardError, match="which no guard bounds"):
            parse_rule(text)


def two_groups(agreeing, others=7, dim=40):
    """Updates of clients that agree, and of others that pull in directions of their own."""
    rng = np.random.default_rng(0)
    common = np.ones(dim)
    rows = [common + 0.3 * rng.standard_normal(dim) for _ in range(agreeing)]
    basis = np.linalg.qr(rng.standard_normal((dim, dim)))[0]
    rows += [3 * (basis[k] - basis[k].mean()) for k in range(others)]
    return torch.tensor(np.array(rows))


@pytest.mark.parametrize(
    ("agreeing", "others", "rule", "is_open"),
    [
        (3, 7, "gate(angle_gap,fedadp)", True),
        (0, 10, "gate(angle_gap,fedadp)", False),
        (10, 0, "gate(angle_gap,fedadp)", False),
        (3, 7, "gate(angle_gap:gap=1.9,fedadp)", False),
        (3, 7, "gate(angle_gap:group=4,fedadp)", False),
        (1, 0, "gate(angle_gap,fedadp)", False),
    ],
)
def test_an_angle_gap_is_a_group_that_agrees_apart_from_the_others(agreeing, others, rule, is_open):
    updates = two_groups(agreeing, others)
    base = torch.zeros(updates.shape[1], dtype=updates.dtype)
    out = steelyard.aggregate(f"uniform|{rule}", base, updates)
    assert out.report["critical"] is is_open
    plain = steelyard.aggregate("uniform|fedadp" if is_open else "uniform", base, updates)
    np.testing.assert_allclose(out.weights, plain.weights)


def test_periods_are_found_by_detectors_of_gradient_norms_only():
    with pytest.raises(steelyard.SteelyardError, match="angle_gap"):
        detect([1.0, 2.0], "angle_gap")
