"""The framework of figures: plans share runs, files have the plotted numbers, verdicts are computed."""

import csv
import json

import numpy as np
import pytest

from steelyard.core import SteelyardError
from steelyard.figures import (
    Check,
    PaperFigure,
    Scale,
    Source,
    Verdict,
    make_runs,
    plan_figure,
    read_figure,
    run_figure,
)
from steelyard.figures._judge import (
    check_difference,
    check_equal,
    check_not_lower,
    check_trend,
    check_value,
)
from steelyard.figures._style import collect_numbers, make_panels, plot_mean, plot_series, use_style

pytest.importorskip("matplotlib", reason="figures need matplotlib")

TINY = {"rounds": 2, "data": {"clients": 3}}


class Curves(PaperFigure):
    """A figure of two rules, which counts its measurements."""

    name = "fedlaw-test"
    title = "Two rules"
    claim = "Uniform weights are as good."
    source = Source("Figure 0", "nowhere", "0")
    quick = Scale(
        make_runs(lambda rule: {**TINY, "weighting": rule}, rule=("fedavg", "uniform")),
        (1, 2),
        ("It is tiny.",),
    )
    paper = quick

    def measure(self, results, out):
        count = out / "count"
        count.write_text(f"{count.read_text() if count.exists() else ''}x")
        return {"best": [history.best for history in results["fedavg"]]}

    def draw(self, results):
        drawing, (axes,) = make_panels(1)
        for rule in results.histories:
            plot_series(axes, results[rule], "accuracy", color="black", label=rule)
        return drawing

    def judge(self, results):
        best = results.measurements["best"]
        return Verdict.from_checks([Check(f"best {best}", best[0] is not None)])


def test_a_figure_is_run_drawn_judged_and_written_once(tmp_path):
    plan = plan_figure(Curves(), is_quick=True)
    first = run_figure(plan, tmp_path)
    assert first.verdict.state == "shows it"
    assert first.run_count == 4
    page = (first.path / "figure.md").read_text()
    for text in (
        Curves.claim,
        "It is tiny.",
        "**Verdict: shows it.**",
        "steelyard reproduce fedlaw-test --quick",
        "weighting=uniform",
    ):
        assert text in page
    assert (first.path / "figure.png").stat().st_size > 1000
    assert (first.path / "figure.svg").read_text().startswith("<?xml")

    # The table has the plotted numbers: the mean of the runs' accuracies.
    with (first.path / "figure.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["series"] == "fedavg"]
    logs = [(tmp_path / "runs" / job.name / "rounds.jsonl").read_text() for job in plan.jobs[::2]]
    accuracies = [[json.loads(line)["accuracy"] for line in log.splitlines()] for log in logs]
    assert [float(row["y"]) for row in rows] == pytest.approx(np.mean(accuracies, axis=0).tolist())

    # A second call reuses runs and measurements.
    files = ("figure.png", "figure.csv", "figure.md", "figure.svg")
    contents = [(first.path / name).read_bytes() for name in files]
    second = run_figure(plan, tmp_path)
    assert [(second.path / name).read_bytes() for name in files] == contents
    assert [(tmp_path / "runs" / job.name / "rounds.jsonl").read_text() for job in plan.jobs][
        ::2
    ] == logs
    assert (first.path / "count").read_text() == "x"

    # Another plan has other runs, so it is measured again.
    run_figure(plan_figure(Curves(), is_quick=True, seeds=[1]), tmp_path)
    assert (first.path / "count").read_text() == "xx"


def test_rounds_seeds_and_settings_of_the_user_are_applied():
    plan = plan_figure(
        Curves(), is_quick=True, rounds=7, seeds=[4], settings=["data.clients=5", "local.lr=0.5"]
    )
    assert [job.config.seed for job in plan.jobs] == [4, 4]
    assert {job.config.rounds for job in plan.jobs} == {7}
    assert {job.config.data.clients for job in plan.jobs} == {5}
    assert {job.config.local.lr for job in plan.jobs} == {0.5}
    with pytest.raises(SteelyardError, match="clientz"):
        plan_figure(Curves(), settings=["data.clientz=5"])
    with pytest.raises(SteelyardError, match="no seeds"):
        plan_figure(Curves(), seeds=[])


def test_equal_settings_share_a_directory_and_others_do_not():
    class Other(Curves):
        quick = Scale({"plain": {**TINY, "weighting": "fedavg"}}, (2,))

    own = {job.name for job in plan_figure(Curves(), is_quick=True).jobs}
    assert {job.name for job in plan_figure(Other(), is_quick=True).jobs} < own
    longer = {job.name for job in plan_figure(Other(), is_quick=True, rounds=3).jobs}
    assert not longer & own


def test_a_failed_run_is_reported_and_nothing_is_drawn(tmp_path):
    plan = plan_figure(Curves(), is_quick=True, seeds=[1], settings=["local.lr=1e30"])
    result = run_figure(plan, tmp_path)
    assert len(result.failed) == 2
    assert result.verdict is None
    assert not (result.path / "figure.md").exists()


def test_an_unknown_figure_is_refused():
    with pytest.raises(SteelyardError, match="fedlaw-figure99"):
        read_figure("fedlaw-figure99")


@pytest.mark.parametrize(
    ("answers", "state"),
    [
        ((True, True), "shows it"),
        ((True, False), "shows it in part"),
        ((True, None), "shows it in part"),
        ((False, False), "does not show it"),
        ((False, None), "cannot be told"),
        ((None,), "cannot be told"),
        ((), "cannot be told"),
    ],
)
def test_a_verdict_follows_from_its_checks(answers, state):
    verdict = Verdict.from_checks([Check("a", answer) for answer in answers])
    assert verdict.state == state


def test_differences_hold_only_beyond_noise():
    assert check_difference("", [2, 2.1, 2.2], [1, 1.1, 1.1], "higher").holds is True
    assert check_difference("", [2, 2.1, 2.2], [1, 1.1, 1.1], "lower").holds is False
    assert check_difference("", [2, 0, 1], [1, 1, 1], "higher").holds is None
    assert check_difference("", [2], [1], "higher").holds is None  # one seed says nothing
    assert (
        check_difference("x", [2, 2.1], [1, 1], "higher", "points").text == "x: +1.05 ± 0.64 points"
    )
    assert check_value("x", [2.0, 2.1, 2.2], "higher", 1.0).holds is True
    assert check_value("x", [2.0, 2.1, 2.2], "lower", 1.0).text == "x: 2.10 ± 0.25"
    assert check_not_lower("", [1, 1.1, 0.9], [1, 1, 1], 1.0).holds is True
    assert check_not_lower("", [1, 3, -1], [1, 1, 1], 1.0).holds is None
    assert check_not_lower("", [-1, -1.1, -0.9], [1, 1, 1], 1.0).holds is False
    assert check_not_lower("", [1], [1], 1.0).holds is None
    rising = [[1, 2, 3.1], [0.9, 2.2, 3], [1, 2.1, 3]]
    assert check_trend("", [1, 5, 10], rising, "higher").holds is True
    assert check_trend("", [10, 5, 1], rising, "higher").holds is False


def test_equality_holds_only_within_the_margin():
    assert check_equal("", [1, 1.1, 1.05], [1, 1, 1], 0.5).holds is True
    assert check_equal("", [2, 2.1, 2.05], [1, 1, 1], 0.5).holds is False
    assert check_equal("", [-2, -2.1, -2.05], [1, 1, 1], 0.5).holds is False
    assert check_equal("", [1.5, 1, 0.5], [1, 1, 1], 0.5).holds is None  # the interval is wider
    assert check_equal("", [1], [1], 0.5).holds is None


def test_numbers_of_a_drawing_have_intervals_bars_and_images():
    with use_style():
        drawing, (lines, others) = make_panels(2)
        lines.set_title("left")
        plot_mean(lines, [1, 2], [[1, 2], [2, 3], [3, 4]], color="black", label="shade")
        plot_mean(lines, [1, 2], [[1, 2], [2, 3], [3, 4]], color="red", label="bars", has_bars=True)
        lines.axhline(0)
        others.bar([1, 2], [5, 6], label="heights")
        others.scatter([7], [8], label="points")
        others.imshow([[0.5]])
        rows = collect_numbers(drawing)[1:]
    half = 4.302652729911275 / np.sqrt(3)  # Student's quantile for two degrees; deviation 1
    expected = [2 - half, 2 + half]
    for name in ("shade", "bars"):
        first = next(row for row in rows if row[1] == name)
        assert first[:4] == ["1 left", name, 1.0, 2.0]
        assert first[4:6] == pytest.approx(expected)
    assert ["2", "heights", 2.0, 6.0, None, None, None] in rows
    assert ["2", "points", 7.0, 8.0, None, None, None] in rows
    assert ["2", "image", 1.0, 1.0, None, None, 0.5] in rows
    assert len(rows) == 8  # the guide line has no number
