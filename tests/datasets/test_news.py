"""AG News, Sogou News and THUCNews, on small files and, where they are, on the real ones."""

import csv

import numpy as np
import pytest

import steelyard
from steelyard.core._errors import SteelyardError
from steelyard.data import Vocabulary, encode, load
from tests.datasets import files, texts


@pytest.mark.parametrize("place", ["ag_news_csv/", "ag_news/", ""])
@pytest.mark.parametrize("end", [".csv", ".csv.xz"])
def test_ag_news(tmp_path, place, end):
    texts.write_news(tmp_path / place, end)
    train, test = load("ag-news:length=6", tmp_path)
    joined = {
        part: [f"{title} {text}" for _, title, text in rows] for part, rows in texts.AG.items()
    }
    vocabulary = Vocabulary.of(joined["train"])
    assert train.inputs.tolist() == encode(joined["train"], vocabulary, 6).tolist()
    assert test.inputs.tolist() == encode(joined["test"], vocabulary, 6).tolist()
    assert train.targets.tolist() == [0, 1, 2, 3]
    assert test.targets.tolist() == [3, 1]
    assert (train.classes, train.name) == (4, "ag-news")


def test_the_vocabulary_is_that_of_the_training_part(tmp_path):
    texts.write_news(tmp_path)
    test = load("ag-news", tmp_path)[1]
    assert 1 in test.inputs[0]  # "is" and "lost" are not in the training part


def test_options(tmp_path):
    texts.write_news(tmp_path)
    assert load("ag-news:vocabulary=5", tmp_path)[0].inputs.max() == 4
    words, letters = (
        load(f"ag-news:unit={unit},length=200", tmp_path)[0].inputs for unit in ("word", "char")
    )
    assert (letters > 0).sum() > 4 * (words > 0).sum()
    for spec, message in [
        ("ag-news:lenght=3", "did you mean 'length'"),
        ("ag-news:unit=byte", "unit='byte'"),
        ("ag-news:length=0", "length=0"),
        ("ag-news:vocabulary=2", "vocabulary=2"),
        ("digits:length=3", "digits has no option"),
    ]:
        with pytest.raises(SteelyardError, match=message):
            load(spec, tmp_path)


def test_a_file_of_two_columns_and_lines_inside_a_field(tmp_path):
    rows = {"train": [(1, "a b\nc"), (2, "d")], "test": [(1, "c")]}
    texts.write_news(tmp_path, rows=rows)
    train, _ = load("ag-news:length=3", tmp_path)
    assert train.inputs.tolist() == [[2, 3, 4], [5, 0, 0]]


def test_sogou_news(tmp_path):
    rows = {
        "train": [(5, "zhong1 guo2", "li4 " * 50_000), (1, "a", "b")],
        "test": [(3, "guo2", "")],
    }
    texts.write_news(tmp_path / "sogou_news_csv", rows=rows)
    csv.field_size_limit(1 << 17)  # Python's own
    train, test = load("sogou-news", tmp_path)
    assert csv.field_size_limit() == 1 << 17  # the user's other code notices nothing
    assert (train.inputs.shape, train.classes) == ((2, 128), 5)
    assert train.targets.tolist() == [4, 0]
    assert test.inputs[0].count_nonzero() == 1


@pytest.mark.parametrize("end", [".txt", ".txt.xz"])
def test_thucnews(tmp_path, end):
    texts.write_thucnews(tmp_path / "thucnews_titles", end)
    train, test = load("thucnews:length=5", tmp_path)
    assert train.targets.tolist() == [3, 3, 2]
    assert test.targets.tolist() == [2]
    assert train.classes == 10
    assert train.inputs[2].count_nonzero() == 2  # one token per character
    assert test.inputs[0, 0] == 1  # 港 is not in the training part
    assert test.inputs[0, 1] == train.inputs[2, 1]  # 股
    texts.put(tmp_path / "thucnews_titles" / "train.txt", b"a\t0\n")
    assert len(load("thucnews", tmp_path)[0]) == 1


GOOD = texts.as_csv(texts.AG["train"])


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (GOOD + b'"1","alone"\n', "line 5 has 2 columns, not 3"),
        (b'"1"\n' + GOOD, "line 1 has 1 columns, not 2 or 3"),
        (GOOD + b'"1","a","b","c"\n', "line 5 has 4 columns, not 3"),
        (GOOD + b'"5","a","b"\n', r"line 5 has class '5', not 1\.\.4"),
        (GOOD + b'"0","a","b"\n', r"line 5 has class '0', not 1\.\.4"),
        (GOOD + b'"one","a","b"\n', "line 5 has class 'one'"),
        ('"²","a","b"\n'.encode(), "line 1 has class '²'"),
        (b'"' + b"9" * 5000 + b'","a","b"\n', r"line 1 has class '9{20}', not 1\.\.4"),
        (GOOD + b'"1","a\xff","b"\n', "line 5 is not UTF-8"),
        (GOOD + b'"1","a\0","b"\n', "line 5 .*NUL byte"),
        (GOOD + b'"1","a"b,"c"\n', "line 5 is not csv"),
        (GOOD + b'"1","a', "line 5 is not csv"),
        (b"", "no text"),
        (b"\n\n", "no text"),
    ],
)
@pytest.mark.parametrize("end", [".csv", ".csv.xz"])
def test_bad_rows_are_named(tmp_path, raw, message, end):
    texts.write_news(tmp_path, end)
    path = texts.put(tmp_path / f"train{end}", raw)
    with pytest.raises(SteelyardError, match=message) as caught:
        load("ag-news", tmp_path)
    assert str(caught.value).startswith(str(path))
    assert str(caught.value).endswith("fetch it again")


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"title 3\n", "line 1 has no tab"),
        (b"a\t3\nb\t10\n", r"line 2 has class '10', not 0\.\.9"),
        (b"a\t-1\n", "line 1 has class '-1'"),
        (b"a\t\n", "line 1 has class ''"),
    ],
)
def test_bad_titles_are_named(tmp_path, raw, message):
    texts.write_thucnews(tmp_path)
    texts.put(tmp_path / "dev.txt", raw)
    with pytest.raises(SteelyardError, match=message):
        load("thucnews", tmp_path)


def test_missing_files(tmp_path):
    with pytest.raises(
        SteelyardError,
        match=r"ag-news: there is no train\.csv or train_subset.* in .*; fetch it: steelyard data fetch ag-news",
    ):
        load("ag-news", tmp_path)
    with pytest.raises(SteelyardError, match="nowhere is not a directory"):
        load("sogou-news", tmp_path / "nowhere")


def test_a_run(tmp_path):
    texts.write_news(tmp_path)
    history = steelyard.simulate(
        data="ag-news", data_dir=tmp_path, partition="iid", clients=2, rounds=1
    )
    assert len(history) == 1


def test_the_real_ag_news():
    train, test = load("ag-news", files.real("ag_news/test.csv.xz", "ag_news_csv/test.csv"))
    assert np.bincount(test.targets).tolist() == [1900] * 4
    assert len(set(np.bincount(train.targets).tolist())) == 1
    assert train.inputs.max() == 19999
    assert (test.inputs == 1).sum() / (test.inputs > 0).sum() < 0.06  # words never seen in training


def test_the_real_thucnews():
    train, test = load("thucnews", files.real("thucnews_titles"))
    assert np.bincount(train.targets).tolist() == np.bincount(test.targets).tolist() == [1000] * 10
    assert ((test.inputs == 1).sum() / (test.inputs > 0).sum()) < 0.01
