"""LoRA adapters: rules see products of factors, and the server averages products."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import steelyard
from steelyard import SteelyardError
from steelyard.core._layout import Layout
from steelyard.core._lora import Factors, LoraOutput, model_products, parse_lora

MODULES = {"h.0.attn": (7, 5), "h.1.mlp": (4, 9)}


def make_adapter(rng, ranks, dtype=torch.float64, scale=1.0):
    """Returns the adapter of a model, with these ranks by module, and an ordinary weight."""
    tensors = {}
    for module, (outputs, inputs) in MODULES.items():
        rank = ranks[module]
        tensors[f"{module}.lora_A.weight"] = torch.randn(rank, inputs, generator=rng, dtype=dtype)
        tensors[f"{module}.lora_B.weight"] = scale * torch.randn(
            outputs, rank, generator=rng, dtype=dtype
        )
    tensors["norm.weight"] = torch.randn(6, generator=rng, dtype=dtype)
    return tensors


def to_dense(adapter):
    """Returns a model in which every adapter is replaced by its product."""
    dense = {"norm.weight": adapter["norm.weight"].double()}
    for module in MODULES:
        a = adapter[f"{module}.lora_A.weight"].double()
        b = adapter[f"{module}.lora_B.weight"].double()
        dense[module] = b.flatten(1) @ a.flatten(1)
    return dense


def make_round(seed, count, dtype=torch.float64, is_base_zero=False, max_rank=4):
    rng = torch.Generator().manual_seed(seed)
    numbers = np.random.default_rng(seed)
    base = make_adapter(rng, dict.fromkeys(MODULES, 2), dtype, scale=0.0 if is_base_zero else 1.0)
    clients = {}
    for k in range(count):
        ranks = {module: int(numbers.integers(1, max_rank + 1)) for module in MODULES}
        clients[f"c{k}"] = make_adapter(rng, ranks, dtype)
    sizes = {"num_examples": {client: 10 + 3 * k for k, client in enumerate(clients)}}
    return base, clients, sizes


def aggregate_dense(rule, base, clients, sizes, **options):
    dense = {client: to_dense(model) for client, model in clients.items()}
    return steelyard.aggregate(rule, to_dense(base), dense, metrics=sizes, diagnose=True, **options)


@given(
    seed=st.integers(0, 10**6),
    count=st.integers(1, 6),
    is_base_zero=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
@settings(max_examples=40, deadline=None)
def test_the_gram_is_that_of_the_products(seed, count, is_base_zero, dtype):
    base, clients, sizes = make_round(seed, count, dtype, is_base_zero)
    dense = aggregate_dense("fedavg", base, clients, sizes).gram.whole
    found = steelyard.aggregate("fedavg", base, clients, metrics=sizes, diagnose=True).gram.whole
    tolerance = 1e-12 if dtype == torch.float64 else 1e-6
    scale = np.abs(dense.dots).max() + float(dense.theta_sq[0])
    np.testing.assert_allclose(found.dots, dense.dots, atol=tolerance * scale, rtol=0)
    np.testing.assert_allclose(found.theta_dots, dense.theta_dots, atol=tolerance * scale, rtol=0)
    np.testing.assert_allclose(found.theta_sq, dense.theta_sq, atol=tolerance * scale, rtol=0)


@given(
    seed=st.integers(0, 10**6),
    count=st.integers(1, 12),
    shape=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    rank=st.integers(1, 9),
    scale=st.floats(1e-4, 1e4),
    has_base=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
@settings(max_examples=150, deadline=None)
def test_products_of_any_shape_are_those_of_dense_ones(
    seed, count, shape, rank, scale, has_base, dtype
):
    outputs, inputs = shape
    rng = torch.Generator().manual_seed(seed)
    a = torch.randn(count + 1, rank, inputs, generator=rng, dtype=dtype)
    b = scale * torch.randn(count + 1, outputs, rank, generator=rng, dtype=dtype)
    a[-1] *= has_base  # the global model
    dense = torch.bmm(b.double(), a.double()).flatten(1)
    expected = (dense @ dense.T).numpy()
    tolerance = 1e-12 if dtype == torch.float64 else 1e-6
    limit = tolerance * np.abs(expected).max()
    np.testing.assert_allclose(model_products(a, b), expected, atol=limit, rtol=0)


RULES = [
    "fedavg",
    "fedadp",
    "fedawa:steps=3",
    "guard(fedavg)",
    "per_layer(fedadp)",
    "fedavg|shrink:0.8",
]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("lora", ["stack", "svd:9", "residual"])
def test_exact_outputs_are_the_mixture_of_the_products(rule, lora):
    base, clients, sizes = make_round(3, 4)
    dense = aggregate_dense(rule, base, clients, sizes)
    out = steelyard.aggregate(rule, base, clients, metrics=sizes, lora=lora)
    torch.testing.assert_close(
        out.weights.flatten(), dense.weights.flatten(), rtol=1e-9, atol=1e-12
    )
    found = to_dense(out.params)
    for module, residual in out.residuals.items():
        found[module] += residual.left @ residual.right
    for name, expected in dense.params.items():
        torch.testing.assert_close(found[name], expected, rtol=1e-9, atol=1e-9)
    assert set(out.report["lora_error"]) == set(MODULES)
    assert max(out.report["lora_error"].values()) < 1e-7


@pytest.mark.parametrize("lora", ["svd:2", "factors"])
def test_the_error_is_the_distance_to_the_exact_product(lora):
    rng = torch.Generator().manual_seed(5)
    ranks = dict.fromkeys(MODULES, 3)
    base = make_adapter(rng, ranks)
    clients = [make_adapter(rng, ranks) for _ in range(4)]
    sizes = {"num_examples": [3, 5, 2, 9]}
    dense = steelyard.aggregate(
        "fedavg", to_dense(base), [to_dense(c) for c in clients], metrics=sizes
    )
    out = steelyard.aggregate("fedavg", base, clients, metrics=sizes, lora=lora)
    for module in MODULES:
        exact = dense.params[module]
        step = (exact - to_dense(base)[module]).norm()
        error = (to_dense(out.params)[module] - exact).norm() / step
        assert out.report["lora_error"][module] == pytest.approx(float(error), rel=1e-6)
        assert float(error) > 0.01


def test_svd_is_the_best_approximation():
    base, clients, sizes = make_round(8, 5)
    dense = aggregate_dense("fedavg", base, clients, sizes)
    out = steelyard.aggregate("fedavg", base, clients, metrics=sizes, lora="svd:2")
    for module in MODULES:
        u, values, v = torch.linalg.svd(dense.params[module], full_matrices=False)
        best = u[:, :2] * values[:2] @ v[:2]
        torch.testing.assert_close(to_dense(out.params)[module], best, rtol=1e-8, atol=1e-8)


def test_factors_are_averaged_as_ordinary_leaves():
    rng = torch.Generator().manual_seed(5)
    ranks = dict.fromkeys(MODULES, 3)
    base = make_adapter(rng, ranks)
    clients = [make_adapter(rng, ranks) for _ in range(3)]
    out = steelyard.aggregate("uniform", base, clients, lora="factors")
    for name in base:
        mean = torch.stack([client[name] for client in clients]).mean(dim=0)
        torch.testing.assert_close(out.params[name], mean)


def test_convolutions_and_embeddings():
    rng = torch.Generator().manual_seed(0)

    def make():
        return {
            "conv.lora_A.weight": torch.randn(2, 3, 3, 3, generator=rng, dtype=torch.float64),
            "conv.lora_B.weight": torch.randn(5, 2, 1, 1, generator=rng, dtype=torch.float64),
            "emb.lora_embedding_A": torch.randn(2, 11, generator=rng, dtype=torch.float64),
            "emb.lora_embedding_B": torch.randn(4, 2, generator=rng, dtype=torch.float64),
        }

    def dense(model):
        conv = model["conv.lora_B.weight"].flatten(1) @ model["conv.lora_A.weight"].flatten(1)
        return {"conv": conv, "emb": model["emb.lora_embedding_B"] @ model["emb.lora_embedding_A"]}

    base, *clients = [make() for _ in range(4)]
    exact = steelyard.aggregate("uniform", dense(base), [dense(client) for client in clients])
    out = steelyard.aggregate("uniform", base, clients, lora="stack")
    assert out.params["conv.lora_A.weight"].shape == (6, 3, 3, 3)
    assert out.params["conv.lora_B.weight"].shape == (5, 6, 1, 1)
    for name, value in dense(out.params).items():
        torch.testing.assert_close(value, exact.params[name], rtol=1e-9, atol=1e-9)


def test_layers_of_adapters_are_their_modules():
    base, _, _ = make_round(0, 1)
    layout = Layout.of(base)
    layers = layout.layers("tensor")
    assert set(layers.names) == {*MODULES, "norm.weight"}
    assert [layers.names[layer] for layer in layers.pair_layers] == list(MODULES)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("missing", "missing key 'h.0.attn.lora_B.weight'"),
        ("nan", "NaN"),
        ("ranks", "adapter 'h.0.attn' has A of rank"),
        ("huge", "adapter 'h.0.attn' has rank 1000, more than 5"),
    ],
)
def test_a_hostile_adapter_is_quarantined_by_name(change, reason):
    base, clients, sizes = make_round(2, 4)
    bad = clients["c1"]
    if change == "missing":
        del bad["h.0.attn.lora_B.weight"]
    elif change == "nan":
        bad["h.0.attn.lora_B.weight"][0, 0] = float("nan")
    elif change == "ranks":
        bad["h.0.attn.lora_B.weight"] = torch.ones(7, 9, dtype=torch.float64)
    else:
        bad["h.0.attn.lora_A.weight"] = torch.ones(1000, 5, dtype=torch.float64)
        bad["h.0.attn.lora_B.weight"] = torch.ones(7, 1000, dtype=torch.float64)
    out = steelyard.aggregate("fedavg", base, clients, metrics=sizes)
    assert list(out.report["quarantined"]) == ["c1"]
    assert reason in out.report["quarantined"]["c1"]
    assert out.params["h.0.attn.lora_A.weight"].shape[0] < 50


def test_parts_that_act_on_factors_need_factors():
    base, clients, sizes = make_round(2, 3)
    with pytest.raises(SteelyardError, match=r"server=adam.*lora=factors"):
        steelyard.aggregate("fedavg", base, clients, metrics=sizes, server="adam")
    with pytest.raises(SteelyardError, match="coordinate by coordinate"):
        steelyard.aggregate("median", base, clients)


@pytest.mark.parametrize("text", ["svd:0", "svd:x", "mean", "", "stack:3"])
def test_unknown_outputs_name_the_known_ones(text):
    with pytest.raises(SteelyardError, match="lora="):
        parse_lora(text)


def test_outputs_as_text():
    assert parse_lora("svd:8") == parse_lora("svd:rank=8") == LoraOutput("svd", 8)
    assert str(parse_lora("svd:8")) == "svd:8"


def test_the_norm_of_factors_is_that_of_the_product():
    rng = torch.Generator().manual_seed(1)
    factors = Factors(torch.randn(9, 4, generator=rng), torch.randn(4, 6, generator=rng))
    assert factors.norm() == pytest.approx(float((factors.left @ factors.right).norm()), rel=1e-6)


def test_the_guard_limits_products():
    """A client whose product is a thousand times as long moves the model no further than others."""
    base, clients, _ = make_round(0, 5, is_base_zero=True)
    attacked = dict(clients)
    attacked["c2"] = {
        name: 1000 * tensor if "lora_B" in name else tensor
        for name, tensor in clients["c2"].items()
    }
    norms = {}
    for rule in ("uniform", "guard(uniform)"):
        for name, models in (("honest", clients), ("attacked", attacked)):
            out = steelyard.aggregate(rule, base, models, diagnose=True)
            norms[rule, name] = out.report["update_norm"]
    assert norms["guard(uniform)", "attacked"] < 3 * norms["guard(uniform)", "honest"]
    assert norms["uniform", "attacked"] > 30 * norms["uniform", "honest"]
