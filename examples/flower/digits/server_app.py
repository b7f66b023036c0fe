"""The server: any algorithm of Steelyard, as a Flower strategy."""

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from digits.task import network
from steelyard.data import load
from steelyard.flower import Steelyard

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    strategy = Steelyard(
        str(config["algorithm"]),
        fraction_evaluate=0.0,  # nodes keep no test data here; `accuracy` looks at the server's
        seed=int(config["seed"]),
        out=str(config["out"]),
        resume=bool(config["resume"]),
        data_name="digits",
    )
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(network().state_dict()),
        num_rounds=int(config["rounds"]),
        timeout=float(config["timeout"]),
        evaluate_fn=accuracy,
    )


def accuracy(_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Of the global model, on the digits that no node has."""
    _, test = load("digits")
    model = network()
    model.load_state_dict(arrays.to_torch_state_dict())
    with torch.no_grad():
        right = model(test.inputs).argmax(dim=1) == test.targets
    return MetricRecord({"accuracy": float(right.float().mean())})
