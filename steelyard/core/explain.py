"""What a rule asks of clients, shows the server and costs: read off its needs and its parts' cards."""

from __future__ import annotations

from dataclasses import dataclass

from steelyard.core.needs import Needs
from steelyard.core.weighting import Weighting


@dataclass(frozen=True)
class Explanation:
    """Sentences by topic."""

    clients_disclose: list[str]
    server_sees: list[str]
    passes: str
    memory: str
    secure_aggregation: list[str]
    differential_privacy: list[str]
    remarks: list[str]


def explain(rule: Weighting, meaning: dict[str, str]) -> Explanation:
    """Explains a rule and everything inside it; `meaning` says what metrics are."""
    needs = rule.needs
    parts = _deciding(rule)
    disclosed = ["the trained model (or its update)"]
    disclosed += [f"{name}: {meaning.get(name, 'a number you name')}" for name in sorted(needs.metrics)]
    return Explanation(
        clients_disclose=disclosed,
        server_sees=_describe_visible(needs),
        passes=_passes(needs),
        memory="in memory: K+1 models. From disk: one chunk of K+1 rows per thread, whatever the model's size"
        + ("; and the network, its gradient and its activations" if needs.probe else ""),
        secure_aggregation=[f"{part.name}: {part.info.secagg}" for part in parts],
        differential_privacy=[f"{part.name}: {part.info.dp}" for part in parts],
        remarks=[f"{part.name}: {remark}" for part in parts for remark in part.remarks],
    )


def _deciding(rule: Weighting) -> list[Weighting]:
    """The parts that have a say of their own: without chains, and wrappers that leave it all to the rule inside."""
    mute = rule.name == "chain" or rule.info.secagg == rule.info.dp == "as the rule inside"
    return ([] if mute else [rule]) + [inner for part in rule.parts for inner in _deciding(part)]


def _describe_visible(needs: Needs) -> list[str]:
    seen = []
    if needs.gram:
        where = "of every layer" if needs.per_layer is not None else "of the whole model"
        seen.append(f"inner products between single updates, and with the global model, {where}")
    if needs.coordinates:
        seen.append("every coordinate of every single update")
    if needs.probe:
        seen.append("the loss of mixtures of single updates on proxy data of its own")
    if needs.metrics:
        seen.append("each client's reported " + ", ".join(sorted(needs.metrics)))
    return seen or ["only the sum of the updates"]


def _passes(needs: Needs) -> str:
    if needs.probe:
        return (
            "two passes over the updates per step on the proxy data, and one forward and backward pass of one network"
        )
    if needs.gram:
        return "two passes over the updates: inner products, then the sum; the rule itself takes microseconds"
    return "one pass over the updates"
