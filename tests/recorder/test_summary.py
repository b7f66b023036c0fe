"""The summary of a replay, and which rules can be replayed."""

import numpy as np
import pytest

import steelyard
from steelyard.metrics import METRICS, are_valid_values, valid_number
from steelyard.recorder import Replay, ReplayedRound
from steelyard.recorder._replay import find_replayable_rules, rank_correlation, replay_rules
from tests.report.runs import write_recorded_run


def make_round(number, weights, norm=1.0, cosine=1.0, **options):
    squares = sum(weight**2 for weight in weights.values())
    effective_clients = 1 / squares if squares else 0.0
    return ReplayedRound(number, weights, effective_clients, norm, cosine, **options)


@pytest.fixture
def result():
    run = [make_round(k, {"a": 0.5, "b": 0.3, "c": 0.2}, norm=2.0) for k in (1, 2, 3)]
    other = [
        make_round(1, {"a": 0.0, "b": 0.4, "c": 0.6}, 1.0, 0.5, muted=("a",)),
        make_round(2, {"a": 0.0, "b": 0.7, "c": 0.3}, 3.0, None, muted=("a",)),
        make_round(
            3, {"a": 0.0, "b": 0.0, "c": 0.0}, 0.0, None, void="nothing", refused={"b": "why"}
        ),
    ]
    return Replay("test", {"run": run, "other": other})


def test_the_summary_of_a_rule(result):
    run, other = result.summarize()
    assert (run.rule, run.top_client, run.relative_step) == ("run", "a", 1.0)
    assert run.agreement == pytest.approx(1.0)
    assert run.muted == {}
    assert other.relative_step == pytest.approx((0.5 + 1.5 + 0.0) / 3)
    assert other.cosine == 0.5  # rounds without a cosine do not count
    assert other.top_client == "b"
    assert other.top_share == pytest.approx(1.1 / 3)
    assert other.muted == {"a": 1.0}  # a void round mutes nobody
    assert other.refused == {"b": "why"}
    assert other.void_rounds == 1
    assert result.clients == ("a", "b", "c")


def test_agreements_are_rank_correlations(result):
    matrix = result.agreements(["run", "other"])
    expected = np.mean(
        [rank_correlation([3, 2, 1], [0, 4, 6]), rank_correlation([3, 2, 1], [0, 6, 4])]
    )
    assert matrix[0][1] == matrix[1][0] == pytest.approx(expected)
    assert matrix[0][0] == pytest.approx(1.0)


def test_a_rule_that_weighs_all_alike_has_no_top_client():
    rounds = [make_round(1, {"a": 0.5, "b": 0.5})]
    (summary,) = Replay("test", {"run": rounds}).summarize()
    assert summary.top_client is None
    assert summary.top_share == 0.5
    assert summary.agreement is None


def test_every_rule_can_be_replayed_or_says_why_not(tmp_path):
    run = write_recorded_run(tmp_path / "run", rounds=3)
    names, reasons = find_replayable_rules(run)
    assert {"fedavg", "fedadp", "fedawa", "krum"} <= set(names)
    assert {"fedlaw", "median", "ldawa", "pa3fed"} <= set(reasons)
    for name, reason in reasons.items():
        assert reason.startswith(f"{name}: ")
    assert len(replay_rules(run, names).rounds) == 1 + len(names)


def test_a_failing_rule_can_be_left_out(tmp_path):
    run = write_recorded_run(tmp_path / "run", rounds=3)
    reports = []
    failures = {}
    result = replay_rules(run, ["fedadp", "fedlaw"], reports.append, failures)
    assert list(result.rounds) == ["run", "fedadp"]
    assert reports == ["fedadp", "fedlaw"]
    assert "proxy data" in failures["fedlaw"]
    with pytest.raises(steelyard.SteelyardError, match="proxy data"):
        replay_rules(run, ["fedadp", "fedlaw"])


@pytest.mark.parametrize("name", sorted(name for name in METRICS if not METRICS[name].is_per_class))
@pytest.mark.parametrize(
    "value", [0.0, 1.0, 1.5, -1.0, -0.5, 1e-300, 1e300, np.nan, np.inf, -np.inf, 3.0]
)
def test_a_column_is_valid_if_every_value_is(name, value):
    expected = valid_number(name, value, needs_whole_examples=True) is not None
    assert are_valid_values(name, np.array([1.0, value, 2.0])) == expected


@pytest.mark.parametrize(
    ("rows", "is_valid"),
    [
        ([[1, 2], [0, 3]], True),
        ([[1, 2], [0, 0]], False),
        ([[1, -2], [0, 3]], False),
        ([[1, np.nan], [0, 3]], False),
        ([1, 2], False),
    ],
)
def test_histograms_are_checked_together(rows, is_valid):
    assert are_valid_values("label_hist", np.array(rows, dtype=float)) == is_valid
