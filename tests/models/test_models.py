"""The papers' networks: sizes as counted in the authors' code, initialisation, errors."""

import pytest
import torch
from torch import nn

from steelyard.core.errors import SteelyardError
from steelyard.core.text import parse, to_text
from steelyard.models import MODELS, build
from steelyard.models.cnn import SimpleCNN
from steelyard.models.linear import MLP
from steelyard.models.resnet import ResNet
from tests import golden

GREY, COLOUR, DIGIT = (1, 28, 28), (3, 32, 32), (1, 8, 8)


@pytest.mark.parametrize(
    ("spec", "shape", "classes", "counted"),
    [
        ("logistic", GREY, 10, "FedAdp MLR"),
        ("mlp", GREY, 10, "FedLAW/AWA MLP (FMNIST)"),
        ("mlp:hidden=[200]", GREY, 10, "FedCos MLP(784,200,10)"),
        ("mlp:hidden=[100]", GREY, 10, None),
        ("mcmahan_cnn", GREY, 10, "FedAdp CNN, same padding (3136x512 FC)"),
        ("simple_cnn", COLOUR, 10, "FedLAW/AWA CNNCifar10"),
        ("simple_cnn", COLOUR, 100, "FedLAW/AWA CNNCifar100"),
        ("resnet20", COLOUR, 10, "FedLAW/AWA ResNet20 nc=10"),
        ("resnet20", COLOUR, 200, "FedLAW/AWA ResNet20 nc=200"),
        ("resnet:depth=56", COLOUR, 100, "FedLAW/AWA ResNet56 nc=100"),
        ("resnet:depth=110", COLOUR, 10, "FedLAW/AWA ResNet110 nc=10"),
    ],
)
def test_as_many_numbers_as_in_the_authors_code(spec, shape, classes, counted):
    model = build(spec, shape, classes, seed=0)
    found = {
        "params": sum(p.numel() for p in model.parameters()),
        "buffers": sum(b.numel() for b in model.buffers()),
    }
    by_hand = {"params": 784 * 100 + 100 + 100 * 10 + 10, "buffers": 0}
    assert found == (golden.document("param_counts")[counted] if counted else by_hand)


@pytest.mark.parametrize(
    ("spec", "shape"),
    [
        (spec, shape)
        for spec in ("logistic", "mlp", "mcmahan_cnn", "simple_cnn", "resnet20")
        for shape in (DIGIT, GREY, COLOUR, (2, 33, 21))
        if (spec, shape) != ("simple_cnn", DIGIT)  # too small: see below
    ],
)
def test_forward_and_backward(spec, shape):
    model = build(spec, shape, 7, seed=0)
    out = model(torch.rand(3, *shape, generator=torch.Generator().manual_seed(0)))
    assert out.shape == (3, 7)
    out.square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters() if p.ndim > 1)


def test_the_mlp_is_a_plain_sequence():
    kinds = [type(layer) for layer in build("mlp:hidden=[5,4]", GREY, 10, seed=0)]
    assert kinds == [nn.Flatten, nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, nn.Linear]


def test_the_order_of_layers_in_simple_cnn():
    names = [type(layer).__name__ for layer in build("simple_cnn", COLOUR, 10, seed=0)]
    block = ["Conv2d", "ReLU", "MaxPool2d"]
    assert names == [*block, *block, "Conv2d", "ReLU", "Flatten", "Linear", "ReLU", "Linear"]


@pytest.mark.parametrize("entry", list(MODELS), ids=lambda entry: entry.name)
def test_the_seed_alone_decides_and_nothing_global_moves(entry):
    torch.rand(1)
    before = torch.random.get_rng_state()
    first = build(entry.name, COLOUR, 10, seed=3).state_dict()
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.rand(1)
    again, other = (build(entry.name, COLOUR, 10, seed=seed).state_dict() for seed in (3, 4))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize("entry", list(MODELS), ids=lambda entry: entry.name)
def test_options_are_those_a_user_gives(entry):
    assert not {"input_shape", "classes", "seed"} & set(entry.options)


@pytest.mark.parametrize("part", [MLP((3, 2)), MLP(), SimpleCNN(), ResNet(56)])
def test_text_form(part):
    assert parse(to_text(part), MODELS) == part
    assert build(part, COLOUR, 10, seed=0)(torch.zeros(2, *COLOUR)).shape == (2, 10)


@pytest.mark.parametrize(
    ("spec", "low"),
    [("mcmahan_cnn", 4), ("simple_cnn", 18), ("resnet20", 4)],
)
def test_the_smallest_image_that_works(spec, low):
    assert build(spec, (1, low, low), 2, seed=0)(torch.zeros(2, 1, low, low)).shape == (2, 2)
    with pytest.raises(SteelyardError, match=f"needs images of {low}x{low} at least"):
        build(spec, (1, low, low - 1), 2, seed=0)


@pytest.mark.parametrize(
    ("spec", "shape", "classes", "message"),
    [
        ("mcmahan_cnn", (784,), 10, r"input_shape=\(784,\): mcmahan_cnn takes images"),
        ("mlp", (), 10, "use the shape of one sample"),
        ("mlp", (0, 3), 10, "use the shape of one sample"),
        ("mlp", GREY, 0, "classes=0"),
        ("mlp:hidden=200", GREY, 10, r"hidden=200: use a list of widths, e\.g\. \[200,200\]"),
        ("mlp:hidden=[0]", GREY, 10, "hidden=0: use a whole number >= 1"),
        ("mlp:depth=2", GREY, 10, "mlp has no option 'depth'"),
        ("resnet:depth=18", COLOUR, 10, r"depth=18: use 6n \+ 2"),
        ("resnet21", COLOUR, 10, "did you mean 'resnet20'"),
    ],
)
def test_refused(spec, shape, classes, message):
    with pytest.raises(SteelyardError, match=message):
        build(spec, shape, classes, seed=0)
