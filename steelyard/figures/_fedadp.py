"""The figures of FedAdp (Wu and Wang, IEEE TCCN 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from steelyard.diagnostics import by_client
from steelyard.figures._figure import (
    Check,
    Key,
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
    average_series,
    check_difference,
    check_trend,
    check_value,
    count_rounds,
)
from steelyard.figures._style import (
    BLUE,
    DASHED,
    DOTTED,
    GREEN,
    GREY,
    ORANGE,
    PINK,
    RED,
    SKY,
    SOLID,
    Array,
    add_legend,
    draw_line,
    label_rounds,
    limit_percent,
    make_panels,
    plot_mean,
    plot_series,
)
from steelyard.runs._history import History

if TYPE_CHECKING:  # optional, and slow to import
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

# Nodes: how many are IID, how many are not, and how many classes each of the latter has.
MIXES = {
    "10 IID": (10, 0, 1),
    "5 IID": (5, 0, 1),
    "3 IID": (3, 0, 1),
    "5 IID + 5 non-IID (1)": (5, 5, 1),
    "3 IID + 7 non-IID (2)": (3, 7, 2),
    "3 IID + 7 non-IID (1)": (3, 7, 1),
    "1 IID + 9 non-IID (1)": (1, 9, 1),
    "10 non-IID (1)": (0, 10, 1),
    "6 IID + 4 non-IID (1)": (6, 4, 1),
    "5 IID + 5 non-IID (2)": (5, 5, 2),
    "6 IID + 4 non-IID (2)": (6, 4, 2),
}
EIGHT = tuple(MIXES)[:8]
SIX = tuple(
    f"{iid} IID + {10 - iid} non-IID ({classes})" for classes in (1, 2) for iid in (3, 5, 6)
)
RULES = ("FedAvg", "FedAdp")
LOOKS: dict[str, dict[str, Any]] = {
    "FedAvg": {"color": GREY, "linestyle": DOTTED},
    "FedAdp": {"color": BLUE, "linestyle": SOLID},
}

# The paper's settings: the CNN, and logistic regression.
CNN: dict[str, Any] = {
    "model": "mcmahan_cnn:padding=false",
    "rounds": 300,
    "data": {"name": "mnist", "clients": 10},
    "local": {"epochs": 1, "batch_size": 32, "lr": 0.01, "schedule": "exponential:0.995"},
    "evaluate_train": 1,
}
MLR = merge_settings(CNN, {"model": "logistic", "rounds": 50, "local": {"batch_size": 50}})
FASHION: dict[str, Any] = {"data": {"name": "fashion-mnist:scale=standard"}}
PAPER_SAMPLES = 600
PAPER_SEEDS = (1, 2, 3)
NO_CODE = (
    "No authors' code is public. The CNN has no padding (582,026 parameters), as the paper lists "
    "its layers."
)
NO_SEEDS = "The paper names no seeds and shows one run."

# The small version: the embedded digits.
MLP: dict[str, Any] = {
    "rounds": 60,
    "data": {"name": "digits", "clients": 10},
    "local": {"epochs": 1, "batch_size": 16, "lr": 0.1},
    "evaluate_train": 1,
}
LOGISTIC = merge_settings(MLP, {"model": "logistic", "rounds": 30})
QUICK_SAMPLES = 100
QUICK_SEEDS = (50, 51, 52, 53, 54)
ON_DIGITS = (
    "Embedded digits, nodes with 100 samples, an MLP with 64 hidden units instead of the CNN, batch "
    "size 16, learning rate 0.1, fewer rounds."
)


def choose_nodes(base: Settings, samples: int, mix: str) -> Settings:
    """Return settings with FedAvg and one of the mixes of nodes.

    Args:
        base: the other settings.
        samples: the samples of each node.
        mix: the name of the mix.
    """
    iid, skewed, classes = MIXES[mix]
    partition = f"x_class:classes={classes},iid={iid},samples={samples}"
    return merge_settings(
        base, {"weighting": "fedavg", "data": {"clients": iid + skewed, "partition": partition}}
    )


def choose_rule(base: Settings, samples: int, mix: str, rule: str) -> Settings:
    """Return settings with one of the rules and one of the mixes of nodes."""
    return merge_settings(choose_nodes(base, samples, mix), {"weighting": rule.lower()})


def choose_case(base: Settings, samples: int, case: int, rule: str) -> Settings:
    """Return settings with one of the rules and one of the cases of section V-A."""
    partition = f"x_class:case={case},samples={samples}"
    return merge_settings(base, {"weighting": rule.lower(), "data": {"partition": partition}})


def plot_rules(
    axes: Axes, results: Results, key: Key, name: str = "accuracy", factor: float = 100.0
) -> None:
    """Plot a series of FedAvg and FedAdp by round.

    Args:
        axes: the panel.
        results: the runs, by key and rule.
        key: the first part of the key.
        name: the series.
        factor: a factor for all values.
    """
    for rule in RULES:
        plot_series(axes, results[key, rule], name, factor=factor, label=rule, **LOOKS[rule])
    label_rounds(axes)
    if name == "accuracy":
        limit_percent(axes)


def average_accuracy(histories: Sequence[History]) -> list[float]:
    """Return the mean accuracy over all rounds of each run, in percent: higher if it learns faster."""
    return [100 * value for value in average_series(histories, "accuracy")]


def compute_leads(results: Results, key: Key) -> list[float]:
    """Return how much FedAdp's mean accuracy over all rounds is above FedAvg's, by seed."""
    ours = average_accuracy(results[key, "FedAdp"])
    theirs = average_accuracy(results[key, "FedAvg"])
    return [first - second for first, second in zip(ours, theirs, strict=True)]


@register
class Figure1(PaperFigure):
    """FedAvg with IID and non-IID nodes."""

    name = "fedadp-figure1"
    title = "FedAvg with IID and non-IID nodes"
    claim = (
        "Non-IID nodes slow the convergence of FedAvg (5 IID nodes alone are faster than with 5 "
        "one-class nodes), and more so the fewer classes they have."
    )
    source = Source("Figure 1", "section III-B", "598-669")
    quick = Scale(
        make_runs(partial(choose_nodes, MLP, QUICK_SAMPLES), mix=EIGHT), QUICK_SEEDS, (ON_DIGITS,)
    )
    paper = Scale(
        make_runs(partial(choose_nodes, CNN, PAPER_SAMPLES), mix=EIGHT),
        PAPER_SEEDS,
        (NO_CODE, NO_SEEDS, "All runs have 300 rounds; the paper's end at 95 %."),
    )

    def draw(self, results: Results) -> Drawing:
        """Draw one curve per mix of nodes."""
        drawing, (accuracy,) = make_panels(1, height=3.4, width=6.0)
        looks = (
            (BLUE, SOLID),
            (SKY, SOLID),
            (GREEN, SOLID),
            (SKY, DASHED),
            (ORANGE, DASHED),
            (RED, DASHED),
            (PINK, DOTTED),
            (GREY, DOTTED),
        )
        for mix, (color, linestyle) in zip(EIGHT, looks, strict=True):
            plot_series(
                accuracy,
                results[mix],
                "accuracy",
                factor=100,
                color=color,
                linestyle=linestyle,
                label=mix,
                has_interval=False,
            )
        accuracy.set_title("test accuracy of FedAvg, means over seeds, %")
        label_rounds(accuracy)
        add_legend(drawing, accuracy, columns=3)
        return drawing

    def judge(self, results: Results) -> Verdict:
        """Compare mean accuracies over all rounds with and without non-IID nodes, and by classes."""
        pairs = (
            ("5 IID", "5 IID + 5 non-IID (1)"),
            ("3 IID", "3 IID + 7 non-IID (1)"),
            ("3 IID + 7 non-IID (2)", "3 IID + 7 non-IID (1)"),
        )
        checks = []
        for better, worse in pairs:
            checks.append(
                check_difference(
                    f"mean accuracy over all rounds, {better} minus {worse}",
                    average_accuracy(results[better]),
                    average_accuracy(results[worse]),
                    "higher",
                    "points",
                )
            )
        return Verdict.from_checks(checks)


def smooth_angles(histories: Sequence[History], rounds: int) -> Array:
    """Return the smoothed angles of all nodes to the mean update (Eq. 8 and 9), in degrees.

    Under FedAvg the aggregated step is the mean update, so the recorded cosines are those of Eq. 8.
    The smoothed angle is the mean over the rounds so far, because all nodes take part.

    Args:
        histories: runs of FedAvg, one per seed.
        rounds: the number of rounds to average.

    Returns:
        The angles, `[seeds, nodes]`.
    """
    tables = [by_client(history, "cosines").values[:rounds] for history in histories]
    angles = np.arccos(np.clip(tables, -1.0, 1.0))
    smoothed: Array = np.degrees(angles.mean(axis=1))
    return smoothed


# Nodes 0 to 4 are IID; three nodes have one class, A to C, and two have two, D and E.
KINDS = {
    "IID": (BLUE, [0, 1, 2, 3, 4], ["", "", "", "", ""]),
    "1 class": (RED, [5, 6, 7], ["A", "B", "C"]),
    "2 classes": (ORANGE, [8, 9], ["D", "E"]),
}
THREE_KINDS: dict[str, Any] = {"weighting": "fedavg", "rounds": 15}


@register
class Figure2(PaperFigure):
    """Smoothed angles of nodes of three kinds."""

    name = "fedadp-figure2"
    title = "Smoothed angles of nodes to the global gradient"
    claim = (
        "Angles are random in round 1. After 15 rounds they show how skewed the data of a node are: "
        "nodes with one class are nearly orthogonal to the global gradient."
    )
    source = Source("Figure 2", "section IV-B", "981-984, 1019-1070")
    quick = Scale(
        {
            "FedAvg": merge_settings(
                MLP,
                THREE_KINDS,
                {"data": {"partition": "x_class:classes=[1,1,1,2,2],iid=5,samples=100"}},
            )
        },
        QUICK_SEEDS,
        (ON_DIGITS,),
    )
    paper = Scale(
        {
            "FedAvg": merge_settings(
                CNN,
                THREE_KINDS,
                {"data": {"partition": "x_class:classes=[1,1,1,2,2],iid=5,samples=600"}},
            )
        },
        PAPER_SEEDS,
        (NO_CODE, NO_SEEDS),
    )

    def draw(self, results: Results) -> Drawing:
        """Draw the angles of the first seed in the first round (stars) and the last (pentagons)."""
        drawing, (angles,) = make_panels(1, height=3.2, width=5.5)
        histories = results["FedAvg"]
        last_round = len(histories[0])
        for number, marker in ((1, "*"), (last_round, "p")):
            values = smooth_angles(histories, number)[0]
            for kind, (color, nodes, letters) in KINDS.items():
                angles.scatter(
                    nodes,
                    values[nodes],
                    s=60,
                    marker=marker,
                    color=color,
                    label=f"{kind}, round {number}",
                    zorder=3,
                )
                for node, letter in zip(nodes, letters, strict=True):
                    angles.annotate(
                        letter,
                        (node, values[node]),
                        xytext=(5, 3),
                        textcoords="offset points",
                        fontsize=7,
                    )
        draw_line(angles, 90.0)
        angles.set_title("smoothed angle to the global gradient, degrees")
        angles.set(xlabel="node", xticks=range(10))
        angles.grid(visible=False, axis="x")
        add_legend(drawing, angles, columns=3)
        return drawing

    def judge(self, results: Results) -> Verdict:
        """Compare the angles of the three kinds of nodes after the last round, and their spread."""
        histories = results["FedAvg"]
        last = smooth_angles(histories, len(histories[0]))
        first = smooth_angles(histories, 1)

        def average(table: Array, kind: str) -> list[float]:
            return list(table[:, KINDS[kind][1]].mean(axis=1))

        gaps = [
            np.subtract(average(table, "1 class"), average(table, "IID")) for table in (first, last)
        ]
        return Verdict.from_checks(
            [
                check_difference(
                    "angle after the last round, 1 class minus 2 classes",
                    average(last, "1 class"),
                    average(last, "2 classes"),
                    "higher",
                    "degrees",
                    1,
                ),
                check_difference(
                    "2 classes minus IID",
                    average(last, "2 classes"),
                    average(last, "IID"),
                    "higher",
                    "degrees",
                    1,
                ),
                check_difference(
                    "the gap of 1 class to IID, last round minus first",
                    list(gaps[1]),
                    list(gaps[0]),
                    "higher",
                    "degrees",
                    1,
                ),
                check_value(
                    "angle of nodes with 1 class after the last round, degrees (nearly orthogonal: "
                    "above 75)",
                    average(last, "1 class"),
                    "higher",
                    75.0,
                    1,
                ),
            ]
        )


class SixMixes(PaperFigure):
    """Accuracy of FedAvg and FedAdp in six mixes of nodes."""

    def draw(self, results: Results) -> Drawing:
        """Draw one row of six panels per data set; a single data set has two rows of three."""
        data_sets = list(dict.fromkeys(key[0] for key, _ in results.histories))
        columns = 3 if len(data_sets) == 1 else 6
        rows = 2 if len(data_sets) == 1 else len(data_sets)
        width = 7.0 if columns == 3 else 12.0
        drawing, panels = make_panels(columns, rows=rows, height=2.0, width=width)
        keys = [(data, mix) for data in data_sets for mix in SIX]
        for axes, (data, mix) in zip(panels, keys, strict=True):
            plot_rules(axes, results, (data, mix))
            axes.set_title(f"{data}: {mix}", fontsize=7)
        for axes in panels[::columns]:
            axes.set_ylabel("test accuracy, %")
        add_legend(drawing, panels[0])
        return drawing

    def judge_leads(self, results: Results) -> list[Check]:
        """Check in each mix whether FedAdp is ahead of FedAvg, over all rounds."""
        checks = []
        for key in dict.fromkeys(key for key, _ in results.histories):
            data, mix = key
            checks.append(
                check_value(
                    f"{data}, {mix}: lead of FedAdp over all rounds, points",
                    compute_leads(results, key),
                    "higher",
                    0.0,
                )
            )
        return checks


def choose_data(bases: Settings, samples: int, key: tuple[str, str], rule: str) -> Settings:
    """Return the settings of a data set, with one of the mixes of nodes and one of the rules."""
    data, mix = key
    return choose_rule(bases[data], samples, mix, rule)


def pair_data(*data_sets: str) -> tuple[tuple[str, str], ...]:
    """Return all pairs of a data set and one of the six mixes."""
    return tuple((data, mix) for data in data_sets for mix in SIX)


@register
class Figure3(SixMixes):
    """Logistic regression."""

    name = "fedadp-figure3"
    title = "FedAdp and FedAvg, logistic regression"
    claim = (
        "With logistic regression FedAdp always outperforms FedAvg, early in training, and more so "
        "the more non-IID nodes there are; at the end the gap is small."
    )
    source = Source("Figure 3", "section V-A1", "1470-1502, 1573-1889")
    quick = Scale(
        make_runs(
            partial(choose_data, {"digits": LOGISTIC}, QUICK_SAMPLES),
            key=pair_data("digits"),
            rule=RULES,
        ),
        QUICK_SEEDS,
        (ON_DIGITS, "One data set instead of two."),
    )
    paper = Scale(
        make_runs(
            partial(
                choose_data,
                {"MNIST": MLR, "Fashion-MNIST": merge_settings(MLR, FASHION)},
                PAPER_SAMPLES,
            ),
            key=pair_data("MNIST", "Fashion-MNIST"),
            rule=RULES,
        ),
        PAPER_SEEDS,
        (NO_CODE, NO_SEEDS),
    )

    def judge(self, results: Results) -> Verdict:
        """Check the lead in each mix, its trend by the number of IID nodes, and its end."""
        checks = self.judge_leads(results)
        for data in dict.fromkeys(key[0] for key, _ in results.histories):
            mixes = [f"{iid} IID + {10 - iid} non-IID (1)" for iid in (6, 5, 3)]
            leads = np.transpose([compute_leads(results, (data, mix)) for mix in mixes])
            checks.append(
                check_trend(
                    f"{data}: lead from 4 to 7 one-class nodes, points",
                    (4, 5, 7),
                    leads,
                    "higher",
                )
            )
        return Verdict.from_checks(checks)


@register
class Figure4(SixMixes):
    """The CNN."""

    name = "fedadp-figure4"
    title = "FedAdp and FedAvg, a network with hidden layers"
    claim = (
        "With the CNN FedAdp always outperforms FedAvg if there are non-IID nodes, and converges "
        "very fast in the early stage."
    )
    source = Source("Figure 4", "section V-A2", "1504-1518, 1890-1891")
    quick = Scale(
        make_runs(
            partial(choose_data, {"digits": MLP}, QUICK_SAMPLES),
            key=pair_data("digits"),
            rule=RULES,
        ),
        QUICK_SEEDS,
        (ON_DIGITS, "One data set instead of two."),
    )
    paper = Scale(
        make_runs(
            partial(
                choose_data,
                {"MNIST": CNN, "Fashion-MNIST": merge_settings(CNN, FASHION)},
                PAPER_SAMPLES,
            ),
            key=pair_data("MNIST", "Fashion-MNIST"),
            rule=RULES,
        ),
        PAPER_SEEDS,
        (NO_CODE, NO_SEEDS),
    )

    def judge(self, results: Results) -> Verdict:
        """Check the lead of FedAdp in each mix."""
        return Verdict.from_checks(self.judge_leads(results))


@register
class Figure5(PaperFigure):
    """Nodes with different numbers of classes."""

    name = "fedadp-figure5"
    title = "Nodes with 1 to 10 classes: accuracy and training loss"
    claim = (
        "In two general cases of heterogeneity FedAdp outperforms FedAvg and reduces the training "
        "loss faster, even without IID nodes."
    )
    source = Source("Figure 5", "section V-A2", "1911-1958, 2077-2080")
    quick = Scale(
        make_runs(partial(choose_case, MLP, QUICK_SAMPLES), case=(1, 2), rule=RULES),
        QUICK_SEEDS,
        (ON_DIGITS,),
    )
    paper = Scale(
        make_runs(
            partial(choose_case, merge_settings(CNN, {"rounds": 200}), PAPER_SAMPLES),
            case=(1, 2),
            rule=RULES,
        ),
        PAPER_SEEDS,
        (NO_CODE, NO_SEEDS, "200 rounds in both cases; the paper shows 140 of case 1."),
    )

    def draw(self, results: Results) -> Drawing:
        """Draw accuracy in the top row and training loss in the bottom row."""
        drawing, panels = make_panels(2, rows=2, height=2.1)
        for column, case in enumerate((1, 2)):
            accuracy = panels[column]
            loss = panels[2 + column]
            plot_rules(accuracy, results, case)
            accuracy.set_title(f"case {case}: test accuracy, %")
            plot_rules(loss, results, case, "train_loss", 1.0)
            loss.set_title(f"case {case}: training loss")
            loss.set_ylim(bottom=0)
        add_legend(drawing, panels[0])
        return drawing

    def judge(self, results: Results) -> Verdict:
        """Compare accuracy and training loss over all rounds."""
        checks = []
        for case in (1, 2):
            checks.append(
                check_value(
                    f"case {case}: lead of FedAdp over all rounds, points",
                    compute_leads(results, case),
                    "higher",
                    0.0,
                )
            )
            checks.append(
                check_difference(
                    f"case {case}: training loss over all rounds, FedAdp minus FedAvg",
                    average_series(results[case, "FedAdp"], "train_loss"),
                    average_series(results[case, "FedAvg"], "train_loss"),
                    "lower",
                    digits=3,
                )
            )
        return Verdict.from_checks(checks)


def choose_alpha(base: Settings, samples: int, alpha: int) -> Settings:
    """Return settings with 5 IID and 5 one-class nodes, and FedAdp, or FedAvg for alpha 0."""
    rule = f"fedadp:alpha={alpha}" if alpha else "fedavg"
    return merge_settings(choose_nodes(base, samples, "5 IID + 5 non-IID (1)"), {"weighting": rule})


@register
class Figure6(PaperFigure):
    """The constant alpha."""

    name = "fedadp-figure6"
    title = "The effect of α"
    claim = (
        "Increasing α leads to faster convergence, but a larger α is not always effective; the best "
        "α is 5."
    )
    source = Source("Figure 6", "section V-B", "2082-2114, 2141-2142")
    quick = Scale(
        make_runs(
            partial(choose_alpha, merge_settings(MLP, {"rounds": 80}), QUICK_SAMPLES),
            alpha=(0, 1, 2, 3, 5, 8, 10),
        ),
        QUICK_SEEDS,
        (ON_DIGITS,),
        {"target": 0.9},
    )
    paper = Scale(
        make_runs(partial(choose_alpha, CNN, PAPER_SAMPLES), alpha=(0, 1, 2, 3, 4, 5, 6, 8, 10)),
        PAPER_SEEDS,
        (NO_CODE, NO_SEEDS, "The caption does not name the values of α."),
        {"target": 0.95},
    )

    def draw(self, results: Results) -> Drawing:
        """Draw curves for some values of alpha, and the rounds to a target by alpha."""
        target = results.scale.values["target"]
        drawing, (accuracy, rounds) = make_panels(2, height=2.8)

        # Left: curves.
        for alpha, color, linestyle in (
            (0, GREY, DOTTED),
            (1, SKY, DASHED),
            (2, ORANGE, DASHED),
            (5, BLUE, SOLID),
            (10, RED, SOLID),
        ):
            plot_series(
                accuracy,
                results[alpha],
                "accuracy",
                factor=100,
                color=color,
                linestyle=linestyle,
                label=f"FedAdp, α = {alpha}" if alpha else "FedAvg",
            )
        accuracy.set_title("test accuracy, %")
        label_rounds(accuracy)
        limit_percent(accuracy)
        accuracy.legend(loc="lower right")

        # Right: rounds to the target.
        alphas = [alpha for alpha in results.histories if alpha]
        rows = np.transpose([count_rounds(results[alpha], target) for alpha in alphas])
        plot_mean(rounds, alphas, rows, color=BLUE, label="FedAdp", marker="o", markersize=4)
        fedavg = float(np.mean(count_rounds(results[0], target)))
        rounds.plot(
            (alphas[0], alphas[-1]), (fedavg, fedavg), color=GREY, linestyle=DOTTED, label="FedAvg"
        )
        rounds.set_title(f"rounds to {100 * target:g} %")
        rounds.set(xlabel="α", xticks=alphas)
        rounds.set_ylim(bottom=0)
        rounds.legend(loc="lower left")
        return drawing

    def judge(self, results: Results) -> Verdict:
        """Check the trend up to 5, and whether 5 needs fewer rounds than larger values."""
        target = results.scale.values["target"]
        rounds = {alpha: count_rounds(results[alpha], target) for alpha in results.histories}
        small = [alpha for alpha in results.histories if 1 <= alpha <= 5]
        rows = np.transpose([rounds[alpha] for alpha in small])
        trend = check_trend(
            f"rounds to {100 * target:g} % for α = 1 to 5",
            small,
            rows,
            "lower",
        )
        others = [
            check_difference(
                f"α = {alpha} minus α = 5", rounds[alpha], rounds[5], "higher", "rounds", 1
            )
            for alpha in (8, 10)
        ]
        return Verdict.from_checks([trend, *others])


@register
class Figure7(PaperFigure):
    """Training loss and divergence of local gradients."""

    name = "fedadp-figure7"
    title = "Training loss, and divergence of local gradients"
    claim = (
        "FedAdp leads to a smaller divergence among nodes, and the smaller the divergence, the "
        "smaller the loss."
    )
    source = Source("Figure 7", "section V-C", "2118-2150, 2289-2294")
    quick = Scale(
        {
            (network, rule): choose_rule(base, QUICK_SAMPLES, "5 IID + 5 non-IID (1)", rule)
            for network, base in (("logistic", LOGISTIC), ("MLP", MLP))
            for rule in RULES
        },
        QUICK_SEEDS,
        (ON_DIGITS,),
    )
    paper = Scale(
        {
            (network, rule): choose_rule(base, PAPER_SAMPLES, "5 IID + 5 non-IID (1)", rule)
            for network, base in (("MLR", MLR), ("CNN", CNN))
            for rule in RULES
        },
        PAPER_SEEDS,
        (
            NO_CODE,
            NO_SEEDS,
            "50 rounds of MLR and 300 of the CNN; the paper shows the first 40 and 200.",
        ),
    )

    def draw(self, results: Results) -> Drawing:
        """Draw training loss in the top row and divergence in the bottom row."""
        networks = list(dict.fromkeys(network for network, _ in results.histories))
        drawing, panels = make_panels(2, rows=2, height=2.1)
        for column, network in enumerate(networks):
            loss = panels[column]
            divergence = panels[2 + column]
            plot_rules(loss, results, network, "train_loss", 1.0)
            loss.set_title(f"5 IID + 5 non-IID (1), {network}: training loss")
            loss.set_ylim(bottom=0)
            plot_rules(divergence, results, network, "gradient_divergence", 1.0)
            divergence.set_title("divergence of local gradients")
        add_legend(drawing, panels[0])
        return drawing

    def judge(self, results: Results) -> Verdict:
        """Compare the means of divergence and training loss over all rounds."""
        checks = []
        for network in dict.fromkeys(network for network, _ in results.histories):
            for name, text in (
                ("gradient_divergence", "divergence"),
                ("train_loss", "training loss"),
            ):
                checks.append(
                    check_difference(
                        f"{network}: {text}, FedAdp minus FedAvg",
                        average_series(results[network, "FedAdp"], name),
                        average_series(results[network, "FedAvg"], name),
                        "lower",
                        digits=3,
                    )
                )
        return Verdict.from_checks(checks)
