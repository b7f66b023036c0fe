"""Selections do what the matrices they stand for do."""

import numpy as np
import pytest

from steelyard.core._gram import Gram
from steelyard.core._sums import Selection, compose_rows

RNG = np.random.default_rng(0)
K = 6


def as_matrix(rows):
    """The matrix that a selection stands for."""
    if not isinstance(rows, Selection):
        return rows
    matrix = np.zeros((len(rows.index), rows.count))
    matrix[np.arange(len(rows.index)), rows.index] = rows.factors
    return matrix


MAPS = {
    "clips": Selection.of(range(K), np.array([1.0, 0.5, 1.0, 1e-9, 1.0, 0.25])),
    "leaves out": Selection.of([0, 2, 3, 5], np.ones(K)),
    "both": Selection.of([1, 3, 4], np.array([1.0, 0.5, 1.0, 1e-9, 1.0, 0.25])),
    "identity": Selection.of(range(K), np.ones(K)),
    "matrix": RNG.random((K, K)),
}


@pytest.mark.parametrize("rows", MAPS.values(), ids=MAPS)
def test_products(rows):
    weights = RNG.random((3, as_matrix(rows).shape[0]))
    values = RNG.random((K, 5))
    np.testing.assert_array_equal(weights @ rows, weights @ as_matrix(rows))
    np.testing.assert_array_equal(rows @ values, as_matrix(rows) @ values)
    np.testing.assert_array_equal(rows @ values[:, 0], as_matrix(rows) @ values[:, 0])


@pytest.mark.parametrize("rows", MAPS.values(), ids=MAPS)
def test_the_gram_of_selected_updates(rows):
    updates = RNG.standard_normal((K + 1, 20))
    gram = Gram.of_rows((updates @ updates.T)[None], np.array([20.0]))
    ours, dense = gram.transform(rows), gram.transform(as_matrix(rows))
    np.testing.assert_allclose(ours.dots, dense.dots, rtol=1e-12)
    np.testing.assert_allclose(ours.theta_dots, dense.theta_dots, rtol=1e-12)
    np.testing.assert_array_equal(ours.dots, ours.dots.transpose(0, 2, 1))


@pytest.mark.parametrize("first", MAPS.values(), ids=MAPS)
@pytest.mark.parametrize("kind", ["selection", "matrix"])
def test_one_map_after_another(first, kind):
    count = as_matrix(first).shape[0]
    second = (
        Selection.of([0, count - 1], np.linspace(0.5, 1, count))
        if kind == "selection"
        else RNG.random((2, count))
    )
    composed = compose_rows(second, first)
    np.testing.assert_allclose(as_matrix(composed), as_matrix(second) @ as_matrix(first))
    assert compose_rows(second, None) is second


def test_identity():
    assert [
        name for name, rows in MAPS.items() if isinstance(rows, Selection) and rows.is_identity
    ] == ["identity"]
