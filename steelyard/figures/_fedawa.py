"""The figures of FedAWA (Shi et al., CVPR 2025)."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from steelyard.data import Federation, load
from steelyard.diagnostics import (
    client_distances,
    data_distances,
    data_vector,
    ideal_distances,
    ideal_model,
    matrix_correlation,
    run_similarity,
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
from steelyard.figures._judge import check_difference, check_value, last_accuracies
from steelyard.figures._models import (
    load_federation,
    load_model,
    read_experiment,
    train_clients,
)
from steelyard.figures._style import (
    BLUE,
    DASHED,
    DOTTED,
    GREEN,
    GREY,
    ORANGE,
    RED,
    SKY,
    SOLID,
    Array,
    add_legend,
    draw_matrix,
    label_rounds,
    make_panels,
    plot_bars,
    plot_mean,
)
from steelyard.report import Summary

if TYPE_CHECKING:  # optional, and slow to import
    from matplotlib.figure import Figure as Drawing

LOCAL: dict[str, Any] = {
    "epochs": 1,
    "lr": 0.08,
    "batch_size": 128,
    "schedule": "exponential:0.99",
    "momentum": 0.9,
    "weight_decay": 0.0005,
    "persistent": True,
    "train_share": 0.7,
}
PAPER: dict[str, Any] = {
    "model": "resnet20",
    "rounds": 300,
    "data": {"name": "cifar10", "clients": 20},
    "local": LOCAL,
}
PAPER_SEEDS = (8, 9, 10)
AS_IN_CODE = (
    "As in the authors' code, not in the paper: 300 rounds, clients train on 70 % of their data, "
    "momentum persists from round to round, batch 128. The paper names no seeds: FedLAW's."
)
QUICK: dict[str, Any] = {
    "rounds": 20,
    "data": {"name": "digits", "clients": 10},
    "local": {**LOCAL, "lr": 0.05, "batch_size": 16},
}
QUICK_SEEDS = (50, 51, 52)
ON_DIGITS = (
    "Embedded digits and an MLP with 64 hidden units instead of CIFAR-10 and ResNet20; batch 16 and "
    "learning rate 0.05 instead of 128 and 0.08; few rounds instead of 300."
)

# Four clients with the first half of the classes, four with the second half, four with all.
THREE_KINDS = {"data": {"clients": 12, "partition": "class_halves"}}

RULES = {
    "FedAvg": "fedavg",
    "FedDisco": "feddisco",
    "L-DAWA": "ldawa",
    "FedAWA": "fedawa:preset=official",
}
COLOURS = {"FedAvg": GREY, "FedDisco": ORANGE, "L-DAWA": SKY, "FedAWA": BLUE, "uniform": GREEN}


def choose_rule(base: Settings, rules: Mapping[str, str], rule: str) -> Settings:
    """Return settings with one of several rules, by its name."""
    return merge_settings(base, {"weighting": rules[rule]})


@register
class Figure2(PaperFigure):
    """Distances between the data, the vectors and the models of twelve clients."""

    name = "fedawa-figure2"
    title = "Differences between local data, client vectors and client models"
    claim = (
        "Distances between client vectors resemble those between the clients' data; distances "
        "between client models do not."
    )
    source = Source("Figure 2", "section 4.2 and appendix A.1", "73, 83, 317-323")
    quick = Scale(
        {"fedavg": merge_settings(QUICK, THREE_KINDS, {"weighting": "fedavg", "rounds": 5})},
        QUICK_SEEDS,
        (ON_DIGITS, "Data distances of pixels; the paper does not say of what."),
        {"samples": 100},
    )
    paper = Scale(
        {"fedavg": merge_settings(PAPER, THREE_KINDS, {"weighting": "fedavg", "rounds": 10})},
        PAPER_SEEDS,
        (
            AS_IN_CODE,
            "The paper names neither network nor round: ResNet20, round 10. Data distances are of "
            "the pixels of 200 images per client.",
        ),
        {"samples": 200},
    )

    def measure(self, results: Results, out: Path) -> dict[str, Any]:
        """Measure the three matrices of distances, for each seed."""
        rows = []
        for history in results["fedavg"]:
            found = client_distances(load_model(history).state_dict(), train_clients(history))
            data = data_distances(load_federation(history), samples=results.scale.values["samples"])
            rows.append(
                {
                    "data": data.tolist(),
                    "vectors": found.vectors.tolist(),
                    "models": found.models.tolist(),
                }
            )
        return {"distances": rows}

    @staticmethod
    def correlate(results: Results, name: str) -> list[float]:
        """Return the correlation of vectors or models with the data, for each seed."""
        values = []
        for row in results.measurements["distances"]:
            values.append(matrix_correlation(row["data"], row[name]) or 0.0)
        return values

    def draw(self, results: Results) -> Drawing:
        """Draw the three matrices of the first seed."""
        drawing, panels = make_panels(3, height=2.5)
        first = results.measurements["distances"][0]
        vectors = self.correlate(results, "vectors")[0]
        models = self.correlate(results, "models")[0]
        titles = {
            "data": "data: optimal transport\n",
            "vectors": f"client vectors: 1 - cosine\ncorrelation with data {vectors:.2f}",
            "models": f"client models: 1 - cosine\ncorrelation with data {models:.2f}",
        }
        for axes, (name, title) in zip(panels, titles.items(), strict=True):
            draw_matrix(axes, first[name], title)
            axes.set(xticks=(1, 4, 8, 12), yticks=(1, 4, 8, 12))
            for edge in (4.5, 8.5):
                axes.axhline(edge, color=GREY, linewidth=0.7)
                axes.axvline(edge, color=GREY, linewidth=0.7)
        return drawing

    def judge(self, results: Results) -> Verdict:
        """Compare the correlations with the data, of vectors and of models."""
        vectors = self.correlate(results, "vectors")
        models = self.correlate(results, "models")
        checks = [
            check_value("correlation of vectors with data", vectors, "higher", 0.5),
            check_value("correlation of models with data", models, "lower", 0.5),
            check_difference("vectors minus models", vectors, models, "higher"),
        ]
        return Verdict.from_checks(checks)


@register
class Figure3(PaperFigure):
    """Distances of client vectors, and of the merged vector, to the ideal vector."""

    name = "fedawa-figure3"
    title = "Distance to the ideal vector"
    claim = "The merged global vector is closer to the ideal vector than every client vector."
    source = Source("Figure 3", "section 4.2", "87, 94")
    quick = Scale(
        Figure2.quick.runs,
        QUICK_SEEDS,
        (
            ON_DIGITS,
            "The paper names neither the clients nor the distance: Figure 2's, 1 - cosine.",
        ),
    )
    paper = Scale(
        Figure2.paper.runs,
        PAPER_SEEDS,
        (
            AS_IN_CODE,
            "The paper names neither clients, network nor distance: those of Figure 2, 1 - cosine. "
            "The ideal model trains one epoch on the data of all clients.",
        ),
    )

    def measure(self, results: Results, out: Path) -> dict[str, Any]:
        """Train the clients and the ideal model once, and measure the distances."""
        rows = []
        for history in results["fedavg"]:
            federation = load_federation(history)
            base = load_model(history)
            experiment = read_experiment(history)
            ideal = ideal_model(federation, base, experiment.local, experiment.seed)
            distances = ideal_distances(
                base.state_dict(), train_clients(history), ideal, federation.sizes
            )
            rows.append({"clients": distances.clients.tolist(), "merged": distances.merged})
        return {"distances": rows}

    def draw(self, results: Results) -> Drawing:
        """Draw one bar per client, and one for the merged vector."""
        rows = results.measurements["distances"]
        drawing, (axes,) = make_panels(1, height=2.6, width=5.5)
        count = len(rows[0]["clients"])
        heights = [[row["clients"] for row in rows]]
        names = [str(number) for number in range(1, count + 1)]
        plot_bars(axes, names, heights, ["client vector"], [BLUE])
        merged = float(np.mean([row["merged"] for row in rows]))
        axes.plot([0, count - 1], [merged, merged], color=RED, label="merged vector")
        axes.set(title="1 - cosine to the ideal vector", xlabel="client", ylim=(0, None))
        axes.legend()
        return drawing

    def judge(self, results: Results) -> Verdict:
        """Compare the merged vector with the closest client vector."""
        rows = results.measurements["distances"]
        check = check_difference(
            "distance of the merged vector minus that of the closest client",
            [row["merged"] for row in rows],
            [min(row["clients"]) for row in rows],
            "lower",
            digits=3,
        )
        return Verdict.from_checks([check])


# What Figure 5 varies: the number of clients, the share per round, and local epochs.
VARIATIONS: dict[str, dict[str, Settings]] = {
    "clients K": {str(count): {"data": {"clients": count}} for count in (10, 30, 50)},
    "sample rate R": {str(rate): {"participation": {"share": rate}} for rate in (0.1, 0.3, 0.5)},
    "local epochs E": {str(count): {"local": {"epochs": count}} for count in (1, 5, 10)},
}


def vary_settings(base: Settings, rules: Mapping[str, str]) -> dict[Any, Settings]:
    """Return the runs of Figure 5: by panel, value and rule."""
    runs: dict[Any, Settings] = {}
    for panel, values in VARIATIONS.items():
        for value, change in values.items():
            for rule in rules:
                runs[panel, value, rule] = merge_settings(choose_rule(base, rules, rule), change)
    return runs


@register
class Figure5(PaperFigure):
    """Accuracy by number of clients, sample rate and local epochs."""

    name = "fedawa-figure5"
    title = "Numbers of clients, sample rates and local epochs"
    claim = "FedAWA improves the accuracy consistently for all K, R and E."
    source = Source("Figure 5", "section 5.2", "151, 179")
    quick = Scale(
        vary_settings(
            merge_settings(
                QUICK, {"rounds": 15, "data": {"clients": 20, "partition": "dirichlet:alpha=0.3"}}
            ),
            {rule: RULES[rule] for rule in ("FedAvg", "FedDisco", "FedAWA")},
        ),
        QUICK_SEEDS[:2],
        (ON_DIGITS, "The paper names neither the data set nor α: Dirichlet(0.3)."),
    )
    paper = Scale(
        vary_settings(merge_settings(PAPER, {"data": {"partition": "dirichlet:alpha=0.1"}}), RULES),
        PAPER_SEEDS,
        (AS_IN_CODE, "The paper names neither the data set nor α: CIFAR-10, 0.1; 20 clients."),
    )

    def draw(self, results: Results) -> Drawing:
        """Draw one panel of bars for K, R and E."""
        drawing, panels = make_panels(3, height=2.6)
        rules = list(dict.fromkeys(rule for _, _, rule in results.histories))
        for axes, (panel, values) in zip(panels, VARIATIONS.items(), strict=True):
            heights = []
            for rule in rules:
                columns = [last_accuracies(results[panel, value, rule]) for value in values]
                heights.append(np.transpose(columns))
            plot_bars(axes, list(values), heights, rules, [COLOURS[rule] for rule in rules])
            lowest = float(np.min(heights))
            axes.set(title="test accuracy, %", xlabel=panel, ylim=(max(0.0, lowest - 5), None))
        add_legend(drawing, panels[0])
        return drawing

    def judge(self, results: Results) -> Verdict:
        """Compare FedAWA with FedAvg over all settings and seeds, and count where it is best."""
        ours: list[float] = []
        theirs: list[float] = []
        wins = 0
        settings = list(dict.fromkeys(key[:2] for key in results.histories))
        rules = list(dict.fromkeys(key[2] for key in results.histories))
        for panel, value in settings:
            means = {}
            for rule in rules:
                means[rule] = float(np.mean(last_accuracies(results[panel, value, rule])))
            wins += max(means, key=means.__getitem__) == "FedAWA"
            ours += last_accuracies(results[panel, value, "FedAWA"])
            theirs += last_accuracies(results[panel, value, "FedAvg"])
        checks = [
            check_difference(
                f"FedAWA minus FedAvg over {len(settings)} settings",
                ours,
                theirs,
                "higher",
                "points",
            ),
            Check(f"FedAWA is best in {wins} of {len(settings)} settings", wins == len(settings)),
        ]
        return Verdict.from_checks(checks)


# The methods of Figure 6, each without and with FedAWA.
METHODS: dict[str, tuple[Settings, Settings]] = {
    "FedAvg": ({"weighting": "fedavg"}, {"weighting": "fedawa:preset=official"}),
    "FedProx": (
        {"weighting": "fedavg", "client": "fedprox:mu=0.001"},
        {"weighting": "fedawa:preset=official", "client": "fedprox:mu=0.001"},
    ),
    "FedDisco": ({"weighting": "feddisco"}, {"weighting": "feddisco|fedawa:preset=official"}),
}


def combine_methods(base: Settings, data: Sequence[str], alphas: Sequence[float]) -> dict[Any, Any]:
    """Return the runs of Figure 6: by data set, alpha, method, and whether it has FedAWA."""
    runs = {}
    for name in data:
        for alpha in alphas:
            clients = {"data": {"name": name, "partition": f"dirichlet:alpha={alpha:g}"}}
            for method, (plain, combined) in METHODS.items():
                runs[name, alpha, method, False] = merge_settings(base, clients, plain)
                runs[name, alpha, method, True] = merge_settings(base, clients, combined)
    return runs


@register
class Figure6(PaperFigure):
    """Accuracy of three methods without and with FedAWA."""

    name = "fedawa-figure6"
    title = "Modularity: three methods without and with FedAWA"
    claim = (
        "FedAWA improves FedAvg, FedProx and FedDisco consistently across varying degrees of data "
        "heterogeneity."
    )
    source = Source("Figure 6", "section 5.2", "181, 186")
    quick = Scale(
        combine_methods(QUICK, ("digits",), (0.1, 0.5, 100.0)),
        QUICK_SEEDS,
        (ON_DIGITS, "One data set; μ of FedProx is 0.001."),
    )
    paper = Scale(
        combine_methods(PAPER, ("cifar10", "cifar100"), (0.1, 0.5, 100.0)),
        PAPER_SEEDS,
        (
            AS_IN_CODE,
            "The text names neither data sets nor α: CIFAR-10 and CIFAR-100, α of Table 1. μ of "
            "FedProx is FedLAW's 0.001.",
        ),
    )

    def draw(self, results: Results) -> Drawing:
        """Draw one panel per data set and alpha, with a pair of bars per method."""
        cases = list(dict.fromkeys(key[:2] for key in results.histories))
        drawing, panels = make_panels(3, rows=-(-len(cases) // 3), height=2.5)
        for axes, (name, alpha) in zip(panels, cases, strict=True):
            heights = []
            for has_awa in (False, True):
                columns = []
                for method in METHODS:
                    columns.append(last_accuracies(results[name, alpha, method, has_awa]))
                heights.append(np.transpose(columns))
            plot_bars(axes, list(METHODS), heights, ["alone", "with FedAWA"], [GREY, BLUE])
            axes.set(
                title=f"{name}, α = {alpha:g}: test accuracy, %",
                ylim=(max(0.0, float(np.min(heights)) - 5), None),
            )
        add_legend(drawing, panels[0])
        return drawing

    def judge(self, results: Results) -> Verdict:
        """Compare each method with and without FedAWA, over all data sets and alphas."""
        cases = list(dict.fromkeys(key[:2] for key in results.histories))
        checks = []
        for method in METHODS:
            ours: list[float] = []
            theirs: list[float] = []
            for name, alpha in cases:
                ours += last_accuracies(results[name, alpha, method, True])
                theirs += last_accuracies(results[name, alpha, method, False])
            checks.append(
                check_difference(f"gain of {method} with FedAWA", ours, theirs, "higher", "points")
            )
        return Verdict.from_checks(checks)


@register
class Figure7(PaperFigure):
    """Similarity of aggregation weights and the data vector, by round."""

    name = "fedawa-figure7"
    title = "Similarity between aggregation weights and the data vector"
    claim = (
        "The similarity of FedAWA's weights to the data vector rises steadily, converges, and is "
        "higher than that of other methods."
    )
    source = Source("Figure 7", "section 5.3 and appendix A.2", "227-233, 325-331")
    quick = Scale(
        make_runs(
            partial(choose_rule, merge_settings(QUICK, THREE_KINDS, {"rounds": 40}), RULES),
            rule=tuple(RULES),
        ),
        QUICK_SEEDS,
        (ON_DIGITS, "Data distances of pixels instead of features of a pre-trained ResNet20."),
        {"samples": 100},
    )
    paper = Scale(
        make_runs(
            partial(choose_rule, merge_settings(PAPER, THREE_KINDS), RULES), rule=tuple(RULES)
        ),
        PAPER_SEEDS,
        (
            AS_IN_CODE,
            "Data distances of the pixels of 200 images per client instead of features of a "
            "pre-trained ResNet20. The text does not name the other methods.",
        ),
        {"samples": 200},
    )

    def measure(self, results: Results, out: Path) -> dict[str, Any]:
        """Compute the data vector of each seed, which is the same for all rules."""
        vectors = []
        for history in results["FedAWA"]:
            vector = data_vector(load_federation(history), samples=results.scale.values["samples"])
            vectors.append({str(client): value for client, value in vector.items()})
        return {"vectors": vectors}

    @staticmethod
    def compare_weights(results: Results, rule: str) -> tuple[Array, Array]:
        """Return the rounds, and the similarity of each run and round."""
        all_series = []
        for history, vector in zip(results[rule], results.measurements["vectors"], strict=True):
            all_series.append(run_similarity(history, vector))
        rounds = all_series[0].rounds.astype(np.float64)
        return rounds, np.array([item.values for item in all_series])

    def draw(self, results: Results) -> Drawing:
        """Draw one curve per method."""
        drawing, (axes,) = make_panels(1, height=2.8, width=5.0)
        dashes = {"FedAvg": DOTTED, "FedDisco": DASHED, "L-DAWA": DASHED, "FedAWA": SOLID}
        for rule in results.histories:
            rounds, rows = self.compare_weights(results, rule)
            plot_mean(axes, rounds, rows, color=COLOURS[rule], linestyle=dashes[rule], label=rule)
        axes.set_title("cosine of weights and data vector")
        label_rounds(axes)
        axes.legend()
        return drawing

    def judge(self, results: Results) -> Verdict:
        """Compare FedAWA's last rounds with its first ones, and with the other methods."""
        ends = {}
        for rule in results.histories:
            rows = self.compare_weights(results, rule)[1]
            count = max(1, rows.shape[1] // 5)
            ends[rule] = list(rows[:, -count:].mean(axis=1))
        ours = self.compare_weights(results, "FedAWA")[1]
        count = max(1, ours.shape[1] // 5)
        others = [rule for rule in ends if rule != "FedAWA"]
        best = max(others, key=lambda rule: float(np.mean(ends[rule])))
        checks = [
            check_difference(
                "similarity of FedAWA, last fifth of rounds minus first",
                ends["FedAWA"],
                list(ours[:, :count].mean(axis=1)),
                "higher",
                digits=4,
            ),
            check_difference(
                f"FedAWA minus {best}, the best other, in the last fifth",
                ends["FedAWA"],
                ends[best],
                "higher",
                digits=4,
            ),
        ]
        return Verdict.from_checks(checks)


@register
class Figure8(PaperFigure):
    """Samples by class and client for three Dirichlet distributions."""

    name = "fedawa-figure8"
    title = "Data distribution over classes and clients"
    claim = "Clients differ in classes and sizes for α = 0.1 and 0.5; α = 100 is nearly IID."
    source = Source("Figure 8", "appendix A.3", "338, 365")
    quick = Scale(
        seeds=QUICK_SEEDS,
        differences=("Embedded digits and 10 clients instead of CIFAR-10 and 20.",),
        values={"data": "digits", "clients": 10, "alphas": (0.1, 0.5, 100.0)},
    )
    paper = Scale(
        seeds=PAPER_SEEDS,
        differences=("Other random numbers than the authors'.",),
        values={"data": "cifar10", "clients": 20, "alphas": (0.1, 0.5, 100.0)},
    )

    def measure(self, results: Results, out: Path) -> dict[str, Any]:
        """Count the samples of each client and class, for each alpha and seed."""
        values = results.scale.values
        train, test = load(values["data"])
        counts: dict[str, Any] = {}
        for alpha in values["alphas"]:
            rows = []
            for seed in results.seeds:
                federation = Federation.partitioned(
                    train, test, f"dirichlet:alpha={alpha:g}", values["clients"], seed
                )
                rows.append(federation.label_counts().tolist())
            counts[f"{alpha:g}"] = rows
        return counts

    def draw(self, results: Results) -> Drawing:
        """Draw one panel per alpha, with darker cells for more samples, for the first seed."""
        drawing, panels = make_panels(3, height=2.5)
        for axes, (alpha, rows) in zip(panels, results.measurements.items(), strict=True):
            table = np.array(rows[0]).T
            image = axes.imshow(table, cmap="Blues", aspect="auto", origin="lower")
            drawing.colorbar(image, ax=axes, shrink=0.8).ax.tick_params(labelsize=6)
            axes.set(title=f"samples, α = {alpha}", xlabel="client", ylabel="class")
            axes.grid(visible=False)
        return drawing

    def judge(self, results: Results) -> Verdict:
        """Compare the distance of clients' labels to those of all clients."""
        distances = {}
        for alpha, rows in results.measurements.items():
            distances[alpha] = [Summary.of(np.array(row)).distance for row in rows]
        alphas = list(distances)
        checks = []
        for alpha, other in itertools.pairwise(alphas):
            checks.append(
                check_difference(
                    f"total variation distance of labels, α = {alpha} minus {other}",
                    distances[alpha],
                    distances[other],
                    "higher",
                )
            )
        checks.append(
            check_value(f"distance at α = {alphas[-1]}", distances[alphas[-1]], "lower", 0.1)
        )
        return Verdict.from_checks(checks)
