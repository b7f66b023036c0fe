"""Rules and refiners on proxy data in the simulator."""

import numpy as np
import pytest
import torch

import steelyard
from steelyard.core._errors import SteelyardError
from steelyard.data import Dataset, load
from steelyard.data._proxy import Proxy, balanced_order
from steelyard.sim._experiment import read_experiment

QUICK = {"rounds": 3, "partition": "dirichlet:0.5", "clients": 4, "seed": 3}


def run(algorithm, model="mlp:hidden=[8]", **options):
    options = {"proxy": {"per_class": 3}, "executor": "serial", **QUICK, **options}
    return steelyard.simulate(algorithm, "digits", model, **options)


ALGORITHMS = {
    "fedlaw": "fedlaw:epochs=4",
    "gws": "gws:epochs=4",
    "law": "law:epochs=4,critical=0",
    "fedlaw_swa": "fedlaw_swa:epochs=14",
    "fltrust": "fltrust:epochs=2",
    "server_ft": steelyard.Algorithm("fedavg", refine="server_ft:preset=official,epochs=2"),
    "feddf": steelyard.Algorithm("fedavg", refine="feddf:epochs=2"),
    "fedbe": steelyard.Algorithm("fedavg", refine="fedbe:epochs=2,samples=2"),
    "all": steelyard.Algorithm(
        "fedlaw:epochs=2", client="fedprox", server="momentum", refine="server_ft"
    ),
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_same_bits_on_any_executor_and_after_a_pause(name, tmp_path):
    algorithm = ALGORITHMS[name]
    whole = run(algorithm)
    forked = run(algorithm, executor="process", workers=2)
    assert whole.comparable() == forked.comparable()
    run(algorithm, rounds=2, out=tmp_path / "run")
    resumed = run(algorithm, out=tmp_path / "run", resume=True)
    assert resumed.comparable() == whole.comparable()
    assert all(torch.equal(resumed.params[key], whole.params[key]) for key in whole.params)


@pytest.mark.parametrize("model", ["resnet:depth=8", "mnist_cnn"])
def test_networks_with_convolutions_and_batchnorm(model):
    data = (
        torch.rand(60, 1, 28, 28, generator=torch.Generator().manual_seed(0)),
        torch.arange(60) % 10,
    )
    options = {
        "rounds": 2,
        "clients": 3,
        "partition": "iid",
        "proxy": {"per_class": 2},
        "test": data,
        "seed": 0,
    }
    serial = steelyard.simulate("fedlaw:epochs=2", data, model, executor="serial", **options)
    forked = steelyard.simulate(
        "fedlaw:epochs=2", data, model, executor="process", workers=2, **options
    )
    assert serial.comparable() == forked.comparable()
    assert serial.records[-1]["gamma"] != 1.0


def test_a_simulated_round_is_a_call_of_aggregate():
    """gamma and lambda of round 1, from the clients' models and a probe of one's own."""
    history = run("fedlaw:epochs=3", rounds=1)
    train, test = load("digits")
    proxy, rest, _ = Proxy(per_class=3).split(test, QUICK["seed"])
    assert (len(proxy), len(rest)) == (30, len(test) - 30)
    federation = steelyard.Federation.partitioned(train, rest, "dirichlet:0.5", 4, QUICK["seed"])
    again = steelyard.simulate(
        "fedlaw:epochs=3",
        federation,
        "mlp:hidden=[8]",
        proxy={"data": (proxy.inputs, proxy.targets)},
        rounds=1,
        seed=QUICK["seed"],
        executor="serial",
    )
    assert again.records[0]["gamma"] == history.records[0]["gamma"]
    assert again.records[0]["accuracy"] == history.records[0]["accuracy"]


def test_every_algorithm_is_tested_on_the_same_rest():
    """Also those that do not look at the proxy data: fairness, as the authors have it."""
    with_proxy, without = run("fedavg", rounds=1), run("fedavg", rounds=1, proxy=None)
    assert with_proxy.records[0]["norms"] == without.records[0]["norms"]
    assert with_proxy.accuracy != without.accuracy


def test_without_proxy_data_the_run_does_not_start():
    for algorithm, name in (("guard(fedlaw)", "fedlaw"), (ALGORITHMS["feddf"], "feddf")):
        with pytest.raises(
            SteelyardError, match=rf"{name} looks at proxy data.*--set proxy.per_class=10"
        ):
            run(algorithm, proxy=None)


def test_configuration():
    config = read_experiment(
        None, ["weighting=fedlaw:epochs=2", "proxy.per_class=2", "refine=server_ft", "rounds=1"]
    )
    history = steelyard.simulate(config)
    assert history.name == "fedlaw:epochs=2 refine=server_ft"
    with pytest.raises(SteelyardError, match=r"did you mean 'proxy.per_class'"):
        read_experiment(None, ["per_class=2"])
    with pytest.raises(SteelyardError, match=r"refine='feddff'.*did you mean 'feddf'"):
        read_experiment(None, ["refine=feddff"])


def test_quotas_and_the_long_tail():
    assert Proxy(per_class=10).quotas(3) == [10, 10, 10]
    assert Proxy(per_class=100, rho=10).quotas(3) == [100, 31, 10]
    labels = torch.tensor([0] * 50 + [1] * 20 + [2] * 30)
    pool = Dataset(torch.arange(100.0)[:, None], labels, 3)
    proxy, rest, warning = Proxy(per_class=20, rho=4).split(pool, 0)
    assert torch.bincount(proxy.targets).tolist() == [20, 10, 5]
    assert warning is None
    together = torch.cat([proxy.inputs, rest.inputs]).flatten()
    assert sorted(together.tolist()) == list(range(100))


def test_a_quota_that_cannot_be_met_is_said():
    labels = torch.tensor([0] * 50 + [1] * 2)
    proxy, _, warning = Proxy(per_class=5).split(Dataset(torch.zeros(52, 1), labels, 2), 0)
    assert torch.bincount(proxy.targets).tolist() == [5, 2]
    assert warning == "proxy data is short: class 1 has 2 of 5; use a smaller proxy.per_class"

    class Hears(steelyard.Callback):
        said = ""

        def warn(self, message):
            Hears.said = message

    _, test = load("digits")
    few = {"per_class": 4, "data": (test.inputs[:15], test.targets[:15])}
    run("fedavg", rounds=1, proxy=few, callbacks=[Hears()])
    assert "proxy data is short" in Hears.said
    for deaf in ([], [steelyard.Callback()]):
        with pytest.warns(RuntimeWarning, match="proxy data is short"):
            run("fedavg", rounds=1, proxy=few, callbacks=deaf)


def test_balanced_order_draws_every_class_alike():
    targets = torch.tensor([0] * 12 + [1] * 3)
    order = balanced_order(targets, np.random.default_rng(0))
    drawn = targets[torch.from_numpy(order)]
    assert len(order) == 15
    assert sorted(torch.bincount(drawn).tolist()) == [7, 8]
    assert set(order[(drawn == 1).numpy()].tolist()) == {12, 13, 14}
    history = run("fedlaw:epochs=2", proxy={"per_class": 6, "rho": 3, "balanced": True}, rounds=1)
    plain = run("fedlaw:epochs=2", proxy={"per_class": 6, "rho": 3}, rounds=1)
    assert history.records[0]["gamma"] != plain.records[0]["gamma"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"per_class": 0}, "per_class"),
        ({"rho": 2.0}, "give per_class"),
        ({"per_class": 2, "bn": "batch"}, "bn"),
        ({"perclass": 2}, "did you mean 'per_class'"),
        ({"per_class": 10_000}, "takes all 360 test samples"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(SteelyardError, match=message):
        run("fedavg", proxy=options)


def test_corrupted_clients_lose_weight():
    """Two labels swapped at half of the clients: FedLAW's weights see it."""
    train, test = load("digits")
    federation = steelyard.Federation.partitioned(train, test, "iid", 6, 0)
    from steelyard.data import corrupt

    half = corrupt(federation, 0.5, "swap", seed=0)
    changed = [
        bool(
            (
                half.train.targets[torch.from_numpy(a)]
                != federation.train.targets[torch.from_numpy(b)]
            ).any()
        )
        for a, b in zip(half.index, federation.index, strict=True)
    ]
    history = steelyard.simulate(
        "law:epochs=40",
        half,
        "logistic",
        rounds=4,
        proxy={"per_class": 10},
        local={"lr": 0.5, "epochs": 3},
    )
    weights = history.records[-1]["weights"]
    bad = [weights[str(k)] if str(k) in weights else weights[k] for k in range(6) if changed[k]]
    good = [
        weights[str(k)] if str(k) in weights else weights[k] for k in range(6) if not changed[k]
    ]
    assert sum(changed) == 3
    assert max(bad) < min(good)
