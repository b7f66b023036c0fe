"""Every figure of the papers has a command, is drawn from tiny runs, and has a computed verdict."""

import csv
import re
from dataclasses import replace

import numpy as np
import pytest

from steelyard.core import SteelyardError
from steelyard.experiments._jobs import Outcome, is_finished
from steelyard.figures import _run as runner
from steelyard.figures import names, plan_figure, read_figure, run_figure
from steelyard.runs._history import History
from steelyard.sim._simulate import simulate

pytest.importorskip("matplotlib", reason="figures need matplotlib")
pytest.importorskip("scipy", reason="intervals and Hessian spectra need scipy")
pytest.importorskip("ot", reason="distances between data sets need POT")

# By paper: the numbers of its figures that show data.
NUMBERS = {
    "fedlaw": [*range(1, 13), *range(14, 18)],
    "fedawa": [2, 3, 5, 6, 7, 8],
    "fedcos": [3, 4, *range(6, 14)],
    "pa3fed": [1, *range(3, 9)],
    "fedadp": [*range(1, 8)],
}
PANELS = {  # panels with a title; one by default
    "fedlaw-figure2": 2,
    "fedlaw-figure3": 2,
    "fedlaw-figure4": 3,
    "fedlaw-figure5": 3,
    "fedlaw-figure6": 3,
    "fedlaw-figure7": 2,
    "fedlaw-figure8": 2,
    "fedlaw-figure9": 2,
    "fedlaw-figure10": 3,
    "fedlaw-figure12": 9,
    "fedlaw-figure14": 2,
    "fedlaw-figure15": 2,
    "fedlaw-figure16": 2,
    "fedlaw-figure17": 2,
    "fedawa-figure2": 3,
    "fedawa-figure5": 3,
    "fedawa-figure6": 3,
    "fedawa-figure8": 3,
    "fedcos-figure3": 2,
    "fedcos-figure4": 2,
    "fedcos-figure7": 4,
    "fedcos-figure8": 4,
    "fedcos-figure12": 3,
    "fedcos-figure13": 2,
    "pa3fed-figure1": 2,
    "pa3fed-figure3": 4,
    "pa3fed-figure4": 2,
    "pa3fed-figure5": 2,
    "pa3fed-figure8": 2,
    "fedadp-figure3": 6,
    "fedadp-figure4": 6,
    "fedadp-figure5": 4,
    "fedadp-figure6": 2,
    "fedadp-figure7": 4,
}
TINY_ROUNDS = 3
FEW_SAMPLES = 50
FEW_RUNS = 4  # a figure with more runs is drawn from one seed


def run_in_process(jobs, out, **options):
    """Run jobs one after the other in this process: a process per run would take minutes."""
    outcomes = []
    for job in jobs:
        path = out / job.name
        if not is_finished(job, out):
            execution = replace(job.config.execution, executor="serial")
            simulate(replace(job.config, execution=execution), out=path, resume=True)
        outcomes.append(Outcome(job, path, replace(History.read(path), name=job.name)))
    return outcomes


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    """One directory for all figures, so that they share runs."""
    return tmp_path_factory.mktemp("figures")


def test_every_figure_with_data_of_the_papers_is_here():
    expected = [f"{paper}-figure{number}" for paper in NUMBERS for number in NUMBERS[paper]]
    assert names() == expected


@pytest.mark.parametrize("name", names())
def test_a_figure_says_what_the_paper_claims_and_where(name):
    figure = read_figure(name)
    number = name.rpartition("figure")[2]
    assert figure.source.figure == f"Figure {number}"
    assert re.fullmatch(r"\d+(-\d+)?(, \d+(-\d+)?)*", figure.source.lines)
    assert figure.claim.endswith(".")
    assert figure.title
    assert figure.quick.differences


@pytest.mark.parametrize("name", names())
def test_the_settings_of_both_sizes_are_valid(name):
    figure = read_figure(name)
    for is_quick in (True, False):
        plan = plan_figure(figure, is_quick)
        assert len(plan.jobs) <= 80 or not is_quick
    assert all(job.config.data.name == "digits" for job in plan_figure(figure, True).jobs)


@pytest.mark.parametrize("name", names())
def test_a_figure_is_drawn_from_tiny_runs_and_judged(name, pool, monkeypatch):
    monkeypatch.setattr(runner, "run_jobs", run_in_process)
    figure = read_figure(name)
    count = 2 if len(figure.quick.runs) <= FEW_RUNS else 1
    plan = plan_figure(figure, True, rounds=TINY_ROUNDS, seeds=figure.quick.seeds[:count])
    if "samples" in plan.scale.values:  # of measurements after the runs
        values = {**plan.scale.values, "samples": FEW_SAMPLES}
        plan = replace(plan, scale=replace(plan.scale, values=values))
    result = run_figure(plan, pool)

    # The drawing: every panel has finite numbers.
    panels = [axes for axes in result.drawing.axes if axes.get_title(loc="left")]
    assert len(panels) == PANELS.get(name, 1)
    with (result.path / "figure.csv").open() as file:
        rows = list(csv.DictReader(file))
    drawn_panels = {row["panel"].partition(" ")[0] for row in rows}
    numbers = [str(result.drawing.axes.index(axes) + 1) for axes in panels]
    assert set(numbers) <= drawn_panels
    values = [float(row["value"] or row["y"]) for row in rows]
    assert np.isfinite(values).all()

    # The verdict: a state, and a sentence with numbers.
    assert result.verdict.checks
    assert re.search(r"\d", result.verdict.sentence)
    page = (result.path / "figure.md").read_text()
    assert f"**Verdict: {result.verdict.state}.** {result.verdict.sentence}" in page
    assert f"steelyard reproduce {name} --quick" in page
    assert "rounds=3" in page


def test_a_verdict_follows_the_numbers(pool, monkeypatch):
    """FedLAW's Figure 1 with swapped runs has the opposite sign."""
    monkeypatch.setattr(runner, "run_jobs", run_in_process)
    figure = read_figure("fedlaw-figure1")
    plan = plan_figure(figure, True, rounds=TINY_ROUNDS, seeds=figure.quick.seeds[:1])
    results = runner.collect_results(plan, run_in_process(plan.jobs, pool / "runs"), pool)
    first = figure.judge(results).checks[0].text
    gammas = list(results.histories)
    swapped = {gamma: results[other] for gamma, other in zip(gammas, gammas[::-1], strict=True)}
    assert figure.judge(replace(results, histories=swapped)).checks[0].text != first


def test_without_matplotlib_the_error_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(SteelyardError, match=r"steelyard\[plot\]"):
        run_figure(plan_figure(read_figure("fedlaw-figure1"), True), tmp_path / "none")
    assert not (tmp_path / "none").exists()
