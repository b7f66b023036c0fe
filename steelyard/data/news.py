"""News by topic: AG News, Sogou News, THUCNews. Tokenised once, and cached."""

from __future__ import annotations

import csv
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

import torch

from steelyard.core import checks
from steelyard.core.errors import SteelyardError
from steelyard.core.weighting import Info
from steelyard.data.cache import load_cached
from steelyard.data.dataset import Dataset
from steelyard.data.lines import LINE, lines
from steelyard.data.sources import SOURCES, Source, Split, first
from steelyard.data.text import Vocabulary, encode

Row = tuple[int, str]


@dataclass(frozen=True)
class News(Source):
    """Texts and their topics, as tokens `[length]` and labels from 0.

    Attributes:
        length: tokens per text: longer ones are cut, shorter ones padded, at the end.
        vocabulary: tokens in all, padding and unknown included; the most frequent ones of the training part.
        unit: `word` or `char`.
    """

    length: int = 64
    vocabulary: int = 20000
    unit: str = "word"

    name = ""
    info = Info("", "")
    classes = 0
    folders: ClassVar[tuple[str, ...]] = ()
    files: ClassVar[tuple[tuple[str, ...], tuple[str, ...]]] = (("train.csv",), ("test.csv",))

    def __post_init__(self) -> None:
        checks.integer("length", self.length, 1)
        checks.integer("vocabulary", self.vocabulary, 3)
        checks.one_of("unit", self.unit, "word", "char")

    def __call__(self, directory: Path | None) -> Split:
        """Train and test part."""
        train, test = (first(self.name, directory, self.folders, names) for names in self.files)
        return load_cached(self.name, asdict(self), (train, test), lambda: self._make_datasets(train, test))

    def locate(self, directory: Path | None) -> Path:
        """The file to train on."""
        return first(self.name, directory, self.folders, self.files[0])

    def _make_datasets(self, train: Path, test: Path) -> Split:
        # Two passes over the training part: the texts of Sogou News would not fit in a small machine's memory.
        vocabulary = Vocabulary.of((text for _, text in self.rows(train)), self.vocabulary, self.unit)
        return self._part(train, vocabulary), self._part(test, vocabulary)

    def _part(self, path: Path, vocabulary: Vocabulary) -> Dataset:
        labels: list[int] = []

        def texts() -> Iterator[str]:
            for label, text in self.rows(path):
                labels.append(label)
                yield text

        tokens = encode(texts(), vocabulary, self.length)
        if not labels:
            raise SteelyardError(f"{path} holds no text: fetch it again")
        return Dataset(tokens, torch.tensor(labels), self.classes, self.name)

    @abstractmethod
    def rows(self, path: Path) -> Iterator[Row]:
        """Labels from 0 and texts of a file, one after the other."""


class ZhangNews(News):
    """The csv files of Zhang, Zhao & LeCun: topic from 1, title, text; without a header."""

    def rows(self, path: Path) -> Iterator[Row]:
        """Title and text are joined. A file may have them joined already, in two columns."""
        columns = 0
        for number, row in _csv(path):
            columns = columns or len(row)
            if len(row) not in (2, 3) or len(row) != columns:
                found = f"has {len(row)} columns, not {columns if columns in (2, 3) else '2 or 3'}"
                raise SteelyardError(f"{path}, line {number} {found}: fetch it again")
            label = _label(path, number, row[0], 1, self.classes)
            yield label - 1, " ".join(row[1:])


@SOURCES.register
@dataclass(frozen=True)
class AGNews(ZhangNews):
    """World, sports, business, science: 120,000 texts to train on, 7,600 to test on."""

    name = "ag-news"
    info = Info("news in English, 4 topics", "Zhang, Zhao & LeCun, NeurIPS 2015")
    classes = 4
    folders = ("ag_news_csv", "ag_news")
    files = (("train.csv", "train_subset_18000.csv"), ("test.csv",))


@SOURCES.register
@dataclass(frozen=True)
class SogouNews(ZhangNews):
    """Chinese news in pinyin: 450,000 texts to train on, 60,000 to test on."""

    length: int = 128

    name = "sogou-news"
    info = Info("news in pinyin, 5 topics", "Zhang, Zhao & LeCun, NeurIPS 2015")
    classes = 5
    folders = ("sogou_news_csv", "sogou_news")


@SOURCES.register
@dataclass(frozen=True)
class THUCNews(News):
    """Titles of Chinese news, by character; lines of title, tab, topic from 0.

    Where `train.txt` is missing, `dev.txt` is trained on.
    """

    length: int = 32
    unit: str = "char"

    name = "thucnews"
    info = Info("titles of news in Chinese, 10 topics", "Sun et al. (THUCTC), 2016")
    classes = 10
    folders = ("thucnews_titles", "THUCNews/data", "THUCNews")
    files = (("train.txt", "dev.txt"), ("test.txt",))

    def rows(self, path: Path) -> Iterator[Row]:
        """Empty lines are passed over."""
        for number, line in enumerate(lines(path), 1):
            text, tab, topic = line.rstrip("\r\n").rpartition("\t")
            if tab:
                yield _label(path, number, topic, 0, self.classes - 1), text
            elif line.strip():
                raise SteelyardError(f"{path}, line {number} has no tab between title and topic: fetch it again")


def _csv(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Rows that are not empty, with the number of the line they end on."""
    reader = csv.reader(lines(path), strict=True)
    usual = csv.field_size_limit()
    csv.field_size_limit(max(usual, LINE))  # texts of Sogou News are longer; there is no limit per reader
    try:
        for row in reader:
            if row:
                yield reader.line_num, row
    except csv.Error as error:
        raise SteelyardError(f"{path}, line {reader.line_num} is not csv ({error}): fetch it again") from error
    finally:
        csv.field_size_limit(usual)


def _label(path: Path, number: int, found: str, low: int, high: int) -> int:
    text = found.strip()
    if text.isascii() and text.isdigit() and len(text) < 9 and low <= int(text) <= high:
        return int(text)
    raise SteelyardError(f"{path}, line {number} has class {found[:20]!r}, not {low}..{high}: fetch it again")
