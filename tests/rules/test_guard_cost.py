"""What the guard costs, counted in operations and bytes: seconds depend on who else uses the machine."""

import math
import tracemalloc

import numpy as np
import pytest
import torch

import steelyard
from steelyard.core._gram import Gram
from steelyard.core._mixture import Mixture
from steelyard.core._view import View
from steelyard.rules._combinators import with_default_source


class Counted(np.ndarray):
    """An array that counts the multiplications and additions made with it."""

    operations = 0

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **options):
        plain = [np.asarray(value) if isinstance(value, np.ndarray) else value for value in inputs]
        if isinstance(options.get("where"), np.ndarray):
            options["where"] = np.asarray(options["where"])
        if out is not None:
            options["out"] = tuple(np.asarray(value) for value in out)
        result = getattr(ufunc, method)(*plain, **options)
        work = max(np.size(result), *(np.size(value) for value in plain))
        if ufunc is np.matmul:
            work = np.size(result) * plain[0].shape[-1]
        Counted.operations += work
        return result.view(Counted) if isinstance(result, np.ndarray) else result


def count_operations(rule, count):
    """Operations of a rule on a Gram of so many clients, one of whom is clipped and one set aside."""
    g = np.random.default_rng(0)
    updates = g.standard_normal((count + 1, 30))
    updates[3] *= 100
    updates[5] = 0
    products = (updates @ updates.T)[None]
    gram = Gram.of_rows(products.view(Counted), np.array([30.0]))
    view = View(
        ids=tuple(range(count)),
        round=1,
        needs=with_default_source(rule).needs,
        metrics={"num_examples": np.full(count, 10.0)},
        grams=lambda layers: gram,
        layer_counts=lambda layers: 1,
        trials=None,
        lengths=lambda: gram.norms[0],
    )
    Counted.operations = 0
    with_default_source(rule).apply(Mixture.convex(np.ones((1, count))), view, {})
    return Counted.operations


@pytest.mark.parametrize("rule", ["fedadp", "geometric_median", "krum:f=1"])
def test_the_guard_grows_as_the_rule_does(rule):
    plain = [count_operations(steelyard.parse_rule(rule), count) for count in (50, 400)]
    guarded = [
        count_operations(steelyard.parse_rule(f"guard({rule})"), count) for count in (50, 400)
    ]
    assert guarded[1] <= 3 * plain[1]
    exponents = [math.log(many / few) / math.log(8) for few, many in (plain, guarded)]
    assert exponents[1] <= exponents[0] + 0.2


@pytest.mark.parametrize("rule", ["fedavg", "uniform", "median", "trimmed_mean:f=10"])
def test_rules_without_a_gram_stay_linear_in_memory(rule):
    count, width = 3000, 4
    g = torch.Generator().manual_seed(0)
    base = torch.randn(width, generator=g)
    clients = base + torch.randn(count, width, generator=g)
    clients[3] = base + 1e6
    clients[5] = base
    metrics = {"num_examples": [10] * count}
    tracemalloc.start()
    try:
        out = steelyard.aggregate(f"guard({rule})", base, clients, metrics=metrics)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 3 in out.report["clipped"]
    assert peak < count * count  # bytes: an eighth of one K x K matrix
