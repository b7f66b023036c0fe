"""Flower's simulation engine on Ray, with as many actors as cores.

`run_simulation` is deprecated in favour of `flwr run`, which starts a server of its own first: this
is the faster one.
"""

import os
from typing import Any

import flwr
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Result
from flwr.simulation import run_simulation

from benchmarks.peers.job import Job, say
from benchmarks.peers.torch_net import descend, measured, network, put, started, taken, tensors

job = Job.given()
client_app = ClientApp()
server_app = ServerApp()
counted: list[int] = []  # steps of each round


def _received(message: Message) -> torch.nn.Module:
    net = network(job.model)
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    return net


@client_app.train()
def train(message: Message, context: Context) -> Message:
    inputs, targets = tensors(job, "inputs", "targets")
    net = _received(message)
    rows = job.rows(int(context.node_config["partition-id"]))
    steps = descend(net, inputs[rows], targets[rows], job)
    metrics = MetricRecord({"num-examples": job.train, "steps": steps})
    return Message(
        RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message
    )


@client_app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    inputs, targets = tensors(job, "inputs", "targets")
    rows = job.held_out(int(context.node_config["partition-id"]))
    loss, accuracy = measured(_received(message), inputs[rows], targets[rows])
    metrics = MetricRecord(
        {"num-examples": job.size - job.train, "eval_loss": loss, "eval_acc": accuracy}
    )
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def count_steps(replies: list[RecordDict], weighted_by: str) -> MetricRecord:
    """In place of mean training metrics: how many steps were taken."""
    del weighted_by
    counted.append(int(sum(float(reply["metrics"]["steps"]) for reply in replies)))
    return MetricRecord({"steps": counted[-1]})


def after_round(number: int, arrays: ArrayRecord) -> MetricRecord | None:
    """Flower calls this before the first round and after each."""
    result = None
    if job.evaluate:
        net = network(job.model)
        net.load_state_dict(arrays.to_torch_state_dict())
        loss, accuracy = measured(net, *tensors(job, "test_inputs", "test_targets"))
        result = MetricRecord({"loss": loss, "accuracy": accuracy})
    if number == 0:
        say("start", versions={"flwr": flwr.__version__, "torch": torch.__version__})
    else:
        say("round", number=number, steps=counted[-1])
    return result


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    del context
    net = started(job)
    strategy = FedAvg(
        fraction_train=job.array("cohorts").shape[1] / job.clients,
        fraction_evaluate=0.5 if job.evaluate and job.train < job.size else 0.0,
        train_metrics_aggr_fn=count_steps,
    )
    result: Result = strategy.start(
        grid, ArrayRecord(net.state_dict()), num_rounds=job.rounds, evaluate_fn=after_round
    )
    state: dict[str, Any] = result.arrays.to_torch_state_dict()
    put(net, [value.numpy() for value in state.values()])
    job.finish(taken(net))


if __name__ == "__main__":
    cores = os.cpu_count() or 1
    backend = {
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        "init_args": {"num_cpus": cores},
    }
    run_simulation(server_app, client_app, job.clients, backend_config=backend)
