"""What leaves are, and how a model is cut into layers."""

import pytest
import torch

import steelyard
from steelyard.core._layout import Layout
from tests.rounds import cohort, model, reports


def test_kinds():
    layout = Layout.of(
        {**model(), "mask": torch.ones(3, dtype=torch.bool), "position_ids": torch.arange(4)}
    )
    kinds = {leaf.name: leaf.kind for leaf in layout.leaves}
    assert kinds == {
        "conv.weight": "param",
        "conv.bias": "param",
        "bn.weight": "param",
        "bn.bias": "param",
        "bn.running_mean": "stat",
        "bn.running_var": "stat",
        "scale": "param",
        "fc.weight": "param",
        "bn.num_batches_tracked": "count",
        "mask": "count",
        "position_ids": "count",
    }


def test_kinds_can_be_overridden():
    base, clients = cohort(3)
    out = steelyard.aggregate(
        "uniform|shrink:gamma=0.5", base, clients, kinds={"bn.running_*": "param"}
    )
    mean = torch.stack([m["bn.running_mean"] for m in clients.values()]).mean(0)
    torch.testing.assert_close(out.params["bn.running_mean"], 0.5 * mean)
    with pytest.raises(steelyard.SteelyardError, match="only floats"):
        Layout.of(base, {"*tracked": "param"})
    with pytest.raises(steelyard.SteelyardError, match="param"):
        Layout.of(base, {"fc*": "weights"})


def test_shrinking_never_touches_statistics():
    base, clients = cohort(3)
    plain = steelyard.aggregate("uniform", base, clients)
    shrunk = steelyard.aggregate("uniform|shrink:gamma=0.5", base, clients)
    assert torch.equal(plain.params["bn.running_var"], shrunk.params["bn.running_var"])
    torch.testing.assert_close(shrunk.params["fc.weight"], 0.5 * plain.params["fc.weight"])


def test_an_averaged_variance_is_never_negative():
    base, clients = cohort(3)
    broken = {c: {**m, "bn.running_var": m["bn.running_var"] - 50} for c, m in clients.items()}
    out = steelyard.aggregate("uniform", base, broken)
    assert (out.params["bn.running_var"] == 0).all()
    assert (out.params["bn.running_mean"] < 0).any()


@pytest.mark.parametrize(
    ("layers", "names"),
    [
        ("tensor", ["bn.bias", "bn.weight", "conv.bias", "conv.weight", "fc.weight", "scale"]),
        ("module", ["bn", "conv", "fc", "scale"]),
        (("*.weight", "*.bias"), ["*.bias", "*.weight", "rest"]),
        (("nothing",), ["rest"]),
    ],
)
def test_layers(layers, names):
    base, clients = cohort(4)
    out = steelyard.aggregate(
        steelyard.fedawa_l(layers=layers, steps=5), base, clients, metrics=reports(list(clients))
    )
    assert out.report["layers"] == names
    assert out.weights.shape == (len(names), 4)
    torch.testing.assert_close(out.weights.sum(1), torch.ones(len(names), dtype=torch.float64))


def test_each_layer_is_mixed_with_its_own_weights():
    base, clients = cohort(4)
    rule = steelyard.per_layer(steelyard.fedadp(), layers="module")
    out = steelyard.aggregate(rule, base, clients, metrics=reports(list(clients)))
    assert not torch.allclose(out.weights[0], out.weights[1], atol=1e-3)
    for name in ("conv.weight", "fc.weight", "scale", "bn.bias"):
        row = out.weights[out.report["layers"].index(name.partition(".")[0])]
        step = sum(
            w * (m[name] - base[name]).double() for w, m in zip(row, clients.values(), strict=True)
        )
        torch.testing.assert_close(
            out.params[name].double(), base[name] + step, rtol=1e-5, atol=1e-6
        )
    row = out.weights[out.report["layers"].index("bn")]
    mean = sum(
        w * m["bn.running_mean"].double() for w, m in zip(row, clients.values(), strict=True)
    )
    torch.testing.assert_close(out.params["bn.running_mean"].double(), mean, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("layers", [(3, 4), (10, 0), (), "block", (20, 30, 1)])
def test_wrong_layers(layers):
    with pytest.raises(steelyard.SteelyardError, match="layers"):
        steelyard.aggregate(
            steelyard.fedawa_l(layers=layers),
            torch.zeros(50),
            torch.ones(2, 50),
            metrics={"num_examples": [1, 1]},
        )
    with pytest.raises(steelyard.SteelyardError, match="flat tensor"):
        Layout.of(model()).layers((10, 20))


@pytest.mark.parametrize("value", [3.5, "text", None])
def test_leaves_must_be_tensors(value):
    with pytest.raises(steelyard.SteelyardError, match="leave it out"):
        Layout.of({"a": torch.ones(2), "_extra_state": value})
    with pytest.raises(steelyard.SteelyardError, match="real and imaginary"):
        Layout.of({"a": torch.ones(2, dtype=torch.complex64)})


def test_empty_leaves_and_their_shape_survive():
    base = {"a": torch.ones(3), "none": torch.zeros(0, 4), "b": torch.ones(2)}
    clients = [{k: v + i for k, v in base.items()} for i in (1, 3)]
    for rule in ("uniform", "krum", "uniform|ldawa:warmup=0"):
        out = steelyard.aggregate(rule, base, clients)
        assert out.params["none"].shape == (0, 4)
        assert out.params["b"].isfinite().all()
