"""FedAdp, FedCos and PA3Fed beside FedAvg on the embedded digits: the tables of docs/fedadp.md, fedcos.md, pa3fed.md.

The settings of this file are also those of the tests of effect (tests/test_effects.py).

    python examples/small_papers.py fedadp                     # or fedcos, pa3fed; ten seeds, a few minutes each
    python examples/small_papers.py pa3fed --seeds 3 --rounds 20

Runs of one seed share data, partition, initial model and cohorts, and are compared seed by seed.
"±" is half of the 95 % interval of the mean difference. Clients train with learning rate 0.1 and
batches of 16, in the tables 1 epoch per round.
"""

import argparse
import itertools
from dataclasses import dataclass, field

import numpy as np

import steelyard
from steelyard.experiments import difference, mean, scores

SEEDS = range(20, 30)
LOCAL = {"lr": 0.1, "batch_size": 16, "epochs": 1}


@dataclass(frozen=True)
class Setting:
    """A small experiment on the embedded digits, but for algorithm, seed and rounds.

    Attributes:
        partition: who holds what.
        target: the accuracy to reach.
        clients: the number of clients.
        participation: who takes part in a round.
        epochs: local epochs per round.
        proxy: the server's proxy data, for FedLAW.
        metrics: what clients report beside what the algorithm needs.
        rounds: of the tests of effect and the figures; the tables have their own.
    """

    partition: str
    target: float = 0.9
    clients: int = 10
    participation: dict = field(default_factory=dict)
    epochs: int = 1
    proxy: dict | None = None
    metrics: tuple = ()
    rounds: int = 60

    def simulate(self, algorithm, seed, rounds=None, **options):
        """Runs an algorithm in this setting and returns the history.

        Args:
            algorithm: an `Algorithm`, a rule, or a rule's text form.
            seed: of data, initial model, cohorts and batches.
            rounds: instead of the setting's own.
            options: further arguments of `steelyard.simulate`.
        """
        return steelyard.simulate(
            algorithm,
            "digits",
            rounds=rounds or self.rounds,
            clients=self.clients,
            partition=self.partition,
            participation=self.participation,
            local={**LOCAL, "epochs": self.epochs},
            proxy=self.proxy,
            metrics=self.metrics,
            seed=seed,
            **options,
        )


@dataclass(frozen=True)
class Study:
    """Algorithms (the first is the reference) in settings, and series of the record to show the mean of."""

    settings: dict
    algorithms: dict
    measures: tuple = ()


def algorithm(weighting="fedavg", **parts):
    return steelyard.Algorithm(weighting, **parts)


# With these rounds FedAvg reaches the target with each of SEEDS, so that no seed is left out.
ONE_CLASS = Setting("x_class:classes=1,iid=3,samples=100", target=0.8, rounds=120)
FIVE_IID = Setting("x_class:classes=1,iid=5,samples=100", target=0.9, rounds=80)
DIRICHLET = Setting("dirichlet:0.1", target=0.9)
SORTED = Setting("sorted", target=0.9, clients=5)
# The scenes of FedCos's Tables I and II.
FEDCOS_SCENES = {
    "totally non-IID": SORTED,
    "90 % non-IID": Setting("sorted:share_iid=0.1", clients=5),
    "70 % non-IID": Setting("sorted:share_iid=0.3", clients=5),
    "IID": Setting("iid", clients=5),
}
# Balanced and imbalanced clients and three local epochs, as in FedLAW's Figs. 5 and 6.
HYBRID = Setting(
    "hybrid_dirichlet:alpha1=10,alpha2=0.1", epochs=3, proxy={"per_class": 10}, rounds=40
)
# PA3Fed's experiments: h = 0.1, 20 % of 50 clients per round, five local epochs.
FEW_OF_MANY = Setting(
    "dirichlet:0.1",
    clients=50,
    participation={"share": 0.2},
    epochs=5,
    metrics=("grad_norm", "loss", "num_examples"),
    rounds=40,
)


# FedLAW's Fig. 6: shrinking with a fixed factor, near those of its Table 2, and with a learned one.
SHRINKING = {
    "FedAvg": "fedavg|record_coherence",
    "fixed γ = 0.95": "fedavg|record_coherence|shrink:gamma=0.95",
    "learned γ": "gws:epochs=20,lr=0.05|record_coherence",
}
STUDIES = {
    "fedadp": Study(
        {
            "3 IID + 7 one-class nodes": ONE_CLASS,
            "5 IID + 5 one-class nodes": FIVE_IID,
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
        ("weighted_cosine", "update_divergence"),
    ),
    "fedcos": Study(
        {
            "3 IID + 7 one-class nodes": ONE_CLASS,
            "Dirichlet(0.1)": DIRICHLET,
            "5 clients, totally non-IID": SORTED,
        },
        {
            "fedavg": algorithm(),
            "fedcos:mu=0.02": algorithm(client="fedcos:mu=0.02"),
            "fedcos:mu=0.05": algorithm(client="fedcos:mu=0.05"),
            "uniform, fedcos:mu=0.02": algorithm("uniform", client="fedcos:mu=0.02"),
            "momentum:beta=0.5": algorithm(server="momentum:beta=0.5"),
            "momentum:beta=0.5, fedcos:mu=0.02": algorithm(
                server="momentum:beta=0.5", client="fedcos:mu=0.02"
            ),
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
            "pa3fed:preset=literal,detector=always": algorithm(
                "pa3fed:preset=literal,detector=always"
            ),
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
    return (
        text
        if len(found.by_seed) == len(theirs)
        else f"{text} ({len(found.by_seed)} of {len(theirs)})"
    )


def study(name, seeds, rounds):
    """Prints one table for each setting of a study."""
    about = STUDIES[name]
    heads = ["", "last 10 rounds, %", "rounds to target", *about.measures]
    for title, setting in about.settings.items():
        # All runs of the setting, by algorithm and seed.
        runs = {}
        for label, seed in itertools.product(about.algorithms, seeds):
            runs[label, seed] = setting.simulate(about.algorithms[label], seed, rounds)

        # One row per algorithm: the reference's own numbers first, then differences to it.
        reference = next(iter(about.algorithms))
        last = {
            label: {str(s): scores.last(runs[label, s]) for s in seeds}
            for label in about.algorithms
        }
        to_target = {
            label: {str(s): runs[label, s].rounds_to(setting.target) for s in seeds}
            for label in about.algorithms
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
    parser.add_argument(
        "--seeds", type=int, default=len(SEEDS), help=f"how many, from {SEEDS[0]} on"
    )
    parser.add_argument("--rounds", type=int, default=60)
    arguments = parser.parse_args()
    study(arguments.paper, range(SEEDS[0], SEEDS[0] + arguments.seeds), arguments.rounds)


if __name__ == "__main__":
    main()
