"""Explains a rule: what clients disclose, what the server sees, what it costs.

Everything follows from the rule's needs and its parts' `info`.
"""

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
    """Return the explanation of a rule and its parts.

    Args:
        rule: the rule.
        meaning: descriptions of metrics by name.
    """
    # What clients send.
    needs = rule.needs
    disclosed = ["the trained model (or its update)"]
    for name in sorted(needs.metrics):
        disclosed.append(f"{name}: {meaning.get(name, 'a metric of your own')}")

    # What the server keeps in memory.
    memory = "in memory: K+1 models. From disk: one chunk of K+1 rows per thread, whatever the model's size"
    if needs.probe:
        memory += "; and the network, its gradient and its activations"

    # Privacy, part by part.
    parts = _deciding_parts(rule)
    return Explanation(
        clients_disclose=disclosed,
        server_sees=_describe_visible(needs),
        passes=_describe_passes(needs),
        memory=memory,
        secure_aggregation=[f"{part.name}: {part.info.secagg}" for part in parts],
        differential_privacy=[f"{part.name}: {part.info.dp}" for part in parts],
        remarks=[f"{part.name}: {remark}" for part in parts for remark in part.remarks],
    )


def _deciding_parts(rule: Weighting) -> list[Weighting]:
    """Return the parts with privacy properties of their own.

    Chains, and wrappers that have the properties of the rule inside, are left out.
    """
    is_wrapper = rule.info.secagg == rule.info.dp == "as the rule inside"
    parts = [] if rule.name == "chain" or is_wrapper else [rule]
    for part in rule.parts:
        parts += _deciding_parts(part)
    return parts


def _describe_visible(needs: Needs) -> list[str]:
    """Return what the server sees of single clients."""
    visible = []
    if needs.gram:
        scope = "of every layer" if needs.per_layer is not None else "of the whole model"
        visible.append(f"inner products between single updates, and with the global model, {scope}")
    if needs.coordinates:
        visible.append("every coordinate of every single update")
    if needs.probe:
        visible.append("the loss of mixtures of single updates on proxy data of its own")
    if needs.metrics:
        visible.append("each client's reported " + ", ".join(sorted(needs.metrics)))
    return visible or ["only the sum of the updates"]


def _describe_passes(needs: Needs) -> str:
    """Return how often the updates are read."""
    if needs.probe:
        return (
            "two passes over the updates per step on the proxy data, and one forward and backward pass of one network"
        )
    if needs.gram:
        return "two passes over the updates: inner products, then the sum; the rule itself takes microseconds"
    return "one pass over the updates"
