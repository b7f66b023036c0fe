"""The rules of the papers against what their authors' code computes."""

import numpy as np
import pytest
import torch

import steelyard
from steelyard.core._errors import SteelyardError
from steelyard.rules._fedadp import gompertz
from tests.golden import arrays, assert_near, document, tensor

FEDAWA_RUNS = {
    "default_e1_adam_cos_f64": {},
    "e10_adam_cos_f64": {"steps": 10},
    "e100_adam_cos_f64": {"steps": 100},
    "e1_adam_euc_f64": {"distance": "euc"},
    "e10_adam_euc_f64": {"steps": 10, "distance": "euc"},
    "e1_sgd_cos_f64": {"optimizer": "sgd"},
    "e10_sgd_cos_f64": {"steps": 10, "optimizer": "sgd"},
    "e1_adam_cos_gamma0.97_f64": {"gamma": 0.97},
}


@pytest.mark.parametrize("case", ["equal", "unequal"])
def test_fedadp_over_rounds(case):
    golden = arrays("fedadp")
    base, state = tensor(golden[f"{case}/g0"]), None
    for t in range(6):
        clients = base + tensor(golden[f"{case}/client_deltas"][t])
        out = steelyard.aggregate(
            "fedadp",
            base,
            clients,
            metrics={"num_examples": golden[f"{case}/sizes"]},
            state=state,
            round=t + 1,
        )
        assert_near(out.weights, golden[f"{case}/weights"][t])
        assert_near(out.params, golden[f"{case}/global_after_round"][t], 1e-6)
        assert_near(
            [out.report["angles"][k] for k in range(10)], golden[f"{case}/theta_smoothed"][t]
        )
        base, state = out.params, out.state


def test_fedadp_measured_against_the_others_does_not_reward_size():
    """Ten clients that pull in independent directions: the large one is most of the mean, and like no other client."""
    directions = torch.eye(10, dtype=torch.float64)
    sizes = np.array([910] + [10] * 9)
    shares = sizes / sizes.sum()
    base = torch.zeros(10, dtype=torch.float64)
    weights = {
        reference: steelyard.aggregate(
            steelyard.fedadp(reference=reference), base, directions, metrics={"num_examples": sizes}
        ).weights[0]
        for reference in ("mean", "others")
    }
    assert weights["mean"] > 0.99 > shares[0]
    assert weights["others"] == pytest.approx(shares[0])


@pytest.mark.parametrize("alpha", [1, 2, 3, 4, 5, 6, 8, 10])
def test_fedadp_gompertz(alpha):
    golden = arrays("fedadp")
    assert_near(gompertz(golden["gompertz/theta"], alpha), golden[f"gompertz/alpha{alpha}"])


@pytest.mark.parametrize(
    ("clock", "key"), [("round", "global_round"), ("client", "per_client_count")]
)
def test_fedadp_partial_participation(clock, key):
    golden, derived = arrays("fedadp"), arrays("derived")
    base, state = tensor(golden["unequal/g0"]), None
    for t, cohort in enumerate(derived["fedadp_partial/select"]):
        clients = base + tensor(golden["unequal/client_deltas"][t, cohort])
        sizes = golden["unequal/sizes"][cohort]
        out = steelyard.aggregate(
            steelyard.fedadp(clock=clock),
            base,
            clients,
            ids=cohort.tolist(),
            metrics={"num_examples": sizes},
            state=state,
            round=t + 1,
        )
        assert_near(out.weights, derived[f"fedadp_partial/{key}/weights"][t])
        state = out.state


@pytest.mark.parametrize("run", FEDAWA_RUNS)
def test_fedawa_official_over_rounds(run):
    golden = arrays("fedawa")
    rule = steelyard.fedawa(preset="official", **FEDAWA_RUNS[run])
    base = {"flat": tensor(golden["g0"]), "bn.running_mean": torch.zeros(4, dtype=torch.float64)}
    base["bn.num_batches_tracked"] = torch.tensor(0)
    state = None
    for r in range(6):
        clients = [
            {
                "flat": base["flat"] + tensor(golden["client_deltas"][r, k]),
                "bn.running_mean": tensor(golden["bn_buffer"][r, k]),
                "bn.num_batches_tracked": torch.tensor(10 * (r + 1) + k),
            }
            for k in range(8)
        ]
        out = steelyard.aggregate(
            rule, base, clients, metrics={"num_examples": golden["sizes"]}, state=state, round=r + 1
        )
        gamma = rule.gamma
        assert_near(out.weights / gamma, golden[f"{run}/lam"][r])
        assert_near([out.state["fedawa"]["logits"][k] for k in range(8)], golden[f"{run}/T"][r])
        assert_near(out.params["flat"], golden[f"{run}/global"][r], 1e-6)
        assert_near(out.params["bn.running_mean"], golden[f"{run}/bn"][r], 1e-6)
        # The authors average the counter and truncate on load; ours is the maximum, an integer.
        assert out.params["bn.num_batches_tracked"].item() == 10 * (r + 1) + 7
        assert out.params["bn.num_batches_tracked"].dtype == torch.int64
        base, state = out.params, out.state


def test_fedawa_logits_belong_to_clients_not_positions():
    """The authors carry logits by position: with changing cohorts a client inherits another's (their file shows it)."""
    golden = arrays("fedawa")
    cohorts = golden["partial/select"]
    base, state, ours = tensor(golden["g0"]), None, []
    for r, cohort in enumerate(cohorts):
        clients = base + tensor(golden["client_deltas"][r, cohort])
        before = dict(state["fedawa"]["logits"]) if state else {}
        out = steelyard.aggregate(
            "fedawa:preset=official",
            base,
            clients,
            ids=cohort.tolist(),
            metrics={"num_examples": golden["sizes"][cohort]},
            state=state,
            round=r + 1,
        )
        after = out.state["fedawa"]["logits"]
        sizes = golden["sizes"][cohort] / golden["sizes"][cohort].sum()
        entered = np.array(
            [before.get(int(client), size) for client, size in zip(cohort, sizes, strict=True)]
        )
        moved = np.array([after[int(client)] for client in cohort]) - entered
        assert_near(
            np.abs(moved), np.full(4, 0.001), 1e-7
        )  # one fresh Adam step from the client's own logit
        assert {client: after[client] for client in before if client not in cohort} == {
            client: before[client] for client in before if client not in cohort
        }
        ours.append(out.weights.numpy())
        base, state = out.params, out.state
    theirs = golden["partial_e1_adam_cos_f64/lam"]
    assert (
        np.abs(ours[1] - theirs[1]).max() > 1e-3
    )  # a new cohort: theirs runs on the old cohort's logits


@pytest.mark.parametrize("rule", ["fedawa", "fedawa_l"])
def test_fedawa_official_has_the_populations_sizes_under_partial_participation(rule):
    """The authors' first round with 4 of 8 clients: raw logits are shares of all clients' examples."""
    golden = arrays("fedawa")
    cohort, base = golden["partial/select"][0], tensor(golden["g0"])
    options = {
        "ids": cohort.tolist(),
        "metrics": {"num_examples": golden["sizes"][cohort]},
    }
    clients = base + tensor(golden["client_deltas"][0, cohort])
    told = f"{rule}:preset=official,population_examples={golden['sizes'].sum()}"
    out = steelyard.aggregate(told, base, clients, **options)
    weights = out.weights if rule == "fedawa" else out.weights[0]
    assert_near(weights, golden["partial_e1_adam_cos_f64/lam"][0], 1e-7)  # their sizes are float32
    if rule == "fedawa":
        logits = [out.state["fedawa"]["logits"][int(client)] for client in cohort]
        assert_near(logits, golden["partial_e1_adam_cos_f64/T"][0], 1e-7)
    untold = steelyard.aggregate(f"{rule}:preset=official", base, clients, **options)
    fallback = np.exp(golden["sizes"][cohort] / golden["sizes"][cohort].sum())
    weights = untold.weights if rule == "fedawa" else untold.weights[0]
    assert_near(weights, fallback / fallback.sum(), 1e-12)  # nobody said: the cohort's sizes


def test_fedawa_population_examples_are_for_raw_logits_alone():
    with pytest.raises(
        SteelyardError, match=r"population_examples=10: only init=raw .* leave it out"
    ):
        steelyard.fedawa(population_examples=10)
    with pytest.raises(SteelyardError, match="population_examples"):
        steelyard.fedawa(preset="official", population_examples=0)


def test_fedawa_newcomers_enter_at_the_priors_odds():
    golden = arrays("fedawa")
    base, clients = tensor(golden["g0"]), tensor(golden["g0"]) + tensor(golden["client_deltas"][0])
    rule = steelyard.fedawa(steps=20, lr=0.05, travel=10.0)
    first = steelyard.aggregate(
        rule, base, clients[:3], ids=["a", "b", "c"], metrics={"num_examples": [10, 40, 50]}
    )
    learned = first.state["fedawa"]["logits"]
    sizes = {"num_examples": {"b": 40, "c": 50, "new": 30}}
    second = steelyard.aggregate(
        rule, base, clients[1:4], ids=["b", "c", "new"], metrics=sizes, state=first.state
    )
    shift = np.mean([learned["b"] - np.log(40 / 120), learned["c"] - np.log(50 / 120)])
    assert (
        abs(learned["b"] - learned["c"] - np.log(40 / 50)) > 0.1
    )  # they have moved apart, so mean and extremes differ
    assert_near(second.state["fedawa"]["origin"]["new"], np.log(30 / 120) + shift)
    assert second.state["fedawa"]["logits"]["a"] == learned["a"]


@pytest.mark.parametrize("steps", [1, 10, 100, 1000])
@pytest.mark.parametrize("preset", ["paper", "official"])
@pytest.mark.parametrize("init", ["log", "raw"])
def test_fedawa_steps_in_one_round(preset, init, steps):
    golden, derived = arrays("fedawa"), arrays("derived")
    base = tensor(golden["g0"])
    rule = steelyard.fedawa(preset=preset, init=init, steps=steps, weights="after")
    out = steelyard.aggregate(
        rule,
        base,
        base + tensor(golden["client_deltas"][0]),
        metrics={"num_examples": golden["sizes"]},
    )
    objective = {"paper": "paper", "official": "code"}[preset]
    assert_near(out.weights, derived[f"fedawa_{objective}_T{init}_e{steps}_poststep/lam"], 1e-9)


def test_fedawa_collapses_without_a_bound_and_not_with_it():
    golden, derived = arrays("fedawa"), arrays("derived")
    base, sizes = tensor(golden["g0"]), {"num_examples": golden["sizes"]}
    clients = base + tensor(golden["client_deltas"][0])
    free = steelyard.aggregate(
        steelyard.fedawa(steps=4000, lr=0.05, travel=None), base, clients, metrics=sizes
    )
    assert free.weights.max() > 0.999
    assert_near(free.weights, derived["fedawa_paper_longrun/lam"], 1e-6)
    bounded = steelyard.aggregate(
        steelyard.fedawa(steps=4000, lr=0.05), base, clients, metrics=sizes
    )
    prior = golden["sizes"] / golden["sizes"].sum()
    odds = np.log(bounded.weights.numpy() / prior)
    assert odds.max() - odds.min() <= 2 * 1.5 + 1e-9


def test_fedawa_l_is_per_layer_fedawa():
    golden, derived = arrays("fedawa"), arrays("derived")
    base = tensor(golden["g0"])
    rule = steelyard.fedawa_l(
        layers=tuple(derived["fedawa_L/splits"].tolist()), preset="official", steps=10
    )
    out = steelyard.aggregate(
        rule,
        base,
        base + tensor(golden["client_deltas"][0]),
        metrics={"num_examples": golden["sizes"]},
    )
    assert_near(out.weights, derived["fedawa_L/lam_prestep"])
    assert_near(
        np.array([out.state["per_layer"]["fedawa"]["logits"][k] for k in range(8)]).T,
        derived["fedawa_L/T_after"],
    )
    assert_near(out.params, derived["fedawa_L/global"], 1e-6)


@pytest.mark.parametrize(
    ("normalize", "key"), [("sum", "sum_normalised_clipped"), ("softmax", "softmax")]
)
def test_fedawa_cos(normalize, key):
    golden, derived = arrays("fedawa"), arrays("derived")
    base = tensor(golden["g0"])
    out = steelyard.aggregate(
        steelyard.fedawa_cos(normalize=normalize),
        base,
        base + tensor(golden["client_deltas"][0]),
        metrics={"num_examples": golden["sizes"]},
    )
    assert_near(out.weights, derived[f"fedawa_cos/{key}"])


@pytest.mark.parametrize("case", range(len(document("feddisco")["cases"])))
def test_feddisco(case):
    golden = document("feddisco")
    wanted = golden["cases"][case]
    cohort = wanted["participants"]
    counts = np.array(golden["class_counts"])[cohort]
    rule = steelyard.feddisco(a=wanted["a"], b=wanted["b"], metric=wanted["metric"])
    # The authors' cohorts are weighed by these numbers; any report can be weighed by.
    out = steelyard.aggregate(
        steelyard.chain(steelyard.fedavg(by="size_weight"), rule),
        torch.zeros(3),
        torch.ones(len(cohort), 3),
        metrics={"size_weight": wanted["size_weights"], "label_hist": counts},
    )
    assert_near([out.report["discrepancy"][k] for k in range(len(cohort))], wanted["difference"])
    assert_near(out.weights, wanted["weights"])


@pytest.mark.parametrize("stats", ["param", "stat"])
def test_ldawa(stats):
    golden = arrays("ldawa")
    names = [key.removeprefix("global/") for key in golden if key.startswith("global/")]
    base = {name: tensor(golden[f"global/{name}"]) for name in names}
    clients = [{name: tensor(golden[f"client{k}/{name}"]) for name in names} for k in range(6)]
    out = steelyard.aggregate(
        "ldawa",
        base,
        clients,
        metrics={"num_examples": [1] * 6},
        round=4,
        kinds={"*.running_*": stats},
    )
    order = [str(name) for name in golden["names"]] if "names" in golden else names
    scaled = [
        n
        for n in names
        if n != "bn.num_batches_tracked" and (stats == "param" or "running" not in n)
    ]
    for name in scaled:
        assert_near(out.params[name], golden[f"out/{name}"], 1e-6)
        cosines = np.nan_to_num(golden["cos"][:, order.index(name)], nan=1.0)
        assert_near(out.weights[out.report["layers"].index(name)] * 6, cosines)
    assert out.params["bn.num_batches_tracked"].item() == 105  # theirs: the mean, 102.5
    if stats == "stat":  # the safe default: an average that no cosine scales
        mean = torch.stack([c["bn.running_mean"] for c in clients]).mean(dim=0)
        assert (out.params["bn.running_mean"] - mean).abs().max() < 0.5


@pytest.mark.parametrize("setting", ["sgd", "mom0.9", "prox0.1", "mom0.9_prox0.1", "mom0.9_wd1e-2"])
def test_fednova(setting):
    golden = arrays("fednova")
    metrics = {
        "num_examples": golden["sizes"],
        "normalizer": golden[f"{setting}/a"],
        "num_steps": golden["taus"],
    }
    work = "steps" if "prox" in setting else "normalizer"
    for tau_eff, key in ((work, "w_new_official"), ("none", "w_new_criticalfl_variant")):
        out = steelyard.aggregate(
            steelyard.fednova(tau_eff=tau_eff),
            tensor(golden["w0"]),
            tensor(golden[f"{setting}/local_end"]),
            metrics=metrics,
        )
        assert_near(out.params, golden[f"{setting}/{key}"], 1e-9)
    official = steelyard.aggregate(
        steelyard.fednova(tau_eff=work),
        tensor(golden["w0"]),
        tensor(golden[f"{setting}/local_end"]),
        metrics=metrics,
    )
    assert_near(official.report["tau_eff"], golden[f"{setting}/tau_eff"])


@pytest.mark.parametrize(
    ("options", "metric", "suffix"),
    [
        ({"preset": "literal"}, "loss_before", "literal"),
        ({}, "loss_before", "neg"),
        ({"score": "loss", "model": "local"}, "loss", "literal"),
        ({"model": "local"}, "loss", "neg"),
    ],
)
def test_pa3fed_alpha(options, metric, suffix):
    golden = document("pa3fed_alpha")
    base, clients = torch.zeros(3), torch.ones(5, 3)
    seen = [k for k in range(5) if golden["prev_loss"][k] is not None]
    rule = steelyard.chain(
        steelyard.fedavg(by="m"),
        steelyard.pa3fed(**options, detector=steelyard.fgn_increase(average="mean")),
    )
    first = steelyard.aggregate(
        rule,
        base,
        clients[seen],
        ids=seen,
        metrics={
            "m": [golden["m"][k] for k in seen],
            metric: [golden["prev_loss"][k] for k in seen],
            "grad_norm": [1.0] * 4,
        },
    )
    out = steelyard.aggregate(
        rule,
        base,
        clients,
        metrics={"m": golden["m"], metric: golden["cur_loss"], "grad_norm": [2.0] * 5},
        state=first.state,
        round=2,
    )
    assert out.report["critical"]
    names = {"literal": "alpha_literal_s_is_loss", "neg": "alpha_s_is_negative_loss"}
    assert_near([out.report["alpha"][k] for k in range(5)], golden[names[suffix]])
    assert_near(out.weights, golden[f"weights_{suffix}"])


@pytest.mark.parametrize("sequence", document("clp_detection"))
def test_critical_periods(sequence):
    golden = document("clp_detection")[sequence]
    for detector, key in (
        (steelyard.fgn_increase(), "pa3fed_eq6_flag_no_window"),
        (steelyard.criticalfl_window(every=1), "criticalfl_flag"),
    ):
        state, flags = {}, []
        for fgn in golden["fgn"]:
            flag, state = detector.check(fgn, state)
            flags.append(int(flag))
        expected = golden[key]
        assert [f for f, e in zip(flags, expected, strict=True) if e is not None] == [
            e for e in expected if e is not None
        ]


def test_fedadam_of_the_fedlaw_code():
    golden = arrays("fedlaw_baselines")
    for method, server in (("fedavg", None), ("fedadam", steelyard.adam(lr=1.0))):
        base, state = tensor(golden["g0"]), None
        for r in range(3):
            out = steelyard.aggregate(
                "fedavg",
                base,
                base + tensor(golden["client_deltas"][r]),
                metrics={"num_examples": golden["sizes"]},
                state=state,
                server=server,
                round=r + 1,
            )
            assert_near(out.params, golden[f"{method}/global_after_round"][r], 1e-9)
            base, state = out.params, out.state
