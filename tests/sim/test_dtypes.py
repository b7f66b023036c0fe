"""Results do not depend on torch's default dtype; models may be float32 or float64."""

import contextlib

import pytest
import torch
from torch import nn

import steelyard
from steelyard.core._errors import SteelyardError
from steelyard.models import MODELS, build
from tests.sim.runs import ALGORITHMS, OPTIONS, Stop, clients, net, options, same, simulate

IMAGES = {"data": clients(shape=(2, 6, 6)), "test": clients(1, seed=9, shape=(2, 6, 6))["client-0"]}
VECTORS = clients()  # made once: random numbers are others under another default
KINDS = ("mlp", "dropout", "cnn", "batch_norm")


@contextlib.contextmanager
def default_dtype(dtype):
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def given(kind):
    """Data that a network takes."""
    return OPTIONS | (IMAGES if kind == "cnn" else {"data": VECTORS})


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_algorithm_does_not_depend_on_the_default(name):
    algorithm, model = ALGORITHMS[name], net()
    expected = simulate(algorithm, VECTORS, model, **options(algorithm))
    with default_dtype(torch.float64):
        assert same(simulate(algorithm, VECTORS, model, **options(algorithm)), expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("default", [torch.float64, torch.float16, torch.bfloat16])
def test_a_network_does_not_depend_on_the_default(kind, default):
    model = net(kind)
    expected = simulate("fedadp", model=model, **given(kind))
    with default_dtype(default):
        found = simulate("fedadp", model=model, **given(kind))
        assert torch.get_default_dtype() == default
    assert same(found, expected)


@pytest.mark.parametrize("name", [entry.name for entry in MODELS])
def test_networks_by_name_are_float32(name):
    shape = (16,) if name in ("text_mean", "char_lstm") else (3, 32, 32)
    expected = build(name, shape, 5, 0).state_dict()
    with default_dtype(torch.float64):
        found = build(name, shape, 5, 0).state_dict()
    assert all(
        torch.equal(found[key], expected[key]) and found[key].dtype == expected[key].dtype
        for key in expected
    )


@pytest.mark.parametrize("server", [None, "adam", "yogi", "adagrad", "momentum"])
@pytest.mark.parametrize("rule", ["fedadp", "guard(fedavg)", "median", "fedawa:steps=2"])
def test_aggregation_does_not_depend_on_the_default(rule, server):
    base = torch.zeros(50)
    updates = torch.randn(5, 50, generator=torch.Generator().manual_seed(0))
    metrics = {"num_examples": [1, 2, 3, 4, 5]}
    expected = steelyard.aggregate(rule, base, updates, metrics=metrics, server=server)
    with default_dtype(torch.float64):
        found = steelyard.aggregate(rule, base, updates, metrics=metrics, server=server)
    assert torch.equal(found.params, expected.params)


def test_refiners_and_probes_do_not_depend_on_the_default():
    model, proxy = net(), {"data": clients(1, seed=5)["client-0"]}
    for algorithm in (
        steelyard.Algorithm("fedlaw:epochs=2"),
        steelyard.Algorithm("fedavg", refine="feddf:epochs=2"),
    ):
        expected = simulate(algorithm, VECTORS, model, proxy=proxy)
        with default_dtype(torch.float64):
            assert same(simulate(algorithm, VECTORS, model, proxy=proxy), expected)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_float64_models_go_through_every_algorithm(name):
    algorithm = ALGORITHMS[name]
    single = simulate(algorithm, **options(algorithm))
    double = simulate(algorithm, model=net().double(), **options(algorithm))
    assert {tensor.dtype for tensor in double.params.values()} == {torch.float64}
    for key, tensor in double.params.items():
        torch.testing.assert_close(tensor.float(), single.params[key], rtol=0.05, atol=0.05)


@pytest.mark.parametrize("kind", KINDS)
def test_float64_networks_have_the_same_bits_on_every_executor_and_resumed(kind, tmp_path):
    model = net(kind).double()
    whole = simulate("fedadp", model=model, **given(kind))
    assert same(
        simulate("fedadp", model=model, **(given(kind) | {"executor": "process", "workers": 2})),
        whole,
    )
    with pytest.raises(KeyboardInterrupt):
        simulate("fedadp", model=model, out=tmp_path, callbacks=[Stop(3)], **given(kind))
    assert same(simulate("fedadp", model=model, out=tmp_path, resume=True, **given(kind)), whole)
    assert {tensor.dtype for tensor in whole.params.values()} <= {torch.float64, torch.int64}


def test_float64_models_take_float_targets_and_proxy_data():
    data = {
        name: (inputs, inputs.sum(dim=1, keepdim=True)) for name, (inputs, _) in clients().items()
    }
    model = nn.Linear(5, 1).double()
    assert (
        simulate(model=model, data=data, loss=nn.functional.mse_loss).params["weight"].dtype
        == torch.float64
    )
    proxy = {"data": clients(1, seed=5)["client-0"]}
    for algorithm in (
        steelyard.Algorithm("fedlaw:epochs=2"),
        steelyard.Algorithm("fedavg", refine="feddf:epochs=2"),
    ):
        assert (
            simulate(algorithm, model=net().double(), proxy=proxy).params["0.weight"].dtype
            == torch.float64
        )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_half_models_are_refused_with_the_cure(dtype, kind):
    with pytest.raises(SteelyardError, match=rf"is {dtype}, .* use model.float\(\)"):
        simulate(model=net(kind).to(dtype), **given(kind))


def test_models_of_two_dtypes_are_refused():
    model = net()
    model[2].double()
    with pytest.raises(SteelyardError, match=r"is torch.float64, but '0.bias' is torch.float32"):
        simulate(model=model)
