"""The figures of FedLAW (Li et al., ICML 2023)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from steelyard.figures._figure import (
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
from steelyard.figures._judge import check_difference, last_accuracies
from steelyard.figures._style import CYCLE, align_series, label_rounds, make_panels, plot_series

if TYPE_CHECKING:  # optional, and slow to import
    from matplotlib.figure import Figure as Drawing

# The paper's analysis: SimpleCNN on CIFAR-10 with 20 clients, as in Table 1.
PAPER: dict[str, Any] = {
    "model": "simple_cnn",
    "rounds": 200,
    "data": {"name": "cifar10", "clients": 20},
    "local": {
        "epochs": 2,
        "batch_size": 128,
        "lr": 0.08,
        "schedule": "exponential:0.99",
        "momentum": 0.9,
        "weight_decay": 0.0005,
        "persistent": True,
        "train_share": 0.7,
    },
}
PAPER_SEEDS = (8, 9, 10)
AS_IN_CODE = (
    "As in the authors' code, not in the paper: clients train on 70 % of their data, momentum "
    "persists from round to round, batch 128."
)

# The small version: the embedded digits.
QUICK: dict[str, Any] = {
    "rounds": 40,
    "data": {"name": "digits", "clients": 10},
    "local": {"epochs": 2, "batch_size": 16, "lr": 0.1},
}
QUICK_SEEDS = (20, 21, 22, 23, 24)
ON_DIGITS = "Embedded digits and an MLP with 64 hidden units instead of CIFAR-10 and convolutions."


def shrink_by(base: Settings, gamma: float) -> Settings:
    """Return settings in which the server multiplies the global model by a fixed factor."""
    rule = "fedavg" if gamma == 1.0 else f"fedavg|shrink:gamma={gamma:g}"
    return merge_settings(base, {"weighting": rule})


@register
class Figure1(PaperFigure):
    """Accuracy by round for fixed shrinking factors."""

    name = "fedlaw-figure1"
    title = "Test accuracy with fixed l1 norms of the weights"
    claim = "A factor γ below 1 may improve generalization, and a small γ degrades late training."
    source = Source("Figure 1", "section 1 and 4.2", "36-37, 48-54, 480-483")
    quick = Scale(
        make_runs(
            partial(shrink_by, merge_settings(QUICK, {"data": {"partition": "dirichlet:1"}})),
            gamma=(1.0, 0.99, 0.97, 0.95, 0.9),
        ),
        QUICK_SEEDS,
        (ON_DIGITS,),
    )
    paper = Scale(
        make_runs(
            partial(
                shrink_by,
                merge_settings(
                    PAPER, {"model": "alexnet_cifar", "data": {"partition": "dirichlet:100"}}
                ),
            ),
            gamma=(1.0, 0.99, 0.97, 0.95, 0.93, 0.9),
        ),
        PAPER_SEEDS,
        (
            AS_IN_CODE,
            "AlexNet is CriticalFL's: the authors' is in no repository.",
            "The caption names neither the factors nor the partition: those of Table 1, alpha 100.",
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
        """Compare the best factor below 1, and the smallest one, with no shrinking."""
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

        # The lead of the smallest factor over the best one, early and late.
        rounds, small_rows = align_series(results[smallest], "accuracy")
        best_rows = align_series(results[best], "accuracy")[1]
        quarter = max(1, len(rounds) // 4)
        leads = 100 * (small_rows - best_rows)
        fall = check_difference(
            f"the lead of γ = {smallest} over γ = {best}, last quarter minus first",
            list(leads[:, -quarter:].mean(axis=1)),
            list(leads[:, :quarter].mean(axis=1)),
            "lower",
            "points",
        )
        return Verdict.from_checks([gain, fall])
