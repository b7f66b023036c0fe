"""PA3Fed's figures: verdicts follow from the runs, and every scale is drawn."""

import numpy as np
import pytest

from steelyard.figures import plan_figure, read_figure
from steelyard.figures._pa3fed import measure_changes
from steelyard.figures._style import collect_numbers
from tests.figures.fakes import draw_and_judge, fake_history

pytest.importorskip("matplotlib", reason="figures need matplotlib")

NAMES = [f"pa3fed-figure{number}" for number in (1, 3, 4, 5, 6, 7, 8)]
ROUNDS = 40


def rise_and_fall(number):
    """Return a number by round that is largest in round 10."""
    return float(np.exp(-(((number - 10) / 8) ** 2)))


def find_gain(key):
    """Return how much a run is above FedAvg if it does what the paper says."""
    if isinstance(key, tuple) and len(key) == 4:
        _, h, _, beta = key
        return (0.1 - 0.1 * h) * {0.0: 0.0, 0.1: 0.3, 0.2: 0.6, 0.3: 1.0, 0.4: 0.8, 0.5: 0.6}[beta]
    if isinstance(key, tuple):
        return {"never": 0.0, "always": 0.02, "critical periods": 0.05}[key[1]]
    return 0.0


def follow_the_paper(key, seed):
    gain = find_gain(key)
    size = 1 - 3 * gain

    def change_loss(number, client):
        """Oscillate, and most where FGN rises."""
        amplitude = 0.4 if number <= 10 else 0.1
        return size * (1 + amplitude * (-1) ** number) + 0.01 * client

    return fake_history(
        ROUNDS,
        seed,
        level=0.8 + gain,
        fgn=rise_and_fall,
        fisher_trace=lambda number: 2 * rise_and_fall(number),
        tables={"client_loss": change_loss, "reported.loss": change_loss},
    )


def contradict_the_paper(key, seed):
    def keep_loss(number, client):
        return 1.0 + 0.1 * (-1) ** number

    return fake_history(
        ROUNDS,
        seed,
        fgn=lambda number: 1 + 0.1 * number,
        fisher_trace=lambda number: 1 / number,
        tables={"client_loss": keep_loss, "reported.loss": keep_loss},
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_verdict_agrees_with_runs_that_do_what_the_paper_says(name, tmp_path):
    figure = read_figure(name)
    for scale in (figure.quick, figure.paper):
        drawing, verdict = draw_and_judge(figure, scale, follow_the_paper, tmp_path)
        assert verdict.state == "shows it", verdict
        numbers = [row[3] for row in collect_numbers(drawing)[1:]]
        assert numbers
        assert np.isfinite(np.array(numbers, dtype=float)).all()
        _, verdict = draw_and_judge(figure, scale, contradict_the_paper, tmp_path)
        assert verdict.state != "shows it"


def test_pa3fed_is_added_to_each_baseline():
    plan = plan_figure(read_figure("pa3fed-figure4"))
    config = plan.jobs_by_key["CIFAR-10", 0.2, "FedNova", 0.3][0].config
    assert config.weighting == "fednova|pa3fed:beta=0.3"
    assert config.data.partition == "dirichlet_capped:alpha=0.2"
    assert plan.jobs_by_key["CIFAR-10", 0.2, "FedNova", 0.0][0].config.weighting == "fednova"
    assert plan.jobs_by_key["CIFAR-10", 0.1, "FedMut", 0.3][0].config.broadcast == "fedmut"
    quick = plan_figure(read_figure("pa3fed-figure4"), is_quick=True)
    assert quick.jobs_by_key["digits", 0.1, "FedMut", 0.3][0].config.broadcast == "fedmut:radius=1"


def test_changes_of_losses_are_means_over_clients_and_rounds():
    history = fake_history(
        6, tables={"client_loss": lambda number, client: number**2 if client else 0.0}
    )
    changes = np.diff(np.arange(1, 7) ** 2)  # 3, 5, 7, 9, 11 for nine of ten clients
    assert measure_changes([history], 0.0, 0.5) == pytest.approx([0.9 * changes[:2].mean()])
    assert measure_changes([history], 0.5, 1.0) == pytest.approx([0.9 * changes[3:].mean()])


def test_a_run_without_critical_rounds_cannot_be_judged(tmp_path):
    def stay(key, seed):
        return fake_history(8, seed, fgn=1.0, tables={"reported.loss": lambda number, client: 1.0})

    figure = read_figure("pa3fed-figure5")
    _, verdict = draw_and_judge(figure, figure.quick, stay, tmp_path)
    assert verdict.state == "cannot be told"
