"""What the memory store refuses, and that the round goes on without it."""

import math
import re

import pytest
import torch

import steelyard
from steelyard.stores._memory import MemoryStore
from tests.rounds import cohort, equal, reports


def broken_models(good):
    fc = good["fc.weight"]

    def nan(value):
        bad = fc.clone()
        bad[2, 1] = value
        return {**good, "fc.weight": bad}

    stats = good["bn.running_mean"].clone()
    stats[0] = math.nan
    return {
        "NaN": (nan(math.nan), "NaN"),
        "infinity": (nan(math.inf), "NaN or infinity"),
        "minus infinity": (nan(-math.inf), "NaN or infinity"),
        "NaN in statistics": ({**good, "bn.running_mean": stats}, "NaN"),
        "broadcastable (1,)": ({**good, "conv.bias": torch.ones(1)}, r"shape \(1,\)"),
        "scalar": ({**good, "conv.bias": torch.tensor(1.0)}, r"shape \(\)"),
        "transposed": ({**good, "fc.weight": fc.T}, "shape"),
        "vector for a scalar": ({**good, "scale": torch.ones(1)}, "shape"),
        "missing key": ({k: v for k, v in good.items() if k != "scale"}, "missing key 'scale'"),
        "extra key": ({**good, "extra": torch.ones(2)}, "unexpected key 'extra'"),
        "renamed key": (
            {("scales" if k == "scale" else k): v for k, v in good.items()},
            "missing key 'scale'",
        ),
        "float64": ({**good, "fc.weight": fc.double()}, "float64"),
        "half": ({**good, "fc.weight": fc.half()}, "float16"),
        "integers": ({**good, "fc.weight": fc.int()}, "int32"),
        "complex": ({**good, "fc.weight": fc.to(torch.complex64)}, "complex64"),
        "not a tensor": ({**good, "fc.weight": [1.0]}, "list"),
        "not a model": ("weights", "str"),
    }


@pytest.mark.parametrize("kind", broken_models(cohort(1)[1]["client-0"]))
@pytest.mark.parametrize("rule", ["fedavg", "fedadp", "median"])
def test_a_bad_client_is_quarantined_and_the_round_goes_on(kind, rule):
    base, clients = cohort(4)
    bad, reason = broken_models(clients["client-1"])[kind]
    metrics = reports(list(clients))
    out = steelyard.aggregate(rule, base, {**clients, "client-1": bad}, metrics=metrics)
    without = {c: m for c, m in clients.items() if c != "client-1"}
    clean = steelyard.aggregate(rule, base, without, metrics=metrics)
    assert re.search(reason, out.report["quarantined"]["client-1"])
    assert equal(out.params, clean.params)
    assert out.weights[1] == 0


@pytest.mark.parametrize("value", [0, -5, 1.5, math.nan, math.inf, True, "7", None, [3]])
def test_invalid_sizes_are_quarantined(value):
    base, clients = cohort(4)
    metrics = reports(list(clients))
    metrics["num_examples"]["client-2"] = value
    out = steelyard.aggregate("fedavg", base, clients, metrics=metrics)
    assert "num_examples" in out.report["quarantined"]["client-2"]
    assert out.weights[2] == 0
    assert out.weights.sum().item() == pytest.approx(1)


@pytest.mark.parametrize(
    ("metric", "value", "rule"),
    [
        ("label_hist", [1, 2], "feddisco"),
        ("label_hist", [-1] * 10, "feddisco"),
        ("label_hist", [0] * 10, "feddisco"),
        ("label_hist", "many", "feddisco"),
        ("normalizer", 0, "fednova"),
        ("accuracy", -0.5, "fedavg:by=quality"),
        ("loss_before", math.nan, "pa3fed"),
        ("loss", math.nan, "pa3fed:model=local"),
        ("grad_norm", "big", "pa3fed"),
    ],
)
def test_other_invalid_reports_are_quarantined(metric, value, rule):
    base, clients = cohort(4)
    metrics = reports(list(clients))
    if "quality" in rule:
        metrics["quality"], metric = metrics.pop("accuracy"), "quality"
    metrics[metric]["client-3"] = value
    out = steelyard.aggregate(rule, base, clients, metrics=metrics)
    assert metric in out.report["quarantined"]["client-3"]
    del metrics[metric]["client-3"]
    absent = steelyard.aggregate(rule, base, clients, metrics=metrics)
    assert "did not report" in absent.report["quarantined"]["client-3"]


def test_nobody_left_is_an_error_that_names_everyone():
    base, clients = cohort(3)
    zero = {"num_examples": dict.fromkeys(clients, 0)}
    with pytest.raises(steelyard.NoValidClients, match=r"client-0.*num_examples=0") as caught:
        steelyard.aggregate("fedavg", base, clients, metrics=zero)
    assert set(caught.value.quarantined) == set(clients)


def test_a_store_can_be_aggregated_again_and_again():
    base, clients = cohort(4)
    metrics = reports(list(clients))
    store = MemoryStore.of(base, clients)
    for rule in ("fedavg", "fedadp"):
        direct = steelyard.aggregate(rule, base, clients, metrics=metrics)
        assert equal(steelyard.aggregate(rule, base, store, metrics=metrics).params, direct.params)
        assert equal(steelyard.aggregate(rule, None, store, metrics=metrics).params, direct.params)
    listed = MemoryStore.of(base, list(clients.values()))
    sizes = {"num_examples": list(metrics["num_examples"].values())}
    assert equal(steelyard.aggregate("fedadp", base, listed, metrics=sizes).params, direct.params)
    other = {name: value + 1 for name, value in base.items()}
    with pytest.raises(steelyard.SteelyardError, match="start from"):
        steelyard.aggregate("uniform", other, store)
    with pytest.raises(steelyard.SteelyardError, match="belong to the store"):
        steelyard.aggregate("uniform", base, store, ids=["a"])
    metrics["num_examples"]["client-0"] = 0
    fewer = steelyard.aggregate("fedavg", base, store, metrics=metrics)
    assert fewer.weights[0] == 0


def test_forms_of_clients_and_metrics_agree():
    g = torch.Generator().manual_seed(0)
    base = torch.randn(50, generator=g)
    rows = base + torch.randn(3, 50, generator=g)
    expected = steelyard.aggregate("fedadp", base, rows, metrics={"num_examples": [1, 2, 3]})
    for clients, metrics in (
        (list(rows), [{"num_examples": 1}, {"num_examples": 2}, {"num_examples": 3}]),
        ({0: rows[0], 1: rows[1], 2: rows[2]}, {"num_examples": {0: 1, 1: 2, 2: 3}}),
        (rows, {"num_examples": torch.tensor([1, 2, 3])}),
    ):
        out = steelyard.aggregate("fedadp", base, clients, metrics=metrics)
        assert torch.equal(out.params, expected.params)
        assert torch.equal(out.weights, expected.weights)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"clients": torch.zeros(3)}, r"\[K, d\]"),
        ({"clients": []}, "empty"),
        ({"ids": [1, 1]}, "more than once"),
        ({"ids": [1]}, "1 entries for 2"),
        ({"ids": [1.5, 2]}, "float"),
        ({"base": None}, "base=None"),
        ({"base": torch.zeros(2, 2)}, "1-D"),
        ({"base": torch.zeros(4, dtype=torch.int64)}, "1-D float"),
        ({"metrics": {"num_examples": [1]}}, "1 values for 2"),
        ({"metrics": [{"num_examples": 1}]}, "one dict for each"),
        ({"metrics": None, "rule": "fedavg"}, "num_examples.*uniform"),
        ({"rule": "eq6"}, "detectors go inside"),
    ],
)
def test_wrong_calls_name_the_cure(arguments, message):
    given = {"rule": "uniform", "base": torch.zeros(4), "clients": torch.ones(2, 4), **arguments}
    with pytest.raises(steelyard.SteelyardError, match=message):
        steelyard.aggregate(given.pop("rule"), given.pop("base"), given.pop("clients"), **given)


def test_a_base_model_with_nan_is_refused():
    base = torch.tensor([1.0, math.nan, 0.0])
    for rule in ("uniform", "median", "krum"):
        with pytest.raises(steelyard.SteelyardError):
            steelyard.aggregate(rule, base, torch.ones(3, 3))


def test_half_precision_is_not_summed_in_half_precision():
    base = torch.zeros(1000, dtype=torch.float16)
    clients = torch.full((100, 1000), 0.1, dtype=torch.float16)
    clients[0] = 1000.0
    out = steelyard.aggregate("uniform", base, clients)
    exact = clients.double().mean(dim=0).half()
    assert torch.equal(out.params, exact)


def test_a_result_too_large_for_its_dtype_is_an_error_not_infinity():
    base = torch.zeros(10, dtype=torch.float16)
    clients = torch.full((2, 10), 60000.0, dtype=torch.float16)
    with pytest.raises(steelyard.SteelyardError, match="overflows"):
        steelyard.aggregate(
            "fednova", base, clients, metrics={"num_examples": [1, 1], "normalizer": [1, 9]}
        )


def test_gradients_and_other_devices_do_not_matter():
    layer = torch.nn.Linear(4, 3)
    clients = [torch.nn.Linear(4, 3).state_dict() for _ in range(3)]
    out = steelyard.aggregate("uniform", dict(layer.named_parameters()), clients)
    assert not out.params["weight"].requires_grad
    layer.load_state_dict(out.params)
    torch.testing.assert_close(
        layer.weight.detach(), torch.stack([c["weight"] for c in clients]).mean(0)
    )


def test_recycled_memory_is_never_shared_with_anything_alive():
    base = torch.zeros(300_000)
    ones, twos = base + torch.ones(2, 1), base + 2 * torch.ones(2, 1)
    first = steelyard.aggregate("uniform", base, ones).params
    view = first[1000:1010]  # a view keeps the memory alive
    seen = first.data_ptr()
    del first
    second = steelyard.aggregate("uniform", base, twos).params
    assert second.data_ptr() != seen
    assert (view == 1).all()
    del view
    third = steelyard.aggregate("uniform", base, ones).params
    assert third.data_ptr() == seen
    assert (second == 2).all()
    assert (third == 1).all()
    assert third.data_ptr() != second.data_ptr()


def test_the_result_can_be_saved_and_loaded(tmp_path):
    from safetensors.torch import load_file, save_file

    base, clients = cohort(3)
    out = steelyard.aggregate("uniform", base, clients)
    save_file(out.params, tmp_path / "m.safetensors")
    assert equal({k: load_file(tmp_path / "m.safetensors")[k] for k in out.params}, out.params)
