"""Flower's simulation engine runs examples/flower as it stands."""

import pytest

pytest.importorskip("flwr", minversion="1.41", reason="the command line of Flower 1.41")
pytest.importorskip("ray", reason="Flower simulates with Ray: pip install 'flwr[simulation]'")

from steelyard import History
from tests.flower.deployment import LINUX, Federation

pytestmark = LINUX


def test_three_clients_train_for_two_rounds(tmp_path):
    with Federation(tmp_path / "flower", nodes=3, simulation=True) as federation:
        run = federation.run(rounds=2, out=str(tmp_path / "run"))
        assert federation.wait(run) == "finished:completed"
    history = History.read(tmp_path / "run")
    assert [(record["round"], len(record["weights"])) for record in history] == [(1, 3), (2, 3)]
    assert history.column("accuracy")[-1] > history.column("accuracy")[0]
