"""The interface of rules."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from steelyard.core._mixture import Mixture
from steelyard.core._needs import Needs
from steelyard.core._state import State
from steelyard.core._view import View


@dataclass(frozen=True)
class Info:
    """What `steelyard rules` and `steelyard explain` print about a part, apart from its needs.

    Attributes:
        title: a description of one line.
        paper: the citation.
        secagg: whether and how the rule works if the server sees only sums of updates.
        dp: what differential privacy requires.
        passes: how often the updates are read, if that does not follow from the rule's needs.
    """

    title: str
    paper: str = ""
    secagg: str = "no: the server must see single updates"
    dp: str = (
        "refuse: weights depend on every client's data, sensitivity is up to 2C instead of C/K"
    )
    passes: str = ""


class Weighting(ABC):
    """A rule computes a mixture from a prior mixture and a view of the round.

    A rule is a frozen dataclass that stores and validates its options. Do not subclass a concrete
    rule: to change a rule, wrap it.

    Attributes:
        name: the key in spec strings and in the state.
        info: title, paper and privacy properties, shown by the command line.
        modifies: True if the rule starts from the prior mixture, False if it ignores it (a source).
        scales: True if the rule only scales the aggregated model and keeps the clients' shares.
    """

    name: str
    info: Info
    modifies: bool
    scales: bool = False

    @property
    @abstractmethod
    def needs(self) -> Needs:
        """What the rule reads."""

    @abstractmethod
    def apply(self, prior: Mixture, view: View, state: State) -> tuple[Mixture, State]:
        """Return the mixture of this round and the state for the next.

        The state is plain data. The old state must not be changed.
        """

    @property
    def final(self) -> bool:
        """Whether no later rule may change the shares, because this rule or a part limits them."""
        return any(part.final for part in self.parts)

    @property
    def scales_by_reports(self) -> bool:
        """Whether a client's report can change the length of the global model; see `guard`."""
        return any(part.scales_by_reports for part in self.parts)

    @property
    def remarks(self) -> tuple[str, ...]:
        """Sentences about these options that a user should know."""
        return ()

    @property
    def parts(self) -> tuple[Weighting, ...]:
        """The rules inside this rule."""
        return ()
