"""FedLAW's figures on global weight shrinking: 1 to 4, 9 to 11."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from steelyard.diagnostics import (
    hessian_spectra,
    hessian_spectrum,
    losses_along,
    parameter_histogram,
    rescaled_losses,
    series,
    share_near_zero,
)
from steelyard.experiments._statistics import import_scipy_stats
from steelyard.figures._fedlaw_settings import (
    AS_IN_CODE,
    ON_DIGITS,
    PAPER,
    PAPER_GWS,
    PAPER_SEEDS,
    QUICK,
    QUICK_GWS,
    QUICK_PROXY,
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
    average_middle,
    average_series,
    check_difference,
    check_trend,
    check_value,
    last_accuracies,
)
from steelyard.figures._models import get_path, load_model, load_test_samples
from steelyard.figures._style import (
    BLUE,
    CYCLE,
    DASHED,
    DOTTED,
    GREEN,
    GREY,
    ORANGE,
    RED,
    SOLID,
    Array,
    add_legend,
    align_series,
    draw_line,
    draw_zero,
    label_rounds,
    make_panels,
    make_twin,
    plot_mean,
    plot_series,
)

if TYPE_CHECKING:  # optional, and slow to import
    from matplotlib.figure import Figure as Drawing

LABELS = {"fedavg": "FedAvg", "gws": "adaptive GWS"}
ALPHA_STYLES = {100.0: (BLUE, SOLID, "o"), 1.0: (RED, DASHED, "s")}


def shrink_by(base: Settings, gamma: float) -> Settings:
    """Return settings in which the server multiplies the global model by a fixed factor."""
    rule = "fedavg" if gamma == 1.0 else f"fedavg|shrink:gamma={gamma:g}"
    return merge_settings(base, {"weighting": rule})


def learn_gamma(base: Settings, gws: str, rule: str, alpha: float, epochs: int) -> Settings:
    """Return settings of FedAvg, or of adaptive GWS.

    Args:
        base: the settings of all runs.
        gws: the rule that learns gamma.
        rule: "fedavg" or "gws".
        alpha: of the Dirichlet distribution of the clients' data.
        epochs: the number of local epochs.
    """
    weighting = gws if rule == "gws" else "fedavg"
    return merge_settings(set_clients(base, alpha, epochs), {"weighting": weighting})


@register
class Figure1(PaperFigure):
    """Accuracy by round for fixed shrinking factors."""

    name = "fedlaw-figure1"
    title = "Test accuracy with fixed shrinking factors"
    claim = "A factor γ below 1 may improve generalization, and a small γ degrades late training."
    source = Source("Figure 1", "sections 1 and 4.2", "36-37, 48-54, 480-483")
    quick = Scale(
        make_runs(
            partial(shrink_by, set_clients(QUICK, alpha=100, epochs=2)),
            gamma=(1.0, 0.99, 0.97, 0.95, 0.9),
        ),
        QUICK_SEEDS,
        (
            ON_DIGITS,
            TEN_CLIENTS,
        ),
    )
    paper = Scale(
        make_runs(
            partial(
                shrink_by,
                merge_settings(
                    set_clients(PAPER, alpha=100, epochs=2),
                    {"model": "alexnet_cifar", "proxy": {"per_class": None}},
                ),
            ),
            gamma=(1.0, 0.99, 0.97, 0.95, 0.93, 0.9),
        ),
        PAPER_SEEDS,
        (
            AS_IN_CODE,
            "AlexNet is CriticalFL's: the authors' is in no repository.",
            "The caption names neither the factors nor the partition: those of Table 1, α = 100.",
        ),
    )

    def draw(self, results: Results) -> Drawing:
        """Draw one curve per factor."""
        drawing, (accuracy,) = make_panels(1, height=3.0, width=4.5)
        for gamma, colour in zip(results.histories, CYCLE, strict=False):
            plot_series(
                accuracy,
                results[gamma],
                "accuracy",
                factor=100,
                color=colour,
                label=f"γ = {gamma}",
            )
        accuracy.set_title("test accuracy, %")
        label_rounds(accuracy)
        accuracy.legend()
        return drawing

    def judge(self, results: Results) -> Verdict:
        """Compare the best factor below 1 with no shrinking, and the smallest one with the best."""
        gammas = [gamma for gamma in results.histories if gamma != 1.0]
        smallest = min(gammas)
        best = max(gammas, key=lambda gamma: sum(last_accuracies(results[gamma])))
        gain = check_difference(
            f"γ = {best}, the best below 1, minus γ = 1 in the last rounds",
            last_accuracies(results[best]),
            last_accuracies(results[1.0]),
            "higher",
            "points",
        )

        # The lead of the smallest factor over none, early and late.
        rounds, small_rows = align_series(results[smallest], "accuracy")
        plain_rows = align_series(results[1.0], "accuracy")[1]
        quarter = max(1, len(rounds) // 4)
        leads = 100 * (small_rows - plain_rows)
        fall = check_difference(
            f"the lead of γ = {smallest} over γ = 1, last quarter minus second",
            list(leads[:, -quarter:].mean(axis=1)),
            list(leads[:, quarter : 2 * quarter].mean(axis=1)),
            "lower",
            "points",
        )
        return Verdict.from_checks([gain, fall])


@dataclass(frozen=True)
class Gains:
    """What adaptive GWS does in several settings; each array is `[seeds, settings]`.

    Attributes:
        accuracy: points of accuracy above FedAvg, in the last 10 rounds.
        gamma: the learned factor, in the middle of the training.
        norm: the norm of the global gradient, in the middle of the training.
    """

    accuracy: Array
    gamma: Array
    norm: Array


def compute_gains(results: Results, settings: Sequence[tuple[float, int]]) -> Gains:
    """Compare adaptive GWS with FedAvg.

    Args:
        results: runs by rule, alpha and local epochs.
        settings: alpha and local epochs of each setting.
    """
    gains = []
    gammas = []
    norms = []
    for alpha, epochs in settings:
        plain = np.array(last_accuracies(results["fedavg", alpha, epochs]))
        shrunk_runs = results["gws", alpha, epochs]
        gains.append(np.array(last_accuracies(shrunk_runs)) - plain)
        gammas.append(average_middle(shrunk_runs, "gamma"))
        norms.append(average_middle(shrunk_runs, "update_norm"))
    return Gains(np.transpose(gains), np.transpose(gammas), np.transpose(norms))


@register
class Figure2(PaperFigure):
    """The gain of adaptive GWS, the learned factor and the norm of the gradient, by local epochs."""

    name = "fedlaw-figure2"
    title = "Adaptive global weight shrinking by local epochs"
    claim = (
        "Adaptive GWS gains for all numbers of local epochs, and most for few; with more epochs, or "
        "data closer to IID, the global gradient is longer and the learned γ smaller."
    )
    source = Source("Figure 2", "section 4.2", "372-373, 449-478")
    quick = Scale(
        make_runs(
            partial(learn_gamma, QUICK, QUICK_GWS),
            rule=("fedavg", "gws"),
            alpha=(100.0, 1.0),
            epochs=(1, 2, 4),
        ),
        QUICK_SEEDS,
        (ON_DIGITS, TEN_CLIENTS, QUICK_PROXY),
        {"epochs": (1, 2, 4), "alphas": (100.0, 1.0)},
    )
    paper = Scale(
        make_runs(
            partial(learn_gamma, PAPER, PAPER_GWS),
            rule=("fedavg", "gws"),
            alpha=(100.0, 1.0),
            epochs=(1, 2, 3, 4, 5),
        ),
        PAPER_SEEDS,
        (AS_IN_CODE, "The text does not name the numbers of epochs: 1 to 5."),
        {"epochs": (1, 2, 3, 4, 5), "alphas": (100.0, 1.0)},
    )

    def draw(self, results: Results) -> Drawing:
        """Draw the gain on the left, the factor and the norm on the right, on two axes."""
        epochs = results.scale.values["epochs"]
        drawing, (left, gamma_axes) = make_panels(2)
        norm_axes = make_twin(gamma_axes, "norm of global gradient")
        for alpha in results.scale.values["alphas"]:
            gains = compute_gains(results, [(alpha, count) for count in epochs])
            colour, dash, marker = ALPHA_STYLES[alpha]
            style: dict[str, Any] = {"linestyle": dash, "marker": marker, "markersize": 4}
            label = f"α = {alpha:g}"
            plot_mean(left, epochs, gains.accuracy, color=colour, label=label, **style)
            plot_mean(gamma_axes, epochs, gains.gamma, color=GREEN, label=f"γ, {label}", **style)
            plot_mean(norm_axes, epochs, gains.norm, color=BLUE, label=f"norm, {label}", **style)
        draw_zero(left)
        left.set(title="gain in accuracy, points", xlabel="local epochs", xticks=epochs)
        left.legend()
        gamma_axes.set(title="learned γ (green)", xlabel="local epochs", xticks=epochs)
        return drawing

    def judge(self, results: Results) -> Verdict:
        """Check gains, trends by epochs, and the effect of more IID data."""
        epochs = results.scale.values["epochs"]
        checks = []
        all_gains = {}
        for alpha in results.scale.values["alphas"]:
            gains = compute_gains(results, [(alpha, count) for count in epochs])
            all_gains[alpha] = gains
            label = f"α = {alpha:g}"
            checks += [
                check_value(f"{label}: mean gain", list(gains.accuracy.mean(axis=1)), "higher", 0),
                check_trend(
                    f"{label}: gain from few to many epochs", epochs, gains.accuracy, "lower"
                ),
                check_trend(f"{label}: norm", epochs, gains.norm, "higher"),
                check_trend(f"{label}: γ", epochs, gains.gamma, "lower"),
            ]
        iid = all_gains[max(all_gains)]
        other = all_gains[min(all_gains)]
        checks += [
            check_difference(
                "norm, IID minus non-IID",
                list(iid.norm.mean(axis=1)),
                list(other.norm.mean(axis=1)),
                "higher",
                digits=3,
            ),
            check_difference(
                "γ, IID minus non-IID",
                list(iid.gamma.mean(axis=1)),
                list(other.gamma.mean(axis=1)),
                "lower",
                digits=3,
            ),
        ]
        return Verdict.from_checks(checks)


@register
class Figure3(PaperFigure):
    """The two terms of adaptive GWS, the learned factor and the ratio of the terms, by round."""

    name = "fedlaw-figure3"
    title = "The two gradients of adaptive global weight shrinking"
    claim = (
        "While the norm of the global gradient decays, adaptive GWS learns a rising γ, and the "
        "ratio r of the two terms stays steady at around 19."
    )
    source = Source("Figure 3", "section 4.2", "454-456, 480-489")
    paper_ratio = 19.0
    quick = Scale(
        {"gws": learn_gamma(merge_settings(QUICK, {"rounds": 40}), QUICK_GWS, "gws", 100, 2)},
        QUICK_SEEDS,
        (ON_DIGITS, TEN_CLIENTS, QUICK_PROXY),
    )
    paper = Scale(
        {"gws": learn_gamma(PAPER, PAPER_GWS, "gws", 100, 2)},
        PAPER_SEEDS,
        (AS_IN_CODE, "The caption names neither α nor E: those of Table 1, 100 and 2."),
    )

    def draw(self, results: Results) -> Drawing:
        """Draw the norms on the left, factor and ratio on the right, on two axes."""
        runs = results["gws"]
        drawing, (norms, gammas) = make_panels(2)
        ratios = make_twin(gammas, "r")
        plot_series(norms, runs, "update_norm", color=BLUE, label="global gradient")
        plot_series(
            norms, runs, "shrinking", color=ORANGE, linestyle=DASHED, label="GWS pseudo gradient"
        )
        norms.set_title("norm")
        norms.set_yscale("log")
        norms.legend()
        plot_series(gammas, runs, "gamma", color=GREEN, label="γ")
        plot_series(ratios, runs, "shrinking_ratio", color=BLUE, linestyle=DASHED, label="r")
        draw_line(ratios, self.paper_ratio)
        ratios.set_yscale("log")
        gammas.set_title("learned γ (green), ratio r (blue); grey: r = 19")
        label_rounds(norms, gammas)
        return drawing

    def judge(self, results: Results) -> Verdict:
        """Compare the last third of the rounds with the first third, and r with the paper's."""
        runs = results["gws"]
        late = 1 / 3
        checks = [
            check_difference(
                "norm of the global gradient, last third of rounds minus first",
                average_series(runs, "update_norm", late),
                average_series(runs, "update_norm", late, from_end=False),
                "lower",
                digits=3,
            ),
            check_difference(
                "γ, last third minus first",
                average_series(runs, "gamma", late),
                average_series(runs, "gamma", late, from_end=False),
                "higher",
                digits=3,
            ),
        ]
        ratios = [series(run, "shrinking_ratio").values for run in runs]
        medians = [float(np.median(values[len(values) // 2 :])) for values in ratios]
        middle = float(np.median(medians))
        is_near = abs(middle / self.paper_ratio - 1) <= 0.25
        checks.append(Check(f"median r of the second half: {middle:.1f}, paper 19", is_near))
        return Verdict.from_checks(checks)


@register
class Figure4(PaperFigure):
    """Final models of FedAvg and adaptive GWS: rescaled, as a histogram, and perturbed."""

    name = "fedlaw-figure4"
    title = "Scale invariance, small parameters and flat minima"
    claim = (
        "Rescaling changes the loss of adaptive GWS's final model little; it has nearly twice as "
        "many parameters near zero as FedAvg's, a flatter curvature and a smaller loss."
    )
    source = Source("Figure 4", "section 4.2", "494-537")
    quick = Scale(
        make_runs(
            partial(learn_gamma, QUICK, QUICK_GWS, alpha=100.0, epochs=2), rule=("fedavg", "gws")
        ),
        QUICK_SEEDS,
        (ON_DIGITS, TEN_CLIENTS, QUICK_PROXY, "The paper names neither the samples nor α and E."),
        {"samples": 1000},
    )
    paper = Scale(
        make_runs(
            partial(learn_gamma, PAPER, PAPER_GWS, alpha=100.0, epochs=2), rule=("fedavg", "gws")
        ),
        PAPER_SEEDS,
        (
            AS_IN_CODE,
            "The paper names neither the samples nor α and E: 1000 test images, 100 and 2.",
        ),
        {"samples": 1000},
    )

    def measure(self, results: Results, out: Path) -> dict[str, Any]:
        """Measure losses of rescaled models, histograms, and losses along the top eigenvector."""
        factors = [float(value) for value in np.linspace(0.5, 1.5, 21)]
        steps = [float(value) for value in np.linspace(-1.0, 1.0, 21)]
        limit = 0.5
        values: dict[str, Any] = {"factors": factors, "steps": steps, "limit": limit}
        for rule in LABELS:
            rows = []
            for history in results[rule]:
                model = load_model(history)
                inputs, targets = load_test_samples(history, results.scale.values["samples"])
                spectrum = hessian_spectrum(model, inputs, targets, k=1)
                direction = spectrum.vectors[0]
                histogram = parameter_histogram(model.state_dict(), bins=41, limit=limit)
                rows.append(
                    {
                        "rescaled": rescaled_losses(model, inputs, targets, factors).tolist(),
                        "counts": histogram.counts.tolist(),
                        "edges": histogram.edges.tolist(),
                        "near_zero": share_near_zero(model.state_dict(), 0.01),
                        "along": losses_along(model, inputs, targets, direction, steps).tolist(),
                        "top": spectrum.top,
                    }
                )
            values[rule] = rows
        return values

    def draw(self, results: Results) -> Drawing:
        """Draw three panels: rescaled models, histograms of parameters, perturbed models."""
        values = results.measurements
        drawing, (rescaled, histogram, along) = make_panels(3, height=2.6)
        for rule, colour, dash in (("fedavg", GREY, DOTTED), ("gws", BLUE, SOLID)):
            style: dict[str, Any] = {"color": colour, "linestyle": dash, "label": LABELS[rule]}
            rows = values[rule]
            plot_mean(rescaled, values["factors"], [row["rescaled"] for row in rows], **style)
            edges = np.array(rows[0]["edges"])
            middles = (edges[1:] + edges[:-1]) / 2
            plot_mean(histogram, middles, [row["counts"] for row in rows], **style)
            plot_mean(along, values["steps"], [row["along"] for row in rows], **style)
        rescaled.set(title="loss of γ times the model", xlabel="γ", yscale="log")
        histogram.set(title="number of parameters", xlabel="value")
        along.set(title="loss along the top eigenvector", xlabel="step", yscale="log")
        add_legend(drawing, rescaled)
        return drawing

    def judge(self, results: Results) -> Verdict:
        """Compare the two final models."""
        values = results.measurements

        def read(rule: str, key: str) -> list[float]:
            return [row[key] for row in values[rule]]

        # The change of the loss between 0.8 and 1.2 times the model.
        factors = np.array(values["factors"])
        is_near = (factors > 0.79) & (factors < 1.21)
        changes = {}
        for rule in LABELS:
            near = np.array(read(rule, "rescaled"))[:, is_near]
            changes[rule] = list(near.max(axis=1) - near.min(axis=1))
        near_zero = np.mean(read("gws", "near_zero")) / np.mean(read("fedavg", "near_zero"))
        middle = len(values["steps"]) // 2
        losses = {rule: [row["along"][middle] for row in values[rule]] for rule in LABELS}
        checks = [
            check_difference(
                "change of the loss from 0.8 to 1.2 times the model, GWS minus FedAvg",
                changes["gws"],
                changes["fedavg"],
                "lower",
                digits=3,
            ),
            check_difference(
                f"share of parameters near zero ({near_zero:.2f} times FedAvg's), GWS minus FedAvg",
                read("gws", "near_zero"),
                read("fedavg", "near_zero"),
                "higher",
                digits=3,
            ),
            check_difference(
                "top eigenvalue, GWS minus FedAvg",
                read("gws", "top"),
                read("fedavg", "top"),
                "lower",
            ),
            check_difference(
                "loss, GWS minus FedAvg", losses["gws"], losses["fedavg"], "lower", digits=3
            ),
        ]
        return Verdict.from_checks(checks)


@register
class Figure9(PaperFigure):
    """The gain of adaptive GWS, the learned factor and the norm of the gradient, by heterogeneity."""

    name = "fedlaw-figure9"
    title = "Adaptive global weight shrinking under various heterogeneity"
    claim = (
        "Adaptive GWS gains in all settings; when data become more IID, the norm of the global "
        "gradient increases and the learned γ decreases."
    )
    source = Source("Figure 9", "appendix B.1", "1195-1208")
    quick = Scale(
        make_runs(
            partial(learn_gamma, QUICK, QUICK_GWS, epochs=2),
            rule=("fedavg", "gws"),
            alpha=(0.1, 0.5, 1.0, 10.0, 100.0),
        ),
        QUICK_SEEDS,
        (ON_DIGITS, TEN_CLIENTS, QUICK_PROXY, "The paper does not name E here: 2."),
        {"alphas": (0.1, 0.5, 1.0, 10.0, 100.0)},
    )
    paper = Scale(
        make_runs(
            partial(learn_gamma, PAPER, PAPER_GWS, epochs=2),
            rule=("fedavg", "gws"),
            alpha=(0.1, 0.5, 1.0, 10.0, 100.0),
        ),
        PAPER_SEEDS,
        (AS_IN_CODE, "The paper does not name E here, nor all α: E = 2, α from 0.1 to 100."),
        {"alphas": (0.1, 0.5, 1.0, 10.0, 100.0)},
    )

    @staticmethod
    def compute(results: Results) -> Gains:
        """Compare adaptive GWS with FedAvg for each alpha."""
        keyed = {(rule, alpha, 2): runs for (rule, alpha), runs in results.histories.items()}
        by_epochs = Results(results.scale, results.seeds, keyed)
        return compute_gains(by_epochs, [(alpha, 2) for alpha in results.scale.values["alphas"]])

    def draw(self, results: Results) -> Drawing:
        """Draw the gain on the left, the factor and the norm on the right, on two axes."""
        alphas = results.scale.values["alphas"]
        gains = self.compute(results)
        drawing, (left, gamma_axes) = make_panels(2)
        norm_axes = make_twin(gamma_axes, "norm of global gradient")
        style: dict[str, Any] = {"marker": "o", "markersize": 4}
        plot_mean(left, alphas, gains.accuracy, color=BLUE, label="gain", **style)
        plot_mean(gamma_axes, alphas, gains.gamma, color=GREEN, label="γ", **style)
        plot_mean(
            norm_axes, alphas, gains.norm, color=BLUE, label="norm", linestyle=DASHED, **style
        )
        draw_zero(left)
        left.set(title="gain in accuracy, points", xlabel="α", xscale="log")
        gamma_axes.set(title="learned γ (green)", xlabel="α", xscale="log")
        return drawing

    def judge(self, results: Results) -> Verdict:
        """Check the gain of each setting, and trends by alpha."""
        alphas = results.scale.values["alphas"]
        gains = self.compute(results)
        lowest = int(gains.accuracy.mean(axis=0).argmin())
        checks = [
            check_value(
                f"smallest gain, at α = {alphas[lowest]:g}",
                list(gains.accuracy[:, lowest]),
                "higher",
                0,
            ),
            check_trend("norm from α = 0.1 to 100", alphas, gains.norm, "higher"),
            check_trend("γ from α = 0.1 to 100", alphas, gains.gamma, "lower"),
        ]
        return Verdict.from_checks(checks)


# Figure 10 needs the models of many rounds.
KEEP_MODELS = {"checkpoint_every": 10, "checkpoint_pace": 1.0, "keep": 1000}


@register
class Figure10(PaperFigure):
    """The norm of the model and the flatness of the loss, by round."""

    name = "fedlaw-figure10"
    title = "Norm of the model and Hessian eigenvalues during training"
    claim = (
        "During training, adaptive GWS has smaller parameters, a smaller top eigenvalue of the "
        "Hessian and a smaller ratio of the first to the fifth than FedAvg."
    )
    source = Source("Figure 10", "appendix B.1", "1202-1220")
    quick = Scale(
        make_runs(
            partial(
                learn_gamma,
                merge_settings(QUICK, KEEP_MODELS, {"checkpoint_every": 4}),
                QUICK_GWS,
                alpha=100.0,
                epochs=2,
            ),
            rule=("fedavg", "gws"),
        ),
        QUICK_SEEDS,
        (ON_DIGITS, TEN_CLIENTS, QUICK_PROXY, "Hessian of the loss on 300 training images."),
        {"samples": 300},
    )
    paper = Scale(
        make_runs(
            partial(
                learn_gamma,
                merge_settings(PAPER, KEEP_MODELS),
                PAPER_GWS,
                alpha=100.0,
                epochs=2,
            ),
            rule=("fedavg", "gws"),
        ),
        PAPER_SEEDS,
        (
            AS_IN_CODE,
            "The paper names neither samples, α nor E: 1000 training images, 100 and 2. Every tenth "
            "round is measured.",
        ),
        {"samples": 1000},
    )

    def measure(self, results: Results, out: Path) -> dict[str, Any]:
        """Measure the spectrum of the Hessian at the models that each run kept."""
        values: dict[str, Any] = {}
        for rule in LABELS:
            rows = []
            for history in results[rule]:
                spectra = hessian_spectra(
                    get_path(history), samples=results.scale.values["samples"], tolerance=0.01
                )
                rows.append(
                    {
                        "rounds": spectra.rounds.tolist(),
                        "top": spectra.top.tolist(),
                        "ratio": spectra.ratio.tolist(),
                    }
                )
            values[rule] = rows
        return values

    @staticmethod
    def align(results: Results, rule: str, key: str) -> tuple[list[int], Array]:
        """Return the rounds that all runs have kept, and the values `[seeds, rounds]`."""
        common: set[int] | None = None
        for rows in results.measurements.values():
            for row in rows:
                rounds = set(row["rounds"])
                common = rounds if common is None else common & rounds
        selected = sorted(common or ())
        table = []
        for row in results.measurements[rule]:
            by_round = dict(zip(row["rounds"], row[key], strict=True))
            table.append([by_round[number] for number in selected])
        return selected, np.array(table)

    def draw(self, results: Results) -> Drawing:
        """Draw the norm, the top eigenvalue, and the ratio of eigenvalues."""
        drawing, (norm, top, ratio) = make_panels(3, height=2.5)
        for rule, colour, dash in (("fedavg", GREY, DOTTED), ("gws", BLUE, SOLID)):
            style: dict[str, Any] = {"color": colour, "linestyle": dash, "label": LABELS[rule]}
            plot_series(norm, results[rule], "param_norm", **style)
            for axes, key in ((top, "top"), (ratio, "ratio")):
                rounds, rows = self.align(results, rule, key)
                plot_mean(axes, rounds, rows, marker="o", markersize=3, **style)
        norm.set_title("norm of the parameters")
        top.set_title("top Hessian eigenvalue")
        ratio.set_title("first eigenvalue / fifth")
        label_rounds(norm, top, ratio)
        add_legend(drawing, norm)
        return drawing

    def judge(self, results: Results) -> Verdict:
        """Compare the means over rounds."""
        checks = [
            check_difference(
                "norm of the parameters, GWS minus FedAvg",
                average_series(results["gws"], "param_norm"),
                average_series(results["fedavg"], "param_norm"),
                "lower",
            )
        ]
        for key, text in (("top", "top eigenvalue"), ("ratio", "ratio of eigenvalues")):
            ours = self.align(results, "gws", key)[1]
            theirs = self.align(results, "fedavg", key)[1]
            checks.append(
                check_difference(
                    f"{text}, GWS minus FedAvg",
                    list(ours.mean(axis=1)),
                    list(theirs.mean(axis=1)),
                    "lower",
                )
            )
        return Verdict.from_checks(checks)


def collect_scale(scale: Scale, is_by_alpha: bool) -> Mapping[Any, Settings]:
    """Return the runs of adaptive GWS of Figure 2 or 9, by alpha and epochs."""
    runs = {}
    for key, settings in scale.runs.items():
        if key[0] == "gws":
            runs[(key[1], 2) if is_by_alpha else key[1:]] = settings
    return runs


@register
class Figure11(PaperFigure):
    """The distribution of the ratio r over all experiments of Figures 2 and 9."""

    name = "fedlaw-figure11"
    title = "Distribution of r"
    claim = (
        "The ratio r of all experiments of Figures 2 and 9 is distributed like a Gaussian with "
        "mean around 20.5."
    )
    source = Source("Figure 11", "appendix B.1", "1222-1234")
    paper_mean = 20.5
    quick = Scale(
        {**collect_scale(Figure9.quick, True), **collect_scale(Figure2.quick, False)},
        QUICK_SEEDS,
        (ON_DIGITS, TEN_CLIENTS, QUICK_PROXY),
    )
    paper = Scale(
        {**collect_scale(Figure9.paper, True), **collect_scale(Figure2.paper, False)},
        PAPER_SEEDS,
        (
            AS_IN_CODE,
            "One r per run: the median over the middle of the training (D.5 takes the mean).",
        ),
    )

    @staticmethod
    def collect_ratios(results: Results) -> Array:
        """Return the ratio of each run, in the middle of the training."""
        ratios: list[float] = []
        for runs in results.histories.values():
            ratios += average_middle(runs, "shrinking_ratio", take=np.median)
        return np.array(ratios)

    def draw(self, results: Results) -> Drawing:
        """Draw a histogram, and the Gaussian with the same mean and deviation."""
        ratios = self.collect_ratios(results)
        drawing, (axes,) = make_panels(1, height=2.8, width=4.5)
        axes.hist(ratios, bins=12, density=True, color=BLUE, alpha=0.6, label="runs")
        x = np.linspace(ratios.min(), ratios.max(), 100)
        mean = float(ratios.mean())
        deviation = float(ratios.std(ddof=1)) if len(ratios) > 1 else 0.0
        if deviation > 0:
            curve = import_scipy_stats().norm.pdf(x, mean, deviation)
            axes.plot(x, curve, color=RED, label=f"Gaussian, mean {mean:.1f}")
        axes.set(title=f"r of {len(ratios)} runs", xlabel="r", ylabel="density")
        axes.legend()
        return drawing

    def judge(self, results: Results) -> Verdict:
        """Compare the mean with the paper's, and test for a Gaussian (Shapiro and Wilk)."""
        ratios = self.collect_ratios(results)
        mean = float(ratios.mean())
        is_near = abs(mean / self.paper_mean - 1) <= 0.25
        checks = [Check(f"mean r {mean:.1f}, paper 20.5", is_near)]
        if len(ratios) >= 8 and np.ptp(ratios) > 0:
            p_value = float(import_scipy_stats().shapiro(ratios).pvalue)
            text = f"a test for a Gaussian has p = {p_value:.2g}"
            checks.append(Check(text, p_value > 0.05))
        return Verdict.from_checks(checks)
