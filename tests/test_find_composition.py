"""The search for a composition, in small: candidates are cut by halving, and all of them stay on record."""

import csv
import importlib.util
import io
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from steelyard.experiments import _jobs as jobs
from steelyard.experiments._benchmark import read_benchmark
from tests.experiments.jobs import Here

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "examples" / "find_composition.py"
RESULTS = ROOT / "docs" / "results"


@pytest.fixture
def search(monkeypatch):
    spec = importlib.util.spec_from_file_location("find_composition", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "find_composition", module)  # its dataclass looks for it
    spec.loader.exec_module(module)
    monkeypatch.setattr(jobs, "Child", Here)
    return module


@pytest.mark.parametrize(("space", "count"), [("wide", 4 * 6 * 4), ("narrow", 4 * 2)])
def test_every_candidate_is_a_valid_run(search, space, count):
    rules = [candidate.rule for candidate in search.make_candidates(search.SPACES[space])]
    assert len({rule.name for rule in rules}) == len(rules) == count
    benchmark = read_benchmark().select(settings=search.SETTINGS)
    assert len(replace(benchmark, rules=tuple(rules)).jobs([101])) == count * 3


def test_the_best_go_on_and_the_others_stay_on_record(search, monkeypatch, tmp_path):
    weightings = {name: name for name in ("fedavg", "uniform", "fedadp")}
    steps = {"": "", "slow": "server=sgd:lr=0.01"}
    monkeypatch.setitem(search.SPACES, "small", search.Space(weightings, {"": ""}, steps))
    monkeypatch.setattr(search, "SETTINGS", ("dirichlet-0.5", "quantity"))
    small = ["data.name=digits", "model=logistic", "executor=serial"]
    arguments = [word for setting in small for word in ("--set", setting)]
    monkeypatch.setattr(
        sys,
        "argv",
        ["search", "--out", str(tmp_path), "--space", "small", "--rungs", "1,3", *arguments],
    )
    search.main()
    rows = list(csv.DictReader(io.StringIO((tmp_path / "search.csv").read_text())))
    assert len(rows) == 3 * 2
    assert [row["rounds"] for row in rows] == ["3"] * 2 + ["1"] * 4
    steps = [row["candidate"].endswith("slow") for row in rows[:2]]
    assert sorted(steps) == [False, True]  # one of three of each server step
    for column in ("dirichlet-0.5", "quantity"):
        best = max(float(row[column]) for row in rows[:2])
        for row in rows[:2]:
            assert float(row["regret"]) >= best - float(row[column]) - 0.011  # both are rounded
    assert min(float(row["regret"]) for row in rows[:2]) == float(rows[0]["regret"])


def test_the_best_of_each_server_step_survive(search):
    """Also where all candidates of another server step are better at this time."""
    regrets = {"adam-0.005": [9, 8, 7, 6, 5], "": [1, 2, 3, 4]}
    standings = []
    for step, values in regrets.items():
        for regret in values:
            candidate = search.Candidate(f"{step} {regret}", step)
            standings.append(search.Standing(candidate, 10, {}, regret))
    standings.sort(key=lambda standing: standing.regret)
    survivors = [candidate.rule for candidate in search.choose_survivors(standings)]
    assert survivors == [" 1", "adam-0.005 5", "adam-0.005 6"]  # a quarter of each, rounded up


@pytest.mark.parametrize(
    ("file", "candidates", "on_page"),
    [("composition-search.csv", 96, 8 + 16), ("composition-search-narrow.csv", 8, 8)],
)
def test_the_page_shows_the_numbers_on_record(search, file, candidates, on_page):
    page = (RESULTS / "composition.md").read_text()
    with (RESULTS / file).open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert len(rows) == candidates
    shown = [row for row in rows if int(row["rounds"]) > 10]
    assert len(shown) == on_page
    for row in shown:
        cells = [f"`{row['algorithm']}`".replace("|", r"\|")]
        cells += [f"{float(row[setting]):.1f}" for setting in search.SETTINGS]
        cells.append(row["regret"])
        assert f"| {' | '.join(cells)} |" in page
