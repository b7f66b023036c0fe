"""What clients and server keep belongs together: a resume, a lost reply or a restart must not part them."""

import logging

import pytest
import torch
from flwr.app import Context, RecordDict
from flwr.serverapp.strategy import FedAvg

import steelyard
from steelyard.flower import to_record, to_state_dict
from steelyard.runs._directory import read_log
from tests.flower import runs
from tests.flower.grid import LocalGrid

SLOTS = {"scaffold": "scaffold.control", "feddyn": "feddyn.h"}
MOMENTUM = {**runs.LOCAL, "momentum": 0.9, "persistent": True}


def strategy(client, **options):
    return runs.strategy(steelyard.Algorithm("uniform", client=client), guard=False, **options)


def start(made, grid, rounds):
    return made.start(
        grid, to_record(runs.model("mlp").state_dict()), num_rounds=rounds, timeout=0.3
    )


def agree(made, grid):
    """With all clients in every round, the server's vector is the mean of theirs."""
    slot = SLOTS[made.algorithm.client.terms[0].name]
    states = [
        to_state_dict(context.state.array_records["steelyard"])
        for context in grid.contexts.values()
    ]
    own = torch.stack([state[slot] for state in states]).mean(dim=0)
    return bool(own.norm() > 1e-3) and torch.allclose(
        made.server.state.vectors[slot], own, atol=1e-6
    )


@pytest.mark.parametrize("client", SLOTS)
def test_a_resumed_run_begins_at_zero_on_both_sides(client, tmp_path, caplog):
    start(strategy(client, out=tmp_path), LocalGrid(runs.app(), runs.COUNT), 2)
    grid, seen = LocalGrid(runs.app(), runs.COUNT), []
    real = grid.push_messages
    grid.push_messages = lambda messages: seen.extend(messages) or real(messages)
    made = strategy(client, out=tmp_path, resume=True)
    with caplog.at_level(logging.WARNING, logger="flwr"):
        start(made, grid, 5)
    assert "start from zero in a new Flower run" in caplog.text
    (sent,) = to_state_dict(seen[0].content["steelyard.sent"]).values()
    assert not sent.any()
    assert agree(made, grid)


def test_it_goes_on_from_the_model_that_was_shown(tmp_path):
    """FedDyn sends its average moved by H; without H it is the average that counts."""
    first = start(strategy("feddyn", out=tmp_path), LocalGrid(runs.app(), runs.COUNT), 2)
    grid, seen = LocalGrid(runs.app(), runs.COUNT), []
    real = grid.push_messages
    grid.push_messages = lambda messages: seen.extend(messages) or real(messages)
    start(strategy("feddyn", out=tmp_path, resume=True), grid, 3)
    assert runs.same(to_state_dict(seen[0].content["arrays"]), runs.params(first))


@pytest.mark.parametrize("client", SLOTS)
def test_clients_that_remember_another_run_forget_it(client, tmp_path):
    old, results = LocalGrid(runs.app(), runs.COUNT), []
    start(strategy(client, out=tmp_path / "a"), old, 2)
    start(strategy(client, out=tmp_path / "b"), LocalGrid(runs.app(), runs.COUNT), 2)
    for name, grid in (("a", old), ("b", LocalGrid(runs.app(), runs.COUNT))):
        results.append(
            runs.params(start(strategy(client, out=tmp_path / name, resume=True), grid, 4))
        )
    assert runs.same(*results)


class Trouble(LocalGrid):
    """Client 0 trains in rounds 2 and 3, and its reply is spoilt; or it does not even train."""

    def __init__(self, spoil, local=None):
        super().__init__(runs.app(local=local or runs.LOCAL), runs.COUNT)
        self.round, self.spoil, self.change = 0, spoil, self._change

    def push_messages(self, messages):
        messages = list(messages)
        self.round += 1
        self.silent = {0} if self.round in (2, 3) and self.spoil is None else set()
        return super().push_messages(messages)

    def _change(self, number, reply):
        return self.spoil(reply) if number == 0 and self.round in (2, 3) else reply


def no_model(reply):
    del reply.content["arrays"]
    return reply


def not_finite(reply):
    state = to_state_dict(reply.content["arrays"])
    reply.content["arrays"] = to_record(
        {name: tensor * torch.nan for name, tensor in state.items()}
    )
    return reply


@pytest.mark.parametrize("client", [*SLOTS, "momentum"])
@pytest.mark.parametrize("spoil", [lambda reply: [], no_model, not_finite])
def test_a_reply_that_does_not_count_is_as_if_it_had_not_been(client, spoil):
    term, local = (client, None) if client in SLOTS else (None, MOMENTUM)
    grids = [Trouble(None, local), Trouble(spoil, local)]
    made = [strategy(term) for _ in grids]
    absent, spoilt = (
        runs.params(start(one, grid, 5)) for one, grid in zip(made, grids, strict=True)
    )
    assert runs.same(absent, spoilt)
    assert term is None or agree(made[1], grids[1])


def test_a_vector_that_cannot_be_used_is_taken_back_at_the_client():
    def spoil(reply):
        del reply.content["steelyard.told"]
        return reply

    made, grid = strategy("scaffold"), Trouble(spoil)
    start(made, grid, 5)
    assert agree(made, grid)


def test_a_void_round_counts_for_nobody():
    class Void(LocalGrid):
        rounds = 0

        def pull_messages(self, message_ids):
            found = super().pull_messages(message_ids)
            self.rounds += bool(found)
            return [] if self.rounds == 2 and found else found

    made, grid = strategy("scaffold"), Void(runs.app(), runs.COUNT)
    start(made, grid, 4)
    assert {node: made.accepted_rounds.of(node) for node in grid.ids} == dict.fromkeys(grid.ids, 4)
    assert agree(made, grid)


def test_a_client_that_lost_what_it_kept_is_on_record(tmp_path, caplog):
    class Restarting(LocalGrid):
        rounds = 0

        def push_messages(self, messages):
            messages = list(messages)
            self.rounds += 1
            return super().push_messages(messages)

        def get_node_ids(self):
            if self.rounds == 2:
                config = {"num-partitions": runs.COUNT, "partition-id": 0}
                self.contexts[1000] = Context(1, 1000, config, RecordDict(), {})
            return super().get_node_ids()

    with caplog.at_level(logging.WARNING, logger="flwr"):
        start(strategy("scaffold", out=tmp_path), Restarting(runs.app(), runs.COUNT), 4)
    assert [record["restarted"] for record in read_log(tmp_path)] == [[], [], [0], []]
    assert "round 3, client 0: it lost its state of earlier rounds" in caplog.text


def test_without_vectors_nothing_is_lost(tmp_path):
    runs.start(runs.strategy("fedavg", out=tmp_path), rounds=3)
    assert [record["restarted"] for record in read_log(tmp_path)] == [[], [], []]


def test_under_a_stock_strategy_the_newest_counts():
    initial, results = to_record(runs.model("mlp").state_dict()), []
    for made in (
        runs.strategy("fedavg", guard=False, seed=0),
        FedAvg(fraction_evaluate=0.0, min_train_nodes=runs.COUNT),
    ):
        grid = LocalGrid(runs.app(local=MOMENTUM), runs.COUNT)
        results.append(runs.params(made.start(grid, initial, num_rounds=3, timeout=5)))
    assert all(torch.allclose(results[0][name], results[1][name], atol=1e-6) for name in results[0])


class Flaky(LocalGrid):
    """Every second time only two nodes are connected."""

    looks = 0

    def get_node_ids(self):
        self.looks += 1
        ids = list(super().get_node_ids())
        return ids if self.looks % 2 else ids[:2]


@pytest.mark.parametrize("client", SLOTS)
def test_who_is_away_for_a_round_is_still_one_of_all(client):
    few = {"min_train_nodes": 2, "min_available_nodes": 2, "population": None}
    grid, made = Flaky(runs.app(), runs.COUNT), strategy(client, **few)
    start(made, grid, 5)
    assert agree(made, grid)
