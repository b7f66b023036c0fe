"""Steelyard's own turn: the public API, one worker per core."""

import os
from typing import Any

import torch

import steelyard
from benchmarks.peers.job import Job, say
from benchmarks.peers.torch_net import started, taken, tensors


class Clock(steelyard.Callback):
    """Says when rounds end."""

    def start(self, simulation: Any) -> None:
        """Data and workers are there."""
        say("start", versions={"steelyard": steelyard.__version__, "torch": torch.__version__})

    def round(self, simulation: Any, record: Any) -> None:
        """A round is over."""
        say(
            "round",
            number=record["round"],
            steps=int(sum(simulation.server.buffers.steps.tolist())),
        )


def main() -> None:
    job = Job.given()
    net = started(job)
    train = steelyard.Dataset(*tensors(job, "inputs", "targets"), 10)
    test = steelyard.Dataset(*tensors(job, "test_inputs", "test_targets"), 10)
    parts = torch.arange(len(train)).view(job.clients, job.size).numpy()
    history = steelyard.simulate(
        "fedavg",
        steelyard.Federation(train, tuple(range(job.clients)), tuple(parts), test),
        net,
        rounds=job.rounds,
        local={
            "batch_size": job.batch,
            "epochs": job.epochs,
            "lr": job.lr,
            "momentum": job.momentum,
            "train_share": job.train / job.size,
        },
        cohorts=job.array("cohorts").tolist(),
        executor="process",
        workers=os.cpu_count(),
        evaluate_every=int(job.evaluate),
        evaluate_clients=int(job.evaluate and job.train < job.size),
        callbacks=[Clock()],
    )
    net.load_state_dict(history.params)
    job.finish(taken(net))


if __name__ == "__main__":
    main()
