"""The file of recorded inner products: what is written is read again, and damage is noticed."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import steelyard
from steelyard import SteelyardError
from steelyard.runs._gram_log import GramLog, decode, encode, parse_recording, read_grams


def make_round(number=1, count=4, seed=0, layers=None):
    """Returns a recorded round of random updates."""
    rng = torch.Generator().manual_seed(seed)
    base = {"a.weight": torch.randn(3, 2, generator=rng), "b.weight": torch.randn(5, generator=rng)}
    clients = {
        f"client-{k}": {
            name: value + torch.randn(value.shape, generator=rng) for name, value in base.items()
        }
        for k in range(count)
    }
    sizes = {client: 10 + k for k, client in enumerate(clients)}
    rule = "fedadp" if layers is None else f"fedawa_l:layers={layers}"
    out = steelyard.aggregate(
        rule, base, clients, metrics={"num_examples": sizes}, round=number, diagnose=True
    )
    return out.gram


def assert_equal_rounds(first, second):
    assert (first.round, first.ids, first.layers) == (second.round, second.ids, second.layers)
    assert first.global_lr == second.global_lr
    assert first.population_examples == second.population_examples
    np.testing.assert_array_equal(first.weights, second.weights)
    np.testing.assert_array_equal(first.base, second.base)
    assert first.metrics.keys() == second.metrics.keys()
    for name, values in first.metrics.items():
        np.testing.assert_array_equal(values, second.metrics[name])
    assert first.grams.keys() == second.grams.keys()
    for layers, entry in first.grams.items():
        assert entry.names == second.grams[layers].names
        for name in ("dots", "theta_dots", "theta_sq", "dims"):
            np.testing.assert_array_equal(
                getattr(entry.gram, name), getattr(second.grams[layers].gram, name)
            )


@given(count=st.integers(1, 12), seed=st.integers(0, 10**6), width=st.integers(1, 5))
@settings(max_examples=30, deadline=None)
def test_a_round_is_read_as_it_was_written(count, seed, width):
    seen = make_round(count=count, seed=seed)
    rng = np.random.default_rng(seed)
    metrics = {
        **seen.metrics,
        "label_hist": rng.integers(0, 9, (count, width)).astype(float),
        "loss": np.where(rng.random(count) < 0.3, np.nan, rng.normal(size=count)),
    }
    seen = replace(seen, metrics=metrics, norms=rng.random(count), population_examples=77)
    assert_equal_rounds(decode(encode(seen)), seen)
    np.testing.assert_array_equal(decode(encode(seen)).norms, seen.norms)
    assert encode(decode(encode(seen))) == encode(seen)


def write(path, rounds):
    log = GramLog(path)
    assert log.open(0) is None
    for number in rounds:
        log.append(make_round(number, seed=number))
    log.close()


def test_a_torn_last_entry_is_dropped(tmp_path):
    path = tmp_path / "grams.bin"
    write(path, [1, 2])
    two = path.read_bytes()
    write(path, [1, 2, 3])
    three = path.read_bytes()
    for length in range(len(two), len(three)):
        path.write_bytes(three[:length])
        assert [seen.round for seen in read_grams(path)] == [1, 2]


def test_resuming_cuts_later_rounds_and_torn_entries(tmp_path):
    path = tmp_path / "grams.bin"
    write(path, [1, 2, 3])
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    log = GramLog(path)
    assert log.open(1) is None
    for number in (2, 3):
        log.append(make_round(number, seed=number))
    log.close()
    assert path.read_bytes() == whole


def test_a_damaged_entry_is_named(tmp_path):
    path = tmp_path / "grams.bin"
    write(path, [1, 2, 3])
    data = bytearray(path.read_bytes())
    data[40] ^= 1
    path.write_bytes(data)
    with pytest.raises(SteelyardError, match=r"grams\.bin: damaged at byte 0"):
        list(read_grams(path))
    warning = GramLog(path).open(3)
    assert warning is not None
    assert "cannot be replayed" in warning


def test_a_missing_file_is_told_when_a_run_is_resumed(tmp_path):
    warning = GramLog(tmp_path / "grams.bin").open(4)
    assert warning is not None
    assert "rounds 1 to 4 cannot be replayed" in warning


@pytest.mark.parametrize("data", [b"", b"x", encode(make_round())[:-3], bytes(50)])
def test_bytes_that_are_no_entry(data):
    with pytest.raises(SteelyardError, match="an entry"):
        decode(data)


@pytest.mark.parametrize("text", ["grams", "gram:layers=3", "", "gram:", "True"])
def test_an_unknown_recording_names_the_known_ones(text):
    with pytest.raises(SteelyardError, match="use auto, gram, gram:layers=tensor"):
        parse_recording(text)


def test_twenty_clients_take_less_than_5_kb_a_round(tmp_path):
    steelyard.simulate("fedadp", "digits", rounds=5, clients=20, out=tmp_path, seed=1)
    assert (tmp_path / "grams.bin").stat().st_size < 5 * 5000


def test_a_hundred_clients_take_less_than_100_kb_a_round():
    seen = make_round(count=100)
    assert len(encode(seen)) < 100_000


def test_recording_can_be_turned_off_and_bounded(tmp_path):
    steelyard.simulate("fedavg", "digits", rounds=1, out=tmp_path / "none", record="none")
    assert not (tmp_path / "none" / "grams.bin").exists()
    many = {"rounds": 1, "clients": 101, "executor": "serial", "partition": "iid"}
    steelyard.simulate("fedavg", "digits", out=tmp_path / "auto", **many)
    assert (tmp_path / "auto" / "grams.bin").stat().st_size == 0
    steelyard.simulate("fedavg", "digits", out=tmp_path / "gram", record="gram", **many)
    assert len(next(read_grams(tmp_path / "gram" / "grams.bin")).ids) == 101


def test_layers_are_recorded_if_asked(tmp_path):
    steelyard.simulate("fedavg", "digits", rounds=1, out=tmp_path, record="gram:layers=tensor")
    (seen,) = read_grams(tmp_path / "grams.bin")
    assert set(seen.grams) == {None, "tensor"}
    layered = seen.grams["tensor"]
    assert len(layered.names) == layered.gram.dots.shape[0] > 1
    np.testing.assert_allclose(layered.gram.merge_layers().dots, seen.whole.dots, rtol=1e-5)


def test_entries_are_written_before_a_checkpoint_and_at_the_end(tmp_path):
    path = tmp_path / "grams.bin"
    log = GramLog(path)
    log.open(0)
    log.append(make_round(1))  # the first one is written at once
    log.append(make_round(2))
    log.append(make_round(3))
    log.flush()
    assert [seen.round for seen in read_grams(path)] == [1, 2, 3]
    log.append(make_round(4))
    log.close()
    assert [seen.round for seen in read_grams(path)] == [1, 2, 3, 4]


def test_a_file_that_is_gone_stops_the_run(tmp_path):
    log = GramLog(tmp_path / "grams.bin")
    log.open(0)
    log.append(make_round(1))
    (tmp_path / "grams.bin").unlink()
    log.append(make_round(2))
    with pytest.raises(SteelyardError, match="was removed or replaced"):
        log.flush()
    log.close()
