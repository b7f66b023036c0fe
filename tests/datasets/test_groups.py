"""Clients by group: a role, a domain."""

import numpy as np
import pytest
import torch

from steelyard.core._errors import SteelyardError
from steelyard.data import Dataset, Federation, partition

GROUPS = np.repeat(np.arange(6), [5, 1, 7, 3, 4, 10])


def test_each_client_is_one_whole_group():
    parts = partition("by_group:minimum=3", GROUPS, 4, 0)
    owners = [set(GROUPS[part].tolist()) for part in parts]
    assert all(len(owner) == 1 for owner in owners)
    assert len(set.union(*owners)) == 4
    assert 1 not in set.union(*owners)
    assert all(len(part) == (GROUPS[part[0]] == GROUPS).sum() for part in parts)


def test_other_seeds_choose_other_groups():
    chosen = {
        tuple(GROUPS[part[0]] for part in partition("by_group", GROUPS, 3, seed))
        for seed in range(20)
    }
    assert len(chosen) > 5


def test_groups_are_shared_if_there_are_fewer_than_clients():
    parts = partition("by_group", np.repeat([0, 1], [10, 7]), 5, 0)
    assert sorted(map(len, parts)) == [3, 3, 3, 4, 4]
    assert sorted(np.concatenate(parts)) == list(range(17))
    assert all(len({int(at >= 10) for at in part}) == 1 for part in parts)


def test_a_minimum_no_group_has():
    with pytest.raises(SteelyardError, match="minimum=11: the largest group has 10 samples"):
        partition("by_group:minimum=11", GROUPS, 2, 0)


def test_a_federation_is_spread_by_groups_not_by_labels():
    data = Dataset(
        torch.zeros(30, 2), torch.zeros(30, dtype=torch.int64), 2, groups=torch.from_numpy(GROUPS)
    )
    federation = Federation.partitioned(data, None, "by_group", 6, 0)
    assert federation.sizes.tolist() == [5, 1, 7, 3, 4, 10]
    assert data.take(np.array([29, 0])).groups.tolist() == [5, 0]


def test_without_groups_the_cure_is_named():
    with pytest.raises(SteelyardError, match="no groups: give Dataset"):
        Federation.partitioned(
            (torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64)), None, "by_group", 2, 0
        )


@pytest.mark.parametrize("groups", [torch.zeros(3, dtype=torch.int64), torch.zeros(4)])
def test_groups_are_numbers_one_per_sample(groups):
    with pytest.raises(SteelyardError, match="groups are"):
        Dataset(torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64), groups=groups)
