"""What every test shares: no test writes to the user's own cache."""

import pytest


@pytest.fixture(autouse=True, scope="session")
def _cache_of_the_session(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STEELYARD_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
