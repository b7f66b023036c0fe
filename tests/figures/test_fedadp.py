"""FedAdp's figures: verdicts follow from the runs, and every scale is drawn."""

import numpy as np
import pytest

from steelyard.diagnostics import by_client
from steelyard.figures import plan_figure, read_figure
from steelyard.figures._fedadp import EIGHT, SIX, smooth_angles
from steelyard.figures._style import collect_numbers
from tests.figures.fakes import draw_and_judge, fake_history

pytest.importorskip("matplotlib", reason="figures need matplotlib")

NAMES = [f"fedadp-figure{number}" for number in range(1, 8)]
LAST_ANGLES = [40] * 5 + [85] * 3 + [60] * 2  # of nodes 0 to 9 after round 1


def compute_cosine(number, client):
    """Return the cosine of a node: all alike in round 1, by kind of node later."""
    degrees = 60 + client if number == 1 else LAST_ANGLES[client] + 2
    return float(np.cos(np.radians(degrees)))


def find_speed(key):
    """Return how fast a run is if it does what the paper says."""
    text = str(key)
    if isinstance(key, int):  # alpha, where 0 is FedAvg
        return 0.08 + 0.02 * min(key, 5) - 0.01 * max(0, key - 5)
    if "FedAdp" in text:
        return 0.3 if "7 non-IID" in text else 0.2
    if "FedAvg" in text:
        return 0.1
    return 0.3 - 0.03 * EIGHT.index(text)


def follow_the_paper(key, seed):
    speed = find_speed(key)
    return fake_history(
        60,
        seed,
        speed=speed,
        level=0.97,
        train_loss=lambda number: float(np.exp(-speed * number)),
        update_divergence=0.3 - 0.1 * speed,
        tables={"cosines": compute_cosine},
    )


def contradict_the_paper(key, seed):
    return fake_history(
        60,
        seed,
        level=0.97,
        train_loss=0.5,
        update_divergence=0.3,
        tables={"cosines": lambda number, client: 0.5},
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


def test_the_mixes_are_those_of_the_paper():
    assert SIX == (
        "3 IID + 7 non-IID (1)",
        "5 IID + 5 non-IID (1)",
        "6 IID + 4 non-IID (1)",
        "3 IID + 7 non-IID (2)",
        "5 IID + 5 non-IID (2)",
        "6 IID + 4 non-IID (2)",
    )
    plan = plan_figure(read_figure("fedadp-figure1"))
    job = plan.jobs_by_key["3 IID + 7 non-IID (2)"][0]
    assert job.config.data.clients == 10
    assert job.config.data.partition == "x_class:classes=2,iid=3,samples=600"
    assert plan.jobs_by_key["5 IID"][0].config.data.clients == 5


def test_smoothed_angles_are_those_of_fedadps_rule():
    """With alpha near 0, FedAdp is FedAvg and records the angles of Eq. (9) itself."""
    import steelyard

    settings = {
        "rounds": 3,
        "clients": 4,
        "partition": "x_class:classes=1,iid=2,samples=50",
        "seed": 3,
        "executor": "serial",
    }
    plain = steelyard.simulate("fedavg", "digits", **settings)
    rule = steelyard.simulate("fedadp:alpha=1e-9", "digits", **settings)
    expected = np.degrees(by_client(rule, "angles").values)
    for rounds in (1, 3):
        assert smooth_angles([plain], rounds)[0] == pytest.approx(expected[rounds - 1], abs=0.05)
