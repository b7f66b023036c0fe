"""Tasks of the user's own: losses by name, own metrics, any metric as target, callbacks that add to the record."""

import functools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import steelyard
from steelyard import Callback, History, simulate
from steelyard.client._losses import bce, mse
from steelyard.core._errors import SteelyardError
from steelyard.runs._monitor import Monitor, is_lower_better
from steelyard.sim._executors import TaskError
from steelyard.sim._experiment import read_experiment
from steelyard.sim._loggers import select_numbers
from tests.sim.runs import same

DRAW = torch.Generator().manual_seed(0)
X = torch.randn(1400, 4, generator=DRAW)
PRICES = X @ torch.tensor([1.0, -2.0, 0.5, 3.0]) + 0.1 * torch.randn(1400, generator=DRAW)
LABELS = (
    X[:, :3] + 0.1 * torch.randn(1400, 3, generator=DRAW) > 0
).float()  # [n, 3], yes or no each
CLASSES = (X[:, 0] > 0).long() + (X[:, 1] > 0).long()
TEST = slice(200, 1400)  # 1,200 samples: three shards


def net(outputs):
    torch.manual_seed(3)
    return nn.Linear(4, outputs)


def mae(outputs, targets):
    return (outputs.squeeze(1) - targets).abs().mean()


def worst(outputs, targets):
    return float((outputs.squeeze(1) - targets).abs().max())


def run(targets=PRICES, model=None, **options):
    data = ((X[:200], targets[:200]), (X[TEST], targets[TEST]))
    options = {
        "rounds": 3,
        "clients": 4,
        "partition": "iid",
        "executor": "serial",
        "local": {"lr": 0.05},
    } | options
    return simulate(data=data, model=net(1) if model is None else model, **options)


def weighted(weights):
    return functools.partial(nn.functional.cross_entropy, weight=weights)


# float targets


@pytest.mark.parametrize(
    "loss",
    ["cross_entropy", nn.functional.cross_entropy, nn.CrossEntropyLoss(), weighted(torch.ones(1))],
    ids=["name", "function", "module", "partial"],
)
@pytest.mark.parametrize(
    ("targets", "shape"),
    [
        (PRICES, r"float32 \[n\]"),
        (PRICES[:, None], r"float32 \[n, 1\]"),
        (CLASSES.float(), r"float32 \[n\]"),
        (LABELS, r"float32 \[n, 3\]"),
        (PRICES.double().numpy(), r"float32 \[n\]"),
    ],
    ids=["numbers", "column", "classes", "labels", "array"],
)
def test_float_targets_under_cross_entropy_are_refused_with_the_cure(targets, shape, loss):
    model = net(1 if targets.ndim < 2 else targets.shape[1])
    with pytest.raises(
        SteelyardError, match=rf'targets are {shape}.*loss="mse".*loss="bce".*int64'
    ):
        run(targets, model, loss=loss)


def test_float_targets_are_refused_wherever_a_loss_is_taken():
    with pytest.raises(SteelyardError, match='loss="mse"'):
        simulate(data={"ann": (X[:20], PRICES[:20])}, model=net(1))
    with pytest.raises(SteelyardError, match='loss="mse"'):
        steelyard.Probe(net(1), X[:20], PRICES[:20])
    steelyard.Probe(net(1), X[:20], PRICES[:20], loss="mse")


def test_probabilities_of_classes_train_under_cross_entropy():
    soft = nn.functional.one_hot(CLASSES, 3) * 0.9 + 0.1 / 3
    losses = run(soft, net(3)).column("loss")
    assert losses[-1] < losses[0]


# losses by name


@pytest.mark.parametrize("model", [None, "mlp:hidden=[8]"], ids=["own", "by name"])
@pytest.mark.parametrize("targets", [PRICES, PRICES[:, None]], ids=["[n]", "[n, 1]"])
def test_regression(targets, model):
    history = run(targets, model, loss="mse", rounds=4)
    losses = history.column("loss")
    assert losses[-1] < losses[0]
    assert history.accuracy == []
    assert history.final_accuracy is None
    assert all(record["accuracy"] is None for record in history)
    assert history.best == min(losses)
    own = simulate_by_hand(history.params, model)
    assert losses[-1] == pytest.approx(float(((own - PRICES[TEST]) ** 2).mean()), rel=1e-4)


def simulate_by_hand(params, model):
    network = net(1) if model is None else steelyard.models.build(model, (4,), 1, 0)
    network.load_state_dict(dict(params))
    with torch.no_grad():
        return network(X[TEST]).squeeze(1)


def test_a_loss_by_name_has_the_bits_of_the_function():
    by_name = run(PRICES[:, None], loss="mse")
    assert same(by_name, run(PRICES[:, None], loss=nn.functional.mse_loss))
    assert same(run(LABELS, net(3), loss="bce"), run(LABELS, net(3), loss=nn.BCEWithLogitsLoss()))
    assert same(run(CLASSES, net(3), loss="cross_entropy"), run(CLASSES, net(3)))


@pytest.mark.parametrize("targets", [LABELS, LABELS.long()], ids=["float", "whole"])
def test_multi_label(targets):
    history = run(targets, net(3), loss="bce")
    assert history.column("loss")[-1] < history.column("loss")[0]
    assert history.accuracy == []


def test_numbers_that_are_whole_have_no_accuracy():
    """One output is always the largest of one: that is no accuracy."""
    counts = (PRICES.abs() * 2).long()
    for history in (
        run(counts, loss="mse"),
        run(counts, "mlp:hidden=[8]", loss="mse"),
        run(CLASSES % 2, loss="bce"),
    ):
        assert history.accuracy == []
        assert history.column("loss")[-1] < history.column("loss")[0]


@pytest.mark.parametrize(
    ("targets", "outputs", "loss", "message"),
    [
        (PRICES, 2, "mse", r"outputs are \[n, 2\] and the targets \[n\]"),
        (LABELS, 2, "bce", r"outputs are \[n, 2\] and the targets \[n, 3\]"),
        (LABELS, 1, "mse", r"outputs are \[n, 1\] and the targets \[n, 3\]"),
        (PRICES, 1, nn.functional.mse_loss, r"would broadcast.*targets.reshape\(-1, 1\)"),
        (PRICES, 1, nn.L1Loss(), r"would broadcast.*targets.reshape\(-1, 1\)"),
        (PRICES, 1, "bce", r"targets lie in .*labels in \[0, 1\]"),
        (CLASSES, 1, "bce", r"targets lie in 0\.\.2"),
        (PRICES, 1, nn.BCEWithLogitsLoss(), r"targets lie in"),
        (PRICES, 1, "mae", "unknown loss 'mae': did you mean 'mse'"),
        (PRICES, 1, 7, "loss=7: use a name .* or a function"),
    ],
)
def test_outputs_and_targets_that_do_not_fit_are_refused(targets, outputs, loss, message):
    with pytest.raises(SteelyardError, match=message) as caught:
        run(targets, net(outputs), loss=loss)
    assert not isinstance(caught.value, TaskError)  # before anything is trained


def test_one_client_with_odd_targets_is_named():
    data = {"ann": (X[:20], LABELS[:20]), "bob": (X[:20], LABELS[:20] * 2)}
    with pytest.raises(SteelyardError, match=r"client 'bob': targets lie in 0\.\.2"):
        simulate(data=data, model=net(3), loss="bce")
    with pytest.raises(SteelyardError, match=r"test: targets lie in 0\.\.2"):
        simulate(data={"ann": data["ann"]}, test=data["bob"], model=net(3), loss="bce")


def test_class_weights_count():
    plain = run(CLASSES, net(3))
    weights = torch.tensor([0.1, 1.0, 10.0])
    heavy = run(CLASSES, net(3), loss=nn.CrossEntropyLoss(weight=weights))
    assert same(heavy, run(CLASSES, net(3), loss=weighted(weights)))
    assert not same(plain, heavy)
    assert len(heavy.accuracy) == 3


def test_a_loss_is_a_key_of_a_configuration():
    config = read_experiment(None, ["loss=mse", "monitor=loss", "mode=min", "target=1.5"])
    history = simulate(
        replace(config, rounds=1, local={"lr": 0.01}, execution={"executor": "serial"})
    )
    assert history.accuracy == []
    assert history.monitor == Monitor("loss", "min", 1.5)
    assert {"loss", "monitor", "mode"} & set(
        read_experiment(None).to_stored()
    ) == set()  # older runs have no such keys
    assert read_experiment(None, ["loss=bce"]).to_stored()["loss"] == "bce"
    with pytest.raises(SteelyardError, match="unknown loss 'mae'"):
        read_experiment(None, ["loss=mae"])
    with pytest.raises(SteelyardError, match=r"target=1\.5: use an accuracy in \(0, 1\]"):
        read_experiment(None, ["target=1.5"])


def test_rules_that_need_what_the_task_does_not_have_are_refused_first():
    with pytest.raises(
        SteelyardError, match="cannot report 'accuracy': the targets are not classes"
    ):
        run(loss="mse", metrics=["accuracy"])
    with pytest.raises(SteelyardError, match="label_hist"):
        run(algorithm="feddisco", loss="mse")
    with pytest.raises(
        SteelyardError, match=r"partition=dirichlet needs int64 labels.*partition=iid"
    ):
        run(loss="mse", partition="dirichlet:0.1")


def test_clients_are_evaluated_by_loss_where_there_is_no_accuracy():
    record = run(loss="mse", evaluate_clients=1).records[0]
    assert "client_accuracy" not in record
    assert set(record["client_loss"]) == {"0", "1", "2", "3"}


# metrics of one's own


def test_own_metrics_are_of_the_whole_test_set():
    history = run(loss="mse", test_metrics={"mae": mae, "worst": worst})
    outputs = simulate_by_hand(history.params, None)
    gaps = (outputs - PRICES[TEST]).abs()
    assert history.column("mae")[-1] == pytest.approx(float(gaps.mean()), rel=1e-5)
    assert history.column("worst")[-1] == pytest.approx(
        float(gaps.max()), rel=1e-5
    )  # no mean over shards
    assert len(history.column("mae")) == 3
    parallel = run(
        loss="mse", test_metrics={"mae": mae, "worst": worst}, executor="process", workers=2
    )
    assert same(history, parallel)
    plain = run(loss="mse")
    assert all(torch.equal(history.params[name], value) for name, value in plain.params.items())
    assert run(loss="mse", test_metrics=mae).column("mae") == history.column("mae")
    assert len(run(loss="mse", test_metrics=mae, rounds=5, evaluate_every=2).column("mae")) == 3


def test_own_metrics_of_classes_and_images():
    seen = {}

    def shapes(outputs, targets):
        seen["shapes"] = (outputs.shape, outputs.dtype, targets.shape, targets.dtype)
        outputs.zero_(), targets.zero_()  # must harm nobody
        return 1

    def correct(outputs, targets):
        return np.float32((outputs.argmax(dim=1) == targets).float().mean())

    history = run(CLASSES, net(3), test_metrics={"shapes": shapes, "correct": correct})
    assert seen["shapes"] == ((1200, 3), torch.float32, (1200,), torch.int64)
    assert history.column("correct") == pytest.approx(history.accuracy, abs=1e-6)
    plain = run(CLASSES, net(3))
    assert [record["accuracy"] for record in history] == plain.accuracy
    assert all(torch.equal(history.params[name], value) for name, value in plain.params.items())
    convolution = simulate(
        data="digits",
        model="resnet:depth=8",
        rounds=1,
        executor="serial",
        test_metrics={"correct": correct},
    )
    assert convolution.column("correct") == pytest.approx(convolution.accuracy, abs=1e-6)


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        (lambda outputs, targets: 0.0, "test_metrics=.* a dict of functions"),
        (functools.partial(mae), "test_metrics=.* a dict of functions"),
        (3, "test_metrics=.* a dict of functions"),
        ({"mae": 3}, "'mae' is 3: .* function"),
        ({"accuracy": mae}, "'accuracy' means something else"),
        ({"weights": mae}, "'weights' means something else"),
        ({"coherence": mae}, "'coherence' means something else"),
        ({"best": mae}, "'best' means something else"),
        ({"": mae}, "use a name of letters"),
        ({"a/b": mae}, "use a name of letters"),
        ({"\x1b[2J": mae}, "use a name of letters"),
        ({5: mae}, "use a name of letters"),
        ({"mae": lambda o, t: o}, "round 1, test metric 'mae'"),
        ({"mae": lambda o, t: "0.5"}, "round 1, test metric 'mae': TypeError"),
        ({"mae": lambda o, t: None}, "round 1, test metric 'mae': TypeError"),
        ({"mae": lambda o, t: 1 / 0}, "round 1, test metric 'mae': ZeroDivisionError"),
        ({"gamma": mae}, "round 1, test metric 'gamma': the record has another value"),
    ],
)
def test_bad_metrics_are_refused(metrics, message):
    with pytest.raises(SteelyardError, match=message):
        run(algorithm="fedavg|shrink:0.9", loss="mse", test_metrics=metrics)


def test_metrics_need_a_test_set_and_a_network_that_runs():
    with pytest.raises(SteelyardError, match="test_metrics: there is no test set"):
        simulate(data={"ann": (X[:20], PRICES[:20])}, model=net(1), loss="mse", test_metrics=mae)
    with pytest.raises(SteelyardError, match="the network fails on two samples: RuntimeError"):
        run(model=nn.Linear(9, 1), loss="mse", test_metrics=mae)


def test_a_metric_that_is_not_a_number_is_null(tmp_path):
    history = run(loss="mse", test_metrics={"r2": lambda o, t: float("nan")}, out=tmp_path / "run")
    assert history.records[0]["r2"] is None
    assert History.read(tmp_path / "run").column("r2") == []


# any metric as target and best


def test_best_and_target_of_a_metric_that_falls(tmp_path):
    whole = run(loss="mse", test_metrics=mae, monitor="mae", rounds=6)
    curve = whole.column("mae")
    assert whole.best == min(curve)
    target = sorted(curve)[2]
    options = {"loss": "mse", "test_metrics": mae, "monitor": "mae", "rounds": 6, "target": target}
    short = run(**options, out=tmp_path / "run")
    assert len(short) == whole.rounds_to(target) == short.rounds_to(target) < 6
    stored = History.read(tmp_path / "run")
    assert (stored.best, stored.monitor) == (short.best, Monitor("mae", "min", target))
    again = run(**options, out=tmp_path / "run", resume=True)
    assert again.records == short.records


def test_the_best_model_is_that_of_the_monitored_metric(tmp_path):
    """A metric of which more is better although its name says less, and the other way round."""
    up = {"test_metrics": {"odd_error": lambda o, t: float(o.abs().mean())}, "monitor": "odd_error"}
    for mode, choose in (("max", max), ("min", min), ("auto", min)):
        history = run(loss="mse", rounds=4, **up, mode=mode, out=tmp_path / mode)
        curve = history.column("odd_error")
        assert history.best == choose(curve)
        best = (tmp_path / mode / "checkpoints" / "best").resolve().name
        assert best == f"best-{curve.index(choose(curve)) + 1:06d}"


def test_a_run_is_not_resumed_with_another_monitor(tmp_path):
    options = {"loss": "mse", "test_metrics": mae, "out": tmp_path / "run"}
    run(**options, monitor="mae", rounds=2)
    with pytest.raises(SteelyardError, match=r"monitor='mae', mode='min'"):
        run(**options, rounds=3, resume=True)
    assert len(run(**options, monitor="mae", rounds=3, resume=True)) == 3
    run(CLASSES, net(3), rounds=2, out=tmp_path / "classes")
    with pytest.raises(SteelyardError, match=r"monitor='accuracy', mode='max'"):
        run(CLASSES, net(3), rounds=3, out=tmp_path / "classes", resume=True, monitor="loss")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"monitor": "mea"}, "unknown metric 'mea': did you mean 'mae'"),
        ({"monitor": 3}, "monitor=3"),
        ({"mode": "up"}, "mode='up'"),
        ({"target": 90}, r"target=90: use an accuracy in \(0, 1\]"),
        ({"target": True}, "target=True"),
        ({"target": 0.9}, "target=0.9 is an accuracy, and this task has none.*'loss', 'mae'"),
        ({"monitor": "mae", "target": float("nan")}, "target=nan: use a number"),
        ({"monitor": "mae", "target": "low"}, "target='low': use a number"),
    ],
)
def test_bad_monitors_are_refused(options, message):
    with pytest.raises(SteelyardError, match=message):
        run(loss="mse", test_metrics=mae, **options)


def test_names_say_whether_less_is_better():
    lower = ["loss", "mae", "val_loss", "RMSE", "top-1 error", "logloss", "perplexity"]
    assert all(is_lower_better(name) for name in lower)
    assert not any(
        is_lower_better(name) for name in ["accuracy", "f1", "auc", "recall@5", "r2", "closseness"]
    )


# callbacks


class Adds(Callback):
    """Puts values of many kinds on record."""

    def round(self, simulation, record):
        record["rank"] = np.int64(record["round"])
        record["curve"] = torch.tensor([0.5, float("nan")])
        record["note"] = {1: Path("a") / "b", "flags": (True, None), "few": {2}}
        record["share"] = np.float32(0.25)
        record["round"] = 99  # must harm nothing
        record["network"] = simulation.work.model


def test_what_a_callback_adds_is_written_and_survives_a_resume(tmp_path):
    with pytest.warns(
        RuntimeWarning, match=r"record\['network'\] is not written to disk.*FlatModel"
    ):
        run(CLASSES, net(3), rounds=2, out=tmp_path / "run", callbacks=[Adds()])
    with pytest.warns(RuntimeWarning, match="network"):
        whole = run(
            CLASSES, net(3), rounds=4, out=tmp_path / "run", callbacks=[Adds()], resume=True
        )
    lines = [
        json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()
    ]
    assert [line["round"] for line in lines] == [1, 2, 3, 4]
    expected = {
        "curve": [0.5, None],
        "note": {"1": "a/b", "flags": [True, None], "few": [2]},
        "share": 0.25,
    }
    for number, line in enumerate(lines, 1):
        assert {name: line[name] for name in expected} == expected
        assert line["rank"] == number
        assert "network" not in line
    assert [{k: v for k, v in record.items() if k != "network"} for record in whole] == lines
    assert whole.column("rank") == [1, 2, 3, 4]


def test_a_callback_may_bring_the_monitored_metric():
    class Score(Callback):
        def round(self, simulation, record):
            record["auc"] = record["round"] / 10

    history = run(CLASSES, net(3), rounds=6, callbacks=[Score()], monitor="auc", target=0.3)
    assert len(history) == 3
    assert history.best == 0.3
    with pytest.warns(RuntimeWarning, match="monitor='auc': round 1 has no such number on record"):
        run(CLASSES, net(3), rounds=1, callbacks=[Callback()], monitor="auc")


def test_an_error_in_a_callback_does_not_lose_the_round(tmp_path):
    class Fails(Callback):
        def round(self, simulation, record):
            record["seen"] = True
            if record["round"] == 2:
                raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run(CLASSES, net(3), out=tmp_path / "run", callbacks=[Fails()])
    assert [record["seen"] for record in History.read(tmp_path / "run")] == [True, True]


def test_loggers_get_own_metrics():
    record = run(loss="mse", test_metrics=mae, rounds=1).records[0]
    assert select_numbers(record, ["mae"])["mae"] == record["mae"]
    assert "accuracy" not in select_numbers(record, ["mae"])


def test_losses_match_shapes_without_broadcasting():
    column = torch.tensor([[1.0], [3.0]])
    assert mse(column, torch.tensor([1.0, 1.0])).item() == 2.0
    assert mse(column.squeeze(1), torch.tensor([[1.0], [1.0]])).item() == 2.0
    assert bce(column, torch.tensor([1, 0])).item() == pytest.approx(
        nn.functional.binary_cross_entropy_with_logits(
            column.squeeze(1), torch.tensor([1.0, 0.0])
        ).item()
    )
    with pytest.raises(SteelyardError, match="as many outputs as a sample has targets"):
        mse(column, torch.ones(2, 2))
