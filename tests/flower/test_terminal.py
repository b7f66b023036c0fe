"""Nothing that a client sends moves a terminal's cursor or forges a line of a log."""

import json
import logging

import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord
from typer.testing import CliRunner

from steelyard.cli._console import Console, escape
from steelyard.cli.app import app as command
from steelyard.flower import to_record
from tests.flower import runs
from tests.flower.grid import LocalGrid

EVIL = "\x1b]0;owned\x07\x1b[2J\r\nround 9, all clients fine\x9b31m\u202e"
FORBIDDEN = ("\x1b", "\x07", "\r", "\x9b", "\u202e", "\nround 9")


def array(**changes):
    return Array(
        **{"dtype": "float32", "shape": (1,), "stype": "numpy.ndarray", "data": b"", **changes}
    )


def as_error(reply):
    made = Message(Error(code=2, reason=EVIL), reply_to=reply)
    made.metadata.__dict__["_reply_to_message_id"] = reply.metadata.reply_to_message_id
    made.metadata.__dict__["_src_node_id"] = reply.metadata.src_node_id
    return made


def changed(change):
    def act(reply):
        change(reply.content)
        return reply

    return act


ATTACKS = {
    "id": changed(
        lambda content: content.__setitem__("steelyard", ConfigRecord({"partition-id": EVIL}))
    ),
    "record": changed(lambda content: content.__setitem__("x" + EVIL, content.pop("arrays"))),
    "two records": changed(
        lambda content: content.update({EVIL: content.pop("arrays"), "b": ArrayRecord()})
    ),
    "tensor": changed(lambda content: content["arrays"].__setitem__(EVIL, array())),
    "name": changed(lambda content: content.__setitem__("arrays", ArrayRecord({EVIL: array()}))),
    "type": changed(lambda content: content["arrays"].__setitem__("0.bias", array(stype=EVIL))),
    "header": changed(
        lambda content: content["arrays"].__setitem__(
            "0.bias",
            array(data=b"\x93NUMPY\x01\x00\x60\x00" + (EVIL.encode("utf-8") + b" " * 96)[:96]),
        )
    ),
    "metric": changed(lambda content: content["metrics"].__setitem__(EVIL, 1.0)),
    "config": changed(
        lambda content: content.__setitem__("steelyard", ConfigRecord({"client": EVIL, "x": EVIL}))
    ),
    "error": as_error,
}


@pytest.mark.parametrize("who", ["one", "all"])
@pytest.mark.parametrize("attack", ATTACKS)
def test_the_log_and_the_commands(attack, who, tmp_path, caplog):
    def change(number, reply):
        return ATTACKS[attack](reply) if number == 1 or who == "all" else reply

    def act(number, reply):
        is_training = bool(reply.content.array_records)
        return (
            change(number, reply)
            if is_training
            else changed(lambda content: content.update(evil()))(reply)
        )

    def evil():
        return {"metrics": MetricRecord({"num-examples": 10, "accuracy": 7.0, EVIL: 1.0})}

    made = runs.strategy("fedavg", out=tmp_path / "run", fraction_evaluate=1.0)
    with caplog.at_level(logging.INFO, logger="flwr"):
        made.start(
            LocalGrid(runs.app(), runs.COUNT, change=act),
            to_record(runs.model("mlp").state_dict()),
            1,
            0.3,
        )
    outputs = [caplog.text, (tmp_path / "run/rounds.jsonl").read_text()]
    for name in ("report", "compare", "plot"):
        options = ["-o", str(tmp_path / "page.html")] if name == "report" else []
        result = CliRunner().invoke(command, [name, str(tmp_path / "run"), *options])
        outputs += [result.stdout, result.stderr]
    for output in outputs:
        assert not [mark for mark in FORBIDDEN if mark in output]


def test_a_run_directory_that_somebody_else_wrote(tmp_path):
    """Records that hold what ours do not: nothing of it reaches the terminal as it is."""
    runs.start(runs.strategy("fedavg", out=tmp_path / "run", data_name=EVIL), rounds=1)
    log = tmp_path / "run/rounds.jsonl"
    record = json.loads(log.read_text())
    record |= {"void": EVIL, "quarantined": {EVIL: EVIL}, "weights": {EVIL: 1.0}, EVIL: 1}
    log.write_text(json.dumps(record) + "\n")
    for name in ("report", "compare", "plot"):
        options = ["-o", str(tmp_path / "page.html")] if name == "report" else []
        result = CliRunner().invoke(command, [name, str(tmp_path / "run"), *options])
        assert not [mark for mark in FORBIDDEN if mark in result.stdout + result.stderr]
        assert result.stdout + result.stderr


def test_a_console_shows_control_characters(capsys):
    console = Console(force_terminal=True, color_system=None, width=200)
    console.print(f"a{EVIL}", markup=False, highlight=False)
    console.print(escape(f"[red]{EVIL}"), highlight=False)
    first, *others = capsys.readouterr().out.splitlines()
    assert first.startswith("a\\x1b]0;owned")  # rich itself drops the bell
    assert others[-1].startswith("[red]\\x1b]0;owned\\x07\\x1b[2J\\r\\nround 9")
