"""No simulator at all: one process, one thread, the same SGD steps, and a running mean of the models."""

import torch

from benchmarks.peers.job import Job, say
from benchmarks.peers.torch_net import descend, measured, put, started, taken, tensors


def main() -> None:
    job = Job.given()
    torch.set_num_threads(1)
    net = started(job)
    inputs, targets = tensors(job, "inputs", "targets")
    say("start", versions={"torch": torch.__version__})
    for number, cohort in enumerate(job.array("cohorts"), 1):
        theta, steps = taken(net), 0
        total = [0 * value for value in theta]
        for client in cohort:
            put(net, theta)
            rows = job.rows(int(client))
            steps += descend(net, inputs[rows], targets[rows], job)
            for sum_, value in zip(total, taken(net), strict=True):
                sum_ += value
        put(net, [value / len(cohort) for value in total])
        if job.evaluate:
            measured(net, *tensors(job, "test_inputs", "test_targets"))
        say("round", number=number, steps=steps)
    job.finish(taken(net))


if __name__ == "__main__":
    main()
