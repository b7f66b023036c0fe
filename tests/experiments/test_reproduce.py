"""Numbers out of runs, and the paper's beside ours."""

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from steelyard.core._errors import SteelyardError
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
    read_values,
    select_missing_jobs,
    to_csv,
    to_markdown,
)
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
            {
                "id": f"c{i}",
                "label": f"C{i}",
                "target": 0.5,
                "set": {"data": {"partition": f"dirichlet:alpha={i + 1}"}},
            }
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
    assert sum(result.seconds.values()) == 10.0


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
    rows = list(csv.DictReader(io.StringIO(to_csv(plan, found(plan, [0.7], curve)))))
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
    rows = list(csv.DictReader(io.StringIO(to_csv(plan, [result]))))
    assert rows[0]["remark"] == "another network: lenet (paper: mlp)"
    (result, _) = found(controlled().apply_settings(["model=mlp:hidden=[200,200]"]), [0.9], [0.9])
    assert format_gap(result) == "+21.00"  # the same network in other words


def test_values_of_a_file_need_no_runs(tmp_path):
    """Also where a target was not reached; a cell without a value is run."""
    plan = made(numbers=(10, 20))
    outcomes = [outcome(job, [0.1, 0.2]) for job in make_jobs(plan, [1])]
    path = tmp_path / "table.csv"
    path.write_text(to_csv(plan, compute_results(plan, outcomes[:1])))
    known = read_values(path, plan)
    missing = select_missing_jobs(plan, make_jobs(plan, [1, 2]), known)
    assert [job.name for job in missing] == ["c1/a/seed-1", "c0/a/seed-2", "c1/a/seed-2"]
    first, second = compute_results(plan, outcomes[1:], known)
    assert (first.values, first.best, first.seconds) == ({1: None}, {1: 20.0}, {1: 4.0})
    assert second.values == {1: None}


@pytest.mark.parametrize(
    ("settings", "named"),
    [(["rounds=7"], "20 rounds there, 7 here"), (["model=mlp"], "here with model=mlp")],
)
def test_values_of_other_settings_are_refused(tmp_path, settings, named):
    plan = made()
    path = tmp_path / "table.csv"
    path.write_text(to_csv(plan, found(plan, [0.7], [0.8])))
    with pytest.raises(SteelyardError, match=named):
        read_values(path, plan.apply_settings(settings))
    changed = plan.apply_settings(settings)
    path.write_text(to_csv(changed, found(changed, [0.7], [0.8])))
    assert len(read_values(path, changed)) == 2


def test_values_of_an_older_version_of_the_table_are_refused(tmp_path):
    """A cell may get another network while its name stays; older files do not tell."""
    plan = made()
    path = tmp_path / "table.csv"
    path.write_text(to_csv(plan, found(plan, [0.7], [0.8])))
    changed = replace(plan, cells=plan.apply_settings(["model=mlp"]).cells)
    with pytest.raises(SteelyardError, match="line 2: c0/a was run with other settings"):
        read_values(path, changed)
    moved = replace(plan, cells=plan.apply_settings(["data.dir=elsewhere"]).cells)
    assert len(read_values(path, moved)) == 2

    # Lines without a fingerprint are accepted, and stay without one.
    rows = [line.rsplit(",", 2)[0] for line in path.read_text().splitlines()]
    path.write_text("\n".join(rows))
    known = read_values(path, changed)
    assert len(known) == 2
    lines = csv.DictReader(io.StringIO(to_csv(changed, compute_results(changed, [], known))))
    assert {line["fingerprint"] for line in lines} == {""}


def test_the_processor_of_a_run_is_recorded(tmp_path):
    """The page names processors only if there are several."""
    plan = made(numbers=(10, 20))
    outcomes = []
    for job, processor in zip(make_jobs(plan, [1]), ["A|B", "C"], strict=True):
        directory = tmp_path / job.labels["run"]
        directory.mkdir(parents=True)
        (directory / "environment.json").write_text(json.dumps({"processor": processor}))
        outcomes.append(outcome(job, [0.1, 0.2], path=directory))

    # Results that come from a file keep their processor.
    path = tmp_path / "table.csv"
    path.write_text(to_csv(plan, compute_results(plan, outcomes[:1])))
    results = compute_results(plan, outcomes[1:], read_values(path, plan))
    rows = list(csv.DictReader(io.StringIO(to_csv(plan, results))))
    assert [row["processor"] for row in rows] == ["A|B", "C"]

    text = to_markdown(plan, results, ["steelyard"], ENVIRONMENT)
    assert "\nProcessors: on A\\|B: c0/a/seed-1; on C: c1/a/seed-1. Another" in text
    text = to_markdown(plan, results[:1], ["steelyard"], ENVIRONMENT)
    assert "Processors" not in text


def test_csv_has_a_line_per_seed():
    plan = made("final", numbers=(69.0,))
    rows = list(csv.DictReader(io.StringIO(to_csv(plan, found(plan, [0.7], [0.8])))))
    assert [(row["cell"], row["seed"], row["paper"], row["ours"]) for row in rows] == [
        ("c0/a", "1", "69", "70"),
        ("c0/a", "2", "69", "80"),
    ]


def test_an_unknown_metric_is_refused():
    with pytest.raises(SteelyardError, match="metric 'bset': unknown"):
        made("bset")
    with pytest.raises(SteelyardError, match=r"metric 'correlation\(age\)'"):
        made("correlation(age)")


def changed(plan_columns, rows=None, numbers=None, metric="final"):
    """A table on digits with these columns."""
    raw = {
        "title": "t",
        "paper": "p",
        "metric": metric,
        "seeds": [1],
        "base": {"rounds": 4, "model": "logistic", "data": {"name": "digits", "clients": 3}},
        "row": rows or [{"id": "a", "label": "A", "set": {"weighting": "fedavg"}}],
        "column": plan_columns,
        "numbers": numbers or {"a": [50.0] * len(plan_columns)},
    }
    return parse_table("test", raw)


def test_best_and_last_are_of_one_run():
    columns = [
        {"id": "best", "label": "Best", "metric": "best", "set": {}},
        {"id": "last", "label": "Last", "set": {}},
    ]
    plan = changed(columns)
    (job,) = make_jobs(plan, [1])
    assert job.name == "best/a/seed-1"
    best, last = compute_results(plan, [outcome(job, [0.3, 0.9, 0.6])])
    assert (format_mean(best), format_mean(last)) == ("90.00", "60.00")
    (job,) = make_jobs(plan.select_cells(["last/a"]), [1])
    assert job.name == "best/a/seed-1"  # the same run, whichever cells are selected
    text = to_markdown(plan, [best, last], ["steelyard"], ENVIRONMENT)
    assert "Metrics: accuracy of the best round, %; accuracy of the last evaluation, %" in text


def test_a_row_may_be_of_a_recorded_number():
    rows = [
        {"id": "a", "label": "A", "set": {"weighting": "fedavg"}},
        {"id": "g", "label": "G", "metric": "mean(gamma,2-3)", "set": {"weighting": "fedavg"}},
    ]
    plan = changed([{"id": "x", "label": "X", "set": {}}], rows, {"a": [50.0], "g": [0.95]})
    (job,) = make_jobs(plan, [1])
    done = outcome(job, [0.3, 0.9, 0.6, 0.7])
    for record, gamma in zip(done.history, (0.1, 0.97, 0.98, 0.2), strict=True):
        record["gamma"] = gamma
    accuracy, gamma = compute_results(plan, [done])
    assert (format_mean(accuracy), format_mean(gamma)) == ("70.00", "0.9750")
    assert (format_gap(gamma), has_large_gap(gamma)) == ("+0.0250", False)
    short = compute_results(plan, [outcome(job, [0.3])])[1]
    assert (format_mean(short), format_gap(short)) == ("-", "")  # its rounds were not run


def test_a_row_that_cannot_run_says_why():
    rows = [
        {"id": "b", "label": "B", "impossible": "needs a pretrained network", "set": {}},
        {"id": "a", "label": "A", "set": {}},
    ]
    plan = changed([{"id": "x", "label": "X", "set": {}}], rows, {"a": [50.0], "b": [60.0]})
    (job,) = make_jobs(plan, [1])
    assert job.name == "x/a/seed-1"
    impossible, result = compute_results(plan, [outcome(job, [0.5] * 4)])
    assert (format_mean(impossible), format_gap(impossible)) == ("-", "")
    assert format_gap(result) == "+0.00"
    text = to_markdown(plan, [impossible, result], ["steelyard"], ENVIRONMENT)
    assert "| X | B | 60 | - |  |  | needs a pretrained network |" in text
    assert "Reduced" not in text


def test_correlations_are_over_the_clients_of_all_runs(tmp_path):
    """Three clients of each run, with weights in proportion to sizes in one and not in the other."""
    columns = [
        {"id": "e1", "label": "E = 1", "set": {"local": {"epochs": 1}}},
        {"id": "e5", "label": "E = 5", "set": {"local": {"epochs": 5}}},
        {"id": "both", "label": "both", "pools": ["e1", "e5"]},
    ]
    plan = changed(columns, numbers={"a": [1.0, -0.5, 0.25]}, metric="correlation(size)")
    jobs = make_jobs(plan, [1])
    assert [job.name for job in jobs] == ["e1/a/seed-1", "e5/a/seed-1"]
    sizes = [10, 20, 60]
    outcomes = []
    for job, weights in zip(jobs, ([1, 2, 6], [6, 2, 1]), strict=True):
        path = tmp_path / job.name
        path.mkdir(parents=True)
        counts = [[size - 1, 1] for size in sizes]
        ids = ["0", "1", "2"]
        (path / "clients.json").write_text(
            json.dumps({"ids": ids, "sizes": sizes, "counts": counts})
        )
        records = [
            {"round": t, "timings": {"total": 1.0}, "weights": dict(zip(ids, weights, strict=True))}
            for t in (1, 2)
        ]
        outcomes.append(Outcome(job, path, History("x", records, path=path)))
    first, second, both = compute_results(plan, outcomes)
    wanted = np.corrcoef([2, 4, 12, 12, 4, 2], sizes * 2)[0, 1]
    assert first.mean == pytest.approx(1.0)
    assert second.mean == pytest.approx(np.corrcoef([12, 4, 2], sizes)[0, 1])
    assert both.mean == pytest.approx(wanted)
    assert format_mean(both) == f"{wanted:.3f}"


def test_an_average_column_is_the_mean_of_the_others():
    columns = [
        {"id": "x1", "label": "X1", "set": {"local": {"epochs": 1}}},
        {"id": "x2", "label": "X2", "set": {"local": {"epochs": 2}}},
        {"id": "y", "label": "Y", "set": {"local": {"epochs": 3}}},
        {"id": "mean", "label": "mean", "pools": ["x*"]},
    ]
    plan = changed(columns)
    jobs = make_jobs(plan, [1])
    assert len(jobs) == 3
    curves = [[0.5], [0.7], [0.1]]
    outcomes = [outcome(job, curve) for job, curve in zip(jobs, curves, strict=True)]
    assert [format_mean(result) for result in compute_results(plan, outcomes)] == [
        "50.00",
        "70.00",
        "10.00",
        "60.00",
    ]
    outcomes[1] = outcome(jobs[1], [], error="it broke")
    average = compute_results(plan, outcomes)[-1]
    assert (format_mean(average), dict(average.errors)) == ("failed", {1: "it broke"})


def test_seconds_are_compared_by_their_share():
    plan = changed(
        [{"id": "x", "label": "X", "set": {}}], None, {"a": [0.5]}, "mean(timings.aggregate,2-3)"
    )
    assert plan.measures_time
    (job,) = make_jobs(plan, [1])
    done = outcome(job, [0.3, 0.9, 0.6])
    for record, seconds in zip(done.history, (9.0, 0.1, 0.3), strict=True):
        record["timings"]["aggregate"] = seconds
    (result,) = compute_results(plan, [done])
    assert (format_mean(result), format_gap(result)) == ("0.2000", "0.4 x")
    assert not has_large_gap(result)  # another machine needs no explanation


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
    rows = list(csv.DictReader(io.StringIO(to_csv(plan, [first, second]))))
    assert [row["remark"] for row in rows] == 2 * ["subset: 200 samples, 4 classes"] + 2 * [""]
