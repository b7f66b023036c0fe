"""FedAdp, FedCos and PA3Fed beside FedAvg on the embedded digits: the tables of docs/fedadp.md, fedcos.md, pa3fed.md.

    python examples/small_papers.py fedadp                     # or fedcos, pa3fed; ten seeds, a few minutes each
    python examples/small_papers.py pa3fed --seeds 3 --rounds 20

Runs of one seed share data, partition, initial model and cohorts, and are compared seed by seed. "±" is half of the
95 % interval of the mean difference. All clients train 1 epoch per round with learning rate 0.1 and batches of 16.
"""

import argparse
import itertools
from dataclasses import dataclass, field

import numpy as np

import steelyard
from steelyard.experiments import scores
from steelyard.experiments.statistics import difference, mean

LOCAL = {"lr": 0.1, "batch_size": 16, "epochs": 1}


@dataclass(frozen=True)
class Setting:
    """Who holds what: a partition, the number of clients, how many take part, and the accuracy to reach."""

    partition: str
    target: float
    clients: int = 10
    participation: dict = field(default_factory=dict)


@dataclass(frozen=True)
class Study:
    """Algorithms (the first is the reference) in settings, and series of the record to show the mean of."""

    settings: dict
    algorithms: dict
    measures: tuple = ()


def algorithm(weighting="fedavg", **parts):
    return steelyard.Algorithm(weighting, **parts)


ONE_CLASS = Setting("x_class:classes=1,iid=3,samples=100", target=0.8)
DIRICHLET = Setting("dirichlet:0.1", target=0.9)
STUDIES = {
    "fedadp": Study(
        {
            "3 IID + 7 one-class nodes": ONE_CLASS,
            "5 IID + 5 one-class nodes": Setting("x_class:classes=1,iid=5,samples=100", target=0.9),
            "5 IID + 3 one-class + 2 two-class nodes": Setting(
                "x_class:classes=[1,1,1,2,2],iid=5,samples=100", target=0.9
            ),
            "Dirichlet(0.1), no IID node": DIRICHLET,
        },
        {
            "fedavg": algorithm(),
            "fedadp": algorithm("fedadp"),
            "fedadp:alpha=1": algorithm("fedadp:alpha=1"),
            "fedadp:alpha=10": algorithm("fedadp:alpha=10"),
        },
        ("weighted_cosine", "divergence"),
    ),
    "fedcos": Study(
        {
            "3 IID + 7 one-class nodes": ONE_CLASS,
            "Dirichlet(0.1)": DIRICHLET,
            "5 clients, totally non-IID": Setting("sorted", target=0.9, clients=5),
        },
        {
            "fedavg": algorithm(),
            "fedcos:mu=0.02": algorithm(client="fedcos:mu=0.02"),
            "fedcos:mu=0.05": algorithm(client="fedcos:mu=0.05"),
            "uniform, fedcos:mu=0.02": algorithm("uniform", client="fedcos:mu=0.02"),
            "momentum:beta=0.5": algorithm(server="momentum:beta=0.5"),
            "momentum:beta=0.5, fedcos:mu=0.02": algorithm(server="momentum:beta=0.5", client="fedcos:mu=0.02"),
            "momentum:beta=0.5, fedcos:mu=0.02,direction=move": algorithm(
                server="momentum:beta=0.5", client="fedcos:mu=0.02,direction=move"
            ),
        },
        ("mean_cosine", "direction_cosines", "update_norm"),
    ),
    "pa3fed": Study(
        {
            "3 IID + 7 one-class nodes, all in each round": ONE_CLASS,
            "50 clients, Dirichlet(0.3), 20 % in each round": Setting(
                "dirichlet:0.3", target=0.9, clients=50, participation={"share": 0.2}
            ),
        },
        {
            "fedavg": algorithm(),
            "pa3fed": algorithm("pa3fed"),
            "pa3fed:detector=criticalfl_window": algorithm("pa3fed:detector=criticalfl_window"),
            "pa3fed:detector=always": algorithm("pa3fed:detector=always"),
            "pa3fed:preset=literal": algorithm("pa3fed:preset=literal"),
            "pa3fed:preset=literal,detector=always": algorithm("pa3fed:preset=literal,detector=always"),
            "pa3fed:model=local,score=loss": algorithm("pa3fed:model=local,score=loss"),
            "pa3fed:beta=2,detector=always": algorithm("pa3fed:beta=2,detector=always"),
        },
        ("critical", "alpha", "distance"),
    ),
}


def measured(history, reference, name):
    """The mean over rounds of what a record says: a number, a mean over clients, or PA3Fed's spread of alpha."""
    if name == "distance":
        pairs = zip(history.column("weights"), reference.column("weights"), strict=True)
        return mean([sum(abs(ours[c] - theirs[c]) for c in ours) for ours, theirs in pairs])
    values = history.column(name)
    if name == "alpha":
        values = [max(by_client.values()) / min(by_client.values()) for by_client in values]
    if name == "direction_cosines":
        values = [np.mean(list(by_client.values())) for by_client in values]
    return float(np.mean(values)) if values else None


def compared(ours, theirs, scale, digits):
    """The mean paired difference with half of its interval, over the seeds that both have a value for."""
    found = difference("ours", "theirs", ours, theirs)
    if found.mean is None:
        return "-"
    text = f"{scale * found.mean:+.{digits}f}"
    text += "" if found.half_width is None else f" ± {scale * found.half_width:.{digits}f}"
    return text if len(found.by_seed) == len(theirs) else f"{text} ({len(found.by_seed)} of {len(theirs)})"


def study(name, seeds, rounds):
    """Prints one table for each setting of a study."""
    about = STUDIES[name]
    heads = ["", "last 10 rounds, %", "rounds to target", *about.measures]
    for title, setting in about.settings.items():
        # All runs of the setting, by algorithm and seed.
        runs = {}
        for label, seed in itertools.product(about.algorithms, seeds):
            runs[label, seed] = steelyard.simulate(
                about.algorithms[label],
                "digits",
                rounds=rounds,
                clients=setting.clients,
                partition=setting.partition,
                participation=setting.participation,
                local=LOCAL,
                seed=seed,
            )

        # One row per algorithm: the reference's own numbers first, then differences to it.
        reference = next(iter(about.algorithms))
        last = {label: {str(s): scores.last(runs[label, s]) for s in seeds} for label in about.algorithms}
        to_target = {
            label: {str(s): runs[label, s].rounds_to(setting.target) for s in seeds} for label in about.algorithms
        }
        print(f"\n{title} (`{setting.partition}`, target {100 * setting.target:g} %)\n")
        print("| " + " | ".join(heads) + " |")
        print("|" + "---|" * len(heads))
        for label in about.algorithms:
            if label == reference:
                arrived = [value for value in to_target[label].values() if value is not None]
                count = f"{mean(arrived):.1f} ({len(arrived)} of {len(seeds)})" if arrived else "-"
                cells = [f"{100 * mean(list(last[label].values())):.1f}", count]
            else:
                cells = [
                    compared(last[label], last[reference], 100, 1),
                    compared(to_target[label], to_target[reference], 1, 1),
                ]
            for measure in about.measures:
                found = [measured(runs[label, s], runs[reference, s], measure) for s in seeds]
                cells.append("" if None in found else f"{mean(found):.4g}")
            print(f"| {label} | " + " | ".join(cells) + " |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("paper", choices=list(STUDIES))
    parser.add_argument("--seeds", type=int, default=10, help="how many, from 20 on")
    parser.add_argument("--rounds", type=int, default=60)
    arguments = parser.parse_args()
    study(arguments.paper, range(20, 20 + arguments.seeds), arguments.rounds)


if __name__ == "__main__":
    main()
