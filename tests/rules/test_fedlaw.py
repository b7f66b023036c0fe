"""FedLAW, GWS, LAW and FedLAW-SWA, against the authors' code and against autograd."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import steelyard
from steelyard.core._errors import SteelyardError
from steelyard.rules._fedlaw_swa import swa_rate
from tests.golden import arrays, assert_near, document

RUNS = {run["tag"]: run for run in document("fedlaw_meta")}
DATA = arrays("fedlaw")


def network(kind, dtype=torch.float64):
    norm = [nn.BatchNorm1d(8)] if kind == "bn" else []
    return nn.Sequential(nn.Linear(6, 8), *norm, nn.ReLU(), nn.Linear(8, 3)).to(dtype)


def probe(kind, batch, dtype=torch.float64, **options):
    inputs, targets = (
        torch.from_numpy(DATA[f"{kind}/proxy_x"]).to(dtype),
        torch.from_numpy(DATA[f"{kind}/proxy_y"]),
    )
    return steelyard.Probe(network(kind, dtype), inputs, targets, batch, shuffle=False, **options)


def official(run):
    """The rule of a run of the authors' code."""
    args = run["args"]
    lr = 0.01 if args["dataset"] == "cifar10" else 0.005
    shared = (
        f"preset=official,epochs={args['server_epochs']},lr={lr},function={args['server_funct']}"
    )
    if args["whether_swa"] == "swa":
        return f"fedlaw_swa:{shared},snapshots=optional"
    return f"fedlaw:{shared},optimizer={args['server_optimizer']}"


def clients(kind, dtype=torch.float64):
    return torch.from_numpy(DATA[f"{kind}/client_params"]).to(dtype)


def aggregate(rule, kind, proxy, base=None, dtype=torch.float64, **options):
    models = clients(kind, dtype)
    base = models.mean(dim=0) if base is None else base
    metrics = {"num_examples": DATA[f"{kind}/sizes"].tolist()}
    return steelyard.aggregate(rule, base, models, metrics=metrics, probe=proxy, **options)


def shares(out):
    return list(out.report["lambda"].values())


@pytest.mark.parametrize("tag", RUNS)
def test_equals_the_authors_code(tag):
    run, kind = RUNS[tag], tag.split("/")[0]
    dtype, tolerance = (torch.float64, 1e-12) if tag.endswith("f64") else (torch.float32, 1e-6)
    proxy = probe(kind, run["batch"], dtype)
    out = aggregate(official(run), kind, proxy, dtype=dtype)
    assert_near(out.report["gamma"], DATA[f"{tag}/gamma"], tolerance)
    assert_near(shares(out), DATA[f"{tag}/lam"], tolerance)
    assert_near(out.params, DATA[f"{tag}/global_param"], tolerance)
    if kind == "bn":
        norm = proxy.model[1]
        assert_near(norm.running_mean, DATA[f"{tag}/bn_running_mean"], tolerance)
        assert_near(norm.running_var, DATA[f"{tag}/bn_running_var"], tolerance)
        assert int(norm.num_batches_tracked) == int(DATA[f"{tag}/bn_num_batches"])


@pytest.mark.parametrize("tag", ["bn/exp_adam_e20_b16_f64", "bn/swa_exp_e20_b40_f64"])
def test_state_dicts_carry_the_statistics(tag):
    """The same run with models as state dicts: statistics come out in the model, and `probe.model` stays as it was."""
    run, proxy = RUNS[tag], probe("bn", RUNS[tag]["batch"])
    before = {name: value.clone() for name, value in proxy.model.state_dict().items()}

    def model(vector):
        mould = network("bn")
        nn.utils.vector_to_parameters(vector, mould.parameters())
        return mould.state_dict()

    models = clients("bn")
    metrics = {"num_examples": DATA["bn/sizes"].tolist()}
    out = steelyard.aggregate(
        official(run),
        model(models.mean(dim=0)),
        [model(row) for row in models],
        metrics=metrics,
        probe=proxy,
    )
    assert_near(shares(out), DATA[f"{tag}/lam"], 1e-12)
    assert_near(out.params["1.running_mean"], DATA[f"{tag}/bn_running_mean"], 1e-12)
    assert_near(out.params["1.running_var"], DATA[f"{tag}/bn_running_var"], 1e-12)
    assert int(out.params["1.num_batches_tracked"]) == int(DATA[f"{tag}/bn_num_batches"])
    assert all(torch.equal(before[name], value) for name, value in proxy.model.state_dict().items())


@pytest.mark.parametrize("kind", ["law", "gws", "both"])
@pytest.mark.parametrize("epochs", [20, 100])
def test_parts_alone(kind, epochs):
    derived = arrays("derived")
    rule = {"law": "law", "gws": "gws", "both": "fedlaw"}[kind]
    out = aggregate(f"{rule}:epochs={epochs}", "mlp", probe("mlp", 40))
    assert_near(shares(out), derived[f"fedlaw_{kind}_e{epochs}/lam"], 1e-9)
    assert_near(out.report["gamma"], derived[f"fedlaw_{kind}_e{epochs}/gamma"], 1e-9)


def test_learning_rates_of_the_swa_stage_are_the_authors():
    schedule = document("fedlaw_swa_schedule")
    rates = [swa_rate(0.01, 0.05, epoch) for epoch in range(50)]
    assert_near(rates, schedule["swa_lr_per_epoch_cifar10"], 1e-15)


def test_the_result_does_not_depend_on_where_the_clients_started():
    """gamma sum lambda theta_k has no theta in it."""
    first = aggregate("fedlaw:epochs=5", "mlp", probe("mlp", 16))
    second = aggregate(
        "fedlaw:epochs=5", "mlp", probe("mlp", 16), base=torch.zeros(83, dtype=torch.float64)
    )
    assert_near(first.params, second.params, 1e-12)


@pytest.mark.parametrize("function", ["exp", "quad"])
def test_slopes_are_autograds(function):
    """One step of plain gradient descent on x and g, through K models, by autograd."""
    models, sizes = clients("mlp"), torch.from_numpy(DATA["mlp/sizes"]).double()
    proxy, lr = probe("mlp", 40), 0.3
    start = sizes / sizes.sum()
    x = (start.sqrt() if function == "quad" else start.log()).requires_grad_()
    g = torch.tensor(1.0 if function == "quad" else 0.0, dtype=torch.float64, requires_grad=True)
    lam = x**2 / (x**2).sum() if function == "quad" else x.softmax(dim=0)
    gamma = g**2 if function == "quad" else g.exp()
    names = dict(proxy.model.named_parameters())
    pieces = torch.split(gamma * (lam @ models), [value.numel() for value in names.values()])
    values = {
        name: piece.view(names[name].shape) for name, piece in zip(names, pieces, strict=True)
    }
    outputs = torch.func.functional_call(proxy.model, values, (proxy.inputs,))
    nn.functional.cross_entropy(outputs, proxy.targets).backward()
    moved = x - lr * x.grad
    wanted = moved**2 / (moved**2).sum() if function == "quad" else moved.softmax(dim=0)
    turned = g - lr * g.grad
    out = aggregate(f"fedlaw:epochs=1,optimizer=sgd,lr={lr},function={function}", "mlp", proxy)
    assert_near(shares(out), wanted.detach(), 1e-12)
    assert_near(
        out.report["gamma"], (turned**2 if function == "quad" else turned.exp()).item(), 1e-12
    )


def test_official_quad_starts_uniform_and_paper_at_the_prior():
    uniform = aggregate(
        "fedlaw:preset=official,function=quad,epochs=1,lr=1e-12", "mlp", probe("mlp", 40)
    )
    assert_near(shares(uniform), np.full(6, 1 / 6), 1e-9)
    sizes = DATA["mlp/sizes"]
    prior = aggregate("fedlaw:function=quad,epochs=1,lr=1e-12", "mlp", probe("mlp", 40))
    assert_near(shares(prior), sizes / sizes.sum(), 1e-9)


def authors_swa(function, epochs):
    """The authors' SWA branch, by autograd and torch's own schedulers: lambda from its start, then gamma."""
    models, sizes = clients("mlp"), torch.from_numpy(DATA["mlp/sizes"]).double()
    net, inputs, targets = (
        network("mlp"),
        torch.from_numpy(DATA["mlp/proxy_x"]),
        torch.from_numpy(DATA["mlp/proxy_y"]),
    )

    def shares_of(x):
        return x**2 / (x**2).sum() if function == "quad" else x.softmax(dim=0)

    def loss(vector):
        parts = dict(
            zip(dict(net.named_parameters()), torch.split(vector, [48, 8, 24, 3]), strict=True)
        )
        values = {name: part.view_as(net.get_parameter(name)) for name, part in parts.items()}
        return nn.functional.cross_entropy(
            torch.func.functional_call(net, values, (inputs,)), targets
        )

    start = (
        torch.full_like(sizes, 1 / 6).sqrt() if function == "quad" else (sizes / sizes.sum()).log()
    )
    x = start.clone().requires_grad_()
    optimizer = torch.optim.Adam([x], lr=0.01, betas=(0.5, 0.999))
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    rising = torch.optim.swa_utils.SWALR(optimizer, swa_lr=0.05)
    optimizer.param_groups[0]["lr"] = 0.01
    snapshots = []
    for epoch in range(epochs // 2):
        optimizer.zero_grad()
        loss(shares_of(x) @ models).backward()
        optimizer.step()
        if epoch > 5:
            snapshots.append(x.detach().clone())
            rising.step()
        else:
            cosine.step()
    lam = shares_of(torch.stack(snapshots).mean(dim=0))
    g = torch.tensor(1.0 if function == "quad" else 0.0, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([g], lr=0.01, betas=(0.5, 0.999))
    halving = torch.optim.lr_scheduler.StepLR(optimizer, 20, 0.5)
    for _ in range(epochs // 2):
        optimizer.zero_grad()
        loss((g**2 if function == "quad" else g.exp()) * (lam @ models)).backward()
        optimizer.step()
        halving.step()
    return lam, (g**2 if function == "quad" else g.exp()).item()


@pytest.mark.parametrize("function", ["exp", "quad"])
def test_swa_is_the_authors_for_both_functions(function):
    """The golden runs have exp alone: they vouch for the loop above, and the loop for quad."""
    lam, gamma = authors_swa(function, 20)
    if function == "exp":
        assert_near(lam, DATA["mlp/swa_exp_e20_b40_f64/lam"], 1e-9)
        assert_near(gamma, DATA["mlp/swa_exp_e20_b40_f64/gamma"], 1e-9)
    out = aggregate(
        f"fedlaw_swa:preset=official,epochs=20,function={function}", "mlp", probe("mlp", 40)
    )
    assert_near(shares(out), lam, 1e-9)
    assert_near(out.report["gamma"], gamma, 1e-9)


def test_official_swa_with_quad_starts_uniform_and_paper_at_the_prior():
    still = "function=quad,epochs=14,lr=1e-12,swa_lr=1e-12"
    uniform = aggregate(f"fedlaw_swa:preset=official,{still}", "mlp", probe("mlp", 40))
    assert_near(shares(uniform), np.full(6, 1 / 6), 1e-9)
    sizes = DATA["mlp/sizes"] / DATA["mlp/sizes"].sum()
    assert_near(shares(aggregate(f"fedlaw_swa:{still}", "mlp", probe("mlp", 40))), sizes, 1e-9)
    chosen = aggregate(f"fedlaw_swa:{still},init=uniform", "mlp", probe("mlp", 40))
    assert_near(shares(chosen), np.full(6, 1 / 6), 1e-9)
    exp = aggregate(
        "fedlaw_swa:preset=official,epochs=14,lr=1e-12,swa_lr=1e-12", "mlp", probe("mlp", 40)
    )
    assert_near(shares(exp), sizes, 1e-9)


def test_law_with_swa_is_the_first_stage_of_the_authors_swa():
    """Their first stage has half of the 100 epochs and gamma = 1: LAW with SWA is that stage alone."""
    out = aggregate("fedlaw_swa:learn=lambda,epochs=50", "mlp", probe("mlp", 40))
    assert_near(shares(out), DATA["mlp/swa_exp_e100_b40_f64/lam"], 1e-12)
    assert out.report["gamma"] == 1.0
    assert_near(out.base, [1.0], 1e-12)
    assert_near(out.weights.sum(), 1.0, 1e-12)
    swapped = aggregate(
        "fedlaw_swa:learn=lambda,epochs=50,order=lambda_first", "mlp", probe("mlp", 40)
    )
    assert torch.equal(out.params, swapped.params)


def test_law_with_swa_refuses_what_has_no_meaning_for_it():
    with pytest.raises(SteelyardError, match=r"epochs=6: .*at least 7"):
        steelyard.fedlaw_swa(learn="lambda", epochs=6)
    steelyard.fedlaw_swa(learn="lambda", epochs=7)
    with pytest.raises(SteelyardError, match=r"floor=.*learn=lambda"):
        steelyard.fedlaw_swa(learn="lambda", floor=0.5)
    with pytest.raises(SteelyardError, match="learn"):
        steelyard.fedlaw_swa(learn="gamma")
    assert steelyard.fedlaw_swa(learn="lambda").remarks == ()


def moved_clients(eta):
    """The clients with updates times eta, which is how the authors write the global learning rate."""
    models = clients("mlp")
    base = models.mean(dim=0)
    return base, base + eta * (models - base)


LEARNING = ["gws:epochs=30", "law:epochs=30", "fedlaw:epochs=30", "fedlaw:epochs=30,function=quad"]
LEARNING += ["fedlaw_swa:epochs=30", "fedlaw_swa:epochs=30,learn=lambda"]


@pytest.mark.parametrize("eta", [0.5, 1.0, 1.5])
@pytest.mark.parametrize("rule", ["fedavg|shrink:gamma=0.9", *LEARNING])
def test_the_global_learning_rate_is_inside_the_shrinking(rule, eta):
    """Eq. (4): gamma (w - eta g), gamma and lambda learned there. Both spellings, against updates that come scaled."""
    base, models = moved_clients(eta)
    metrics = {"num_examples": DATA["mlp/sizes"].tolist()}
    wanted = steelyard.aggregate(
        rule, base, models, metrics=metrics, probe=probe("mlp", 40), diagnose=True
    )
    by_server = aggregate(rule, "mlp", probe("mlp", 40), server=f"sgd:lr={eta}", diagnose=True)
    separator = "," if ":" in rule else ":"
    by_option = aggregate(
        f"{rule}{separator}global_lr={eta}", "mlp", probe("mlp", 40), diagnose=True
    )
    for found in (by_server, by_option):
        assert_near(found.params, wanted.params, 1e-12)
        assert_near(found.report["gamma"], wanted.report["gamma"], 1e-12)
        if "lambda" in wanted.report:
            assert_near(shares(found), shares(wanted), 1e-12)
        if "shrinking_ratio" in wanted.report:
            assert_near(found.report["shrinking_ratio"], wanted.report["shrinking_ratio"], 1e-9)


def test_gws_learns_gamma_at_the_global_learning_rate_by_autograd():
    models, sizes = clients("mlp"), torch.from_numpy(DATA["mlp/sizes"]).double()
    base, eta = models.mean(dim=0), 1.5
    target = base + eta * (sizes / sizes.sum() @ models - base)
    proxy = probe("mlp", 40)
    g = torch.zeros((), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([g], lr=0.01, betas=(0.5, 0.999))
    halving = torch.optim.lr_scheduler.StepLR(optimizer, 20, 0.5)
    names = dict(proxy.model.named_parameters())
    for _ in range(40):
        optimizer.zero_grad()
        pieces = torch.split(g.exp() * target, [value.numel() for value in names.values()])
        values = {
            name: piece.view(names[name].shape) for name, piece in zip(names, pieces, strict=True)
        }
        outputs = torch.func.functional_call(proxy.model, values, (proxy.inputs,))
        nn.functional.cross_entropy(outputs, proxy.targets).backward()
        optimizer.step()
        halving.step()
    out = aggregate("gws:epochs=40", "mlp", proxy, server="sgd:lr=1.5")
    assert_near(out.report["gamma"], g.exp().item(), 1e-9)
    assert_near(out.params, (g.exp() * target).detach(), 1e-9)


def test_gamma_is_learned_where_the_prior_puts_the_model():
    """FedNova's weights do not sum to 1, and a shrunk prior has a base of its own."""
    models = clients("mlp")
    base, sizes = models.mean(dim=0), DATA["mlp/sizes"].tolist()
    metrics = {
        "num_examples": sizes,
        "num_steps": [1, 2, 3, 4, 5, 6],
        "normalizer": [1, 2, 3, 4, 5, 6],
    }
    nova = steelyard.aggregate("fednova", base, models, metrics=metrics)
    assert abs(float(nova.weights.sum()) - 1) > 0.1
    chained = steelyard.aggregate(
        "fednova|gws:epochs=20", base, models, metrics=metrics, probe=probe("mlp", 40)
    )
    alone = steelyard.aggregate(
        "uniform|gws:epochs=20", base, [nova.params], probe=probe("mlp", 40)
    )
    assert_near(chained.report["gamma"], alone.report["gamma"], 1e-9)
    shrunk = aggregate("shrink:gamma=0.8|gws:epochs=20", "mlp", probe("mlp", 40))
    target = aggregate("shrink:gamma=0.8", "mlp", None).params
    alone = steelyard.aggregate("uniform|gws:epochs=20", base, [target], probe=probe("mlp", 40))
    assert_near(shrunk.report["gamma"], alone.report["gamma"], 1e-9)


@pytest.mark.parametrize("server", ["momentum:beta=0.5,lr=0.7", "adam:lr=0.05", "yogi", "adagrad"])
@pytest.mark.parametrize(
    "rule", ["shrink:gamma=0.9", "gws:epochs=5", "fedlaw:epochs=5", "fedawa:gamma=0.9"]
)
def test_other_server_optimizers_act_inside_the_shrinking(rule, server):
    """Over two rounds: gamma times what the optimizer makes of the unshrunk step, and its state knows no gamma."""
    state, plain_state = None, None
    base = clients("mlp").mean(dim=0)
    for number in (1, 2):
        out = aggregate(
            rule, "mlp", probe("mlp", 40), base=base, server=server, state=state, round=number
        )
        gamma = out.report["gamma"]
        weights = out.weights / gamma
        unshrunk = base + weights @ (clients("mlp") - base)
        plain = steelyard.aggregate(
            "uniform", base, [unshrunk], server=server, state=plain_state, round=number
        )  # one client that holds the target
        assert_near(out.params, gamma * plain.params, 1e-9)
        state, plain_state, base = out.state, plain.state, out.params


RULES_BEFORE = [
    "fedavg",
    "median",
    "fedawa_l:layers=[40,43]",
    "guard(fedadp)",
    "nnm(fedadp)",
    "ldawa:warmup=0",
]


@pytest.mark.parametrize("server", ["sgd:lr=0.5", "momentum:beta=0.5", "adam:lr=0.05"])
@pytest.mark.parametrize("rule", RULES_BEFORE)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_shrinking_follows_the_server_optimizer_whatever_the_rule_before_it(rule, server, dtype):
    plain = aggregate(rule, "mlp", None, dtype=dtype, server=server)
    shrunk = aggregate(f"{rule}|shrink:gamma=0.9", "mlp", None, dtype=dtype, server=server)
    assert_near(shrunk.params, 0.9 * plain.params, 1e-9 if dtype == torch.float64 else 1e-5)


def test_a_rule_that_starts_over_forgets_the_shrinking_before_it():
    """L-DAWA ignores its prior after the warm-up, so a server optimizer must not see a factor that is not there."""
    plain = aggregate("ldawa:warmup=0", "mlp", None, server="adam:lr=0.05")
    after = aggregate("shrink:gamma=0.5|ldawa:warmup=0", "mlp", None, server="adam:lr=0.05")
    assert torch.equal(plain.params, after.params)


def test_a_merge_shrinks_after_the_server_optimizer(tmp_path):
    models = clients("mlp")
    base = models.mean(dim=0)
    for name, vector in {"base": base, "a": models[0], "b": models[1]}.items():
        save_file({"w": vector.clone()}, tmp_path / f"{name}.safetensors")
    files = {name: tmp_path / f"{name}.safetensors" for name in ("a", "b")}
    merge = steelyard.Merge(tmp_path / "base.safetensors", files, "uniform|shrink:gamma=0.9")
    merge.run(tmp_path / "out.safetensors", server="sgd:lr=0.5")
    wanted = 0.9 * (base + 0.5 * (models[:2].mean(dim=0) - base))
    assert_near(load_file(tmp_path / "out.safetensors")["w"], wanted, 1e-12)


def test_law_past_its_critical_point_keeps_the_global_learning_rate():
    out = aggregate("law:epochs=3,critical=1,global_lr=0.5", "mlp", probe("mlp", 40))
    assert_near(out.weights, 0.5 * DATA["mlp/sizes"] / DATA["mlp/sizes"].sum(), 1e-12)


def test_too_few_epochs_for_a_snapshot_are_an_error():
    with pytest.raises(SteelyardError, match=r"epochs=12: .*at least 14"):
        steelyard.fedlaw_swa(epochs=12)
    steelyard.fedlaw_swa(epochs=14)


def test_the_papers_order_learns_gamma_first():
    first = aggregate("fedlaw_swa:epochs=20", "mlp", probe("mlp", 40))
    second = aggregate("fedlaw_swa:epochs=20,order=lambda_first", "mlp", probe("mlp", 40))
    assert first.report["gamma"] != second.report["gamma"]
    gamma_alone = aggregate("gws:epochs=10", "mlp", probe("mlp", 40))
    assert_near(first.report["gamma"], gamma_alone.report["gamma"], 1e-12)


def test_averages_of_weights_and_of_logits_differ():
    rule = "fedlaw_swa:epochs=30,swa_lr=0.5,order=lambda_first"
    logits, weights = (
        aggregate(f"{rule},average={what}", "mlp", probe("mlp", 40))
        for what in ("logits", "weights")
    )
    assert max(abs(a - b) for a, b in zip(shares(logits), shares(weights), strict=True)) > 1e-6
    assert sum(shares(weights)) == pytest.approx(1.0)


@pytest.mark.parametrize("rule", ["fedlaw:epochs=5", "fedlaw_swa:epochs=16"])
def test_optimizers_and_their_betas_matter(rule):
    found = [
        aggregate(f"{rule},{option}", "mlp", probe("mlp", 40)).report["gamma"]
        for option in ("optimizer=adam", "optimizer=sgd", "betas=[0.9,0.999]")
    ]
    assert len(set(found)) == 3
    with pytest.raises(SteelyardError, match="betas"):
        steelyard.fedlaw(betas=(0.9, 1.5))


def test_the_product_of_gammas_is_bounded_and_said():
    state, product = None, 1.0
    free = aggregate("gws:epochs=20,lr=0.05", "mlp", probe("mlp", 40)).report["gamma"]
    sign = 1 if free < 1 else -1
    assert sign == 1, "the data of this test shrinks"
    floor = free**1.5
    for number in (1, 2, 3):
        out = aggregate(
            f"gws:epochs=20,lr=0.05,floor={floor}",
            "mlp",
            probe("mlp", 40),
            state=state,
            round=number,
        )
        state, product = out.state, product * out.report["gamma"]
        assert_near(out.report["gamma_product"], product, 1e-12)
        assert product >= floor - 1e-12
        assert (out.report["gamma_bounded"] is None) == (number == 1)
    assert_near(product, floor, 1e-12)


def test_law_stops_at_the_critical_point_and_stays_stopped():
    never = aggregate("law:epochs=3,critical=-1", "mlp", probe("mlp", 40))
    assert shares(never) != (DATA["mlp/sizes"] / DATA["mlp/sizes"].sum()).tolist()
    at_once = aggregate("law:epochs=3,critical=1", "mlp", probe("mlp", 40))
    assert_near(at_once.weights, DATA["mlp/sizes"] / DATA["mlp/sizes"].sum(), 1e-12)
    later = aggregate(
        "law:epochs=3,critical=-1", "mlp", probe("mlp", 40), state=at_once.state, round=2
    )
    assert_near(later.weights, at_once.weights, 1e-12)
    with pytest.raises(SteelyardError, match=r"critical=.*law"):
        steelyard.fedlaw(critical=0.0)


def test_a_rule_without_proxy_data_is_refused_with_the_cure():
    with pytest.raises(SteelyardError, match=r"law needs proxy data.*probe=steelyard.Probe"):
        aggregate("law", "mlp", None)
    with pytest.raises(SteelyardError, match="feddf needs proxy data"):
        aggregate("fedavg", "mlp", None, refine="feddf")


def test_layers_are_refused():
    with pytest.raises(
        SteelyardError, match=r"per_layer.fedlaw.*only the whole model has: use fedlaw"
    ):
        steelyard.per_layer(steelyard.fedlaw())


def test_a_merge_of_files_has_no_proxy_data(tmp_path):
    with pytest.raises(SteelyardError, match="fedlaw needs proxy data"):
        steelyard.Merge(tmp_path / "base.safetensors", {}, "guard(fedlaw)")


@pytest.mark.parametrize(
    "rule", ["fedlaw:epochs=3", "gws:epochs=3", "law:epochs=3", "fedlaw_swa:epochs=14"]
)
@pytest.mark.parametrize("scale", [1e308, np.nan])
def test_a_loss_that_is_not_finite_is_named_with_the_round(rule, scale):
    def run(rule):
        wild = probe("mlp", 40)
        wild.inputs = wild.inputs * scale
        return aggregate(rule, "mlp", wild, round=7)

    with pytest.raises(
        SteelyardError, match=r"proxy loss is NaN or infinite .* in round 7: lower .* \(local.lr\)"
    ):
        run(rule)
    plain = run("fedavg")
    held = run(f"if_finite({rule})")
    assert "non-finite" in held.report["fallback"]
    assert torch.equal(held.params, plain.params)
    guarded = run(f"guard({rule}):weight_cap=9,metric_cap=1e9,size_cap=1e9,clip=9")
    assert "non-finite" in guarded.report["fallback"]
    assert_near(guarded.weights, plain.weights, 1e-12)


def test_behind_a_guard_the_loss_is_of_the_guarded_updates():
    """A client with a zero update is set aside, and a long update is clipped: as if they had come so."""
    models, sizes = clients("mlp"), DATA["mlp/sizes"].tolist()
    base = models.mean(dim=0)
    updates = models - base
    updates[0] = 0.0
    updates[1] *= 50
    norms = updates[1:].norm(dim=1)
    median = float(np.median([0.0, *norms.tolist()]))
    clipped = updates[1:] * torch.clamp(2.0 * median / norms, max=1.0)[:, None]
    rule = "fedlaw:epochs=6,lr=0.05"
    wanted = steelyard.aggregate(
        rule, base, base + clipped, metrics={"num_examples": sizes[1:]}, probe=probe("mlp", 40)
    )
    found = steelyard.aggregate(
        f"guard({rule}):weight_cap=6,metric_cap=1e9,size_cap=1e9,clip=2",
        base,
        base + updates,
        metrics={"num_examples": sizes},
        probe=probe("mlp", 40),
    )
    assert_near(shares(found), shares(wanted), 1e-9)
    assert_near(found.report["gamma"], wanted.report["gamma"], 1e-9)


@pytest.mark.parametrize(
    ("rule", "epochs"),
    [("fedlaw:epochs=60", 60), ("gws:epochs=3", 3), ("fedlaw_swa:epochs=60", 60)],
)
def test_training_curves_on_request(rule, epochs):
    proxy = probe("mlp", 16)
    plain = aggregate(rule, "mlp", proxy)
    traced = aggregate(f"{rule},trace=true", "mlp", probe("mlp", 16))
    assert "trace" not in plain.report
    assert torch.equal(plain.params, traced.params)
    trace = traced.report["trace"]
    assert trace["epoch"][0] == 1
    assert trace["epoch"][-1] == epochs
    assert len(trace["epoch"]) == len(trace["loss"]) == len(trace["gamma"]) == min(epochs, 25)
    assert trace["gamma"][-1] == pytest.approx(plain.report["gamma"], rel=1e-4)
    assert sum(values[-1] for values in trace["lambda"].values()) == pytest.approx(1, abs=1e-4)
    if not rule.startswith(
        "fedlaw_swa"
    ):  # there the mean of the snapshots is used, not the last point
        assert [values[-1] for values in trace["lambda"].values()] == pytest.approx(
            shares(plain), rel=1e-4
        )
    assert trace["loss"][-1] < trace["loss"][0]
