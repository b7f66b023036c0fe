"""Federated training of LoRA adapters in the simulator: what travels, and what the server returns."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from torch import nn

import steelyard
from steelyard.client._adapters import load_model, state_to_send
from steelyard.core._errors import SteelyardError

peft = pytest.importorskip("peft", reason="needs the extra [lora]")

KINDS = ("residual", "stack", "svd", "factors")


class Network(nn.Module):
    """Two linear layers, of which PEFT adapts both."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 24)
        self.second = nn.Linear(24, 10)

    def forward(self, inputs):
        return self.second(torch.relu(self.first(inputs.flatten(1))))


def make_network(rank=3, **options):
    torch.manual_seed(0)
    config = peft.LoraConfig(r=rank, lora_alpha=6, target_modules=["first", "second"], **options)
    return peft.get_peft_model(Network(), config)


def run(lora, rounds=2, rule="fedavg", model=None, **options):
    return steelyard.simulate(
        rule,
        "digits",
        model or make_network(),
        rounds=rounds,
        clients=4,
        lora=lora,
        local={"lr": 0.3, "batch_size": 32, **options.pop("local", {})},
        **{"executor": "serial", **options},
    )


def effective_weights(module):
    """The weights that act: those of the frozen layer plus the scaled product."""
    weights = {}
    for name, layer in module.named_modules():
        if hasattr(layer, "lora_A"):
            delta = layer.get_delta_weight("default")
            weights[name] = (layer.base_layer.weight + delta).detach().double()
    return weights


@functools.cache
def train_clients():
    """The effective weights of each client after one round, and their sizes."""
    start = make_network()
    weights = []
    federation = steelyard.Federation.partitioned(
        *steelyard.data.load("digits"), "dirichlet:alpha=0.3", 4, 0
    )
    for position, client in enumerate(federation.ids):
        alone = steelyard.Federation(federation.train, (client,), (federation.index[position],))
        history = steelyard.simulate(
            "uniform",
            alone,
            start,
            rounds=1,
            lora="factors",
            executor="serial",
            evaluate_every=0,
            local={"lr": 0.3, "batch_size": 32},
        )
        module = make_network()
        module.load_state_dict(start.state_dict())
        load_model(module, history.params)
        weights.append(effective_weights(module))
    return weights, federation.sizes


def test_only_what_is_trained_travels():
    module = make_network()
    names = set(state_to_send(module))
    assert names == {name for name, p in module.named_parameters() if p.requires_grad}
    history = run("svd", rounds=1)
    assert set(history.params) == names
    assert set(state_to_send(Network())) == set(Network().state_dict())


def test_modules_to_save_travel():
    torch.manual_seed(0)
    config = peft.LoraConfig(r=2, target_modules=["first"], modules_to_save=["second"])
    module = peft.get_peft_model(Network(), config)
    history = run("residual", rounds=1, model=module)
    travelling = state_to_send(module)
    assert any("modules_to_save" in name for name in travelling)
    assert travelling.keys() <= history.params.keys()
    before = travelling["base_model.model.second.modules_to_save.default.weight"]
    assert not torch.equal(
        history.params["base_model.model.second.modules_to_save.default.weight"], before
    )


@pytest.mark.parametrize("lora", ["residual", "stack"])
def test_the_server_is_exact(lora):
    clients, sizes = train_clients()
    shares = sizes / sizes.sum()
    history = run(lora, rounds=1)
    module = make_network()
    load_model(module, history.params)
    for name, weight in effective_weights(module).items():
        exact = sum(share * client[name] for share, client in zip(shares, clients, strict=True))
        assert torch.allclose(weight, exact, atol=1e-6)
    assert max(history.records[0]["lora_error"].values()) == 0.0


@pytest.mark.parametrize("lora", ["svd", "factors"])
def test_others_report_their_error(lora):
    clients, sizes = train_clients()
    shares = sizes / sizes.sum()
    start = effective_weights(make_network())
    history = run(lora, rounds=1)
    module = make_network()
    load_model(module, history.params)
    for name, weight in effective_weights(module).items():
        exact = sum(share * client[name] for share, client in zip(shares, clients, strict=True))
        error = torch.linalg.norm(weight - exact) / torch.linalg.norm(exact - start[name])
        recorded = history.records[0]["lora_error"][f"{name}.default"]
        assert recorded == pytest.approx(float(error), rel=1e-3)
        assert recorded > 0.005


def test_stack_starts_again_from_the_same_factors():
    module = make_network()
    before = state_to_send(module)
    history = run("stack", rounds=2)
    for name, tensor in before.items():
        if "lora_A" in name:
            assert torch.equal(history.params[name], tensor)
        else:
            assert not history.params[name].any()


@pytest.mark.parametrize("lora", KINDS)
def test_executors_agree_bit_for_bit(lora):
    serial = run(lora, executor="serial")
    forked = run(lora, executor="process", workers=2)
    assert serial.params.keys() == forked.params.keys()
    for name, tensor in serial.params.items():
        assert torch.equal(tensor, forked.params[name])


@pytest.mark.parametrize("lora", KINDS)
def test_a_resumed_run_has_the_same_bits(lora, tmp_path):
    whole = run(lora, rounds=4, out=tmp_path / "whole")
    options = {"checkpoint_every": 1, "checkpoint_pace": 1.0}
    run(lora, rounds=2, out=tmp_path / "part", **options)
    resumed = run(lora, rounds=4, out=tmp_path / "part", resume=True, **options)
    assert len(resumed) == 4
    for name, tensor in whole.params.items():
        assert torch.equal(tensor, resumed.params[name])


def test_the_default_is_exact_and_part_of_the_identity(tmp_path):
    default = run(None, rounds=1, out=tmp_path / "run")
    exact = run("residual", rounds=1)
    for name, tensor in exact.params.items():
        assert torch.equal(tensor, default.params[name])
    with pytest.raises(SteelyardError, match="another one"):
        run("svd", rounds=2, out=tmp_path / "run", resume=True)
    other = make_network()
    with torch.no_grad():
        other.base_model.model.first.base_layer.weight.add_(0.01)
    with pytest.raises(SteelyardError, match=r"model\.frozen"):
        run("residual", rounds=2, model=other, out=tmp_path / "run", resume=True)


def test_rules_see_products():
    """The recorded cosines are those of the products, not of the factors."""
    clients, _ = train_clients()
    start = effective_weights(make_network())
    scale = 2.0  # lora_alpha / r
    rows = []
    for client in clients:
        parts = [((client[name] - start[name]) / scale).flatten() for name in start]
        rows.append(torch.cat(parts))
    updates = torch.stack(rows).numpy()
    norms = np.linalg.norm(updates, axis=1)
    history = run("residual", rounds=1, rule="fedadp")
    recorded = [history.records[0]["norms"][str(k)] for k in range(4)]
    assert recorded == pytest.approx(norms, rel=1e-4)


@pytest.mark.parametrize("rule", ["fedadp", "fedawa", "krum", "guard(fedavg)"])
def test_rules_run(rule):
    history = run("residual", rounds=2, rule=rule, local={"lr": 0.1})
    assert np.isfinite(history.records[-1]["loss"])
    assert set(history.records[-1]["weights"]) == {"0", "1", "2", "3"}


def test_training_helps():
    history = run("residual", rounds=15, partition="iid", local={"lr": 0.1})
    assert history.final_accuracy > 0.4


@pytest.mark.parametrize(
    ("lora", "options", "words"),
    [
        ("residual", {"server": "momentum"}, "server=momentum"),
        ("svd", {"client": "scaffold"}, "client=scaffold"),
        ("stack", {"client": "fedcos"}, "client=fedcos"),
        ("residual", {"client": "feddyn"}, "client=feddyn"),
        ("residual", {"rule": "fedlaw", "proxy": {"per_class": 2}}, "fedlaw"),
        ("residual", {"rule": "median"}, "coordinate"),
        ("svd:5", {}, "lora=svd"),
        ("average", {}, "use stack, residual"),
    ],
)
def test_mistakes_are_named(lora, options, words):
    with pytest.raises(SteelyardError, match=words):
        run(lora, rounds=1, **options)


def test_a_network_without_adapters_refuses_the_option():
    with pytest.raises(SteelyardError, match="get_peft_model"):
        run("residual", rounds=1, model=Network())


@pytest.mark.parametrize("term", ["fedprox:mu=0.1", "fedcos:mu=0.1", "scaffold"])
def test_client_terms_run_with_residual(term):
    history = run("residual", rounds=3, client=term)
    assert np.isfinite(history.records[-1]["loss"])


def test_convolutions_embeddings_and_transposed_layers_are_exact():
    """Conv LoRA, embeddings and GPT-2's transposed layers: the server changes the right weight."""
    from steelyard.core._layout import Layout
    from steelyard.core._lora import Factors
    from steelyard.sim._base_weights import BaseWeights

    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(11, 6)
            self.conv = nn.Conv2d(2, 5, 3)
            self.line = nn.Linear(7, 4)

        def forward(self, inputs):
            return inputs

    torch.manual_seed(0)
    config = peft.LoraConfig(r=2, lora_alpha=3, target_modules=["words", "conv", "line"])
    module = peft.get_peft_model(Mixed(), config)
    pairs = Layout.of(state_to_send(module)).pairs
    assert len(pairs) == 3
    for parameter in module.parameters():
        if parameter.requires_grad:
            nn.init.normal_(parameter)
    before = {}
    residuals = {}
    state = module.state_dict()
    for pair in pairs:
        left = state[pair.b.name].double().reshape(pair.outputs, pair.rank)
        right = state[pair.a.name].double().reshape(pair.rank, pair.inputs)
        residuals[pair.name] = Factors(left, right)
    for name, layer in module.named_modules():
        if hasattr(layer, "base_layer"):
            delta = layer.get_delta_weight("default").detach()
            before[name] = layer.base_layer.weight.detach().clone() + delta
    BaseWeights(module, pairs).add(residuals)
    for name, layer in module.named_modules():
        if name in before:
            assert torch.allclose(layer.base_layer.weight, before[name], atol=1e-6)


@pytest.mark.parametrize("rule", ["fedadp", "fedawa"])
def test_replay_sees_products(rule, tmp_path):
    """Replaying the rule of a run on the recorded products gives the weights of the run."""
    history = run("residual", rounds=3, rule=rule, out=tmp_path / "run")
    replayed = steelyard.replay(tmp_path / "run", [rule]).rounds[rule]
    for entry, record in zip(replayed, history.records, strict=True):
        for client, weight in entry.weights.items():
            assert weight == pytest.approx(record["weights"][str(client)], abs=1e-12)
