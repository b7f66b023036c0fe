"""What every test shares: the same random numbers and examples, and a cache that is not the user's."""

import os
import random

import pytest
import torch
from hypothesis import settings

# The same examples in every run; `HYPOTHESIS_PROFILE=explore make test` looks for new ones.
settings.register_profile("repeat", derandomize=True)
settings.register_profile("explore", derandomize=False, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeat"))


@pytest.fixture(autouse=True, scope="session")
def _cache_of_the_session(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STEELYARD_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def _seeded():
    """Start every test with the same random numbers, whatever ran before it."""
    random.seed(0)
    torch.manual_seed(0)
