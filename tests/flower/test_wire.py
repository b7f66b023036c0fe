"""Arrays that no honest client sends: the client is quarantined with a reason, in memory and with a spool."""

import pytest
from flwr.app import Array, ArrayRecord, MetricRecord

import steelyard
from steelyard.core._errors import SteelyardError
from steelyard.flower import to_state_dict
from steelyard.runs._directory import read_log
from tests.flower import runs
from tests.flower.grid import LocalGrid


def npy(header, data=b"", version=(1, 0)):
    """Bytes as `numpy.save` writes them, with any header."""
    size = len(header).to_bytes(2 if version == (1, 0) else 4, "little")
    return b"\x93NUMPY" + bytes(version) + size + header + data


def shaped(shape, fortran=False, data=bytes(32), descr=b"'<f4'"):
    text = b"{'descr':%s,'fortran_order':%s,'shape':%s}\n" % (descr, str(fortran).encode(), shape)
    return {"data": npy(text, data)}


CASES = {
    "negative": shaped(b"(-2,-4)"),
    "negative, by columns": shaped(b"(-2,-4)", True),
    "nothing times a negative number": shaped(b"(0,-4)", True, b""),
    "a truth value": shaped(b"(True,8)"),
    "a truth value, by columns": shaped(b"(True,8)", True),
    "huge": shaped(b"(4611686018427387904,4611686018427387904)"),
    "huge, by columns": shaped(b"(4611686018427387904,4)", True),
    "many dimensions": shaped(b"(" + b"1," * 70 + b"8)"),
    "many dimensions, by columns": shaped(b"(" + b"1," * 70 + b"8)", True),
    "structured": shaped(b"(8,)", descr=b"[('a','<f4')]"),
    "objects": shaped(b"(8,)", descr=b"'|O'"),
    "big-endian": shaped(b"(8,)", descr=b"'>f4'"),
    "too short": shaped(b"(8,)", data=bytes(31)),
    "too long": shaped(b"(8,)", data=bytes(33)),
    "a deep header": {"data": npy(b"-" * 9000 + b"1\n")},
    "a deep header that is not long": {"data": npy(b"-" * 4000 + b"1\n")},
    "brackets": {"data": npy(b"(" * 4000)},
    "no text": {"data": npy(b"\xff\xfe" * 40)},
    "a header that never ends": {"data": b"\x93NUMPY\x02\x00\xff\xff\xff\xff"},
    "an unknown version": {
        "data": npy(b"{'descr':'<f4','fortran_order':False,'shape':(8,)}\n", bytes(32), (9, 0))
    },
    "nothing": {"data": b""},
    "half of a beginning": {"data": b"\x93NUM"},
    "bfloat16, negative": {"data": bytes(16), "stype": "steelyard.bfloat16", "shape": (-2, -4)},
    "bfloat16, a truth value": {
        "data": bytes(16),
        "stype": "steelyard.bfloat16",
        "shape": (True, 8),
    },
    "pickled": {"data": b"x", "stype": "pickle"},
    "no bytes": {"data": None},
}


def array(case):
    made = Array(dtype="float32", shape=(8,), stype="numpy.ndarray", data=b"")
    vars(made).update(CASES[case])
    return made


@pytest.mark.parametrize("case", CASES)
def test_it_is_named_when_it_is_read(case):
    with pytest.raises((SteelyardError, TypeError)):
        to_state_dict(ArrayRecord({"0.bias": array(case)}))


# A tensor of each record.
NAMES = {
    "arrays": "0.bias",
    "steelyard.told": "scaffold.control",
    "steelyard.tensors": "fedproto.prototypes",
}


@pytest.mark.parametrize("memory", [None, 1])
@pytest.mark.parametrize("record", NAMES)
@pytest.mark.parametrize("case", CASES)
def test_the_run_goes_on(case, record, memory, tmp_path):
    def change(number, reply):
        if number == 1:
            vars(reply.content[record])["_data"][NAMES[record]] = array(case)
        return reply

    client = "fedproto" if record == "steelyard.tensors" else "scaffold"
    made = runs.strategy(steelyard.Algorithm("fedavg", client=client), out=tmp_path, memory=memory)
    runs.start(made, LocalGrid(CLIENT, runs.COUNT, change=change), rounds=1)
    (log,) = read_log(tmp_path)
    assert set(log["weights"]) == {"0", "2", "3", "4"}
    assert len(log["quarantined"].pop("1")) > 10
    assert log["quarantined"] == {}


CLIENT = runs.app()


@pytest.mark.parametrize("name", NAMES)
def test_a_record_of_another_kind(name, tmp_path):
    def change(number, reply):
        if number == 1:
            del reply.content[name]
            reply.content[name] = MetricRecord({"x": 1.0})
        return reply

    client = "fedproto" if name == "steelyard.tensors" else "scaffold"
    made = runs.strategy(steelyard.Algorithm("fedavg", client=client), out=tmp_path)
    runs.start(made, LocalGrid(CLIENT, runs.COUNT, change=change), rounds=1)
    (log,) = read_log(tmp_path)
    counted = set("01234") if name == "steelyard.told" else set("0234")
    assert set(log["weights"]) == counted
