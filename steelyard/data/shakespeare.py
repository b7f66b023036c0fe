"""Shakespeare by role: the next character from those before, one client per role.

Two forms of file are read. Lines of JSON, `{"play": ..., "role": ..., "speeches": [...]}`, plain or packed by xz; and
what LEAF's scripts write: `all_data*.json`, or such files in folders `train` and `test`.

From speeches, samples are made as LEAF makes them: the speeches of a role are joined to one text with single spaces,
and a sample is `length` characters of it and the one that follows. LEAF starts one at every character, which is four
million samples or 2.7 GB of tokens; here they start `stride` characters apart.

Of a role's samples the first `share` are for training, 0.8 as in LEAF's command that papers quote. LEAF draws them at
random; but samples overlap, so the character to predict would stand in the inputs of others that were trained on.
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
from steelyard.core.errors import SteelyardError
from steelyard.core.weighting import Info
from steelyard.data.cache import load_cached
from steelyard.data.dataset import Dataset
from steelyard.data.lines import chunks, lines
from steelyard.data.sources import SOURCES, Source, Split, existing, first

ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""LEAF's 80 characters, in its order (`models/utils/language_utils.py` there)."""

JSON = 1 << 30
"""Most bytes of one of LEAF's files: it is read whole."""

Codes = NDArray[np.uint8]

_UNKNOWN = ALPHABET.index(" ")  # LEAF's find() makes it -1, which no embedding takes
_TABLE = np.full(128, _UNKNOWN, dtype=np.uint8)
_TABLE[[ord(character) for character in ALPHABET]] = np.arange(len(ALPHABET))


@SOURCES.register
@dataclass(frozen=True)
class Shakespeare(Source):
    """Roles of Shakespeare's plays; `groups` has the role of each sample.

    Attributes:
        length: characters of a sample.
        stride: characters between the starts of two samples of a role; of LEAF's own samples, one in so many is taken.
        minimum: samples of a role, train and test together; roles with fewer are left out.
        share: of each role's samples, those to train on; LEAF's folders `train` and `test` are taken as they are.
    """

    length: int = 80
    stride: int = 20
    minimum: int = 2
    share: float = 0.8

    name = "shakespeare"
    info = Info("the next character, by role of a play", "Caldas et al. (LEAF), 2018")

    def __post_init__(self) -> None:
        checks.integer("length", self.length, 1)
        checks.integer("stride", self.stride, 1)
        checks.integer("minimum", self.minimum, 2)  # one to train on and one to test on
        checks.number("share", self.share, 0.0, 1.0, open_low=True)

    def __call__(self, directory: Path | None) -> Split:
        """Train and test part."""
        files = _files(existing(self.name, directory))
        flat = [path for part in files for path in part]
        return load_cached(self.name, {**asdict(self), "parts": len(files)}, flat, lambda: self._make_datasets(files))

    def locate(self, directory: Path | None) -> Path:
        """The first file to train on."""
        return _files(existing(self.name, directory))[0][0]

    def _make_datasets(self, files: list[list[Path]]) -> Split:
        if len(files) == 1:
            whole = {role: self._cut(windows) for role, windows in self._windows(files[0]).items() if len(windows) > 1}
            train, test = ({role: sides[at] for role, sides in whole.items()} for at in (0, 1))
        else:
            train, test = (self._windows(part) for part in files)  # LEAF may have split roles, or each role's samples
        sizes = Counter({role: len(windows) for role, windows in train.items()})
        sizes.update({role: len(windows) for role, windows in test.items()})
        numbers = {role: at for at, role in enumerate(role for role in sizes if sizes[role] >= self.minimum)}
        if not numbers.keys() & train.keys() or not numbers.keys() & test.keys():
            found = f"of the {len(sizes)} roles in {files[0][0].parent}, too few have so many samples"
            raise SteelyardError(f"shakespeare: minimum={self.minimum}: {found}, use fewer or a smaller stride")
        return _dataset(train, numbers), _dataset(test, numbers)

    def _cut(self, windows: Codes) -> tuple[Codes, Codes]:
        cut = min(max(1, int(self.share * len(windows))), len(windows) - 1)
        return windows[:cut], windows[cut:]

    def _windows(self, files: list[Path]) -> dict[str, Codes]:
        """Per role, samples `[n, length + 1]`, the last character of each to be predicted."""
        if files[0].suffix == ".json":
            return {role: codes for path in files for role, codes in self._from_leaf(path)}
        return dict(self._from_speeches(files[0]))

    def _from_speeches(self, path: Path) -> Iterator[tuple[str, Codes]]:
        speeches: dict[str, list[str]] = {}
        for number, line in enumerate(lines(path), 1):
            if line.strip():
                row = _json(f"{path}, line {number}", line)
                role, said = _speeches(path, number, row)
                speeches.setdefault(role, []).extend(said)
        for role, said in speeches.items():
            codes = _codes(" ".join(" ".join(said).split()))
            if len(codes) > self.length:
                yield role, np.lib.stride_tricks.sliding_window_view(codes, self.length + 1)[:: self.stride]

    def _from_leaf(self, path: Path) -> Iterator[tuple[str, Codes]]:
        content = _json(str(path), b"".join(chunks(path, JSON)))
        users = content.get("user_data") if isinstance(content, dict) else None
        if not isinstance(users, dict):
            raise SteelyardError(f"{path} has no object 'user_data' as LEAF's files do: run its preprocess.sh again")
        for role, samples in users.items():
            x, y = _sides(path, role, samples)
            if not x:
                continue
            if {len(text) for text in y} != {1} or len({len(text) for text in x}) != 1 or len(x[0]) < self.length:
                found = f"x of {min(map(len, x))} to {max(map(len, x))} characters"
                cure = f"one character in y and at least length={self.length} in all x"
                raise SteelyardError(f"{path}, user {role[:60]!r} has {found}: LEAF's have {cure}")
            joined = "".join(a[-self.length :] + b for a, b in zip(x[:: self.stride], y[:: self.stride], strict=True))
            yield role, _codes(joined).reshape(-1, self.length + 1)


def _files(where: Path) -> list[list[Path]]:
    """Files to train on and files to test on; or one list, to be split."""
    for folder in (where / "shakespeare" / "data", where / "shakespeare", where / "data", where):
        parts = [sorted((folder / part).glob("*.json")) for part in ("train", "test")]
        if all(parts):
            return parts
        for whole in (folder / "all_data", folder):
            if found := sorted(whole.glob("all_data*.json")):
                return [found]
    return [[first("shakespeare", where, ("shakespeare",), ("shakespeare_by_role.jsonl", "all_data.json"))]]


def _json(place: str, text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # not JSON, not UTF-8, a number of a million digits, or too deep
        raise SteelyardError(f"{place} is not JSON ({str(error)[:80]}): fetch it again") from error


def _speeches(path: Path, number: int, row: Any) -> tuple[str, list[str]]:
    fields = (row.get("play"), row.get("role"), row.get("speeches")) if isinstance(row, dict) else (None, None, None)
    play, role, said = fields
    if not isinstance(play, str) or not isinstance(role, str) or not _are_texts(said):
        wanted = '{"play": text, "role": text, "speeches": [text, ...]}'
        raise SteelyardError(f"{path}, line {number} is not {wanted}: fetch it again")
    return f"{play}/{role}", said


def _sides(path: Path, role: str, samples: Any) -> tuple[list[str], list[str]]:
    x, y = (samples.get("x"), samples.get("y")) if isinstance(samples, dict) else (None, None)
    if not _are_texts(x) or not _are_texts(y) or len(x) != len(y):
        raise SteelyardError(f"{path}, user {role[:60]!r} has no lists x and y of as many texts: fetch it again")
    return x, y


def _are_texts(value: Any) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _codes(text: str) -> Codes:
    """Positions in the alphabet; characters outside it become spaces."""
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    return _TABLE[np.where(points < len(_TABLE), points, ord(" "))]


def _dataset(roles: dict[str, Codes], numbers: dict[str, int]) -> Dataset:
    kept = [role for role in numbers if role in roles]
    samples = torch.from_numpy(np.concatenate([roles[role] for role in kept]))
    groups = torch.tensor([numbers[role] for role in kept])
    sizes = torch.tensor([len(roles[role]) for role in kept])
    return Dataset(
        samples[:, :-1].long(),
        samples[:, -1].long(),
        len(ALPHABET),
        "shakespeare",
        groups.repeat_interleave(sizes),
    )
