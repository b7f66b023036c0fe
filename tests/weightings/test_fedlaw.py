"""FedLAW, GWS, LAW and FedLAW-SWA, against the authors' code and against autograd."""

import numpy as np
import pytest
import torch
from torch import nn

import steelyard
from steelyard.core.errors import SteelyardError
from steelyard.weightings.fedlaw_swa import swa_rate
from tests.golden import arrays, assert_near, document

RUNS = {run["tag"]: run for run in document("fedlaw_meta")}
DATA = arrays("fedlaw")


def network(kind, dtype=torch.float64):
    norm = [nn.BatchNorm1d(8)] if kind == "bn" else []
    return nn.Sequential(nn.Linear(6, 8), *norm, nn.ReLU(), nn.Linear(8, 3)).to(dtype)


def probe(kind, batch, dtype=torch.float64, **options):
    inputs, targets = torch.from_numpy(DATA[f"{kind}/proxy_x"]).to(dtype), torch.from_numpy(DATA[f"{kind}/proxy_y"])
    return steelyard.Probe(network(kind, dtype), inputs, targets, batch, shuffle=False, **options)


def official(run):
    """The rule of a run of the authors' code."""
    args = run["args"]
    lr = 0.01 if args["dataset"] == "cifar10" else 0.005
    shared = f"preset=official,epochs={args['server_epochs']},lr={lr},function={args['server_funct']}"
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
        official(run), model(models.mean(dim=0)), [model(row) for row in models], metrics=metrics, probe=proxy
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
    second = aggregate("fedlaw:epochs=5", "mlp", probe("mlp", 16), base=torch.zeros(83, dtype=torch.float64))
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
    values = {name: piece.view(names[name].shape) for name, piece in zip(names, pieces, strict=True)}
    outputs = torch.func.functional_call(proxy.model, values, (proxy.inputs,))
    nn.functional.cross_entropy(outputs, proxy.targets).backward()
    moved = x - lr * x.grad
    wanted = moved**2 / (moved**2).sum() if function == "quad" else moved.softmax(dim=0)
    turned = g - lr * g.grad
    out = aggregate(f"fedlaw:epochs=1,optimizer=sgd,lr={lr},function={function}", "mlp", proxy)
    assert_near(shares(out), wanted.detach(), 1e-12)
    assert_near(out.report["gamma"], (turned**2 if function == "quad" else turned.exp()).item(), 1e-12)


def test_official_quad_starts_uniform_and_paper_at_the_prior():
    uniform = aggregate("fedlaw:preset=official,function=quad,epochs=1,lr=1e-12", "mlp", probe("mlp", 40))
    assert_near(shares(uniform), np.full(6, 1 / 6), 1e-9)
    sizes = DATA["mlp/sizes"]
    prior = aggregate("fedlaw:function=quad,epochs=1,lr=1e-12", "mlp", probe("mlp", 40))
    assert_near(shares(prior), sizes / sizes.sum(), 1e-9)


def test_too_few_epochs_for_a_snapshot_are_an_error():
    with pytest.raises(SteelyardError, match=r"epochs=12: the first snapshot is taken after epoch 6 of 6.*at least 14"):
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
    logits, weights = (aggregate(f"{rule},average={what}", "mlp", probe("mlp", 40)) for what in ("logits", "weights"))
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
        out = aggregate(f"gws:epochs=20,lr=0.05,floor={floor}", "mlp", probe("mlp", 40), state=state, round=number)
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
    later = aggregate("law:epochs=3,critical=-1", "mlp", probe("mlp", 40), state=at_once.state, round=2)
    assert_near(later.weights, at_once.weights, 1e-12)
    with pytest.raises(SteelyardError, match="early stopping is law's"):
        steelyard.fedlaw(critical=0.0)


def test_a_rule_without_proxy_data_is_refused_with_the_cure():
    with pytest.raises(SteelyardError, match=r"law looks at proxy data.*probe=steelyard.Probe"):
        aggregate("law", "mlp", None)
    with pytest.raises(SteelyardError, match="feddf looks at proxy data"):
        aggregate("fedavg", "mlp", None, refine="feddf")


def test_layers_are_refused():
    with pytest.raises(SteelyardError, match=r"per_layer.fedlaw.*only the whole model has: use fedlaw"):
        steelyard.per_layer(steelyard.fedlaw())


def test_a_merge_of_files_has_no_proxy_data(tmp_path):
    with pytest.raises(SteelyardError, match="fedlaw looks at proxy data, and a merge has none"):
        steelyard.Merge(tmp_path / "base.safetensors", {}, "guard(fedlaw)")


@pytest.mark.parametrize("rule", ["fedlaw:epochs=3", "gws:epochs=3", "law:epochs=3", "fedlaw_swa:epochs=14"])
@pytest.mark.parametrize("scale", [1e308, np.nan])
def test_a_loss_that_is_not_finite_is_named_with_the_round(rule, scale):
    def run(rule):
        wild = probe("mlp", 40)
        wild.inputs = wild.inputs * scale
        return aggregate(rule, "mlp", wild, round=7)

    with pytest.raises(SteelyardError, match=r"proxy loss is NaN or infinite .* in round 7: lower .* \(local.lr\)"):
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
    ("rule", "epochs"), [("fedlaw:epochs=60", 60), ("gws:epochs=3", 3), ("fedlaw_swa:epochs=60", 60)]
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
    if not rule.startswith("fedlaw_swa"):  # there the mean of the snapshots is used, not the last point
        assert [values[-1] for values in trace["lambda"].values()] == pytest.approx(shares(plain), rel=1e-4)
    assert trace["loss"][-1] < trace["loss"][0]
