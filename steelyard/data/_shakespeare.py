"""Shakespeare by role: predict the next character; each role of a play is a client.

Two formats are read: lines of JSON, `{"play": ..., "role": ..., "speeches": [...]}`, plain or
compressed by xz; and the output of LEAF's scripts: `all_data*.json`, or such files in folders
`train` and `test`.

Samples are made from speeches as LEAF makes them: the speeches of a role are joined to one text
with single spaces, and a sample is `length` characters of it and the next character. LEAF starts a
sample at every character, which makes four million samples or 2.7 GB of tokens; here samples start
`stride` characters apart.

The first `share` of a role's samples are for training; 0.8 as in LEAF's command that papers quote.
LEAF draws them at random; but samples overlap, so the character to predict would occur in the
inputs of other samples that were trained on.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray

from steelyard.core import checks
from steelyard.core._errors import SteelyardError
from steelyard.core._weighting import Info
from steelyard.data._cache import load_cached
from steelyard.data._dataset import Dataset
from steelyard.data._formats import chunks, lines
from steelyard.data._sources import SOURCES, Size, Source, Split, check_directory, find_file

ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""LEAF's 80 characters, in its order (`models/utils/language_utils.py` there)."""

JSON = 1 << 30
"""Maximum number of bytes of one of LEAF's files, which is read completely."""

Codes = NDArray[np.uint8]

_UNKNOWN = ALPHABET.index(
    " "
)  # LEAF's find() returns -1, which is not a valid index of an embedding
_TABLE = np.full(128, _UNKNOWN, dtype=np.uint8)
_TABLE[[ord(character) for character in ALPHABET]] = np.arange(len(ALPHABET))


@SOURCES.register
@dataclass(frozen=True)
class Shakespeare(Source):
    """Roles of Shakespeare's plays; `groups` has the role of each sample.

    Attributes:
        length: characters per sample.
        stride: characters between the starts of two samples of a role; of LEAF's own samples, every
            `stride`-th is used.
        minimum: samples per role, train and test together; roles with fewer are left out.
        share: of each role's samples for training; LEAF's folders `train` and `test` are used as
            they are.
    """

    length: int = 80
    stride: int = 20
    minimum: int = 2
    share: float = 0.8

    name = "shakespeare"
    info = Info("the next character, by role of a play", "Caldas et al. (LEAF), 2018")
    default_model = "char_lstm"

    @property
    def published_size(self) -> Size:  # type: ignore[override]
        """The 517,106 samples of LEAF's 143 largest roles, without those that `stride` skips."""
        samples = 517_106 // self.stride
        train = int(samples * self.share)
        return Size(train, samples - train, (self.length,), 80)

    def __post_init__(self) -> None:
        checks.integer("length", self.length, 1)
        checks.integer("stride", self.stride, 1)
        checks.integer("minimum", self.minimum, 2)  # one to train on and one to test on
        checks.number("share", self.share, 0.0, 1.0, open_low=True)

    def __call__(self, directory: Path | None) -> Split:
        """Return the training and the test part."""
        files = _find_files(check_directory(self.name, directory))
        all_files = [path for part in files for path in part]
        options = {**asdict(self), "parts": len(files)}
        return load_cached(self.name, options, all_files, lambda: self._make_datasets(files))

    def locate(self, directory: Path | None) -> Path:
        """Return the first training file."""
        return _find_files(check_directory(self.name, directory))[0][0]

    def _make_datasets(self, files: list[list[Path]]) -> Split:
        """Return the training and the test part from lists of files."""
        # Training and test samples of each role.
        train: dict[str, Codes] = {}
        test: dict[str, Codes] = {}
        if len(files) == 1:
            for role, windows in self._windows(files[0]).items():
                if len(windows) > 1:
                    train[role], test[role] = self._split_role(windows)
        else:  # LEAF may have split the roles, or the samples of each role
            train = self._windows(files[0])
            test = self._windows(files[1])

        # Leave out small roles, and number the others.
        sizes = Counter({role: len(windows) for role, windows in train.items()})
        sizes.update({role: len(windows) for role, windows in test.items()})
        roles = [role for role in sizes if sizes[role] >= self.minimum]
        numbers = {role: number for number, role in enumerate(roles)}
        if not numbers.keys() & train.keys() or not numbers.keys() & test.keys():
            raise SteelyardError(
                f"shakespeare: minimum={self.minimum}: of the {len(sizes)} roles in "
                f"{files[0][0].parent}, "
                "too few have this number of samples, use fewer or a smaller stride"
            )
        return _make_dataset(train, numbers), _make_dataset(test, numbers)

    def _split_role(self, windows: Codes) -> tuple[Codes, Codes]:
        """Return the samples of a role for training and for testing, at least one of each."""
        count = min(max(1, int(self.share * len(windows))), len(windows) - 1)
        return windows[:count], windows[count:]

    def _windows(self, files: list[Path]) -> dict[str, Codes]:
        """Return the samples of each role, `[n, length + 1]`; the last character is the target."""
        if files[0].suffix == ".json":
            return {role: codes for path in files for role, codes in self._from_leaf(path)}
        return dict(self._from_speeches(files[0]))

    def _from_speeches(self, path: Path) -> Iterator[tuple[str, Codes]]:
        """Yield each role and its samples from lines of JSON."""
        speeches: dict[str, list[str]] = {}
        for number, line in enumerate(lines(path), 1):
            if line.strip():
                row = _parse_json(f"{path}, line {number}", line)
                role, texts = _speeches(path, number, row)
                speeches.setdefault(role, []).extend(texts)
        for role, texts in speeches.items():
            codes = _encode(" ".join(" ".join(texts).split()))
            if len(codes) > self.length:
                windows = np.lib.stride_tricks.sliding_window_view(codes, self.length + 1)
                yield role, windows[:: self.stride]

    def _from_leaf(self, path: Path) -> Iterator[tuple[str, Codes]]:
        """Yield each role and its samples from a file of LEAF."""
        content = _parse_json(str(path), b"".join(chunks(path, JSON)))
        users = content.get("user_data") if isinstance(content, dict) else None
        if not isinstance(users, dict):
            raise SteelyardError(
                f"{path} has no object 'user_data' as LEAF's files do: run its preprocess.sh again"
            )
        for role, samples in users.items():
            x, y = _leaf_samples(path, role, samples)
            if not x:
                continue
            # All inputs must have one length, and all targets one character.
            x_lengths = {len(text) for text in x}
            y_lengths = {len(text) for text in y}
            if y_lengths != {1} or len(x_lengths) != 1 or len(x[0]) < self.length:
                raise SteelyardError(
                    f"{path}, user {role[:60]!r} has x of {min(x_lengths)} to {max(x_lengths)} "
                    f"characters: "
                    f"LEAF's have one character in y and at least length={self.length} in all x"
                )
            # The end of each input, followed by its target.
            pairs = zip(x[:: self.stride], y[:: self.stride], strict=True)
            text = "".join(before[-self.length :] + target for before, target in pairs)
            yield role, _encode(text).reshape(-1, self.length + 1)


def _find_files(directory: Path) -> list[list[Path]]:
    """Return two lists, the files for training and for testing; or one list, to be split."""
    for folder in (
        directory / "shakespeare" / "data",
        directory / "shakespeare",
        directory / "data",
        directory,
    ):
        parts = [sorted((folder / part).glob("*.json")) for part in ("train", "test")]
        if all(parts):
            return parts
        for parent in (folder / "all_data", folder):
            if files := sorted(parent.glob("all_data*.json")):
                return [files]
    names = ("shakespeare_by_role.jsonl", "all_data.json")
    return [[find_file("shakespeare", directory, ("shakespeare",), names)]]


def _parse_json(label: str, text: str | bytes) -> Any:
    """Return the content of a JSON text; `label` is for the error message."""
    try:
        return json.loads(text)
    except (
        ValueError,
        RecursionError,
    ) as error:  # not JSON, not UTF-8, a number of a million digits, or too deep
        raise SteelyardError(f"{label} is not JSON ({str(error)[:80]}): fetch it again") from error


def _speeches(path: Path, number: int, row: Any) -> tuple[str, list[str]]:
    """Return the role and the speeches of a line."""
    fields = row if isinstance(row, dict) else {}
    play = fields.get("play")
    role = fields.get("role")
    speeches = fields.get("speeches")
    if not isinstance(play, str) or not isinstance(role, str) or not _are_texts(speeches):
        raise SteelyardError(
            f'{path}, line {number} is not {{"play": text, "role": text, "speeches": [text, ...]}}: fetch it again'
        )
    return f"{play}/{role}", speeches


def _leaf_samples(path: Path, role: str, samples: Any) -> tuple[list[str], list[str]]:
    """Return the inputs and the targets of a user in a file of LEAF."""
    fields = samples if isinstance(samples, dict) else {}
    x = fields.get("x")
    y = fields.get("y")
    if not _are_texts(x) or not _are_texts(y) or len(x) != len(y):
        raise SteelyardError(
            f"{path}, user {role[:60]!r} has no lists x and y with equally many texts: fetch it "
            f"again"
        )
    return x, y


def _are_texts(value: Any) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _encode(text: str) -> Codes:
    """Return the positions of the characters in the alphabet; other characters become spaces."""
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    return _TABLE[np.where(points < len(_TABLE), points, ord(" "))]


def _make_dataset(roles: dict[str, Codes], numbers: dict[str, int]) -> Dataset:
    """Return the samples of all numbered roles, with the number of the role as group."""
    names = [role for role in numbers if role in roles]
    samples = torch.from_numpy(np.concatenate([roles[role] for role in names]))
    groups = torch.tensor([numbers[role] for role in names])
    sizes = torch.tensor([len(roles[role]) for role in names])
    return Dataset(
        samples[:, :-1].long(),
        samples[:, -1].long(),
        len(ALPHABET),
        "shakespeare",
        groups.repeat_interleave(sizes),
    )
