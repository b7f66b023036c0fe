"""Nodes that die, fail or freeze in the middle of a round, and a server that does. Minutes: Flower notices late."""

import signal

import pytest

pytest.importorskip("flwr", minversion="1.41", reason="the command line of Flower 1.41")

from steelyard import History
from tests.flower.deployment import LINUX, Federation, signalled
from tests.waiting import PATIENCE

pytestmark = [LINUX, pytest.mark.slow]


@pytest.fixture
def federation(tmp_path):
    with Federation(tmp_path / "flower", nodes=3) as made:
        yield made


def training(federation, node):
    """Waits until a node is in the middle of a round."""
    federation.until(
        lambda: federation.alive(f"node{node}", "flwr-clientapp"), f"node {node} trains", pause=0.05
    )


def send(federation, name, number, program=""):
    """A signal to all processes of a node, or to one program of it."""
    found = federation.alive(name, program)
    assert found
    for pid in found:
        signalled(pid, number)


def test_a_server_killed_in_mid_run_goes_on_where_it_was(federation, tmp_path):
    settings = {
        "algorithm": "fedadp",
        "rounds": 3,
    }  # its angles are means over all rounds: a lost state shows
    federation.complete(federation.run(**settings, out=str(tmp_path / "whole")))
    path = tmp_path / "killed"
    federation.run(**settings, out=str(path))
    federation.until((path / "checkpoints" / "round-000001").exists, "the first round is over")
    send(federation, "superlink", signal.SIGKILL, "flwr-serverapp")
    assert len(History.read(path)) == 1
    said = federation.complete(federation.run(**settings, out=str(path), resume=True))
    assert "Resuming after round 1" in said
    whole, resumed = History.read(tmp_path / "whole"), History.read(path)
    assert [record["round"] for record in resumed] == [1, 2, 3]
    assert resumed.comparable() == whole.comparable()


def test_a_client_that_raises_is_named_and_the_round_goes_on(federation, tmp_path):
    federation.processes["node2"].terminate()
    federation.processes["node2"].wait(PATIENCE)
    federation.node(2, partition=7)
    federation.connected(2)
    said = federation.complete(federation.run(rounds=1, out=str(tmp_path / "run")))
    (record,) = History.read(tmp_path / "run")
    (reason,) = record["failed"].values()
    assert f"node {federation.node_id(2)}: the ClientApp raised an exception (code 2)" in reason
    assert "partition-id=7: use one of 0 to 2" in reason
    assert reason in said
    assert set(record["weights"]) == {"0", "1"}


def test_a_frozen_node_is_named_when_time_is_up(federation, tmp_path):
    # Flower gives a silent node up after 36 to 60 s: the round is to end before.
    run = federation.run(rounds=1, timeout=30.0, out=str(tmp_path / "frozen"))
    training(federation, 1)
    send(federation, "node1", signal.SIGSTOP)
    try:
        federation.complete(run)
    finally:
        send(federation, "node1", signal.SIGCONT)
    (record,) = History.read(tmp_path / "frozen")
    assert list(record["failed"].values()) == [
        f"node {federation.node_id(1)} did not answer within 30 s"
    ]
    assert record["late_clients"] == [federation.node_id(1)]
    assert set(record["weights"]) == {"0", "2"}

    federation.complete(federation.run(rounds=1, out=str(tmp_path / "thawed")))
    (record,) = History.read(tmp_path / "thawed")
    assert (set(record["weights"]), record["failed"], record["unmatched_replies"]) == (
        {"0", "1", "2"},
        {},
        [],
    )


def test_a_killed_node_is_named_and_the_round_goes_on(federation, tmp_path):
    run = federation.run(rounds=2, out=str(tmp_path / "run"))
    training(federation, 2)
    send(federation, "node2", signal.SIGKILL)
    said = federation.complete(run, 300)
    first, second = History.read(tmp_path / "run")
    (reason,) = first["failed"].values()
    assert reason.startswith(f"node {federation.node_id(2)}: the node is gone (code 5)")
    assert reason in said
    assert set(first["weights"]) == set(second["weights"]) == {"0", "1"}
    assert second["failed"] == {}
