"""FedLAW's Table 8 in small: some clients swap two labels, and their weights fall.

    python examples/corrupted_clients.py --data-dir DIR          # DIR/fashion-mnist holds the original files

Twenty clients of Fashion-MNIST, nearly IID; 25, 50 or 75 % of them take two classes for one
another. FedAvg weighs them by size; FedLAW and LAW look at 100 proxy samples. The paper uses
CIFAR-10 and does not say which labels are swapped, or whether all corrupted clients swap the same:
here each draws a pair of its own.
"""

import argparse
import json
from pathlib import Path

import steelyard
from steelyard.data import corrupt, find_corrupted_clients, load

LOCAL = {
    "epochs": 3,
    "batch_size": 128,
    "lr": 0.08,
    "schedule": "exponential:0.99",
    "momentum": 0.9,
    "weight_decay": 5e-4,
}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=8)
    parser.add_argument("--out", type=Path, default=Path("out/corrupted-clients"))
    arguments = parser.parse_args()
    train, test = load("fashion-mnist", arguments.data_dir)
    table = []
    for share in (0.25, 0.5, 0.75):
        clean = steelyard.Federation.partitioned(train, test, "dirichlet:100", 20, arguments.seed)
        federation = corrupt(clean, share, "swap", seed=arguments.seed)
        bad = find_corrupted_clients(clean, share, seed=arguments.seed)
        for rule in ("fedavg", "law:lr=0.005", "fedlaw:lr=0.005"):
            history = steelyard.simulate(
                rule,
                federation,
                "mlp",
                rounds=arguments.rounds,
                local=LOCAL,
                proxy={"per_class": 10},
                seed=arguments.seed,
                out=arguments.out / f"{share:g}-{rule.split(':')[0]}",
                overwrite=True,
            )
            weights = [record["weights"] for record in history.records]
            mass = [
                sum(w[k] for k in bad) / sum(w.values())
                for w in (_by_number(one) for one in weights)
            ]
            row = {
                "corrupted": share,
                "rule": rule,
                "mass": mass,
                "accuracy": history.final_accuracy,
            }
            table.append(row)
            print(
                f"{share:.0%} corrupted  {rule:16}  weight on them: round 1 {mass[0]:.3f}, last "
                f"{mass[-1]:.3f}   "
                f"accuracy {history.final_accuracy:.4f}",
                flush=True,
            )
    (arguments.out / "table.json").write_text(json.dumps(table, indent=1))


def _by_number(weights):
    return {int(client): value for client, value in weights.items()}


if __name__ == "__main__":
    main()
