"""Measures of one run, by hand."""

import math

import pytest

from steelyard.core._errors import SteelyardError
from steelyard.experiments import scores
from steelyard.runs._history import History
from steelyard.runs._monitor import Monitor


def history(*accuracies, **columns):
    records = [
        {"round": n, "accuracy": x, "timings": {"total": 0.5}} for n, x in enumerate(accuracies, 1)
    ]
    for name, values in columns.items():
        for record, value in zip(records, values, strict=True):
            record[name] = value
    return History("h", records)


def test_last_best_and_final():
    curve = history(*(n / 100 for n in range(1, 31)), 0.05)
    assert scores.last(curve) == pytest.approx((sum(range(22, 31)) / 100 + 0.05) / 10)
    assert scores.best(curve) == 0.3
    assert scores.best_mean(curve) == pytest.approx(sum(range(21, 31)) / 1000)
    assert scores.final(curve) == 0.05
    assert scores.seconds(curve) == 15.5
    assert scores.last(history(0.1, 0.3)) == pytest.approx(0.2)  # fewer than ten: all of them


def test_rounds_that_were_not_evaluated_do_not_count():
    sparse = history(None, 0.2, None, 0.4, None)
    assert scores.last(sparse) == pytest.approx(0.3)
    assert scores.final(sparse) == 0.4
    assert scores.rounds_to(sparse, 0.3) == 4
    never = history(None, None)
    measures = [metric for metric in scores.SCORES.values() if metric.is_of_curve]
    assert len(measures) == 10
    assert [metric.of(never, 0.5) for metric in measures] == [None] * 10
    assert scores.seconds(History("h", [{"round": 1}])) is None


def test_the_worst_client_and_the_tenth_of_them():
    by_client = [None] * 12
    by_client[0] = {str(k): 0.0 for k in range(11)}  # too long ago
    by_client[4] = {str(k): k / 10 for k in range(11)}
    by_client[11] = {str(k): 0.5 + k / 20 for k in range(11)} | {"no data": None}
    curve = history(*[0.5] * 12, client_accuracy=by_client)
    assert scores.client_accuracy(curve, 0.0) == pytest.approx((0.0 + 0.5) / 2)
    assert scores.SCORES["client_q10"].of(curve, None) == pytest.approx((0.1 + 0.55) / 2)
    seldom = history(*[0.5] * 12, client_accuracy=[by_client[4], *[None] * 11])
    assert scores.SCORES["worst_client"].of(seldom, None) == 0.0
    assert scores.client_accuracy(seldom, 0.5) == 0.5
    assert scores.client_accuracy(history(0.5), 0.0) is None


def test_seconds_of_the_server_and_void_rounds():
    curve = history(0.1, 0.2, 0.3, void=[None, "no client is left", None])
    for record in curve.records:
        record["timings"]["aggregate"] = 0.25
    assert scores.server_seconds(curve) == 0.75
    assert scores.void_rounds(curve) == 1
    assert scores.server_seconds(history(0.1)) is None


def test_measures_of_time_and_clients_are_the_same_whatever_is_monitored():
    loss = History("h", [{"round": 1, "loss": 0.5}], monitor=Monitor("loss", "min"))
    for name in ("seconds", "server_seconds", "void_rounds", "worst_client", "client_q10"):
        assert scores.find_score(name, [loss]) is scores.SCORES[name]
    assert scores.find_score("last10", [loss]).unit == "loss"


def test_communication_saved():
    reference, ours = history(0.1, 0.3, 0.2, 0.5, 0.4), history(0.4, 0.45, 0.6)
    assert scores.speedup(ours, reference) == 4.0  # 0.4: first in round 4 and in round 1
    assert scores.saved(ours, reference) == 0.75
    assert scores.speedup(ours, reference, 0.45) == 2.0
    assert scores.speedup(ours, ours) == scores.speedup(reference, reference) == 1.0
    assert scores.saved(reference, ours, 0.4) == -3.0
    assert scores.speedup(ours, reference, 0.9) is None
    assert scores.saved(ours, history(None)) is None


def test_stability_by_hand():
    made = scores.stability(history(0.0, 0.4, 0.2, 0.6), window=2)
    assert made.deviation == pytest.approx(math.sqrt((0.09 + 0.01 + 0.01 + 0.09) / 4))
    assert made.moving == pytest.approx((0.2 + 0.1 + 0.2) / 3)
    assert made.absolute == pytest.approx(0.2)
    assert made.range == pytest.approx(0.6)
    assert made.change == pytest.approx(0.4)


def test_stability_of_the_loss_and_of_short_curves():
    falling = history(0.1, 0.2, 0.3, loss=[3.0, 1.0, 2.0])
    assert scores.stability(falling, "loss").range == 2.0
    assert scores.stability(falling).moving == scores.stability(falling).deviation  # one window
    assert scores.stability(history(0.1)) is None
    with pytest.raises(SteelyardError, match="window=1: use at least 2"):
        scores.stability(falling, window=1)


def test_metrics_by_name():
    curve = history(0.1, 0.5)
    assert scores.find_score("rounds").of(curve, 0.4) == 2
    assert scores.find_score("range").of(curve, None) == pytest.approx(0.4)
    with pytest.raises(SteelyardError, match="no target is given: use --target"):
        scores.find_score("rounds").of(curve, None)
    with pytest.raises(SteelyardError, match="metric 'accuracy': unknown: use one of last10, best"):
        scores.find_score("accuracy")


def test_the_mean_of_a_recorded_number_over_a_window_of_rounds():
    gammas = [0.5, 0.9, None, 0.7, 0.1]
    curve = history(*[0.5] * 5, gamma=gammas)
    assert scores.find_score("mean(gamma,2-4)").of(curve, None) == pytest.approx(0.8)
    assert scores.find_score("mean(gamma)").of(curve, None) == pytest.approx(2.2 / 4)
    assert scores.find_score("mean(gamma,3-3)").of(curve, None) is None
    assert scores.find_score("mean(gamma,90-110)").of(curve, None) is None
    assert scores.find_score("mean(timings.total, 1-2)").of(curve, None) == 0.5


def test_the_mean_of_a_number_that_is_computed_when_a_record_is_read():
    curve = history(0.1, 0.2, update_divergence=[1.0, 4.0], lr=[0.5, 1.0])
    assert scores.find_score("mean(gradient_divergence)").of(curve, None) == 3.0


def test_the_stability_of_the_loss_on_the_data_of_clients():
    losses = [{"a": 1.0, "b": 5.0}, {"a": 3.0, "b": None}, {"a": 2.0, "b": 6.0, "c": 9.0}]
    curve = history(0.1, 0.2, 0.3, client_loss=losses)
    # Client a has 1, 3, 2, client b has 5, 6; client c has one value, of which nothing varies.
    assert scores.find_score("range(client_loss)").of(curve, None) == pytest.approx((2 + 1) / 2)
    assert scores.find_score("change(client_loss.a)").of(curve, None) == 2.0
    assert scores.find_score("deviation(client_loss.b)").of(curve, None) == 0.5
    assert scores.find_score("mean(client_loss)").of(curve, None) == pytest.approx(
        (2 + 5.5 + 9) / 3
    )
    measures = scores.stability(curve, "client_loss.a", window=2)
    assert measures == scores.stability(history(1.0, 3.0, 2.0), window=2)
    assert scores.stability(curve, "client_loss").range == pytest.approx(1.5)
    assert scores.find_score("range(client_loss)").higher is False


def test_how_a_score_of_a_recorded_number_is_shown():
    accuracy = scores.find_score("mean(client_accuracy,1-2)")
    assert (accuracy.percent, accuracy.higher, accuracy.unit) == (True, True, "points")
    assert accuracy.title == "mean of client_accuracy, rounds 1 to 2"
    loss = scores.find_score("mean(loss)")
    assert (loss.percent, loss.higher, loss.digits) == (False, False, 4)


@pytest.mark.parametrize(
    "text", ["mean()", "median(gamma)", "mean(gamma,9-3)", "mean(gamma,x)", "mean(nothing)"]
)
def test_a_score_of_a_recorded_number_that_cannot_be_read(text):
    runs = [history(0.1, gamma=[0.5])]
    with pytest.raises(SteelyardError, match="metric '"):
        scores.find_score(text, runs)
