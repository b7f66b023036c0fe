"""The figures of PA3Fed (AAAI 2025)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from steelyard.diagnostics import by_client, critical_periods, loss_deviation, series
from steelyard.experiments._statistics import import_scipy_stats
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
    check_value,
    last_accuracies,
)
from steelyard.figures._style import (
    BLUE,
    DASHED,
    DOTTED,
    GREEN,
    MARKERS,
    ORANGE,
    PINK,
    RED,
    SKY,
    SOLID,
    add_legend,
    draw_zero,
    label_rounds,
    limit_percent,
    make_panels,
    plot_bars,
    plot_mean,
    plot_series,
)
from steelyard.runs._history import History

if TYPE_CHECKING:  # optional, and slow to import
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

# The baselines, each with its rule.
BASELINES: dict[str, Settings] = {
    "FedAvg": {"weighting": "fedavg"},
    "FedProx": {"weighting": "fedavg", "client": "fedprox:mu=0.001"},
    "FedNova": {"weighting": "fednova"},
    "VRL-SGD": {"weighting": "fedavg", "client": "vrlsgd", "local": {"momentum": 0.0}},
    "FedMut": {"weighting": "fedavg", "broadcast": "fedmut"},
}
COLORS = dict(zip(BASELINES, (BLUE, ORANGE, GREEN, RED, PINK), strict=True))
BETA = 0.3
EXPECTED_GAIN = 1.0  # points that count as a gain; the paper's gains are 4 to 15
EXPECTED_RATIO = 0.95  # a ratio that counts as lower; the paper's deviations fall to 0.75

# The paper's settings: Table 2.
PAPER: dict[str, Any] = {
    "rounds": 250,
    "metrics": ["grad_norm", "loss", "num_examples"],
    "data": {"clients": 50},
    "local": {
        "epochs": 5,
        "batch_size": 32,
        "lr": 0.01,
        "schedule": "exponential:0.8",
        "momentum": 0.9,
        "weight_decay": 1e-5,
    },
    "participation": {"share": 0.2},
}
DATA: dict[str, Settings] = {
    "CIFAR-10": merge_settings(
        PAPER, {"model": "alexnet_cifar", "data": {"name": "cifar10:scale=standard"}}
    ),
    "Fashion-MNIST": merge_settings(
        PAPER, {"model": "alexnet_fmnist", "data": {"name": "fashion-mnist:scale=standard"}}
    ),
}
PAPER_PARTITION = "dirichlet_capped"
PAPER_SEEDS = (1, 2, 3)
NO_CODE = (
    "No authors' code is public: AlexNets and partition are CriticalFL's, and the settings of the "
    "baselines are those of our pa3fed-table2."
)
READING = (
    "The paper contradicts itself. PA3Fed here is what its text means (`preset=intended`); "
    "docs/pa3fed.md describes the other readings."
)

# The small version: the embedded digits.
DIGITS: dict[str, Settings] = {
    "digits": {
        "rounds": 40,
        "metrics": ["grad_norm", "loss", "num_examples"],
        "data": {"name": "digits", "clients": 50},
        "local": {"epochs": 5, "batch_size": 16, "lr": 0.1},
        "participation": {"share": 0.2},
        "evaluate_clients": 1,
    }
}
QUICK_PARTITION = "dirichlet"
QUICK_SEEDS = (50, 51, 52, 53, 54)
THREE_SEEDS = (50, 51, 52)
ON_DIGITS = (
    "Embedded digits and an MLP with 64 hidden units, batch size 16, learning rate 0.1 without "
    "decay, no momentum, 40 rounds."
)
SMALL_MUTATIONS = "FedMut has radius 1 instead of 4, with which it diverges on digits."


def add_pa3fed(base: Settings, method: str, beta: float, options: str = "") -> Settings:
    """Return settings with one of the baselines, and PA3Fed on top of it unless beta is 0.

    Args:
        base: the other settings.
        method: the baseline.
        beta: the strength of PA3Fed.
        options: further options of PA3Fed, as text that starts with a comma.
    """
    settings = merge_settings(base, BASELINES[method])
    if method == "FedMut" and settings["data"]["name"] == "digits":
        settings["broadcast"] = "fedmut:radius=1"
    if beta:
        settings["weighting"] += f"|pa3fed:beta={beta:g}{options}"
    return settings


def build_runs(
    bases: dict[str, Settings],
    partition: str,
    degrees: Sequence[float],
    methods: Sequence[str] = ("FedAvg",),
    betas: Sequence[float] = (0.0, BETA),
) -> dict[Key, Settings]:
    """Return runs by data set, degree of heterogeneity, baseline and beta.

    Args:
        bases: settings by data set.
        partition: the Dirichlet partition.
        degrees: its concentrations, h in the paper.
        methods: the baselines.
        betas: the strengths of PA3Fed; 0 is the baseline alone.
    """

    def build(data: str, h: float, method: str, beta: float) -> Settings:
        base = merge_settings(bases[data], {"data": {"partition": f"{partition}:alpha={h:g}"}})
        return add_pa3fed(base, method, beta)

    return make_runs(build, data=tuple(bases), h=degrees, method=methods, beta=betas)


build_quick_runs = partial(build_runs, DIGITS, QUICK_PARTITION)
build_paper_runs = partial(build_runs, DATA, PAPER_PARTITION)
build_cifar_runs = partial(build_runs, {"CIFAR-10": DATA["CIFAR-10"]}, PAPER_PARTITION)


def list_values(results: Results, position: int) -> list[Any]:
    """Return the different values at a position of the keys of all runs."""
    return list(dict.fromkeys(key[position] for key in results.histories))


def subtract(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Return the differences by seed."""
    return [first - second for first, second in zip(ours, theirs, strict=True)]


def compute_gains(
    results: Results, data: str, h: float, method: str = "FedAvg", beta: float = BETA
) -> list[float]:
    """Return how many points PA3Fed gains over a baseline in the last rounds, by seed."""
    ours = last_accuracies(results[data, h, method, beta])
    theirs = last_accuracies(results[data, h, method, 0.0])
    return subtract(ours, theirs)


def measure_changes(histories: Sequence[History], first: float, last: float) -> list[float]:
    """Return the mean change of a client's loss from round to round in a part of each run.

    Args:
        histories: the runs, one per seed.
        first: where the part starts, as a share of the rounds.
        last: where it ends.
    """
    changes = []
    for history in histories:
        losses = by_client(history, "client_loss").values  # [rounds, clients]
        start = min(int(first * len(losses)), len(losses) - 2)
        end = max(start + 2, round(last * len(losses)))
        changes.append(float(np.nanmean(np.abs(np.diff(losses[start:end], axis=0)))))
    return changes


def average_client_losses(histories: Sequence[History]) -> list[float]:
    """Return the mean loss of the global model over all rounds and clients of each run."""
    return [float(np.nanmean(by_client(run, "client_loss").values)) for run in histories]


@register
class Figure1(PaperFigure):
    """The loss of one client."""

    name = "pa3fed-figure1"
    title = "Loss of the global model on one client"
    claim = (
        "Under FedAvg the loss of a client oscillates in the early stage. With PA3Fed it is much "
        "smoother and lower."
    )
    source = Source("Figure 1", "introduction", "45-48, 105-110, 403-405")
    quick = Scale(build_quick_runs((0.1,)), QUICK_SEEDS, (ON_DIGITS, READING))
    paper = Scale(
        build_runs(
            {"CIFAR-10": merge_settings(DATA["CIFAR-10"], {"evaluate_clients": 1})},
            PAPER_PARTITION,
            (0.1,),
        ),
        PAPER_SEEDS,
        (NO_CODE, READING, "The caption names neither data set nor h: CIFAR-10, h = 0.1."),
    )

    def draw(self, results: Results) -> Drawing:
        """Draw the loss on the first client of the first seed, and the mean over clients and seeds."""
        drawing, (one, mean) = make_panels(2, height=2.6)
        for (_, _, _, beta), histories in results.histories.items():
            look = look_up_beta(beta)
            table = by_client(histories[0], "client_loss")
            one.plot(table.rounds, table.values[:, 0], **look)
            rows = [np.nanmean(by_client(run, "client_loss").values, axis=1) for run in histories]
            plot_mean(mean, table.rounds, rows, **look)
        one.set_title(f"loss on client {table.clients[0]}, seed {results.seeds[0]}")
        mean.set_title("mean loss over all clients and seeds")
        for axes in (one, mean):
            axes.set_ylim(bottom=0)
        label_rounds(one, mean)
        one.legend()
        return drawing

    def judge(self, results: Results) -> Verdict:
        """Compare changes from round to round early and late, and losses, over all clients."""
        data, h, method, _ = next(iter(results.histories))
        plain = results[data, h, method, 0.0]
        adapted = results[data, h, method, BETA]
        early = measure_changes(plain, 0.0, 1 / 3)
        return Verdict.from_checks(
            [
                check_difference(
                    "FedAvg's change of a client's loss from round to round, first third minus last",
                    early,
                    measure_changes(plain, 2 / 3, 1.0),
                    "higher",
                    digits=3,
                ),
                check_ratio(
                    "the change in the first third", measure_changes(adapted, 0.0, 1 / 3), early
                ),
                check_ratio(
                    "mean loss of clients",
                    average_client_losses(adapted),
                    average_client_losses(plain),
                ),
            ]
        )


def check_ratio(text: str, ours: Sequence[float], theirs: Sequence[float]) -> Check:
    """Check whether a number of PA3Fed is clearly lower than FedAvg's, seed by seed.

    Args:
        text: what is compared.
        ours: the numbers of PA3Fed, one per seed.
        theirs: the numbers of FedAvg.
    """
    ratios = [first / second for first, second in zip(ours, theirs, strict=True)]
    text = f"{text}, PA3Fed divided by FedAvg (below {EXPECTED_RATIO} expected)"
    return check_value(text, ratios, "lower", EXPECTED_RATIO, 3)


def check_gain(text: str, gains: Sequence[float], expected: float = EXPECTED_GAIN) -> Check:
    """Check whether gains in accuracy, one per seed, are above the expected one.

    Args:
        text: what gains over what.
        gains: the gains in points.
        expected: the smallest gain that counts.
    """
    text = f"{text}, points (above {expected:g} expected)"
    return check_value(text, gains, "higher", expected)


def look_up_beta(beta: float) -> dict[str, Any]:
    """Return label, colour and line of FedAvg (beta 0) or PA3Fed."""
    if beta:
        return {"label": "PA3Fed", "color": BLUE, "linestyle": SOLID}
    return {"label": "FedAvg", "color": GREEN, "linestyle": DASHED}


def choose_share(base: Settings, partition: str, every: int, share: float) -> Settings:
    """Return settings of FedAvg with a share of the clients in each round, and the Fisher trace.

    Args:
        base: the other settings.
        partition: the Dirichlet partition.
        every: the rounds between measurements of the Fisher trace.
        share: the share of the clients.
    """
    return merge_settings(
        base,
        {
            "weighting": "fedavg",
            "data": {"partition": f"{partition}:alpha=0.1"},
            "participation": {"share": share},
            "evaluate_fisher": every,
        },
    )


def find_peak(history: History, name: str) -> float:
    """Return the round with the largest value of a series, as a share of all rounds."""
    rounds, values = series(history, name)
    return float(rounds[int(values.argmax())] / rounds[-1])


def correlate_ranks(history: History) -> float:
    """Return the rank correlation of the Fisher trace and the FGN, over rounds that have both."""
    fisher = series(history, "fisher_trace")
    norms = series(history, "fgn")
    rounds = np.intersect1d(fisher.rounds, norms.rounds)
    result = import_scipy_stats().spearmanr(
        fisher.values[np.isin(fisher.rounds, rounds)], norms.values[np.isin(norms.rounds, rounds)]
    )
    return float(result.statistic)


@register
class Figure3(PaperFigure):
    """Critical learning periods."""

    name = "pa3fed-figure3"
    title = "Critical learning periods: Fisher information and gradient norm"
    claim = (
        "FGN first rises and then declines, like the trace of the Fisher information, so that a "
        "rise of FGN shows the critical learning period early in training."
    )
    source = Source("Figure 3", "section CLP in Federated Learning", "345-347, 391-399, 427-433")
    quick = Scale(
        make_runs(
            partial(choose_share, DIGITS["digits"], QUICK_PARTITION, 1),
            share=(0.2, 1.0),
        ),
        QUICK_SEEDS,
        (ON_DIGITS, "The second row, in which all clients take part, is ours."),
    )
    paper = Scale(
        make_runs(
            partial(
                choose_share,
                merge_settings(DATA["CIFAR-10"], {"rounds": 100}),
                PAPER_PARTITION,
                2,
            ),
            share=(0.2, 1.0),
        ),
        PAPER_SEEDS,
        (
            NO_CODE,
            "The caption names no settings: CIFAR-10, h = 0.1, and 100 rounds.",
            "The second row, in which all clients take part, is ours.",
            "The trace of FIM is measured in every second round, on 200 samples.",
        ),
    )

    def draw(self, results: Results) -> Drawing:
        """Draw the Fisher trace and the FGN of the first seed, with critical periods shaded."""
        drawing, panels = make_panels(2, rows=2, height=2.1)
        for row, (share, histories) in enumerate(results.histories.items()):
            fisher = panels[2 * row]
            norms = panels[2 * row + 1]
            history = histories[0]
            rounds, traces = series(history, "fisher_trace")
            fisher.plot(rounds, traces, color=RED, label="trace of FIM")
            rounds, values = series(history, "fgn")
            norms.plot(rounds, values, color=BLUE, label="FGN")
            for axes in (fisher, norms):
                shade_periods(axes, history)
                axes.set_ylim(bottom=0)
            fisher.set_title(f"trace of FIM, {share:.0%} of the clients")
            norms.set_title(f"FGN, {share:.0%} of the clients")
        label_rounds(*panels)
        handles: list[Any] = [panels[0].lines[0], panels[1].lines[0], *panels[0].patches[:1]]
        drawing.legend(handles=handles, loc="outside lower center", ncols=3)
        return drawing

    def judge(self, results: Results) -> Verdict:
        """Check where the two series peak, whether they agree, and when periods are critical."""
        checks = []
        for share, histories in results.histories.items():
            who = f"{share:.0%} of the clients"
            for name, text in (("fgn", "FGN"), ("fisher_trace", "FIM")):
                largest = np.array([series(run, name).values.max() for run in histories])
                rises = largest / [series(run, name).values[0] for run in histories]
                rests = average_series(histories, name, 0.25) / largest
                peaks = [find_peak(run, name) for run in histories]
                answers = [
                    check_value("", list(rises), "higher", 1.1).holds,
                    check_value("", list(rests), "lower", 0.9).holds,
                    check_value("", peaks, "lower", 0.5).holds,
                ]
                checks.append(
                    Check(
                        f"{who}: {text} is largest after {np.mean(peaks):.0%} of the rounds, at "
                        f"{rises.mean():.1f} times its first value, of which {rests.mean():.2f} "
                        f"remain in the last quarter",
                        combine_answers(answers),
                    )
                )
            checks.append(
                check_value(
                    f"{who}: rank correlation of FGN and FIM over rounds",
                    [correlate_ranks(run) for run in histories],
                    "higher",
                    0.0,
                )
            )
            checks.append(check_early_periods(histories, who))
        return Verdict.from_checks(checks)


def combine_answers(answers: Sequence[bool | None]) -> bool | None:
    """Return False if one answer is no, None if one cannot be told, True if all are yes."""
    if any(answer is False for answer in answers):
        return False
    if any(answer is None for answer in answers):
        return None
    return True


def check_early_periods(histories: Sequence[History], who: str) -> Check:
    """Check whether most critical rounds by Eq. (6) lie in the first half of the runs.

    Half of them would if they were scattered over all rounds.

    Args:
        histories: the runs, one per seed.
        who: the clients that take part, for the text.
    """
    shares = []
    for history in histories:
        periods = critical_periods(history)
        critical_rounds = periods.rounds[periods.critical]
        if len(critical_rounds):
            shares.append(float(np.mean(critical_rounds <= periods.rounds[-1] / 2)))
    text = f"{who}: share of critical rounds by Eq. (6) in the first half (above 0.75 expected)"
    if len(shares) < len(histories):
        return Check(f"{text}: some runs have no critical round", None)
    return check_value(text, shares, "higher", 0.75)


def shade_periods(axes: Axes, history: History) -> None:
    """Shade the rounds that Eq. (6) calls critical."""
    for number, (first, last) in enumerate(critical_periods(history).spans):
        label = None if number else "critical by Eq. (6), δ = 0.01"
        axes.axvspan(first - 0.5, last + 0.5, color=SKY, alpha=0.35, linewidth=0, label=label)


@register
class Figure4(PaperFigure):
    """Five baselines with and without PA3Fed."""

    name = "pa3fed-figure4"
    title = "Accuracy of five methods without and with PA3Fed"
    claim = (
        "Methods with PA3Fed converge faster than without it, and are better under all degrees of "
        "heterogeneity."
    )
    source = Source("Figure 4", "section Overall Performance", "575-576, 656-661")
    quick = Scale(
        build_quick_runs((0.1, 0.3), tuple(BASELINES)),
        THREE_SEEDS,
        (ON_DIGITS, SMALL_MUTATIONS, READING, "Two of the three degrees."),
    )
    paper = Scale(
        build_cifar_runs((0.1, 0.2, 0.3), tuple(BASELINES)), PAPER_SEEDS, (NO_CODE, READING)
    )

    def draw(self, results: Results) -> Drawing:
        """Draw one panel per degree, with two curves per method."""
        degrees = list_values(results, 1)
        drawing, panels = make_panels(len(degrees), height=3.0)
        for axes, h in zip(panels, degrees, strict=True):
            for (_, own_h, method, beta), histories in results.histories.items():
                if own_h != h:
                    continue
                label = f"{method} + PA3Fed" if beta else method
                plot_series(
                    axes,
                    histories,
                    "accuracy",
                    factor=100,
                    color=COLORS[method],
                    linestyle=SOLID if beta else DOTTED,
                    label=label,
                    has_interval=False,
                )
            axes.set_title(f"test accuracy, h = {h:g}, means, %")
        label_rounds(*panels)
        add_legend(drawing, panels[0], columns=5)
        return drawing

    def judge(self, results: Results) -> Verdict:
        """Check for each degree the gain in the last rounds and over all rounds, of all methods."""
        checks = []
        data = list_values(results, 0)[0]
        for h in list_values(results, 1):
            gains = [compute_gains(results, data, h, method) for method in BASELINES]
            leads = [
                subtract(
                    average_series(results[data, h, method, BETA], "accuracy"),
                    average_series(results[data, h, method, 0.0], "accuracy"),
                )
                for method in BASELINES
            ]
            for values, when in (
                (np.mean(gains, axis=0), "in the last rounds"),
                (100 * np.mean(leads, axis=0), "over all rounds"),
            ):
                text = f"gain {when} at h = {h:g}, mean over methods"
                checks.append(check_gain(text, list(values)))
        return Verdict.from_checks(checks)


@register
class Figure5(PaperFigure):
    """Deviation of clients' losses."""

    name = "pa3fed-figure5"
    title = "Standard deviation of clients' losses"
    claim = (
        "Losses deviate more in critical learning periods than in the rest, and PA3Fed has a lower "
        "deviation in both."
    )
    source = Source("Figure 5", "section Towards a More Stable Local Update", "577-580, 663-677")
    quick = Scale(build_quick_runs((0.1, 0.2, 0.3)), QUICK_SEEDS, (ON_DIGITS, READING))
    paper = Scale(
        build_cifar_runs((0.1, 0.2, 0.3)),
        PAPER_SEEDS,
        (NO_CODE, READING, "The caption does not name the data set: CIFAR-10."),
    )

    def draw(self, results: Results) -> Drawing:
        """Draw one panel for critical periods and one for the rest, with bars by degree."""
        degrees = list_values(results, 1)
        drawing, panels = make_panels(2, height=2.6)
        for number, (axes, title) in enumerate(
            zip(panels, ("critical learning periods", "rest periods"), strict=True)
        ):
            heights = []
            for beta in (0.0, BETA):
                table = np.array([measure_deviations(results, h, beta) for h in degrees])
                heights.append(np.nan_to_num(table[:, :, number].T))  # [seeds, degrees]
            plot_bars(
                axes,
                [f"h = {h:g}" for h in degrees],
                heights,
                ("FedAvg", "PA3Fed"),
                (GREEN, BLUE),
            )
            axes.set_title(f"deviation of clients' losses, {title}")
        panels[1].set_ylim(panels[0].get_ylim())
        add_legend(drawing, panels[0])
        return drawing

    def judge(self, results: Results) -> Verdict:
        """Compare the two periods under FedAvg, and PA3Fed with FedAvg, as means over degrees."""
        degrees = list_values(results, 1)
        plain, adapted = (
            np.mean([measure_deviations(results, h, beta) for h in degrees], axis=0)
            for beta in (0.0, BETA)
        )  # [seeds, 2]
        if not np.isfinite([plain, adapted]).all():
            count = sum(len(histories) for histories in results.histories.values())
            text = f"of {count} runs, some have no critical rounds or no others"
            return Verdict.from_checks([Check(text, None)])
        return Verdict.from_checks(
            [
                check_difference(
                    "FedAvg's deviation, critical periods minus the rest",
                    list(plain[:, 0]),
                    list(plain[:, 1]),
                    "higher",
                    digits=3,
                ),
                check_ratio("critical periods", list(adapted[:, 0]), list(plain[:, 0])),
                check_ratio("rest periods", list(adapted[:, 1]), list(plain[:, 1])),
            ]
        )


def measure_deviations(results: Results, h: float, beta: float) -> list[tuple[float, float]]:
    """Return for each seed the deviation of losses in critical periods and in the rest.

    A run without such rounds has NaN.
    """
    data = list_values(results, 0)[0]
    rows = []
    for history in results[data, h, "FedAvg", beta]:
        deviation = loss_deviation(history)
        pair = [
            np.nan if value is None else value for value in (deviation.critical, deviation.rest)
        ]
        rows.append((pair[0], pair[1]))
    return rows


@register
class Figure6(PaperFigure):
    """The strength beta."""

    name = "pa3fed-figure6"
    title = "The impact of β"
    claim = "Every β is better than no adaptation, and the best is 0.3."
    source = Source("Figure 6", "section Ablation Studies", "639-654, 681-694")
    quick = Scale(
        build_quick_runs((0.1,), tuple(BASELINES), (0.0, 0.1, 0.3, 0.5)),
        THREE_SEEDS,
        (ON_DIGITS, SMALL_MUTATIONS, READING, "One data set and four of the six values of β."),
    )
    paper = Scale(
        build_paper_runs((0.1,), tuple(BASELINES), (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)),
        PAPER_SEEDS,
        (NO_CODE, READING, "The caption does not name h: 0.1."),
    )

    def draw(self, results: Results) -> Drawing:
        """Draw one panel per data set: the accuracy of each method by beta."""
        data_sets = list_values(results, 0)
        betas = list_values(results, 3)
        h = list_values(results, 1)[0]
        width = 7.0 if len(data_sets) > 1 else 4.5
        drawing, panels = make_panels(len(data_sets), height=3.0, width=width)
        for axes, data in zip(panels, data_sets, strict=True):
            for method, marker in zip(BASELINES, MARKERS, strict=False):
                rows = np.transpose([last_accuracies(results[data, h, method, b]) for b in betas])
                plot_mean(
                    axes,
                    betas,
                    rows,
                    color=COLORS[method],
                    label=f"PA3{method}",
                    has_bars=True,
                    marker=marker,
                    markersize=4,
                )
            axes.set_title(f"test accuracy in the last rounds, {data}, %")
            axes.set(xlabel="β", xticks=betas)
            limit_percent(axes)
        add_legend(drawing, panels[0], columns=5 if len(data_sets) > 1 else 3)
        return drawing

    def judge(self, results: Results) -> Verdict:
        """Check the gain of each beta, and that of 0.3 over the largest, as means over methods."""
        h = list_values(results, 1)[0]
        betas = list_values(results, 3)[1:]
        checks = []
        for data in list_values(results, 0):
            gains = {
                beta: np.mean(
                    [compute_gains(results, data, h, method, beta) for method in BASELINES], axis=0
                )
                for beta in betas
            }
            for beta in betas:
                text = f"{data}, β = {beta:g}: gain over β = 0, mean over methods"
                checks.append(check_gain(text, list(gains[beta])))
            checks.append(
                check_difference(
                    f"{data}: β = 0.3 minus β = {betas[-1]:g}",
                    list(gains[BETA]),
                    list(gains[betas[-1]]),
                    "higher",
                    "points",
                )
            )
        return Verdict.from_checks(checks)


READINGS = {"intended": "", "literal": ",preset=literal"}
WHEN = {"never": None, "always": ",detector=always", "critical periods": ""}


def choose_period(base: Settings, partition: str, reading: str, when: str) -> Settings:
    """Return settings in which PA3Fed adapts never, always or in critical periods.

    Args:
        base: the other settings.
        partition: the Dirichlet partition.
        reading: how the paper is understood.
        when: when weights are adapted.
    """
    own = merge_settings(base, {"data": {"partition": f"{partition}:alpha=0.1"}})
    options = WHEN[when]
    if options is None:
        return add_pa3fed(own, "FedAvg", 0.0)
    return add_pa3fed(own, "FedAvg", BETA, READINGS[reading] + options)


@register
class Figure7(PaperFigure):
    """Adaptation in critical periods only."""

    name = "pa3fed-figure7"
    title = "The impact of critical learning periods"
    claim = (
        "Adaptation in critical learning periods has the best accuracy, compared with no adaptation "
        "and with adaptation throughout."
    )
    source = Source("Figure 7", "section Ablation Studies", "696-707, 712-713")
    quick = Scale(
        make_runs(
            partial(choose_period, DIGITS["digits"], QUICK_PARTITION),
            reading=tuple(READINGS),
            when=tuple(WHEN),
        ),
        QUICK_SEEDS,
        (ON_DIGITS, "Both readings of the paper's equations: see docs/pa3fed.md."),
    )
    paper = Scale(
        make_runs(
            partial(choose_period, DATA["CIFAR-10"], PAPER_PARTITION),
            reading=tuple(READINGS),
            when=tuple(WHEN),
        ),
        PAPER_SEEDS,
        (
            NO_CODE,
            "The caption does not name the data set: CIFAR-10, h = 0.1.",
            "Both readings of the paper's equations: see docs/pa3fed.md.",
        ),
    )

    def draw(self, results: Results) -> Drawing:
        """Draw three bars for each reading."""
        drawing, (accuracy,) = make_panels(1, height=2.8, width=4.5)
        heights = [
            np.transpose([last_accuracies(results[reading, when]) for reading in READINGS])
            for when in WHEN
        ]
        labels = ("no adaptation (FedAvg)", "always", "in critical periods")
        plot_bars(accuracy, list(READINGS), heights, labels, (GREEN, SKY, BLUE))
        lowest = float(np.min(heights))
        accuracy.set_ylim(bottom=max(0.0, lowest - 10))
        accuracy.set_title("test accuracy in the last rounds, %")
        accuracy.set_xlabel("reading of the equations")
        add_legend(drawing, accuracy, columns=3)
        return drawing

    def judge(self, results: Results) -> Verdict:
        """Compare critical periods with the other two, for each reading."""
        checks = []
        for reading in READINGS:
            never, always, critical = (last_accuracies(results[reading, when]) for when in WHEN)
            text = f"{reading}: critical periods minus no adaptation"
            checks.append(check_gain(text, subtract(critical, never)))
            text = f"{reading}: critical periods minus always"
            checks.append(check_gain(text, subtract(critical, always), 0.5))
        return Verdict.from_checks(checks)


@register
class Figure8(PaperFigure):
    """The degree of heterogeneity."""

    name = "pa3fed-figure8"
    title = "The impact of the degree of heterogeneity"
    claim = "PA3Fed gains at every degree of heterogeneity, and more at higher degrees (smaller h)."
    source = Source("Figure 8", "section Ablation Studies", "708-710, 715-724")
    quick = Scale(
        build_quick_runs((0.1, 0.2, 0.3, 0.5)),
        QUICK_SEEDS,
        (ON_DIGITS, READING, "One data set instead of two."),
    )
    paper = Scale(
        build_paper_runs((0.1, 0.2, 0.3, 0.4, 0.5)),
        PAPER_SEEDS,
        (NO_CODE, READING, "The text does not name the values of h beyond 0.3."),
    )

    def draw(self, results: Results) -> Drawing:
        """Draw accuracy by degree in one panel per data set, and the gains in the last panel."""
        data_sets = list_values(results, 0)
        degrees = list_values(results, 1)
        drawing, panels = make_panels(len(data_sets) + 1, height=2.6)
        for axes, data in zip(panels, data_sets, strict=False):
            for beta in (0.0, BETA):
                rows = np.transpose(
                    [last_accuracies(results[data, h, "FedAvg", beta]) for h in degrees]
                )
                plot_mean(axes, degrees, rows, has_bars=True, marker="o", **look_up_beta(beta))
            axes.set_title(f"test accuracy, {data}, %")
        panels[0].legend()
        gains = panels[-1]
        for data, color, marker in zip(data_sets, (BLUE, RED), MARKERS, strict=False):
            rows = np.transpose([compute_gains(results, data, h) for h in degrees])
            plot_mean(gains, degrees, rows, color=color, label=data, has_bars=True, marker=marker)
        draw_zero(gains)
        gains.set_title("gain of PA3Fed, points")
        gains.legend()
        for axes in panels:
            axes.set(xlabel="h", xticks=degrees)
        return drawing

    def judge(self, results: Results) -> Verdict:
        """Check the gain at each degree, and its trend."""
        degrees = list_values(results, 1)
        checks = []
        for data in list_values(results, 0):
            gains = [compute_gains(results, data, h) for h in degrees]
            for h, values in zip(degrees, gains, strict=True):
                checks.append(check_gain(f"{data}, h = {h:g}: gain", values))
            text = f"{data}: gain at the smallest h minus gain at the largest"
            checks.append(check_gain(text, subtract(gains[0], gains[-1])))
        return Verdict.from_checks(checks)
