"""Turn text into numbers: a vocabulary, and texts as rows of tokens of the same length."""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from steelyard.core import checks
from steelyard.core._errors import SteelyardError

PADDING, UNKNOWN = 0, 1

_WORD = re.compile(r"\w+(?:['’]\w+)*")  # of any script; don't is one word


@dataclass(frozen=True)
class Vocabulary:
    """Words or characters with numbers: 0 is padding, 1 is unknown, 2 is the most frequent one.

    Attributes:
        known: words or characters, in the order of their numbers, from 2 on.
        unit: `word`: sequences of letters and digits; `char`: every character, for text without
            spaces between words. Both in lower case.
    """

    known: tuple[str, ...]
    unit: str = "word"

    def __post_init__(self) -> None:
        checks.one_of("unit", self.unit, "word", "char")

    @classmethod
    def of(cls, texts: Iterable[str], size: int = 20000, unit: str = "word") -> Vocabulary:
        """Return the vocabulary of the most frequent units of these texts.

        Use the training texts, not the test texts. Equally frequent units are sorted by code point.

        Args:
            texts: the texts to count in.
            size: the number of tokens, including padding and unknown.
            unit: `word` or `char`.
        """
        checks.integer("size", size, 2)
        empty = cls((), unit)
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(empty.split(text))
        ranked = sorted(counts, key=lambda unit: (-counts[unit], unit))
        return cls(tuple(ranked[: size - 2]), unit)

    def __len__(self) -> int:
        """Return the number of tokens with padding and unknown: the `vocabulary` of a model."""
        return len(self.known) + 2

    def split(self, text: str) -> list[str]:
        """Return the units of a text."""
        if not isinstance(text, str):
            raise SteelyardError(f"a text is a {type(text).__name__}: give strings")
        lower = text.lower()
        return _WORD.findall(lower) if self.unit == "word" else list(lower)

    def tokens(self, text: str) -> list[int]:
        """Return the numbers of the units of a text."""
        numbers = self._numbers
        return [numbers.get(unit, UNKNOWN) for unit in self.split(text)]

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {unit: number for number, unit in enumerate(self.known, 2)}


def encode(texts: Iterable[str], vocabulary: Vocabulary, length: int) -> torch.Tensor:
    """Return texts as int64 tokens `[N, length]`, cut or padded at the end."""
    checks.integer("length", length, 1)
    rows = array("i")
    for text in texts:
        row = vocabulary.tokens(text)[:length]
        rows.extend(row)
        rows.extend([PADDING] * (length - len(row)))
    return torch.from_numpy(np.array(rows, dtype=np.int64).reshape(-1, length))
