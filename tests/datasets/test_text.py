"""Vocabularies and texts as tokens."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from steelyard.core._errors import SteelyardError
from steelyard.data._text import Vocabulary, encode


def test_numbers_go_by_frequency_then_by_the_word():
    vocabulary = Vocabulary.of(["b a c", "c a", "c d"])
    assert vocabulary.known == ("c", "a", "b", "d")
    assert len(vocabulary) == 6
    assert vocabulary.tokens("a b c d e") == [3, 4, 2, 5, 1]


def test_size_counts_padding_and_unknown():
    vocabulary = Vocabulary.of(["b a c", "c a", "c d"], size=4)
    assert vocabulary.known == ("c", "a")
    assert encode(["a b c d"], vocabulary, 4).max() == len(vocabulary) - 1 == 3


@pytest.mark.parametrize(
    ("unit", "text", "units"),
    [
        ("word", "Don't stop -- it’s #39; AT&T!", ["don't", "stop", "it’s", "39", "at", "t"]),
        ("word", "ÉCOLE Straße naïve", ["école", "straße", "naïve"]),
        ("word", "", []),
        ("word", "港股缩量 A股", ["港股缩量", "a股"]),
        ("char", "港股 A", ["港", "股", " ", "a"]),
    ],
)
def test_units(unit, text, units):
    assert Vocabulary((), unit).split(text) == units


def test_texts_are_cut_or_padded_at_the_end():
    vocabulary = Vocabulary(("a", "b"))
    tokens = encode(["a b a b", "b", "", "x a"], vocabulary, 3)
    assert tokens.tolist() == [[2, 3, 2], [3, 0, 0], [0, 0, 0], [1, 2, 0]]
    assert tokens.dtype == torch.int64
    assert encode([], vocabulary, 3).shape == (0, 3)


@given(
    st.lists(st.text()), st.sampled_from(["word", "char"]), st.integers(2, 20), st.integers(1, 10)
)
def test_any_text_becomes_tokens(texts, unit, size, length):
    vocabulary = Vocabulary.of(texts, size, unit)
    tokens = encode(texts, vocabulary, length)
    assert len(vocabulary) <= size
    assert tokens.shape == (len(texts), length)
    assert not len(texts) or 0 <= tokens.min() <= tokens.max() < size
    assert Vocabulary.of(reversed(texts), size, unit) == vocabulary


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Vocabulary.of(["a"], size=1), "size=1: use a whole number >= 2"),
        (lambda: Vocabulary((), "byte"), "unit='byte': use one of 'word', 'char'"),
        (lambda: Vocabulary.of([b"a"]), "a text is a bytes: give strings"),
        (lambda: encode(["a"], Vocabulary(()), 0), "length=0"),
    ],
)
def test_refused(make, message):
    with pytest.raises(SteelyardError, match=message):
        make()
