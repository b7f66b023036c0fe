"""Damaged and hostile text files: a result or one sentence, nothing else."""

import json
import lzma
import struct
import zlib

import numpy as np
import pytest

from steelyard.core._errors import SteelyardError
from steelyard.data import _formats as formats
from steelyard.data import load
from tests.datasets import texts

ROLES = "shakespeare_by_role.jsonl"
LONG = {"A": "the quick brown fox " * 4, "B": "jumps over the lazy dog " * 4}


def news(folder, end):
    texts.write_news(folder, f".csv{end}")
    return folder / f"train.csv{end}"


def thucnews(folder, end):
    texts.write_thucnews(folder, f".txt{end}")
    return folder / f"dev.txt{end}"


def roles(folder, end):
    return texts.write_roles(folder / f"{ROLES}{end}")


def leaf(folder, end):
    return texts.write_leaf(folder / "all_data.json", LONG, 10)


LOADERS = {
    "ag-news": (news, ""),
    "ag-news:unit=char": (news, ".xz"),
    "sogou-news": (news, ""),
    "thucnews": (thucnews, ""),
    "thucnews:unit=word": (thucnews, ".xz"),
    "shakespeare:length=10,stride=1": (roles, ""),
    "shakespeare:length=10": (roles, ".xz"),
    "shakespeare:length=10,stride=2": (leaf, ""),
}


def damaged(whole):
    """Truncated, with bits changed, and with bytes of every kind put in."""
    rng = np.random.default_rng(0)
    for size in {0, 1, len(whole) - 1, *rng.integers(0, len(whole), 25).tolist()}:
        yield whole[:size]
    for _ in range(60):
        raw = bytearray(whole)
        for at in rng.integers(0, len(raw), rng.integers(1, 4)):
            raw[at] ^= 1 << int(rng.integers(8))
        yield bytes(raw)
    for insert in (
        b"\0",
        b"\xff\xfe",
        b'"',
        b"\r",
        b"\n" * 50,
        b",",
        b"\t",
        b"{",
        b"[" * 3000,
        b"\xed\xa0\x80",
        b"9" * 5000,
    ):
        at = int(rng.integers(len(whole)))
        yield whole[:at] + insert + whole[at:]
    yield rng.integers(0, 256, 2000, dtype=np.uint8).tobytes()
    yield b"<html>" * 10


def outcome(name, data):
    """What is wrong, if anything is."""
    try:
        assert all(len(part) for part in load(name, data))
    except SteelyardError as error:
        return str(error)
    return None


@pytest.mark.parametrize("name", LOADERS)
def test_damaged_files(name, tmp_path):
    write, end = LOADERS[name]
    data = tmp_path / "data"
    path = write(data, end)
    whole = path.read_bytes()
    load(name, data)
    refused = 0
    for raw in damaged(whole):
        path.write_bytes(raw)
        message = outcome(name, data)
        refused += message is not None
        assert message is None or ("\n" not in message and str(data) in message)
    assert refused > 20
    assert {item.name for item in tmp_path.iterdir()} == {"data"}


@pytest.mark.parametrize("name", ["ag-news", "thucnews", "shakespeare"])
def test_a_small_file_that_unpacks_to_a_large_one(name, tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "UNPACKED", 1 << 18)
    monkeypatch.setattr(formats, "_CHUNK", 1 << 16)
    texts.write_news(tmp_path, ".csv.xz")
    texts.write_thucnews(tmp_path, ".txt.xz")
    for file in ("train.csv.xz", "dev.txt.xz", f"{ROLES}.xz"):
        texts.put(tmp_path / file, b"\n" * (8 << 20))
        assert (tmp_path / file).stat().st_size < 1 << 12
    unpacked = []
    plain = formats._decompress_chunks
    monkeypatch.setattr(
        formats,
        "_decompress_chunks",
        lambda path: (unpacked.append(part) or part for part in plain(path)),
    )
    with pytest.raises(SteelyardError, match=f"more than {1 << 18} bytes"):
        load(name, tmp_path)
    assert sum(map(len, unpacked)) <= (1 << 18) + (1 << 16)  # it stops there


def test_a_line_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "LINE", 1 << 20)
    texts.write_news(tmp_path)
    (tmp_path / "train.csv").write_bytes(b'"1","' + b"a" * (4 << 20))
    with pytest.raises(SteelyardError, match=r"train\.csv, line 1 has more than 1048576 bytes"):
        load("ag-news", tmp_path)


def test_a_field_over_many_lines(tmp_path, monkeypatch):
    """Every line is short, but one quote keeps them together."""
    monkeypatch.setattr("steelyard.data._news.LINE", 1 << 18)
    texts.write_news(tmp_path)
    (tmp_path / "train.csv").write_bytes(b'"1","' + b"a\n" * (1 << 18))
    with pytest.raises(SteelyardError, match=r"is not csv \(field larger than field limit"):
        load("ag-news", tmp_path)


def test_a_header_that_asks_for_gigabytes(tmp_path):
    whole = bytearray(lzma.compress(b"a\t0\n"))
    size = (whole[12] + 1) * 4
    at = (
        bytes(whole).index(b"\x21\x01", 12) + 2
    )  # LZMA2, with one byte for the size of its dictionary
    whole[at] = 40  # 4 GiB
    whole[12 + size - 4 : 12 + size] = struct.pack(
        "<I", zlib.crc32(bytes(whole[12 : 12 + size - 4]))
    )
    texts.write_thucnews(tmp_path)
    (tmp_path / "dev.txt").unlink()
    (tmp_path / "dev.txt.xz").write_bytes(bytes(whole))
    with pytest.raises(SteelyardError, match=r"complete xz file \(Memory usage limit"):
        load("thucnews", tmp_path)


def test_two_xz_files_in_one(tmp_path):
    path = news(tmp_path, ".xz")
    path.write_bytes(path.read_bytes() * 2)
    with pytest.raises(SteelyardError, match="after its end"):
        load("ag-news", tmp_path)


def test_leafs_file_has_its_own_limit(tmp_path, monkeypatch):
    monkeypatch.setattr("steelyard.data._shakespeare.JSON", 1000)
    leaf(tmp_path, "")
    with pytest.raises(SteelyardError, match="more than 1000 bytes"):
        load("shakespeare:length=10", tmp_path)


def test_json_of_a_hundred_thousand_lists_in_one_another(tmp_path):
    texts.put(tmp_path / "all_data.json", b'{"user_data":' + b"[" * 100_000)
    with pytest.raises(SteelyardError, match=r"all_data\.json is not JSON"):
        load("shakespeare", tmp_path)


def test_a_user_called_by_a_novel(tmp_path):
    texts.put(tmp_path / "all_data.json", json.dumps({"user_data": {"A" * 100_000: 1}}).encode())
    with pytest.raises(SteelyardError) as caught:
        load("shakespeare", tmp_path)
    assert len(str(caught.value)) < 500


def test_a_folder_in_the_place_of_a_file(tmp_path):
    texts.write_news(tmp_path)
    (tmp_path / "train.csv").unlink()
    (tmp_path / "train.csv").mkdir()
    with pytest.raises(SteelyardError, match=r"there is no train\.csv"):
        load("ag-news", tmp_path)
    (tmp_path / "train").mkdir()
    (tmp_path / "test").mkdir()
    for part in ("train", "test"):
        (tmp_path / part / "a.json").mkdir()
    with pytest.raises(SteelyardError, match=r"a\.json cannot be read \(Is a directory\)"):
        load("shakespeare", tmp_path)
