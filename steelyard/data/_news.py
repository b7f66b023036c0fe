"""News with topics: AG News, Sogou News, THUCNews. They are tokenised once and cached."""

from __future__ import annotations

import csv
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

import torch

from steelyard.core import checks
from steelyard.core._errors import SteelyardError
from steelyard.core._weighting import Info
from steelyard.data._cache import load_cached
from steelyard.data._dataset import Dataset
from steelyard.data._download import File
from steelyard.data._formats import LINE, lines
from steelyard.data._sources import SOURCES, Size, Source, Split, find_file
from steelyard.data._text import Vocabulary, encode

Row = tuple[int, str]


@dataclass(frozen=True)
class News(Source):
    """Texts and their topics, as tokens `[length]` and labels from 0.

    Attributes:
        length: tokens per text: longer texts are cut at the end, shorter ones padded there.
        vocabulary: number of tokens, including padding and unknown; the most frequent ones of the
            training part.
        unit: `word` or `char`.
    """

    length: int = 64
    vocabulary: int = 20000
    unit: str = "word"

    name = ""
    info = Info("", "")
    default_model = "text_mean"
    classes = 0
    folders: ClassVar[tuple[str, ...]] = ()
    files: ClassVar[tuple[tuple[str, ...], tuple[str, ...]]] = (("train.csv",), ("test.csv",))

    def __post_init__(self) -> None:
        checks.integer("length", self.length, 1)
        checks.integer("vocabulary", self.vocabulary, 3)
        checks.one_of("unit", self.unit, "word", "char")

    def __call__(self, directory: Path | None) -> Split:
        """Return the training and the test part."""
        train = find_file(self.name, directory, self.folders, self.files[0])
        test = find_file(self.name, directory, self.folders, self.files[1])
        return load_cached(
            self.name, asdict(self), (train, test), lambda: self._make_datasets(train, test)
        )

    def locate(self, directory: Path | None) -> Path:
        """Return the file of the training part."""
        return find_file(self.name, directory, self.folders, self.files[0])

    def _make_datasets(self, train: Path, test: Path) -> Split:
        """Return the training and the test part, with a vocabulary of the training part."""
        # Two passes over the training part: the texts of Sogou News may not fit into memory.
        vocabulary = Vocabulary.of(
            (text for _, text in self.rows(train)), self.vocabulary, self.unit
        )
        return self._part(train, vocabulary), self._part(test, vocabulary)

    def _part(self, path: Path, vocabulary: Vocabulary) -> Dataset:
        """Return the texts of a file as tokens, with their labels."""
        labels: list[int] = []

        def texts() -> Iterator[str]:
            for label, text in self.rows(path):
                labels.append(label)
                yield text

        tokens = encode(texts(), vocabulary, self.length)
        if not labels:
            raise SteelyardError(f"{path} contains no text: fetch it again")
        return Dataset(tokens, torch.tensor(labels), self.classes, self.name)

    @abstractmethod
    def rows(self, path: Path) -> Iterator[Row]:
        """Yield label (from 0) and text of each row of a file."""


class ZhangNews(News):
    """The csv files of Zhang, Zhao & LeCun: topic from 1, title, text; no header."""

    def rows(self, path: Path) -> Iterator[Row]:
        """Yield label and text; title and text are joined. Some files have both in one column."""
        columns = 0
        for number, row in _csv(path):
            columns = columns or len(row)
            if len(row) not in (2, 3) or len(row) != columns:
                expected = columns if columns in (2, 3) else "2 or 3"
                raise SteelyardError(
                    f"{path}, line {number} has {len(row)} columns, not {expected}: fetch it again"
                )
            label = _label(path, number, row[0], 1, self.classes)
            yield label - 1, " ".join(row[1:])


@SOURCES.register
@dataclass(frozen=True)
class AGNews(ZhangNews):
    """World, sports, business, science: 120,000 texts to train on, 7,600 to test on."""

    name = "ag-news"
    info = Info("news in English, 4 topics", "Zhang, Zhao & LeCun, NeurIPS 2015")
    classes = 4
    published_size = Size(120_000, 7_600, (64,), 4)
    downloads = (
        File(
            "https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv/train.csv",
            "ag_news_csv/train.csv",
            md5="b1a00f826fdfbd249f79597b59e1dc12",
            size=29_470_338,
        ),
        File(
            "https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv/test.csv",
            "ag_news_csv/test.csv",
            md5="d52ea96a97a2d943681189a97654912d",
            size=1_857_427,
        ),
    )
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
    published_size = Size(450_000, 60_000, (128,), 5)
    downloads = (
        File(
            "https://s3.amazonaws.com/fast-ai-nlp/sogou_news_csv.tgz",
            "sogou_news_csv.tgz",
            sha256="6b77fc935561d339b82aa552d7e31ea59eff492a494920579b3ce70604efb5c2",
            size=384_269_937,
            folder="sogou_news_csv",
        ),
    )
    folders = ("sogou_news_csv", "sogou_news")


@SOURCES.register
@dataclass(frozen=True)
class THUCNews(News):
    """Titles of Chinese news, by character; each line is a title, a tab and a topic from 0.

    If `train.txt` is missing, `dev.txt` is the training part.
    """

    length: int = 32
    unit: str = "char"

    name = "thucnews"
    info = Info("titles of news in Chinese, 10 topics", "Sun et al. (THUCTC), 2016")
    classes = 10
    folders = ("thucnews_titles", "THUCNews/data", "THUCNews")
    files = (("train.txt", "dev.txt"), ("test.txt",))

    def rows(self, path: Path) -> Iterator[Row]:
        """Yield label and title; empty lines are skipped."""
        for number, line in enumerate(lines(path), 1):
            text, tab, topic = line.rstrip("\r\n").rpartition("\t")
            if tab:
                yield _label(path, number, topic, 0, self.classes - 1), text
            elif line.strip():
                raise SteelyardError(
                    f"{path}, line {number} has no tab between title and topic: fetch it again"
                )


def _csv(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows that are not empty, with the number of the line they end on."""
    reader = csv.reader(lines(path), strict=True)
    old_limit = csv.field_size_limit()
    # The texts of Sogou News are longer than the default; there is no limit per reader.
    csv.field_size_limit(max(old_limit, LINE))
    try:
        for row in reader:
            if row:
                yield reader.line_num, row
    except csv.Error as error:
        raise SteelyardError(
            f"{path}, line {reader.line_num} is not csv ({error}): fetch it again"
        ) from error
    finally:
        csv.field_size_limit(old_limit)


def _label(path: Path, number: int, text: str, low: int, high: int) -> int:
    """Return a label as a number; raise an error if it is not an integer in this range."""
    digits = text.strip()
    if digits.isascii() and digits.isdigit() and len(digits) < 9 and low <= int(digits) <= high:
        return int(digits)
    raise SteelyardError(
        f"{path}, line {number} has class {text[:20]!r}, not {low}..{high}: fetch it again"
    )
