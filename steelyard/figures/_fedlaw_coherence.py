"""FedLAW's figures on the coherence of clients: 5 to 7 and 12."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from steelyard.diagnostics import (
    Landscape,
    OptimumPath,
    by_client,
    critical_point,
    heterogeneity_coherence,
    series,
    to_plane,
)
from steelyard.figures._fedlaw_settings import (
    AS_IN_CODE,
    ON_DIGITS,
    PAPER,
    PAPER_GWS,
    PAPER_LAW,
    PAPER_LAW_SWA,
    PAPER_SEEDS,
    QUICK,
    QUICK_GWS,
    QUICK_LAW,
    QUICK_LAW_SWA,
    QUICK_PROXY,
    QUICK_SEEDS,
    TEN_CLIENTS,
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
    average_series,
    check_difference,
    check_not_lower,
    check_value,
    last_accuracies,
)
from steelyard.figures._models import read_experiment, read_label_counts
from steelyard.figures._style import (
    BLUE,
    DASHED,
    DOTTED,
    GREEN,
    GREY,
    ORANGE,
    RED,
    SOLID,
    Array,
    add_legend,
    draw_zero,
    label_rounds,
    make_panels,
    plot_mean,
    plot_series,
)
from steelyard.runs._history import History
from steelyard.sim._simulate import simulate

if TYPE_CHECKING:  # optional, and slow to import
    from matplotlib.figure import Figure as Drawing

    from steelyard.sim._simulator import Simulation

# Half of the clients have balanced classes, the other half imbalanced ones; three local epochs.
HYBRID = {
    "data": {"partition": "hybrid_dirichlet:alpha1=10,alpha2=0.1"},
    "local": {"epochs": 3},
}
NEAR_ZERO = 0.002  # coherence at which LAW stops early
COMPARABLE = 1.0  # points of accuracy by which a comparable result may be lower


def choose_rule(base: Settings, rules: Settings, rule: str) -> Settings:
    """Return settings with one of several rules, by its name."""
    return merge_settings(base, {"weighting": rules[rule]})


def set_attention(law: str) -> dict[str, str]:
    """Return the rules of Figure 5: FedAvg, and attentive LAW with and without early stopping."""
    return {
        "fedavg": "fedavg|record_coherence:groups=2",
        "law": f"{law}|record_coherence:groups=2",
        "stopped": f"{law}{',' if ':' in law else ':'}critical={NEAR_ZERO}",
    }


def set_shrinking(gws: str) -> dict[str, str]:
    """Return the rules of Figure 6: FedAvg and adaptive GWS."""
    return {"fedavg": "fedavg|record_coherence", "gws": f"{gws}|record_coherence"}


def find_critical_rounds(histories: Sequence[History], name: str = "coherence") -> list[int]:
    """Return the round in which coherence falls to near zero; the last one if it does not."""
    rounds = []
    for history in histories:
        point = critical_point(series(history, name))
        rounds.append(len(history) if point is None else point)
    return rounds


def average_rounds(
    histories: Sequence[History], name: str, points: Sequence[int], is_before: bool
) -> list[float]:
    """Return the mean of a series before, or from, the critical round of each run.

    Args:
        histories: the runs, one per seed.
        name: the series.
        points: the critical round of each run.
        is_before: take the rounds before it; otherwise it and those after it.
    """
    means = []
    for history, point in zip(histories, points, strict=True):
        rounds, values = series(history, name)
        selected = values[rounds < point] if is_before else values[rounds >= point]
        means.append(float(selected.mean()) if len(selected) else float(values[0]))
    return means


def sum_balanced_weights(history: History) -> tuple[Array, Array]:
    """Return the rounds, and the weight of the first half of the clients in each."""
    table = by_client(history, "weights")
    half = len(table.clients) // 2
    weights = np.nan_to_num(table.values)
    shares = weights[:, :half].sum(axis=1) / weights.sum(axis=1)
    return table.rounds.astype(np.float64), shares


@register
class Figure5(PaperFigure):
    """Coherence of balanced and imbalanced clients, accuracy, and the weight on balanced clients."""

    name = "fedlaw-figure5"
    title = "Attentive weights and local gradient coherence"
    claim = (
        "Before a critical point coherence is positive, balanced clients are more coherent than "
        "imbalanced ones and LAW gives them nearly all weight; stopping LAW there costs little."
    )
    source = Source("Figure 5", "section 5.2", "605-607, 751-787")
    quick = Scale(
        make_runs(
            partial(choose_rule, merge_settings(QUICK, HYBRID), set_attention(QUICK_LAW)),
            rule=("fedavg", "law", "stopped"),
        ),
        QUICK_SEEDS,
        (
            ON_DIGITS,
            TEN_CLIENTS,
            QUICK_PROXY,
            "Early stopping at a coherence of 0.002: the paper has no number.",
        ),
    )
    paper = Scale(
        make_runs(
            partial(choose_rule, merge_settings(PAPER, HYBRID), set_attention(PAPER_LAW)),
            rule=("fedavg", "law", "stopped"),
        ),
        PAPER_SEEDS,
        (AS_IN_CODE, "Early stopping at a coherence of 0.002: the paper has no number."),
    )

    def draw(self, results: Results) -> Drawing:
        """Draw coherence on the left, accuracy in the middle, weights on the right."""
        drawing, (coherence, accuracy, weights) = make_panels(3, height=2.6)

        # Coherence of the groups of clients, with the critical point of the first seed.
        law = results["law"]
        for name, label, colour, dash in (
            ("coherence_of_groups.1", "balanced clients", BLUE, SOLID),
            ("coherence", "all", GREY, DASHED),
            ("coherence_of_groups.2", "imbalanced clients", RED, DOTTED),
        ):
            plot_series(coherence, law, name, color=colour, linestyle=dash, label=label)
        draw_zero(coherence)
        point = float(np.median(find_critical_rounds(law)))
        for axes in (coherence, accuracy):
            axes.axvline(point, color=ORANGE, linewidth=1.2)
        coherence.set_title("coherence; orange: critical point")
        coherence.legend()

        # Accuracy, and the weight of balanced clients.
        for rule, label, colour, dash in (
            ("law", "LAW", BLUE, SOLID),
            ("stopped", "LAW, stopped early", GREEN, DASHED),
            ("fedavg", "FedAvg", GREY, DOTTED),
        ):
            style: dict[str, Any] = {"color": colour, "linestyle": dash, "label": label}
            plot_series(accuracy, results[rule], "accuracy", factor=100, **style)
            shares = [sum_balanced_weights(history) for history in results[rule]]
            plot_mean(weights, shares[0][0], [row for _, row in shares], **style)
        accuracy.set_title("test accuracy, %")
        accuracy.legend()
        weights.set(title="weight of balanced clients", ylim=(0, 1.02))
        label_rounds(coherence, accuracy, weights)
        return drawing

    def judge(self, results: Results) -> Verdict:
        """Check coherence around the critical point, weights of the first rounds, and the stop."""
        law = results["law"]
        points = find_critical_rounds(law)
        weights = {}
        for rule in ("law", "fedavg"):
            shares = [sum_balanced_weights(run)[1] for run in results[rule]]
            weights[rule, "first"] = [float(row[:2].mean()) for row in shares]
            weights[rule, "early"] = [
                float(row[: max(1, point - 1)].mean())
                for row, point in zip(shares, points, strict=True)
            ]
        checks = [
            check_difference(
                f"coherence before minus after the critical point (round {np.median(points):g})",
                average_rounds(law, "coherence", points, is_before=True),
                average_rounds(law, "coherence", points, is_before=False),
                "higher",
                digits=4,
            ),
            check_difference(
                "coherence of balanced minus imbalanced clients before it",
                average_rounds(law, "coherence_of_groups.1", points, is_before=True),
                average_rounds(law, "coherence_of_groups.2", points, is_before=True),
                "higher",
                digits=4,
            ),
            check_difference(
                f"weight of balanced clients before it, LAW ({np.mean(weights['law', 'early']):.2f}) "
                "minus FedAvg",
                weights["law", "early"],
                weights["fedavg", "early"],
                "higher",
            ),
            check_difference(
                f"the same in the first two rounds ({np.mean(weights['law', 'first']):.2f})",
                weights["law", "first"],
                weights["fedavg", "first"],
                "higher",
            ),
            check_not_lower(
                "early stop minus LAW in the last rounds",
                last_accuracies(results["stopped"]),
                last_accuracies(law),
                COMPARABLE,
                "points",
            ),
        ]
        return Verdict.from_checks(checks)


@register
class Figure6(PaperFigure):
    """Coherence with and without adaptive GWS, also without the part along the model; accuracy."""

    name = "fedlaw-figure6"
    title = "Adaptive GWS and local gradient coherence"
    claim = (
        "After the critical point the coherence of FedAvg falls below zero, while adaptive GWS keeps "
        "it positive and gains beyond FedAvg."
    )
    source = Source("Figure 6", "section 5.2", "748-749, 788-807")
    quick = Scale(
        make_runs(
            partial(
                choose_rule,
                merge_settings(QUICK, HYBRID, {"rounds": 40}),
                set_shrinking(QUICK_GWS),
            ),
            rule=("fedavg", "gws"),
        ),
        (*QUICK_SEEDS, 54, 55),
        (
            ON_DIGITS,
            TEN_CLIENTS,
            QUICK_PROXY,
            "The clients are those of Figure 5: the caption names none.",
        ),
    )
    paper = Scale(
        make_runs(
            partial(choose_rule, merge_settings(PAPER, HYBRID), set_shrinking(PAPER_GWS)),
            rule=("fedavg", "gws"),
        ),
        PAPER_SEEDS,
        (AS_IN_CODE, "The clients are those of Figure 5: the caption names none."),
    )

    def draw(self, results: Results) -> Drawing:
        """Draw coherence, coherence across the model, and accuracy."""
        drawing, panels = make_panels(3, height=2.5)
        for rule, label, colour, dash in (
            ("fedavg", "FedAvg", GREY, DOTTED),
            ("gws", "adaptive GWS", BLUE, SOLID),
        ):
            for axes, name in zip(
                panels, ("coherence", "coherence_across", "accuracy"), strict=True
            ):
                factor = 100.0 if name == "accuracy" else 1.0
                plot_series(
                    axes,
                    results[rule],
                    name,
                    color=colour,
                    linestyle=dash,
                    label=label,
                    factor=factor,
                )
        coherence, across, accuracy = panels
        draw_zero(coherence)
        draw_zero(across)
        coherence.set_title("local gradient coherence")
        across.set_title("coherence across the model")
        accuracy.set_title("test accuracy, %")
        label_rounds(*panels)
        add_legend(drawing, coherence)
        return drawing

    def judge(self, results: Results) -> Verdict:
        """Check the sign of coherence in the last third of the rounds, and the gain."""
        late = 1 / 3
        checks = [
            check_value(
                "coherence of FedAvg in the last third",
                average_series(results["fedavg"], "coherence", late),
                "lower",
                0.0,
                digits=4,
            ),
            check_value(
                "coherence of GWS in the last third",
                average_series(results["gws"], "coherence", late),
                "higher",
                0.0,
                digits=4,
            ),
            check_value(
                "coherence of GWS without the part along the model",
                average_series(results["gws"], "coherence_across", late),
                "higher",
                0.0,
                digits=4,
            ),
            check_difference(
                "gain of GWS over FedAvg",
                last_accuracies(results["gws"]),
                last_accuracies(results["fedavg"]),
                "higher",
                "points",
            ),
        ]
        return Verdict.from_checks(checks)


@register
class Figure7(PaperFigure):
    """Heterogeneity coherence of cohorts and accuracy, for FedAvg, LAW and LAW with SWA."""

    name = "fedlaw-figure7"
    title = "Heterogeneity coherence under partial participation"
    claim = (
        "With few clients per round, attentive LAW makes the weighted class distribution of the "
        "cohort more like the global one and gains accuracy; LAW with SWA gains more."
    )
    source = Source("Figure 7", "section 5.2", "797-798, 809-840")
    quick = Scale(
        make_runs(
            partial(
                choose_rule,
                merge_settings(
                    QUICK,
                    {
                        "data": {"clients": 20, "partition": "dirichlet:alpha=0.1"},
                        "participation": {"share": 0.3},
                        "local": {"epochs": 3, "batch_size": 16},
                    },
                ),
                {"fedavg": "fedavg", "law": QUICK_LAW, "swa": QUICK_LAW_SWA},
            ),
            rule=("fedavg", "law", "swa"),
        ),
        (*QUICK_SEEDS, 54, 55),
        (
            ON_DIGITS,
            QUICK_PROXY,
            "The caption names neither the share of clients nor α: 0.3 of 20 clients, 0.1.",
        ),
    )
    paper = Scale(
        make_runs(
            partial(
                choose_rule,
                merge_settings(
                    PAPER,
                    {
                        "data": {"partition": "dirichlet:alpha=0.1"},
                        "participation": {"share": 0.3, "train_all": True},
                        "local": {"epochs": 3},
                    },
                ),
                {"fedavg": "fedavg", "law": PAPER_LAW, "swa": PAPER_LAW_SWA},
            ),
            rule=("fedavg", "law", "swa"),
        ),
        PAPER_SEEDS,
        (
            AS_IN_CODE,
            "The caption names neither the share of clients nor α: 0.3, 0.1.",
            "All clients train and the cohort is drawn afterwards, as in the authors' code.",
        ),
    )

    @staticmethod
    def compute_coherence(histories: Sequence[History]) -> tuple[Array, Array]:
        """Return the rounds, and the heterogeneity coherence of each run and round."""
        rows = []
        for history in histories:
            table = by_client(history, "weights")
            by_id = read_label_counts(history)
            counts = np.array([by_id[client] for client in table.clients], dtype=np.float64)
            all_counts = np.array(list(by_id.values()), dtype=np.float64)
            positions = [list(by_id).index(client) for client in table.clients]
            values = []
            for weights in table.values:
                cohort = np.flatnonzero(~np.isnan(weights) & (counts.sum(axis=1) > 0))
                values.append(
                    heterogeneity_coherence(
                        all_counts, [positions[k] for k in cohort], weights[cohort]
                    )
                )
            rows.append(values)
        length = min(len(row) for row in rows)
        rounds = np.arange(1, length + 1, dtype=np.float64)
        return rounds, np.array([row[:length] for row in rows])

    def draw(self, results: Results) -> Drawing:
        """Draw heterogeneity coherence on the left, accuracy on the right."""
        drawing, (coherence, accuracy) = make_panels(2, height=2.6)
        for rule, label, colour, dash in (
            ("fedavg", "FedAvg", GREY, DOTTED),
            ("law", "LAW", BLUE, SOLID),
            ("swa", "LAW with SWA", RED, DASHED),
        ):
            style: dict[str, Any] = {"color": colour, "linestyle": dash, "label": label}
            rounds, rows = self.compute_coherence(results[rule])
            plot_mean(coherence, rounds, rows, **style)
            plot_series(accuracy, results[rule], "accuracy", factor=100, **style)
        coherence.set_title("heterogeneity coherence of the cohort")
        accuracy.set_title("test accuracy, %")
        label_rounds(coherence, accuracy)
        add_legend(drawing, coherence)
        return drawing

    def judge(self, results: Results) -> Verdict:
        """Compare LAW with FedAvg, and LAW with SWA with LAW."""
        means = {}
        for rule in ("fedavg", "law"):
            means[rule] = list(self.compute_coherence(results[rule])[1].mean(axis=1))
        accuracies = {rule: last_accuracies(results[rule]) for rule in results.histories}
        checks = [
            check_difference(
                "heterogeneity coherence, LAW minus FedAvg",
                means["law"],
                means["fedavg"],
                "higher",
                digits=3,
            ),
            check_difference(
                "gain of LAW over FedAvg",
                accuracies["law"],
                accuracies["fedavg"],
                "higher",
                "points",
            ),
            check_difference(
                "gain of LAW with SWA over LAW",
                accuracies["swa"],
                accuracies["law"],
                "higher",
                "points",
            ),
        ]
        return Verdict.from_checks(checks)


class LandscapeRecorder(OptimumPath):
    """Records the best weights of each round, and keeps the landscape of one round.

    Args:
        points: on each side of the triangle.
        samples: the number of test samples.
        round: the round whose landscape is kept.
    """

    def __init__(self, points: int, samples: int, round: int) -> None:
        super().__init__(points, samples=samples)
        self.kept_round = round
        self.landscape: Landscape | None = None

    def round(self, simulation: Simulation, record: dict[str, Any]) -> None:
        """Record the best weights; keep the landscape, or that of the last round before it."""
        super().round(simulation, record)
        if record["round"] <= self.kept_round:
            self.landscape = self.last


def set_hybrid(base: Settings, case: tuple[float, float]) -> Settings:
    """Return settings of three clients: one by Dirichlet(alpha1), two by Dirichlet(alpha2)."""
    alpha1, alpha2 = case
    partition = f"hybrid_dirichlet:alpha1={alpha1:g},alpha2={alpha2:g}"
    return merge_settings(base, {"data": {"clients": 3, "partition": partition}})


# Client 0 balanced and the others complementary; then client 0 unlike the others, which are alike.
CASES = ((100.0, 0.1), (0.5, 100.0), (0.1, 100.0))


@register
class Figure12(PaperFigure):
    """Data, weight landscape and best weights of three clients, in three settings."""

    name = "fedlaw-figure12"
    title = "Heterogeneity and the best aggregation weights of three clients"
    claim = (
        "The best weights are biased from FedAvg's towards clients with data that others lack, and "
        "vary most between clients with the same data distribution."
    )
    source = Source("Figure 12", "appendix B.2", "1248-1276")
    quick = Scale(
        make_runs(
            partial(set_hybrid, merge_settings(QUICK, {"rounds": 15, "local": {"epochs": 1}})),
            case=CASES,
        ),
        QUICK_SEEDS[:1],
        (
            ON_DIGITS,
            "The text names neither α nor E: (100, 0.1), (0.5, 100) and (0.1, 100), E = 1. Clients "
            "have different sizes; in the paper they have one size.",
        ),
        {"points": 11, "samples": 300, "round": 5},
    )
    paper = Scale(
        make_runs(
            partial(set_hybrid, merge_settings(PAPER, {"rounds": 100, "local": {"epochs": 1}})),
            case=CASES,
        ),
        PAPER_SEEDS[:1],
        (
            AS_IN_CODE,
            "The text names neither α nor E: (100, 0.1), (0.5, 100) and (0.1, 100), E = 1. Clients "
            "have different sizes; in the paper they have one size. The loss is that of 1000 test "
            "images.",
        ),
        {"points": 21, "samples": 1000, "round": 10},
    )

    def measure(self, results: Results, out: Path) -> dict[str, Any]:
        """Repeat each run, and evaluate the grid of weights in each round."""
        values = results.scale.values
        cases = []
        for runs in results.histories.values():
            recorder = LandscapeRecorder(values["points"], values["samples"], values["round"])
            repeated = simulate(read_experiment(runs[0]), callbacks=[recorder])
            landscape = recorder.landscape
            assert landscape is not None
            cases.append(
                {
                    "counts": list(read_label_counts(runs[0]).values()),
                    "weights": landscape.weights.tolist(),
                    "loss": landscape.loss.tolist(),
                    "fedavg": landscape.fedavg.tolist(),
                    "path": by_client(repeated, "optimal_weights").values.tolist(),
                }
            )
        return {"cases": cases}

    def draw(self, results: Results) -> Drawing:
        """Draw a row per setting: data, loss by weights, best weights of all rounds."""
        cases = results.measurements["cases"]
        drawing, panels = make_panels(3, rows=len(cases), height=2.2)
        titles = [format_case(case) for case in results.histories]
        for row, (case, title) in enumerate(zip(cases, titles, strict=True)):
            data, landscape, path = panels[3 * row : 3 * row + 3]

            # Samples by class and client.
            counts = np.array(case["counts"], dtype=np.float64)
            positions = np.arange(counts.shape[1])
            for client, colour in enumerate((BLUE, RED, GREEN)):
                x = positions + 0.27 * (client - 1)
                data.bar(x, counts[client], 0.27, color=colour, label=f"client {client}")
            data.set(title=f"samples, {title}", xlabel="class")

            # The loss over the triangle of weights, with FedAvg's weights and the best ones.
            plane = to_plane(np.array(case["weights"]))
            losses = np.array(case["loss"])
            landscape.tricontourf(plane[:, 0], plane[:, 1], losses, levels=12, cmap="Blues")
            landscape.scatter(
                plane[:, 0], plane[:, 1], c=losses, s=3, cmap="Blues", label="loss by weights"
            )
            fedavg = to_plane(np.array(case["fedavg"]))
            best = plane[losses.argmin()]
            landscape.scatter(best[0], best[1], marker="*", s=50, color=RED, label="best weights")
            landscape.scatter(fedavg[0], fedavg[1], marker="x", s=30, color="black", label="FedAvg")
            landscape.set_title(f"loss, round {results.scale.values['round']}")

            # The best weights of all rounds.
            points = to_plane(np.array(case["path"]))
            path.scatter(points[:, 0], points[:, 1], s=10, color=GREEN, label="best, each round")
            path.scatter(fedavg[0], fedavg[1], marker="x", s=30, color="black", label="FedAvg")
            path.set_title("best weights of all rounds")
            for axes in (landscape, path):
                axes.plot([0, 1, 0.5, 0], [0, 0, np.sqrt(0.75), 0], color=GREY, linewidth=0.8)
                axes.set(aspect="equal", xticks=[], yticks=[])
                axes.grid(visible=False)
        panels[0].legend()
        panels[1].legend(loc="upper left")
        return drawing

    def judge(self, results: Results) -> Verdict:
        """Compare the best weights with FedAvg's, and their spread by direction.

        There is one seed, as in the paper. The intervals are those of the mean over rounds.
        """
        checks = []
        spreads = []
        cases = results.measurements["cases"]
        for case, key in zip(cases, results.histories, strict=True):
            path = np.array(case["path"])
            own = list(path[:, 0])
            fedavg = [case["fedavg"][0]] * len(own)
            text = f"{format_case(key)}: best weight of client 0 minus FedAvg's"
            # The paper names the direction of the bias for the last setting only.
            if case is cases[-1]:
                checks.append(check_difference(text, own, fedavg, "higher"))
            else:
                bias = check_difference(f"{text}, either way", own, fedavg, "higher")
                checks.append(Check(bias.text, None if bias.holds is None else True))
            spreads.append(float(np.std(path[:, 1] - path[:, 2])))
        text = "deviation of the best weights along clients 1 and 2: " + ", ".join(
            f"{spread:.2f}" for spread in spreads
        )
        checks.append(Check(text, min(spreads[1:]) > spreads[0]))
        return Verdict.from_checks(checks)


def format_case(case: tuple[float, float]) -> str:
    """Return a setting of Figure 12 as text."""
    return f"α = {case[0]:g}, {case[1]:g}"
