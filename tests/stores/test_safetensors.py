"""Files: what is read, what is refused, and that nothing else happens."""

import errno
import json
import math
import os
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

import steelyard
from steelyard.stores._safetensors import Checkpoint, SafetensorsStore
from tests.rounds import Quadratic, cohort, equal, reports


def write(path, header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def entry(begin, end, shape, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


BAD_FILES = {
    "empty": lambda p: p.write_bytes(b""),
    "short": lambda p: p.write_bytes(b"abc"),
    "huge header": lambda p: p.write_bytes(struct.pack("<Q", 1 << 60) + b"{}"),
    "header past the end": lambda p: p.write_bytes(struct.pack("<Q", 50) + b"{}"),
    "not JSON": lambda p: write(p, b"{]}"),
    "a list": lambda p: write(p, []),
    "deep JSON": lambda p: write(p, b"[" * 100_000),
    "duplicate keys": lambda p: write(
        p, b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":1}', b"\0" * 4
    ),
    "overlap": lambda p: write(p, {"a": entry(0, 8, [2]), "b": entry(4, 12, [2])}, b"\0" * 12),
    "hole": lambda p: write(p, {"a": entry(0, 4, [1]), "b": entry(8, 12, [1])}, b"\0" * 12),
    "trailing bytes": lambda p: write(p, {"a": entry(0, 4, [1])}, b"\0" * 9),
    "truncated": lambda p: write(p, {"a": entry(0, 400, [100])}, b"\0" * 40),
    "wrong size": lambda p: write(p, {"a": entry(0, 4, [2])}, b"\0" * 4),
    "negative shape": lambda p: write(p, {"a": entry(0, 4, [-1, -1])}, b"\0" * 4),
    "overflowing shape": lambda p: write(p, {"a": entry(0, 0, [1 << 63, 0])}),
    "float shape": lambda p: write(p, {"a": entry(0, 4, [1.0])}, b"\0" * 4),
    "unknown dtype": lambda p: write(p, {"a": entry(0, 4, [1], "F1337")}, b"\0" * 4),
    "zip polyglot": lambda p: p.write_bytes(b"PK\x03\x04" + b"\0" * 100),
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_malformed_files_are_refused_with_a_sentence(kind, tmp_path):
    BAD_FILES[kind](tmp_path / "x.safetensors")
    with pytest.raises(steelyard.SteelyardError, match=r"x\.safetensors"):
        Checkpoint(tmp_path / "x.safetensors")


@given(st.binary(max_size=300), st.integers(0, 200))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_fuzzed_files_give_typed_errors_only(tmp_path_factory, noise, position):
    path = tmp_path_factory.mktemp("fuzz") / "f.safetensors"
    save_file({"a": torch.arange(4.0), "b": torch.ones(2, 3)}, path)
    good = path.read_bytes()
    path.write_bytes(good[:position] + noise + good[position + len(noise) :])
    try:
        checkpoint = Checkpoint(path)
    except steelyard.SteelyardError:
        return
    for name in checkpoint.entries:
        checkpoint.load(name)


def test_reads_what_safetensors_writes(tmp_path):
    dtypes = [
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.uint8,
        torch.bool,
    ]
    tensors = {str(d): torch.arange(7).to(d) for d in dtypes} | {
        "scalar": torch.tensor(3.5),
        "none": torch.zeros(0, 3),
    }
    save_file(tensors, tmp_path / "x.safetensors", metadata={"num_examples": "9"})
    checkpoint = Checkpoint(tmp_path / "x.safetensors")
    assert equal({name: checkpoint.load(name) for name in tensors}, tensors)
    assert checkpoint.metadata == {"num_examples": "9"}


@pytest.fixture
def files(tmp_path):
    base, clients = cohort(4)
    save_file(base, tmp_path / "base.safetensors")
    paths = {}
    for c, params in clients.items():
        paths[c] = tmp_path / f"{c}.safetensors"
        save_file(params, paths[c])
    return base, clients, tmp_path / "base.safetensors", paths


@pytest.mark.parametrize(
    "rule",
    [
        "fedavg",
        "fedadp",
        "trimmed_mean",
        "guard(fedawa)",
        "law:epochs=2",
        "if_finite(law:epochs=2)",
    ],
)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_nan_in_a_file_is_found_on_the_way(files, rule, value):
    base, clients, base_file, paths = files
    bad = {**clients["client-2"], "fc.weight": clients["client-2"]["fc.weight"].clone()}
    bad["fc.weight"][7, 7] = value
    save_file(bad, paths["client-2"])
    given = {"metrics": reports(list(clients)), "probe": Quadratic()}
    out = steelyard.aggregate(rule, None, SafetensorsStore.open(base_file, paths), **given)
    clean = steelyard.aggregate(
        rule, base, {c: m for c, m in clients.items() if c != "client-2"}, **given
    )
    assert "NaN" in out.report["quarantined"]["client-2"]
    assert equal(out.params, clean.params)


def test_a_void_round_names_clients_whose_nan_was_found_on_the_way(files):
    _, clients, base_file, paths = files
    for c, params in clients.items():
        save_file({**params, "scale": torch.tensor(math.nan)}, paths[c])
    store = SafetensorsStore.open(base_file, paths)
    assert store.ids == tuple(clients)  # nothing is read yet
    out = steelyard.aggregate("guard(fedavg)", None, store, metrics=reports(list(clients)))
    assert out.report["void"]
    assert set(out.report["quarantined"]) == set(clients)
    assert (out.weights == 0).all()
    assert len(out.weights) == 4


def test_bad_files_are_quarantined(files, tmp_path):
    _, clients, base_file, paths = files
    paths["client-0"].write_bytes(b"nonsense")
    save_file({**clients["client-1"], "scale": torch.ones(1)}, paths["client-1"])
    paths["gone"] = tmp_path / "gone.safetensors"
    nan = {
        **clients["client-3"],
        "bn.running_mean": clients["client-3"]["bn.running_mean"] * math.nan,
    }
    save_file(nan, paths["client-3"])
    store = SafetensorsStore.open(base_file, paths)
    assert store.ids == ("client-2",)
    assert "not a safetensors" in store.quarantined["client-0"]
    assert "shape" in store.quarantined["client-1"]
    assert "no such file" in store.quarantined["gone"]
    assert "NaN" in store.quarantined["client-3"]


def shard(folder, params, parts):
    folder.mkdir()
    names = sorted(params)
    weight_map = {}
    for i in range(parts):
        file = f"model-{i}.safetensors"
        save_file({n: params[n] for n in names[i::parts]}, folder / file)
        weight_map |= dict.fromkeys(names[i::parts], file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


def test_shards_give_the_same_bits_as_single_files(files, tmp_path):
    base, clients, base_file, paths = files
    metrics = reports(list(clients))
    sharded = {c: shard(tmp_path / f"{c}-shards", m, 3) for c, m in clients.items()}
    base_folder = shard(tmp_path / "base-shards", base, 2)
    single = steelyard.aggregate(
        "fedawa", None, SafetensorsStore.open(base_file, paths), metrics=metrics
    )
    split = steelyard.aggregate(
        "fedawa", None, SafetensorsStore.open(base_folder, sharded), metrics=metrics
    )
    assert equal(split.params, {n: single.params[n] for n in split.params})


@pytest.mark.parametrize("name", ["../evil.safetensors", "/etc/passwd", "a/b.safetensors"])
def test_an_index_cannot_point_outside_its_folder(name, tmp_path):
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(steelyard.SteelyardError, match="plain file name"):
        Checkpoint(tmp_path)


@pytest.mark.parametrize("index", ["[]", "{}", '{"weight_map": 3}', "nonsense"])
def test_a_malformed_index_is_refused(index, tmp_path):
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(steelyard.SteelyardError, match="index"):
        Checkpoint(tmp_path)


def test_a_file_cut_short_while_read_is_an_error(files):
    _, _, base_file, paths = files
    store = SafetensorsStore.open(base_file, paths)
    data = paths["client-1"].read_bytes()
    with open(paths["client-1"], "r+b") as file:
        file.truncate(len(data) // 2)
    with pytest.raises(steelyard.SteelyardError, match="changed while it was read"):
        steelyard.aggregate("uniform", None, store)


def test_the_loaded_base_is_the_file(files):
    base, _, base_file, paths = files
    store = SafetensorsStore.open(base_file, paths)
    assert equal({n: store.base[n] for n in base}, base)


@pytest.mark.parametrize("name", ["1\\u0000.safetensors", "\\ud800.safetensors"])
def test_a_shard_that_no_file_can_be_is_quarantined(name, files, tmp_path):
    _, _, base, paths = files
    hostile = tmp_path / "hostile"
    hostile.mkdir()
    (hostile / "model.safetensors.index.json").write_text(f'{{"weight_map": {{"a": "{name}"}}}}')
    assert list(SafetensorsStore.open(base, {**paths, "hostile": hostile}).quarantined) == [
        "hostile"
    ]


def test_an_index_that_lists_more_than_there_is_is_refused(files, tmp_path):
    base, *_ = files
    folder = shard(tmp_path / "base", base, 2)
    index = folder / "model.safetensors.index.json"
    listed = json.loads(index.read_text())["weight_map"]
    index.write_text(json.dumps({"weight_map": listed | {"lost.weight": "model-0.safetensors"}}))
    with pytest.raises(
        steelyard.SteelyardError, match=r"the index lists 'lost\.weight' in 'model-0\.safetensors'"
    ):
        Checkpoint(folder)


def test_too_many_open_files_is_nobodys_fault(files, monkeypatch):
    _, _, base, paths = files

    def full(path, *_):
        if "client" in str(path):
            raise OSError(errno.EMFILE, "Too many open files")
        return os_open(path, *_)

    os_open = os.open
    monkeypatch.setattr(os, "open", full)
    with pytest.raises(steelyard.SteelyardError, match="allow more"):
        SafetensorsStore.open(base, paths)


def test_nan_in_a_float_counter_is_quarantined(tmp_path):
    base = {"w": torch.zeros(4), "bn.num_batches_tracked": torch.tensor(1.0)}
    models = {
        "base": base,
        "a": base | {"bn.num_batches_tracked": torch.tensor(math.nan)},
        "b": base,
    }
    for name, params in models.items():
        save_file(params, tmp_path / f"{name}.safetensors")
    paths = {name: tmp_path / f"{name}.safetensors" for name in ("a", "b")}
    assert list(SafetensorsStore.open(tmp_path / "base.safetensors", paths).quarantined) == ["a"]
