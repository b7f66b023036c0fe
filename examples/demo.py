"""Five algorithms on the embedded digits under strong non-IID: ten clients, Dirichlet(0.1). Run with `make demo`.

Every algorithm starts from the same model and sees the same clients, batches and seeds. Run directories go to
out/demo/runs; the comparison is printed and drawn in out/demo/report.html.
"""

import shutil
import statistics
import time
from html import escape
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import steelyard

OUT = Path("out/demo")
ROUNDS = 100
SEEDS = (0, 1, 2)
LOCAL = {"lr": 0.1, "batch_size": 16, "epochs": 2}
ALGORITHMS = {
    "FedAvg": steelyard.Algorithm("fedavg"),
    "FedAdp": steelyard.Algorithm("fedadp"),
    "FedAWA": steelyard.Algorithm("fedawa:steps=10"),
    "FedCos": steelyard.Algorithm("uniform", client="fedcos:mu=0.02"),
    "PA3Fed": steelyard.Algorithm("pa3fed:score=neg_loss,detector=criticalfl_window"),
}
COLOURS = dict(zip(ALGORITHMS, ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#000000"), strict=True))
DASHES = dict(zip(ALGORITHMS, ("", "8 3", "2 3", "10 3 2 3", "4 4"), strict=True))


def run_all(console):
    """Histories by algorithm, one for each seed."""
    shutil.rmtree(OUT / "runs", ignore_errors=True)
    histories = {name: [] for name in ALGORITHMS}
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("", total=len(ALGORITHMS) * len(SEEDS))
        for name, algorithm in ALGORITHMS.items():
            for seed in SEEDS:
                progress.update(task, description=f"{name}, seed {seed}")
                made = steelyard.simulate(
                    algorithm,
                    rounds=ROUNDS,
                    partition="dirichlet:alpha=0.1",
                    local=LOCAL,
                    seed=seed,
                    out=OUT / "runs" / f"{name.lower()}-s{seed}",
                )
                histories[name].append(made)
                progress.advance(task)
    return histories


def figures(histories):
    """Mean over seeds: final accuracy (last ten rounds), its deviation, best round, rounds to 80 %."""
    rows = []
    for name, runs in histories.items():
        last = [statistics.mean(run.column("accuracy")[-10:]) for run in runs]
        reached = [run.rounds_to(0.8) for run in runs]
        rows.append(
            (
                name,
                f"{100 * statistics.mean(last):.1f} ± {100 * statistics.stdev(last):.1f}",
                f"{100 * statistics.mean(run.best for run in runs):.1f}",
                f"{statistics.mean(reached):.0f}"
                if all(reached)
                else f"{sum(map(bool, reached))} of {len(runs)} got there",
                f"{statistics.mean(statistics.mean(run.column('effective_clients')) for run in runs):.1f}",
                f"{statistics.mean(sum(r['timings']['total'] for r in run) for run in runs):.1f}",
            )
        )
    return ("algorithm", "last 10 rounds, %", "best, %", "rounds to 80 %", "effective clients", "seconds"), rows


def chart(histories, width=860, height=420):
    """Accuracy over rounds, mean of the seeds, as SVG."""
    left, right, top, bottom = 50, 130, 15, 40
    wide, high = width - left - right, height - top - bottom

    def x(round_number):
        return left + wide * (round_number - 1) / (ROUNDS - 1)

    def y(accuracy):
        return top + high * (1 - accuracy)

    parts = [f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="Accuracy over rounds">']
    for tick in range(0, 101, 20):
        parts.append(f'<line x1="{left}" x2="{left + wide}" y1="{y(tick / 100)}" y2="{y(tick / 100)}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 8}" y="{y(tick / 100) + 4}" text-anchor="end">{tick} %</text>')
    for tick in range(0, ROUNDS + 1, 20):
        parts.append(f'<text x="{x(max(tick, 1))}" y="{top + high + 18}" text-anchor="middle">{max(tick, 1)}</text>')
    parts.append(f'<text x="{left + wide / 2}" y="{height - 4}" text-anchor="middle">round</text>')
    ends = []
    for name, runs in histories.items():
        mean = [statistics.mean(values) for values in zip(*(run.column("accuracy") for run in runs), strict=True)]
        points = " ".join(f"{x(i):.1f},{y(value):.1f}" for i, value in enumerate(mean, 1))
        style = f'fill="none" stroke="{COLOURS[name]}" stroke-width="2" stroke-dasharray="{DASHES[name]}"'
        parts.append(f'<polyline points="{points}" {style}/>')
        ends.append((y(mean[-1]), name))
    floor = 0.0
    for at, name in sorted(ends):  # labels at the lines' ends, moved apart
        floor = max(at + 4, floor + 16)
        parts.append(f'<text x="{left + wide + 8}" y="{floor:.1f}" fill="{COLOURS[name]}">{name}</text>')
    return "".join([*parts, "</svg>"])


def report(histories):
    head, rows = figures(histories)
    cells = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    style = (
        "body{font:15px/1.5 system-ui,sans-serif;max-width:880px;margin:2em auto;padding:0 1em}"
        "table{border-collapse:collapse}td,th{padding:.25em .8em;border-bottom:1px solid #ccc;text-align:right}"
        "td:first-child,th:first-child{text-align:left}svg{width:100%;font-size:13px}code{background:#f3f3f3}"
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Steelyard demo</title><style>{style}</style>'
        "<h1>Five algorithms on digits</h1><p>Ten clients, Dirichlet(0.1): most clients hold few classes. "
        f"{ROUNDS} rounds, mean of {len(SEEDS)} seeds; same initial model, same batches.</p>{chart(histories)}"
        f"<table><tr>{cells}</tr>{body}</table><p>Differences smaller than the deviation over seeds mean nothing. "
        "FedCos averages uniformly, as its authors do, the others by data size. "
        f"Runs are in <code>{escape(str(OUT / 'runs'))}</code>; made by <code>make demo</code>.</p></html>"
    )


def main():
    console = Console()
    console.print(__doc__.split("\n\n")[0].split(" Run with")[0], style="bold")
    began = time.monotonic()
    histories = run_all(console)
    head, rows = figures(histories)
    table = Table(title=f"mean of {len(SEEDS)} seeds, {ROUNDS} rounds", title_justify="left")
    for column in head:
        table.add_column(column, justify="left" if column == "algorithm" else "right")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    console.print("Differences smaller than the deviation over seeds mean nothing.", highlight=False)
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "report.html").write_text(report(histories), encoding="utf-8")
    console.print(
        f"{time.monotonic() - began:.0f} s. Runs: {OUT / 'runs'}   Picture: {OUT / 'report.html'}", highlight=False
    )


if __name__ == "__main__":
    main()
