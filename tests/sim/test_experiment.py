"""`Experiment`: one tree of options for Python, files and run directories."""

import json
from contextlib import suppress
from dataclasses import fields, replace

import numpy as np
import pytest
import torch

import steelyard
from steelyard import Algorithm, Data, Execution, Experiment, LocalTraining, SteelyardError
from steelyard.core._options import list_keys, list_sections
from steelyard.runs._directory import read_config
from steelyard.sim._experiment import read_experiment, set_key

# Values of keys that are texts or lists; for numbers and switches one is found.
OTHER = {
    "weighting": "fedadp",
    "client": "fedprox:mu=0.1",
    "server": "momentum",
    "broadcast": "fedmut",
    "refine": "feddf",
    "lora": "svd",
    "model": "logistic",
    "loss": "mse",
    "monitor": "loss",
    "mode": "min",
    "metrics": ["loss"],
    "data.name": "mnist",
    "data.partition": "iid",
    "data.corrupt": "swap:share=0.25",
    "data.dir": "somewhere",
    "local.schedule": "cosine",
    "local.optimizer": "adam",
    "local.betas": [0.5, 0.9],
    "local.augment": "crop_flip",
    "proxy.bn": "frozen",
    "executor": "serial",
    "device": "cpu",
    "record": "gram",
    "shadow": ["fedadp"],
}
CANDIDATES = (True, False, 3, 0.25, 2.5)
# Options that need another one, which is set too.
TOGETHER = {"local.nesterov": ("local.momentum", 0.9), "proxy.rho": ("proxy.per_class", 10)}
KEYS = list(list_keys(Experiment))


def read(path, value):
    """The option at `path` of an experiment that has only this key."""
    raw = {}
    for key, text in ((path, value), *([TOGETHER[path]] if path in TOGETHER else [])):
        set_key(raw, f"{key}={json.dumps(text)}")
    return raw, Experiment.from_dict(raw)


def find(experiment, path):
    section, _, name = path.rpartition(".")
    if section:
        return getattr(getattr(experiment, section), name)
    holder = experiment if hasattr(experiment, name) else experiment.execution
    return getattr(holder, name)


def find_other(key):
    """A value of this key that is allowed and not its default."""
    if key.path in OTHER:
        return OTHER[key.path]
    for value in CANDIDATES:
        with suppress(SteelyardError):
            if value != key.field.default:
                read(key.path, value)
                return value
    raise AssertionError(f"{key.path}: add a value to OTHER")


@pytest.mark.parametrize("key", KEYS, ids=[key.path for key in KEYS])
def test_every_key_of_a_file_is_a_field_and_comes_back(key):
    value = find_other(key)
    _, experiment = read(key.path, value)
    found = find(experiment, key.path)
    assert (list(found) if isinstance(found, tuple) else found) == value
    assert Experiment.from_dict(json.loads(json.dumps(experiment.to_dict()))) == experiment
    assert experiment != Experiment()


def test_a_stored_configuration_is_enough_to_resume():
    stored = replace(Experiment(), seed=3, local={"batch_seed": 2}).to_stored()
    assert Experiment.from_dict(stored) == replace(Experiment(), seed=3, local={"batch_seed": 2})
    # Keys that older runs do not have, and keys that change no number.
    plain = Experiment().to_stored()
    assert {"loss", "monitor", "mode", "executor", "workers", "checkpoint_pace"} & set(
        plain
    ) == set()
    assert {"augment", "batch_seed"} & set(plain["local"]) == set()


@pytest.mark.parametrize(
    ("raw", "named"),
    [
        ({"rounds": 0}, "rounds=0"),
        ({"rounds": True}, "rounds=True"),
        ({"rounds": 1.0}, "rounds=1.0"),
        ({"local": {"lr": "fast"}}, "local.lr='fast'"),
        ({"local": {"nesterov": 1}}, "local.nesterov=1"),
        ({"local": {"epochs": 1, "steps": 2}}, "local.epochs=1 and steps=2"),
        ({"local": 3}, "local = 3"),
        ({"data": {"partition": 3}}, "data.partition=3"),
        ({"data": {"corrupt": 0.5}}, "data.corrupt=0.5"),
        ({"data": {"corrupt": "swap:share=2"}}, "share=2"),
        ({"data": {"corrupt": "melt"}}, "unknown corruption 'melt'"),
        ({"data": {"test": 3}}, "data.test"),
        ({"metrics": "loss"}, "metrics='loss'"),
        ({"execution": {"workers": 2}}, "execution"),
        ({"seed": {"a": 1}}, "seed="),
        ({"client": "vrlsgd", "local": {"optimizer": "adam"}}, "client=vrlsgd"),
    ],
)
def test_mistakes_in_a_file_are_named_with_their_place(raw, named):
    with pytest.raises(SteelyardError) as caught:
        Experiment.from_dict(raw, "mine.toml")
    assert str(caught.value).startswith("mine.toml: ")
    assert named in str(caught.value)


def test_the_short_form_is_the_same_experiment(tmp_path):
    short = steelyard.simulate(
        Algorithm("fedadp", client="fedprox"),
        "digits",
        "logistic",
        rounds=2,
        clients=3,
        partition="iid",
        seed=2,
        local={"lr": 0.05},
        executor="serial",
        out=tmp_path / "short",
    )
    experiment = Experiment(
        "fedadp",
        client="fedprox",
        model="logistic",
        rounds=np.int64(2),
        seed=2,
        data=Data("digits", "iid", 3),
        local=LocalTraining(lr=0.05),
        execution=Execution(executor="serial"),
    )
    long = steelyard.simulate(experiment, out=tmp_path / "long")
    assert short.comparable() == long.comparable()
    configs = [read_config(tmp_path / name) for name in ("short", "long")]
    assert configs[0]["resolved"] == configs[1]["resolved"]
    assert Experiment.from_dict(configs[0]["config"]).algorithm == experiment.algorithm


def test_moved_options_are_named_with_their_new_place():
    for arguments, named in (
        ({"lr": 0.1}, "local={'lr': ...}"),
        ({"ruonds": 3}, "did you mean 'rounds'"),
        ({"workers": 2, "execution": {}}, "execution= and workers="),
        ({"weighting": "fedadp"}, "'weighting'"),
    ):
        with pytest.raises(SteelyardError) as caught:
            steelyard.simulate("fedavg", **arguments)
        assert named in str(caught.value)
    with pytest.raises(SteelyardError, match="rounds= is given beside an Experiment"):
        steelyard.simulate(Experiment(), rounds=3)


def test_objects_are_not_written_to_files(tmp_path):
    data = (torch.randn(20, 4), torch.arange(20) % 2)
    experiment = Experiment(
        model=torch.nn.Linear(4, 2), rounds=1, data={"name": data, "partition": "iid", "clients": 2}
    )
    with pytest.raises(SteelyardError, match="holds objects"):
        experiment.to_dict()
    steelyard.simulate(experiment, out=tmp_path / "run")
    assert "config" not in read_config(tmp_path / "run")


def test_parts_given_as_objects_become_their_text():
    experiment = Experiment(steelyard.fedadp(alpha=3.0), client=steelyard.fedprox(mu=0.5))
    stored = experiment.to_stored()
    assert (stored["weighting"], stored["client"]) == ("fedadp:alpha=3.0", "fedprox:mu=0.5")


def test_every_field_has_a_help_text():
    kinds = [Experiment, *(field.metadata["kind"] for field in list_sections(Experiment).values())]
    for kind in kinds:
        for field in fields(kind):
            (option,) = [value for value in field.metadata.values() if hasattr(value, "help")]
            assert len(option.help) > 5, (kind, field.name)


def test_defaults_of_a_file_are_those_of_python(tmp_path):
    (tmp_path / "empty.toml").write_text("")
    assert read_experiment(tmp_path / "empty.toml") == read_experiment(None) == Experiment()
