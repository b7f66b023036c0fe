"""Nodes that die, freeze or fail in the middle of a round, and a server that does."""

import signal

import pytest

pytest.importorskip("flwr", minversion="1.41", reason="the command line of Flower 1.41")

from steelyard import History
from tests.flower.deployment import LINUX, Federation, signalled

pytestmark = [LINUX, pytest.mark.slow]


@pytest.fixture
def federation(tmp_path):
    with Federation(tmp_path / "flower", nodes=3) as made:
        yield made


def training(federation, node):
    """Waits until a node is in the middle of a round."""
    federation.until(lambda: federation.alive(f"node{node}", "flwr-clientapp"), 60, f"node {node} trains", pause=0.05)


def send(federation, name, what, program=""):
    for pid in federation.alive(name, program):
        signalled(pid, what)


def test_a_killed_node_is_named_and_the_round_goes_on(federation, tmp_path):
    run = federation.run(rounds=2, out=str(tmp_path / "run"))
    training(federation, 2)
    send(federation, "node2", signal.SIGKILL)
    assert federation.wait(run, 240) == "finished:completed"
    first, second = History.read(tmp_path / "run")


def test_a_client_that_raises_is_named_and_the_round_goes_on(federation, tmp_path):
    run = federation.run(rounds=1, out=str(tmp_path / "run"))


def test_a_frozen_node_is_named_when_time_is_up(federation, tmp_path):
    run = federation.run(rounds=2, timeout=20.0, out=str(tmp_path / "run"))
    training(federation, 1)
    send(federation, "node1", signal.SIGSTOP)
    assert federation.wait(run, 240) == "finished:completed"
