"""Numbers out of runs, and the paper's beside ours."""

import csv
import io
import json
from pathlib import Path

import pytest

from steelyard.core._errors import SteelyardError
from steelyard.experiments import _paper_table as table
from steelyard.experiments._jobs import Outcome
from steelyard.experiments._paper_table import parse_table
from steelyard.experiments._reproduce import (
    compute_results,
    describe_subset,
    format_gap,
    format_mean,
    format_values,
    has_large_gap,
    make_jobs,
    to_csv,
    to_markdown,
)
from steelyard.experiments.scores import SCORES
from steelyard.runs._history import History
from steelyard.sim._experiment import read_experiment

ENVIRONMENT = {"steelyard": "1", "python": "3", "torch": "2", "numpy": "2", "cores": 2}


def made(metric="rounds", numbers=(10,), rounds=20):
    raw = {
        "title": "A | title",
        "paper": "Someone, 2020",
        "metric": metric,
        "seeds": [1, 2],
        "deviations": ["Another network."],
        "base": {"rounds": rounds, "data": {"name": "digits"}},
        "row": [{"id": "a", "label": "A", "set": {"weighting": "fedavg"}}],
        "column": [
            {"id": f"c{i}", "label": f"C{i}", "target": 0.5, "set": {"data": {"partition": "iid"}}}
            for i in range(len(numbers))
        ],
        "numbers": {"a": list(numbers)},
    }
    if metric != "rounds":
        for column in raw["column"]:
            del column["target"]
    return parse_table("test", raw)


def outcome(job, accuracies, error=None, path=Path("x")):
    records = [
        {"round": i, "accuracy": value, "timings": {"total": 2.0}}
        for i, value in enumerate(accuracies, start=1)
    ]
    return Outcome(job, path, None if error else History("x", records), error)


def found(plan, *curves):
    return compute_results(
        plan,
        [
            outcome(job, curve)
            for job, curve in zip(make_jobs(plan, plan.seeds), curves, strict=True)
        ],
    )


def test_jobs_come_seed_by_seed():
    plan = made(numbers=(10, 20))
    assert [job.name for job in make_jobs(plan, [3, 5])] == [
        "c0/a/seed-3",
        "c1/a/seed-3",
        "c0/a/seed-5",
        "c1/a/seed-5",
    ]
    assert {job.config.target for job in make_jobs(plan, [3])} == {0.5}


def test_rounds_to_a_target():
    (result,) = found(made(), [0.1, 0.2, 0.6], [0.1, 0.5])
    assert result.values == {1: 3, 2: 2}
    assert (format_mean(result), format_values(result), format_gap(result)) == (
        "2 ± 1",
        "3, 2",
        "-75%",
    )
    assert has_large_gap(result)
    assert result.seconds == 10.0


def test_a_target_one_seed_does_not_reach_has_no_mean():
    (result,) = found(made(), [0.1, 0.2, 0.6], [0.1, 0.4])
    assert (format_mean(result), format_values(result), format_gap(result)) == (
        "N/A in 1 of 2 (50.00 %)",
        "3, N/A",
        "",
    )
    assert has_large_gap(result)


def test_not_reached_in_the_paper_either_is_no_gap():
    (result,) = found(made(numbers=("N/A 44",)), [0.1, 0.2], [0.1, 0.4])
    assert format_gap(result) == "both N/A"
    assert not has_large_gap(result)
    (result,) = found(made(numbers=("N/A 44",)), [0.6], [0.6])
    assert format_gap(result) == ""
    assert has_large_gap(result)


@pytest.mark.parametrize(("metric", "wanted"), [("last10", 62.0), ("best", 90.0), ("final", 70.0)])
def test_accuracies_in_percent(metric, wanted):
    curve = [0.1, 0.2, 0.35, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.8, 0.9, 0.7]
    (result,) = found(made(metric, numbers=(wanted - 3,)), curve, curve)
    assert result.mean == pytest.approx(wanted)
    assert (format_gap(result), has_large_gap(result)) == ("+3.00", True)
    assert result.deviation == pytest.approx(0.0)


def test_gaps_within_the_limits_are_not_marked():
    (result,) = found(made("final", numbers=(69.0,)), [0.7], [0.7])
    assert not has_large_gap(result)
    (result,) = found(made(numbers=(4,)), [0.1, 0.1, 0.1, 0.1, 0.6], [0.1, 0.1, 0.1, 0.1, 0.6])
    assert format_gap(result) == "+25%"
    assert not has_large_gap(result)


def test_a_failed_run_is_said():
    plan = made()
    first, second = make_jobs(plan, [1, 2])
    (result,) = compute_results(
        plan, [outcome(first, [0.6]), outcome(second, [], error="it broke")]
    )
    assert result.values == {1: 1}
    assert "- c0/a, seed 2: it broke" in to_markdown(plan, [result], ["steelyard"], ENVIRONMENT)


def test_the_page_holds_what_is_needed_to_judge_it():
    plan = made("final", numbers=(69.0,), rounds=20)
    text = to_markdown(
        plan, found(plan, [0.7], [0.8]), ["steelyard", "reproduce", "a b"], ENVIRONMENT
    )
    assert "$ steelyard reproduce 'a b'" in text
    assert "| C0 | A | 69 | 75.00 ± 7.07 | 70.00, 80.00 | +6.00 | beyond |" in text
    assert "Reduced" not in text
    assert "- Another network." in text
    assert "4 s of rounds in all" in text


def test_fewer_rounds_are_marked():
    plan = made("final", numbers=(69.0,), rounds=20).apply_settings(["rounds=5"])
    text = to_markdown(
        plan,
        found(plan, [0.7], [0.8]),
        ["steelyard", "--out", "runs/mine", "x", "--out=y"],
        ENVIRONMENT,
    )
    assert "**Reduced: 5 rounds instead of the paper's 20.**" in text
    assert "| +6.00 | reduced |" in text
    assert "$ steelyard x\n" in text  # where runs went is nobody else's business


def controlled(metric="final", rounds=20):
    """A table of one rule and its control."""
    raw = {
        "title": "t",
        "paper": "p",
        "metric": metric,
        "seeds": [1],
        "rounds_source": "the authors' code",
        "base": {"rounds": rounds, "model": "mlp", "data": {"name": "digits", "partition": "iid"}},
        "row": [
            {"id": "a", "label": "A", "set": {"weighting": "fedavg"}},
            {"id": "u", "label": "U", "control": True, "set": {"weighting": "uniform"}},
        ],
        "column": [{"id": "c", "label": "C", "set": {}, "target": 0.5}],
        "numbers": {"a": [69.0]},
    }
    return parse_table("test", raw)


@pytest.mark.parametrize("metric", ["final", "rounds"])
@pytest.mark.parametrize("curve", [[0.7], [0.1]])
def test_a_control_has_no_number_and_no_gap(metric, curve):
    """Also where the target is not reached: that is no N/A in common with the paper."""
    plan = controlled(metric)
    _, control = found(plan, [0.7], curve)
    assert (format_gap(control), has_large_gap(control), control.remark) == ("", False, "control")
    text = to_markdown(plan, found(plan, [0.7], curve), ["steelyard"], ENVIRONMENT)
    (line,) = [line for line in text.splitlines() if "U (control)" in line]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert (cells[2], cells[5], cells[6]) == ("", "", "control")
    assert "*control*: a row of ours" in text
    rows = list(csv.DictReader(io.StringIO(to_csv(found(plan, [0.7], curve)))))
    assert [(row["paper"], row["remark"]) for row in rows] == [("69", ""), ("", "control")]


def test_a_short_control_is_marked_as_both():
    plan = controlled(rounds=20).apply_settings(["rounds=5"])
    text = to_markdown(plan, found(plan, [0.7], [0.7]), ["steelyard"], ENVIRONMENT)
    assert "| control, reduced |" in text


def test_rounds_are_of_whoever_named_them():
    plan = controlled(rounds=300).apply_settings(["rounds=5"])
    text = to_markdown(plan, found(plan, [0.7], [0.7]), ["steelyard"], ENVIRONMENT)
    assert "**Reduced: 5 rounds instead of the authors' code's 300.**" in text
    assert "the paper's 300" not in text


def test_another_network_has_no_gap():
    plan = controlled().apply_settings(["model=lenet"])
    result, control = found(plan, [0.9], [0.9])
    assert (format_gap(result), has_large_gap(result)) == ("", False)
    text = to_markdown(plan, [result, control], ["steelyard"], ENVIRONMENT)
    assert (
        "**Some cells had another network or data set than the paper's.** They have no gap." in text
    )
    assert "| 69 | 90.00 | 90.00 |  | another network: lenet (paper: mlp) |" in text
    rows = list(csv.DictReader(io.StringIO(to_csv([result]))))
    assert rows[0]["remark"] == "another network: lenet (paper: mlp)"
    (result, _) = found(controlled().apply_settings(["model=mlp:hidden=[200,200]"]), [0.9], [0.9])
    assert format_gap(result) == "+21.00"  # the same network in other words


def test_csv_has_a_line_per_seed():
    plan = made("final", numbers=(69.0,))
    rows = list(csv.DictReader(io.StringIO(to_csv(found(plan, [0.7], [0.8])))))
    assert [(row["cell"], row["seed"], row["paper"], row["ours"]) for row in rows] == [
        ("c0/a", "1", "69", "70"),
        ("c0/a", "2", "69", "80"),
    ]


def test_an_unknown_metric_is_refused():
    with pytest.raises(SteelyardError, match="unknown metric 'bset': did you mean 'best'"):
        made("bset")


def test_modules_speak_of_the_same_metrics():
    assert set(table.METRICS) <= set(SCORES)


def test_a_target_of_the_users_is_what_is_scored():
    plan = made().apply_settings(["target=0.2"])
    (result,) = found(plan, [0.1, 0.2, 0.6], [0.1, 0.5])
    assert result.values == {1: 2, 2: 2}
    with pytest.raises(SteelyardError, match="this table counts rounds to a target"):
        made().apply_settings(["target=none"])
    (result,) = found(made("final", numbers=(69.0,)).apply_settings(["target=0.9"]), [0.7], [0.8])
    assert (format_mean(result), format_gap(result)) == ("75.00 ± 7.07", "+6.00")


def test_what_was_changed_is_said_before_the_deviations():
    plan = made("final", numbers=(69.0,)).apply_settings(
        ["model=resnet20", "data.dir=elsewhere", "local.lr=0.5"]
    )
    text = to_markdown(plan, found(plan, [0.7], [0.8]), ["steelyard"], ENVIRONMENT)
    first = "- **Changed on the command line**, whatever is said below: `model=resnet20`, `local.lr=0.5`."
    assert f"Known deviations:\n\n{first}\n- Another network." in text


def clients(path, samples, classes):
    path.mkdir(exist_ok=True)
    held = {"ids": [0, 1], "sizes": [samples - 1, 1], "counts": [[0] * classes, [0] * classes]}
    (path / "clients.json").write_text(json.dumps(held))
    return path


@pytest.mark.parametrize(
    ("name", "partition", "samples", "classes", "said"),
    [
        ("tiny-imagenet", "dirichlet:alpha=0.1", 100_000, 200, None),
        ("tiny-imagenet", "dirichlet:alpha=0.1", 2000, 20, "subset: 2,000 samples, 20 classes"),
        ("cifar10:scale=standard", "iid", 50_000, 10, None),
        ("cifar10:scale=standard", "iid", 5000, 10, "subset: 5,000 samples, 10 classes"),
        ("mnist", "x_class:samples=600", 6000, 10, None),  # the partition leaves samples out
        ("cifar10", "long_tail", 20_431, 10, None),
        ("cifar10", "long_tail", 2000, 9, "subset: 2,000 samples, 9 classes"),
        ("svhn", "iid", 5, 2, None),  # whose size is not known here
    ],
)
def test_what_clients_held_tells_a_subset(name, partition, samples, classes, said, tmp_path):
    config = read_experiment(None, [f"data.name={name}", f"data.partition={partition}"])
    assert describe_subset(config, clients(tmp_path / "run", samples, classes)) == said
    assert describe_subset(config, tmp_path / "from before this was written down") is None


def test_a_subset_is_marked_and_has_no_gap(tmp_path):
    plan = made("final", numbers=(69.0, 75.0))
    part, whole = clients(tmp_path / "part", 200, 4), clients(tmp_path / "whole", 1437, 10)
    places = {"c0": part, "c1": whole}
    outcomes = [
        outcome(job, [0.7], path=places[job.name[:2]]) for job in make_jobs(plan, plan.seeds)
    ]
    first, second = compute_results(plan, outcomes)
    assert (first.subset, format_gap(first), has_large_gap(first)) == (
        "subset: 200 samples, 4 classes",
        "",
        False,
    )
    assert (second.subset, format_gap(second), has_large_gap(second)) == (None, "-5.00", True)
    text = to_markdown(plan, [first, second], ["steelyard"], ENVIRONMENT)
    assert "**Some cells had only a subset of their data set.**" in text
    assert "| 70.00, 70.00 |  | subset: 200 samples, 4 classes |" in text
    assert "| -5.00 | beyond |" in text
    rows = list(csv.DictReader(io.StringIO(to_csv([first, second]))))
    assert [row["remark"] for row in rows] == 2 * ["subset: 200 samples, 4 classes"] + 2 * [""]
