"""A test set whose groups have names: the record has the accuracy on each of them."""

from dataclasses import replace

import pytest
import torch

import steelyard
from steelyard.core._errors import SteelyardError
from steelyard.experiments import scores
from tests.sim.runs import clients, net, same, simulate

NAMES = ("clean", "inverted", "empty")


def two_domains(size=1300):
    """More than two shards, domains in turn; the second has inverted inputs."""
    inputs, targets = clients(1, seed=9, size=size)["client-0"]
    groups = torch.arange(size) % 2
    signs = torch.where(groups == 1, -1.0, 1.0)
    return steelyard.Dataset(
        inputs * signs[:, None], targets, classes=3, groups=groups, group_names=NAMES
    )


def run(test, **options):
    return simulate("fedavg", clients(seed=9), test=test, **{"rounds": 3, **options})


def test_it_is_the_accuracy_of_the_model_on_the_samples_of_the_group():
    test = two_domains()
    history = run(test)
    model = net()
    model.load_state_dict(dict(history.params))
    right = model(test.inputs).argmax(dim=1) == test.targets
    found = history.records[-1]["group_accuracy"]
    assert list(found) == ["clean", "inverted"]
    for number, name in enumerate(found):
        assert found[name] == pytest.approx(right[test.groups == number].double().mean().item())
    assert found["clean"] > found["inverted"] + 0.1
    assert history.records[-1]["accuracy"] == pytest.approx(sum(found.values()) / 2)


def test_the_executor_and_the_names_change_nothing_else():
    named = run(two_domains())
    assert same(named, run(two_domains(), executor="process", workers=2))
    plain = run(replace(two_domains(), group_names=()))
    assert all("group_accuracy" not in record for record in plain.records)
    for record, other in zip(named.comparable(), plain.comparable(), strict=True):
        del record["group_accuracy"]
        assert record == other


def test_it_is_recorded_where_the_test_set_is_evaluated():
    history = run(two_domains(), evaluate_every=2, rounds=4)
    assert ["group_accuracy" in record for record in history.records] == [False, True, False, True]


def test_scores_read_it(tmp_path):
    run(two_domains(), out=tmp_path / "run")
    history = steelyard.History.read(tmp_path / "run")
    values = [record["group_accuracy"] for record in history.records]
    score = scores.find_score("mean(group_accuracy.clean,2-3)", [history])
    expected = (values[1]["clean"] + values[2]["clean"]) / 2
    assert score.of(history, None) == pytest.approx(expected)
    everything = scores.find_score("mean(group_accuracy,3-3)", [history]).of(history, None)
    assert everything == pytest.approx(sum(values[2].values()) / 2)


def test_a_task_without_classes_has_none():
    data = {
        name: (inputs, inputs.sum(dim=1, keepdim=True)) for name, (inputs, _) in clients().items()
    }
    inputs = torch.randn(10, 5)
    test = steelyard.Dataset(
        inputs,
        inputs.sum(dim=1, keepdim=True),
        groups=torch.zeros(10, dtype=torch.int64),
        group_names=("all",),
    )
    history = simulate(
        "fedavg", data, torch.nn.Linear(5, 1), test=test, loss="mse", local={"lr": 0.01}, rounds=1
    )
    assert "group_accuracy" not in history.records[0]


@pytest.mark.parametrize(
    ("groups", "names", "word"),
    [
        (None, ("a",), "without groups"),
        ([0, 1], ("a", "a"), "distinct"),
        ([0, 1], ("a", ""), "distinct"),
        ([0, 1], ("a",), "0..1"),
        ([-1, 0], ("a",), "-1..0"),
    ],
)
def test_names_that_do_not_fit_are_refused(groups, names, word):
    numbers = None if groups is None else torch.tensor(groups)
    with pytest.raises(SteelyardError, match=word):
        steelyard.Dataset(
            torch.zeros(2, 3), torch.zeros(2).long(), groups=numbers, group_names=names
        )
