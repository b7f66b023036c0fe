"""What is kept of a text data set, and what happens when it is damaged."""

import pytest
import torch

from steelyard.data import Dataset, load
from steelyard.data import _cache as cache
from steelyard.data import _news as news
from steelyard.data._cache import load_cached
from tests.datasets import texts

TOKENS = torch.tensor([[0, 300], [5, 6], [7, 70000]])


def split(high=3):
    train = Dataset(TOKENS, torch.tensor([0, 1, 2]), high, "toy", torch.tensor([5, 5, 9]))
    return train, Dataset(TOKENS[:2], torch.tensor([0, 1]), high, "toy")


class Maker:
    """Counts how often it is asked."""

    def __init__(self, high=3):
        self.calls, self.high = 0, high

    def __call__(self):
        self.calls += 1
        return split(self.high)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("STEELYARD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def source(tmp_path):
    return texts.put(tmp_path / "source.txt", b"content")


def same(one, other):
    for a, b in zip(one, other, strict=True):
        assert (a.classes, a.name) == (b.classes, b.name)
        for name in ("inputs", "targets", "groups"):
            x, y = getattr(a, name), getattr(b, name)
            assert (x is None) == (y is None)
            assert x is None or (x.dtype == y.dtype and torch.equal(x, y))
    return True


def test_made_once(folder, source):
    maker = Maker()
    first = load_cached("toy", {"length": 2}, [source], maker)
    assert same(first, load_cached("toy", {"length": 2}, [source], maker))
    assert maker.calls == 1
    assert [path.suffix for path in folder.iterdir()] == [".safetensors"]


def test_made_again_for_other_options_files_names_and_versions(folder, source, monkeypatch):
    maker = Maker()
    load_cached("toy", {"length": 2}, [source], maker)
    load_cached("toy", {"length": 3}, [source], maker)
    load_cached("toys", {"length": 2}, [source], maker)
    source.write_bytes(b"contend")  # as many bytes
    load_cached("toy", {"length": 2}, [source], maker)
    monkeypatch.setattr(cache, "__version__", "0.0.0")
    load_cached("toy", {"length": 2}, [source], maker)
    assert maker.calls == len(list(folder.iterdir())) == 5


def test_a_moved_source_is_the_same(folder, source):
    maker = Maker()
    load_cached("toy", {}, [source], maker)
    load_cached("toy", {}, [source.rename(source.with_name("moved.txt"))], maker)
    assert maker.calls == 1


def test_every_damaged_byte_is_noticed_and_mended(folder, source):
    load_cached("toy", {}, [source], Maker())
    (path,) = folder.iterdir()
    whole = path.read_bytes()
    for at in range(0, len(whole), 3):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        maker = Maker()
        assert same(load_cached("toy", {}, [source], maker), split()), at
        assert path.read_bytes() == whole, at
    for size in range(0, len(whole), 40):
        path.write_bytes(whole[:size])
        maker = Maker()
        assert same(load_cached("toy", {}, [source], maker), split()), size
        assert maker.calls == 1


def test_a_foreign_entry_is_not_believed(folder, source):
    load_cached("toy", {}, [source], Maker())
    (path,) = folder.iterdir()
    load_cached("toy", {"other": 1}, [source], Maker(high=4))
    (other,) = set(folder.iterdir()) - {path}
    other.replace(path)
    assert same(load_cached("toy", {}, [source], Maker()), split())


def test_a_directory_in_its_place(folder, source):
    load_cached("toy", {}, [source], Maker())
    (path,) = folder.iterdir()
    path.unlink()
    path.mkdir()
    assert same(load_cached("toy", {}, [source], Maker()), split())
    assert list(folder.iterdir()) == [path]  # nothing half done stays behind


def test_without_a_place_to_write(folder, source):
    folder.write_bytes(b"a file where the folder should be")
    maker = Maker()
    for _ in range(2):
        assert same(load_cached("toy", {}, [source], maker), split())
    assert maker.calls == 2
    assert folder.is_file()


def test_where_it_is(monkeypatch, tmp_path):
    monkeypatch.setenv("STEELYARD_CACHE", str(tmp_path))
    assert cache.directory() == tmp_path
    monkeypatch.delenv("STEELYARD_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.directory() == tmp_path / "steelyard"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.directory() == tmp_path / ".cache" / "steelyard"


def test_a_user_without_a_home(monkeypatch, source):
    monkeypatch.delenv("STEELYARD_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

    def homeless():
        raise RuntimeError("no home")

    monkeypatch.setattr(cache.Path, "home", homeless)
    assert same(load_cached("toy", {}, [source], Maker()), split())


def test_news_are_tokenised_once(folder, tmp_path, monkeypatch):
    texts.write_news(tmp_path / "ag_news_csv")
    first = load("ag-news", tmp_path)
    monkeypatch.setattr(news, "encode", None)
    monkeypatch.setattr(news, "Vocabulary", None)
    assert same(first, load("ag-news", tmp_path))
    with pytest.raises(AttributeError):
        load("ag-news:length=10", tmp_path)
