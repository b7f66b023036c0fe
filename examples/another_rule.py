"""Should I have used another rule? Ask the recording of a FedAvg run, then check the answer.

    python examples/another_rule.py --data-dir DIR       # DIR/fashion-mnist; without it, the digits

Ten clients run FedAvg, and the inner products of their updates are recorded. In one setting all of
them are honest, in the other three have flipped labels. The question is decided from the recording
of one run alone, by a rule that was fixed before the other runs:

    If no client is flagged as an opponent, keep FedAvg. Otherwise choose the rule that would have
    given the flagged clients the smallest share, among those that would have listened to at least
    half as many effective clients as FedAvg.

Then every candidate is really run, on the same seeds, so that the answer can be right or wrong.
MultiKrum and Krum get the true number of clients with flipped labels, which nobody knows in practice.
"""

import argparse
import statistics
from pathlib import Path

import torch

import steelyard
from steelyard.data import corrupt, find_corrupted_clients, load
from steelyard.recorder import contributions, replay
from steelyard.report import write_replay

CANDIDATES = ("fedadp", "fedawa", "feddisco", "geometric_median", "multikrum:f=3", "krum:f=3")
CLIENTS = 10
SAMPLES = 4000  # of the training set
LOCAL = {"lr": 0.05, "batch_size": 32}


def build_federation(arguments, seed, share):
    """Returns the clients' data, and the clients with flipped labels."""
    if arguments.data_dir is None:
        train, test = load("digits")
    else:
        train, test = load("fashion-mnist", arguments.data_dir)
    chosen = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))[:SAMPLES]
    federation = steelyard.Federation.partitioned(
        train.take(chosen), test, "dirichlet:1.0", CLIENTS, seed
    )
    flipped = find_corrupted_clients(federation, share, seed=seed) if share else ()
    return corrupt(federation, share, "flip", seed=seed), sorted(flipped)


def run(rule, federation, arguments, seed, out):
    """Returns the mean accuracy of the last five rounds."""
    history = steelyard.simulate(
        rule,
        federation,
        "mlp",
        rounds=arguments.rounds,
        local=LOCAL,
        seed=seed,
        out=out,
        overwrite=True,
        executor="serial",
        record="gram",
        evaluate_every=1,
    )
    return statistics.mean(history.accuracy[-5:])


def decide(out):
    """Returns the rule to use instead of FedAvg, the flagged clients, and the replay."""
    ledger = contributions(out)
    flagged = [
        entry.client
        for entry in ledger.clients
        if any(flag.kind == "opponent" for flag in entry.flags)
    ]
    result = replay(out, CANDIDATES)
    if not flagged:
        return "fedavg", flagged, result
    summaries = {summary.rule: summary for summary in result.summarize()}
    enough = summaries["run"].effective_clients / 2
    shares = {}
    for rule in CANDIDATES:
        if summaries[rule].effective_clients >= enough:
            values = []
            for entry in result.rounds[rule]:
                by_client = dict(zip(entry.weights, entry.shares.tolist(), strict=True))
                values.append(sum(by_client.get(client, 0.0) for client in flagged))
            shares[rule] = statistics.mean(values)
    return min(shares, key=lambda rule: shares[rule]), flagged, result


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("out/another-rule"))
    arguments = parser.parse_args()
    for name, share in (("honest", 0.0), ("flipped", 0.3)):
        accuracies = {rule: [] for rule in ("fedavg", *CANDIDATES)}
        for seed in range(1, 1 + arguments.seeds):
            federation, flipped = build_federation(arguments, seed, share)
            folder = arguments.out / f"{name}-{seed}"
            for number, rule in enumerate(accuracies):
                out = folder / f"{number}-{rule.partition(':')[0]}"
                accuracies[rule].append(run(rule, federation, arguments, seed, out))
                if rule == "fedavg":  # decided before any other rule runs
                    answer, flagged, result = decide(out)
                    write_replay(result, out, folder / "replay.html")
                    print(
                        f"{name}, seed {seed}: labels flipped by {flipped}, opponents "
                        f"{flagged}: use {answer}",
                        flush=True,
                    )
        print(
            f"| rule, {name} | "
            + " | ".join(f"seed {seed}" for seed in range(1, 1 + arguments.seeds))
            + " | mean |"
        )
        for rule, values in accuracies.items():
            cells = " | ".join(f"{100 * value:.1f}" for value in values)
            print(f"| `{rule}` | {cells} | {100 * statistics.mean(values):.1f} |", flush=True)


if __name__ == "__main__":
    main()
