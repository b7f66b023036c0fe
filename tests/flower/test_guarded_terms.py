"""On Flower, what one client sends moves the server's vectors by no more than the guard allows."""

import pytest
import torch

import steelyard
from steelyard.flower import to_record, to_state_dict
from tests.flower import runs
from tests.flower.grid import LocalGrid

ATTACKER = 2


def flatten(state):
    return torch.cat([state[name].reshape(-1).double() for name in sorted(state)])


def scale_update(factor):
    """The attacker multiplies its update."""

    def attack(content):
        base = runs.model("mlp").state_dict()
        model = to_state_dict(content["arrays"])
        content["arrays"] = to_record(
            {name: base[name] + factor * (model[name] - base[name]) for name in model}
        )

    return attack


def replace_vectors(value):
    """The attacker says that its own vector changed by this much in every coordinate."""

    def attack(content):
        told = to_state_dict(content["steelyard.told"])
        content["steelyard.told"] = to_record(
            {name: torch.full_like(vector, value) for name, vector in told.items()}
        )

    return attack


def run_attacked(client, attack, rounds=1, weighting="fedavg"):
    """A run of five clients of which one attacks; returns its strategy and how far the broadcast model moved."""

    def change(number, reply):
        if number == ATTACKER and attack is not None:
            attack(reply.content)
        return reply

    strategy = runs.strategy(steelyard.Algorithm(weighting, client=client))
    runs.start(strategy, LocalGrid(runs.app(), runs.COUNT, change=change), rounds=rounds)
    start = flatten(runs.model("mlp").state_dict())
    return strategy, (flatten(to_state_dict(strategy.model)) - start).norm().item()


@pytest.mark.parametrize("factor", [1e6, -1e6, 1e30])
@pytest.mark.parametrize("client", ["feddyn", "feddyn:form=fedlaw"])
def test_one_client_cannot_move_feddyns_model(client, factor):
    clean, moved = run_attacked(client, None)
    bad, attacked = run_attacked(client, scale_update(factor))
    # Beside the sum, in which a client has at most 3/K x 2 medians, the vector h holds 2 medians
    # over the population.
    longest = 2 * moved
    assert (
        bad.server.state.vectors["feddyn.h"].norm()
        <= clean.server.state.vectors["feddyn.h"].norm() + 3 / runs.COUNT * longest
    )
    assert attacked <= 2 * moved


@pytest.mark.parametrize("value", [1e3, -1e30])
def test_one_client_cannot_move_scaffolds_control(value):
    _, moved = run_attacked("scaffold", None, rounds=4)
    bad, attacked = run_attacked("scaffold", replace_vectors(value), rounds=4)
    usual = bad.server.state.rule_state["vector_norms"]["scaffold.control"]
    assert bad.server.state.vectors["scaffold.control"].norm().item() <= 2 * usual * (1 + 1e-6)
    assert attacked <= 2 * moved


def test_a_client_set_aside_moves_nothing():
    """A free-rider's vector counts for nothing, here and at the client."""
    clean, _ = run_attacked("scaffold", None)

    def ride(content):
        replace_vectors(0.1)(content)
        content["arrays"] = to_record(runs.model("mlp").state_dict())

    bad, _ = run_attacked("scaffold", ride)
    counted = [node for node in bad.client_ids.id_by_node if bad.accepted_rounds.of(node) == 1]
    assert len(counted) == runs.COUNT - 1

    def keep_silent(content):
        ride(content)
        replace_vectors(0.0)(content)

    silent, _ = run_attacked("scaffold", keep_silent)
    assert torch.equal(
        bad.server.state.vectors["scaffold.control"],
        silent.server.state.vectors["scaffold.control"],
    )
    assert not torch.equal(
        bad.server.state.vectors["scaffold.control"], clean.server.state.vectors["scaffold.control"]
    )


def test_a_guarded_krum_takes_the_whole_step():
    """`steelyard.flower.Krum` is guarded like every strategy, and moves as far as the plain rule."""

    def moved(guard):
        strategy = runs.steelyard_flower.Krum(
            f=1, guard=guard, min_train_nodes=runs.COUNT, fraction_evaluate=0.0, seed=3
        )
        result = runs.start(strategy, rounds=2)
        return flatten(runs.params(result))

    assert torch.equal(moved(True), moved(False))
