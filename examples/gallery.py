"""Draws the papers' figures from runs of our own: `python examples/gallery.py [FIGURE ...]`; see docs/gallery.md.

Runs are kept in out/gallery and gone on with: a second call only draws. Data are Fashion-MNIST and,
for one figure, CIFAR-10, in $STEELYARD_DATA; `--data digits --second digits` needs no files. Some
figures are on the embedded digits whatever `--data` says: means over ten seeds, in the settings of
small_papers.py.
"""

import argparse
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image
from scipy import stats
from small_papers import (
    FEDCOS_SCENES,
    FEW_OF_MANY,
    FIVE_IID,
    HYBRID,
    SEEDS,
    SHRINKING,
    SORTED,
    Setting,
)

import steelyard
from steelyard.core import Info, Needs, Weighting
from steelyard.data import Dataset, load
from steelyard.diagnostics import (
    TWO_CLIENTS,
    by_client,
    client_distances,
    critical_periods,
    critical_point,
    data_distances,
    group_coherence,
    loss_deviation,
    matrix_correlation,
    series,
    trajectory,
)
from steelyard.experiments import scores
from steelyard.models import build
from steelyard.report._panels import COLOURS, FAINT
from steelyard.rules import chain

BLUE, ORANGE, GREEN, _, SKY, RED, _, GREY = COLOURS
SOLID, DASHED, DOTTED = "-", (0, (5, 2)), (0, (1, 1.2))
STYLE = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.4,
    "legend.frameon": False,
    "legend.fontsize": 7,
    "savefig.dpi": 300,
}

# FedLAW's local training. A sixth of the images, in a quarter of the batch at a quarter of the
# rate: as many steps.
LOCAL = {
    "lr": 0.02,
    "batch_size": 32,
    "momentum": 0.9,
    "weight_decay": 5e-4,
    "schedule": "exponential:0.99",
}
# The paper's proxy for analysis, 2000 images in 16 batches and 100 epochs, moves a logit by 6 at
# most. One batch of 300 at a higher rate goes nearly as far in a fraction of the time: 0.7 for
# gamma, 3.5 for lambda.
PROXY = {"per_class": 30, "batch_size": 300}
STOP = 0.002  # coherence that counts as near zero
GWS, LAW = "gws:epochs=60,lr=0.02", "law:epochs=60,lr=0.1"


@dataclass(frozen=True)
class Lab:
    """Where figures get their runs from."""

    data: str
    images: int
    rounds: int | None
    runs: Path
    workers: int | None
    model: str
    second: str
    seeds: int = len(SEEDS)

    @cached_property
    def samples(self) -> tuple[Dataset, Dataset]:
        """Some of the training images, and all test images."""
        train, test = load(self.data)
        few = np.random.default_rng(0).permutation(len(train))[: self.images]
        return train.take(np.sort(few)), test

    def run(
        self, name: str, rule: str | Weighting, rounds: int, data: Any = None, **options: Any
    ) -> steelyard.History:
        """A run of this name: begun, gone on with, or only read."""
        print(f"{name} ...", flush=True)
        return steelyard.simulate(
            rule,
            self.samples if data is None else data,
            options.pop("model", self.model),
            rounds=rounds,
            workers=self.workers,
            out=self.runs / self.data / name,
            resume=True,
            **options,
        )

    def repeat(
        self, name: str, setting: Setting, algorithm: Any = "fedavg"
    ) -> list[steelyard.History]:
        """Runs an algorithm in a small setting on the embedded digits, once for each seed.

        Runs that exist are resumed, or only read.
        """
        print(f"{name}, {self.seeds} seeds ...", flush=True)
        return [
            setting.simulate(
                algorithm,
                seed,
                self.rounds,
                workers=self.workers,
                out=self.runs / "digits" / f"{name}-s{seed}",
                resume=True,
            )
            for seed in SEEDS[: self.seeds]
        ]


def panels(count: int, height: float = 2.3) -> tuple[Figure, Any]:
    figure = Figure(figsize=(7.0, height), layout="constrained")
    return figure, figure.subplots(1, count)


def by_round(*boxes: Axes) -> None:
    for axes in boxes:
        axes.set_xlabel("round")
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))


def make_slug(text: str) -> str:
    """Returns a folder's name for a text: lower case, with hyphens."""
    return re.sub("[^a-z0-9.]+", "-", text.lower()).strip("-")


def plot_mean(axes: Axes, x: Any, rows: Any, bars: bool = False, **style: Any) -> None:
    """Plots the mean of rows, one per seed, with its 95 % interval: shaded, or as bars where x are categories."""
    table = np.asarray(rows, dtype=float)
    mean = table.mean(axis=0)
    axes.plot(x, mean, **style)
    if len(table) < 2:
        return
    half = stats.t.ppf(0.975, len(table) - 1) * table.std(axis=0, ddof=1) / np.sqrt(len(table))
    if bars:
        axes.vlines(x, mean - half, mean + half, color=style["color"], linewidth=1)
    else:
        axes.fill_between(
            x, mean - half, mean + half, color=style["color"], alpha=0.15, linewidth=0
        )


def plot_series(
    axes: Axes, runs: list[steelyard.History], name: str, scale: float = 1, **style: Any
) -> None:
    """Plots a series of the record by round, as the mean over seeds with its interval."""
    rows = [scale * series(run, name).values for run in runs]
    plot_mean(axes, series(runs[0], name).rounds, rows, **style)


def gain_by_seed(runs: list[steelyard.History], reference: list[steelyard.History]) -> list[float]:
    """Returns how many points each run is ahead of the reference's run of the same seed, in its last 10 rounds."""
    return [
        100 * (scores.last(run) - scores.last(other))
        for run, other in zip(runs, reference, strict=True)
    ]


def fedlaw_2(lab: Lab) -> Figure:
    """What adaptive shrinking gains, the gamma it learns, and the norm of the global gradient, by local epochs."""
    epochs = (1, 2, 4)
    figure, (gains, gammas, norms) = panels(3)
    for alpha, colour, dash, mark in ((100, BLUE, SOLID, "o"), (1, RED, DASHED, "s")):
        rows = []
        for count in epochs:
            common = {
                "clients": 20,
                "partition": f"dirichlet:{alpha}",
                "local": {**LOCAL, "epochs": count},
            }
            plain, shrunk = (
                lab.run(
                    f"fedlaw-2-{rule[:3]}-a{alpha}-e{count}",
                    rule,
                    lab.rounds or 20,
                    proxy=PROXY,
                    **common,
                )
                for rule in ("fedavg", GWS)
            )
            last = slice(-len(plain) // 2, None)  # gamma has settled by then
            ends = [100 * series(run, "accuracy").values[-5:].mean() for run in (plain, shrunk)]
            rows.append(
                (
                    ends[1] - ends[0],
                    *(series(shrunk, n).values[last].mean() for n in ("gamma", "update_norm")),
                )
            )
        for axes, values in zip((gains, gammas, norms), zip(*rows, strict=True), strict=True):
            label = f"Dirichlet({alpha})" + (", nearly IID" if alpha > 1 else "")
            axes.plot(
                epochs, values, color=colour, linestyle=dash, marker=mark, markersize=4, label=label
            )
    gains.axhline(0, color=GREY, linewidth=0.8)
    gammas.axhline(1, color=GREY, linewidth=0.8)
    for axes, title in (
        (gains, "gain in accuracy, points"),
        (gammas, "learned γ"),
        (norms, "norm of global gradient"),
    ):
        axes.set(title=title, xlabel="local epochs", xticks=epochs)
    gains.legend()
    return figure


def fedlaw_3(lab: Lab) -> Figure:
    """Norms of the two terms of adaptive shrinking, gamma, and the ratio of the two, on two data sets."""
    figure, (norms, gammas, ratios) = panels(3)
    options = {
        "clients": 20,
        "partition": "dirichlet:100",
        "local": {**LOCAL, "epochs": 2},
        "proxy": PROXY,
    }
    for at, strong, pale, dash in (
        (lab, BLUE, SKY, SOLID),
        (replace(lab, data=lab.second), RED, ORANGE, DASHED),
    ):
        run = at.run("fedlaw-3", GWS, lab.rounds or 60, **options)
        norms.plot(
            *series(run, "shrinking"), color=pale, linestyle=DOTTED, label=f"{at.data}, shrinking"
        )
        norms.plot(
            *series(run, "update_norm"),
            color=strong,
            linestyle=dash,
            label=f"{at.data}, global gradient",
        )
        gammas.plot(*series(run, "gamma"), color=strong, linestyle=dash, label=at.data)
        ratios.plot(*series(run, "shrinking_ratio"), color=strong, linestyle=dash, label=at.data)
    gammas.axhline(1, color=GREY, linewidth=0.8)
    ratios.axhline(19, color=GREY, linewidth=1)
    across = ratios.get_yaxis_transform()
    ratios.text(
        0.98,
        20,
        "19, the paper's",
        color=GREY,
        fontsize=7,
        ha="right",
        va="bottom",
        transform=across,
    )
    norms.set(title="norm", yscale="log")
    gammas.set(title="learned γ")
    ratios.set(title="r, ratio of the two norms", yscale="log")
    by_round(norms, gammas, ratios)
    figure.legend(*norms.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


@dataclass(frozen=True)
class Halves(Weighting):
    """Notes the coherence of the first and of the second half of the clients; weights pass as they are."""

    name = "halves"
    modifies = True
    info = Info("notes coherence by half of the clients", "FedLAW, Fig. 5")

    @property
    def needs(self) -> Needs:
        return Needs.of(gram=True)

    def apply(self, prior, view, state):
        half = len(view.ids) // 2
        found = group_coherence(
            view.whole_gram, [int(client) < half for client in view.ids], prior.shares[0]
        )
        return prior.add_report(
            coherence_balanced=found.within[True], coherence_imbalanced=found.within[False]
        ), state


def fedlaw_5(lab: Lab) -> Figure:
    """Coherence of balanced and imbalanced clients, accuracy, and the weight on balanced clients."""
    common = {"clients": 20, "partition": "hybrid_dirichlet:alpha1=10,alpha2=0.1", "proxy": PROXY}
    common["local"] = {**LOCAL, "epochs": 3}
    rounds = lab.rounds or 30
    plain = lab.run("fedlaw-5-fedavg", "fedavg", rounds, **common)
    learned = lab.run("fedlaw-5-law", chain(LAW, Halves()), rounds, **common)
    stopped = lab.run("fedlaw-5-stopped", f"{LAW},critical={STOP}", rounds, **common)
    figure, (coherence, accuracy, weights) = panels(3)
    for name, label, colour, dash in (
        ("coherence_balanced", "balanced clients", BLUE, SOLID),
        ("coherence", "all", GREY, DASHED),
        ("coherence_imbalanced", "imbalanced clients", RED, DOTTED),
    ):
        coherence.plot(*series(learned, name), color=colour, linestyle=dash, label=label)
    coherence.axhline(0, color=GREY, linewidth=0.8)
    point = critical_point(series(learned, "coherence"))
    for axes in (coherence, accuracy) if point is not None else ():
        axes.axvline(
            point,
            color=ORANGE,
            linewidth=1.2,
            label="critical point" if axes is coherence else None,
        )
    coherence.set(title="local gradient coherence")
    for run, label, colour, dash in (
        (learned, "LAW", BLUE, SOLID),
        (stopped, "LAW, stopped early", GREEN, DASHED),
        (plain, "FedAvg", GREY, DOTTED),
    ):
        number, values = series(run, "accuracy")
        accuracy.plot(number, 100 * values, color=colour, linestyle=dash, label=label)
        table = by_client(run, "weights")
        half = [int(client) < len(table.clients) // 2 for client in table.clients]
        weights.plot(
            table.rounds,
            table.values[:, half].sum(axis=1),
            color=colour,
            linestyle=dash,
            label=label,
        )
    accuracy.set(title="test accuracy, %")
    weights.set(title="weight on balanced clients", ylim=(0, 1))
    for axes in (coherence, accuracy, weights):
        axes.legend()
    by_round(coherence, accuracy, weights)
    return figure


def fedcos_4(lab: Lab) -> Figure:
    """Paths of the global model in the plane, and how far from the optimum they are."""
    figure, (plane, distance) = panels(2, height=2.6)
    x, y = np.meshgrid(np.linspace(2.8, 6.2, 121), np.linspace(-0.7, 1.3, 121))
    plane.contour(
        x, y, TWO_CLIENTS.loss(np.stack([x, y], axis=-1)), levels=12, colors=FAINT, linewidths=0.8
    )
    for label, term, colour, dash, mark in (
        ("FedCos, μ = 0.2", steelyard.fedcos(mu=0.2), GREEN, DOTTED, "^"),
        ("FedAvg", None, BLUE, SOLID, "o"),
        ("FedProx, μ = 0.1", steelyard.fedprox(mu=0.1), ORANGE, DASHED, "s"),
    ):
        path = trajectory(TWO_CLIENTS, term, lab.rounds or 80)
        plane.plot(*path.points.T, color=colour, linewidth=0.5, alpha=0.6)
        shades = np.linspace(0.3, 1, len(path.points))  # later rounds are darker
        plane.scatter(
            *path.points.T, s=16, marker=mark, color=colour, alpha=shades, linewidths=0, zorder=3
        )
        distance.plot(
            path.distances,
            color=colour,
            linestyle=dash,
            marker=mark,
            markersize=4,
            markevery=6,
            label=label,
        )
    plane.scatter(
        *np.transpose(TWO_CLIENTS.optima),
        marker="x",
        s=28,
        color="black",
        label="optima of the clients",
    )
    plane.scatter(
        *TWO_CLIENTS.optimum, marker="*", s=70, color=RED, label="global optimum", zorder=3
    )
    plane.set(title="global model from round 1 on", xlabel="$x_0$", ylabel="$x_1$", aspect="equal")
    plane.set(xlim=(2.8, 6.2), ylim=(-0.7, 1.3))
    plane.grid(visible=False)
    distance.set(title="distance to the global optimum", ylim=(0, 1.5))
    by_round(distance)
    figure.legend(loc="outside lower center", ncols=5)
    return figure


def three_kinds(lab: Lab) -> steelyard.Federation:
    """Twelve clients of one size: four hold the first half of the classes, four the second, four all of them."""
    train, test = lab.samples
    low = train.targets.numpy() < (train.classes or 0) // 2
    size = len(train) // 12
    first, second = np.flatnonzero(low)[: 4 * size], np.flatnonzero(~low)[: 4 * size]
    rest = np.setdiff1d(np.arange(len(train)), np.concatenate([first, second]))
    mixed = np.random.default_rng(0).permutation(rest)[: 4 * size]
    index = [part for pool in (first, second, mixed) for part in np.array_split(pool, 4)]
    return steelyard.Federation(train, tuple(range(1, 13)), tuple(index), test)


def fedawa_2(lab: Lab) -> Figure:
    """Distances between twelve clients' data, client vectors and models: four of each kind."""
    clients = three_kinds(lab)
    train = clients.train
    base = lab.run("fedawa-2", "fedavg", lab.rounds or 5, clients, local=LOCAL)
    network = build(lab.model, tuple(train.inputs.shape[1:]), train.classes or 0, 0)
    network.load_state_dict(base.params)
    models = [
        lab.run(
            f"fedawa-2-{k}",
            "fedavg",
            1,
            steelyard.Federation(train, (k,), (own,)),
            model=network,
            local=LOCAL,
        )
        for k, own in zip(clients.ids, clients.index, strict=True)
    ]
    found = client_distances(base.params, [model.params for model in models])
    data = data_distances(clients, samples=200)
    figure, boxes = panels(3, height=2.4)
    titles = (
        "data: transport of pixels",
        "client vectors: 1 - cosine",
        "client models: 1 - cosine",
    )
    for axes, matrix, title in zip(boxes, (data, found.vectors, found.models), titles, strict=True):
        image = axes.imshow(
            np.ma.masked_equal(matrix, 0), cmap="Blues", extent=(0.5, 12.5, 12.5, 0.5)
        )
        figure.colorbar(image, ax=axes, shrink=0.8, format="%.2g").ax.tick_params(labelsize=6)
        alike = f"correlation with data {matrix_correlation(data, matrix):.2f}"
        axes.set_title(f"{title}\n{'200 images of each' if matrix is data else alike}")
        axes.set(xticks=(1, 4, 8, 12), yticks=(1, 4, 8, 12), xlabel="client")
        axes.grid(visible=False)
        for edge in (4.5, 8.5):
            axes.axhline(edge, color=GREY, linewidth=0.7)
            axes.axvline(edge, color=GREY, linewidth=0.7)
    return figure


def pa3fed_3(lab: Lab) -> Figure:
    """The federated gradient norm, with the periods that two detectors call critical."""
    local = {"epochs": 5, "lr": 0.01, "momentum": 0.9, "weight_decay": 1e-5}
    options = {
        "clients": 50,
        "partition": "dirichlet:0.1",
        "local": local,
        "metrics": ("grad_norm", "loss"),
    }
    figure, boxes = panels(2)
    for axes, share in zip(boxes, (0.2, 1.0), strict=True):
        options["participation"] = {"share": share}
        run = lab.run(f"pa3fed-3-{share:g}", "fedavg", lab.rounds or 50, **options)
        periods = critical_periods(run)
        axes.plot(periods.rounds, periods.fgn, color=BLUE, label="FGN")
        for number, (first, last) in enumerate(periods.spans):
            label = None if number else "critical by Eq. (6), δ = 0.01"
            axes.axvspan(first - 0.5, last + 0.5, color=SKY, alpha=0.35, linewidth=0, label=label)
        for number, (first, last) in enumerate(critical_periods(run, "criticalfl_window").spans):
            label = None if number else "critical by CriticalFL's window"
            axes.plot(
                (first, last),
                (0, 0),
                color=RED,
                linewidth=4,
                solid_capstyle="butt",
                label=label,
                clip_on=False,
            )
        axes.set(title=f"FGN, {share:.0%} of 50 clients take part", ylim=(0, None))
    by_round(*boxes)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def fedadp_runs(lab: Lab, alpha: int | None = None) -> list[steelyard.History]:
    """Runs FedAdp, or FedAvg without an alpha, on 5 IID and 5 one-class nodes."""
    if alpha is None:
        return lab.repeat("fedadp-fedavg", FIVE_IID)
    return lab.repeat(f"fedadp-alpha{alpha}", FIVE_IID, f"fedadp:alpha={alpha}")


def fedadp_6(lab: Lab) -> Figure:
    """Accuracy by round for some alphas, and rounds to the target by alpha."""
    alphas = (1, 2, 3, 4, 5, 6, 8, 10)
    runs = {alpha: fedadp_runs(lab, alpha) for alpha in alphas}
    runs[None] = fedadp_runs(lab)
    figure, (accuracy, rounds) = panels(2)

    # Left: curves of some alphas.
    for alpha, colour, dash in (
        (None, GREY, DOTTED),
        (1, SKY, DASHED),
        (2, ORANGE, DASHED),
        (5, BLUE, SOLID),
        (10, RED, SOLID),
    ):
        label = "FedAvg" if alpha is None else f"FedAdp, α = {alpha}"
        plot_series(
            accuracy, runs[alpha], "accuracy", 100, color=colour, linestyle=dash, label=label
        )
    accuracy.set(title="test accuracy, %")
    by_round(accuracy)
    accuracy.legend()

    # Right: rounds to the target. A run that does not reach it counts with all of its rounds.
    needed = {
        alpha: [run.rounds_to(FIVE_IID.target) or len(run) for run in runs[alpha]] for alpha in runs
    }
    rows = np.transpose([needed[alpha] for alpha in alphas])
    plot_mean(rounds, alphas, rows, color=BLUE, marker="o", markersize=4, label="FedAdp")
    rounds.axhline(
        np.mean(needed[None]), color=GREY, linestyle=DOTTED, linewidth=1.4, label="FedAvg"
    )
    rounds.set(
        title=f"rounds to {100 * FIVE_IID.target:g} %", xlabel="α", xticks=alphas, ylim=(0, None)
    )
    rounds.legend(loc="lower left")
    return figure


def fedadp_7(lab: Lab) -> Figure:
    """Loss and divergence of the clients by round, for FedAvg and FedAdp."""
    figure, (loss, divergence) = panels(2)
    for label, alpha, colour, dash in (
        ("FedAvg", None, GREY, DOTTED),
        ("FedAdp, α = 5", 5, BLUE, SOLID),
    ):
        runs = fedadp_runs(lab, alpha)
        plot_series(loss, runs, "loss", color=colour, linestyle=dash, label=label)
        plot_series(
            divergence, runs, "gradient_divergence", color=colour, linestyle=dash, label=label
        )
    loss.set(title="test loss", ylim=(0, None))
    divergence.set(title="divergence of local gradients")
    by_round(loss, divergence)
    loss.legend()
    return figure


def fedcos_runs(
    lab: Lab, scene: str, setting: Setting, term: str | None = None
) -> list[steelyard.History]:
    """Runs a client term, or none, on FedAvg in a scene of FedCos's Tables I and II."""
    folder = make_slug(f"fedcos-{scene}-{term or 'fedavg'}")
    return lab.repeat(folder, setting, steelyard.Algorithm("fedavg", client=term))


# FedProx here has a factor 1/2 that the paper's has not: mu = 0.2 is the paper's 0.1.
COS_LOOKS = (
    ("FedAvg", None, GREY, DOTTED),
    ("FedProx, μ = 0.1", "fedprox:mu=0.2", ORANGE, DASHED),
    ("FedCos, μ = 0.01", "fedcos:mu=0.01", SKY, SOLID),
    ("FedCos, μ = 0.02", "fedcos:mu=0.02", BLUE, SOLID),
)


def fedcos_3(lab: Lab) -> Figure:
    """Cosine between clients and accuracy where data are totally non-IID, and the gain by scene (Table I)."""
    figure, (cosine, accuracy, gains) = panels(3, height=2.5)
    for label, term, colour, dash in COS_LOOKS:
        runs = fedcos_runs(lab, "totally non-IID", SORTED, term)
        plot_series(cosine, runs, "mean_cosine", color=colour, linestyle=dash, label=label)
        plot_series(accuracy, runs, "accuracy", 100, color=colour, linestyle=dash, label=label)
    cosine.set(title="mean cosine between clients")
    accuracy.set(title="test accuracy, %", ylim=(70, 100))
    by_round(cosine, accuracy)

    # The gain of FedCos over FedAvg, seed by seed, from scene to scene.
    rows = []
    for scene, setting in FEDCOS_SCENES.items():
        plain = fedcos_runs(lab, scene, setting)
        rows.append(gain_by_seed(fedcos_runs(lab, scene, setting, "fedcos:mu=0.02"), plain))
    places = range(len(FEDCOS_SCENES))
    style = {"color": BLUE, "marker": "o", "markersize": 4, "label": "FedCos, μ = 0.02"}
    plot_mean(gains, places, np.transpose(rows), bars=True, **style)
    gains.axhline(0, color=GREY, linewidth=0.8)
    gains.set(title="gain over FedAvg, points", xticks=places, xlim=(-0.4, 3.4))
    gains.set_xticklabels(["\n".join(scene.rsplit(" ", 1)) for scene in FEDCOS_SCENES], fontsize=6)
    figure.legend(*cosine.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def fedcos_12(lab: Lab) -> Figure:
    """How far local models move, how far they are apart, and how far the global model moves."""
    figure, boxes = panels(3, height=2.5)
    titles = ("move of local models", "distance between local models", "move of the global model")
    for label, term, colour, dash in COS_LOOKS:
        runs = fedcos_runs(lab, "totally non-IID", SORTED, term)
        for axes, name in zip(
            boxes, ("mean_update_norm", "mean_pairwise_distance", "update_norm"), strict=True
        ):
            plot_series(axes, runs, name, color=colour, linestyle=dash, label=label)
    for axes, title in zip(boxes, titles, strict=True):
        axes.set(title=title, ylim=(0, None))
    by_round(*boxes)
    figure.legend(*boxes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def fedlaw_6(lab: Lab) -> Figure:
    """Coherence with and without shrinking, the same without the part along the model, and accuracy."""
    figure, boxes = panels(3, height=2.5)
    looks = ((GREY, DOTTED), (BLUE, SOLID), (RED, DASHED))
    panel_series = ("coherence", "coherence_across", "accuracy")
    for (label, rule), (colour, dash) in zip(SHRINKING.items(), looks, strict=True):
        runs = lab.repeat(make_slug(f"fedlaw-6-{label}"), HYBRID, rule)
        for axes, name, scale in zip(boxes, panel_series, (1, 1, 100), strict=True):
            plot_series(axes, runs, name, scale, color=colour, linestyle=dash, label=label)
    coherence, across, accuracy = boxes
    for axes in (coherence, across):
        axes.axhline(0, color=GREY, linewidth=0.8)
        axes.set(ylim=(-0.015, 0.045))
    coherence.set(title="local gradient coherence")
    across.set(title="coherence across the model")
    accuracy.set(title="test accuracy, %", ylim=(70, 100))
    by_round(*boxes)
    figure.legend(*coherence.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def pa3fed_5_7(lab: Lab) -> Figure:
    """Deviation of clients' losses (Fig. 5), gain by beta (Fig. 6) and by period of adaptation (Fig. 7)."""

    def run(rule: str) -> list[steelyard.History]:
        return lab.repeat(make_slug(f"pa3fed-5-7-{rule}"), FEW_OF_MANY, rule)

    figure, (deviations, betas, periods) = panels(3, height=2.6)
    readings = (
        ("intended", "pa3fed:preset=intended", BLUE, SOLID, "o"),
        ("literal", "pa3fed:preset=literal", RED, DASHED, "s"),
        ("trained model", "pa3fed:model=local", GREEN, DOTTED, "^"),
    )

    # Fig. 5: FedAvg, and each reading with its defaults. Small shifts keep bars apart.
    shifts = {"FedAvg": -0.09, "intended": -0.03, "literal": 0.03, "trained model": 0.09}
    for label, rule, colour, dash, mark in (("FedAvg", "fedavg", GREY, SOLID, "D"), *readings):
        style = {
            "color": colour,
            "linestyle": dash,
            "marker": mark,
            "markersize": 4,
            "label": label,
        }
        by_seed = [loss_deviation(history) for history in run(rule)]
        rows = [(deviation.critical, deviation.rest) for deviation in by_seed]
        plot_mean(deviations, np.arange(2) + shifts[label], rows, bars=True, **style)
    deviations.set(
        title="deviation of clients' losses", xticks=(0, 1), xlim=(-0.4, 1.4), ylim=(0, None)
    )
    deviations.set_xticklabels(["critical\nperiods", "rest"])

    # Figs. 6 and 7: points above FedAvg, by beta, and by when weights are adapted.
    plain = run("fedavg")
    zero = [0.0] * len(plain)
    strengths = (0.1, 0.2, 0.3, 0.4, 0.5)
    for label, rule, colour, dash, mark in readings:
        style = {
            "color": colour,
            "linestyle": dash,
            "marker": mark,
            "markersize": 4,
            "label": label,
        }
        gains = [
            gain_by_seed(run(rule if beta == 0.3 else f"{rule},beta={beta}"), plain)
            for beta in strengths
        ]
        plot_mean(betas, (0, *strengths), np.transpose([zero, *gains]), **style)
        gains = [gain_by_seed(run(options), plain) for options in (f"{rule},detector=always", rule)]
        plot_mean(
            periods, np.arange(3) + shifts[label], np.transpose([zero, *gains]), bars=True, **style
        )
    betas.set(title="gain by strength β, points", xlabel="β")
    periods.set(title="gain by when weights adapt, points", xticks=(0, 1, 2), xlim=(-0.3, 2.3))
    periods.set_xticklabels(["never", "always", "critical\nperiods"])
    for axes in (betas, periods):
        axes.axhline(0, color=GREY, linewidth=0.8)
        axes.set(ylim=(-2, 2))
    figure.legend(*deviations.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def save(figure: Figure, path: Path) -> None:
    """As a PNG of few colours: a third of the size, and no eye sees it."""
    drawn = BytesIO()
    figure.savefig(drawn)
    Image.open(drawn).convert("RGB").quantize(128).save(path, optimize=True)


FIGURES: dict[str, Callable[[Lab], Figure]] = {
    "fedlaw-2": fedlaw_2,
    "fedlaw-3": fedlaw_3,
    "fedlaw-5": fedlaw_5,
    "fedlaw-6": fedlaw_6,
    "fedadp-6": fedadp_6,
    "fedadp-7": fedadp_7,
    "fedcos-3": fedcos_3,
    "fedcos-4": fedcos_4,
    "fedcos-12": fedcos_12,
    "fedawa-2": fedawa_2,
    "pa3fed-3": pa3fed_3,
    "pa3fed-5-7": pa3fed_5_7,
}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "figures", nargs="*", metavar="FIGURE", help=f"one of {', '.join(FIGURES)}; all by default"
    )
    parser.add_argument("--data", default="fashion-mnist")
    parser.add_argument("--second", default="cifar10", help="a harder data set, for fedlaw-3")
    parser.add_argument("--model", default="mlp:hidden=[200,200]")
    parser.add_argument(
        "--images", type=int, default=10_000, help="training images, drawn from all"
    )
    parser.add_argument("--rounds", type=int, help="instead of each figure's own")
    parser.add_argument("--runs", type=Path, default=Path("out/gallery"))
    parser.add_argument("--out", type=Path, default=Path("docs/gallery"))
    parser.add_argument("--workers", type=int)
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="of the figures on digits")
    asked = parser.parse_args(arguments)
    unknown = sorted(set(asked.figures) - set(FIGURES))
    if unknown:
        parser.error(f"{unknown[0]}: not a figure: use {', '.join(FIGURES)}")
    lab = Lab(
        asked.data,
        asked.images,
        asked.rounds,
        asked.runs,
        asked.workers,
        asked.model,
        asked.second,
        asked.seeds,
    )
    asked.out.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(STYLE):
        for name in asked.figures or FIGURES:
            path = asked.out / f"{name}.png"
            save(FIGURES[name](lab), path)
            print(f"{path}: {path.stat().st_size / 1000:.0f} kB", flush=True)


if __name__ == "__main__":
    main()
