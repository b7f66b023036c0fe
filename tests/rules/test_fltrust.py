"""FLTrust against the paper's equations, with the server's training written in plain torch."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import steelyard
from steelyard.core._spec import to_text
from steelyard.testing import check_rule
from tests.rounds import Quadratic


def make_network(*, norm=False, conv=False):
    torch.manual_seed(0)
    if conv:
        parts = [nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(3 * 16, 3)]
    else:
        parts = [nn.Linear(5, 6), *([nn.BatchNorm1d(6)] if norm else []), nn.ReLU()]
        parts.append(nn.Linear(6, 3))
    return nn.Sequential(*parts).double()


def draw_samples(shape=(5,), count=24):
    g = torch.Generator().manual_seed(1)
    inputs = torch.randn(count, *shape, generator=g, dtype=torch.float64)
    return inputs, torch.randint(0, 3, (count,), generator=g)


def train(network, inputs, targets, lr, epochs, batch_size):
    """The server's update by torch's own SGD, as one vector in the order of `parameters()`."""
    network = copy.deepcopy(network)
    before = nn.utils.parameters_to_vector(network.parameters()).detach()
    optimizer = torch.optim.SGD(network.parameters(), lr=lr)
    for _ in range(epochs):
        for start in range(0, len(inputs), batch_size):
            batch = slice(start, start + batch_size)
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(inputs[batch]), targets[batch]).backward()
            optimizer.step()
    return nn.utils.parameters_to_vector(network.parameters()).detach() - before


def trust_updates(updates, server):
    """The aggregated step of the paper."""
    step, total = np.zeros_like(server), 0.0
    for update in updates:
        cosine = update @ server / np.linalg.norm(update) / np.linalg.norm(server)
        trust = max(0.0, cosine)
        total += trust
        step += trust * np.linalg.norm(server) / np.linalg.norm(update) * update
    return step / total


def draw_updates(server, count=6, seed=0):
    """Updates of any length, some with and some against the server's."""
    rng = np.random.default_rng(seed)
    signs = np.where(np.arange(count) % 3 == 2, -1.0, 1.0)
    noise = rng.normal(size=(count, len(server))) * np.linalg.norm(server) / len(server) ** 0.5
    lengths = 10.0 ** rng.uniform(-2, 2, size=(count, 1))
    return lengths * (signs[:, None] * server + noise)


@pytest.mark.parametrize("conv", [False, True])
@pytest.mark.parametrize(("epochs", "lr", "batch_size"), [(1, 0.1, 24), (3, 0.5, 7)])
def test_the_papers_equations(conv, epochs, lr, batch_size):
    network = make_network(conv=conv)
    inputs, targets = draw_samples((1, 6, 6) if conv else (5,))
    server = train(network, inputs, targets, lr, epochs, batch_size).numpy()
    updates = draw_updates(server)
    base = nn.utils.parameters_to_vector(network.parameters()).detach()
    probe = steelyard.Probe(network, inputs, targets, batch_size, shuffle=False)
    rule = steelyard.fltrust(epochs=epochs, lr=lr)
    out = steelyard.aggregate(rule, base, base + torch.from_numpy(updates), probe=probe)
    step = trust_updates(updates, server)
    np.testing.assert_allclose(out.params - base, step, rtol=1e-9, atol=1e-12)
    assert [weight == 0 for weight in out.weights.tolist()] == [False, False, True] * 2
    assert np.linalg.norm(step) <= np.linalg.norm(server) * (1 + 1e-12)


def test_state_dicts_and_statistics():
    """The same for named tensors; statistics are those of the server's training."""
    network = make_network(norm=True).train()
    inputs, targets = draw_samples()
    trained = copy.deepcopy(network)
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
    nn.functional.cross_entropy(trained(inputs), targets).backward()
    optimizer.step()
    base = network.state_dict()
    server = {name: trained.state_dict()[name] - value for name, value in base.items()}
    clients = []
    for factor in (3.0, 0.5, -1.0):
        model = {name: value + factor * server[name] for name, value in base.items()}
        clients.append({**model, "1.num_batches_tracked": base["1.num_batches_tracked"]})
    for model in clients:
        model["1.running_var"] = model["1.running_var"].abs()
    probe = steelyard.Probe(network, inputs, targets, batch_size=24, shuffle=False)
    out = steelyard.aggregate("fltrust", base, clients, probe=probe)
    for name, value in trained.state_dict().items():
        torch.testing.assert_close(out.params[name], value, rtol=1e-9, atol=1e-12)
    assert out.weights[2].item() == 0


def test_lengths_sizes_and_numbers_of_attackers_do_not_matter():
    network = make_network()
    inputs, targets = draw_samples()
    probe = steelyard.Probe(network, inputs, targets, 24, shuffle=False)
    server = train(network, inputs, targets, 0.1, 1, 24)
    base = nn.utils.parameters_to_vector(network.parameters()).detach()
    honest = torch.from_numpy(draw_updates(server.numpy(), 2))
    alone = steelyard.aggregate("fltrust", base, base + honest, probe=probe)
    attackers = -1000 * server.repeat(10, 1)
    out = steelyard.aggregate("fltrust", base, base + torch.cat([honest, attackers]), probe=probe)
    torch.testing.assert_close(out.params, alone.params, rtol=1e-9, atol=1e-12)


def test_no_trusted_client_is_a_void_round():
    network = make_network()
    inputs, targets = draw_samples()
    probe = steelyard.Probe(network, inputs, targets, 24, shuffle=False)
    server = train(network, inputs, targets, 0.1, 1, 24)
    base = nn.utils.parameters_to_vector(network.parameters()).detach()
    for updates in (-server.repeat(3, 1), torch.zeros(3, len(server), dtype=torch.float64)):
        out = steelyard.aggregate("fltrust", base, base + updates, probe=probe)
        assert "trusts no client" in out.report["void"]
        assert torch.equal(out.params, base)


def test_equal_clients_and_one_client_take_the_servers_length():
    network = make_network()
    inputs, targets = draw_samples()
    probe = steelyard.Probe(network, inputs, targets, 24, shuffle=False)
    server = train(network, inputs, targets, 0.1, 1, 24)
    base = nn.utils.parameters_to_vector(network.parameters()).detach()
    update = torch.from_numpy(draw_updates(server.numpy(), 1))
    for count in (1, 5):
        out = steelyard.aggregate("fltrust", base, base + update.repeat(count, 1), probe=probe)
        length = (out.params - base).norm().item()
        assert length == pytest.approx(server.norm().item(), rel=1e-9)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 12))
def test_the_step_is_never_longer_than_the_servers_update(seed, count):
    network = make_network()
    inputs, targets = draw_samples()
    probe = steelyard.Probe(network, inputs, targets, 24, shuffle=False)
    server = train(network, inputs, targets, 0.1, 1, 24)
    base = nn.utils.parameters_to_vector(network.parameters()).detach()
    updates = torch.from_numpy(np.random.default_rng(seed).normal(size=(count, len(server))))
    out = steelyard.aggregate("fltrust", base, base + updates, probe=probe)
    assert (out.weights >= 0).all()
    step = out.params - base
    assert step.norm() <= server.norm() * (1 + 1e-9)
    assert (step @ server).item() >= -1e-12


def test_the_guard_passes_clipped_updates():
    """Directions and the server's length count, so that clipping changes nothing."""
    network = make_network()
    inputs, targets = draw_samples()
    probe = steelyard.Probe(network, inputs, targets, 24, shuffle=False)
    server = train(network, inputs, targets, 0.1, 1, 24)
    base = nn.utils.parameters_to_vector(network.parameters()).detach()
    noise = torch.from_numpy(np.random.default_rng(0).normal(size=(6, len(server))))
    updates = server + 0.1 * noise * server.norm() / len(server) ** 0.5
    updates[3] *= 50
    plain = steelyard.aggregate("fltrust", base, base + updates, probe=probe)
    guarded = steelyard.aggregate("guard(fltrust)", base, base + updates, probe=probe)
    assert 3 in guarded.report["clipped"]
    torch.testing.assert_close(guarded.params, plain.params, rtol=1e-9, atol=1e-12)


def test_a_client_with_nan_is_named_and_the_round_continues(tmp_path):
    from safetensors.torch import save_file

    base = {"w": torch.ones(50)}
    paths = {}
    save_file(base, tmp_path / "base.safetensors")
    for client in range(4):
        model = {"w": base["w"] - 0.1 * torch.rand(50)}
        if client == 2:
            model["w"][7] = torch.nan
        paths[client] = tmp_path / f"{client}.safetensors"
        save_file(model, paths[client])
    from steelyard.stores._safetensors import SafetensorsStore

    store = SafetensorsStore.open(tmp_path / "base.safetensors", paths)
    out = steelyard.aggregate("fltrust", None, store, probe=Quadratic())
    assert list(out.report["quarantined"]) == [2]
    assert out.report["void"] is None


def test_a_learning_rate_that_diverges_is_named():
    network = make_network().float()
    inputs, targets = draw_samples()
    probe = steelyard.Probe(network, inputs.float(), targets, 4, shuffle=False)
    base = nn.utils.parameters_to_vector(network.parameters()).detach()
    rule = steelyard.fltrust(lr=1e38, epochs=3)
    with pytest.raises(steelyard.SteelyardError, match="lr="):
        steelyard.aggregate(rule, base, base + torch.ones(2, len(base)), probe=probe)


def test_without_proxy_data_it_is_refused():
    with pytest.raises(steelyard.SteelyardError, match="fltrust"):
        steelyard.aggregate("fltrust", torch.zeros(3), torch.ones(2, 3))
    with pytest.raises(steelyard.SteelyardError, match="only the whole model has"):
        steelyard.per_layer("fltrust")


def test_a_simulated_run_with_proxy_data_learns():
    proxy = {"per_class": 5, "batch_size": 10}  # five steps per epoch
    history = steelyard.simulate(
        "fltrust:epochs=4", "digits", "logistic", rounds=8, clients=6, seed=0, proxy=proxy
    )
    assert history.final_accuracy > 0.5
    assert not any(record["void"] for record in history.records)


def test_text_and_contract():
    rule = steelyard.fltrust(epochs=3, lr=0.01)
    assert steelyard.parse_rule(to_text(rule)) == rule
    check_rule(rule, sums_to_one=False)
    for wrong in ("fltrust:epochs=0", "fltrust:lr=0"):
        with pytest.raises(steelyard.SteelyardError):
            steelyard.parse_rule(wrong)
