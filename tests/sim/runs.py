"""Small runs to try the simulator on."""

import os

import torch
from torch import nn

import steelyard
from steelyard.runs._directory import read_log

ALGORITHMS = {
    "fedavg": steelyard.Algorithm("fedavg"),
    "fedadp": steelyard.Algorithm("fedadp"),
    "fedawa": steelyard.Algorithm("fedawa:steps=3", server="momentum"),
    "fedcos": steelyard.Algorithm(
        "uniform", client="fedcos:mu=0.005+fedprox:mu=0.01", server="adam"
    ),
    "fedcos_move": steelyard.Algorithm("fedavg", client="fedcos:direction=move", server="momentum"),
    "pa3fed": steelyard.Algorithm("pa3fed:detector=criticalfl_window"),
    "fedce": steelyard.Algorithm("guard(fedce)"),
    "craft": steelyard.Algorithm("craft:lr=1,length=mean"),
    "scaffold": steelyard.Algorithm("fedavg", client="scaffold"),
    "feddyn": steelyard.Algorithm("uniform", client="feddyn"),
    "fedmut": steelyard.Algorithm("uniform", client="scaffold", broadcast="fedmut:radius=0.5"),
    "vrlsgd": steelyard.Algorithm("fednova", client="vrlsgd"),
    "fedproto": steelyard.Algorithm("fedawa:steps=3", client="fedproto+fedprox:mu=0.01"),
    "fpl": steelyard.Algorithm("guard(fedavg)", client="fpl:temperature=0.5"),
    "creff": steelyard.Algorithm("fedavg", client="creff:features=4,match_steps=3,epochs=2"),
    "layers": steelyard.Algorithm("feddisco|fedawa_l:steps=2"),
    "robust": steelyard.Algorithm("guard(fedadp)"),
}


def clients(count=6, seed=0, shape=(5,), classes=3, size=20):
    """Data sets by client id, of sizes that differ."""
    g = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, *shape, generator=g)
    made = {}
    for k in range(count):
        targets = torch.randint(0, classes, (size + 3 * k,), generator=g)
        made[f"client-{k}"] = (
            centres[targets] + 0.5 * torch.randn(len(targets), *shape, generator=g),
            targets,
        )
    return made


def net(kind="mlp", seed=0, classes=3):
    """Networks of every sort: stacked closed form, convolution, BatchNorm, dropout."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if kind == "mlp":
            return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, classes))
        if kind == "dropout":
            return nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, classes))
        if kind == "cnn":
            return nn.Sequential(
                nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 16, classes)
            )
        assert kind == "batch_norm"
        return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, classes))


def simulate(algorithm="fedavg", data=None, model=None, **options):
    given = {"rounds": 4, "local": {"lr": 0.1, "batch_size": 8}, "executor": "serial", **options}
    return steelyard.simulate(
        algorithm, clients() if data is None else data, net() if model is None else model, **given
    )


def same(a, b):
    """Whether two histories hold the same bits, timings apart."""
    return a.comparable() == b.comparable() and all(
        torch.equal(a.params[name], b.params[name]) for name in a.params
    )


OPTIONS = {
    "rounds": 6,
    "test": clients(1, seed=9)["client-0"],
    "participation": {"share": 0.7},
    "local": {"lr": 0.1, "batch_size": 8, "momentum": 0.9, "persistent": True},
}


def options(algorithm):
    """The same, with momentum afresh in each round where a term wants that."""
    fresh = any(term.tags.requires_plain_sgd for term in algorithm.client)
    return OPTIONS | {"local": OPTIONS["local"] | {"persistent": not fresh}}


def files(directory):
    """What must not depend on interruptions: the log without timings, the inner products, the final
    checkpoint and the best model."""
    log = [{k: v for k, v in r.items() if k != "timings"} for r in read_log(directory)]
    last, best = directory / "checkpoints" / "last", directory / "checkpoints" / "best"
    held = {name: (last / name).read_bytes() for name in ("model.safetensors", "state.safetensors")}
    grams = directory / "grams.bin"
    held["grams.bin"] = grams.read_bytes() if grams.exists() else b""
    return log, held, os.readlink(best), (best / "model.safetensors").read_bytes()


class Stop(steelyard.Callback):
    """Ends a run after some rounds, as if it had been interrupted there."""

    def __init__(self, after):
        self.after = after

    def round(self, simulation, record):
        if record["round"] == self.after:
            raise KeyboardInterrupt
