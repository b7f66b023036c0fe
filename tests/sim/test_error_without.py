"""The error of the global model without a client, which clients report for FedCE."""

import pytest
import torch

import steelyard
from steelyard.core._errors import SteelyardError
from tests.sim.runs import Stop, clients, net, same, simulate


class Models(steelyard.Callback):
    """The global model before every round, and what each client trained and weighed in it."""

    def __init__(self):
        self.rounds = []

    def start(self, simulation):
        self.theta = simulation.buffers.theta.clone()

    def round(self, simulation, record):
        buffers = simulation.buffers
        trained = {}
        for row, client in enumerate(record["weights"]):
            trained[client] = self.theta + buffers.matrix[row]
        self.rounds.append((self.theta, trained, record))
        self.theta = buffers.theta.clone()


def error(module, params, inputs, targets):
    """The error of a network with these parameters, in the order of their names."""
    names = sorted(name for name, _ in module.named_parameters())
    state = dict(module.named_parameters())
    position = 0
    with torch.no_grad():
        for name in names:
            size = state[name].numel()
            state[name].copy_(params[position : position + size].view_as(state[name]))
            position += size
        module.eval()
        return (module(inputs).argmax(dim=1) != targets).float().mean().item()


@pytest.mark.parametrize("kind", ["mlp", "dropout"])  # side by side, and one after another
@pytest.mark.parametrize("train_all", [False, True])
def test_the_error_is_that_of_the_global_model_without_the_client(kind, train_all):
    """Where all train and a cohort is drawn, only the cohort is part of the global model."""
    data = clients(4)
    models = Models()
    options = {
        "participation": {"share": 0.75, "train_all": train_all},
        "rounds": 6,
        "local": {"lr": 0.5, "batch_size": 8},
    }
    simulate("fedce", data, net(kind), callbacks=[models], **options)
    last = {}
    compared = set()
    for theta, trained, record in models.rounds:
        for client, reported in record["reported"]["error_without"].items():
            expected = 1.0
            if client in last:
                model, weight = last[client]
                without = (theta - weight * model) / (1 - weight)
                expected = error(net(kind), without, *data[client])
            assert reported == pytest.approx(expected, abs=1e-6)
            compared.add(expected)
        for client, model in trained.items():
            last[client] = (model, record["weights"][client])
    assert len(compared) > 5


def test_weights_follow_the_mean_of_the_errors():
    """The data space alone: updates do not differ in direction, errors do."""
    history = simulate("fedce", clients(3), rounds=5)
    for record in history.records:
        assert sum(record["weights"].values()) == pytest.approx(1)
    half = simulate("fedce:score=none", clients(3), rounds=5)
    assert "reported" not in half.records[0]
    assert history.records[0]["weights"] == pytest.approx(uniform_plus(half.records[0]["weights"]))


def uniform_plus(weights):
    """The weights of a round in which all errors are equal: the mean with equal weights."""
    return {client: (weight + 1 / len(weights)) / 2 for client, weight in weights.items()}


def test_the_validation_part_is_used_if_there_is_one():
    data = clients(3, size=40)
    errors = []
    for share in (1.0, 0.6):
        local = {"lr": 0.5, "batch_size": 8, "train_share": share}
        history = simulate("fedavg", data, metrics=["error_without"], local=local, rounds=3)
        errors.append(list(history.records[2]["reported"]["error_without"].values()))
    # A validation part of 40 * 0.4 = 16 samples, then of 17 and 18.
    for reported, count in zip(errors[1], (16, 17, 18), strict=True):
        assert reported * count == pytest.approx(round(reported * count), abs=1e-3)
    assert errors[0] != errors[1]


def test_a_single_client_has_no_model_without_it():
    history = simulate("fedce", clients(1), rounds=3)
    assert [record["reported"]["error_without"]["client-0"] for record in history.records] == [
        1.0
    ] * 3


def test_a_resumed_run_reports_the_same_errors(tmp_path):
    whole = simulate("fedce", rounds=6, participation={"share": 0.7})
    options = {"rounds": 6, "participation": {"share": 0.7}, "out": tmp_path / "run"}
    with pytest.raises(KeyboardInterrupt):
        simulate("fedce", callbacks=[Stop(3)], **options)
    assert same(whole, simulate("fedce", resume=True, **options))


def test_what_cannot_report_it():
    regression = {
        "a": (torch.randn(8, 5), torch.randn(8, 1)),
        "b": (torch.randn(8, 5), torch.randn(8, 1)),
    }
    model = torch.nn.Linear(5, 1)
    with pytest.raises(SteelyardError, match="cannot report 'error_without'"):
        simulate("fedce", regression, model, loss="mse")
    base = torch.zeros(2)
    with pytest.raises(SteelyardError, match="needs 'error_without'"):
        steelyard.aggregate("fedce", base, torch.eye(2))
