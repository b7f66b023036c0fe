"""What a rule looks at is made once, and only if it looks."""

import pytest
import torch

import steelyard
from steelyard import kernels

METRICS = {"num_examples": [1, 2, 3], "grad_norm": [1.0, 1.0, 1.0]}


@pytest.mark.parametrize(
    ("rule", "layers"),
    [
        ("fedavg", []),
        ("fedadp", [1]),
        ("fedadp|fedawa", [1]),
        ("guard(fedadp)", [1]),
        ("guard(fedavg)", []),  # lengths are enough
        ("fedawa_l", [2]),
        ("guard(fedawa_l)", [2]),  # the whole model's come off the layers'
        ("gate(eq6:first=false,fedadp)", []),  # closed
    ],
)
def test_passes_over_the_updates(rule, layers, monkeypatch):
    seen, gram = [], kernels.gram

    def counted(store, count, spans, chunk=None):
        seen.append(len(spans))
        return gram(store, count, spans, chunk)

    monkeypatch.setattr(kernels, "gram", counted)
    base = {"a": torch.zeros(5), "b": torch.zeros(3)}
    g = torch.Generator().manual_seed(0)
    clients = [
        {name: torch.randn(value.shape, generator=g) for name, value in base.items()}
        for _ in range(3)
    ]
    out = steelyard.aggregate(rule, base, clients, metrics=METRICS)
    assert seen == layers
    assert ("coherence" in out.report) == bool(layers)
    seen.clear()
    out = steelyard.aggregate(rule, base, clients, metrics=METRICS, diagnose=True)
    assert len(seen) == 1
    assert "coherence" in out.report
