"""Shakespeare by role, from speeches and from LEAF's files."""

import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from steelyard.cli.app import app
from steelyard.core._errors import SteelyardError
from steelyard.data import Federation, load
from steelyard.data._shakespeare import ALPHABET
from tests.datasets import files, texts

ROLES = "shakespeare_by_role.jsonl"
HAMLET = "To be, or not to be: that is the question. Words, words."
POLONIUS = "What is the matter, my lord? Though this be madness    "


def spelt(tokens):
    return "".join(ALPHABET[token] for token in tokens)


def samples(data, group):
    own = data.groups == group
    return [
        (spelt(x), ALPHABET[y]) for x, y in zip(data.inputs[own], data.targets[own], strict=True)
    ]


def windows(text, length, stride=1):
    return [
        (text[at : at + length], text[at + length]) for at in range(0, len(text) - length, stride)
    ]


def test_the_alphabet_has_80_characters():
    assert len(ALPHABET) == len(set(ALPHABET)) == 80


@pytest.mark.parametrize("place", [ROLES, f"{ROLES}.xz", f"shakespeare/{ROLES}.xz"])
@pytest.mark.parametrize("stride", [1, 7])
def test_speeches_become_windows(tmp_path, place, stride):
    texts.write_roles(tmp_path / place)
    train, test = load(f"shakespeare:length=10,stride={stride}", tmp_path)
    assert (train.classes, train.name, train.inputs.dtype) == (80, "shakespeare", torch.int64)
    hamlet = windows(HAMLET, 10, stride)
    cut = int(0.8 * len(hamlet))
    assert samples(train, 0) == hamlet[:cut]
    assert samples(test, 0) == hamlet[cut:]
    assert set(train.groups.tolist()) == set(test.groups.tolist()) == {0, 1}  # FOOL says too little


def test_characters_outside_the_alphabet_become_spaces(tmp_path):
    rows = [{"play": "p", "role": "r", "speeches": ["a{b@cé\ud800☃d" * 3]}]
    texts.write_roles(tmp_path / ROLES, rows)
    train, test = load("shakespeare:length=2,stride=1", tmp_path)
    assert spelt(train.inputs[:, 0]) + spelt(test.inputs[:, 0]) == ("a b c   d" * 3)[:-2]


def test_a_role_in_several_lines_is_one_role(tmp_path):
    halves = [{**texts.SPEECHES[0], "speeches": [said]} for said in texts.SPEECHES[0]["speeches"]]
    texts.write_roles(tmp_path / "a" / ROLES, halves)
    texts.write_roles(tmp_path / "b" / ROLES, texts.SPEECHES[:1])
    one, other = (load("shakespeare:length=10,stride=1", tmp_path / name)[0] for name in "ab")
    assert torch.equal(one.inputs, other.inputs)
    assert torch.equal(one.groups, other.groups)


def test_share_and_minimum(tmp_path):
    texts.write_roles(tmp_path / ROLES)
    train, test = load("shakespeare:length=10,stride=1,share=0.5,minimum=46", tmp_path)
    assert (len(train), len(test)) == (23, 23)  # HAMLET alone
    train, test = load("shakespeare:length=10,stride=1,share=1,minimum=46", tmp_path)
    assert (len(train), len(test)) == (45, 1)
    with pytest.raises(SteelyardError, match=r"minimum=47: of the 2 roles in .* use fewer"):
        load("shakespeare:length=10,stride=1,minimum=47", tmp_path)
    for option in ("length=0", "stride=0", "minimum=1", "share=0"):
        with pytest.raises(SteelyardError, match=option):
            load(f"shakespeare:{option}", tmp_path)


@pytest.mark.parametrize("place", ["all_data.json", "shakespeare/data/all_data/all_data.json"])
def test_leafs_whole_file_gives_the_same_as_the_speeches(tmp_path, place):
    texts.write_leaf(
        tmp_path / "leaf" / place, {"HAMLET": HAMLET, "POLONIUS": POLONIUS, "FOOL": "Nuncle!"}, 10
    )
    texts.write_roles(tmp_path / "own" / ROLES)
    for stride in (1, 5):
        made = load(f"shakespeare:length=10,stride={stride}", tmp_path / "leaf")
        own = load(f"shakespeare:length=10,stride={stride}", tmp_path / "own")
        for a, b in zip(made, own, strict=True):
            assert samples(a, 0) == samples(b, 0)
            assert set(a.groups.tolist()) == set(b.groups.tolist()) == {0, 1}


def test_leafs_samples_may_be_shortened(tmp_path):
    texts.write_leaf(tmp_path / "all_data.json", {"HAMLET": HAMLET}, 20)
    train, _ = load("shakespeare:length=10,stride=1", tmp_path)
    assert samples(train, 0)[0] == (HAMLET[10:20], HAMLET[20])
    with pytest.raises(
        SteelyardError, match=r"x of 20 to 20 characters: LEAF's have .* at least length=21"
    ):
        load("shakespeare:length=21", tmp_path)


def test_leafs_folders_are_taken_as_they_are(tmp_path):
    texts.write_leaf(
        tmp_path / "train" / "all_data_train_8.json", {"A": HAMLET, "B": POLONIUS, "C": HAMLET}, 10
    )
    texts.write_leaf(tmp_path / "test" / "all_data_test_8.json", {"B": HAMLET, "D": POLONIUS}, 10)
    train, test = load("shakespeare:length=10,stride=1", tmp_path)
    assert samples(train, 1) == windows(POLONIUS, 10)
    assert samples(test, 1) == windows(HAMLET, 10)  # the same number for the same role
    assert sorted(set(train.groups.tolist())) == [0, 1, 2]
    assert sorted(set(test.groups.tolist())) == [1, 3]


ONE = b'{"play": "p", "role": "r", "speeches": ["abcdefgh"]}\n'


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (ONE + b"{", "line 2 is not JSON"),
        (ONE + b"[1, 2]\n", "line 2 is not {"),
        (ONE + b'{"play": "p", "role": 3, "speeches": []}\n', "line 2 is not {"),
        (ONE + b'{"play": "p", "role": "r", "speeches": "abc"}\n', "line 2 is not {"),
        (ONE + b'{"play": "p", "role": "r", "speeches": [["a"]]}\n', "line 2 is not {"),
        (ONE + b"[" * 100_000 + b"\n", "line 2 is not JSON"),
        (ONE + b"9" * 5000 + b"\n", "line 2 is not"),
        (ONE + b'"\xff"\n', "line 2 is not UTF-8"),
        (b"", "minimum=.* too few"),
    ],
)
def test_bad_lines_are_named(tmp_path, raw, message):
    texts.put(tmp_path / ROLES, raw)
    with pytest.raises(SteelyardError, match=message) as caught:
        load("shakespeare:length=3,stride=1", tmp_path)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "has no object 'user_data'"),
        ({"user_data": []}, "has no object 'user_data'"),
        ({"user_data": {"A": []}}, "user 'A' has no lists x and y"),
        ({"user_data": {"A": {"x": ["abcd"], "y": []}}}, "user 'A' has no lists x and y"),
        ({"user_data": {"A": {"x": [1], "y": ["b"]}}}, "user 'A' has no lists x and y"),
        ({"user_data": {"A": {"x": ["abcd"], "y": ["bc"]}}}, "one character in y"),
        ({"user_data": {"A": {"x": ["abcd", "abc"], "y": ["b", "c"]}}}, "x of 3 to 4 characters"),
        ({"user_data": {"A": {"x": [], "y": []}}}, "minimum=.* too few"),
    ],
)
def test_bad_leaf_files_are_named(tmp_path, content, message):
    texts.put(tmp_path / "all_data.json", json.dumps(content).encode())
    with pytest.raises(SteelyardError, match=message) as caught:
        load("shakespeare:length=3", tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_nothing_there(tmp_path):
    with pytest.raises(
        SteelyardError, match=r"there is no shakespeare_by_role\.jsonl or all_data\.json in"
    ):
        load("shakespeare", tmp_path)


def test_a_run_from_the_command_line(tmp_path):
    texts.write_roles(tmp_path / ROLES)
    settings = [
        "data.name=shakespeare:length=8,stride=4",
        "data.partition=by_group",
        "data.clients=2",
        f"data.dir={tmp_path}",
        "model=char_lstm",
        "rounds=1",
        "local.steps=1",
        "executor=serial",
    ]
    arguments = [word for setting in settings for word in ("--set", setting)]
    ended = CliRunner().invoke(app, ["run", *arguments, "--out", str(tmp_path / "out"), "--quiet"])
    assert ended.exit_code == 0, ended.output
    assert (tmp_path / "out" / "rounds.jsonl").read_text().count("\n") == 1


def test_the_real_plays():
    train, test = load("shakespeare", files.real("shakespeare"))
    roles = np.unique(train.groups)
    assert len(roles) == int(train.groups.max()) + 1 > 1000
    assert len(test) / len(train) == pytest.approx(0.25, abs=0.01)
    assert ALPHABET[train.targets.bincount().argmax()] == " "
    made = Federation.partitioned(
        train, test, "by_group:minimum=200", 143, seed=0
    )  # FedCos's number of clients
    assert made.sizes.min() >= 200
    assert all(len(np.unique(train.groups[at])) == 1 for at in made.index)
