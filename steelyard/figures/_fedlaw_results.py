"""FedLAW's figures on results of FedLAW and its rivals: 8 and 14 to 17."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from steelyard.diagnostics import curves
from steelyard.experiments import read_table
from steelyard.figures._fedlaw_settings import (
    AS_IN_CODE,
    ON_DIGITS,
    PAPER,
    PAPER_SEEDS,
    QUICK,
    QUICK_SEEDS,
    TEN_CLIENTS,
    set_clients,
)
from steelyard.figures._figure import (
    Check,
    PaperFigure,
    Results,
    Scale,
    Settings,
    Source,
    Verdict,
    make_runs,
    merge_settings,
    register,
)
from steelyard.figures._judge import (
    check_difference,
    check_not_lower,
    check_trend,
    last_accuracies,
)
from steelyard.figures._style import (
    BLUE,
    CYCLE,
    DASHED,
    DOTTED,
    GREEN,
    GREY,
    MARKERS,
    ORANGE,
    PINK,
    RED,
    SKY,
    SOLID,
    YELLOW,
    add_legend,
    align_series,
    label_rounds,
    make_panels,
    plot_mean,
    plot_series,
)
from steelyard.runs._history import History

if TYPE_CHECKING:  # optional, and slow to import
    from matplotlib.figure import Figure as Drawing

# The algorithms of Table 3: as there, and with shorter training of the server.
PAPER_ALGORITHMS: dict[str, Settings] = {
    "FedAvg": {"weighting": "fedavg"},
    "FedDF": {"refine": "feddf:preset=official,epochs=100"},
    "FedBE": {"refine": "fedbe:preset=official,epochs=100"},
    "Server-FT": {"refine": "server_ft:preset=official,epochs=2"},
    "FedLAW": {"weighting": "fedlaw:lr=0.01"},
}
QUICK_ALGORITHMS: dict[str, Settings] = {
    "FedAvg": {"weighting": "fedavg"},
    "FedProx": {
        "client": "fedprox:mu=0.001",
        "local": {"momentum": 0.0, "weight_decay": 0.0, "persistent": False},
    },
    "FedDyn": {"client": "feddyn:alpha=0.01,form=fedlaw"},
    "FedDF": {"refine": "feddf:preset=official,epochs=10,lr=0.02"},
    "FedBE": {"refine": "fedbe:preset=official,epochs=10,lr=0.02"},
    "Server-FT": {"refine": "server_ft:preset=official,epochs=2,lr=0.02"},
    "FedLAW": {"weighting": "fedlaw:epochs=20,lr=0.05"},
    "FedLAW (SWA)": {"weighting": "fedlaw_swa:preset=official,epochs=20,lr=0.05"},
}
STYLES: dict[str, tuple[str, Any]] = {
    "FedAvg": (GREY, DOTTED),
    "FedProx": (ORANGE, DOTTED),
    "FedDyn": (YELLOW, SOLID),
    "FedDF": (GREEN, DASHED),
    "FedBE": (SKY, DASHED),
    "Server-FT": (PINK, DASHED),
    "FedLAW": (BLUE, SOLID),
    "FedLAW (SWA)": (RED, SOLID),
}
QUICK_RIVALS = (
    "The server of FedDF and FedBE trains 10 epochs instead of 100, that of FedLAW 20 epochs at "
    "learning rate 0.05 (100, 0.01); all have 100 proxy images."
)
OURS = ("FedLAW", "FedLAW (SWA)")
STEADY = 1.0  # points of accuracy by which a steady curve may fall


def vary_participation(
    base: Settings, algorithms: Mapping[str, Settings], values: Mapping[str, Any]
) -> dict[Any, Settings]:
    """Return the runs of Figure 8: by algorithm, "share" or "size", and its value.

    Args:
        base: the settings of all runs.
        algorithms: the settings of each algorithm.
        values: the `algorithms`, the `shares` of clients, and the `sizes` of the proxy set.
    """
    runs: dict[Any, Settings] = {}
    for algorithm in values["algorithms"]:
        for share in values["shares"]:
            settings = set_clients(base, alpha=1, epochs=3)
            runs[algorithm, "share", share] = merge_settings(
                settings,
                algorithms[algorithm],
                {"participation": {"share": share}, "proxy": {"per_class": 10}},
            )
        for size in values["sizes"]:
            settings = set_clients(base, alpha=0.1, epochs=3)
            runs[algorithm, "size", size] = merge_settings(
                settings, algorithms[algorithm], {"proxy": {"per_class": size}}
            )
    return runs


QUICK_VALUES: dict[str, Any] = {
    "shares": (0.2, 1.0),
    "sizes": (1, 5, 20),
    "algorithms": ("FedAvg", "FedDF", "Server-FT", "FedLAW"),
}
PAPER_VALUES: dict[str, Any] = {
    "shares": (0.2, 0.4, 0.6, 0.8, 1.0),
    "sizes": (1, 5, 10, 50, 100),
    "algorithms": tuple(PAPER_ALGORITHMS),
}


@register
class Figure8(PaperFigure):
    """Accuracy by participation ratio, and by the size of the proxy set."""

    name = "fedlaw-figure8"
    title = "Participation ratios and sizes of the proxy set"
    claim = (
        "FedLAW performs well under partial participation; it works with a tiny proxy set and gains "
        "from a larger one, while the other server-side methods are sensitive to its size."
    )
    source = Source("Figure 8", "section 6.2", "994-995, 1009-1017")
    quick = Scale(
        vary_participation(QUICK, QUICK_ALGORITHMS, QUICK_VALUES),
        QUICK_SEEDS[:3],
        (ON_DIGITS, TEN_CLIENTS, QUICK_RIVALS, "FedBE is left out."),
        QUICK_VALUES,
    )
    paper = Scale(
        vary_participation(PAPER, PAPER_ALGORITHMS, PAPER_VALUES),
        PAPER_SEEDS,
        (
            AS_IN_CODE,
            "The text names neither ratios nor sizes: 0.2 to 1, and 10 to 1000 images. Appendix D.2 "
            "says 100 images for the right panel, which varies them.",
        ),
        PAPER_VALUES,
    )

    @staticmethod
    def collect(results: Results, algorithm: str, kind: str, positions: Sequence[float]) -> Any:
        """Return the accuracies of the last rounds, `[seeds, positions]`."""
        columns = [last_accuracies(results[algorithm, kind, position]) for position in positions]
        return np.transpose(columns)

    def draw(self, results: Results) -> Drawing:
        """Draw accuracy by ratio on the left, by size on the right."""
        values = results.scale.values
        images = [10 * size for size in values["sizes"]]
        drawing, (left, right) = make_panels(2, height=2.6)
        for algorithm, marker in zip(values["algorithms"], MARKERS, strict=False):
            colour, dash = STYLES[algorithm]
            style: dict[str, Any] = {
                "color": colour,
                "linestyle": dash,
                "marker": marker,
                "markersize": 4,
                "label": algorithm,
            }
            rows = self.collect(results, algorithm, "share", values["shares"])
            plot_mean(left, values["shares"], rows, **style)
            rows = self.collect(results, algorithm, "size", values["sizes"])
            plot_mean(right, images, rows, **style)
        left.set(title="test accuracy by participation ratio, %", xlabel="share of clients")
        right.set(title="test accuracy by proxy set, %", xlabel="images", xscale="log")
        add_legend(drawing, left, columns=5)
        return drawing

    def judge(self, results: Results) -> Verdict:
        """Compare FedLAW with the best rival at two ratios, and its trend by size."""
        values = results.scale.values
        checks = []
        for share in (min(values["shares"]), max(values["shares"])):
            means = {}
            for algorithm in values["algorithms"]:
                means[algorithm] = np.mean(last_accuracies(results[algorithm, "share", share]))
            rivals = [algorithm for algorithm in means if algorithm != "FedLAW"]
            best = max(rivals, key=means.__getitem__)
            checks.append(
                check_difference(
                    f"FedLAW minus {best}, the best rival, at ratio {share:g}",
                    last_accuracies(results["FedLAW", "share", share]),
                    last_accuracies(results[best, "share", share]),
                    "higher",
                    "points",
                )
            )
        smallest = min(values["sizes"])
        checks += [
            check_difference(
                f"FedLAW minus FedAvg with {10 * smallest} proxy images",
                last_accuracies(results["FedLAW", "size", smallest]),
                last_accuracies(results["FedAvg", "size", smallest]),
                "higher",
                "points",
            ),
            check_trend(
                "FedLAW from the smallest to the largest proxy set",
                values["sizes"],
                self.collect(results, "FedLAW", "size", values["sizes"]),
                "higher",
            ),
        ]
        return Verdict.from_checks(checks)


@register
class Figure14(PaperFigure):
    """How gamma and lambda converge within one round of FedLAW's server."""

    name = "fedlaw-figure14"
    title = "Server training of FedLAW"
    claim = "γ converges faster than λ: in about 30 server epochs, while λ needs about 80."
    source = Source("Figure 14", "appendix B.3", "1310-1311, 1333")
    quick = Scale(
        {
            "fedlaw": merge_settings(
                set_clients(QUICK, alpha=1, epochs=3),
                {"weighting": "fedlaw:epochs=100,lr=0.01,trace=true", "rounds": 10},
            )
        },
        (*QUICK_SEEDS, 54, 55),
        (ON_DIGITS, TEN_CLIENTS, "10 rounds; the caption does not name the round: the last one."),
    )
    paper = Scale(
        {
            "fedlaw": merge_settings(
                set_clients(PAPER, alpha=1, epochs=3),
                {
                    "model": "resnet20",
                    "weighting": "fedlaw:epochs=100,lr=0.01,trace=true",
                    "proxy": {"per_class": 10},
                },
            )
        },
        PAPER_SEEDS,
        (AS_IN_CODE, "The caption does not name the round: the last one."),
    )

    @staticmethod
    def read_weights(history: History) -> tuple[list[int], Any, Any]:
        """Return the epochs, gamma `[epochs]` and lambda `[epochs, clients]` of the last round."""
        trace = curves(history)
        table = trace["lambda"]
        weights = np.transpose([table[client] for client in table])
        return list(trace["epoch"]), np.array(trace["gamma"]), weights

    @staticmethod
    def find_convergence(epochs: Sequence[int], values: Any) -> float:
        """Return the first epoch from which all values stay within a tenth of their whole change."""
        table = np.asarray(values, dtype=np.float64).reshape(len(epochs), -1)
        changes = np.abs(table - table[-1])
        limits = 0.1 * np.maximum(np.abs(table - table[0]).max(axis=0), 1e-12)
        is_far = (changes > limits).any(axis=1)
        if not is_far.any():
            return float(epochs[0])
        last_far = int(np.flatnonzero(is_far)[-1])
        return float(epochs[min(last_far + 1, len(epochs) - 1)])

    def draw(self, results: Results) -> Drawing:
        """Draw gamma on the left and lambda on the right, for the first seed."""
        drawing, (gamma, weights) = make_panels(2, height=2.5)
        for seed, history in zip(results.seeds, results["fedlaw"], strict=True):
            epochs, factor, shares = self.read_weights(history)
            gamma.plot(epochs, factor, color=GREY, linewidth=0.8, label=f"seed {seed}")
            if seed == results.seeds[0]:
                gamma.lines[-1].set(color=GREEN, linewidth=1.6)
                for client, row in enumerate(shares.T):
                    colour = CYCLE[client % len(CYCLE)]
                    weights.plot(epochs, row, color=colour, linewidth=1, label=f"client {client}")
        gamma.set(title="γ (green: first seed)", xlabel="server epoch")
        weights.set(title="λ of each client, first seed", xlabel="server epoch")
        return drawing

    def judge(self, results: Results) -> Verdict:
        """Compare the epochs in which gamma and lambda have converged."""
        gamma_epochs = []
        lambda_epochs = []
        for history in results["fedlaw"]:
            epochs, factor, shares = self.read_weights(history)
            gamma_epochs.append(self.find_convergence(epochs, factor))
            lambda_epochs.append(self.find_convergence(epochs, shares))
        check = check_difference(
            f"γ converges in epoch {np.mean(gamma_epochs):.0f}, λ in {np.mean(lambda_epochs):.0f}; "
            "difference",
            gamma_epochs,
            lambda_epochs,
            "lower",
            "epochs",
            digits=0,
        )
        return Verdict.from_checks([check])


def read_columns(patterns: Sequence[str]) -> dict[tuple[str, str], Settings]:
    """Return the runs of some columns of Table 3, by column and algorithm, without our controls."""
    runs = {}
    for cell in read_table("fedlaw-table3").select_cells(patterns).cells:
        if not cell.is_control:
            runs[cell.column, cell.row] = cell.raw
    return runs


def set_network(model: str | None, alpha: float, algorithm: str) -> Settings:
    """Return settings of an algorithm on digits with a network and Dirichlet(alpha) clients."""
    base = set_clients(QUICK, alpha=alpha, epochs=3)
    return merge_settings(base, QUICK_ALGORITHMS[algorithm], {"model": model})


def make_quick_curves(model: str | None) -> Scale:
    """Return small runs of all algorithms of Table 3 on digits with one network."""
    runs = {}
    for (alpha, algorithm), settings in make_runs(
        partial(set_network, model), alpha=(100.0, 0.1), algorithm=tuple(QUICK_ALGORITHMS)
    ).items():
        runs[f"digits, α = {alpha:g}, {model or 'mlp'}", algorithm] = settings
    differences = (
        "Embedded digits instead of images of objects, one network instead of two; 10 clients "
        "instead of 20; batch 32 and learning rate 0.02; 20 rounds instead of 200.",
        QUICK_RIVALS,
    )
    return Scale(runs, QUICK_SEEDS[:2], differences)


class Curves(PaperFigure):
    """Accuracy by round of all algorithms of Table 3, one panel per column."""

    claim = (
        "FedLAW surpasses the baseline algorithms in most cases, is steady, and avoids over-fitting "
        "in the late training."
    )
    paper_differences: ClassVar[tuple[str, ...]] = (
        AS_IN_CODE,
        "The other deviations are those of fedlaw-table3.",
    )

    def draw(self, results: Results) -> Drawing:
        """Draw one panel per column of the table."""
        columns = list(dict.fromkeys(column for column, _ in results.histories))
        drawing, panels = make_panels(2, rows=-(-len(columns) // 2), height=2.5)
        for (column, algorithm), runs in results.histories.items():
            colour, dash = STYLES[algorithm]
            plot_series(
                panels[columns.index(column)],
                runs,
                "accuracy",
                factor=100,
                color=colour,
                linestyle=dash,
                label=algorithm,
            )
        for column, axes in zip(columns, panels, strict=True):
            axes.set_title(f"{column}: test accuracy, %")
        label_rounds(*panels)
        add_legend(drawing, panels[0])
        return drawing

    def judge(self, results: Results) -> Verdict:
        """Count the baselines that FedLAW surpasses, and compare its last quarter with the third."""
        wins = 0
        total = 0
        checks = []
        for column in dict.fromkeys(column for column, _ in results.histories):
            ours = float(np.mean(last_accuracies(results[column, "FedLAW"])))
            for (other_column, algorithm), runs in results.histories.items():
                if other_column == column and algorithm not in OURS:
                    total += 1
                    wins += ours > float(np.mean(last_accuracies(runs)))

            # The mean accuracy of the last quarter of rounds minus that of the third quarter.
            rows = 100 * align_series(results[column, "FedLAW"], "accuracy")[1]
            quarter = max(1, rows.shape[1] // 4)
            checks.append(
                check_not_lower(
                    f"{column}: FedLAW's last quarter minus the third",
                    list(rows[:, -quarter:].mean(axis=1)),
                    list(rows[:, -2 * quarter : -quarter].mean(axis=1)),
                    STEADY,
                    "points",
                )
            )
        lead = Check(f"FedLAW is above {wins} of {total} baselines", wins > total / 2)
        return Verdict.from_checks([lead, *checks])


@register
class Figure15(Curves):
    """Curves on Fashion-MNIST."""

    name = "fedlaw-figure15"
    title = "Test accuracy by round on Fashion-MNIST"
    source = Source("Figure 15", "appendix B.3", "1306-1309, 1365")
    quick = make_quick_curves(None)
    paper = Scale(read_columns(["fashion-mnist-*/*"]), PAPER_SEEDS, Curves.paper_differences)


@register
class Figure16(Curves):
    """Curves on CIFAR-10."""

    name = "fedlaw-figure16"
    title = "Test accuracy by round on CIFAR-10"
    source = Source("Figure 16", "appendix B.3", "1306-1309, 1388")
    quick = make_quick_curves("mlp:hidden=[200,200]")
    paper = Scale(read_columns(["cifar10-*/*"]), PAPER_SEEDS, Curves.paper_differences)


@register
class Figure17(Curves):
    """Curves on CIFAR-100."""

    name = "fedlaw-figure17"
    title = "Test accuracy by round on CIFAR-100"
    source = Source("Figure 17", "appendix B.3", "1306-1309, 1403")
    quick = make_quick_curves("logistic")
    paper = Scale(read_columns(["cifar100-*/*"]), PAPER_SEEDS, Curves.paper_differences)
