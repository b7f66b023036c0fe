"""Reading what a run has on record."""

import json

import numpy as np
import pytest

import steelyard
from steelyard.core._errors import SteelyardError
from steelyard.core._round_record import ROUND_RECORD
from steelyard.diagnostics._recorded import SERIES, by_client, client_names, curves, names, series
from steelyard.runs._history import History
from tests.sim.runs import clients, simulate


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "pa3"
    test = clients(1, seed=9)["client-0"]
    algorithm = steelyard.Algorithm("pa3fed|shrink:0.99")
    simulate(
        algorithm,
        rounds=5,
        test=test,
        evaluate_every=2,
        evaluate_train=1,
        evaluate_fisher=1,
        participation={"share": 0.5},
        out=out,
    )
    return out


def test_every_name_with_a_meaning_is_read_from_a_directory_and_from_memory(run):
    memory = History.read(run)
    of_others = {
        *(
            "gamma_product",
            "tau_eff",
            "withstands",
            "shortened",
            "coherence_across",
        ),  # of other rules
        *("mean_direction_cosines", "simulated_duration"),  # of FedCos, and of slow clients
        "optimal_weights_loss",  # of a callback
    }
    for name in SERIES.keys() - of_others:
        rounds, values = series(run, name)
        assert len(rounds) == len(values) > 0, name
        assert np.isfinite(values).all(), name
        assert (series(memory, name).values == values).all()
    geometry = {key for key, entry in ROUND_RECORD.items() if entry.needs_gram}
    assert geometry <= {*names(run), *client_names(run)}


def test_values_are_those_on_record(run):
    lines = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    assert series(run, "coherence").values.tolist() == [line["coherence"] for line in lines]
    assert series(run, "coherence").rounds.tolist() == [1, 2, 3, 4, 5]
    assert series(run, "timings.train").values.tolist() == [
        line["timings"]["train"] for line in lines
    ]
    assert series(run, "critical").values.tolist() == [float(line["critical"]) for line in lines]
    expected = [line["update_divergence"] / line["lr"] for line in lines]
    assert series(run, "gradient_divergence").values.tolist() == expected
    one = next(iter(lines[0]["weights"]))
    weights = [line["weights"][one] for line in lines if one in line["weights"]]
    assert series(run, f"weights.{one}").values.tolist() == weights


def test_rounds_that_were_not_evaluated_are_left_out(run):
    assert series(run, "accuracy").rounds.tolist() == [2, 4, 5]


def test_by_client(run):
    table = by_client(run, "weights")
    assert table.clients == tuple(f"client-{k}" for k in range(6))
    assert table.values.shape == (5, 6)
    assert (np.isnan(table.values).sum(axis=1) == 3).all()
    assert np.nansum(table.values, axis=1) == pytest.approx(0.99)
    assert by_client(run, "reported.loss_before").values.shape == (5, 6)
    assert {
        "weights",
        "norms",
        "cosines",
        "alpha",
        "reported.loss_before",
        "reported.grad_norm",
    } <= set(client_names(run))
    assert "timings" not in client_names(run)


def test_what_clients_found_together_is_a_series_and_no_table_by_client():
    history = History(
        "h",
        [{"round": 1, "weights": {"a": 1.0}, "client_evaluation": {"accuracy": 0.5, "loss": 2.0}}],
    )
    assert client_names(history) == ["weights"]
    assert names(history) == ["client_evaluation.accuracy", "client_evaluation.loss"]
    assert series(history, "client_evaluation.accuracy").values.tolist() == [0.5]


def test_clients_are_in_the_order_of_their_numbers():
    history = History("h", [{"round": 1, "weights": {"10": 0.1, "b.1": 0.2, "9": 0.3, "a": 0.4}}])
    table = by_client(history, "weights")
    assert table.clients == ("9", "10", "a", "b.1")
    assert table.values.tolist() == [[0.3, 0.1, 0.4, 0.2]]
    assert series(history, "weights.b.1").values.tolist() == [0.2]
    assert table.columns({9: 1, "10": 2, "a": 3, "b.1": 4}).tolist() == [1, 2, 3, 4]
    with pytest.raises(SteelyardError, match=r"'b\.1' has no number"):
        table.columns({9: 1, 10: 2, "a": 3})


def test_an_unknown_name_lists_what_there_is(run):
    with pytest.raises(
        SteelyardError, match=r"series 'coherense': not on record .* it has .*coherence"
    ):
        series(run, "coherense")
    with pytest.raises(SteelyardError, match=r"'weight': not on record .* it has weights, .*norms"):
        by_client(run, "weight")
    with pytest.raises(
        SteelyardError, match="it needs a rule that keeps curves: fedlaw:trace=true"
    ):
        curves(run)
    plain = simulate(rounds=1)
    with pytest.raises(
        SteelyardError, match=r"'fgn': not on record in fedavg: it needs metrics=\('grad_norm'"
    ):
        series(plain, "fgn")
    with pytest.raises(SteelyardError, match="it needs a rule that shrinks"):
        series(plain, "shrinking_ratio")


def test_curves_of_a_round():
    options = {"rounds": 2, "clients": 3, "proxy": {"per_class": 2}, "executor": "serial"}
    history = steelyard.simulate(
        "fedlaw:epochs=4,trace=true", "digits", "mlp:hidden=[4]", **options
    )
    trace = curves(history)
    assert trace == history.records[-1]["trace"]
    assert trace["epoch"] == [1, 2, 3, 4]
    assert trace["gamma"][-1] == pytest.approx(series(history, "gamma").values[-1], rel=1e-4)
    assert set(trace["lambda"]) == {"0", "1", "2"}
    assert curves(history, 1) == history.records[0]["trace"]
    with pytest.raises(SteelyardError, match="round=9: has no curves: use one of 1, 2"):
        curves(history, 9)


def test_a_directory_without_rounds(tmp_path):
    with pytest.raises(SteelyardError, match="holds no rounds"):
        series(tmp_path, "loss")
