"""`simulate` on a user's own data sets, spread over clients."""

import datasets
import numpy as np
import pytest
import torch
from torch import nn

import steelyard
from steelyard import Dataset, Federation, simulate
from steelyard.core._errors import SteelyardError
from steelyard.data import corrupt, load
from steelyard.runs._directory import read_config
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
    one, other = (
        simulate(data=data, **OPTIONS | {"partition": name}) for name in ("by_group", "iid")
    )
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
        (
            datasets.DatasetDict({"train": datasets.Dataset.from_dict({"x": [1], "y": [1]})}),
            None,
            r"\['train'\]",
        ),
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
        layers = [
            nn.Linear(4, 6),
            nn.ReLU(),
            nn.Linear(6, 4),
            *([nn.Identity()] if identity else []),
        ]
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
    "soft labels": (
        torch.rand(24, 4, generator=torch.Generator().manual_seed(1)).softmax(dim=1),
        X[:24],
        None,
    ),
    "more labels than outputs": (LABELS + 1, X[:24], None),
    "a negative label": (LABELS - 1, X[:24], None),
    "ignored labels": (torch.where(LABELS == 3, -100, LABELS), X[:24], None),
    "labels in rows": (LABELS[:, None].repeat(1, 3), X[:24], None),
    "whole numbers as inputs": (LABELS, torch.arange(96).reshape(24, 4), None),
    "a hook before": (
        LABELS,
        X[:24],
        lambda net: net[2].register_forward_pre_hook(lambda _, given: 2 * given[0]),
    ),
    "a hook after": (
        LABELS,
        X[:24],
        lambda net: net[0].register_forward_hook(lambda _, given, out: out + 1),
    ),
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


class Empty(torch.utils.data.Dataset):
    """A torch data set without a sample: its shape cannot be known."""

    def __len__(self):
        return 0

    def __getitem__(self, at):
        raise IndexError(at)


NO_DATA = {
    "torch": Empty(),
    "a part of one": torch.utils.data.Subset(Empty(), []),
    "tensors": torch.utils.data.TensorDataset(torch.zeros(0, 9), torch.zeros(0)),
    "pair": (torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64)),
    "pair of lists": ([], []),
    "list": [],
    "Dataset": Dataset(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64)),
    "hugging face": datasets.Dataset.from_dict({"x": [], "y": []}),
}


@pytest.mark.parametrize("form", NO_DATA)
def test_an_empty_data_set_is_a_client_without_data(form):
    data = {"ann": (X[:30], Y[:30]), "empty": NO_DATA[form], "bob": (X[30:], Y[30:])}
    options = {"model": "logistic", "rounds": 2, "executor": "serial", "test": (X, Y)}
    history = simulate(data=data, **options)
    assert len(history) == 2
    for record in history:
        assert set(record["weights"]) == {"ann", "bob"}
        assert record["quarantined"] == {"empty": "has no examples"}
    usual = simulate(data={"ann": data["ann"], "bob": data["bob"]}, **options)
    assert all(torch.equal(history.params[name], value) for name, value in usual.params.items())


@pytest.mark.parametrize("form", NO_DATA)
def test_no_data_at_all_is_refused(form):
    with pytest.raises(SteelyardError, match="2 clients"):
        simulate(data={"ann": NO_DATA[form], "bob": Empty()}, **OPTIONS)
    with pytest.raises(SteelyardError, match="test"):
        simulate(data={"ann": (X, Y)}, test=NO_DATA[form], **OPTIONS)


class Broken(Empty):
    """A data set whose items are what they should not be."""

    def __init__(self, item):
        self.item = item

    def __len__(self):
        return 3

    def __getitem__(self, at):
        if not isinstance(self.item, Exception):
            return self.item
        if at == 1:
            raise self.item
        return X[at], 0


class Stream(torch.utils.data.IterableDataset):
    """A data set without a length."""

    def __iter__(self):
        return iter([(X[0], 0)])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            Broken(KeyError("scan-17.png")),
            "client 'bob': item 1 of the torch data set: KeyError: 'scan-17.png'",
        ),
        (Broken((X[0], "cat")), "client 'bob': targets of item 0: str"),
        (Broken(X[0]), "client 'bob': item 0 of the torch data set is a Tensor"),
        (Stream(), "client 'bob': the torch data set has no length"),
        (None, "client 'bob': data is a NoneType"),
        ((X[:3], Y[:2]), "client 'bob': inputs and targets are"),
        ((X.new_full((3, 4), float("nan")), Y[:3]), "client 'bob': inputs .*NaN"),
        ((X[:3].byte(), Y[:3]), "client 'bob': inputs are uint8"),
        ({"x": X, "y": Y}, "client 'bob': data is a dict"),
        (datasets.Dataset.from_dict({"x": ["a"], "y": [1]}), "client 'bob': column 'x' .*text"),
    ],
)
def test_what_is_wrong_with_a_clients_data_names_the_client(data, message):
    with pytest.raises(SteelyardError, match=message):
        simulate(data={"ann": (X, Y), "bob": data, "empty": Empty()}, **OPTIONS)


@pytest.mark.parametrize("form", FORMS)
def test_a_list_of_two_data_sets_is_ambiguous(form):
    make = FORMS[form]
    parts = [make(X[:20], Y[:20]), make(X[20:40], Y[20:40])]
    with pytest.raises(
        SteelyardError, match=r"list of two data sets.*\(train, test\).*\{0: first, 1: second\}"
    ):
        simulate(data=parts, **OPTIONS)
    with pytest.raises(SteelyardError, match="list of two data sets"):
        simulate(data=[parts[0], None], **OPTIONS)


def test_a_longer_list_is_one_data_set_per_client():
    parts = [(X[at::3], Y[at::3]) for at in range(3)]
    options = {"model": "logistic", "rounds": 2, "executor": "serial", "test": (X, Y)}
    listed = simulate(data=parts, **options)
    assert list(listed.records[0]["weights"]) == ["0", "1", "2"]
    assert same(listed, simulate(data=dict(enumerate(parts)), **options))
    assert list(simulate(data=parts[:1], **options).records[0]["weights"]) == ["0"]
    assert Federation.of(parts[:2]).ids == (0, 1)
    with pytest.raises(SteelyardError, match="0 clients"):
        simulate(data=[], **options)


def test_corrupted_data_is_an_option_of_a_run(tmp_path):
    train, test = load("digits")
    clean = Federation.partitioned(train, test, "iid", 3, 4)
    wrong = corrupt(clean, 2 / 3, "swap:pair=common", seed=4)
    options = {**OPTIONS, "seed": 4, "out": tmp_path / "run"}
    text = "swap:share=0.67,pair=common"
    first = simulate(data="digits", corrupt=text, **options)
    options.pop("out")
    assert first.comparable() == simulate(data=wrong, **options).comparable()
    assert first.comparable() != simulate(data=clean, **options).comparable()
    section = {"clients": 3, "partition": "iid", "corrupt": text}
    others = {"model": "logistic", "rounds": 2, "seed": 4, "execution": {"executor": "serial"}}
    experiment = steelyard.Experiment(data=section, **others)
    assert simulate(experiment).comparable() == first.comparable()

    # The run directory says so, and resumes only the same corruption.
    config = read_config(tmp_path / "run")
    assert config["config"]["data"]["corrupt"] == text
    again = {**options, "rounds": 3, "out": tmp_path / "run", "resume": True}
    with pytest.raises(SteelyardError, match="another one"):
        simulate(data="digits", corrupt="swap:share=0.67", **again)
    assert len(simulate(data="digits", corrupt=text, **again)) == 3


def test_a_run_without_corruption_does_not_store_it(tmp_path):
    simulate(data="digits", **OPTIONS, out=tmp_path / "run")
    assert "corrupt" not in read_config(tmp_path / "run")["config"]["data"]
