"""The spectrum against a dense Hessian."""

import sys

import numpy as np
import pytest
import torch
from torch import nn

from steelyard.core._errors import SteelyardError
from steelyard.diagnostics import Spectrum, Surface, hessian_spectrum, losses_along

INPUTS = torch.randn(700, 4, generator=torch.Generator().manual_seed(0))  # more than one pass
TARGETS = torch.arange(700) % 3


def network(seed=3):
    g = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=g))
    return model


def dense(model, inputs, targets):
    """The Hessian over the parameters in the order of their names."""
    model = model.double()
    params = dict(sorted(model.named_parameters()))
    sizes = [p.numel() for p in params.values()]

    def loss(vector):
        parts = torch.split(vector, sizes)
        made = {
            name: part.view(p.shape) for (name, p), part in zip(params.items(), parts, strict=True)
        }
        return nn.functional.cross_entropy(
            torch.func.functional_call(model, made, (inputs.double(),)), targets
        )

    theta = torch.cat([p.detach().reshape(-1) for p in params.values()])
    return torch.autograd.functional.hessian(loss, theta).numpy()


def test_eigenvalues_and_vectors_of_the_dense_hessian():
    found = hessian_spectrum(network(), INPUTS, TARGETS, double=True, tolerance=1e-12)
    hessian = dense(network(), INPUTS, TARGETS)
    values = np.linalg.eigvalsh(hessian)[::-1]
    np.testing.assert_allclose(found.values, values[:5], rtol=1e-9)
    for value, vector in zip(found.values, found.vectors, strict=True):
        np.testing.assert_allclose(hessian @ vector, value * vector, atol=1e-8)
        assert np.linalg.norm(vector) == pytest.approx(1)
    assert found.top == pytest.approx(values[0])
    assert found.ratio == pytest.approx(values[0] / values[4])


def test_float32_is_good_to_three_digits():
    exact = hessian_spectrum(network(), INPUTS, TARGETS, double=True, tolerance=1e-12)
    assert hessian_spectrum(network(), INPUTS, TARGETS).top == pytest.approx(exact.top, rel=1e-3)


def test_the_same_seed_gives_the_same_bits():
    first, second = (hessian_spectrum(network(), INPUTS, TARGETS, k=2) for _ in range(2))
    assert np.array_equal(first.vectors, second.vectors)


def test_frozen_parameters_are_no_directions():
    model = network()
    model[0].weight.requires_grad_(False)  # in the order of names, coordinates 3 to 14
    found = hessian_spectrum(model, INPUTS, TARGETS, k=3, double=True, tolerance=1e-12)
    keep = np.r_[0:3, 15:27]
    values = np.linalg.eigvalsh(dense(network(), INPUTS, TARGETS)[np.ix_(keep, keep)])[::-1]
    np.testing.assert_allclose(found.values, values[:3], rtol=1e-9)
    assert not found.vectors[:, 3:15].any()
    assert np.linalg.norm(found.vectors[0]) == pytest.approx(1)


class Attentive(nn.Module):
    """A convolution, BatchNorm and attention: what a second derivative may stumble over."""

    def __init__(self):
        super().__init__()
        self.conv, self.bn, self.head = nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4), nn.Linear(4, 3)

    def forward(self, x):
        tokens = (
            self.bn(self.conv(x)).transpose(1, 2).unsqueeze(1).contiguous()
        )  # as the fast kernels want it
        mixed = nn.functional.scaled_dot_product_attention(tokens, tokens, tokens)
        return self.head(mixed.mean(dim=(1, 2)))


def test_curvature_is_the_derivative_of_the_gradient():
    model = Attentive().double().eval()
    inputs = torch.randn(8, 2, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    targets = torch.arange(8) % 3
    params = dict(sorted(model.named_parameters()))
    direction = torch.randn(sum(p.numel() for p in params.values()), dtype=torch.float64)

    def gradient(step):
        parts = torch.split(direction, [p.numel() for p in params.values()])
        made = {
            name: (p.detach() + step * part.view(p.shape)).requires_grad_()
            for (name, p), part in zip(params.items(), parts, strict=True)
        }
        loss = nn.functional.cross_entropy(
            torch.func.functional_call(model, made, (inputs,)), targets
        )
        return torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(made.values()))])

    expected = (gradient(1e-5) - gradient(-1e-5)) / 2e-5
    torch.testing.assert_close(
        Surface(model, inputs, targets).curvature(direction), expected, rtol=1e-6, atol=1e-8
    )


def test_a_loss_that_is_linear_in_its_parameters_is_flat():
    surface = Surface(
        nn.Linear(2, 1), torch.ones(3, 2), torch.zeros(3), lambda output, _: output.mean()
    )
    assert not surface.curvature(torch.ones(3)).any()


@pytest.mark.parametrize(
    ("scale", "message"), [(float("nan"), "curvature .*not finite"), (0.0, "curvature .* 0")]
)
def test_a_loss_without_curvature_is_an_error_that_says_so(scale, message):
    with pytest.raises(SteelyardError, match=message):
        hessian_spectrum(
            network(), INPUTS, TARGETS, loss=lambda output, _: scale * output.square().mean()
        )


def test_eigenvalues_that_do_not_converge(monkeypatch):
    from scipy.sparse import linalg

    def stuck(*_, **__):
        raise linalg.ArpackNoConvergence("no convergence", np.zeros(0), np.zeros((0, 0)))

    monkeypatch.setattr(linalg, "eigsh", stuck)
    with pytest.raises(SteelyardError, match=r"tolerance=0.0001: use a larger one"):
        hessian_spectrum(network(), INPUTS, TARGETS)


def test_a_layer_without_second_derivative_is_an_error_that_says_so():
    model = nn.Sequential(nn.EmbeddingBag(5, 4), nn.Linear(4, 3))
    with pytest.raises(SteelyardError, match="_embedding_bag_backward"):
        hessian_spectrum(model, torch.zeros(6, 2, dtype=torch.int64), TARGETS[:6])


def test_loss_along_a_direction_is_the_parabola_of_least_squares():
    model = nn.Linear(4, 1, bias=False).double()
    inputs, targets = INPUTS.double(), INPUTS.double().sum(dim=1, keepdim=True)
    mse = nn.functional.mse_loss
    found = hessian_spectrum(model, inputs, targets, k=1, loss=mse, double=True, tolerance=1e-12)
    steps = [-1.0, 0.0, 0.5]
    losses = losses_along(model, inputs, targets, found.vectors[0], steps, loss=mse)
    theta, v = model.weight[0].detach(), torch.from_numpy(found.vectors[0])
    residual = inputs @ theta - targets[:, 0]
    slope = 2 * (residual * (inputs @ v)).mean().item()
    expected = [
        residual.square().mean().item() + s * slope + 0.5 * s * s * found.top for s in steps
    ]
    np.testing.assert_allclose(losses, expected, rtol=1e-9)


def test_without_scipy_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.sparse.linalg", None)
    with pytest.raises(SteelyardError, match=r"pip install 'steelyard\[diagnostics\]'"):
        hessian_spectrum(network(), INPUTS, TARGETS)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: hessian_spectrum(network(), INPUTS, TARGETS, k=27), "k less than 27"),
        (lambda: hessian_spectrum(network(), INPUTS, TARGETS, k=0), "k=0"),
        (lambda: hessian_spectrum(network(), INPUTS, TARGETS[:3]), "700 inputs and 3 targets"),
        (
            lambda: losses_along(network(), INPUTS, TARGETS, np.ones(3), [1]),
            r"shape \[3\]: give \[27\]",
        ),
        (lambda: Spectrum(np.ones(3), np.ones((3, 9))).ratio, "ask for k=5"),
    ],
)
def test_errors_name_the_value_and_the_cure(call, message):
    with pytest.raises(SteelyardError, match=message):
        call()
