"""FedCos's figures: verdicts follow from the runs, and every scale is drawn."""

import numpy as np
import pytest

from steelyard.figures import read_figure
from steelyard.figures._fedcos import count_rounds_by_scene, count_rounds_to_the_end
from steelyard.figures._style import collect_numbers
from tests.figures.fakes import draw_and_judge, fake_history, fake_results

pytest.importorskip("matplotlib", reason="figures need matplotlib")

NAMES = [f"fedcos-figure{number}" for number in (3, 4, 6, 7, 8, 9, 10, 11, 12, 13)]
SCENE_SPEEDS = {"totally": 0.25, "90 %": 0.22, "70 %": 0.21, "IID": 0.2}
SERVER_SPEEDS = {"FedOpt (1.2)": 0.11, "FedOpt (1.5)": 0.12, "FedOpt (1.7)": 0.12}


def follow_the_paper(key, seed):
    """Return a run that does what the paper says: FedCos turns clients, gains and is faster."""
    parts = key if isinstance(key, tuple) else (key,)
    scene = next((part for part in parts if part in SCENE_SPEEDS), "totally")
    algorithm = next(part for part in parts if "Fed" in part)
    if "FedCos" in algorithm:
        return fake_history(
            60,
            seed,
            speed=SCENE_SPEEDS[scene],
            level=0.93,
            mean_cosine=0.2,
            mean_update_norm=0.5,
            mean_pairwise_distance=0.4,
            update_norm=0.4,
        )
    is_prox = "FedProx" in algorithm
    return fake_history(
        60,
        seed,
        speed=SERVER_SPEEDS.get(algorithm, 0.1),
        jitter=0.005 if algorithm == "FedOpt (1.7)" else 0.0,
        mean_cosine=lambda number: 0.1 - 0.01 * number,
        mean_update_norm=0.7 if is_prox else 0.8,
        mean_pairwise_distance=0.8 if is_prox else 0.9,
        update_norm=0.1,
    )


def contradict_the_paper(key, seed):
    """Return a run in which all algorithms are the same."""
    return fake_history(
        60,
        seed,
        mean_cosine=0.1,
        mean_update_norm=0.8,
        mean_pairwise_distance=0.9,
        update_norm=0.1,
    )


@pytest.mark.parametrize("name", [name for name in NAMES if name[-1:] != "4" and name[-2:] != "13"])
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


@pytest.mark.parametrize("name", ["fedcos-figure4", "fedcos-figure13"])
def test_the_toy_is_drawn_and_fedcos_comes_closer_than_fedavg(name, tmp_path):
    figure = read_figure(name)
    drawing, verdict = draw_and_judge(figure, figure.quick, None, tmp_path)
    labels = {row[1] for row in collect_numbers(drawing)[1:]}
    assert {"FedAvg", "FedProx, μ = 0.1", "FedCos, μ = 0.2"} <= labels
    assert verdict.checks[0].holds is True


def test_rounds_are_counted_to_the_final_accuracy_of_the_baseline():
    figure = read_figure("fedcos-figure7")
    results = fake_results(figure.quick, follow_the_paper)
    total, first, ours = count_rounds_by_scene(results, "FedAvg", "IID")[0]
    assert total == 60
    assert first == 60  # the curve rises in every round
    goal = 0.9 * (1 - np.exp(-0.1 * 60))
    expected = next(n for n in range(1, 61) if 0.93 * (1 - np.exp(-0.2 * n)) >= goal)
    assert ours == expected


def test_a_path_is_at_its_end_when_it_stays_near_its_last_point():
    assert count_rounds_to_the_end([(0, 0), (1, 0), (2, 0), (2, 0.001), (2, 0)]) == 2
    assert count_rounds_to_the_end([(2, 0), (0, 0), (2, 0)]) == 2
    assert count_rounds_to_the_end([(2, 0), (2, 0)]) == 0
