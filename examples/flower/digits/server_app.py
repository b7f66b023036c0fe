"""The server."""

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from digits.task import network
from steelyard.data import load

app = ServerApp()


def accuracy(_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Of the global model, on the digits that no node has."""
    _, test = load("digits")
    model = network()
    model.load_state_dict(arrays.to_torch_state_dict())
    with torch.no_grad():
        right = model(test.inputs).argmax(1) == test.targets
    return MetricRecord({"accuracy": right.float().mean().item()})


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=3, min_available_nodes=3)
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(network().state_dict()),
        num_rounds=int(config["rounds"]),
        timeout=float(config["timeout"]),
        evaluate_fn=accuracy,
    )
