"""The interface of a rule."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from steelyard.core.client_state import State
from steelyard.core.mixture import Mixture
from steelyard.core.needs import Needs
from steelyard.core.view import View


@dataclass(frozen=True)
class Info:
    """What `steelyard rules` and `steelyard explain` say of a rule beyond its needs.

    Attributes:
        title: one line.
        paper: citation.
        secagg: whether and how the rule can work when the server sees only sums of updates.
        dp: what differential privacy asks of it.
    """

    title: str
    paper: str = ""
    secagg: str = "no: the server must see single updates"
    dp: str = "refuse: weights depend on every client's data, sensitivity is up to 2C instead of C/K"


class Weighting(ABC):
    """A rule: from a prior mixture and a view of the round to a mixture.

    Abstract or final: to change a rule, wrap it. A rule is a frozen dataclass that stores and validates its options;
    `repr` is the experiment's record.

    Attributes:
        name: the key in text form and in the state.
        modifies: True if the rule starts from the incoming mixture, False if it ignores it (a source).
        scales: True if it only makes the aggregated model longer or shorter, whoever has what share of it.
        info: what the command line says of it.
    """

    name: str
    info: Info
    modifies: bool
    scales: bool = False

    @property
    @abstractmethod
    def needs(self) -> Needs:
        """What the rule looks at."""

    @abstractmethod
    def apply(self, prior: Mixture, view: View, state: State) -> tuple[Mixture, State]:
        """The mixture of this round, and the state for the next: new plain data, the old is left alone."""

    @property
    def final(self) -> bool:
        """Whether nobody may divide the shares anew after it: it, or a part of it, has bounded them."""
        return any(part.final for part in self.parts)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What a user should know of these options, in sentences."""
        return ()

    @property
    def parts(self) -> tuple[Weighting, ...]:
        """The rules this one is made of."""
        return ()
