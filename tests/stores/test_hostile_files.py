"""Files made to harm whoever opens them: refused after a bounded number of bytes, in a bounded amount of memory."""

import json
import os
import socket
import struct
import tracemalloc

import pytest
import torch
from safetensors.torch import save_file

import steelyard
from steelyard.stores._json_stream import open_regular
from steelyard.stores._safetensors import INDEX, Checkpoint, SafetensorsStore
from tests.stores.test_safetensors import entry, write

MB = 1 << 20
MAX_READ = 4 * MB
MAX_MEMORY = 20 * MB


def repeat(before, unit, after, num_bytes=12 * MB):
    return before + unit * (num_bytes // len(unit)) + after


def numbered(before, unit, after, count):
    return before + b",".join(unit % i for i in range(count)) + after


EMPTY = b'"%d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
BYTE = b'"%d":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}'
HEADERS = {
    "objects in a list": lambda: repeat(b'{"a":[', b'{"":0},', b"0]}"),
    "lists in a list": lambda: repeat(b'{"a":[', b"[],", b"0]}"),
    "lists in an entry": lambda: repeat(
        b'{"a":{"dtype":"F32","shape":[', b"[],", b'0],"data_offsets":[0,0]}}'
    ),
    "a deep list": lambda: repeat(b'{"a":', b"[", b"}"),
    "a deep object": lambda: repeat(b"", b'{"a":', b"}"),
    "a deep shape": lambda: repeat(
        b'{"a":{"dtype":"F32","shape":', b"[", b'"data_offsets":[0,0]}}', 100_000
    ),
    "a long shape": lambda: repeat(
        b'{"a":{"dtype":"F32","shape":[', b"4611686018427387903,", b'1],"data_offsets":[0,0]}}'
    ),
    "a shape of many dimensions": lambda: json.dumps({"a": entry(0, 4, [1] * 100_000)}).encode(),
    "a huge number": lambda: repeat(
        b'{"a":{"dtype":"F32","shape":[', b"9", b'],"data_offsets":[0,0]}}', 500_000
    ),
    "a long name": lambda: repeat(
        b'{"', b"a", b'":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}'
    ),
    "nothing but space": lambda: repeat(b"{", b" ", b"}"),
    "space behind the end": lambda: repeat(b"{}", b" ", b""),
    "a string without end": lambda: repeat(b'{"', b"\\\\", b""),
    "many empty tensors": lambda: numbered(b"{", EMPTY, b"}", 100_000),
    "tensors beyond the end": lambda: numbered(b"{", BYTE, b"}", 100_000).replace(
        b"[0,1]", b"[5,6]"
    ),
    "much metadata": lambda: numbered(b'{"__metadata__":{', b'"%d":""', b"}}", 500_000),
    "metadata of lists": lambda: repeat(b'{"__metadata__":{"a":[', b"[],", b"0]}}"),
    "a longer header than any": lambda: repeat(b"{", b" ", b"}", 40 * MB),
}


@pytest.fixture
def bounded(monkeypatch):
    """Checks in the end that few bytes were read and little memory was used."""
    num_bytes = 0
    pread = os.pread

    def counting(handle, size, position):
        nonlocal num_bytes
        data = pread(handle, size, position)
        num_bytes += len(data)
        return data

    monkeypatch.setattr(os, "pread", counting)
    yield
    assert num_bytes <= MAX_READ
    assert tracemalloc.get_traced_memory()[1] <= MAX_MEMORY
    tracemalloc.stop()


@pytest.mark.parametrize("kind", HEADERS)
def test_a_bomb_is_refused_early(kind, tmp_path, bounded):
    path = write(tmp_path / "x.safetensors", HEADERS[kind]())
    tracemalloc.start()
    with pytest.raises(steelyard.SteelyardError, match=r"x\.safetensors") as refused:
        Checkpoint(path)
    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize(
    "index",
    [
        lambda: repeat(b'{"weight_map":[', b'{"":0},', b"0]}"),
        lambda: repeat(b'{"weight_map":', b'{"a":', b"}"),
        lambda: repeat(b'{"metadata":', b"[", b"}"),
        lambda: repeat(b'{"metadata":[', b'{"":[]},', b"0]}"),
        lambda: repeat(b'{"weight_map":{"a":"', b"a", b'"}}'),
        lambda: repeat(b'{"weight_map":{"a":"', b"a", b'"}}', 100_000),
        lambda: b'{"weight_map":{"a":' + b"9" * 5000 + b"}}",
        lambda: repeat(b"{", b" ", b"}", 40 * MB),
    ],
)
def test_a_bomb_of_an_index_is_refused_early(index, tmp_path, bounded):
    (tmp_path / INDEX).write_bytes(index())
    tracemalloc.start()
    with pytest.raises(steelyard.SteelyardError, match="index") as refused:
        Checkpoint(tmp_path)
    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize("kind", ["header", "index"])
def test_a_client_with_far_more_tensors_than_the_base_is_refused_early(kind, tmp_path, bounded):
    save_file({"w": torch.zeros(3)}, tmp_path / "base.safetensors")
    count = 100_000
    client = tmp_path / "client"
    client.mkdir()
    if kind == "header":
        unit = b'"%d":{"dtype":"U8","shape":[1],"data_offsets":[%d,%d]}'
        header = b"{" + b",".join(unit % (i, i, i + 1) for i in range(count)) + b"}"
        write(client / "model.safetensors", header, bytes(count))
    else:
        (client / INDEX).write_bytes(
            numbered(b'{"weight_map":{', b'"%d":"a.safetensors"', b"}}", count)
        )
    tracemalloc.start()
    store = SafetensorsStore.open(tmp_path / "base.safetensors", {"client": client})
    assert "client" in store.quarantined


def make_socket(path):
    here = os.getcwd()
    os.chdir(path.parent)  # the path of a socket may have 107 characters at most
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


ODD_FILES = {
    "pipe": os.mkfifo,
    "socket": make_socket,
    "device": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.mark.parametrize("kind", ODD_FILES)
@pytest.mark.parametrize("place", ["file", "in a directory", "shard", "index"])
def test_what_is_not_a_file_is_not_opened(kind, place, tmp_path, monkeypatch):
    name = {"file": "x.safetensors", "shard": "s.safetensors", "index": INDEX}.get(
        place, "model.safetensors"
    )
    ODD_FILES[kind](tmp_path / name)
    if place == "shard":
        (tmp_path / INDEX).write_text('{"weight_map": {"a": "s.safetensors"}}')

    def refuse(path, flags, *rest):
        assert str(path) != str(tmp_path / name)  # to open a pipe is to wait for its writer
        return os_open(path, flags, *rest)

    os_open = os.open
    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(steelyard.SteelyardError, match="not a regular file"):
        Checkpoint(tmp_path / name if place == "file" else tmp_path)


def test_a_pipe_that_takes_the_place_of_a_file_is_not_waited_for(tmp_path, monkeypatch):
    path = tmp_path / "x.safetensors"
    save_file({"w": torch.zeros(3)}, path)

    def swap(name, *rest, **options):
        result = os_stat(name, *rest, **options)
        path.unlink()
        os.mkfifo(path)
        return result

    os_stat = os.stat
    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", swap)
        with pytest.raises(steelyard.SteelyardError, match="not a regular file"):
            open_regular(path)


@pytest.mark.parametrize("shape", [[2**61, 2**61, 0], [2**61, 0], [0] * 64])
def test_sizes_that_no_tensor_has_are_refused_or_can_be_made(shape, tmp_path):
    path = write(
        tmp_path / "x.safetensors", {"w": entry(0, 4, [1]), "v": entry(4, 4, shape)}, bytes(4)
    )
    try:
        shapes = Checkpoint(path).shapes
    except steelyard.SteelyardError:
        return
    assert torch.empty(shapes["v"][0], device="meta").numel() == 0


def test_headers_as_others_write_them_are_read(tmp_path):
    header = {
        "b": {"data_offsets": [4, 6], "shape": [1, 1, 1], "dtype": "F16"},
        "__metadata__": {
            "num_examples": "9",
            "note": 'a "quoted" } \\ text \u00e9',
            "picture": "x" * 200_000,
        },
        '\u00e9 \\ "{[': {"dtype": "F32", "shape": [], "data_offsets": [0, 4]},
    }
    text = json.dumps(header, indent=3, ensure_ascii=False).encode() + b"   \n"
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(6))
    checkpoint = Checkpoint(path)
    assert checkpoint.metadata == header["__metadata__"]
    assert checkpoint.shapes == {
        "b": ((1, 1, 1), torch.float16),
        '\u00e9 \\ "{[': ((), torch.float32),
    }


def test_an_index_may_hold_more_than_it_needs(tmp_path):
    save_file({"w": torch.zeros(3)}, tmp_path / "a.safetensors")
    index = {
        "metadata": {"made": {"by": [[1, "x"], {}], "n": 1.5e3}},
        "weight_map": {"w": "a.safetensors"},
        "z": None,
    }
    (tmp_path / INDEX).write_text(json.dumps(index, indent=1))
    assert list(Checkpoint(tmp_path).entries) == ["w"]


def test_the_header_of_a_large_model_is_read(tmp_path):
    tensors = {
        f"layers.{i}.experts.{j}.weight": torch.full((1,), i, dtype=torch.uint8)
        for i in range(60)
        for j in range(60)
    }
    save_file(tensors, tmp_path / "x.safetensors")
    assert Checkpoint(tmp_path / "x.safetensors").entries.keys() == tensors.keys()
