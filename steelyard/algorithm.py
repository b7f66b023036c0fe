"""An algorithm: the client terms, the rule, the server optimizer, the broadcast and the refiner."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import steelyard.client
import steelyard.rules
import steelyard.server._optimizers
import steelyard.server._refiners  # noqa: F401 - these four register every part
from steelyard.core._errors import SteelyardError
from steelyard.core._needs import Needs
from steelyard.core._optimizer import ServerOptimizer
from steelyard.core._refiner import Refiner
from steelyard.core._registry import BROADCASTS, OPTIMIZERS, REFINERS, TERMS
from steelyard.core._round_report import Explanation, explain
from steelyard.core._spec import parse, to_text
from steelyard.core._term import Broadcast, ClientTerm, Terms
from steelyard.core._weighting import Weighting
from steelyard.metrics import MEANING
from steelyard.rules._combinators import Chain, parse_rule, with_default_source

_PLUS = re.compile(r"(?<![0-9][eE])\+")  # but not the one in 1e+3
_NONE = (None, "", "none")

# Compositions that have a name: their parts, by the argument of `Algorithm`.
COMPOSITIONS = {
    "recommended": {"weighting": "feddisco", "client": "fedcos:mu=0.02"},
}


def parse_optimizer(spec: str | ServerOptimizer | None) -> ServerOptimizer | None:
    """Return the server optimizer of a spec string (`"momentum:beta=0.9"`); None for `"none"`.

    Examples:
        >>> parse_optimizer("momentum:beta=0.5").beta
        0.5
    """
    optimizer: ServerOptimizer | None = _build_part(
        spec, OPTIMIZERS, ServerOptimizer, "a server optimizer"
    )
    return optimizer


def parse_refiner(spec: str | Refiner | None) -> Refiner | None:
    """Return the refiner of a spec string (`"feddf:epochs=100"`); None for `"none"`."""
    refiner: Refiner | None = _build_part(spec, REFINERS, Refiner, "a refiner")
    return refiner


def parse_broadcast(spec: str | Broadcast | None) -> Broadcast | None:
    """Return the broadcast of a spec string, or the broadcast itself; None for `"none"`."""
    broadcast: Broadcast | None = _build_part(spec, BROADCASTS, Broadcast, "a broadcast")
    return broadcast


def parse_terms(spec: Any) -> Terms:
    """Return the client terms of a spec string (`"fedprox:mu=0.01+fedcos"`), a term, terms or None.

    Examples:
        >>> [term.name for term in parse_terms("fedprox:mu=0.01+fedcos")]
        ['fedprox', 'fedcos']
    """
    if isinstance(spec, Terms):
        return spec
    if isinstance(spec, str) or spec is None:
        parts = _PLUS.split(spec) if spec and spec.strip() not in _NONE else []
        terms = Terms()
        for part in parts:
            if part.strip() in _NONE:
                raise SteelyardError(f"client={spec!r}: a term is missing before or after a +")
        for part in parts:
            terms = terms + parse_terms(_build_part(part, TERMS, ClientTerm, "a client term"))
        return terms
    return Terms((_build_part(spec, TERMS, ClientTerm, "a client term"),))


def _build_part(spec: Any, registry: Any, kind: type[Any], title: str) -> Any:
    """Return the part of a spec string, a class or an object; None for `"none"`.

    Args:
        spec: the spec string, class or object.
        registry: the parts that a spec string may name.
        kind: the class that the part must have.
        title: the kind in words, with its article, for the error message.
    """
    if spec in _NONE:
        return None
    part = spec
    if isinstance(spec, str):
        part = parse(spec, registry)
    elif isinstance(spec, type):
        part = spec()
    if not isinstance(part, kind):
        raise SteelyardError(
            f"{spec!r} is a {type(part).__name__}, not {title}: pass {title} or its spec string"
        )
    return part


@dataclass(frozen=True, init=False)
class Algorithm:
    """All parts of an algorithm: `Algorithm("fedawa", client="fedcos:mu=0.02", server="momentum")`.

    Every part is an object or its spec string.

    Attributes:
        weighting: the rule.
        client: the terms that clients add to the gradient of plain SGD.
        server: the server optimizer, if any.
        broadcast: where clients start, if not at the global model.
        refine: the refiner, which trains the aggregated model on proxy data, if any.

    Examples:
        >>> import steelyard
        >>> algorithm = steelyard.Algorithm("feddisco|fedawa", client="fedprox:mu=0.1", server="momentum")
        >>> print(algorithm)
        feddisco|fedawa client=fedprox:mu=0.1 server=momentum
        >>> sorted(algorithm.needs.metrics)
        ['label_hist', 'num_examples']
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
        parts = expand_composition(
            {
                "weighting": weighting,
                "client": client,
                "server": server,
                "broadcast": broadcast,
                "refine": refine,
            }
        )
        object.__setattr__(self, "weighting", parse_rule(parts["weighting"]))
        object.__setattr__(self, "client", parse_terms(parts["client"]))
        object.__setattr__(self, "server", parse_optimizer(parts["server"]))
        object.__setattr__(self, "broadcast", parse_broadcast(parts["broadcast"]))
        object.__setattr__(self, "refine", parse_refiner(parts["refine"]))
        self._check()

    def _check(self) -> None:
        """Raise an error for parts that are wrong together."""
        # Parts that change the model after the sum.
        changing = [f"client={term.name}" for term in self.client if term.tags.changes_model]
        if self.server is not None:
            changing.append(f"server={self.server.name}")
        if self.refine is not None:
            changing.append(f"refine={self.refine.name}")

        # What the client terms require.
        for term in self.client:
            if term.tags.requires_plain_average and changing:
                raise SteelyardError(
                    f"client={term.name} with {changing[0]}: the corrections of {term.name} cancel "
                    "only if the new model is the clients' average, but "
                    f"{changing[0]} changes it: leave one of them out, or use client=scaffold"
                )
            if term.tags.requires_global_start and self.broadcast is not None:
                raise SteelyardError(
                    f"client={term.name} with broadcast={self.broadcast.name}: {term.name} is only "
                    "correct if clients start from the global model: "
                    "leave one of them out, or use client=scaffold"
                )

    def replace_parts(self, **parts: Any) -> Algorithm:
        """Return the algorithm with other parts: `algorithm.replace_parts(weighting="fedadp")`."""
        options = {part.name: getattr(self, part.name) for part in fields(self)}
        for name in options:
            options[name] = parts.get(name, options[name])
        return Algorithm(**options)

    @cached_property
    def rule(self) -> Chain:
        """The rule that a round runs: the weighting, with a source before it if necessary."""
        return with_default_source(self.weighting)

    @cached_property
    def needs(self) -> Needs:
        """The needs of all parts together."""
        needs = self.rule.needs | self.client.needs | Needs(probe=self.refine is not None)
        if self.broadcast is not None:
            needs = needs | Needs(broadcast=frozenset({"move"}))
        return needs

    @property
    def sent_vectors(self) -> list[str]:
        """Names of the vectors that the server sends beside the parameters."""
        slots = [term.key(slot) for term in self.client for slot in term.server_slots]
        return [*sorted(self.needs.broadcast), *slots]

    def explain(self) -> Explanation:
        """Return what clients disclose, what the server sees, what the rule costs, and privacy."""
        return explain(self.rule, MEANING)

    @property
    def texts(self) -> dict[str, str | None]:
        """The spec string of every part."""
        return {
            "weighting": to_text(self.weighting),
            "client": "+".join(to_text(term) for term in self.client) or None,
            "server": None if self.server is None else to_text(self.server),
            "broadcast": None if self.broadcast is None else to_text(self.broadcast),
            "refine": None if self.refine is None else to_text(self.refine),
        }

    def __str__(self) -> str:
        texts = self.texts
        extra = [
            f"{name}={texts[name]}"
            for name in ("client", "server", "broadcast", "refine")
            if texts[name]
        ]
        return " ".join([str(texts["weighting"]), *extra])


def recommended() -> Algorithm:
    """Return the composition to try first: FedDisco's weights and FedCos's penalty.

    Its text form is `recommended`: `steelyard run --set weighting=recommended`. FedDisco needs the
    label histograms of the clients. docs/results/composition.md has the measurements.

    Examples:
        >>> import steelyard
        >>> print(steelyard.recommended())
        feddisco client=fedcos
        >>> steelyard.recommended() == steelyard.Algorithm("recommended")
        True
    """
    return Algorithm("recommended")


def expand_composition(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of an algorithm; a composition's name as the rule becomes its parts.

    Args:
        parts: by the argument of `Algorithm`, objects or spec strings.

    Raises:
        SteelyardError: if a part is given that the composition has itself.
    """
    name = parts["weighting"]
    if not isinstance(name, str) or name.strip() not in COMPOSITIONS:
        return dict(parts)
    composition = COMPOSITIONS[name.strip()]
    for argument, spec in composition.items():
        if argument != "weighting" and parts[argument] not in _NONE:
            raise SteelyardError(
                f"{argument}={parts[argument]} with {name.strip()}: it has {argument}={spec} "
                f"itself: leave {argument} out, or write weighting={composition['weighting']}"
            )
    return {**parts, **composition}
