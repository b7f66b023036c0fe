"""Critical periods after the fact: the same as in the run, and the losses in and out of them."""

import numpy as np
import pytest

import steelyard
from steelyard.core._errors import SteelyardError
from steelyard.diagnostics._periods import (
    Periods,
    critical_periods,
    detect,
    loss_deviation,
    stability,
)
from steelyard.diagnostics._recorded import series
from steelyard.experiments import scores
from steelyard.runs._history import History
from tests.sim.runs import clients, simulate


def made(losses, fgn=None, **columns):
    """A history of clients' losses, NaN for absent."""
    records = []
    for number, row in enumerate(losses, 1):
        reported = {f"c{k}": loss for k, loss in enumerate(row) if not np.isnan(loss)}
        records.append({"round": number, "reported": {"loss": reported}})
    for name, values in {"fgn": fgn, **columns}.items():
        for record, value in zip(records, values if values is not None else [], strict=False):
            record[name] = value
    return History("made", records)


@pytest.mark.parametrize("detector", ["eq6", "criticalfl_window"])
def test_the_record_repeats_what_the_rule_saw(detector):
    rule = steelyard.Algorithm(f"pa3fed:detector={detector}")
    history = simulate(rule, rounds=24, metrics=("num_examples",), participation={"share": 0.5})
    periods = critical_periods(history, detector)
    assert periods.critical.tolist() == [record["critical"] for record in history]
    name = "fgn" if detector == "eq6" else "fgn_mean"
    assert (periods.fgn == series(history, name).values).all()
    assert 0 < periods.critical.sum() < 24


def test_a_run_without_a_detector_is_looked_at_by_both():
    history = simulate("fedavg", rounds=3, metrics=("grad_norm",))
    assert critical_periods(history).rounds.tolist() == [1, 2, 3]
    assert critical_periods(
        history, "criticalfl_window"
    ).critical.all()  # the first five checks always are
    median = critical_periods(history, steelyard.fgn_increase(average="median")).fgn
    norms = [sorted(record["reported"]["grad_norm"].values()) for record in history]
    assert median == pytest.approx([(row[2] + row[3]) / 2 for row in norms])


def test_equation_6_by_hand():
    fgn = [1.0, 1.5, 1.51, 1.6, 1.2, 1.2]
    assert detect(fgn).tolist() == [True, True, False, True, False, False]
    assert detect(fgn, "eq6:delta=0.1").tolist() == [True, True, False, False, False, False]


def test_spans():
    rounds = np.array([1, 2, 3, 5, 6, 9])
    flags = np.array([True, True, False, True, False, True])
    assert Periods(rounds, np.ones(6), flags).spans == [(1, 2), (5, 5), (9, 9)]
    assert Periods(rounds, np.ones(6), ~flags).spans == [(3, 3), (6, 6)]


def test_loss_deviation_by_hand():
    nan = np.nan
    losses = [[1.0, 6.0, nan], [3.0, nan, 2.0], [2.0, 1.0, nan], [5.0, 4.0, nan]]
    history = made(losses, fgn=[1.0, 2.0, 2.0, 2.0])
    assert critical_periods(history).critical.tolist() == [True, True, False, False]
    over_rounds = loss_deviation(history)
    assert over_rounds.critical == pytest.approx(1.0)  # client 0 only: the others are seen once
    assert over_rounds.rest == pytest.approx((1.5 + 1.5) / 2)
    over_clients = loss_deviation(history, over="clients")
    assert over_clients.critical == pytest.approx((2.5 + 0.5) / 2)
    assert over_clients.rest == pytest.approx((0.5 + 0.5) / 2)
    everywhere = Periods(np.arange(1, 5), np.ones(4), np.ones(4, dtype=bool))
    assert loss_deviation(history, everywhere).rest is None


def test_stability_is_the_labs():
    history = simulate("fedavg", rounds=6, test=clients(1, seed=9)["client-0"])
    assert stability(history) == scores.stability(history)
    assert stability(history, "loss", 3) == scores.stability(history, "loss", 3)
    assert stability(history, "loss", 3) != stability(history, "loss", 4)


def test_errors_are_one_sentence():
    history = simulate("fedavg", rounds=1)
    with pytest.raises(SteelyardError, match="'fgn': not on record"):
        critical_periods(history)
    with pytest.raises(SteelyardError, match=r"fedavg.*not a detector.*angle_gap"):
        critical_periods(history, "fedavg")
    with pytest.raises(SteelyardError, match="NaN or infinity: leave such rounds out"):
        detect([1, np.nan, 2])
    with pytest.raises(SteelyardError, match="over='time'"):
        loss_deviation(history, over="time")
    with pytest.raises(SteelyardError, match=r"'reported.loss': not on record"):
        loss_deviation(simulate("fedavg", rounds=1, metrics=("grad_norm",)))


def test_loss_deviation_takes_the_global_models_loss_where_that_is_all_there_is():
    trained = made([[1.0, 2.0], [3.0, 2.0], [5.0, 9.0]], fgn=[1.0, 2.0, 1.0])
    records = [
        {**record, "reported": {"loss_before": record["reported"]["loss"]}} for record in trained
    ]
    assert loss_deviation(History("h", records)) == loss_deviation(trained)
