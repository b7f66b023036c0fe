"""`simulate` on a user's own data sets, spread over clients."""

import datasets
import numpy as np
import pytest
import torch
from torch import nn

from steelyard import Dataset, simulate
from steelyard.core.errors import SteelyardError
from tests.sim.runs import same

X = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long() + (X[:, 1] > 0).long()
OPTIONS = {"model": "logistic", "rounds": 2, "clients": 3, "partition": "iid", "executor": "serial"}

FORMS = {
    "pair": lambda x, y: (x, y),
    "arrays": lambda x, y: (x.numpy(), y.numpy()),
    "list": lambda x, y: [x, y],
    "Dataset": lambda x, y: Dataset.of((x, y)),
    "torch": torch.utils.data.TensorDataset,
    "hugging face": lambda x, y: datasets.Dataset.from_dict({"x": x.tolist(), "y": y.tolist()}),
}


@pytest.mark.parametrize("form", FORMS)
def test_train_and_test_in_any_form(form):
    make = FORMS[form]
    usual = simulate(data=(Dataset.of((X[:40], Y[:40])), Dataset.of((X[40:], Y[40:]))), **OPTIONS)
    train, test = make(X[:40], Y[:40]), make(X[40:], Y[40:])
    assert same(usual, simulate(data=(train, test), **OPTIONS))
    assert same(usual, simulate(data=train, test=test, **OPTIONS))
    assert usual.final_accuracy is not None


def test_without_a_test_set():
    assert simulate(data=(X, Y), **OPTIONS).final_accuracy is None
    assert simulate(data=((X, Y), None), **OPTIONS).accuracy == []


def test_the_partition_is_obeyed():
    data = Dataset(X, Y, 3, groups=torch.arange(60) // 20)
    one, other = (simulate(data=data, **OPTIONS | {"partition": name}) for name in ("by_group", "iid"))
    assert not same(one, other)


def test_a_dict_of_any_forms():
    own = {form: (X[at::6], Y[at::6]) for at, form in enumerate(FORMS)}
    options = {"model": "logistic", "rounds": 1, "executor": "serial", "test": (X, Y)}
    mixed = {form: FORMS[form](*pair) for form, pair in own.items()}
    assert same(simulate(data=mixed, **options), simulate(data=own, **options))


@pytest.mark.parametrize(
    ("data", "test", "message"),
    [
        (((X, Y), (X, Y)), (X, Y), "data is a pair .*, and test is given too"),
        (((X, Y), (X, Y), (X, Y)), None, r"data is a tuple of 3: give a pair \(train, test\)"),
        ((X, (X, Y)), None, "data is a Tensor"),
        (3, None, "data is a int: use"),
        (datasets.DatasetDict({"train": datasets.Dataset.from_dict({"x": [1], "y": [1]})}), None, r"\['train'\]"),
        ((np.zeros(3),), None, "data is a tuple: use"),
    ],
)
def test_refused(data, test, message):
    with pytest.raises(SteelyardError, match=message):
        simulate(data=data, test=test, **OPTIONS)


def tried(identity, targets, inputs, hook):
    """The model after two rounds, or what was raised; with an identity the same network trains by autograd."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 4), *([nn.Identity()] if identity else [])]
    module = nn.Sequential(*layers)
    if hook is not None:
        hook(layers)
    data = dict.fromkeys(("ann", "bob"), (inputs, targets))
    try:
        return simulate(data=data, model=module, rounds=2, executor="serial").params
    except SteelyardError as error:
        return str(error).split("\n")[0]


LABELS = torch.arange(24) % 4
ODD = {
    "soft labels": (torch.rand(24, 4, generator=torch.Generator().manual_seed(1)), X[:24], None),
    "more labels than outputs": (LABELS + 1, X[:24], None),
    "a negative label": (LABELS - 1, X[:24], None),
    "ignored labels": (torch.where(LABELS == 3, -100, LABELS), X[:24], None),
    "labels in rows": (LABELS[:, None].repeat(1, 3), X[:24], None),
    "whole numbers as inputs": (LABELS, torch.arange(96).reshape(24, 4), None),
    "a hook before": (LABELS, X[:24], lambda net: net[2].register_forward_pre_hook(lambda _, given: 2 * given[0])),
    "a hook after": (LABELS, X[:24], lambda net: net[0].register_forward_hook(lambda _, given, out: out + 1)),
    "a hook on the way back": (
        LABELS,
        X[:24],
        lambda net: net[2].register_full_backward_hook(lambda _, into, out: (2 * into[0],)),
    ),
    "a hook before the way back": (
        LABELS,
        X[:24],
        lambda net: net[0].register_full_backward_pre_hook(lambda _, out: (2 * out[0],)),
    ),
}


@pytest.mark.parametrize("name", ODD)
def test_a_dense_network_makes_of_odd_data_what_autograd_does(name):
    dense, usual = (tried(identity, *ODD[name]) for identity in (False, True))
    if isinstance(usual, str):
        assert dense == usual
    else:
        assert all(torch.equal(dense[key], value) for key, value in usual.items())
