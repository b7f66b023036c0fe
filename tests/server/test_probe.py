"""The probe: its batches, its BatchNorm, and what it refuses."""

from itertools import chain

import numpy as np
import pytest
import torch
from torch import nn

import steelyard
from steelyard import kernels
from steelyard.core._errors import SteelyardError
from steelyard.core._layout import Layout
from steelyard.stores._memory import MemoryStore


def net(*, norm=False, conv=False):
    if conv:
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 16, 3))
    return nn.Sequential(
        nn.Linear(5, 6), *([nn.BatchNorm1d(6)] if norm else []), nn.ReLU(), nn.Linear(6, 3)
    )


def samples(count=20, shape=(5,)):
    g = torch.Generator().manual_seed(0)
    return torch.randn(count, *shape, generator=g), torch.randint(0, 3, (count,), generator=g)


def models(mould, count=4):
    g = torch.Generator().manual_seed(1)
    out = []
    for _ in range(count):
        state = {name: value.clone() for name, value in mould.state_dict().items()}
        for name, value in state.items():
            if value.is_floating_point():
                noise = torch.randn(value.shape, generator=g)
                state[name] = value + 0.3 * (noise.abs() if "var" in name else noise)
        out.append(state)
    return out


SIZES = {"num_examples": [10, 20, 30, 40]}


def fedlaw(mould, proxy, **options):
    return steelyard.aggregate(
        "fedlaw:epochs=3", mould.state_dict(), models(mould), metrics=SIZES, probe=proxy, **options
    )


def test_projection_is_a_matrix_product():
    g = torch.Generator().manual_seed(0)
    for dim in (7, 2048, 300_001):
        rows = torch.randn(5, dim, generator=g)
        store = MemoryStore.of(rows[-1], rows[:-1] + rows[-1])
        vector = torch.randn(dim, generator=g)
        expected = store.matrix.double() @ vector.double()
        found = kernels.project(store, 5, [(0, vector)])
        cut = kernels.project(store, 5, [(0, vector[: dim // 3]), (dim // 3, vector[dim // 3 :])])
        np.testing.assert_allclose(found, cut, rtol=1e-6, atol=1e-4)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-3 * dim**0.5 / 100)
        assert np.array_equal(found, kernels.project(store, 5, [(0, vector)], chunk=1000))


def test_flat_vectors_follow_the_order_of_parameters():
    """State dicts are sorted by name."""
    mould, (inputs, targets) = net(conv=True), samples(shape=(1, 6, 6))
    proxy = steelyard.Probe(mould, inputs, targets, batch_size=7)
    flat = steelyard.aggregate(
        "fedlaw:epochs=3",
        nn.utils.parameters_to_vector(mould.parameters()).detach(),
        torch.stack(
            [torch.cat([value.flatten() for value in state.values()]) for state in models(mould)]
        ),
        metrics=SIZES,
        probe=proxy,
    )
    named = fedlaw(mould, steelyard.Probe(mould, inputs, targets, batch_size=7))
    np.testing.assert_allclose(flat.weights, named.weights, rtol=1e-6)
    ordered = torch.cat([named.params[name].flatten() for name in mould.state_dict()])
    torch.testing.assert_close(flat.params, ordered)


def test_batches_follow_seed_and_round():
    inputs, targets = samples()
    layout = Layout.of(net().state_dict())
    proxy = steelyard.Probe(net(), inputs, targets, batch_size=8, seed=3)

    def order(number, made=proxy):
        return [batch.tolist() for batch in made.open(layout, number, {}, {}).epoch()]

    assert order(1) == order(1) != order(2)
    assert sorted(chain(*order(1))) == list(range(20))
    assert [len(batch) for batch in order(1)] == [8, 8, 4]
    assert order(1, steelyard.Probe(net(), inputs, targets, batch_size=8, seed=4)) != order(1)
    straight = steelyard.Probe(net(), inputs, targets, batch_size=8, shuffle=False)
    assert list(chain(*order(5, straight))) == list(range(20))


def test_proxy_statistics_replace_the_clients():
    mould = net(norm=True)
    inputs, targets = samples()
    out = {
        bn: fedlaw(mould, steelyard.Probe(mould, inputs, targets, bn=bn))
        for bn in ("proxy", "average", "frozen")
    }
    assert int(out["proxy"].params["1.num_batches_tracked"]) == 3
    share = out["average"].weights / out["average"].weights.sum()
    means = torch.stack([state["1.running_mean"] for state in models(mould)]).double()
    torch.testing.assert_close(
        out["average"].params["1.running_mean"].double(), share @ means, rtol=1e-5, atol=1e-6
    )
    assert not torch.equal(
        out["proxy"].params["1.running_mean"], out["average"].params["1.running_mean"]
    )
    assert torch.equal(out["proxy"].weights, out["average"].weights)  # the same passes
    assert not torch.equal(out["frozen"].weights, out["average"].weights)  # other ones


def test_flat_models_keep_their_statistics_in_the_state():
    mould = net(norm=True)
    inputs, targets = samples()
    base = nn.utils.parameters_to_vector(mould.parameters()).detach()
    noise = 0.1 * torch.randn(4, len(base), generator=torch.Generator().manual_seed(0))
    first = steelyard.aggregate(
        "gws:epochs=2",
        base,
        base + noise,
        metrics=SIZES,
        probe=steelyard.Probe(mould, inputs, targets),
    )
    assert int(first.state["probe"]["1.num_batches_tracked"]) == 2
    fresh = steelyard.Probe(net(norm=True), inputs, targets)
    second = steelyard.aggregate(
        "gws:epochs=2", base, base + noise, metrics=SIZES, probe=fresh, state=first.state, round=2
    )
    assert int(second.state["probe"]["1.num_batches_tracked"]) == 4


def test_one_sample_has_no_variance():
    mould = net(norm=True)
    inputs, targets = samples(5)
    out = fedlaw(
        mould, steelyard.Probe(mould, inputs, targets, batch_size=4)
    )  # batches of 4 and of 1
    assert torch.isfinite(out.params["0.weight"]).all()


def test_the_users_model_and_random_numbers_are_left_alone():
    mould = net(norm=True)
    before = {name: value.clone() for name, value in mould.state_dict().items()}
    inputs, targets = samples()
    state = torch.get_rng_state()
    fedlaw(mould, steelyard.Probe(mould, inputs, targets))
    assert all(torch.equal(before[name], value) for name, value in mould.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())


def test_another_model_is_refused():
    inputs, targets = samples()
    with pytest.raises(SteelyardError, match=r"probe.model has '0.weight'"):
        steelyard.aggregate(
            "fedlaw",
            net().state_dict(),
            models(net()),
            metrics=SIZES,
            probe=steelyard.Probe(nn.Sequential(nn.Linear(5, 3)), inputs, targets),
        )
    with pytest.raises(
        SteelyardError, match=r"probe.model has 57 parameters, but the clients' vectors have 9"
    ):
        steelyard.aggregate(
            "fedlaw",
            torch.zeros(9),
            torch.ones(2, 9),
            metrics={"num_examples": [1, 2]},
            probe=steelyard.Probe(net(), inputs, targets),
        )


def test_bad_options():
    inputs, targets = samples()
    with pytest.raises(SteelyardError, match="20 inputs and 19 targets"):
        steelyard.Probe(net(), inputs, targets[:-1])
    with pytest.raises(SteelyardError, match="bn"):
        steelyard.Probe(net(), inputs, targets, bn="batch")
    with pytest.raises(SteelyardError, match="batch_size"):
        steelyard.Probe(net(), inputs, targets, batch_size=0)


def test_from_disk_bit_for_bit(tmp_path):
    from safetensors.torch import save_file

    mould, (inputs, targets) = net(norm=True), samples()
    save_file(mould.state_dict(), tmp_path / "base.safetensors")
    for k, state in enumerate(models(mould)):
        save_file(state, tmp_path / f"{k}.safetensors")
    store = steelyard.SafetensorsStore.open(
        tmp_path / "base.safetensors", {k: tmp_path / f"{k}.safetensors" for k in range(4)}
    )
    streamed = steelyard.aggregate(
        "fedlaw:epochs=3", None, store, metrics=SIZES, probe=steelyard.Probe(mould, inputs, targets)
    )
    held = fedlaw(mould, steelyard.Probe(mould, inputs, targets))
    assert torch.equal(streamed.weights, held.weights)
    assert all(torch.equal(streamed.params[name], held.params[name]) for name in held.params)
