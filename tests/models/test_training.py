"""Every network of the papers trains a step under every executor, with the same bits."""

import numpy as np
import pytest
import torch

import steelyard
from steelyard.data import Dataset, Federation
from steelyard.models import build

SIDES = {
    "mlp:hidden=[8],dropout=0.5": 8,
    "logistic": 8,
    "mcmahan_cnn": 8,
    "mcmahan_cnn:padding=false": 16,
    "simple_cnn": 18,
    "fedlaw_lenet": 8,
    "lenet": 16,
    "mnist_cnn": 16,
    "alexnet_cifar": 16,
    "alexnet_fmnist": 28,
    "resnet20": 8,
    "resnet:depth=8,norm=group": 8,
    "wrn56_2": 4,
    "resnet18": 4,
    "resnet18:norm=group": 4,
    "resnet18:norm=fedcos": 4,
    "resnet18:max_pool=true": 8,
    "densenet121": 8,
    "vit": 8,
}


def federation(inputs):
    """Two clients with three samples each, and two samples to test on."""
    data = Dataset(inputs, torch.arange(8) % 3, classes=3)
    return Federation(
        data.take(slice(6)), (0, 1), (np.arange(3), np.arange(3, 6)), data.take(slice(6, 8))
    )


def check(spec, data):
    local = {"epochs": 1, "batch_size": 3, "lr": 0.01}
    options = {"rounds": 1, "local": local, "device": "cpu", "seed": 1, "workers": 2}
    end, again = (
        steelyard.simulate("fedavg", data, spec, executor=executor, **options).params
        for executor in ("serial", "process")
    )
    start = build(spec, tuple(data.train.inputs.shape[1:]), 3, seed=1).state_dict()
    assert {name: value.shape for name, value in end.items()} == {
        name: value.shape for name, value in start.items()
    }
    assert all(
        torch.isfinite(end[name]).all() and torch.equal(end[name], again[name]) for name in end
    )
    weights = [name for name in start if start[name].ndim > 1]
    assert weights
    assert all(not torch.equal(end[name], start[name]) for name in weights)


@pytest.mark.parametrize("spec", SIDES)
def test_images(spec):
    side = SIDES[spec]
    check(
        spec, federation(torch.rand(8, 3, side, side, generator=torch.Generator().manual_seed(0)))
    )


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["wrn56_4", "resnet:depth=110", "resnet:depth=56,norm=group"])
def test_the_largest(spec):
    check(spec, federation(torch.rand(8, 3, 4, 4, generator=torch.Generator().manual_seed(0))))


@pytest.mark.parametrize("spec", ["char_lstm:vocabulary=9", "text_mean:vocabulary=9,embedding=4"])
def test_tokens(spec):
    check(spec, federation(torch.randint(1, 9, (8, 6), generator=torch.Generator().manual_seed(0))))
