"""An algorithm: what clients add to SGD, how their updates are weighed, and what the server does with the sum."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from functools import reduce
from typing import Any

import steelyard.client
import steelyard.rules
import steelyard.server.optimizers
import steelyard.server.refiners  # noqa: F401 - these four register every part
from steelyard.core.errors import SteelyardError
from steelyard.core.explain import Explanation, explain
from steelyard.core.needs import Needs
from steelyard.core.optimizer import ServerOptimizer
from steelyard.core.refiner import Refiner
from steelyard.core.registry import BROADCASTS, OPTIMIZERS, REFINERS, TERMS
from steelyard.core.spec import parse, to_text
from steelyard.core.term import Broadcast, ClientTerm, Terms
from steelyard.core.weighting import Weighting
from steelyard.metrics import MEANING
from steelyard.rules.chain import Chain, parse_rule, with_default_source

_PLUS = re.compile(r"(?<![0-9][eE])\+")  # not the one in 1e+3


_NONE = (None, "", "none")


def parse_optimizer(spec: str | ServerOptimizer | None) -> ServerOptimizer | None:
    """A server optimizer from its text form (`"momentum:beta=0.9"`); None for `"none"`."""
    made: ServerOptimizer | None = _build_part(spec, OPTIMIZERS, ServerOptimizer, "a server optimizer")
    return made


def parse_refiner(spec: str | Refiner | None) -> Refiner | None:
    """A refiner from its text form (`"feddf:epochs=100"`); None for `"none"`."""
    made: Refiner | None = _build_part(spec, REFINERS, Refiner, "a refiner")
    return made


def parse_terms(spec: Any) -> Terms:
    """Client terms from their text form (`"fedprox:mu=0.01+fedcos"`), one term, a sum of them, or None."""
    if isinstance(spec, Terms):
        return spec
    if isinstance(spec, str) or spec is None:
        parts = _PLUS.split(spec) if spec and spec.strip() not in _NONE else []
        if any(part.strip() in _NONE for part in parts):
            raise SteelyardError(f"client={spec!r}: a term is missing beside a +")
        return reduce(Terms.__add__, (parse_terms(_build_part(part, TERMS, ClientTerm, "")) for part in parts), Terms())
    return Terms((_build_part(spec, TERMS, ClientTerm, "a client term"),))


def _build_part(spec: Any, registry: Any, wanted: type[Any], what: str) -> Any:
    if spec in _NONE:
        return None
    made = parse(spec, registry) if isinstance(spec, str) else spec() if isinstance(spec, type) else spec
    if not isinstance(made, wanted):
        raise SteelyardError(f"{spec!r} is a {type(made).__name__}, not {what} or its text form")
    return made


@dataclass(frozen=True, init=False)
class Algorithm:
    """A frozen bundle: `Algorithm("fedawa", client="fedcos:mu=0.02", server="momentum")`.

    Every part is an object or its text form. `repr` is the experiment's record.

    Attributes:
        weighting: the rule.
        client: what clients add to plain SGD.
        server: the server optimizer, if any.
        broadcast: what clients start from, if not from the global model itself.
        refine: what the server does with proxy data after the sum, if anything.
    """

    weighting: Weighting
    client: Terms
    server: ServerOptimizer | None
    broadcast: Broadcast | None
    refine: Refiner | None

    def __init__(
        self,
        weighting: str | Weighting = "fedavg",
        *,
        client: str | ClientTerm | Terms | None = None,
        server: str | ServerOptimizer | None = None,
        broadcast: str | Broadcast | None = None,
        refine: str | Refiner | None = None,
    ) -> None:
        object.__setattr__(self, "weighting", parse_rule(weighting))
        object.__setattr__(self, "client", parse_terms(client))
        object.__setattr__(self, "server", parse_optimizer(server))
        object.__setattr__(self, "broadcast", _build_part(broadcast, BROADCASTS, Broadcast, "a broadcast"))
        object.__setattr__(self, "refine", parse_refiner(refine))
        self._check()

    def _check(self) -> None:
        """Refuses parts that would quietly ruin each other."""
        movers = [f"client={term.name}" for term in self.client if term.moves_model]
        movers += [f"server={self.server.name}"] if self.server is not None else []
        movers += [f"refine={self.refine.name}"] if self.refine is not None else []
        for term in self.client:
            if term.wants_average and movers:
                raise SteelyardError(
                    f"client={term.name} with {movers[0]}: its corrections cancel out only if the new model is the "
                    f"clients' average, and {movers[0]} moves it on: leave one of them out, or use client=scaffold"
                )
            if term.wants_start and self.broadcast is not None:
                raise SteelyardError(
                    f"client={term.name} with broadcast={self.broadcast.name}: the server takes an update for what a "
                    "client moved by, so clients have to start from the global model: leave one of them out, or use "
                    "client=scaffold"
                )

    def replace_parts(self, **parts: Any) -> Algorithm:
        """The same with other parts: `algorithm.replaced(weighting="fedadp")`."""
        return Algorithm(**{part.name: parts.get(part.name, getattr(self, part.name)) for part in fields(self)})

    @property
    def rule(self) -> Chain:
        """The weighting, rooted: what a round runs."""
        return with_default_source(self.weighting)

    @property
    def needs(self) -> Needs:
        """Those of all parts."""
        sent = Needs(broadcast=frozenset({"move"})) if self.broadcast is not None else Needs()
        return self.rule.needs | self.client.needs | sent | Needs(probe=self.refine is not None)

    def explain(self) -> Explanation:
        """What its rule asks of clients, shows the server and costs, and how private it can be."""
        return explain(self.rule, MEANING)

    @property
    def texts(self) -> dict[str, str | None]:
        """The text form of every part."""
        return {
            "weighting": to_text(self.weighting),
            "client": "+".join(to_text(term) for term in self.client) or None,
            "server": None if self.server is None else to_text(self.server),
            "broadcast": None if self.broadcast is None else to_text(self.broadcast),
            "refine": None if self.refine is None else to_text(self.refine),
        }

    def __str__(self) -> str:
        texts = self.texts
        extra = [f"{name}={texts[name]}" for name in ("client", "server", "broadcast", "refine") if texts[name]]
        return " ".join([str(texts["weighting"]), *extra])
