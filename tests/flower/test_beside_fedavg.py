"""Six things stock FedAvg does with a bad reply, each beside what we do. The first half of each test is Flower's."""

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from steelyard.flower import Steelyard, to_record, to_state_dict
from steelyard.runs._directory import read_log
from steelyard.sim._simulator import RunStopped
from tests.flower.grid import LocalGrid

START = {"w": torch.zeros(4), "count": torch.tensor(5)}
GIVEN = {"fraction_evaluate": 0.0, "min_train_nodes": 3, "min_available_nodes": 3}


def clients(change=None, start=START):
    """Three clients that move w by 1, 2 and 3; `change(number, arrays, metrics)` makes one of them misbehave."""
    app = ClientApp()

    @app.train()
    def train(message, context):
        number = context.node_config["partition-id"]
        arrays = message.content["arrays"].to_torch_state_dict()
        made = {
            name: tensor + (number + 1 if name != "count" else 13)
            for name, tensor in arrays.items()
        }
        arrays, metrics = (
            {name: tensor.numpy() for name, tensor in made.items()},
            {"num-examples": 10, "loss": 0.5},
        )
        if change is not None:
            change(number, arrays, metrics)
        record = ArrayRecord({name: Array(np.asarray(values)) for name, values in arrays.items()})
        reply = RecordDict({"arrays": record, "metrics": MetricRecord(metrics)})
        reply["who"] = ConfigRecord({"partition-id": number})
        return Message(reply, reply_to=message)

    return app


def stock(change=None, start=START, **options):
    return FedAvg(**GIVEN).start(
        LocalGrid(clients(change), 3, **options), to_record(start), num_rounds=1, timeout=5
    )


def ours(tmp_path, change=None, start=START, rounds=1, patience=5, **options):
    made = Steelyard("uniform", **GIVEN, out=tmp_path, patience=patience)
    result = made.start(
        LocalGrid(clients(change), 3, **options), to_record(start), num_rounds=rounds, timeout=0.2
    )
    return to_state_dict(result.arrays), read_log(tmp_path)


def only(number, act):
    def change(who, arrays, metrics):
        if who == number:
            act(arrays, metrics)

    return change


def test_nan(tmp_path):
    bad = only(1, lambda arrays, metrics: arrays.update(w=np.full(4, np.nan, np.float32)))
    assert np.isnan(stock(bad).arrays["w"].numpy()).all()
    model, (record,) = ours(tmp_path, bad)
    # Clients 0 and 2 are left. The guard measures two clients without a past by the shorter update:
    # 3 is cut to 2.
    assert torch.equal(model["w"], torch.full((4,), 1.5))
    assert record["quarantined"] == {"1": "NaN or infinity in its parameters"}
    assert record["weights"] == {"0": 0.5, "2": pytest.approx(0.5 * 2 / 3)}


def test_a_wrong_shape(tmp_path, monkeypatch):
    bad = only(2, lambda arrays, metrics: arrays.update(w=np.full(1, 100.0, np.float32)))
    monkeypatch.setattr(
        "random.sample", lambda nodes, count: nodes[:count]
    )  # were it first, the run would end
    mean = stock(bad).arrays["w"].numpy()
    assert mean.shape == (4,)
    assert mean[0] > 30  # one number, broadcast into the mean
    model, (record,) = ours(tmp_path, bad)
    assert torch.equal(model["w"], torch.full((4,), 1.5))
    assert record["quarantined"] == {"2": "'w' has shape (1,), expected (4,)"}


def test_one_more_metric(tmp_path):
    extra = only(2, lambda arrays, metrics: metrics.update(temperature=36.6))
    with pytest.raises(Exception, match="same keys"):
        stock(extra)
    model, (record,) = ours(tmp_path, extra)
    assert torch.equal(model["w"], torch.full((4,), 2.0))
    assert record["quarantined"] == {}
    made = Steelyard("uniform", **GIVEN)
    result = made.start(LocalGrid(clients(extra), 3), to_record(START), num_rounds=1, timeout=5)
    assert dict(result.train_metrics_clientapp[1]) == {"loss": pytest.approx(0.5)}


def test_no_examples(tmp_path):
    def empty(who, arrays, metrics):
        metrics["num-examples"] = 0

    with pytest.raises(ZeroDivisionError):
        stock(empty)
    made = Steelyard("fedavg", **GIVEN, out=tmp_path)
    result = made.start(LocalGrid(clients(empty), 3), to_record(START), num_rounds=1, timeout=5)
    assert torch.equal(to_state_dict(result.arrays)["w"], START["w"])
    (record,) = read_log(tmp_path)
    assert "num_examples=0" in record["quarantined"]["0"]
    assert record["void"]


def test_nobody_answers(tmp_path):
    assert not stock(silent=(0, 1, 2)).arrays  # saved, it would be an empty checkpoint
    model, records = ours(tmp_path, silent=(0, 1, 2), rounds=2)
    assert torch.equal(model["w"], START["w"])
    assert len(records) == 2
    assert all(record["void"].startswith("no valid client") for record in records)
    assert records[0]["late_clients"] == [986, 993, 1000]
    with pytest.raises(
        RunStopped, match=r"2 rounds in a row were void.*did not answer within 0.2 s"
    ):
        ours(tmp_path / "again", silent=(0, 1, 2), rounds=4, patience=2)


def test_counters(tmp_path):
    assert stock().arrays["count"].numpy().dtype == np.float64
    model, _ = ours(tmp_path)
    assert model["count"].dtype == torch.int64
    assert int(model["count"]) == 18
