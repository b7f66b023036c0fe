"""Every part of the library as a strategy, and what drop-in means."""

import inspect
import subprocess
import sys
from itertools import permutations

import pytest
import torch
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

import steelyard
import steelyard.flower
from steelyard.core._errors import SteelyardError
from steelyard.flower._clients import ClientIds
from steelyard.flower._generate_strategies import find_parts
from steelyard.flower._messages import draw_cohort
from steelyard.runs._directory import read_log
from tests.flower import runs
from tests.sim.runs import clients

PROXY = clients(1, seed=9, size=60)["client-0"]
SHORT = {
    "FedLAW": 4,
    "GWS": 4,
    "LAW": 4,
    "FedLAWSWA": 14,
    "FLTrust": 2,
    "FedDF": 2,
    "FedBE": 2,
    "ServerFT": 2,
}


@pytest.mark.parametrize("name", [name for name in find_parts() if name != "VRLSGD"])
def test_every_strategy_runs(name, tmp_path):
    options = {"fraction_evaluate": 0.0, "min_train_nodes": runs.COUNT, "out": tmp_path, "seed": 3}
    _, entry = find_parts()[name]
    if name in SHORT:
        options |= {"epochs": SHORT[name], "proxy": steelyard.Probe(runs.model("mlp"), *PROXY)}
    if name == "Cap":
        options["max_weight"] = 0.5
    if name == "Shrink":
        options["gamma"] = 0.97
    if name == "FedAdam":
        options["lr"] = 0.01
    made = getattr(steelyard.flower, name)(**options)
    assert isinstance(made, FedAvg)
    result = runs.start(made, rounds=2)
    records = read_log(tmp_path)
    assert [record["void"] for record in records] == [None, None]
    assert all(torch.isfinite(tensor).all() for tensor in runs.params(result).values())
    assert not runs.same(runs.params(result), runs.model("mlp").state_dict())
    assert repr(
        entry.make(**{key: options[key] for key in entry.options if key in options})
    ) in repr(made.algorithm)


def test_flowers_ten_arguments_come_first_in_the_same_order():
    wanted = list(inspect.signature(FedAvg.__init__).parameters.values())[1:]
    for name in find_parts():
        found = list(inspect.signature(getattr(steelyard.flower, name)).parameters.values())
        assert [(p.name, p.default, p.kind) for p in found[:10]] == [
            (p.name, p.default, p.kind) for p in wanted
        ]
        assert {p.kind for p in found[10:]} == {inspect.Parameter.KEYWORD_ONLY}


def test_by_position_as_with_flowers_own():
    made = steelyard.flower.FedAWA(0.5, 0.25, 3, 2, 4, "n", "model", "settings", steps=7)
    stock = FedAvg(0.5, 0.25, 3, 2, 4, "n", "model", "settings")
    assert all(getattr(made, name) == value for name, value in vars(stock).items())
    assert str(made.algorithm) == "guard(fedawa:steps=7)"


def test_the_guard_can_be_left_out():
    assert str(steelyard.flower.FedAWA(guard=False).algorithm) == "fedawa"
    assert str(steelyard.flower.Steelyard("guard(fedadp)").algorithm) == "guard(fedadp)"


def test_a_term_averages_as_its_authors_do():
    assert str(steelyard.flower.FedCos(mu=0.01).algorithm) == "guard(fedavg) client=fedcos:mu=0.01"
    assert str(steelyard.flower.FedDyn().algorithm).startswith("guard(uniform) client=feddyn")
    assert str(steelyard.flower.FedProx().algorithm) == "guard(fedavg) client=fedprox"
    assert (
        str(steelyard.flower.FedProx(weighting="fedawa").algorithm)
        == "guard(fedawa) client=fedprox"
    )


def test_start_is_flowers():
    wanted = list(inspect.signature(FedAvg.start).parameters.items())
    *found, (_, options) = inspect.signature(steelyard.flower.Steelyard.start).parameters.items()
    assert options.kind is options.VAR_KEYWORD  # what newer versions of Flower add
    assert [(name, p.default) for name, p in found] == [
        (name, p.default) for name, p in wanted[: len(found)]
    ]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: steelyard.flower.FedLAW(),
            "fedlaw needs proxy data: pass proxy=",
        ),
        (lambda: steelyard.flower.FedDF(), "feddf needs proxy data"),
        (
            lambda: steelyard.flower.VRLSGD(),
            "on Flower they keep them themselves: use client=scaffold",
        ),
        (lambda: steelyard.flower.FedAWA(stepz=3), "unexpected keyword argument 'stepz'"),
        (lambda: steelyard.flower.Steelyard("fedawaa"), "did you mean"),
    ],
)
def test_what_is_refused(make, said):
    with pytest.raises((SteelyardError, TypeError), match=said):
        make()


def test_unknown_names_list_what_there_is():
    with pytest.raises(AttributeError, match=r"has no 'FedNope'; its strategies are .*FedAWA"):
        _ = steelyard.flower.FedNope
    assert {"FedAWA", "FedAdp", "FedLAW", "PA3Fed", "FedCos", "client"} <= set(
        dir(steelyard.flower)
    )


def test_flower_is_imported_when_it_is_used():
    code = "import sys, steelyard, steelyard.flower; print('flwr' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_without_flower_the_cure_is_named(monkeypatch):
    code = (
        "import sys; sys.modules['flwr'] = None\nimport steelyard.flower\n"
        "try:\n steelyard.flower.FedAWA\nexcept steelyard.SteelyardError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "steelyard.flower needs Flower: pip install 'steelyard[flower]'"


def test_inside_flowers_differential_privacy(tmp_path):
    inner = runs.strategy("fedavg", out=None)
    wrapped = DifferentialPrivacyServerSideFixedClipping(
        inner, noise_multiplier=0.0, clipping_norm=1e9, num_sampled_clients=runs.COUNT
    )
    plain = runs.params(runs.start(runs.strategy("fedavg")))
    result = runs.params(runs.start(wrapped))
    assert all(torch.allclose(plain[name], result[name], atol=1e-5) for name in plain)


@pytest.mark.parametrize("name", ["SCAFFOLD", "FedDyn"])
def test_terms_with_a_half_at_the_server_are_refused_there(name):
    inner = getattr(steelyard.flower, name)(fraction_evaluate=0.0)
    wrapped = DifferentialPrivacyServerSideFixedClipping(
        inner, noise_multiplier=0.1, clipping_norm=1.0, num_sampled_clients=runs.COUNT
    )
    with pytest.raises(
        SteelyardError,
        match=r"does not work inside another strategy",
    ):
        runs.start(wrapped)


def test_partial_participation_is_drawn_from_the_seed(tmp_path):
    cohorts = []
    for run in range(2):
        made = runs.strategy(
            "fedavg", fraction_train=0.4, min_train_nodes=2, out=tmp_path / str(run)
        )
        runs.start(made, rounds=6)
        cohorts.append([set(record["weights"]) for record in read_log(tmp_path / str(run))])
    assert all(len(cohort) == 2 for cohort in cohorts[0])
    assert len({frozenset(cohort) for cohort in cohorts[0]}) > 1
    assert cohorts[0][1:] == cohorts[1][1:]


def test_a_cohort_is_drawn_by_clients_ids_not_by_nodes():
    drawn = set()
    for nodes in permutations((5, 7, 9, 11)):
        names = ClientIds(
            "partition-id", dict(zip(nodes, range(4), strict=True))
        )  # node ids are another draw in every run
        for listed in (nodes, nodes[::-1]):
            drawn.add(
                tuple(
                    names.of(node) for node in draw_cohort(list(listed), 2, names, seed=3, number=4)
                )
            )
    assert len(drawn) == 1
