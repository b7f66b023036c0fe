"""The interface of a paper's figure: what it claims, what it is drawn from, and what it shows.

A figure is a class with a decorator, in the file of its paper:

    @register
    class Figure5(PaperFigure):
        name = "fedlaw-figure5"
        title = "Coherence of clients, and attentive weights"
        claim = "Balanced clients are more coherent, and their weight rises."
        source = Source("Figure 5", "section 5.2", "605-610")
        quick = Scale(make_runs(...), seeds=(1, 2, 3))
        paper = Scale(make_runs(...), seeds=(8, 9, 10))

        def draw(self, results): ...    # returns a matplotlib figure
        def judge(self, results): ...   # returns a `Verdict`, computed from the results
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from steelyard.core._errors import SteelyardError, describe_unknown_name
from steelyard.runs._history import History
from steelyard.sim._experiment import merge_sections

if TYPE_CHECKING:  # optional, and slow to import
    from matplotlib.figure import Figure as Drawing

Settings = Mapping[str, Any]
"""Settings of a run as plain data, with the keys of a TOML file."""

Key = Any
"""What distinguishes a run of a figure from the others: a text, a number, or a tuple of these."""

State = Literal["shows it", "shows it in part", "does not show it", "cannot be told"]

PAPERS = {
    "fedlaw": 'Li, Lin, Shang & Wu, "Revisiting Weighted Aggregation in Federated Learning with '
    'Neural Networks", ICML 2023',
    "fedawa": 'Shi et al., "FedAWA: Adaptive Optimization of Aggregation Weights in Federated '
    'Learning Using Client Vectors", CVPR 2025',
    "fedcos": 'Zhang et al., "FedCos: A Scene-adaptive Federated Optimization Enhancement for '
    'Performance Improvement", IEEE IoT Journal 2023',
    "pa3fed": '"PA3Fed: Period-Aware Adaptive Aggregation for Improved Federated Learning", AAAI 2025',
    "fedadp": 'Wu & Wang, "Fast-Convergent Federated Learning with Adaptive Weighting", IEEE TCCN '
    "2021",
}
"""The papers, by the first part of a figure's name."""


@dataclass(frozen=True)
class Source:
    """Where a figure is in its paper.

    Attributes:
        figure: its number, such as "Figure 5".
        place: the section or page.
        lines: the lines of the caption and of the text about it, in the paper as plain text.
    """

    figure: str
    place: str
    lines: str


@dataclass(frozen=True)
class Scale:
    """What a figure is drawn from, at one size.

    Attributes:
        runs: the settings of each run, without a seed, by key. A key is a text, or a tuple of the
            values that distinguish the run.
        seeds: the seeds of every run.
        differences: how the settings differ from the paper's, in sentences.
        values: other values that the figure needs at this size, such as the ticks of an axis.
    """

    runs: Mapping[Key, Settings] = field(default_factory=dict)
    seeds: tuple[int, ...] = (0,)
    differences: tuple[str, ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Results:
    """What a figure is drawn from: finished runs, and measurements of them.

    Attributes:
        scale: the scale of the runs.
        seeds: the seeds of the runs.
        histories: by key of a run, the histories of all seeds, in the order of the seeds.
        measurements: what `PaperFigure.measure` returned: numbers, texts, lists and dicts.
    """

    scale: Scale
    seeds: tuple[int, ...]
    histories: Mapping[Key, Sequence[History]]
    measurements: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, key: Key) -> Sequence[History]:
        """Return the histories of a run, one per seed."""
        return self.histories[key]


@dataclass(frozen=True)
class Check:
    """One part of a claim.

    Attributes:
        text: what was found, with its numbers.
        holds: whether it agrees with the paper; None if the numbers cannot tell.
    """

    text: str
    holds: bool | None


@dataclass(frozen=True)
class Verdict:
    """Whether results show what the paper says.

    Attributes:
        state: "shows it", "shows it in part", "does not show it" or "cannot be told".
        sentence: why, with the numbers.
        checks: the parts of the claim.
    """

    state: State
    sentence: str
    checks: tuple[Check, ...] = ()

    @classmethod
    def from_checks(cls, checks: Sequence[Check]) -> Verdict:
        """Return the verdict on a claim of several parts.

        A claim is shown if all parts hold, and shown in part if some hold. If none holds, it is
        not shown, unless the numbers of a part cannot tell.
        """
        answers = [check.holds for check in checks]
        state: State
        if answers and all(answers):
            state = "shows it"
        elif any(answers):
            state = "shows it in part"
        elif None in answers or not answers:
            state = "cannot be told"
        else:
            state = "does not show it"
        words = {True: "yes", False: "no", None: "cannot be told"}
        parts = [f"{check.text} ({words[check.holds]})" for check in checks]
        sentence = "; ".join(parts)
        if sentence[:1].isascii():  # a Greek letter is a symbol: it stays as it is
            sentence = sentence[:1].upper() + sentence[1:]
        return cls(state, f"{sentence}.", tuple(checks))

    def __str__(self) -> str:
        return f"{self.state[0].upper()}{self.state[1:]}. {self.sentence}"


class PaperFigure(ABC):
    """A figure of a paper.

    Attributes:
        name: the name, such as `fedlaw-figure5`.
        title: what the figure shows, in a few words.
        claim: what the paper says that it shows, in one sentence.
        source: where it is in the paper.
        quick: a small version, at most two minutes on two cores.
        paper: the settings of the paper.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    claim: ClassVar[str]
    source: ClassVar[Source]
    quick: ClassVar[Scale]
    paper: ClassVar[Scale]

    @property
    def paper_title(self) -> str:
        """The paper of the figure."""
        return PAPERS[self.name.partition("-")[0]]

    def scale(self, is_quick: bool) -> Scale:
        """Return the small version, or that of the paper."""
        return self.quick if is_quick else self.paper

    def measure(self, results: Results, out: Path) -> dict[str, Any]:
        """Return further measurements of the runs; they are stored in the figure's directory.

        Args:
            results: the finished runs.
            out: the figure's directory, for files of its own.

        Returns:
            Plain data, as JSON can store it: numbers, texts, lists and dicts with text keys.
        """
        return {}

    @abstractmethod
    def draw(self, results: Results) -> Drawing:
        """Draw the figure in the arrangement of the paper."""

    @abstractmethod
    def judge(self, results: Results) -> Verdict:
        """Compute whether the results show what the paper says."""


FIGURES: dict[str, PaperFigure] = {}


def register(figure: type[PaperFigure]) -> type[PaperFigure]:
    """Add a figure to the list of all figures."""
    if figure.name in FIGURES:
        raise SteelyardError(f"figure {figure.name!r}: registered twice: use another name")
    FIGURES[figure.name] = figure()
    return figure


def names() -> list[str]:
    """Return the names of all figures, in the order of papers and numbers."""

    def find_place(name: str) -> tuple[int, int]:
        paper, _, number = name.partition("-figure")
        return list(PAPERS).index(paper), int(number)

    return sorted(FIGURES, key=find_place)


def read_figure(name: str) -> PaperFigure:
    """Return a figure by name."""
    if name not in FIGURES:
        raise SteelyardError(describe_unknown_name("figure", name, names()))
    return FIGURES[name]


def make_runs(
    build_settings: Callable[..., Settings], **axes: Sequence[Any]
) -> dict[Key, Settings]:
    """Return runs for all combinations of values.

    Args:
        build_settings: returns the settings of a run, from one value per axis.
        axes: the values of each axis, by the name of the function's argument.

    Returns:
        Settings by key. With one axis, the key is its value; with more, the tuple of values.
    """
    runs: dict[Key, Settings] = {}
    for values in itertools.product(*axes.values()):
        settings = build_settings(**dict(zip(axes, values, strict=True)))
        key: Key = values[0] if len(values) == 1 else values
        runs[key] = settings
    return runs


def merge_settings(*parts: Settings) -> dict[str, Any]:
    """Merge settings, section by section; later ones win."""
    merged: dict[str, Any] = {}
    for part in parts:
        merged = merge_sections(merged, part)
    return merged
