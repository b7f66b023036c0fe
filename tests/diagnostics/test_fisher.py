"""The Fisher trace against a closed form, and against one sample and one class at a time."""

import pytest
import torch
from torch import nn

from steelyard.client import _fisher as fisher
from steelyard.core._errors import SteelyardError
from steelyard.diagnostics import (
    empirical_fisher_trace,
    federated_fisher_trace,
    fisher_trace,
)
from tests.golden import arrays, tensor

INPUTS = torch.randn(
    70, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64
)  # more than one batch
LABELS = torch.arange(70) % 3


class Recurrent(nn.Module):
    """What vmap cannot map."""

    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.LSTM(2, 3, batch_first=True), nn.Linear(3, 3)

    def forward(self, x):
        return self.head(self.cell(x.view(-1, 3, 2))[0][:, -1])


class Attentive(nn.Module):
    """What vmap maps only by its slow kernel."""

    def __init__(self):
        super().__init__()
        self.key, self.head = nn.Linear(2, 2), nn.Linear(2, 3)

    def forward(self, x):
        tokens = self.key(x.view(-1, 1, 3, 2))
        mixed = nn.functional.scaled_dot_product_attention(tokens, tokens, tokens)
        return self.head(mixed.mean(dim=(1, 2)))


def networks():
    return {
        "batch norm": nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3)),
        "convolution": nn.Sequential(
            nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)
        ),
        "in place": nn.Sequential(
            nn.Linear(6, 5), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(5, 3)
        ),
        "attention": Attentive(),
        "recurrent": Recurrent(),
    }


def square(model, sample, label):
    parameters = [p for p in model.parameters() if p.requires_grad]
    log = model(sample[None]).log_softmax(dim=1)[0, label]
    return sum(g.square().sum().item() for g in torch.autograd.grad(log, parameters))


def loop(model, inputs):
    """Equation (2), term by term."""
    shares = model(inputs).softmax(dim=1).tolist()
    terms = [
        p * square(model, x, y)
        for x, row in zip(inputs, shares, strict=True)
        for y, p in enumerate(row)
    ]
    return sum(terms) / len(inputs)


@pytest.mark.parametrize("name", networks())
def test_the_exact_sum_over_classes(name):
    model = networks()[name].double().eval()
    assert fisher_trace(model, INPUTS) == pytest.approx(loop(model, INPUTS), rel=1e-9)


def test_closed_form_of_softmax_regression():
    golden = arrays("criticalfl_fgn")
    x, y = tensor(golden["X"]), torch.from_numpy(golden["y"])
    model = nn.Linear(5, 3).double()
    with torch.no_grad():
        model.weight.copy_(tensor(golden["W"]))
        model.bias.copy_(tensor(golden["b"]))
    p = model(x).detach().softmax(dim=1)
    lengths = x.square().sum(dim=1) + 1  # the bias is one more input
    exact = (lengths * (1 - p.square().sum(dim=1))).mean().item()
    assert fisher_trace(model, x) == pytest.approx(exact, rel=1e-12)
    away = (p - nn.functional.one_hot(y, 3)).square().sum(dim=1)
    assert empirical_fisher_trace(model, x, y) == pytest.approx(
        (lengths * away).mean().item(), rel=1e-12
    )


def test_the_empirical_one_with_observed_labels():
    model = networks()["convolution"].double()
    expected = sum(square(model, x, y) for x, y in zip(INPUTS, LABELS, strict=True)) / 70
    assert empirical_fisher_trace(model, INPUTS, LABELS) == pytest.approx(expected, rel=1e-9)


def test_a_sample_of_the_samples():
    model = networks()["convolution"].double()
    one = {round(loop(model, x[None]), 9) for x in INPUTS}
    drawn = [fisher_trace(model, INPUTS, n=1, seed=seed) for seed in range(5)]
    assert {round(value, 9) for value in drawn} <= one
    assert len(set(drawn)) > 1
    assert fisher_trace(model, INPUTS, n=5, seed=1) == fisher_trace(model, INPUTS, n=5, seed=1)


def test_frozen_parameters_do_not_count():
    model = networks()["convolution"].double()
    whole = fisher_trace(model, INPUTS)
    model[1].weight.requires_grad_(False)
    assert fisher_trace(model, INPUTS) == pytest.approx(loop(model, INPUTS), rel=1e-9)
    assert fisher_trace(model, INPUTS) < whole


def test_the_model_is_left_as_it_was():
    model = networks()["batch norm"].double().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    fisher_trace(model, INPUTS)
    assert model.training
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", networks())
def test_networks_are_mapped_over_samples_where_they_can_be(name, dtype, monkeypatch):
    calls = []
    original = fisher.grad
    monkeypatch.setattr(fisher, "grad", lambda f: calls.append(f) or original(f))
    fisher_trace(networks()[name].to(dtype), INPUTS[:10].to(dtype))
    trial, classes = 1, 3
    assert len(calls) == (trial + 10 * classes if name == "recurrent" else trial + classes)


def test_equation_3():
    assert federated_fisher_trace([2.0, 6.0], [3, 1]) == pytest.approx(3)
    assert federated_fisher_trace([2.0, 6.0]) == pytest.approx(4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fisher_trace(nn.Linear(6, 3), torch.ones(0, 6)), "at least one sample"),
        (lambda: fisher_trace(nn.Linear(6, 3), torch.ones(2, 6), n=0), "n=0"),
        (lambda: fisher_trace(nn.Conv1d(1, 2, 1), torch.ones(2, 1, 6)), r"shape \[1, 2, 6\]"),
        (
            lambda: fisher_trace(nn.Linear(6, 3).requires_grad_(False), torch.ones(2, 6)),
            "no learned parameters",
        ),
        (
            lambda: empirical_fisher_trace(nn.Linear(6, 3), torch.ones(2, 6), torch.ones(2)),
            "float32",
        ),
        (
            lambda: empirical_fisher_trace(nn.Linear(6, 3), torch.ones(2, 6), torch.ones(3).long()),
            "give 2 class numbers",
        ),
        (
            lambda: empirical_fisher_trace(nn.Linear(6, 3), torch.ones(2, 6), torch.tensor([0, 3])),
            "targets go from 0 to 3: the model has 3 classes: use 0 to 2",
        ),
        (
            lambda: empirical_fisher_trace(
                nn.Linear(6, 3), torch.ones(2, 6), torch.tensor([-1, 2])
            ),
            "targets go from -1 to 2",
        ),
        (lambda: federated_fisher_trace([1.0], [1, 2]), "each of the 1 clients"),
    ],
)
def test_errors_name_the_value_and_the_cure(call, message):
    with pytest.raises(SteelyardError, match=message):
        call()
