"""What clients send beside their models is checked; a bad client is refused by name and changes nothing."""

import math

import pytest
import torch
from flwr.common import serde
from flwr.proto.recorddict_pb2 import RecordDict

import steelyard
from steelyard.core._errors import SteelyardError
from steelyard.flower import Steelyard, to_record, to_state_dict
from steelyard.flower._messages import TENSORS_RECORD
from steelyard.runs._directory import read_log
from tests.flower import runs
from tests.flower.grid import LocalGrid

ATTACKER = 2
ALGORITHMS = {
    "fedproto": steelyard.Algorithm("fedavg", client="fedproto"),
    "fpl": steelyard.Algorithm("fedavg", client="fpl:temperature=0.5"),
    "creff": steelyard.Algorithm("fedavg", client="creff:features=4,match_steps=2,epochs=2"),
}


def edit(change):
    """An attack that changes the tensors of a reply, by name."""

    def attack(content):
        tensors = to_state_dict(content[TENSORS_RECORD])
        content[TENSORS_RECORD] = to_record(change(tensors))

    return attack


def spoil(value):
    """An attack that puts a value into each float tensor."""

    def change(tensors):
        for tensor in tensors.values():
            if tensor.is_floating_point():
                tensor.view(-1)[1] = value
        return tensors

    return edit(change)


def each(function):
    return edit(lambda tensors: {name: function(tensor) for name, tensor in tensors.items()})


def negate_counts(tensor):
    return tensor if tensor.is_floating_point() else -tensor - 1


def drop_record(content):
    del content[TENSORS_RECORD]


def unconfirmed(content):
    del content["steelyard"]["client"]


# Each attack, and a word of the reason.
ATTACKS = {
    "nan": (spoil(math.nan), "NaN"),
    "infinity": (spoil(-math.inf), "NaN"),
    "shape": (each(lambda tensor: tensor[:-1].contiguous()), "expected"),
    "transposed": (
        each(lambda tensor: tensor.transpose(0, -1).contiguous()[..., None]),
        "expected",
    ),
    "dtype": (each(lambda tensor: tensor.half()), "float16"),
    "negative": (each(negate_counts), "counts"),
    "huge_count": (
        each(lambda tensor: tensor if tensor.is_floating_point() else tensor + (1 << 60)),
        "counts",
    ),
    "huge": (each(lambda tensor: torch.zeros(1000, *tensor.shape)), "bytes"),
    "missing": (edit(lambda tensors: dict(list(tensors.items())[:1])), "did not send"),
    "no_record": (drop_record, TENSORS_RECORD),
    "unconfirmed": (unconfirmed, "did not confirm"),
}


def start(name, change=None, gone=(), rounds=2, **options):
    strategy = runs.strategy(
        ALGORITHMS[name], min_train_nodes=runs.COUNT - len(gone), guard=False, **options
    )
    grid = LocalGrid(runs.app(), runs.COUNT, change=change, gone=gone)
    return strategy, runs.start(strategy, grid, rounds=rounds)


def attacked_by(attack):
    def change(number, reply):
        if number == ATTACKER:
            attack(reply.content)
        return reply

    return change


CASES = [("fedproto", attack) for attack in ATTACKS]
CASES += [(name, attack) for name in ("fpl", "creff") for attack in ("nan", "shape", "huge")]


@pytest.mark.parametrize(("name", "attack"), CASES)
def test_a_bad_client_is_refused_by_name_and_changes_nothing(name, attack, tmp_path):
    change, word = ATTACKS[attack]
    strategy, result = start(name, attacked_by(change), out=tmp_path)
    without, expected = start(name, gone=(ATTACKER,))
    for record in read_log(tmp_path):
        assert list(record["quarantined"]) == [str(ATTACKER)]
        assert word in record["quarantined"][str(ATTACKER)]
        assert str(ATTACKER) not in record["weights"]
    assert runs.same(runs.params(result), runs.params(expected))
    tensors = without.server.state.tensors
    assert strategy.server.state.tensors.keys() == tensors.keys()
    for key, tensor in strategy.server.state.tensors.items():
        assert torch.equal(tensor, tensors[key])


class SerializedGrid(LocalGrid):
    """Messages and replies become the bytes that Flower sends over the network, and come back."""

    def _answers(self, message):
        message.content = pass_through_bytes(message.content)
        replies = super()._answers(message)
        for reply in replies:
            reply.content = pass_through_bytes(reply.content)
        return replies


def pass_through_bytes(content):
    serialized = serde.recorddict_to_proto(content).SerializeToString()
    return serde.recorddict_from_proto(RecordDict.FromString(serialized))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_real_messages_have_the_bits_of_the_simulator(name):
    simulated = runs.simulated(ALGORITHMS[name], "images")
    grid = SerializedGrid(runs.app("images"), runs.COUNT, shuffle=4)
    result = runs.start(runs.strategy(ALGORITHMS[name], guard=False), grid, "images")
    assert runs.same(runs.params(result), dict(simulated.params))


def test_tensors_that_nobody_declared_are_dropped():
    extra = edit(lambda tensors: {**tensors, "other": torch.zeros(1 << 16)})
    plain, expected = start("fedproto")
    strategy, result = start("fedproto", attacked_by(extra))
    assert runs.same(runs.params(result), runs.params(expected))
    assert strategy.server.state.tensors.keys() == plain.server.state.tensors.keys()


@pytest.mark.parametrize("memory", [1, "2 GB"])
def test_the_memory_budget_does_not_change_bits(memory):
    _, expected = start("fedproto")
    _, result = start("fedproto", memory=memory)
    assert runs.same(runs.params(result), runs.params(expected))


@pytest.mark.parametrize("scale", [1e3, -1e30])
def test_under_a_guard_one_client_moves_prototypes_by_little(scale):
    """It multiplies its prototypes and says that it has a billion samples."""

    def change(tensors):
        for name, tensor in tensors.items():
            tensors[name] = tensor * scale if tensor.is_floating_point() else tensor * 1_000_000
        return tensors

    def run(attack):
        strategy = runs.strategy(ALGORITHMS["fedproto"])
        grid = LocalGrid(runs.app(), runs.COUNT, change=attacked_by(attack))
        runs.start(strategy, grid, rounds=1)
        return strategy.server.state.tensors["fedproto.prototypes"]

    clean = run(lambda content: None)
    attacked = run(edit(change))
    assert attacked.norm(dim=1).max() <= 3 * clean.norm(dim=1).max()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_client_that_a_guard_sets_aside_does_not_count(name):
    """It sends back the model that it received, and prototypes of its own invention."""

    def attack(content):
        content["arrays"] = to_record(runs.model("mlp").state_dict())
        each(lambda tensor: tensor + 1)(content)

    strategies = []
    for change, gone in ((attacked_by(attack), ()), (None, (ATTACKER,))):
        strategy = runs.strategy(ALGORITHMS[name], min_train_nodes=runs.COUNT - len(gone))
        grid = LocalGrid(runs.app(), runs.COUNT, change=change, gone=gone)
        runs.start(strategy, grid, rounds=1)
        strategies.append(strategy)
    attacked, without = strategies
    for key, tensor in without.server.state.tensors.items():
        assert torch.equal(attacked.server.state.tensors[key], tensor)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_another_strategy_may_not_run_the_rounds(name):
    """It could not see what clients send beside their models, noise for privacy included."""
    strategy = Steelyard(ALGORITHMS[name])
    arrays = to_record(runs.model("mlp").state_dict())
    with pytest.raises(SteelyardError, match=f"client={name}"):
        strategy.configure_train(1, arrays, runs.steelyard_flower._strategy.ConfigRecord(), None)


def test_clients_that_send_nothing_end_the_run():
    """No client adds the term: the app is wrong, not a client."""

    def change(number, reply):
        unconfirmed(reply.content)
        return reply

    with pytest.raises(SteelyardError, match="fedproto"):
        start("fedproto", change)


def test_a_network_with_other_layers_is_named():
    strategy = runs.strategy(ALGORITHMS["fedproto"], patience=1)
    app = runs.steelyard_flower.client(
        lambda context: torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Linear(8, 3)),
        lambda context: runs.data()[context.node_config["partition-id"]],
        local=runs.LOCAL,
    )
    with pytest.raises(SteelyardError, match="classifier='2'"):
        runs.start(strategy, LocalGrid(app, runs.COUNT))


def test_the_server_names_the_classifier():
    """`classifier=` in the spec string reaches clients, whose last layer is another."""
    algorithm = steelyard.Algorithm("fedavg", client="creff:features=2,epochs=2,classifier=0")
    simulated = runs.simulated(algorithm)
    strategy = runs.strategy(algorithm, guard=False)
    result = runs.start(strategy)
    assert strategy.server.state.classifier.name == "0"
    assert strategy.server.state.tensors["creff.classifier"].shape == (8, 6)
    assert runs.same(runs.params(result), dict(simulated.params))
