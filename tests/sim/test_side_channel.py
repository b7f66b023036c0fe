"""In the simulator, tensors beside the models are checked, and only clients that count are used."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch

import steelyard
from steelyard.core import FeatureTerm, Info, SteelyardError, TensorSpec
from steelyard.core._registry import TERMS
from steelyard.core._server_terms import limit_messages
from steelyard.sim._simulator import Simulation
from tests.sim.runs import clients, net, simulate


class Look(steelyard.Callback):
    """Keeps copies of the server's tensors after each round."""

    def __init__(self):
        self.seen = []

    def round(self, simulation: Simulation, record):
        state = simulation.server.state
        self.seen.append({name: tensor.clone() for name, tensor in state.tensors.items()})


@dataclass(frozen=True)
class Sums(FeatureTerm):
    """Sends the sum of its features, and adds up what arrives; `fault` says what goes wrong."""

    fault: str = ""

    name = "sums"
    info = Info("sums of features")

    def client_tensors(self, classifier):
        return {"sum": TensorSpec((classifier.dim,))}

    def server_tensors(self, classifier):
        return {"total": TensorSpec((classifier.dim,)), "clients": TensorSpec((), torch.int64)}

    def summarize(self, features, targets, classifier, at):
        total = features.sum(dim=0)
        if self.fault == "nan" and len(targets) == 23:  # the second client
            total = total * math.nan
        if self.fault == "shape":
            total = total[:-1]
        return {"sum": total}

    def update_tensors(self, at):
        at.server_tensors["total"].copy_(at.messages["sum"].sum(dim=0))
        if self.fault == "server":
            at.server_tensors["total"].mul_(math.inf)
        at.server_tensors["clients"].add_(len(at.messages["sum"]))


@pytest.fixture(autouse=True)
def registered():
    TERMS.register(Sums)
    yield
    del TERMS._entries[Sums.name]


def run(fault="", data=None, weighting="fedavg", **options):
    look = Look()
    algorithm = steelyard.Algorithm(weighting, client=Sums(fault))
    history = simulate(algorithm, data, callbacks=[look], **{"rounds": 2, **options})
    return history, look.seen


def test_every_client_of_the_cohort_counts_once():
    _, seen = run()
    assert [int(tensors["sums.clients"]) for tensors in seen] == [6, 12]
    _, seen = run(participation={"share": 0.5, "train_all": True})
    assert [int(tensors["sums.clients"]) for tensors in seen] == [3, 6]


def test_a_client_that_sends_nan_is_quarantined_by_name():
    history, seen = run("nan")
    for record in history.records:
        assert list(record["quarantined"]) == ["client-1"]
        assert "client-1" not in record["weights"]
    assert int(seen[0]["sums.clients"]) == 5
    data = clients()
    del data["client-1"]
    _, expected = run(data=data)
    assert torch.equal(seen[0]["sums.total"], expected[0]["sums.total"])


def test_a_term_that_does_not_keep_its_declaration_is_an_error():
    with pytest.raises(SteelyardError, match=r"sums\.sum.*\[7\].*\[8\]"):
        run("shape")


def test_tensors_that_overflow_stay_as_they_were():
    with pytest.warns(RuntimeWarning, match="client=sums"):
        history, seen = run("server")
    assert all(not record["void"] for record in history.records)
    assert int(seen[-1]["sums.clients"]) == 0
    assert not seen[-1]["sums.total"].any()


def test_a_void_round_changes_nothing():
    history, seen = run(rounds=8, participation={"dropout": 0.5, "quorum": 3, "patience": 9})
    voids = [bool(record["void"]) for record in history.records]
    assert 0 < sum(voids) < 8
    before = 0
    for is_void, record, tensors in zip(voids, history.records, seen, strict=True):
        count = int(tensors["sums.clients"])
        assert count - before == (0 if is_void else len(record["weights"]))
        before = count


@pytest.mark.parametrize("client", ["fedproto", "fpl:temperature=0.5"])
def test_a_diverging_client_leaves_the_prototypes_alone(client):
    data = clients()
    inputs, targets = data["client-2"]
    data["client-2"] = (inputs * 1e38, targets)
    look = Look()
    algorithm = steelyard.Algorithm("fedavg", client=client)
    history = simulate(algorithm, data, rounds=2, callbacks=[look])
    assert all(list(record["quarantined"]) == ["client-2"] for record in history.records)
    assert all(tensor.isfinite().all() for tensors in look.seen for tensor in tensors.values())


@pytest.mark.parametrize("kind", ["mlp", "batch_norm", "dropout"])
@pytest.mark.parametrize("client", ["fedproto", "fpl:temperature=0.5", "creff:features=3,epochs=2"])
def test_the_tensors_have_the_same_bits_on_any_number_of_workers(client, kind):
    seen = []
    for options in (
        {},
        {"executor": "process", "workers": 1},
        {"executor": "process", "workers": 3},
    ):
        look = Look()
        algorithm = steelyard.Algorithm("fedawa:steps=2", client=client)
        simulate(algorithm, model=net(kind), rounds=3, callbacks=[look], **options)
        seen.append(look.seen)
    assert seen[0][0]
    for other in seen[1:]:
        for tensors, others in zip(seen[0], other, strict=True):
            assert all(torch.equal(tensor, others[name]) for name, tensor in tensors.items())


# The limits of a guard.


def test_usual_messages_keep_their_bits():
    g = torch.Generator().manual_seed(0)
    message = torch.randn(6, 4, 50, generator=g)
    message[2, 1] = 0
    assert limit_messages(message, 2.0) is message
    counts = torch.tensor([[4, 0], [3, 2], [5, 5]])
    assert limit_messages(counts, 2.0) is counts


def test_long_parts_are_shortened_class_by_class():
    message = torch.ones(5, 3, 4)
    message[:, 1] *= 100  # a class of long features
    message[4, 0] = 1e6
    message[4, 2] = 1.5
    limited = limit_messages(message, 2.0)
    norms = torch.linalg.vector_norm(limited, dim=2)
    assert norms[4].tolist() == pytest.approx([4, 200, 3])
    assert torch.equal(limited[:4], message[:4])


def test_a_class_of_one_client_is_compared_with_the_others():
    message = torch.zeros(5, 3, 4)
    message[:, :2] = 1
    message[4, 2] = 1e9
    limited = limit_messages(message, 2.0)
    assert torch.linalg.vector_norm(limited[4, 2]) == pytest.approx(4)


def test_counts_beyond_the_limit_are_reduced_and_stay_positive():
    counts = torch.tensor([[5, 5], [4, 6], [10, 0], [10**12, 1]])
    limited = limit_messages(counts, 2.0)
    assert torch.equal(limited[:3], counts[:3])
    assert limited[3].sum() <= 2 * np.median([10, 10, 10, 10**12]) + 1
    assert limited[3].min() == 1
