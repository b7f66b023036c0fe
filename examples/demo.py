"""Six algorithms in two non-IID settings on the embedded digits. Run it with `make demo`.

Within a setting, every algorithm starts from the same model and sees the same clients, batches and
seeds, so differences are taken seed by seed. Each table shows the mean test accuracy of the last
ten rounds, and how many points an algorithm is above or below FedAvg, with a 95 % confidence
interval. Run directories go to out/demo/runs, one interactive page per setting to out/demo.

`python examples/demo.py --seeds 10 --markdown` runs ten seeds instead of three, for narrower
intervals: these are the tables of docs/demo.md.
"""

import argparse
import re
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

import steelyard
from steelyard.experiments import difference, mean, scores
from steelyard.report import build_report, write_report

OUT = Path("out/demo")
ALGORITHMS = {
    "FedAvg": steelyard.Algorithm("fedavg"),
    "FedAdp": steelyard.Algorithm("fedadp"),
    "FedAWA (10 steps)": steelyard.Algorithm("fedawa:steps=10"),
    "FedCos": steelyard.Algorithm("fedavg", client="fedcos:mu=0.02"),
    "PA3Fed": steelyard.Algorithm("pa3fed"),
    "recommended: FedDisco + FedCos": steelyard.recommended(),
}


@dataclass(frozen=True)
class Setting:
    """How data is spread over ten clients, how they train, and what the result means."""

    name: str
    title: str
    remark: str
    partition: str
    epochs: int
    rounds: int
    target: float = 0.8


SETTINGS = [
    Setting(
        name="one-class",
        title="3 IID clients + 7 clients with one class each, 100 samples per client",
        remark=(
            "The setting of FedAdp's paper: a few clients hold all classes, and a rule that looks "
            "at directions finds them. The last row composes two methods."
        ),
        partition="x_class:classes=1,iid=3,samples=100",
        epochs=1,
        rounds=60,
    ),
    Setting(
        name="dirichlet",
        title="10 clients, Dirichlet(0.1): every client is skewed, sizes differ",
        remark=(
            "No client is IID here: all updates point away from their mean by similar angles, so a "
            "rule that weighs by angles has nothing to choose from. Only FedCos gains, alone or "
            "composed: it "
            "acts inside the clients' training."
        ),
        partition="dirichlet:alpha=0.1",
        epochs=2,
        rounds=100,
    ),
]


def run_setting(setting, seeds, console):
    """Runs every algorithm with every seed; returns histories by algorithm and seed."""
    jobs = [(name, seed) for name in ALGORITHMS for seed in range(seeds)]
    histories = {name: {} for name in ALGORITHMS}
    for name, seed in track(jobs, setting.name, console=console, transient=True):
        algorithm = ALGORITHMS[name]
        folder = re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")
        histories[name][str(seed)] = steelyard.simulate(
            algorithm,
            rounds=setting.rounds,
            partition=setting.partition,
            local={"lr": 0.1, "batch_size": 16, "epochs": setting.epochs},
            seed=seed,
            out=OUT / "runs" / setting.name / f"{folder}-s{seed}",
        )
    return histories


def measure_runs(histories, setting):
    """Returns accuracy of the last ten rounds, and rounds to the target, by algorithm and seed."""
    accuracy = {}
    rounds = {}
    for name, runs in histories.items():
        accuracy[name] = {seed: 100 * scores.last(run) for seed, run in runs.items()}
        rounds[name] = {seed: run.rounds_to(setting.target) for seed, run in runs.items()}
    return accuracy, rounds


def format_difference(name, values):
    """Formats the paired difference to FedAvg, with its confidence interval where there is one."""
    paired = difference(name, "FedAvg", values[name], values["FedAvg"])
    if paired.mean is None:
        return "-"
    if paired.half_width is None:
        return f"{paired.mean:+.1f}"
    return f"{paired.mean:+.1f} ± {paired.half_width:.1f} points"


def format_rounds(by_seed):
    """Formats the mean number of rounds over the seeds that reached the target."""
    reached = [rounds for rounds in by_seed.values() if rounds is not None]
    if not reached:
        return "never"
    missing = len(by_seed) - len(reached)
    return f"{mean(reached):.0f}" + (
        f" ({missing} of {len(by_seed)} seeds never)" if missing else ""
    )


def build_rows(setting, histories):
    """Builds the comparison of one setting: a header and a row of text per algorithm."""
    accuracy, rounds = measure_runs(histories, setting)
    rows = [("algorithm", "last 10 rounds", "against FedAvg", f"rounds to {setting.target:.0%}")]
    for name in ALGORITHMS:
        last = f"{mean(list(accuracy[name].values())):.1f} %"
        points = "" if name == "FedAvg" else format_difference(name, accuracy)
        rows.append((name, last, points, format_rounds(rounds[name])))
    return rows


def print_rows(rows, title, console):
    """Prints a comparison as a table on the screen."""
    table = Table(title=title, title_justify="left")
    table.add_column(rows[0][0])
    for column in rows[0][1:]:
        table.add_column(column, justify="right")
    for row in rows[1:]:
        table.add_row(*row)
    console.print(table)


def print_markdown(rows, title):
    """Prints a comparison as a table in Markdown."""
    print(f"**{title}**\n")
    for number, row in enumerate(rows):
        print("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |")
        if number == 0:
            print("|---" + "|---:" * (len(row) - 1) + "|")
    print()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--seeds", type=int, default=3, help="number of seeds, from 0 on (default: 3)"
    )
    parser.add_argument("--markdown", action="store_true", help="print the tables in Markdown")
    arguments = parser.parse_args()
    console = Console(stderr=arguments.markdown)
    began = time.monotonic()
    shutil.rmtree(OUT / "runs", ignore_errors=True)
    for setting in SETTINGS:
        histories = run_setting(setting, arguments.seeds, console)
        page = OUT / f"{setting.name}.html"
        write_report(
            build_report([OUT / "runs" / setting.name], target=setting.target, out=page), page
        )
        rows = build_rows(setting, histories)
        title = f"{setting.title}; {setting.rounds} rounds, {arguments.seeds} seeds"
        if arguments.markdown:
            print_markdown(rows, title)
        else:
            print_rows(rows, title, console)
        console.print(setting.remark, highlight=False)
        console.print(f"Interactive page: {page}\n", highlight=False)
    console.print(f"{time.monotonic() - began:.0f} s. Runs: {OUT / 'runs'}", highlight=False)


if __name__ == "__main__":
    main()
