"""Distances and cosines read off a Gram."""

import numpy as np
import pytest

from steelyard.core._gram import Gram


def gram_of(updates, theta):
    rows = np.vstack([updates, theta])
    return Gram.of_rows((rows @ rows.T)[None], np.array([rows.shape[1]], dtype=np.float64))


@pytest.fixture
def random():
    rng = np.random.default_rng(0)
    updates, theta = rng.standard_normal((6, 40)), rng.standard_normal(40)
    return updates, theta, gram_of(updates, theta)


def test_against_the_vectors_themselves(random):
    updates, theta, gram = random
    weights = np.array([[0.1, 0.2, 0.3, 0.1, 0.2, 0.1]])
    mean = weights[0] @ updates
    models = theta + updates

    def cosine(a, b):
        return a @ b / np.linalg.norm(a) / np.linalg.norm(b)

    np.testing.assert_allclose(gram.norms[0], np.linalg.norm(updates, axis=1))
    np.testing.assert_allclose(gram.cosines_to(weights)[0], [cosine(u, mean) for u in updates])
    others = [mean - weight * update for weight, update in zip(weights[0], updates, strict=True)]
    expected = [cosine(update, other) for update, other in zip(updates, others, strict=True)]
    np.testing.assert_allclose(gram.cosines_to_others(weights)[0], expected)
    np.testing.assert_allclose(gram.model_cosines()[0], [cosine(m, theta) for m in models])
    np.testing.assert_allclose(gram.sq_distances_to(weights)[0], ((updates - mean) ** 2).sum(1))
    np.testing.assert_allclose(
        gram.sq_distances()[0], ((updates[:, None] - updates) ** 2).sum(2), atol=1e-12
    )
    mix = np.random.default_rng(1).standard_normal((4, 6))
    np.testing.assert_allclose(gram.transform(mix).dots[0], (mix @ updates) @ (mix @ updates).T)


def test_a_client_that_is_the_whole_mixture_has_no_others(random):
    """Their mean is zero, not what rounding leaves of it: any cosine to that would be made up."""
    _, _, gram = random
    weights = np.array([[0.0, 0.0, 1.0, 0.0, 0.0, 0.0]])
    assert gram.cosines_to_others(weights)[0, 2] == 0
    np.testing.assert_allclose(gram.cosines_to_others(weights)[0, 0], gram.cosines()[0, 0, 2])
    alone = gram_of(np.ones((1, 5)), np.ones(5))
    assert gram_of(np.zeros((3, 5)), np.ones(5)).cosines_to_others(
        np.full((1, 3), 1 / 3)
    ).tolist() == [[0, 0, 0]]
    assert alone.cosines_to_others(np.ones((1, 1))).tolist() == [[0]]


@pytest.mark.parametrize("count", range(2, 30))
def test_copies_are_at_distance_zero_not_at_rounding_noise(count):
    update = np.random.default_rng(count).standard_normal(300)
    gram = gram_of(np.tile(update, (count, 1)), update)
    shares = np.random.default_rng(1).random((1, count))
    assert (gram.sq_distances_to(shares / shares.sum()) == 0).all()
    assert (gram.sq_distances() == 0).all()
