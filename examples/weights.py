"""Eight synthetic clients under every rule: who gets which weight. Run with `python examples/weights.py`.

Clients 0 to 4 learn a common direction plus one of their own; 5 pulls elsewhere, 6 returns the
model unchanged, 7 sends its update a hundredfold. The error is the distance of the new model from
where the honest majority points; 1.00 is what no step at all would leave.
"""

from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

import steelyard
from steelyard.core import OPTIMIZERS, RULES

OUT = Path("out/weights.html")
CLIENTS = [
    "honest 0",
    "honest 1",
    "honest 2",
    "honest 3",
    "honest 4",
    "outlier 5",
    "idle 6",
    "x100 7",
]
SIZES = [600, 600, 300, 300, 100, 300, 600, 100]
WRAPPED = {
    "gate": "gate(eq6,fedawa:steps=50)",
    "guard": "guard(fedadp)",
    "if_finite": "if_finite(fedadp)",
}
WRAPPED |= {"nnm": "nnm(fedadp):f=2", "per_layer": "per_layer(fedadp):layers=[200,800]"}
TUNED = {
    "shrink": "fedavg|shrink:gamma=0.9",
    "cap": "fedavg|cap:max_weight=0.2",
    "ema": "fedadp|ema",
    "ldawa": "ldawa:warmup=0",
}
TUNED |= {
    "fedawa": "fedawa:steps=50,lr=0.02",
    "fedawa_l": "fedawa_l:steps=50,lr=0.02,layers=[200,800]",
    "krum": "krum:f=2",
}
TUNED |= {
    "multikrum": "multikrum:f=2",
    "trimmed_mean": "trimmed_mean:f=2",
    "eq6": "",
    "criticalfl_window": "",
    "geometric_median": "geometric_median:steps=8",
}


def make_round():
    g = torch.Generator().manual_seed(0)
    base = torch.randn(1000, generator=g)
    common = torch.randn(1000, generator=g)
    steps = common + 0.7 * torch.randn(8, 1000, generator=g)
    steps[5] = torch.randn(1000, generator=g)
    steps[6] = 0
    steps[7] *= 100
    metrics = {
        "num_examples": SIZES,
        "num_steps": [n // 10 for n in SIZES],
        "normalizer": [n / 10 for n in SIZES],
        "label_hist": [
            [10, 10, 10],
            [12, 9, 9],
            [10, 12, 8],
            [8, 10, 12],
            [9, 9, 12],
            [30, 0, 0],
            [10, 10, 10],
            [5, 5, 20],
        ],
        "loss": [1.0, 1.1, 0.9, 1.0, 1.2, 2.0, 1.0, 1.5],
        "accuracy": [0.7, 0.7, 0.7, 0.7, 0.6, 0.3, 0.7, 0.5],
        "grad_norm": [1.0] * 8,
    }
    return base, base + 0.01 * steps, base + 0.01 * common, metrics


def main():
    base, clients, honest, metrics = make_round()
    console = Console(record=True, width=150)
    console.print(__doc__.split("Run with")[0].strip(), style="bold")
    console.print(__doc__.split("\n\n", 1)[1].strip(), highlight=False)
    table = Table(title="Weights (share of the sum, %)", title_justify="left")
    table.add_column("rule", no_wrap=True)
    table.add_column("error", justify="right")
    table.add_column("")
    for client in CLIENTS:
        table.add_column(client, justify="right")
    for entry in RULES:
        text = WRAPPED.get(entry.name) or TUNED.get(entry.name, entry.name)
        if not text:
            continue  # a detector: it shows inside gate
        out = steelyard.aggregate(text, base, clients, metrics=metrics, round=4)
        weights = out.weights if out.weights.ndim == 1 else out.weights.mean(dim=0)
        share = 100 * weights / weights.sum()
        error = ((out.params - honest).norm() / (honest - base).norm()).item()
        verdict = ""
        style = None
        if error < 0.5:
            verdict = "good"
            style = "green"
        elif error > 1:
            verdict = "bad"
            style = "red"
        table.add_row(
            text, f"{error:.2f}", verdict, *(f"{value:.1f}" for value in share), style=style
        )
    console.print(table)
    console.print("good: error under 0.5; bad: over 1, worse than no step at all", highlight=False)
    names = ", ".join(entry.name for entry in OPTIMIZERS)
    console.print(f"server optimizers, for aggregate(..., server=...): {names}", highlight=False)
    OUT.parent.mkdir(exist_ok=True)
    console.save_html(str(OUT))
    print(f"saved as {OUT}")


if __name__ == "__main__":
    main()
