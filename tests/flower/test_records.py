"""Tensors as Flower's arrays and back."""

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord
from hypothesis import given
from hypothesis import strategies as st

from steelyard.core._errors import SteelyardError
from steelyard.flower import to_record, to_state_dict
from steelyard.flower._array_records import RecordSource

STATE = {
    "float": torch.randn(3, 4),
    "half": torch.randn(5).half(),
    "double": torch.randn(2, 3, 4, 5).double(),
    "scalar": torch.tensor(5),
    "empty": torch.zeros(0, 3),
    "mask": torch.tensor([True, False]),
    "bytes": torch.arange(7, dtype=torch.uint8),
}


def test_there_and_back():
    state = STATE | {"brain": torch.randn(2, 3).bfloat16()}
    back = to_state_dict(to_record(state))
    assert all(
        torch.equal(state[name], back[name]) and state[name].dtype == back[name].dtype
        for name in state
    )
    assert all(back[name].shape == state[name].shape for name in state)


def test_the_same_bytes_as_flowers_own():
    ours, theirs = to_record(STATE), ArrayRecord(STATE)
    for name in STATE:
        assert (ours[name].data, ours[name].dtype, tuple(ours[name].shape)) == (
            theirs[name].data,
            theirs[name].dtype,
            tuple(theirs[name].shape),
        )


def test_flower_refuses_bfloat16_and_we_carry_it():
    state = {"w": torch.randn(4).bfloat16()}
    with pytest.raises(TypeError):
        ArrayRecord(state)
    with pytest.raises(TypeError, match="Unsupported serialization type"):
        to_record(state)["w"].numpy()  # code that does not know it says so
    assert torch.equal(to_state_dict(to_record(state))["w"], state["w"])


def test_columns_first():
    values = np.asfortranarray(np.arange(12.0).reshape(3, 4))
    assert np.array_equal(to_state_dict(ArrayRecord({"x": Array(values)}))["x"].numpy(), values)


def test_slices():
    source = RecordSource(to_record(STATE))
    out = torch.empty(4)
    source.read("double", 7, out)
    assert torch.equal(out, STATE["double"].reshape(-1)[7:11].float())
    assert np.array_equal(source.peek("float"), STATE["float"].reshape(-1).numpy())


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (Array("float32", (2,), "numpy.ndarray", b"junk"), "'x' is not a numpy array"),
        (Array("float32", (2,), "pickle", b"cos\nsystem\n(S'true'\ntR."), "serialised as 'pickle'"),
        (Array("bfloat16", (3,), "steelyard.bfloat16", b"1234"), "does not fit its 4 bytes"),
        (Array(np.zeros(3, dtype=">f4")), "'x' is >f4"),
        (Array(np.zeros(3, dtype=np.complex64)), "'x' is complex64"),
        (Array(np.array(["a", "b"])), "'x' is <U1"),
        (
            Array("float32", (9,), "numpy.ndarray", Array(np.zeros(9, np.float32)).data[:-1]),
            "does not fit its 35 bytes",
        ),
    ],
)
def test_foreign_and_damaged_arrays_are_refused_by_name(array, reason):
    with pytest.raises(SteelyardError, match=reason):
        RecordSource(ArrayRecord({"x": array}))


@given(at=st.integers(0, 200), bit=st.integers(0, 7), cut=st.integers(0, 170))
def test_any_damage_is_read_or_refused(at, bit, cut):
    data = bytearray(Array(np.arange(10, dtype=np.float32)).data)
    data[at % len(data)] ^= 1 << bit
    damaged = ArrayRecord(
        {"x": Array("float32", (10,), "numpy.ndarray", bytes(data[: len(data) - cut]))}
    )
    try:
        source = RecordSource(damaged)
    except SteelyardError as error:
        said = str(error)
    else:
        said = f"'x' {source.load('x').numel()}"
    assert said.startswith("'x'")
