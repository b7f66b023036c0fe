"""The training loop and its optimizers, against torch's own and the authors' numbers."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import nn

import steelyard
from steelyard.client import _dense
from steelyard.client._dense import DenseModels
from steelyard.client._flat import FlatModel
from steelyard.client._local import LocalTraining, parse_schedule
from steelyard.client._train import Batches, Training, batches, train
from steelyard.core._errors import SteelyardError
from steelyard.core._term import ClientContext
from tests.golden import arrays, assert_near, tensor

CPU = torch.device("cpu")


def in_order(samples, size, passes=1):
    cuts = [0]
    for p in range(passes):
        cuts += [p * samples + stop for stop in [*range(size, samples, size), samples]]
    return Batches(torch.arange(samples).repeat(passes), tuple(cuts), float(passes))


def flat(module, inputs, loss=nn.functional.cross_entropy):
    return FlatModel(module, loss, inputs, CPU)


def run(model, inputs, targets, drawn, local, terms=(), norms=False, lr=None):
    held = {slot: torch.zeros_like(model.params) for slot in local.slots}
    lr = local.lr if lr is None else lr
    job = Training(
        local, lr, drawn, list(terms), held, torch.zeros(len(drawn), 1), model_free(model), norms
    )
    stored = inputs.flatten(1) if isinstance(model, DenseModels) else model.prepare_inputs(inputs)
    return train(model, stored, targets, job)


def model_free(model):
    return getattr(model, "free", None)


def small_net(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()


OPTIMIZERS = {
    "sgd": (LocalTraining(lr=0.1), lambda p: torch.optim.SGD(p, lr=0.1)),
    "momentum": (
        LocalTraining(lr=0.1, momentum=0.9),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    ),
    "nesterov": (
        LocalTraining(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    ),
    "decay": (
        LocalTraining(lr=0.1, weight_decay=0.1),
        lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1),
    ),
    "adam": (
        LocalTraining(lr=0.01, optimizer="adam", betas=(0.8, 0.9), weight_decay=0.02),
        lambda p: torch.optim.Adam(p, lr=0.01, betas=(0.8, 0.9), weight_decay=0.02),
    ),
}


@pytest.mark.parametrize("clip", [None, 0.3])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_loop_is_torchs_optimizer_on_the_same_batches(name, clip):
    local, make = OPTIMIZERS[name]
    local = dataclasses.replace(local, clip=clip)
    g = torch.Generator().manual_seed(0)
    inputs, targets = (
        torch.randn(20, 6, generator=g).double(),
        torch.randint(0, 3, (20,), generator=g),
    )
    theirs = small_net()
    optimizer = make(theirs.parameters())
    for _ in range(3):
        for start in range(0, 20, 8):
            optimizer.zero_grad()
            nn.functional.cross_entropy(
                theirs(inputs[start : start + 8]), targets[start : start + 8]
            ).backward()
            if clip is not None:
                torch.nn.utils.clip_grad_norm_(theirs.parameters(), clip)
            optimizer.step()
    ours = flat(small_net(), inputs)
    run(ours, inputs, targets, [in_order(20, 8, 3)], local)
    for parameter, expected in zip(ours.module.parameters(), theirs.parameters(), strict=True):
        assert_near(parameter.detach(), expected.detach(), 1e-9)


def test_adam_in_float32_corrects_its_bias_as_exactly_as_torchs():
    g = torch.Generator().manual_seed(0)
    local = LocalTraining(lr=0.01, optimizer="adam")
    theirs = nn.Parameter(torch.zeros(1, 500))
    optimizer = torch.optim.Adam([theirs], lr=0.01)
    ours, held = torch.zeros(1, 500), {slot: torch.zeros(1, 500) for slot in local.slots}
    for step in range(1, 31):
        grad = torch.randn(1, 500, generator=g)
        theirs.grad = grad.clone()
        optimizer.step()
        local.update(ours, grad, held, 0.01, torch.full((1, 1), 7.0), step - 7)
        assert_near(ours, theirs.detach(), 1e-7)


NOVA = {
    "sgd": ({}, ""),
    "mom0.9": ({"momentum": 0.9}, ""),
    "prox0.1": ({}, "fedprox:mu=0.1"),
    "mom0.9_prox0.1": ({"momentum": 0.9}, "fedprox:mu=0.1"),
    "mom0.9_wd1e-2": ({"momentum": 0.9, "weight_decay": 1e-2}, ""),
}


@pytest.mark.parametrize("name", NOVA)
def test_local_steps_and_normaliser_equal_fednovas_optimizer(name):
    data = arrays("fednova")
    options, client = NOVA[name]
    local = LocalTraining(lr=float(data["lr"]), batch_size=1, **options)
    terms = steelyard.parse_terms(client)
    ends, normalizers = [], []
    for k in range(4):
        grads = tensor(data[f"grads{k}"])  # inputs whose mean output has the given gradient
        module = nn.Linear(12, 1, bias=False).double()
        module.weight.data = tensor(data["w0"])[None]
        model = flat(module, grads, lambda outputs, _: outputs.mean())
        start = model.params.clone()
        at = ClientContext(start, local.lr, {}, {}, torch.ones(1, 1))
        drawn = in_order(len(grads), 1)
        run(model, grads, torch.zeros(len(grads)), [drawn], local, [(term, at) for term in terms])
        ends.append(model.params[0].clone())
        normalizers.append(local.work(drawn.steps, local.lr, terms.proximal))
    assert_near(torch.stack(ends), data[f"{name}/local_end"], 1e-9)
    assert_near(normalizers, data[f"{name}/a"], 1e-9)
    rule = "fednova:tau_eff=steps" if "prox" in name else "fednova"
    out = steelyard.aggregate(
        rule,
        tensor(data["w0"]),
        torch.stack(ends),
        metrics={
            "num_examples": data["sizes"],
            "normalizer": normalizers,
            "num_steps": data["taus"],
        },
    )
    assert_near(out.params, data[f"{name}/w_new_official"], 1e-9)


@pytest.mark.parametrize("options", [{}, {"momentum": 0.7}, {"momentum": 0.7, "nesterov": True}])
def test_the_normaliser_counts_gradients_in_the_displacement(options):
    local = LocalTraining(lr=0.05, batch_size=1, **options)
    inputs = torch.ones(6, 1).double()  # every step has the gradient 1
    model = flat(nn.Linear(1, 1, bias=False).double(), inputs, lambda outputs, _: outputs.mean())
    start = model.params.clone()
    run(model, inputs, torch.zeros(6), [in_order(6, 1)], local)
    assert_near((start - model.params).item(), 0.05 * local.work(6, 0.05, 0.0), 1e-12)


@pytest.mark.parametrize("name", ["SGD", "FedProx", "FedNova"])
def test_gradient_norms_equal_criticalfls(name):
    data = arrays("criticalfl_fgn")
    inputs, targets = tensor(data["X"]), torch.from_numpy(data["y"]).long()
    module = nn.Linear(5, 3).double()
    module.weight.data, module.bias.data = tensor(data["W"]), tensor(data["b"])
    local = LocalTraining(
        lr=float(data["lr"]),
        momentum=0.9,
        weight_decay=float(data["wdecay"]),
        clip=10.0,
        norm_decay=name != "SGD",
    )
    model = flat(module, inputs)
    terms = steelyard.parse_terms("fedprox:mu=0.001" if name == "FedProx" else None)
    at = ClientContext(model.params.clone(), local.lr, {}, {}, torch.ones(1, 1))
    drawn = [in_order(20, int(data["batch"]), int(data["epochs"]))]
    norm = run(model, inputs, targets, drawn, local, [(term, at) for term in terms], norms=True)
    assert_near(norm[0], data[f"{name}/gradnorm"], 1e-9)
    assert_near(module.weight.detach(), data[f"{name}/W_after"], 1e-9)


def dense_module(seed=0, bias=True):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(12, 9, bias=bias),
            nn.ReLU(),
            nn.Sequential(nn.Linear(9, 7), nn.ReLU()),
            nn.Linear(7, 4),
        )


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("lengths", [(20,), (20, 20), (20, 7, 1)])
@pytest.mark.parametrize(
    "local",
    [
        LocalTraining(lr=0.2),
        LocalTraining(lr=0.2, momentum=0.5),
        LocalTraining(lr=0.2, weight_decay=0.1),
    ],
    ids=["plain", "mom", "wd"],
)
@pytest.mark.parametrize("numpy_limit", [0, math.inf], ids=["torch", "numpy"])
def test_the_closed_form_is_autograds(lengths, local, bias, numpy_limit, monkeypatch):
    monkeypatch.setattr(_dense, "_NUMPY_LIMIT", numpy_limit)
    g = torch.Generator().manual_seed(1)
    inputs, targets = torch.randn(60, 3, 4, generator=g), torch.randint(0, 4, (60,), generator=g)
    reference = flat(dense_module(bias=bias), inputs)
    assert DenseModels.fits(
        reference.module, reference.layout, nn.functional.cross_entropy, CPU, inputs, targets
    )
    stacked = DenseModels(reference.module, reference.layout)
    start = reference.params.clone()
    drawn = []
    for k, n in enumerate(lengths):
        one = in_order(n, 8, 2)
        drawn.append(Batches(one.order + 20 * k, one.edges, one.passes))
    stacked.params[: len(lengths)].copy_(start)
    run(stacked, inputs, targets, drawn, local)
    for k, one in enumerate(drawn):
        reference.params.copy_(start)
        run(reference, inputs, targets, [one], local)
        assert_near(stacked.params[k], reference.params[0], 2e-6)


def test_large_products_are_numpys_on_processors_of_amd_only():
    assert _dense.find_numpy_limit("AMD EPYC 9B45") == math.inf
    for processor in ("Intel(R) Xeon(R) Platinum 8481C", "arm", ""):
        assert 0 < _dense.find_numpy_limit(processor) < 128 * 784 * 200


def test_the_closed_form_is_used_only_where_it_holds():
    inputs = torch.randn(4, 3, 4)

    def fits(module, loss=nn.functional.cross_entropy, inputs=inputs):
        targets = torch.arange(len(inputs)) % 2
        return DenseModels.fits(module, flat(module, inputs).layout, loss, CPU, inputs, targets)

    assert fits(dense_module())
    assert not fits(dense_module(), nn.functional.mse_loss)
    assert not fits(nn.Sequential(nn.Linear(4, 4)))  # acts on the last axis only
    assert fits(nn.Linear(4, 2), inputs=torch.randn(3, 4))
    assert not fits(nn.Sequential(nn.Flatten(), nn.ReLU(), nn.Linear(12, 3)))
    assert not fits(nn.Sequential(nn.Flatten(), nn.Linear(12, 3), nn.ReLU()))
    assert not fits(nn.Sequential(nn.Flatten(), nn.Linear(12, 3), nn.Dropout(), nn.Linear(3, 3)))
    frozen = dense_module()
    frozen[1].weight.requires_grad_(False)
    assert not fits(frozen)
    hooked = dense_module()
    hooked[1].weight.register_hook(lambda grad: 2 * grad)
    assert not fits(hooked)


def test_batches_cover_every_pass_and_cut_steps():
    index = np.arange(100, 150)
    rng = np.random.default_rng
    whole = batches(index, LocalTraining(epochs=2, batch_size=16), rng(0))
    assert whole.edges == (0, 16, 32, 48, 50, 66, 82, 98, 100)
    for half in whole.order.split(50):
        assert sorted(half.tolist()) == index.tolist()
    assert whole.order[:50].tolist() != whole.order[50:].tolist()
    assert batches(index, LocalTraining(epochs=1, batch_size=16, drop_last=True), rng(0)).edges == (
        0,
        16,
        32,
        48,
    )
    assert batches(index, LocalTraining(epochs=1, batch_size=64, drop_last=True), rng(0)).edges == (
        0,
        50,
    )
    cut = batches(index, LocalTraining(steps=6, batch_size=16), rng(0))
    assert cut.edges == (0, 16, 32, 48, 50, 66, 82)
    assert cut.passes == 1.5
    assert len(cut.order) == 82
    assert batches(index, LocalTraining(batch_size=49), rng(0)).edges == (0, 49, 50)
    assert batches(index, LocalTraining(batch_size=49), rng(0), at_least_two=True).edges == (0, 50)
    assert batches(index[:1], LocalTraining(batch_size=49), rng(0), at_least_two=True).edges == (
        0,
        1,
    )


def test_schedules():
    rates = [LocalTraining(lr=2.0, schedule="exponential:0.5").rate(t, 4) for t in (1, 2, 3)]
    assert rates == [2.0, 1.0, 0.5]
    assert [parse_schedule("step:every=2,gamma=0.1").factor(t, 9) for t in (1, 2, 3)] == [
        1.0,
        1.0,
        0.1,
    ]
    assert parse_schedule("cosine").factor(1, 10) == 1.0
    assert parse_schedule("cosine").factor(6, 10) == pytest.approx(0.5)
    assert LocalTraining().rate(17, 20) == 0.1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 1, "steps": 2}, "epochs=1 and steps=2"),
        ({"nesterov": True}, "nesterov=True"),
        ({"optimizer": "adam", "momentum": 0.9}, "momentum=0.9 with optimizer=adam"),
        ({"lr": 0.0}, "lr=0.0"),
        ({"schedule": "exponentail"}, "did you mean 'exponential'"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"train_share": 1.5}, "train_share=1.5"),
    ],
)
def test_senseless_options_are_refused(options, message):
    with pytest.raises(SteelyardError, match=message):
        LocalTraining(**options)


class Tied(nn.Module):
    """Two parameters in the same memory: what one learns, the other learns."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.second.weight = nn.Parameter(self.first.weight.data)

    def forward(self, inputs):
        return self.second(torch.tanh(self.first(inputs)))[:, :3]


def descended(kind):
    """A network, an input for it, and one of its parameters that has no gradient, if it has one."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if kind == "tied":
            return Tied(), torch.randn(12, 6), None
        if kind == "images":
            layers = (
                nn.Conv2d(2, 5, 3),
                nn.ReLU(),
                nn.MaxPool2d(2),
                nn.Dropout(0.3),
                nn.Flatten(),
                nn.Linear(45, 3),
            )
            return nn.Sequential(*layers), torch.randn(12, 2, 8, 8), None
        net = small_net().float()
        name = "1.bias" if kind == "unused" else "0.weight"
        if kind == "unused":
            net[1].register_parameter("bias", nn.Parameter(torch.ones(3)))
        else:
            net[0].weight.requires_grad_(False)
        return net, torch.randn(12, 6), name


@pytest.mark.parametrize("kind", ["images", "tied", "unused", "frozen"])
def test_a_step_without_collecting_gradients_is_the_same_step(kind, monkeypatch):
    monkeypatch.setattr("steelyard.client._flat._LARGE", 1)
    long, short = (flat(descended(kind)[0], descended(kind)[1]) for _ in range(2))
    _, inputs, still = descended(kind)
    targets, index = torch.arange(12) % 3, torch.tensor([3, 1, 7, 8])
    for model in (long, short):
        model.module.train()
    for seed in range(3):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            long.gradient(long.batch(long.prepare_inputs(inputs), index), targets[index])
            long.params.add_(long.grad, alpha=-0.1)
            torch.manual_seed(seed)
            short.descend(short.batch(short.prepare_inputs(inputs), index), targets[index], 0.1)
    assert torch.equal(long.params, short.params)
    first = descended(kind)[0].state_dict()
    moved = {
        name: not torch.equal(value, first[name])
        for name, value in short.module.state_dict().items()
    }
    assert moved == {name: name != still for name in first}


def test_pooling_layers_get_their_gradients_channels_last(monkeypatch):
    """The gradient of a flattened image is not, and would be copied to and fro on its way down."""
    monkeypatch.setattr("steelyard.client._flat._LARGE", 1)
    module, inputs, _ = descended("images")
    model = flat(module, inputs)
    assert model.channels_last
    seen = []
    module[2].register_forward_hook(
        lambda part, given, output: output.register_hook(seen.append) and None
    )
    model.gradient(
        model.batch(model.prepare_inputs(inputs), torch.arange(12)), torch.arange(12) % 3
    )
    assert seen[0].shape == (12, 5, 3, 3)
    assert seen[0].is_contiguous(memory_format=torch.channels_last)
