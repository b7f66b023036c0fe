"""FedAdp's main table on real MNIST: rounds to 95 % with 5 IID and 5 one-class nodes.

    python examples/fedadp_mnist.py --data-dir DIR          # DIR/mnist holds the original .gz files

Ten nodes with 600 samples each, all taking part, McMahan's CNN, batch 32, learning rate 0.01 x 0.995 per round, one
local epoch, at most 300 rounds (Wu and Wang, "Fast-Convergent Federated Learning with Adaptive Weighting", Table I).
The paper reports 133 rounds for FedAvg and 61 for FedAdp. Runs end when they reach the target; started again, they are
resumed.
"""

import argparse
import json
import statistics
from pathlib import Path

import steelyard
from steelyard.sim.history import History

PAPER = {"fedavg": 133, "fedadp": 61}


class Until(steelyard.Callback):
    """Ends a run at an accuracy, and shows it on the way."""

    def __init__(self, accuracy, name):
        self.accuracy, self.name = accuracy, name

    def round(self, simulation, record):
        if record["round"] % 10 == 0:
            print(f"{self.name}  round {record['round']:3}  accuracy {record['accuracy']:.4f}", flush=True)
        return record["accuracy"] >= self.accuracy


def rounds_needed(rule, seed, arguments):
    path = arguments.out / f"{rule}-s{seed}"
    if (path / "rounds.jsonl").exists():
        reached = History.read(path).rounds_to(arguments.target)
        if reached is not None:
            return reached
    history = steelyard.simulate(
        rule,
        "mnist",
        "mcmahan_cnn",
        clients=10,
        partition="x_class:classes=1,iid=5,samples=600",
        data_dir=arguments.data_dir,
        rounds=300,
        local={"epochs": 1, "batch_size": 32, "lr": 0.01, "schedule": "exponential:0.995"},
        seed=seed,
        out=path,
        resume=True,
        callbacks=[Until(arguments.target, path.name)],
    )
    return history.rounds_to(arguments.target)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--target", type=float, default=0.95)
    parser.add_argument("--out", type=Path, default=Path("out/fedadp-mnist"))
    arguments = parser.parse_args()
    found = {rule: [rounds_needed(rule, seed, arguments) for seed in arguments.seeds] for rule in ("fedadp", "fedavg")}
    print(f"rounds to {arguments.target:.0%}:")
    for rule, rounds in found.items():
        known = [number for number in rounds if number is not None]
        mean = f"{statistics.mean(known):.0f}" if len(known) == len(rounds) else "-"
        print(f"  {rule}: {rounds} (None: not within 300), mean {mean}; the paper: {PAPER[rule]}")
    (arguments.out / "table.json").write_text(json.dumps({"ours": found, "paper": PAPER}, indent=1))


if __name__ == "__main__":
    main()
