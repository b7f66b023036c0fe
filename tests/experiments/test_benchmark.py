"""The benchmark: its file, its results as CSV, and what is said of them."""

from dataclasses import replace
from pathlib import Path
from statistics import mean

import pytest

from steelyard.core._errors import SteelyardError
from steelyard.experiments import _benchmark as bench
from steelyard.experiments._benchmark import Result, Rule, read_benchmark, read_results
from steelyard.experiments._jobs import Outcome
from steelyard.experiments._ranking import analyse, rank_rules
from steelyard.runs._history import History

RESULTS = Path(__file__).parent.parent.parent / "docs" / "results"
ISSUE_RULES = {
    *(
        "fedavg",
        "uniform",
        "fedprox",
        "scaffold",
        "feddyn",
        "fednova",
        "fedavgm",
        "fedadam",
        "fedadp",
    ),
    *(
        "fedawa",
        "fedawa-l",
        "ldawa",
        "feddisco",
        "pa3fed",
        "fedcos",
        "fedlaw",
        "geometric-median",
        "control",
    ),
}


def result(rule, setting, seed, value, error="", **scores):
    empty = dict.fromkeys(bench.SCORE_NAMES)
    return Result(
        Rule(rule, rule.title(), rule), setting, seed, empty | {"last10": value} | scores, error
    )


def test_our_file_has_seventeen_rules_a_control_and_six_settings():
    benchmark = read_benchmark()
    assert {rule.name for rule in benchmark.rules} == ISSUE_RULES
    assert [rule.name for rule in benchmark.rules if rule.is_control] == ["control"]
    assert len(benchmark.settings) == 6
    assert len(benchmark.seeds) == 5
    assert not set(benchmark.seeds) & set(benchmark.tuning_seeds)


def test_every_cell_is_a_valid_run_on_the_same_data():
    benchmark = read_benchmark()
    jobs = benchmark.jobs([1])
    assert len(jobs) == 18 * 6
    assert len({job.name for job in jobs}) == len(jobs)
    for job in jobs:
        assert job.config.rounds == 50
        assert job.config.data.name == "fashion-mnist"
        assert (
            job.config.proxy.per_class == 10
        )  # all rules are tested on what is left of the test set
    control = next(job.config for job in jobs if job.labels["rule"] == "control")
    assert control.local.batch_seed == 1
    assert control.weighting == "fedavg"


def test_the_algorithm_of_a_tuned_rule_is_one_of_those_tried():
    benchmark = read_benchmark()
    tuned = {rule.name: rule for rule in benchmark.rules if rule.tried}
    for rule in tuned.values():
        assert len(rule.tried) == 3  # the same budget for each
        configs = [
            benchmark.config(Rule("x", "x", text), benchmark.settings[0]) for text in rule.tried
        ]
        assert benchmark.config(rule, benchmark.settings[0]) in configs
    candidates = benchmark.candidates()
    assert len(candidates.rules) == 3 * len(tuned)
    assert candidates.seeds == benchmark.tuning_seeds


def test_the_tuning_on_record_chose_the_algorithm_of_every_tuned_rule():
    benchmark = read_benchmark()
    results = read_results(RESULTS / "benchmark-tuning.csv")
    page = (RESULTS / "benchmark-tuning.md").read_text()
    assert {result.seed for result in results} == set(benchmark.tuning_seeds)
    scores = {}
    for result in results:
        accuracy = 0.0 if result.error else result.scores["last10"]
        scores.setdefault(result.rule.algorithm, []).append(accuracy)
    for rule in benchmark.rules:
        if rule.tried:
            for algorithm in rule.tried:
                assert len(scores[algorithm]) == 3 * 2
                (row,) = [line for line in page.splitlines() if f"| `{algorithm}` |" in line]
                shown = row.split("|")[-2].strip().strip("*")
                assert shown == f"{100 * mean(scores[algorithm]):.2f}"
            best = max(rule.tried, key=lambda algorithm: mean(scores[algorithm]))
            setting = benchmark.settings[0]
            chosen = benchmark.config(Rule("x", "x", best), setting)
            assert chosen == benchmark.config(rule, setting)


def test_a_row_of_ones_own_as_text():
    rule = bench.parse_rule_text("My rule: fedadp:alpha=3 client=fedcos:mu=0.02 local.lr=0.1")
    assert (rule.name, rule.label) == ("my-rule", "My rule")
    assert rule.raw == {
        "weighting": "fedadp:alpha=3",
        "client": "fedcos:mu=0.02",
        "local": {"lr": 0.1},
    }
    alone = read_benchmark().with_rules([rule], alone=True)
    assert {job.labels["rule"] for job in alone.jobs([1])} == {"my-rule"}


@pytest.mark.parametrize(
    "text", ["", "fedadp", "mine:", "mine: fedadp client", "mine: 'fedadp", ": fedadp"]
)
def test_a_row_that_cannot_be_read_is_refused(text):
    with pytest.raises(SteelyardError):
        bench.parse_rule_text(text)


def test_a_row_with_a_name_that_is_taken_is_refused():
    with pytest.raises(SteelyardError, match="fedadp"):
        read_benchmark().with_rules([bench.parse_rule_text("FedAdp: fedadp")], alone=True)


def test_rules_and_settings_by_name():
    chosen = read_benchmark().select(["fedadp", "fedavg"], ["quantity"])
    assert [job.name for job in chosen.jobs([7])] == [
        "quantity/fedavg/seed-7",
        "quantity/fedadp/seed-7",
    ]
    with pytest.raises(SteelyardError, match="fedadp"):
        read_benchmark().select(["fedapd"])
    with pytest.raises(SteelyardError, match="quantity"):
        read_benchmark().select(settings=["quantty"])


@pytest.mark.parametrize("key", ["title", "seeds", "reference", "base", "setting", "rule"])
def test_a_file_that_lacks_a_key_says_which(tmp_path, key):
    lines = bench.DEFINITION.read_text().splitlines()
    head = {"base": "[base]", "setting": "[[setting]]", "rule": "[[rule]]"}.get(key)
    kept = [line.replace(head, head.replace(key, "other")) if head else line for line in lines]
    kept = [line for line in kept if head or not line.startswith(f"{key} =")]
    path = tmp_path / "own.toml"
    path.write_text("\n".join(kept))
    with pytest.raises(SteelyardError, match=key):
        read_benchmark(path)


def test_results_are_read_as_they_were_written(tmp_path):
    benchmark = read_benchmark().select(["fedavg", "control"], ["quantity"])
    records = [
        {
            "round": n,
            "accuracy": 0.1 * n,
            "client_accuracy": {"a": 0.1, "b": 0.3},
            "timings": {"aggregate": 0.5},
        }
        for n in range(1, 10)
    ]
    good, bad = (
        Outcome(job, tmp_path, history, error)
        for job, history, error in zip(
            benchmark.jobs([1]),
            [History("h", records), None],
            [None, "the loss is not finite"],
            strict=True,
        )
    )
    (tmp_path / "environment.json").write_text('{"processor": "a fast one"}')
    results = bench.make_results(benchmark, [good, bad])
    assert results[0].scores == {
        "last10": pytest.approx(0.5),
        "worst_client": pytest.approx(0.1),
        "client_q10": pytest.approx(0.12),
        "rounds": 9,
        "server_seconds": 4.5,
        "void_rounds": 0,
    }
    assert results[1].scores == dict.fromkeys(bench.SCORE_NAMES)
    assert results[1].error == "the loss is not finite"
    path = tmp_path / "results.csv"
    path.write_text(bench.format_results(results))
    again = bench.read_results(path)
    assert [one.scores for one in again] == [pytest.approx(one.scores) for one in results]
    assert [(one.rule.name, one.setting, one.seed, one.error) for one in again] == [
        ("fedavg", "quantity", 1, ""),
        ("control", "quantity", 1, "the loss is not finite"),
    ]
    assert again[1].rule.is_control
    rule, setting = benchmark.rules[0], benchmark.settings[0]
    assert again[0].fingerprint == benchmark.fingerprint(rule, setting)
    assert again[0].fingerprint != again[1].fingerprint  # other batches
    assert again[0].processor == "a fast one"


def test_a_damaged_line_is_named(tmp_path):
    path = tmp_path / "results.csv"
    path.write_text(
        bench.format_results([result("fedavg", "quantity", 1, 0.5)]).replace("0.5", "half")
    )
    with pytest.raises(SteelyardError, match="line 2"):
        bench.read_results(path)


def test_a_new_result_replaces_an_old_one():
    old = [result("fedavg", "quantity", 1, 0.5), result("fedavg", "quantity", 2, 0.5)]
    new = [result("fedavg", "quantity", 2, 0.7), result("mine", "quantity", 2, 0.9)]
    combined = bench.combine_results(old, new)
    assert [one.scores["last10"] for one in combined] == [0.5, 0.7, 0.9]


def some_results():
    """FedAdp gains much and steadily, FedAWA a little and by chance, L-DAWA fails once."""
    rows = []
    for number, setting in enumerate(["dirichlet-0.1", "quantity"]):
        for seed in (1, 2, 3, 4):
            base = 0.7 + 0.1 * number + 0.01 * seed
            rows.append(result("fedavg", setting, seed, base))
            rows.append(result("fedadp", setting, seed, base + 0.05 + 0.0001 * seed))
            rows.append(result("fedawa", setting, seed, base + (0.02 if seed % 2 else -0.015)))
            has_failed = seed == 3 and number == 0
            rows.append(
                result(
                    "ldawa",
                    setting,
                    seed,
                    None if has_failed else base + 0.1,
                    "it diverged" * has_failed,
                )
            )
    return rows


def test_what_is_said_of_results():
    analysis = analyse(read_benchmark(), some_results(), ["last10", "rounds"])
    scores = analysis.scores["dirichlet-0.1"]["last10"]
    assert scores["fedavg"].difference is None
    assert scores["fedavg"].mean == pytest.approx(0.725)
    assert scores["fedadp"].difference.mean == pytest.approx(0.05025)
    assert scores["fedadp"].is_told_apart
    assert not scores["fedawa"].is_told_apart
    # L-DAWA's p-value is smaller: it comes first, FedAdp's is the smallest of the two that are
    # left.
    assert scores["fedadp"].p_corrected == pytest.approx(2 * scores["fedadp"].difference.p_value)
    assert scores["ldawa"].count == 3
    # Its three other runs gain steadily, and say nothing of the one that failed.
    assert scores["ldawa"].failed == 1
    assert scores["ldawa"].difference.p_value < 0.001
    assert not scores["ldawa"].is_told_apart
    assert analysis.scores["quantity"]["last10"]["ldawa"].is_told_apart
    assert analysis.scores["quantity"]["rounds"]["fedadp"].mean is None
    assert [rule.name for rule in analysis.rules] == ["fedavg", "fedadp", "fedawa", "ldawa"]
    # It is the best where no run failed, and the last where one did.
    assert analysis.ranks.by_rule["ldawa"] == (4 + 1) / 2
    assert analysis.ranks.by_rule["fedadp"] == (1 + 2) / 2


def test_results_are_grouped_by_processor():
    results = [
        replace(one, processor="" if one.rule.name == "fedavg" else "b") for one in some_results()
    ]
    groups = analyse(read_benchmark(), results, ["last10"]).processors
    names = {name: [rule.name for rule in rules] for name, rules in groups.items()}
    assert names == {"": ["fedavg"], "b": ["fedadp", "fedawa", "ldawa"]}


def test_ranks_by_hand():
    columns = [
        {"a": 0.9, "b": 0.8, "c": 0.7},
        {"a": 0.9, "b": 0.8, "c": 0.8},
        {"a": 0.5, "b": 0.6, "c": None},
    ]
    ranks = rank_rules(["a", "b", "c"], columns)
    assert dict(ranks.by_rule) == pytest.approx(
        {"b": (2 + 2.5 + 1) / 3, "a": 4 / 3, "c": (3 + 2.5 + 3) / 3}
    )
    assert next(iter(ranks.by_rule)) == "a"
    # Demsar's Table 5: q = 2.343 for three classifiers at 5 %.
    assert ranks.critical_difference == pytest.approx(2.343 * (3 * 4 / 18) ** 0.5, abs=1e-3)
    lower = rank_rules(["a", "b"], [{"a": 10, "b": 20}], higher=False)
    assert dict(lower.by_rule) == {"a": 1, "b": 2}
    assert lower.critical_difference is None
    assert rank_rules([], []).by_rule == {}


def test_critical_differences_are_those_of_demsar():
    """Table 5 of the paper: k = 2, 5, 10 at 5 %."""
    for count, q in ((2, 1.960), (5, 2.728), (10, 3.164)):
        names = [str(number) for number in range(count)]
        column = {name: float(name) for name in names}
        ranks = rank_rules(names, [column] * 4)
        assert ranks.critical_difference == pytest.approx(
            q * (count * (count + 1) / 24) ** 0.5, rel=1e-3
        )
