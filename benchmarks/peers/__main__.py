"""`make bench-peers`: each peer in its own venv, all in one run, turn and turn about; tables here, JSON in out/."""

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.contest import CONTESTANTS, OURS, Failed, Run, agreement, compared, turn
from benchmarks.peers.workloads import Workload, published, quickstart, same_work, write
from steelyard import SteelyardError
from steelyard.data import load

CLOSE = 1e-3  # of the distance trained: what float32 sums in another order may differ by
Source = dict[str, tuple[np.ndarray, np.ndarray]]


def cifar() -> Source | None:
    """CIFAR-10 in one order for all, or None if its files are not here."""
    try:
        train, test = load("cifar10")
    except SteelyardError as error:
        print(f"synthetic images of CIFAR-10's shape: {error}")
        return None
    order = np.random.default_rng(3).permutation(len(train))
    return {
        "train": (train.inputs.numpy()[order], train.targets.numpy()[order]),
        "test": (test.inputs.numpy(), test.targets.numpy()),
    }


def contest(
    workload: Workload, names: list[str], turns: int, source: Source | None, where: Path
) -> dict[str, Any]:
    """All contestants, turn and turn about; who fails is left out of the rest and named."""
    job = write(workload, where, source)
    runs: dict[str, list[Run]] = {name: [] for name in names}
    failures: dict[str, str] = {}
    for number in range(turns):
        for name in names if number % 2 == 0 else names[::-1]:
            if name in failures:
                continue
            try:
                runs[name].append(turn(name, job, where))
            except Failed as failure:
                failures[name] = str(failure)
                del runs[name]
    if OURS in failures:
        raise SystemExit(failures[OURS])
    rows = compared(workload, runs)
    for name, facts in agreement(job, {name: taken[-1] for name, taken in runs.items()}).items():
        rows[name] |= facts
    show(workload, rows, failures, turns)
    return {"workload": workload.name, "turns": turns, "rows": rows, "failures": failures}


def show(
    workload: Workload, rows: dict[str, dict[str, Any]], failures: dict[str, str], turns: int
) -> None:
    """A table on the screen."""
    kind = "whole process" if workload.whole else "per round"
    print(
        f"\n{workload.name}: seconds {kind}, median of {turns} turns; loss and distance of the "
        f"final model"
    )
    print(
        f"{'':12}{'seconds':>9}{'start':>8}{'round':>8}{'ratio':>8}{'range':>14}{'bar':>6}{'steps':>7}{'loss':>8}{'far':>10}"
    )
    for name, row in rows.items():
        low, high = row["range"]
        bar = f"{row['bar']:6.1f}" if row["bar"] is not None else f"{'':6}"
        verdict = {None: "", True: "  holds", False: "  MISSED"}[row["holds"]]
        print(
            f"{name:12}{row['seconds']:9.2f}{row['start']:8.2f}{row['per_round']:8.3f}{row['ratio']:8.2f}"
            f"{f'{low:.2f}-{high:.2f}':>14}{bar}{row['steps'][-1]:7}{row['loss']:8.4f}{row['distance']:10.1e}{verdict}"
        )
    for name, reason in failures.items():
        print(f"{name:12} FAILED: {reason}")


def verdicts(found: list[dict[str, Any]]) -> list[str]:
    """What the run has shown, in sentences; a contestant that failed has shown nothing."""
    lines = [f"{one['workload']}: {name} FAILED" for one in found for name in one["failures"]]
    for one in found:
        if one["workload"] == same_work().name:
            far = [name for name, row in one["rows"].items() if not row["distance"] < CLOSE]
            agreed = f"DIFFER: {', '.join(far)}" if far else "all agree"
            lines.append(
                f"{one['workload']} after two rounds, to {CLOSE:g} of the way trained: {agreed}"
            )
    missed = [
        (one["workload"], name)
        for one in found
        for name, row in one["rows"].items()
        if row["holds"] is False
    ]
    lines += [f"{workload}: {name} MISSED" for workload, name in missed]
    return lines if missed else [*lines, "no bar was missed by those that ran"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument(
        "--sizes", type=int, nargs="*", default=[100, 500, 5000], help="images per client"
    )
    parser.add_argument(
        "--rounds", type=int, default=6, help="of pfl's set-up; the first is not counted"
    )
    parser.add_argument("--peers", nargs="*", choices=list(CONTESTANTS), default=list(CONTESTANTS))
    parser.add_argument("--only", choices=["same", "quickstart", "published"])
    parser.add_argument(
        "--small", action="store_true", help="a few seconds of each: to see whether it runs"
    )
    parser.add_argument("--out", type=Path, default=Path("out/bench-peers.json"))
    arguments = parser.parse_args()
    small, source = arguments.small, cifar()
    chosen = {"same": [same_work()]}
    chosen["quickstart"] = (
        [quickstart(20, 2, 500)] if small else [quickstart(size) for size in arguments.sizes]
    )
    chosen["published"] = [published(20, 4, 2) if small else published(rounds=arguments.rounds)]
    names = [OURS, *(name for name in arguments.peers if name != OURS)]
    found = []
    with tempfile.TemporaryDirectory() as directory:
        for kind in chosen if arguments.only is None else [arguments.only]:
            for number, workload in enumerate(chosen[kind]):
                turns = 1 if small or kind == "same" else arguments.turns
                found.append(
                    contest(workload, names, turns, source, Path(directory) / f"{kind}-{number}")
                )
    print()
    for line in verdicts(found):
        print(line)
    if small:
        print("this was a small run: it shows that everything works, and nothing about speed")
    arguments.out.parent.mkdir(exist_ok=True, parents=True)
    facts = {
        "cores": os.cpu_count(),
        "data": "cifar10" if source else "synthetic",
        "contests": found,
    }
    arguments.out.write_text(json.dumps(facts, indent=1))
    print(f"saved as {arguments.out}")


if __name__ == "__main__":
    main()
