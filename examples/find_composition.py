"""Search for a composition of a rule, client terms and a server step that is good in every setting of the benchmark.

    python examples/find_composition.py --out runs/search            # three hours on two cores; start it again to go on
    python examples/find_composition.py --out runs/near --space narrow --rungs 50

Successive halving on the tuning seeds and three settings of the benchmark: every candidate runs for
a few rounds, the best quarter of each server step goes on. Candidates are compared with those of the
same server step because some, such as Adam, are slow at first and good at last. A candidate is as
good as its worst setting: its regret is how many points it is behind the best candidate there, and
the least regret wins. All candidates stay on record, with the rounds they had.
"""

import argparse
import csv
import itertools
import math
from dataclasses import dataclass, replace
from pathlib import Path

from steelyard.experiments import Rule, last, mean, read_benchmark, run_jobs

SETTINGS = ("dirichlet-0.1", "3-iid-7-one-class", "100-clients")


@dataclass(frozen=True)
class Space:
    """The parts that are combined, as words of an algorithm's text by their names."""

    weightings: dict
    terms: dict
    steps: dict


SPACES = {
    "wide": Space(
        weightings={
            "fedavg": "fedavg",
            "feddisco": "feddisco",
            "gated-fedadp": "gate(angle_gap,fedadp:reference=others)",
            "feddisco-gated-fedadp": "feddisco|gate(angle_gap,fedadp:reference=others)",
        },
        terms={
            "": "",
            "fedcos-0.02": "client=fedcos:mu=0.02",
            "fedcos-0.05": "client=fedcos:mu=0.05",
            "scaffold": "client=scaffold",
            "scaffold-fedcos-0.02": "client=scaffold+fedcos:mu=0.02",
            "feddyn-0.01": "client=feddyn:alpha=0.01",
        },
        steps={
            "": "",
            "step-1.5": "server=sgd:lr=1.5",
            "momentum-0.5": "server=momentum:beta=0.5",
            "adam-0.005": "server=adam:lr=0.005",
        },
    ),
    # Around the best of "wide", FedDisco with Adam and FedDisco with FedCos: both together, where
    # FedCos may follow the move of the global model, which Adam makes another than the mean step.
    "narrow": Space(
        weightings={"feddisco": "feddisco"},
        terms={
            "": "",
            "fedcos-0.01": "client=fedcos:mu=0.01",
            "fedcos-0.01-move": "client=fedcos:mu=0.01,direction=move",
            "fedcos-0.02-move": "client=fedcos:mu=0.02,direction=move",
        },
        steps={
            "adam-0.003": "server=adam:lr=0.003",
            "adam-0.005": "server=adam:lr=0.005",
        },
    ),
}
RUNGS = (10, 25, 50)  # rounds after which the best candidates go on
SURVIVING_SHARE = 0.25  # of the candidates of each server step
WINDOW = 5  # evaluations at the end that count: the curves still rise


@dataclass(frozen=True)
class Candidate:
    """A composition as a row of the benchmark, and the name of its server step."""

    rule: Rule
    step: str


@dataclass(frozen=True)
class Standing:
    """A candidate after a rung: mean accuracy by setting, and the points it is behind the best of its worst setting."""

    candidate: Candidate
    rounds: int
    accuracy: dict
    regret: float


def make_candidates(space):
    """Return every combination of a weighting, client terms and a server step."""
    candidates = []
    for weighting, term, step in itertools.product(space.weightings, space.terms, space.steps):
        name = "-".join(filter(None, (weighting, term, step)))
        words = space.weightings[weighting], space.terms[term], space.steps[step]
        algorithm = " ".join(filter(None, words))
        candidates.append(Candidate(Rule(name, name, algorithm), step))
    return candidates


def run_rung(benchmark, candidates, rounds, out, parallel):
    """Run candidates up to this round, those that have run before from where they stopped, and rank them."""
    # The rounds of the last rung are planned from the start, so that a run can go on.
    rules = tuple(candidate.rule for candidate in candidates)
    rung = replace(benchmark.change([f"rounds={rounds}"]), rules=rules)
    outcomes = run_jobs(rung.jobs(benchmark.tuning_seeds), out, parallel=parallel, watch=Progress())
    values = {}
    for outcome in outcomes:
        key = outcome.job.labels["rule"], outcome.job.labels["setting"]
        score = 0.0 if outcome.history is None else last(outcome.history, WINDOW)
        values.setdefault(key, []).append(100 * score)
    accuracy = {
        rule.name: {
            setting.name: mean(values[rule.name, setting.name]) for setting in rung.settings
        }
        for rule in rules
    }
    best = {
        setting.name: max(row[setting.name] for row in accuracy.values())
        for setting in rung.settings
    }
    standings = [
        Standing(
            candidate,
            rounds,
            accuracy[candidate.rule.name],
            max(best[s] - value for s, value in accuracy[candidate.rule.name].items()),
        )
        for candidate in candidates
    ]
    return sorted(standings, key=lambda standing: standing.regret)


def choose_survivors(ranked):
    """Return the best candidates of each server step, from standings with the best first."""
    survivors = []
    for step in dict.fromkeys(standing.candidate.step for standing in ranked):
        standings = [standing for standing in ranked if standing.candidate.step == step]
        survivors += standings[: math.ceil(SURVIVING_SHARE * len(standings))]
    return [standing.candidate for standing in survivors]


class Progress:
    """Print a line for every run that ends."""

    def on_start(self, job):
        pass

    def on_progress(self, job, record):
        pass

    def on_finish(self, outcome):
        if not outcome.reused:
            print(f"finished {outcome.job.name}", outcome.error or "", flush=True)


def write_standings(standings, path):
    """Write all candidates, those that went furthest first."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["candidate", "algorithm", "rounds", *SETTINGS, "regret"])
        for standing in sorted(standings, key=lambda standing: (-standing.rounds, standing.regret)):
            values = [f"{standing.accuracy[setting]:.2f}" for setting in SETTINGS]
            row = [
                standing.candidate.rule.name,
                standing.candidate.rule.algorithm,
                standing.rounds,
                *values,
                f"{standing.regret:.2f}",
            ]
            writer.writerow(row)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=Path("runs/search"), help="where runs and search.csv go"
    )
    parser.add_argument(
        "--space", choices=SPACES, default="wide", help="the parts that are combined"
    )
    rungs = ",".join(map(str, RUNGS))
    parser.add_argument(
        "--rungs",
        default=rungs,
        help="rounds after which the best quarter of each server step goes on",
    )
    parser.add_argument(
        "--parallel", type=int, default=None, help="runs at a time; one per core by default"
    )
    parser.add_argument(
        "--set", action="append", default=[], help="key=value for every run, to try the script"
    )
    options = parser.parse_args()

    benchmark = read_benchmark().select(settings=SETTINGS).change(options.set)
    candidates = make_candidates(SPACES[options.space])
    standings = {}
    for rounds in map(int, options.rungs.split(",")):
        print(f"{len(candidates)} candidates up to round {rounds}", flush=True)
        ranked = run_rung(benchmark, candidates, rounds, options.out, options.parallel)
        standings |= {standing.candidate.rule.name: standing for standing in ranked}
        write_standings(standings.values(), options.out / "search.csv")
        candidates = choose_survivors(ranked)
    for standing in ranked[:3]:
        print(f"regret {standing.regret:.2f}: {standing.candidate.rule.algorithm}")


if __name__ == "__main__":
    main()
