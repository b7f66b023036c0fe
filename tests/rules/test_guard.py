"""The guard: a bound on what one client can do, and the attacks of the reliability matrix (T17 to T24)."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import steelyard
from tests.rounds import Broken, cohort, reports

INNER = [
    "fedavg",
    "fedadp",
    "fedawa",
    "fedawa:steps=200,lr=0.1,travel=none",
    "ldawa:warmup=0",
    "fednova",
    "feddisco|fedawa",
]
ADAPTIVE = [
    "fedavg",
    "fedadp",
    "fedawa",
    "fedawa_l",
    "ldawa:warmup=0",
    "pa3fed",
    "fednova",
    "feddisco",
]
FACTORS = st.sampled_from(
    [0.0, 1e-12, 1e-3, 0.5, 1.0, 1.0, 1.0, 2.0, 10.0, -10.0, 100.0, 1e6, -1e12, 1e18]
)


def bound(clients, base):
    norms = (clients - base).double().norm(dim=1).numpy()
    return norms, 6 * float(np.median(norms[norms > 0])) / len(norms)


@given(
    seed=st.integers(0, 2**32 - 1),
    factors=st.lists(FACTORS, min_size=3, max_size=12),
    copies=st.booleans(),
    sizes=st.lists(st.sampled_from([1, 5, 100, 10**9]), min_size=12, max_size=12),
    inner=st.sampled_from(INNER),
)
@settings(max_examples=2000, deadline=None, derandomize=True)
def test_no_client_contributes_more_than_the_bound(seed, factors, copies, sizes, inner):
    g = torch.Generator().manual_seed(seed)
    base = torch.randn(40, generator=g, dtype=torch.float64)
    directions = torch.randn(len(factors), 40, generator=g, dtype=torch.float64)
    if copies:  # colluders, echoes and mirror images
        directions[1:] = directions[0] + 0.01 * directions[1:]
    clients = base + torch.tensor(factors, dtype=torch.float64)[:, None] * directions
    metrics = {**reports(range(len(factors)), seed % 100), "num_examples": sizes[: len(factors)]}
    out = steelyard.aggregate(f"guard({inner})", base, clients, metrics=metrics, round=4)
    norms, limit = bound(clients, base) if any(factors) else (np.zeros(len(factors)), 0.0)
    weights = np.abs(np.atleast_2d(out.weights.numpy())).max(axis=0)
    assert out.params.isfinite().all()
    assert (weights * norms <= limit * (1 + 1e-9)).all()
    assert (weights <= 3 / len(factors) + 1e-12).all()


def attacked(kind, count=20):
    """A cohort of which the last client attacks, and its reports."""
    base, clients = cohort(count, step=0.05)
    metrics, attacker = reports(list(clients)), f"client-{count - 1}"
    honest = clients[attacker]

    def scaled(factor):
        return {
            n: base[n] + factor * (v - base[n]) if v.is_floating_point() else v
            for n, v in honest.items()
        }

    def poisoned(value):
        fc = honest["fc.weight"].clone()
        fc[3, 4] = value
        return {**honest, "fc.weight": fc}

    noise = torch.Generator().manual_seed(7)
    mean = {
        n: torch.stack([c[n] for c in clients.values()]).double().mean(0).to(v.dtype)
        if v.is_floating_point()
        else v
        for n, v in honest.items()
    }
    models = {
        "nan": lambda: poisoned(math.nan),
        "inf": lambda: poisoned(math.inf),
        "-inf": lambda: poisoned(-math.inf),
        "1e38": lambda: poisoned(1e38),
        "denormal": lambda: poisoned(1e-42),
        "x100": lambda: scaled(100.0),
        "-10x": lambda: scaled(-10.0),
        "gaussian": lambda: {
            n: v + 0.5 * torch.randn(v.shape, generator=noise)
            if v.is_floating_point() and "running" not in n
            else v
            for n, v in honest.items()
        },
        "c*theta": lambda: {
            n: 50 * v if v.is_floating_point() and "running" not in n else v
            for n, v in base.items()
        },
        "free-rider": lambda: dict(base),
        "echo": lambda: mean,
        "0.01x": lambda: scaled(0.01),
        "huge statistics": lambda: {**honest, "bn.running_var": honest["bn.running_var"] + 1e30},
    }
    if kind in models:
        clients[attacker] = models[kind]()
    else:
        name, value = kind.split("=")
        clients[attacker] = scaled(-10.0)
        metrics[name][attacker] = float(value)
    return base, clients, metrics, attacker


ATTACKS = [
    "nan",
    "inf",
    "-inf",
    "1e38",
    "denormal",
    "x100",
    "-10x",
    "gaussian",
    "c*theta",
    "free-rider",
    "echo",
    "0.01x",
]
ATTACKS += [
    "huge statistics",
    "num_examples=1e9",
    "loss_before=-1",
    "loss_before=1e9",
    "loss_before=nan",
    "grad_norm=1e9",
    "normalizer=1e-9",
]


@pytest.mark.parametrize("inner", ADAPTIVE)
@pytest.mark.parametrize("attack", ATTACKS)
def test_attacks_leave_the_model_finite_and_the_share_small(inner, attack):
    base, clients, metrics, attacker = attacked(attack)
    state = None
    for t in range(3):
        out = steelyard.aggregate(
            f"guard({inner})", base, clients, metrics=metrics, state=state, round=t + 4
        )
        assert all(value.isfinite().all() for value in out.params.values())
        share = out.weights[..., list(clients).index(attacker)].abs().max().item()
        assert share <= 3 / 20 + 1e-12
        if attack in ("nan", "inf", "-inf"):
            assert "NaN" in out.report["quarantined"][attacker]
        state = out.state
    if attack == "huge statistics":
        assert out.params["bn.running_var"].max() < 1e30 / 100


def test_the_unguarded_rule_falls_to_the_attack():
    """The reason for the guard: FedAdp hands most of its weight to a client that sends a hundredfold update."""
    base, clients, metrics, attacker = attacked("x100")
    naive = steelyard.aggregate("fedadp", base, clients, metrics=metrics)
    assert naive.weights[list(clients).index(attacker)] > 0.4


@pytest.mark.parametrize("steps", [1, 5000])
@pytest.mark.parametrize("attack", ["free-rider", "echo", "0.01x"])
def test_fedawa_solved_to_the_end_stays_capped(attack, steps):
    base, clients, metrics, _ = attacked(attack)
    rule = steelyard.guard(steelyard.fedawa(steps=steps, lr=0.05, travel=None))
    out = steelyard.aggregate(rule, base, clients, metrics=metrics)
    assert out.weights.max() <= 3 / 20 + 1e-12


@pytest.mark.parametrize("cap", [1.5, 5.0])
def test_sizes_are_capped_at_some_medians(cap):
    base, clients, metrics, attacker = attacked("num_examples=1e9")
    rule = steelyard.guard(steelyard.fedavg(), **({} if cap == 1.5 else {"size_cap": cap}))
    out = steelyard.aggregate(rule, base, clients, metrics=metrics)
    sizes = np.array([metrics["num_examples"][c] for c in clients])
    capped = np.minimum(sizes, cap * np.median(sizes))
    scale = out.report["clipped"].get(attacker, 1.0)
    assert out.weights[-1].item() == pytest.approx(min(capped[-1] / capped.sum(), 0.15) * scale)


def test_zero_updates():
    base, clients = cohort(10)
    idle = {c: (base if k < 3 else m) for k, (c, m) in enumerate(clients.items())}
    out = steelyard.aggregate("guard(fedadp)", base, idle, metrics=reports(list(clients)))
    assert [out.report["quarantined"][f"client-{k}"] for k in range(3)] == ["zero update"] * 3
    assert (out.weights[:3] == 0).all()
    assert out.weights.sum().item() == pytest.approx(1.0)
    void = steelyard.aggregate(
        "guard(fedadp)",
        base,
        dict.fromkeys(clients, base),
        metrics=reports(list(clients)),
        state={"kept": 1},
    )
    assert "no progress" in void.report["void"]
    assert void.params is base
    assert void.state == {"kept": 1}


def test_nobody_valid_voids_the_round_instead_of_raising():
    base, clients = cohort(3)
    broken = {c: {**m, "fc.weight": m["fc.weight"] * math.nan} for c, m in clients.items()}
    with pytest.raises(steelyard.NoValidClients, match="no valid client"):
        steelyard.aggregate("fedavg", base, broken, metrics=reports(list(clients)))
    out = steelyard.aggregate("guard(fedavg)", base, broken, metrics=reports(list(clients)))
    assert out.params is base
    assert out.report["void"]
    assert set(out.report["quarantined"]) == set(clients)


def test_a_step_longer_than_the_clip_is_shortened():
    """FedNova's weights need not sum to one: work that differs enough makes the aggregate longer than any update."""
    base = torch.zeros(4, dtype=torch.float64)
    clients = base + torch.ones(4, 4, dtype=torch.float64)
    metrics = {"num_examples": [1, 1, 1, 1], "normalizer": [1.0, 1.0, 4.9, 4.9]}
    out = steelyard.aggregate(
        steelyard.guard(steelyard.fednova(), clip=1.0), base, clients, metrics=metrics
    )
    assert out.report["void"] is None
    assert 0 < out.report["shortened"] < 1
    assert out.params.norm().item() == pytest.approx(2.0)  # the median norm
    plain = steelyard.aggregate("guard(fednova)", base, clients, metrics=metrics)
    assert "shortened" not in plain.report
    torch.testing.assert_close(out.weights, plain.weights * out.report["shortened"])


@pytest.mark.parametrize("count", range(3, 11))
@pytest.mark.parametrize("work", [1e9, 1e-9])
def test_one_liar_cannot_void_a_round_of_fednova(count, work):
    noise = torch.Generator().manual_seed(count)
    base = torch.zeros(50, dtype=torch.float64)
    clients = base + 1 + 0.05 * torch.randn(count, 50, generator=noise, dtype=torch.float64)
    clients[0] = 2 * clients[1:].mean(dim=0)  # as long as it can be without being clipped
    metrics = {
        "num_examples": [10**9] + [100] * (count - 1),
        "normalizer": [work] + [10.0] * (count - 1),
    }
    out = steelyard.aggregate("guard(fednova)", base, clients, metrics=metrics)
    assert out.report["void"] is None
    median = float(np.median(clients.norm(dim=1)))
    assert median / 2 < out.params.norm().item() <= 2 * median * (1 + 1e-9)


def test_two_clients_are_measured_by_past_rounds():
    base = torch.zeros(4, dtype=torch.float64)
    ones = torch.ones(3, 4, dtype=torch.float64)
    first = steelyard.aggregate("guard(uniform)", base, base + ones)
    large = base + 100 * ones[:2]
    out = steelyard.aggregate("guard(uniform)", base, large, state=first.state, round=2)
    assert out.report["clipped"] == pytest.approx({0: 0.02, 1: 0.02})
    assert out.state["guard"]["norms"] == first.state["guard"]["norms"]


@pytest.mark.parametrize("idle", [0, 2])
@pytest.mark.parametrize("first", [0, 3])
def test_two_clients_cannot_poison_the_memory(first, idle):
    """Rounds of an honest client and an attacker, possibly beside idle ones, and possibly after good rounds."""
    noise = torch.Generator().manual_seed(0)
    base = torch.zeros(50, dtype=torch.float64)
    state = None

    def honest():
        return 0.1 * torch.randn(50, generator=noise, dtype=torch.float64)

    for _ in range(first):
        state = steelyard.aggregate(
            "guard(uniform)", base, [honest() for _ in range(3)], state=state
        ).state
    remembered = [] if state is None else state["guard"]["norms"]
    for number in range(first + 1, first + 12):
        evil = torch.full((50,), 1e9 if number == first + 1 else 1e8, dtype=torch.float64)
        cohort = [honest(), evil, *[base] * idle]
        out = steelyard.aggregate("guard(uniform)", base, cohort, state=state, round=number)
        state = out.state
        assert out.params.norm().item() < 3
        assert state["guard"]["norms"] == remembered
    three = [honest() for _ in range(3)]
    after = steelyard.aggregate("guard(uniform)", base, three, state=state, round=99)
    assert after.report["clipped"] == {}


def test_nan_weights_fall_back_to_sizes():
    base, clients = cohort(4)
    metrics = reports(list(clients))
    guarded = steelyard.aggregate(steelyard.guard(Broken(np.nan)), base, clients, metrics=metrics)
    plain = steelyard.aggregate("guard(fedavg)", base, clients, metrics=metrics)
    assert "non-finite" in guarded.report["fallback"]
    torch.testing.assert_close(guarded.weights, plain.weights)
    assert "poisoned" not in str(guarded.state)
    finite = steelyard.aggregate(
        steelyard.if_finite(Broken(np.nan)), base, clients, metrics=metrics
    )
    torch.testing.assert_close(
        finite.weights, steelyard.aggregate("fedavg", base, clients, metrics=metrics).weights
    )


def test_guard_goes_around_the_whole_chain():
    with pytest.raises(steelyard.SteelyardError, match="put it first"):
        steelyard.parse_rule("feddisco|guard(fedawa)")
    assert steelyard.parse_rule("guard(feddisco|fedawa)").rule.rules[0].name == "feddisco"


@pytest.mark.parametrize("model", ["local", "global"])
def test_reports_on_the_received_model_are_guarded_like_those_on_the_trained_one(model):
    base, clients = cohort(5)
    suffix = "_before" if model == "global" else ""
    metrics = reports(clients)
    metrics |= {name + suffix: dict(metrics[name]) for name in ("loss", "accuracy")}
    metrics["loss" + suffix]["client-0"] = -50.0
    out = steelyard.aggregate(f"guard(pa3fed:model={model})", base, clients, metrics=metrics)
    assert out.report["quarantined"] == {"client-0": f"negative loss{suffix}"}
    scored = f"guard(pa3fed:model={model},score=accuracy)"
    first = steelyard.aggregate(scored, base, clients, metrics=metrics)
    metrics["accuracy" + suffix]["client-1"] = 50.0
    metrics["grad_norm"] = {client: 2 * value for client, value in metrics["grad_norm"].items()}
    out = steelyard.aggregate(scored, base, clients, metrics=metrics, state=first.state, round=2)
    assert (
        1 < out.report["alpha"]["client-1"] <= math.exp(0.3)
    )  # as if it were 1, the best there is


@pytest.mark.parametrize("rule", ["krum:f=6", "multikrum:f=6,keep=5"])
def test_whom_the_rule_refuses_gets_nothing_of_what_others_lose(rule):
    g = torch.Generator().manual_seed(0)
    base, step = torch.randn(1000, generator=g), torch.randn(1000, generator=g)
    clients = base + step + 0.3 * torch.randn(20, 1000, generator=g)
    clients[:6] = base - 1.9 * step
    out = steelyard.aggregate(f"guard({rule})", base, clients, metrics={"num_examples": [100] * 20})
    assert (out.weights[:6] == 0).all()
    plain = steelyard.aggregate(rule, base, clients)
    torch.testing.assert_close(out.weights, plain.weights)
    torch.testing.assert_close(out.params, plain.params)


# How many clients' values the rule averages, of K.
PICKS = {
    "krum:f=2": lambda count: 1,
    "multikrum:f=2,keep=2": lambda count: 2,
    "multikrum:f=2": lambda count: count - 2,
    "krum:f=2|ema": lambda count: 1,
    "median": lambda count: 2 - count % 2,
    "trimmed_mean:f=2": lambda count: count - 4,
    "bulyan:f=1": lambda count: count - 4,
    "nnm(krum:f=2):f=2": lambda count: count - 2,
    "nnm(median):f=2": lambda count: count - 2,
}


@given(
    seed=st.integers(0, 2**32 - 1),
    factors=st.lists(FACTORS, min_size=7, max_size=12),
    inner=st.sampled_from(sorted(PICKS)),
)
@settings(max_examples=300, deadline=None, derandomize=True)
def test_rules_that_pick_clients_keep_the_bound_of_their_picks(seed, factors, inner):
    """Contributions are measured on the model: without the client's values it would have moved that much less."""
    g = torch.Generator().manual_seed(seed)
    base = torch.randn(40, generator=g, dtype=torch.float64)
    directions = torch.randn(1, 40, generator=g, dtype=torch.float64)
    directions = directions + 0.3 * torch.randn(len(factors), 40, generator=g, dtype=torch.float64)
    updates = (
        torch.tensor([factor or 1.0 for factor in factors], dtype=torch.float64)[:, None]
        * directions
    )
    out = steelyard.aggregate(f"guard({inner})", base, base + updates)
    norms = updates.norm(dim=1).numpy()
    share = max(3 / len(norms), 1 / PICKS[inner](len(norms)))
    limit = 2 * float(np.median(norms))
    assert (out.weights.abs().numpy() * norms <= share * limit * (1 + 1e-6)).all()
    # A coordinate-wise rule may be longer than what it is made of, by a factor that docs/guard.md
    # states.
    count = len(norms)
    longer = {
        "median": 2.0,
        "trimmed_mean:f=2": 2.0,
        "nnm(median):f=2": 2.0,
        "bulyan:f=1": (count - 2) / (count - 4),
    }
    step = (out.params - base).norm().item()
    assert (
        step <= limit * math.sqrt(longer.get(inner, 1.0)) * (1 + 1e-6) + 1e-9 * base.norm().item()
    )


@pytest.mark.parametrize("rule", ["median", "trimmed_mean:f=2"])
def test_no_attacker_takes_a_coordinate_out_of_the_others_range(rule):
    g = torch.Generator().manual_seed(0)
    base = torch.randn(300, generator=g, dtype=torch.float64)
    clients = base + torch.randn(9, 300, generator=g, dtype=torch.float64)
    clients[0] = base + 1e6
    clients[1] = base - 1e6
    out = steelyard.aggregate(f"guard({rule})", base, clients)
    assert (out.params <= clients[2:].amax(dim=0) + 1e-12).all()
    assert (out.params >= clients[2:].amin(dim=0) - 1e-12).all()


@pytest.mark.parametrize("rule", ["fedawa", "fedadp"])
def test_inside_layers_the_length_is_that_of_the_layers_together(rule):
    g = torch.Generator().manual_seed(0)
    base = torch.randn(1000, generator=g)
    clients = base + torch.randn(1000, generator=g) + 0.3 * torch.randn(20, 1000, generator=g)
    guarded = steelyard.per_layer(steelyard.guard(rule), layers=(100,) * 10)
    out = steelyard.aggregate(guarded, base, clients, metrics={"num_examples": [100] * 20})
    assert out.report["void"] is None


def test_one_client_cannot_rewrite_integers():
    base, clients = cohort(10)
    extra = {"position_ids": torch.arange(5), "mask": torch.tensor([True, False])}
    base |= extra
    clients = {client: model | extra for client, model in clients.items()}
    lie = {"position_ids": torch.full((5,), 10**15), "mask": torch.tensor([False, True])}
    clients["client-9"] |= lie | {"bn.num_batches_tracked": torch.tensor(2**63 - 1)}
    plain = steelyard.aggregate("uniform", base, clients)
    guarded = steelyard.aggregate("guard(uniform)", base, clients)
    for out in (plain, guarded):
        assert all(torch.equal(out.params[name], value) for name, value in extra.items())
    assert guarded.params["bn.num_batches_tracked"].item() == 5  # the most is beyond two medians


@pytest.mark.parametrize(
    ("counts", "clip", "agreed"),
    [([1010] * 3, 0.5, 1010), ([2**62] * 3, 2, 2**62), ([1, 2, 4], 2, 4)],
)
def test_counters_neither_shrink_nor_overflow(counts, clip, agreed):
    base, clients = cohort(3)
    for model, count in zip(clients.values(), counts, strict=True):
        model["bn.num_batches_tracked"] = torch.tensor(count)
    out = steelyard.aggregate(f"guard(uniform):clip={clip}", base, clients)
    assert out.params["bn.num_batches_tracked"].item() == agreed
