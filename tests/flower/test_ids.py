"""Client ids: the first node that claims one keeps it, and what cannot be an id is refused."""

import logging

import pytest
from flwr.app import ConfigRecord

from steelyard.core._errors import escape_text
from steelyard.flower import to_record
from steelyard.runs._directory import read_log
from tests.flower import runs
from tests.flower.grid import LocalGrid

INITIAL = to_record(runs.model("mlp").state_dict())


class Claims(LocalGrid):
    """A grid in which `claims[round, number]` is the id that a client reports in a round."""

    def __init__(self, claims, first=1, **options):
        super().__init__(runs.app(), runs.COUNT, change=self._claim, **options)
        self.claims, self.round = claims, first - 1

    def push_messages(self, messages):
        self.round += 1
        return super().push_messages(messages)

    def _claim(self, number, reply):
        if (self.round, number) in self.claims:
            ours = {**reply.content["steelyard"], "partition-id": self.claims[self.round, number]}
            reply.content["steelyard"] = ConfigRecord(ours)
        return reply


def run(tmp_path, grid, rounds=3, **options):
    made = runs.strategy("fedadp", out=tmp_path, **options)
    made.start(grid, INITIAL, num_rounds=rounds, timeout=2)
    return made, read_log(tmp_path)


def test_the_first_node_keeps_its_id(tmp_path):
    claims = {
        (number, 4): 0 for number in (2, 3)
    }  # the node with the lowest number, which comes first
    made, log = run(tmp_path, Claims(claims))
    assert [set(record["weights"]) for record in log] == [set("01234"), set("0123"), set("0123")]
    for record in log[1:]:
        ((who, reason),) = record["quarantined"].items()
        assert who == "0 (node 972)"
        assert "node 972 reports the id of another node, 0, which node 1000 has" in reason
    assert made.client_ids.id_by_node == {1000: 0, 993: 1, 986: 2, 979: 3, 972: 4}


def test_zero_as_text_is_zero(tmp_path):
    _, log = run(tmp_path, Claims({(2, 4): "0"}), rounds=2)
    assert list(log[1]["quarantined"]) == ["0 (node 972)"]


def test_a_node_does_not_change_its_id(tmp_path):
    _, log = run(tmp_path, Claims({(2, 4): "somebody-else"}), rounds=2)
    assert "was 4 before" in log[1]["quarantined"]["somebody-else (node 972)"]


def test_the_id_of_a_client_that_is_away_is_not_free(tmp_path):
    grid = Claims({(2, 4): 0})
    real = grid.push_messages

    def push(messages):
        grid.gone = {0} if grid.round == 1 else set()
        return real(messages)

    grid.push_messages = push
    _, log = run(tmp_path, grid)
    assert set(log[1]["weights"]) == {"1", "2", "3"}
    assert set(log[2]["weights"]) == set("01234")


def test_the_node_id_of_an_unnamed_client_is_taken(tmp_path):
    claims = {(number, 0): [] for number in (1, 2)} | {(number, 4): 1000 for number in (1, 2)}
    claims |= {(number, 3): "986" for number in (1, 2)}
    _, log = run(tmp_path, Claims(claims), rounds=2)
    for record in log:
        assert set(record["weights"]) == {"1000", "1", "2"}
        assert set(record["quarantined"]) == {"1000 (node 972)", "986 (node 979)"}


def test_bindings_survive_a_resume(tmp_path):
    run(tmp_path, Claims({}), rounds=1)
    claims = {(number, 4): 0 for number in (2, 3)}
    _, log = run(tmp_path, Claims(claims, first=2), resume=True)
    assert [set(record["weights"]) for record in log] == [set("01234"), set("0123"), set("0123")]
    assert [list(record["quarantined"]) for record in log] == [
        [],
        ["0 (node 972)"],
        ["0 (node 972)"],
    ]


def test_after_a_resume_nodes_may_have_other_numbers(tmp_path):
    run(tmp_path, Claims({}), rounds=1)
    grid = LocalGrid(runs.app(), runs.COUNT)
    grid.ids = {node + 5000: number for node, number in grid.ids.items()}
    grid.contexts = {node + 5000: context for node, context in grid.contexts.items()}
    made, log = run(tmp_path, grid, resume=True)
    assert [set(record["weights"]) for record in log] == [set("01234")] * 3
    assert made.client_ids.id_by_node == {6000: 0, 5993: 1, 5986: 2, 5979: 3, 5972: 4}


@pytest.mark.parametrize(
    "value",
    [
        "x" * 129,
        "x" * 10_000_000,
        "",
        "  ",
        "\x1b[2J\nround 7: all is well",
        "\u202e",
        "a\x00b",
        "line\nbreak",
        "\x9b31m",
    ],
)
def test_what_cannot_be_an_id(value, tmp_path, caplog):
    with caplog.at_level(logging.WARNING, logger="flwr"):
        _, log = run(tmp_path, Claims({(number, 4): value for number in (1, 2)}), rounds=2)
    for record in log:
        assert set(record["weights"]) == set("0123")
        ((who, reason),) = record["quarantined"].items()
        assert who.endswith(" (node 972)")
        assert "reports" in reason
        assert len(who) + len(reason) < 400
        assert who == escape_text(who)
    assert "\x1b" not in caplog.text
    assert sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file()) < 1_000_000


@pytest.mark.parametrize(
    "value", [-5, -(2**63), 2**63 - 1, 1e300, "x" * 128, "../../etc/x", "<img src=x>", "Zürich"]
)
def test_odd_ids(value, tmp_path):
    _, log = run(tmp_path, Claims({(number, 4): value for number in (1, 2)}), rounds=2)
    shown = str(int(value)) if isinstance(value, float) else str(value)
    if len(shown) > 128:  # 1e300 has 301 digits
        assert "characters" in log[0]["quarantined"][next(iter(log[0]["quarantined"]))]
    else:
        assert set(log[1]["weights"]) == {*"0123", shown}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), True, b"bytes", [1, 2]])
def test_what_is_no_id_at_all_is_ignored(value, tmp_path):
    _, log = run(tmp_path, Claims({(number, 4): value for number in (1, 2)}), rounds=2)
    assert set(log[1]["weights"]) == {*"0123", "972"}


def test_a_reply_to_somebody_elses_question_is_a_stray(tmp_path):
    def change(number, reply):
        if number == 1:
            reply.metadata.__dict__["_src_node_id"] = 972
        return reply

    _, log = run(tmp_path, LocalGrid(runs.app(), runs.COUNT, change=change), rounds=1)
    assert set(log[0]["weights"]) == {"0", "2", "3", "4"}
    assert log[0]["unmatched_replies"] == ["node 972: it replied to a message for node 993"]
