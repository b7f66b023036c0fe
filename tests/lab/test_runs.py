"""Which axes of a sweep are about the algorithm."""

import pytest

from steelyard.lab.runs import of_algorithm


@pytest.mark.parametrize("axis", ["case", "weighting", "client", "server", "broadcast", "refine", "local.lr"])
def test_every_part_of_an_algorithm_is_a_row(axis):
    assert of_algorithm(axis)


@pytest.mark.parametrize("axis", ["data.partition", "participation.share", "proxy.per_class", "model"])
def test_settings_are_columns(axis):
    assert not of_algorithm(axis)
