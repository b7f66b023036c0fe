"""What FedLAW costs: 100 epochs on 200 proxy samples, against the bare passes of one network on the same batches.

    python -m benchmarks.probe

K = 20 clients, ResNet20, batch 128, one torch thread on both sides, turn by turn. Bars: 1.25 times
the time of the bare passes; memory of a call under K + 4 models beyond what the caller holds,
measured on a dense network of 12 million parameters, where activations are nothing.
"""

import json
import statistics
import sys
import time
from pathlib import Path

import torch
from torch import nn

import steelyard
from steelyard.models import build
from steelyard.stores._memory import MemoryStore

CLIENTS, SAMPLES, EPOCHS, BATCH = 20, 200, 100, 128


def setting():
    network = build("resnet20", (3, 32, 32), 10, seed=0)
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(SAMPLES, 3, 32, 32, generator=generator)
    targets = torch.randint(0, 10, (SAMPLES,), generator=generator)
    base = network.state_dict()
    clients = []
    for _ in range(CLIENTS):
        noise = {
            name: value + 0.01 * torch.randn(value.shape, generator=generator)
            if value.is_floating_point() and "running" not in name
            else value.clone()
            for name, value in base.items()
        }
        clients.append(noise)
    return network, inputs, targets, base, clients


def bare(network, inputs, targets, epochs):
    """Forward and backward passes of one network, as anybody would write them."""
    network.train()
    started = time.perf_counter()
    for _ in range(epochs):
        for batch in torch.split(torch.randperm(SAMPLES), BATCH):
            network.zero_grad()
            nn.functional.cross_entropy(network(inputs[batch]), targets[batch]).backward()
    return time.perf_counter() - started


def fedlaw(store, probe, epochs):
    started = time.perf_counter()
    metrics = {"num_examples": list(range(1, CLIENTS + 1))}
    out = steelyard.aggregate(f"fedlaw:epochs={epochs}", None, store, metrics=metrics, probe=probe)
    assert out.report["gamma"] != 1.0
    return time.perf_counter() - started


def main():
    turns = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    torch.set_num_threads(1)
    network, inputs, targets, base, clients = setting()
    store = MemoryStore.of(base, clients)
    probe = steelyard.Probe(network, inputs, targets, BATCH)
    bare(network, inputs, targets, 2)
    fedlaw(store, probe, 2)
    ratios, times = [], []
    for _ in range(turns):
        plain, ours = bare(network, inputs, targets, EPOCHS), fedlaw(store, probe, EPOCHS)
        ratios.append(ours / plain)
        times.append((plain, ours))
        print(f"bare {plain:6.1f} s   fedlaw {ours:6.1f} s   ratio {ours / plain:.3f}", flush=True)
    ratio = statistics.median(ratios)
    print(f"median {ratio:.3f}, bar 1.25: {'holds' if ratio <= 1.25 else 'MISSED'}")
    models = memory()
    limit = CLIENTS + 4
    print(
        f"memory of the call: {models:.2f} models, bar {limit}: "
        f"{'holds' if models < limit else 'MISSED'}"
    )
    Path("out").mkdir(exist_ok=True)
    Path("out/probe.json").write_text(
        json.dumps({"ratios": ratios, "times": times, "models": models}, indent=1)
    )


def memory():
    """Peak memory of a call beyond what the caller holds, in models: a dense network whose activations are nothing."""
    network = nn.Sequential(nn.Linear(500, 12_000), nn.ReLU(), nn.Linear(12_000, 500))
    base = network.state_dict()
    generator = torch.Generator().manual_seed(0)
    clients = [
        {n: v + 1e-3 * torch.randn(v.shape, generator=generator) for n, v in base.items()}
        for _ in range(CLIENTS)
    ]
    probe = steelyard.Probe(network, torch.randn(8, 500), torch.randint(0, 500, (8,)), 8)
    metrics = {"num_examples": list(range(1, CLIENTS + 1))}
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
    before = resident("VmRSS")
    steelyard.aggregate("fedlaw:epochs=3", base, clients, metrics=metrics, probe=probe)
    return (resident("VmHWM") - before) / sum(value.numel() * 4 for value in base.values())


def resident(what):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(what))


if __name__ == "__main__":
    main()
