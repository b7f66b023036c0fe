"""Five algorithms on the embedded digits under strong non-IID: ten clients, Dirichlet(0.1). Run with `make demo`.

Every algorithm starts from the same model and sees the same clients, batches and seeds. Run directories go to
out/demo/runs; the comparison is printed, and out/demo/report.html is the page that `steelyard report` makes of them.
"""

import shutil
import time
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

import steelyard
from steelyard.report.gather import gather
from steelyard.report.page import write

OUT = Path("out/demo")
ROUNDS = 100
SEEDS = (0, 1, 2)
LOCAL = {"lr": 0.1, "batch_size": 16, "epochs": 2}
ALGORITHMS = {
    "fedavg": steelyard.Algorithm("fedavg"),
    "fedadp": steelyard.Algorithm("fedadp"),
    "fedawa": steelyard.Algorithm("fedawa:steps=10"),
    "fedcos": steelyard.Algorithm("uniform", client="fedcos:mu=0.02"),
    "pa3fed": steelyard.Algorithm("pa3fed:score=neg_loss,detector=criticalfl_window"),
}


def run_all(console):
    shutil.rmtree(OUT / "runs", ignore_errors=True)
    jobs = [(name, seed) for name in ALGORITHMS for seed in SEEDS]
    for name, seed in track(jobs, "running", console=console, transient=True):
        steelyard.simulate(
            ALGORITHMS[name],
            rounds=ROUNDS,
            partition="dirichlet:alpha=0.1",
            local=LOCAL,
            seed=seed,
            out=OUT / "runs" / f"{name}-s{seed}",
        )


def shown(summary):
    """The report's summary as a table on the screen, without what its title says."""
    table = Table(title=f"mean of {len(SEEDS)} seeds, {ROUNDS} rounds", title_justify="left")
    kept = [at for at, head in enumerate(summary.heads) if head not in ("seeds", "rounds")]
    for at in kept:
        table.add_column(summary.heads[at], justify="right" if at else "left", overflow="fold")
    for name, *numbers in summary.texts():
        cells = [name.partition(":")[0], *numbers]
        table.add_row(*(cells[at] for at in kept))
    return table


def main():
    console = Console()
    console.print(__doc__.split("\n\n")[0].split(" Run with")[0], style="bold")
    began = time.monotonic()
    run_all(console)
    page = OUT / "report.html"
    report = gather([OUT / "runs"], target=0.8, out=page)
    console.print(shown(report.summary))
    console.print(
        "±: deviation over seeds. Whether a difference is more than noise: steelyard compare out/demo/runs",
        highlight=False,
    )
    write(report, page)
    console.print(f"{time.monotonic() - began:.0f} s. Runs: {OUT / 'runs'}   Report: {page}", highlight=False)


if __name__ == "__main__":
    main()
