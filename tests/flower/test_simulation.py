"""Flower's simulation engine runs examples/flower as it stands."""

import pytest

pytest.importorskip("flwr", minversion="1.41", reason="the command line of Flower 1.41")
pytest.importorskip("ray", reason="Flower simulates with Ray: pip install 'flwr[simulation]'")

from tests.flower.deployment import LINUX, Federation
from tests.flower.example import assert_as_simulated

pytestmark = LINUX


@pytest.mark.slow
def test_three_clients_train_for_two_rounds(tmp_path):
    with Federation(tmp_path / "flower", nodes=3, simulation=True) as federation:
        federation.complete(federation.run(rounds=2, out=str(tmp_path / "run")))
    assert federation.killed == {}  # Ray's processes too ended by themselves
    assert_as_simulated(tmp_path / "run", clients=3, rounds=2)
