"""`simulate` on a user's own data sets, spread over clients."""

import datasets
import numpy as np
import pytest
import torch

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
    assert usual.accuracy is not None


def test_without_a_test_set():
    assert simulate(data=(X, Y), **OPTIONS).accuracy is None
    assert simulate(data=((X, Y), None), **OPTIONS).accuracy is None


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
