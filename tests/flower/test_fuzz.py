"""Whatever one client sends, the run goes on, and a client that is not counted changes nothing for the others."""

import functools
import json
import logging
import os

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

import steelyard
from steelyard.flower import read_instructions, to_record, to_state_dict
from tests.flower import runs
from tests.flower.grid import LocalGrid

# Whose node has the highest number: of two that claim an id in the same round, the lower one gets
# it
LIAR = 0
ALGORITHMS = {
    "fedavg": steelyard.Algorithm("fedavg"),
    "disco": steelyard.Algorithm("feddisco|fedadp"),
    "nova": steelyard.Algorithm("fednova"),
    "pa3fed": steelyard.Algorithm("pa3fed:detector=criticalfl_window"),
    "scaffold": steelyard.Algorithm("fedavg", client="scaffold"),
}
INITIAL = {
    "a.weight": torch.ones(3, 4),
    "b": torch.zeros(2),
    "n.num_batches_tracked": torch.tensor(0),
}
DIM = 14  # of its parameters
EXAMPLES = int(os.environ.get("STEELYARD_FUZZ", "40"))


def answer(message, context):
    """A client that does not train: its model is the global one, moved by its number."""
    number = context.node_config["partition-id"]
    ours = {"partition-id": number, "client": read_instructions(message).client}
    if message.metadata.message_type.startswith("evaluate"):
        metrics = {
            "num-examples": 10 + number,
            "accuracy": 0.5 + 0.01 * number,
            "loss": 1.0 + number,
        }
        return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)
    state = to_state_dict(message.content["arrays"])
    moved = {
        name: tensor + 1 if tensor.dtype == torch.int64 else tensor + 0.01 * (number + 1)
        for name, tensor in state.items()
    }
    moved["b"] = state["b"] - torch.tensor([0.02, 0.03 * number])
    metrics = {
        "num-examples": 10 + number,
        "num-steps": 3,
        "normalizer": 3.0,
        "loss": 1.0 + number,
        "loss-before": 2.0,
        "accuracy": 0.5,
        "grad-norm": 0.1 * (number + 1),
        "label-hist": [5, number, 5],
    }
    content = RecordDict(
        {
            "arrays": to_record(moved),
            "metrics": MetricRecord(metrics),
            "steelyard": ConfigRecord(ours),
        }
    )
    content["steelyard.told"] = to_record({"scaffold.control": torch.full((DIM,), 0.1 * number)})
    return Message(content, reply_to=message)


# What a client may send.

TEXTS = st.one_of(
    st.text(max_size=20),
    st.sampled_from(
        [
            "",
            "arrays",
            "metrics",
            "steelyard",
            "steelyard.told",
            "__metadata__",
            "a.weight",
            "\x1b[2J",
            "x" * 5000,
        ]
    ),
    st.sampled_from(["partition-id", "num-examples", "label-hist", "a" + ".b" * 300, "\ud800"]),
)
NUMBERS = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from([0, -1, 10**15, 10**16, 2**63 - 1, 10**400, True]),
    st.floats(allow_nan=True, allow_infinity=True),
)
VALUES = st.one_of(NUMBERS, st.lists(NUMBERS, max_size=5))
SETTINGS = st.one_of(
    VALUES, TEXTS, st.binary(max_size=40), st.booleans(), st.lists(TEXTS, max_size=3)
)
DIMENSIONS = st.one_of(st.integers(-4, 8), st.sampled_from([2**62, -(2**62), 10**30, True]))
SHAPES = st.lists(DIMENSIONS, max_size=4).map(tuple)


def header(descr, order, shape, version=1):
    text = f"{{'descr': {descr!r}, 'fortran_order': {order!r}, 'shape': {shape!r}, }}\n".encode()
    length = len(text).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + length + text


HEADERS = st.builds(
    header,
    st.sampled_from(
        ["<f4", "<f8", ">f4", "<i8", "|O", "|V4", "|S0", "<M8[s]", "|b1", [("a", "<f4")], 7, None]
    ),
    st.sampled_from([True, False, 1, None, "yes"]),
    st.one_of(SHAPES, st.sampled_from([(3, 4), (2,), (), 7, None, [2], ((2,),)])),
    st.sampled_from([1, 2, 3, 9]),
)
DATA = st.one_of(
    st.binary(max_size=200),
    st.builds(
        bytes.__add__, HEADERS, st.sampled_from([b"", bytes(8), bytes(48), bytes(96), b"\xff" * 48])
    ),
    st.sampled_from(
        [
            b"\x93NUMPY\x01\x00\xff\xff" + b"-" * 70000,
            b"\x93NUMPY\x02\x00\xff\xff\xff\xff",
            b"(" * 4000,
        ]
    ),
    st.sampled_from(
        [
            header("x", True, ()).replace(b"'x'", one * 900)
            for one in (b"(", b"[", b"-", b"{1:", b"~")
        ]
    ),
)
ARRAYS = st.builds(
    lambda dtype, shape, stype, data: Array(dtype=dtype, shape=shape, stype=stype, data=data),
    st.sampled_from(["float32", "bfloat16", "int64", "", "x" * 5000]),
    SHAPES,
    st.sampled_from(["numpy.ndarray", "steelyard.bfloat16", "pickle", "", "x" * 5000, "\x1b[2J"]),
    DATA,
)
RECORDS = st.one_of(
    st.dictionaries(TEXTS, ARRAYS, max_size=3).map(ArrayRecord),
    st.dictionaries(TEXTS, VALUES, max_size=3).map(lambda values: loose(MetricRecord(), values)),
    st.dictionaries(TEXTS, SETTINGS, max_size=3).map(lambda values: loose(ConfigRecord(), values)),
)
NAMES = st.one_of(
    st.sampled_from(["arrays", "metrics", "steelyard", "steelyard.told", "more"]), TEXTS
)
METRICS = st.sampled_from(
    [
        "num-examples",
        "num_examples",
        "num-steps",
        "normalizer",
        "loss",
        "loss-before",
        "accuracy",
        "grad-norm",
        "label-hist",
    ]
)


def loose(record, values):
    """Puts values into a record that its own checks would refuse: a client need not run them."""
    for name, value in values.items():
        record.__dict__.setdefault("_data", {})[name] = value
    return record


def set_in(content, record, name, value):
    if record in content:
        loose(content[record], {name: value})


CHANGES = st.one_of(
    st.tuples(st.just("array"), st.sampled_from([*INITIAL, "c"]), ARRAYS),
    st.tuples(st.just("data"), st.sampled_from([*INITIAL]), DATA),
    st.tuples(st.just("cut"), st.sampled_from([*INITIAL]), st.integers(-200, 200)),
    st.tuples(st.just("told"), st.sampled_from(["scaffold.control", "__metadata__", "x"]), ARRAYS),
    st.tuples(st.just("metric"), st.one_of(METRICS, TEXTS), VALUES),
    st.tuples(
        st.just("config"),
        st.one_of(st.sampled_from(["partition-id", "client", "restarted"]), TEXTS),
        SETTINGS,
    ),
    st.tuples(st.just("record"), NAMES, RECORDS),
    st.tuples(st.just("drop"), NAMES, st.none()),
)


def apply(content, changes):
    for kind, name, value in changes:
        if kind == "record":
            content.__dict__["_data"][name] = value
        elif kind == "drop":
            content.pop(name, None)
        elif kind in ("metric", "config"):
            set_in(content, "metrics" if kind == "metric" else "steelyard", name, value)
        elif kind == "told":
            set_in(content, "steelyard.told", name, value)
        elif "arrays" in content and isinstance(content["arrays"], ArrayRecord):
            arrays = content["arrays"]
            if kind == "array":
                loose(arrays, {name: value})
            elif name in arrays and isinstance(arrays[name], Array):
                old = arrays[name].data
                data = value if kind == "data" else old[:value] + bytes(max(0, value - len(old)))
                vars(arrays[name])["data"] = data


def run(algorithm, memory, change, phase):
    """Two rounds; returns the model, and the records."""

    def act(number, reply):
        is_training = reply.metadata.message_type.startswith("train")
        return change(reply) if number == LIAR and is_training == (phase == "train") else reply

    made = runs.strategy(
        ALGORITHMS[algorithm], fraction_evaluate=1.0, min_evaluate_nodes=5, memory=memory
    )
    evaluate, log = made.aggregate_evaluate, []

    def aggregate_evaluate(number, replies):
        found = evaluate(number, replies)
        log.append(json.loads(json.dumps(made.run_log.record, allow_nan=False)))  # as it is written
        return found

    made.aggregate_evaluate = aggregate_evaluate
    result = made.start(
        LocalGrid(answer, runs.COUNT, change=act), to_record(INITIAL), num_rounds=2, timeout=0.01
    )
    return to_state_dict(result.arrays), log


@functools.cache
def without(algorithm, phase):
    """The run in which the client does not answer."""
    return run(algorithm, None, lambda reply: [], phase)


@pytest.fixture(autouse=True, scope="module")
def quiet():
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    yield
    logging.getLogger("flwr").setLevel(logging.ERROR)


@pytest.mark.parametrize("memory", [None, 1])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@settings(max_examples=EXAMPLES, deadline=None, derandomize="STEELYARD_FUZZ" not in os.environ)
@given(changes=st.lists(CHANGES, min_size=1, max_size=4))
def test_replies_to_training(algorithm, memory, changes):
    def change(reply):
        apply(reply.content, changes)
        return reply

    model, log = run(algorithm, memory, change, "train")
    assert len(log) == 2
    others = {"1", "2", "3", "4"}
    for record in log:
        assert others <= set(record["weights"])
        counted = set(record["weights"]) - others
        assert len(counted) <= 1
        assert counted or record["quarantined"]  # with a reason, or counted
        assert all(0 < len(reason) <= 600 for reason in record["quarantined"].values())
    if all(set(record["weights"]) == others for record in log):
        reference, clean = without(algorithm, "train")
        assert runs.same(model, reference)
        assert [record["weights"] for record in log] == [record["weights"] for record in clean]


@settings(max_examples=EXAMPLES, deadline=None, derandomize="STEELYARD_FUZZ" not in os.environ)
@given(changes=st.lists(CHANGES, min_size=1, max_size=4))
def test_replies_to_evaluation(changes):
    def change(reply):
        apply(reply.content, changes)
        return reply

    model, log = run("fedavg", None, change, "evaluate")
    reference, clean = without("fedavg", "evaluate")
    assert runs.same(model, reference)
    for record, honest in zip(log, clean, strict=True):
        assert set(record["weights"]) == set("01234")
        assert set(record["client_evaluation"]) == {"accuracy", "loss"}
        assert 0 <= record["client_evaluation"]["accuracy"] <= 1
        assert abs(record["client_evaluation"]["loss"]) <= 1e15
        if record["evaluation"]["quarantined"]:
            assert record["client_evaluation"] == honest["client_evaluation"]
