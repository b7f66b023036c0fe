"""The figures of FedCos (Zhang et al., IEEE IoT Journal 2023)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from steelyard.client._fedcos import FedCos
from steelyard.client._fedprox import FedProx
from steelyard.diagnostics import THREE_CLIENTS, TWO_CLIENTS, Toy, series, trajectory
from steelyard.experiments import scores
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
    average_series,
    check_difference,
    check_equal,
    check_trend,
    check_value,
    last_accuracies,
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
    add_legend,
    align_series,
    draw_zero,
    label_rounds,
    limit_percent,
    make_panels,
    plot_bars,
    plot_series,
)
from steelyard.report._panels import FAINT
from steelyard.runs._history import History

if TYPE_CHECKING:  # optional, and slow to import
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

# The algorithms. FedProx here has a factor 1/2 that the authors' has not: mu = 0.2 is their 0.1.
ALGORITHMS: dict[str, Settings] = {
    "FedAvg": {},
    "FedProx (0.1)": {"client": "fedprox:mu=0.2"},
    "FedAvgM (0.5)": {"server": "momentum:beta=0.5,convention=fedcos"},
    "FedOpt (1.2)": {"server": "sgd:lr=1.2"},
    "FedOpt (1.5)": {"server": "sgd:lr=1.5"},
    "FedOpt (1.7)": {"server": "sgd:lr=1.7"},
    "FedCos (0.01)": {"client": "fedcos:mu=0.01"},
    "FedCos (0.02)": {"client": "fedcos:mu=0.02"},
    "FedProx + FedCos": {"client": "fedprox:mu=0.2+fedcos:mu=0.02"},
    "FedAvgM + FedCos": {
        "server": "momentum:beta=0.5,convention=fedcos",
        "client": "fedcos:mu=0.02",
    },
    "FedOpt + FedCos": {"server": "sgd:lr=1.5", "client": "fedcos:mu=0.02"},
}
LOOKS: dict[str, dict[str, Any]] = {
    "FedAvg": {"color": GREY, "linestyle": DOTTED},
    "FedProx (0.1)": {"color": ORANGE, "linestyle": DASHED},
    "FedOpt (1.2)": {"color": PINK, "linestyle": DASHED},
    "FedOpt (1.5)": {"color": RED, "linestyle": DASHED},
    "FedOpt (1.7)": {"color": GREEN, "linestyle": DASHED},
    "FedCos (0.01)": {"color": SKY, "linestyle": SOLID},
    "FedCos (0.02)": {"color": BLUE, "linestyle": SOLID},
}
FOUR = ("FedAvg", "FedProx (0.1)", "FedCos (0.01)", "FedCos (0.02)")
THREE = ("FedAvg", "FedCos (0.01)", "FedCos (0.02)")
OPTIMIZERS = ("FedAvg", "FedOpt (1.2)", "FedOpt (1.5)", "FedOpt (1.7)", "FedCos (0.02)")
ENHANCED = {  # what FedCos makes of each baseline
    "FedAvg": "FedCos (0.02)",
    "FedProx (0.1)": "FedProx + FedCos",
    "FedAvgM (0.5)": "FedAvgM + FedCos",
    "FedOpt (1.5)": "FedOpt + FedCos",
}
SCENES = {  # the scenes of Tables I and II
    "totally": "sorted",
    "90 %": "sorted:share_iid=0.1",
    "70 %": "sorted:share_iid=0.3",
    "IID": "sorted:share_iid=1",
}

# The paper's settings.
CIFAR10: dict[str, Any] = {  # Table I
    "weighting": "uniform",
    "model": "lenet",
    "rounds": 100,
    "data": {"name": "cifar10:scale=standard", "clients": 5, "partition": "sorted"},
    "local": {"steps": 400, "batch_size": 128, "lr": 0.01, "augment": "crop_flip"},
}
FASHION_MNIST: dict[str, Any] = {  # Table II
    "weighting": "uniform",
    "model": "mlp:hidden=[200],dropout=0.5",
    "rounds": 84,
    "data": {"name": "fashion-mnist:scale=half", "clients": 7, "partition": "sorted"},
    "local": {"steps": 400, "batch_size": 128, "lr": 0.01},
}
TWENTY: dict[str, Any] = {  # Figure 6
    "data": {"clients": 20, "partition": "shards"},
    "local": {"steps": 200, "batch_size": 64},
}
PAPER_SEEDS = (1, 2, 3)
AS_IN_CODE = (
    "As in the authors' code: uniform weights (clients have equal sizes), FedProx without the "
    "factor 1/2, LeNet with three linear layers for CIFAR-10."
)
NO_SEEDS = "The paper names no seeds and shows one run."

# The small version: the embedded digits.
QUICK: dict[str, Any] = {
    "rounds": 60,
    "data": {"name": "digits", "clients": 5, "partition": "sorted"},
    "local": {"epochs": 1, "batch_size": 16, "lr": 0.1},
}
LONG = merge_settings(QUICK, {"rounds": 150})
QUICK_SEEDS = (50, 51, 52, 53, 54)
THREE_SEEDS = (50, 51, 52)
ON_DIGITS = (
    "Embedded digits and an MLP with 64 hidden units, one local epoch with batch size 16 and "
    "learning rate 0.1, fewer rounds."
)


def use_algorithm(base: Settings, algorithm: str) -> Settings:
    """Return settings with one of the algorithms."""
    return merge_settings(base, ALGORITHMS[algorithm])


def use_scene(base: Settings, algorithm: str, scene: str) -> Settings:
    """Return settings with one of the algorithms in one of the scenes."""
    return merge_settings(base, ALGORITHMS[algorithm], {"data": {"partition": SCENES[scene]}})


def use_data(bases: Settings, data: str, algorithm: str) -> Settings:
    """Return the settings of a data set with one of the algorithms."""
    return merge_settings(bases[data], ALGORITHMS[algorithm])


def plot_algorithms(
    axes: Axes, histories: dict[str, Sequence[History]], name: str, factor: float = 1.0
) -> None:
    """Plot a series of several algorithms by round.

    Args:
        axes: the panel.
        histories: the runs of each algorithm, one per seed.
        name: the series.
        factor: a factor for all values.
    """
    for algorithm, runs in histories.items():
        plot_series(axes, runs, name, factor=factor, label=algorithm, **LOOKS[algorithm])
    label_rounds(axes)


def check_gain(results: Results, first: Any, second: Any, text: str) -> Check:
    """Check whether the first run has the higher accuracy in the last rounds."""
    return check_difference(
        f"{text} in the last rounds",
        last_accuracies(results[first]),
        last_accuracies(results[second]),
        "higher",
        "points",
    )


def limit_accuracy(axes: Axes, results: Results, keys: Sequence[Any], margin: float = 25.0) -> None:
    """Start the vertical axis of accuracies some points below the last rounds of all runs."""
    lowest = min(min(last_accuracies(results[key])) for key in keys)
    axes.set_ylim(bottom=lowest - margin)
    limit_percent(axes)


@register
class Figure3(PaperFigure):
    """Cosine between clients, and accuracy."""

    name = "fedcos-figure3"
    title = "Directions of clients' models, and accuracy"
    claim = (
        "Directions of clients become different under FedAvg. FedCos reduces this inconsistency "
        "and outperforms FedAvg and FedProx."
    )
    source = Source("Figure 3", "section IV-B, property 1", "114-126, 156-158")
    quick = Scale(
        make_runs(partial(use_algorithm, QUICK), algorithm=FOUR),
        QUICK_SEEDS,
        (ON_DIGITS, "The cosine is the mean over all pairs of clients; the paper has one pair."),
    )
    paper = Scale(
        make_runs(partial(use_algorithm, FASHION_MNIST), algorithm=FOUR),
        PAPER_SEEDS,
        (
            AS_IN_CODE,
            NO_SEEDS,
            "The cosine is the mean over all pairs of clients; the paper has one pair.",
        ),
    )

    def draw(self, results: Results) -> Drawing:
        """Draw the cosine by round, and accuracy by round."""
        drawing, (cosine, accuracy) = make_panels(2, height=2.8)
        plot_algorithms(cosine, dict(results.histories), "mean_cosine")
        draw_zero(cosine)
        cosine.set_title("(a) cosine between clients")
        plot_algorithms(accuracy, dict(results.histories), "accuracy", 100)
        limit_accuracy(accuracy, results, FOUR)
        accuracy.set_title("(b) test accuracy, %")
        add_legend(drawing, cosine)
        return drawing

    def judge(self, results: Results) -> Verdict:
        """Check that FedAvg's cosine falls, and that FedCos has a higher one and gains."""
        rows = align_series(results["FedAvg"], "mean_cosine")[1]
        third = max(1, rows.shape[1] // 3)
        fall = check_difference(
            "FedAvg's cosine, last third of the rounds minus first",
            list(rows[:, -third:].mean(axis=1)),
            list(rows[:, :third].mean(axis=1)),
            "lower",
        )
        rise = check_difference(
            "FedCos's cosine (μ = 0.02) minus FedAvg's",
            average_series(results["FedCos (0.02)"], "mean_cosine"),
            average_series(results["FedAvg"], "mean_cosine"),
            "higher",
        )
        gains = [
            check_gain(results, "FedCos (0.02)", other, f"accuracy of FedCos minus {other}")
            for other in ("FedAvg", "FedProx (0.1)")
        ]
        return Verdict.from_checks([fall, rise, *gains])


class ToyFigure(PaperFigure):
    """Paths of the global model in the plane, for clients with quadratic losses.

    Attributes:
        toy: the clients.
        limits: the ends of the axes: left, right, bottom, top.
    """

    toy: ClassVar[Toy]
    limits: ClassVar[tuple[float, float, float, float]]

    def measure(self, results: Results, out: Path) -> dict[str, Any]:
        """Return the path of each algorithm, and its distances to the global optimum."""
        values = results.scale.values
        terms = {  # FedProx here has a factor 1/2 that the authors' has not
            "FedAvg": None,
            f"FedProx, μ = {values['prox']}": FedProx(2 * values["prox"]),
            f"FedCos, μ = {values['cos']}": FedCos(values["cos"]),
        }
        paths = {}
        for label, term in terms.items():
            path = trajectory(self.toy, term, values["rounds"], values["steps"], values["lr"])
            paths[label] = {
                "points": path.points.tolist(),
                "distances": path.distances.tolist(),
            }
        return paths

    def draw(self, results: Results) -> Drawing:
        """Draw the paths with darker points for later rounds, and the distances to the optimum."""
        drawing, (plane, distance) = make_panels(2, height=3.0)
        left, right, bottom, top = self.limits

        # The global loss, and the optima.
        x, y = np.meshgrid(np.linspace(left, right, 121), np.linspace(bottom, top, 121))
        losses = self.toy.loss(np.stack([x, y], axis=-1))
        plane.contour(x, y, losses, levels=12, colors=FAINT, linewidths=0.8)
        client_x, client_y = np.transpose(self.toy.optima)
        client_optima = plane.scatter(
            client_x, client_y, marker="x", s=28, color="black", label="optima of the clients"
        )
        best_x, best_y = self.toy.optimum
        global_optimum = plane.scatter(
            [best_x], [best_y], marker="*", s=70, color="black", label="global optimum", zorder=4
        )

        # The paths.
        looks = ((BLUE, SOLID, "o"), (ORANGE, DASHED, "s"), (GREEN, DOTTED, "^"))
        for (label, path), (color, linestyle, marker) in zip(
            results.measurements.items(), looks, strict=True
        ):
            points = np.array(path["points"])
            shades = [float(shade) for shade in np.linspace(0.3, 1, len(points))]
            plane.plot(points[:, 0], points[:, 1], color=color, linewidth=0.5, alpha=0.6)
            plane.scatter(
                points[:, 0],
                points[:, 1],
                s=14,
                marker=marker,
                color=color,
                alpha=shades,  # type: ignore[arg-type]
                linewidths=0,
                zorder=3,
                label=label,
            )
            distance.plot(
                path["distances"],
                color=color,
                linestyle=linestyle,
                marker=marker,
                markersize=4,
                markevery=6,
                label=label,
            )
        plane.set_title("path of the global model, later rounds darker")
        plane.set(xlabel="$x_0$", ylabel="$x_1$", xlim=(left, right), ylim=(bottom, top))
        plane.grid(visible=False)
        distance.set_title("distance to the global optimum")
        distance.set_ylim(0, 1.5)
        label_rounds(distance)
        handles = [client_optima, global_optimum, *distance.lines]  # points of paths are pale
        drawing.legend(handles=handles, loc="outside lower center", ncols=5)
        return drawing

    def judge(self, results: Results) -> Verdict:
        """Compare the smallest distances to the optimum, and the speed of FedProx."""
        average, prox, cosine = results.measurements.values()
        closest = [min(path["distances"][1:]) for path in (average, prox, cosine)]
        rounds = [count_rounds_to_the_end(path["points"]) for path in (average, prox)]
        return Verdict.from_checks(
            [
                Check(
                    f"FedCos comes as close as {closest[2]:.2f} to the global optimum, FedAvg "
                    f"{closest[0]:.2f}",
                    closest[2] < closest[0],
                ),
                Check(
                    f"FedProx, which should not outperform FedAvg, as close as {closest[1]:.2f}",
                    closest[1] >= closest[0],
                ),
                Check(
                    f"FedProx, which should be slower, is at its end from round {rounds[1]} on, "
                    f"FedAvg from round {rounds[0]} on",
                    rounds[1] > rounds[0],
                ),
            ]
        )


def count_rounds_to_the_end(points: Sequence[Sequence[float]], near: float = 0.01) -> int:
    """Return the first round from which on a path stays near its last point.

    Args:
        points: the points of the path, from the start on.
        near: the largest distance that counts as near.
    """
    distances = np.linalg.norm(np.array(points) - np.array(points[-1]), axis=1)
    far = np.flatnonzero(distances > near)
    return int(far[-1]) + 1 if len(far) else 0


TOY_VALUES = {"rounds": 80, "steps": 50, "lr": 0.1, "prox": 0.1, "cos": 0.2}
TOY_SETTINGS = (
    "The paper gives neither the local steps (50 here), nor the learning rate (0.1) nor μ."
)


@register
class Figure4(ToyFigure):
    """The example with two clients."""

    name = "fedcos-figure4"
    title = "Paths of the global model with two clients"
    claim = (
        "FedCos walks around the convergence point of FedAvg and finds points closer to the global "
        "optimum. FedProx does not outperform FedAvg, and is slower."
    )
    source = Source("Figure 4", "section V", "167, 175-181")
    quick = Scale(values=TOY_VALUES, differences=(TOY_SETTINGS,))
    paper = quick
    toy = TWO_CLIENTS
    limits = (2.8, 6.2, -0.7, 1.3)


@register
class Figure6(PaperFigure):
    """Accuracy with 20 clients."""

    name = "fedcos-figure6"
    title = "Accuracy by round with 20 clients"
    claim = (
        "With 20 clients FedCos is far ahead of FedAvg (CIFAR-10: 57.14 and 55.12 compared with "
        "50.63), and FedProx is similar to FedAvg."
    )
    source = Source("Figure 6", "section VI-B2", "254, 270-288, 319")
    quick = Scale(
        make_runs(
            partial(
                use_data,
                {"digits": merge_settings(QUICK, {"data": {"clients": 20, "partition": "shards"}})},
            ),
            data=("digits",),
            algorithm=FOUR,
        ),
        QUICK_SEEDS,
        (ON_DIGITS, "One data set instead of two."),
    )
    paper = Scale(
        make_runs(
            partial(
                use_data,
                {
                    "CIFAR-10": merge_settings(CIFAR10, TWENTY),
                    "Fashion-MNIST": merge_settings(FASHION_MNIST, TWENTY, {"rounds": 118}),
                },
            ),
            data=("CIFAR-10", "Fashion-MNIST"),
            algorithm=FOUR,
        ),
        PAPER_SEEDS,
        (
            AS_IN_CODE,
            NO_SEEDS,
            "500 epochs are 100 rounds of 200 steps on CIFAR-10 and 118 on Fashion-MNIST.",
        ),
    )

    def draw(self, results: Results) -> Drawing:
        """Draw one panel per data set."""
        data_sets = list(dict.fromkeys(data for data, _ in results.histories))
        width = 7.0 if len(data_sets) > 1 else 4.5
        drawing, panels = make_panels(len(data_sets), height=2.8, width=width)
        for axes, data in zip(panels, data_sets, strict=True):
            histories = {algorithm: results[data, algorithm] for algorithm in FOUR}
            plot_algorithms(axes, histories, "accuracy", 100)
            limit_accuracy(axes, results, [(data, algorithm) for algorithm in FOUR])
            axes.set_title(f"test accuracy on {data}, %")
        add_legend(drawing, panels[0], columns=2 * len(data_sets))
        return drawing

    def judge(self, results: Results) -> Verdict:
        """Compare the last rounds of FedCos and FedProx with FedAvg's."""
        checks = []
        for data in dict.fromkeys(data for data, _ in results.histories):
            for algorithm in ("FedCos (0.01)", "FedCos (0.02)"):
                text = f"{data}: {algorithm} minus FedAvg"
                checks.append(check_gain(results, (data, algorithm), (data, "FedAvg"), text))
            checks.append(
                check_equal(
                    f"{data}: FedProx minus FedAvg",
                    last_accuracies(results[data, "FedProx (0.1)"]),
                    last_accuracies(results[data, "FedAvg"]),
                    1.0,
                    "points",
                )
            )
        return Verdict.from_checks(checks)


class RoundsSaved(PaperFigure):
    """Rounds that each baseline, and FedCos on top of it, needs in the four scenes."""

    def draw(self, results: Results) -> Drawing:
        """Draw one panel per baseline, with a group of bars per scene."""
        scenes = list_scenes(results)
        drawing, panels = make_panels(2, rows=2, height=2.2)
        for axes, letter, baseline in zip(panels, "abcd", ENHANCED, strict=True):
            heights = np.array([count_rounds_by_scene(results, baseline, s) for s in scenes])
            plot_bars(
                axes,
                [scene if scene == "IID" else f"{scene}\nnon-IID" for scene in scenes],
                heights.transpose(2, 1, 0),
                ("baseline, all its rounds", "baseline, first time", "with FedCos, first time"),
                (GREY, ORANGE, BLUE),
            )
            axes.set_title(f"({letter}) {baseline}: rounds to its final accuracy")
        add_legend(drawing, panels[0], columns=3)
        return drawing

    def judge(self, results: Results) -> Verdict:
        """Compute the share of rounds that FedCos saves, as the paper does and more strictly."""
        scenes = list_scenes(results)
        counts = np.array(
            [[count_rounds_by_scene(results, b, s) for s in scenes] for b in ENHANCED]
        )  # [baselines, scenes, seeds, 3]
        total, first, ours = np.moveaxis(counts, -1, 0)
        saved = 1 - ours / total
        strictly_saved = 1 - ours / first
        half = check_value(
            "share of rounds that FedCos saves, mean over baselines and scenes (half or more is "
            "expected)",
            list(saved.mean(axis=(0, 1))),
            "higher",
            0.5,
        )
        checks = [half]
        for number, baseline in enumerate(ENHANCED):
            text = (
                f"share saved compared with the first time that {baseline} has its final accuracy"
            )
            checks.append(
                check_value(text, list(strictly_saved[number].mean(axis=0)), "higher", 0.0)
            )
        by_scene = saved.mean(axis=0).T  # [seeds, scenes]
        checks.append(
            check_trend(
                "share saved from IID to totally non-IID",
                list(range(len(scenes))),
                by_scene[:, ::-1],
                "higher",
            )
        )
        return Verdict.from_checks(checks)


def list_scenes(results: Results) -> list[str]:
    """Return the scenes of the runs, from totally non-IID on."""
    return list(dict.fromkeys(scene for _, scene in results.histories))


def count_rounds_by_scene(results: Results, baseline: str, scene: str) -> list[list[float]]:
    """Return how many rounds a baseline and FedCos on it need to the baseline's final accuracy.

    Args:
        results: the runs by algorithm and scene.
        baseline: the algorithm without FedCos.
        scene: how the data are distributed.

    Returns:
        For each seed: all rounds of the baseline, its first round with this accuracy, and the
        first round of FedCos with it (all rounds if there is none).
    """
    rows = []
    plain_runs = results[baseline, scene]
    enhanced_runs = results[ENHANCED[baseline], scene]
    for plain, enhanced in zip(plain_runs, enhanced_runs, strict=True):
        goal = scores.final(plain)
        assert goal is not None
        first = plain.rounds_to(goal)
        ours = enhanced.rounds_to(goal)
        rows.append([float(len(plain)), float(first or len(plain)), float(ours or len(plain))])
    return rows


BOTH = (*ENHANCED, *ENHANCED.values())
FEW_SCENES = ("totally", "90 %", "IID")
SHORT = merge_settings(QUICK, {"rounds": 40})
ONE_LESS = "Three of the four scenes."
FIRST_TIME = (
    "A second bar shows when the baseline itself first has its final accuracy: the paper counts all "
    "rounds of the baseline."
)


@register
class Figure7(RoundsSaved):
    """Rounds saved on CIFAR-10 with five clients."""

    name = "fedcos-figure7"
    title = "Rounds that FedCos saves, five clients"
    claim = "FedCos reduces the rounds to the final accuracy of each of four baselines by 50 %."
    source = Source("Figure 7", "section VI-C", "300-313, 337-341")
    quick = Scale(
        make_runs(partial(use_scene, SHORT), algorithm=BOTH, scene=FEW_SCENES),
        THREE_SEEDS,
        (ON_DIGITS, ONE_LESS, FIRST_TIME),
    )
    paper = Scale(
        make_runs(partial(use_scene, CIFAR10), algorithm=BOTH, scene=tuple(SCENES)),
        PAPER_SEEDS,
        (AS_IN_CODE, NO_SEEDS, FIRST_TIME),
    )


@register
class Figure8(RoundsSaved):
    """Rounds saved on Fashion-MNIST with seven clients."""

    name = "fedcos-figure8"
    title = "Rounds that FedCos saves, seven clients"
    claim = (
        "FedCos is 2 to 5 times as efficient as each of four baselines, and more so for larger "
        "heterogeneity."
    )
    source = Source("Figure 8", "section VI-C", "325-333, 337-341")
    quick = Scale(
        make_runs(
            partial(use_scene, merge_settings(SHORT, {"data": {"clients": 7}})),
            algorithm=BOTH,
            scene=FEW_SCENES,
        ),
        THREE_SEEDS,
        (ON_DIGITS, ONE_LESS, FIRST_TIME),
    )
    paper = Scale(
        make_runs(partial(use_scene, FASHION_MNIST), algorithm=BOTH, scene=tuple(SCENES)),
        PAPER_SEEDS,
        (
            AS_IN_CODE,
            NO_SEEDS,
            FIRST_TIME,
            "500 epochs are 84 rounds, as the authors' code counts them.",
        ),
    )


class AccuracyCurves(PaperFigure):
    """Accuracy by round of several algorithms, in one panel."""

    def draw(self, results: Results) -> Drawing:
        """Draw one curve per algorithm."""
        drawing, (accuracy,) = make_panels(1, height=3.0, width=5.0)
        plot_algorithms(accuracy, dict(results.histories), "accuracy", 100)
        limit_accuracy(accuracy, results, list(results.histories))
        accuracy.set_title("test accuracy, %")
        accuracy.legend(loc="lower right")
        return drawing


@register
class Figure9(AccuracyCurves):
    """FedCos and FedOpt."""

    name = "fedcos-figure9"
    title = "FedCos, and FedOpt with several global learning rates"
    claim = (
        "FedOpt is faster than FedAvg in the first rounds and the same later; a large global "
        "learning rate is unstable. FedCos stays ahead all the time."
    )
    source = Source("Figure 9", "section VI-D1", "343-351")
    quick = Scale(
        make_runs(partial(use_algorithm, LONG), algorithm=OPTIMIZERS),
        THREE_SEEDS,
        (ON_DIGITS,),
    )
    paper = Scale(
        make_runs(
            partial(use_algorithm, merge_settings(CIFAR10, {"rounds": 300})), algorithm=OPTIMIZERS
        ),
        PAPER_SEEDS,
        (
            AS_IN_CODE,
            NO_SEEDS,
            "The paper names one of the global learning rates, 1.7, and not the number of rounds, "
            "which is above 200.",
        ),
    )

    def judge(self, results: Results) -> Verdict:
        """Compare FedOpt with FedAvg early and late, and FedCos with all others."""
        means = {}
        jitters = {}
        for algorithm in OPTIMIZERS:
            rows = 100 * align_series(results[algorithm], "accuracy")[1]
            tenth = max(1, rows.shape[1] // 10)
            means[algorithm] = list(rows[:, :tenth].mean(axis=1))
            late = rows[:, rows.shape[1] // 2 :]
            jitters[algorithm] = list(np.abs(np.diff(late, axis=1)).mean(axis=1))
        last = {algorithm: last_accuracies(results[algorithm]) for algorithm in OPTIMIZERS}
        checks = [
            check_difference(
                "FedOpt (1.5) minus FedAvg in the first tenth of the rounds",
                means["FedOpt (1.5)"],
                means["FedAvg"],
                "higher",
                "points",
            ),
            check_equal(
                "FedOpt (1.5) minus FedAvg in the last rounds",
                last["FedOpt (1.5)"],
                last["FedAvg"],
                0.5,
                "points",
            ),
        ]
        for other in ("FedAvg", "FedOpt (1.5)"):
            text = f"FedCos (0.02) minus {other}"
            checks.append(check_gain(results, "FedCos (0.02)", other, text))
        checks.append(
            check_difference(
                "change from round to round in the second half, FedOpt (1.7) minus FedAvg",
                jitters["FedOpt (1.7)"],
                jitters["FedAvg"],
                "higher",
                "points",
            )
        )
        return Verdict.from_checks(checks)


@register
class Figure10(AccuracyCurves):
    """A deeper network."""

    name = "fedcos-figure10"
    title = "A deeper network"
    claim = "With ResNet18, FedCos outperforms FedAvg with each weight of the penalty."
    source = Source("Figure 10", "section VI-D2", "349, 353, 365")
    quick = Scale(
        make_runs(
            partial(use_algorithm, merge_settings(QUICK, {"model": "mlp:hidden=[64,64,64,64]"})),
            algorithm=THREE,
        ),
        THREE_SEEDS,
        (ON_DIGITS, "The deeper network is an MLP with four hidden layers."),
    )
    paper = Scale(
        make_runs(
            partial(use_algorithm, merge_settings(CIFAR10, {"model": "resnet18:norm=fedcos"})),
            algorithm=THREE,
        ),
        PAPER_SEEDS,
        (
            AS_IN_CODE,
            NO_SEEDS,
            "The paper gives no settings for this figure: those of Table I, with the authors' "
            "ResNet18 with group normalization.",
        ),
    )

    def judge(self, results: Results) -> Verdict:
        """Compare the last rounds of FedCos with FedAvg's."""
        checks = []
        for algorithm in THREE[1:]:
            checks.append(check_gain(results, algorithm, "FedAvg", f"{algorithm} minus FedAvg"))
        return Verdict.from_checks(checks)


@register
class Figure11(AccuracyCurves):
    """Long training."""

    name = "fedcos-figure11"
    title = "Long training"
    claim = (
        "After more than 600 rounds FedCos is still ahead of FedAvg (58.58 and 57.66 compared with "
        "56.83), also in its best round, but by less than before."
    )
    source = Source("Figure 11", "section VI-D3", "356, 366")
    quick = Scale(
        make_runs(partial(use_algorithm, LONG), algorithm=THREE),
        THREE_SEEDS,
        (ON_DIGITS,),
    )
    paper = Scale(
        make_runs(
            partial(use_algorithm, merge_settings(CIFAR10, {"rounds": 632})), algorithm=THREE
        ),
        PAPER_SEEDS,
        (AS_IN_CODE, NO_SEEDS, "3200 epochs are 632 rounds of 400 steps."),
    )

    def judge(self, results: Results) -> Verdict:
        """Compare the last and the best rounds with FedAvg's, and the gap with an earlier one."""
        checks = []
        for algorithm in THREE[1:]:
            checks.append(check_gain(results, algorithm, "FedAvg", f"{algorithm} minus FedAvg"))
        best = {
            algorithm: [
                100 * float(series(run, "accuracy").values.max()) for run in results[algorithm]
            ]
            for algorithm in THREE
        }
        checks.append(
            check_difference(
                "FedCos (0.02) minus FedAvg in their best rounds",
                best["FedCos (0.02)"],
                best["FedAvg"],
                "higher",
                "points",
            )
        )

        # The gap in the rounds around a sixth of the training, as in Table I, and in the last.
        rows = 100 * align_series(results["FedCos (0.02)"], "accuracy")[1]
        rows = rows - 100 * align_series(results["FedAvg"], "accuracy")[1]
        sixth = max(1, rows.shape[1] // 6)
        window = max(1, sixth // 3)
        checks.append(
            check_difference(
                "the gap of FedCos (0.02) to FedAvg at the end minus that after a sixth of the rounds",
                list(rows[:, -window:].mean(axis=1)),
                list(rows[:, sixth : sixth + window].mean(axis=1)),
                "lower",
                "points",
            )
        )
        return Verdict.from_checks(checks)


@register
class Figure12(PaperFigure):
    """Distances that models move."""

    name = "fedcos-figure12"
    title = "How far local models and the global model move"
    claim = (
        "With FedCos local models move less far and are closer to each other, and the global model "
        "moves farther. With FedProx local models move less far, but are not as close as expected."
    )
    source = Source("Figure 12", "section VI-E", "360-362, 370-372")
    quick = Figure3.quick
    paper = Figure3.paper

    def draw(self, results: Results) -> Drawing:
        """Draw the three distances by round."""
        drawing, panels = make_panels(3, height=2.6)
        titles = (
            ("mean_update_norm", "(a) move of local models"),
            ("mean_pairwise_distance", "(b) between local models"),
            ("update_norm", "(c) move of the global model"),
        )
        for axes, (name, title) in zip(panels, titles, strict=True):
            plot_algorithms(axes, dict(results.histories), name)
            axes.set_title(title)
            axes.set_ylim(bottom=0)
        add_legend(drawing, panels[0])
        return drawing

    def judge(self, results: Results) -> Verdict:
        """Compare the three distances of FedCos, and the first two of FedProx, with FedAvg's."""

        def average(algorithm: str, name: str) -> list[float]:
            return average_series(results[algorithm], name)

        checks = []
        for name, text, expected in (
            ("mean_update_norm", "move of local models", "lower"),
            ("mean_pairwise_distance", "distance between local models", "lower"),
            ("update_norm", "move of the global model", "higher"),
        ):
            checks.append(
                check_difference(
                    f"{text}, FedCos (0.02) minus FedAvg",
                    average("FedCos (0.02)", name),
                    average("FedAvg", name),
                    expected,  # type: ignore[arg-type]
                    digits=3,
                )
            )
        checks.append(
            check_difference(
                "move of local models, FedProx minus FedAvg",
                average("FedProx (0.1)", "mean_update_norm"),
                average("FedAvg", "mean_update_norm"),
                "lower",
                digits=3,
            )
        )
        checks.append(
            check_difference(
                "distance between local models, FedProx minus FedCos (0.02)",
                average("FedProx (0.1)", "mean_pairwise_distance"),
                average("FedCos (0.02)", "mean_pairwise_distance"),
                "higher",
                digits=3,
            )
        )
        return Verdict.from_checks(checks)


@register
class Figure13(ToyFigure):
    """The example with three clients."""

    name = "fedcos-figure13"
    title = "Paths of the global model with three clients"
    claim = (
        "As with two clients, FedCos walks around the stationary point of FedAvg and finds points "
        "closer to the global optimum."
    )
    source = Source("Figure 13", "appendix A", "428-433")
    quick = Scale(
        values=TOY_VALUES,
        differences=(
            TOY_SETTINGS,
            "The paper does not give the functions either: the third client is ours.",
        ),
    )
    paper = quick
    toy = THREE_CLIENTS
    limits = (2.6, 6.4, -0.7, 2.4)
