"""What FedCos's clients are sent survives rounds that fail."""

import torch
from flwr.app import ArrayRecord

import steelyard
from steelyard.flower._array_records import RecordSource
from steelyard.flower._server import FlowerServer, TrainingResults


def aggregate(server, number, *clients):
    models = {str(k): RecordSource(ArrayRecord({"w": client})) for k, client in enumerate(clients)}
    metrics = {"num_examples": dict.fromkeys(models, 1)}
    return server.aggregate(
        number, source(torch.zeros(5)), TrainingResults(models, metrics, {}, {}), len(models)
    )


def source(tensor):
    return RecordSource(ArrayRecord({"w": tensor}))


def test_a_void_round_leaves_the_direction_as_it_was():
    """The pass that finds NaN has written part of the new step by then: it would be sent to all clients."""
    server = FlowerServer(steelyard.Algorithm("fedavg", client="fedcos"), None, 0, diagnose=False)
    aggregate(server, 1, torch.full((5,), 1.0), torch.full((5,), 2.0))
    assert server.state.vectors["step"].tolist() == [1.5] * 5
    bad = torch.tensor([3.0, float("nan"), 3.0, 3.0, 3.0])
    assert aggregate(server, 2, bad, bad.clone()).model is None
    assert server.state.vectors["step"].tolist() == [1.5] * 5


def test_a_quarantined_client_does_not_spoil_the_others_cosines():
    """The round is tried again without it, and the direction is still the one that was sent."""
    server = FlowerServer(steelyard.Algorithm("fedavg", client="fedcos"), None, 0, diagnose=True)
    aggregate(server, 1, torch.tensor([1.0, 0, 0, 0, 0]), torch.tensor([1.0, 0, 0, 0, 0]))
    made = aggregate(
        server,
        2,
        torch.tensor([0.0, 1, 0, 0, 0]),
        torch.tensor([3.0, 0, 0, 0, 0]),
        torch.tensor([1.0, float("inf"), 0, 0, 0]),
    )
    assert made.record["direction_cosines"] == {"0": 0.0, "1": 1.0}
    assert server.state.vectors["step"].tolist() == [1.5, 0.5, 0, 0, 0]
