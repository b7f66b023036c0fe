"""The report of a round, and the explanation of a rule's cost; no extra pass over the updates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.core._gram import Array, Gram
from steelyard.core._layout import Layers
from steelyard.core._mixture import Mixture
from steelyard.core._needs import Needs
from steelyard.core._round_record import OLD_NAMES, ROUND_RECORD
from steelyard.core._store import UpdateStore
from steelyard.core._weighting import Weighting


class Report(dict[str, Any]):
    """The report of a round: plain data by name.

    Always: `round`, `clients`, `effective_clients` (1 / sum of squared shares), `quarantined`
    (reasons by client id), `void` (the reason, or None) and `layers` (names).

    With a Gram, also the keys of `steelyard.core._round_record.ROUND_RECORD` that need one. In a run
    with FedCos, from round 2 on, also `direction_cosines`.

    Also the notes of the rule: `angles`, `alpha`, `gamma`, `clipped`, ...
    """

    def __missing__(self, key: str) -> Any:
        entry = ROUND_RECORD.get(key)
        if entry is not None and entry.needs_gram:
            raise KeyError(
                f"{key!r}: this rule computes no Gram; use aggregate(..., diagnose=True)"
            )
        if key in OLD_NAMES:
            raise KeyError(f"{key!r}: this key is now {OLD_NAMES[key]!r}")
        raise KeyError(key)


def describe(
    store: UpdateStore,
    mixture: Mixture,
    weights: Array,
    layers: Layers,
    gram: Gram | None,
    number: int,
    sizes: Array | None = None,
    global_lr: float = 1.0,
) -> Report:
    """Return the report of a round.

    Args:
        store: the updates.
        mixture: the result of the rule.
        weights: the clients' weights, `[g, K]`.
        layers: the layers of the mixture.
        gram: the Gram of the updates, if it was computed.
        number: number of the round.
        sizes: the clients' numbers of examples, if the rule needs them.
        global_lr: the server's learning rate on the aggregated step.
    """
    overall = np.abs(weights).mean(axis=0)
    share = overall / overall.sum() if overall.sum() > 0 else overall
    report = Report(
        round=number,
        clients=list(store.ids),
        effective_clients=float(1 / (share**2).sum()) if share.any() else 0.0,
        quarantined={**store.quarantined, **mixture.notes.get("set_aside", {})},
        void=mixture.void,
        layers=list(layers.names),
    )
    if gram is not None:
        report.update(_geometry(store, gram, mixture, weights, share))
        report.update(_diversity(gram.merge_layers(), sizes, weights.mean(axis=0)))
        report.update(_shrinking(gram, mixture.base, global_lr * report["update_norm"]))
    report.update({name: value for name, value in mixture.notes.items() if name != "set_aside"})
    return report


def _geometry(
    store: UpdateStore, gram: Gram, mixture: Mixture, weights: Array, share: Array
) -> dict[str, Any]:
    """Return norms and cosines of the updates and of the aggregated step."""
    model_gram = gram.merge_layers()
    square = gram.mixture_sq_norm(weights, mixture.step_weight).sum()  # |aggregated step|^2
    dots = gram.apply(weights, mixture.step_weight).sum(axis=0)  # <d_k, aggregated step>
    length = np.sqrt(float(square))
    norms = model_gram.norms[0]
    lengths = norms * length
    cosines = np.divide(dots, lengths, out=np.zeros_like(dots), where=lengths > 0)
    return {
        "norms": dict(zip(store.ids, norms.tolist(), strict=True)),
        "cosines": dict(zip(store.ids, np.clip(cosines, -1, 1).tolist(), strict=True)),
        "param_norm": float(np.sqrt(model_gram.theta_sq[0])),
        "update_norm": float(length),
        "coherence": coherence(model_gram, share),
    }


def _diversity(gram: Gram, sizes: Array | None, weights: Array) -> dict[str, Any]:
    """Return how much clients differ; values over pairs are None for a single client.

    Args:
        gram: the Gram of the whole model.
        sizes: the clients' numbers of examples, if known.
        weights: the clients' weights, `[K]`.
    """
    # The coefficients of the mean update: by size if sizes are known.
    norms = gram.norms
    count = norms.shape[1]
    mean = np.full(count, 1 / count)
    if sizes is not None and sizes.any():
        mean = sizes / sizes.sum()

    # The sum of cosines over all pairs, without those of a client to itself.
    pairs = count * (count - 1)
    inverse = np.divide(1.0, norms, out=np.zeros_like(norms), where=norms > 0)  # [1, K]
    cosines = (inverse * gram.apply(inverse)).sum() - np.count_nonzero(inverse)

    # The cosines to the mean update, weighted by the rule and by FedAvg.
    total = np.abs(weights).sum()
    share = weights / total if total > 0 else weights
    cosines_to_mean = gram.cosines_to(mean[None])[0]
    return {
        "mean_update_norm": float(norms.mean()),
        "mean_pairwise_distance": float(np.sqrt(gram.sq_distances()).sum() / pairs)
        if pairs
        else None,
        "mean_cosine": float(cosines / pairs) if pairs else None,
        "weighted_cosine": float((share * cosines_to_mean).sum()),
        "fedavg_weighted_cosine": float((mean * cosines_to_mean).sum()),
        "update_divergence": float(np.sqrt(gram.sq_distances_to(mean[None])).mean()),
    }


def _shrinking(gram: Gram, base: Array, update_norm: float) -> dict[str, float]:
    """Return norm and ratio of FedLAW's Eq. (4), over all layers; empty if `base` is 1."""
    square = float(((1 - base) ** 2 * gram.theta_sq).sum())
    if square == 0.0:
        return {}
    return {"shrinking": math.sqrt(square), "shrinking_ratio": update_norm / math.sqrt(square)}


def coherence(gram: Gram, share: Array) -> float:
    """Return the local gradient coherence of a cohort (FedLAW, Def. 5.1).

    It is `(1/m) sum_{i != j} lambda_i lambda_j cos(d_i, d_j)`.
    """
    cosines = gram.cosines()[0]
    pairs = np.outer(share, share) * cosines
    return float((pairs.sum() - np.trace(pairs)) / len(share))


def heterogeneity_coherence(
    counts: Array | NDArray[np.int64],
    cohort: Sequence[int],
    shares: Array,
    similarity: str = "cosine",
) -> float:
    """Return the heterogeneity coherence of a cohort (FedLAW, Def. 5.2), measured on labels.

    Args:
        counts: samples of each class at each client, `[n, C]`.
        cohort: the positions of the clients that take part.
        shares: their aggregation weights, which sum to 1.
        similarity: of the distribution of labels in the cohort and at all clients: their `cosine`,
            or their `overlap`, `sum_c min(p_c, q_c)`.
    """
    rows = counts[cohort].astype(np.float64)
    p = shares @ (rows / np.maximum(rows.sum(axis=1, keepdims=True), 1e-300))
    q = counts.sum(axis=0) / counts.sum()
    if similarity == "overlap":
        return float(np.minimum(p, q).sum())
    lengths = float(np.linalg.norm(p) * np.linalg.norm(q))
    return float(p @ q) / lengths if lengths > 0 else 0.0


# Explains a rule: what clients disclose, what the server sees, what it costs.
#
# Everything follows from the rule's needs and its parts' `info`.


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
    if needs.last_step:
        memory += "; and the step of the previous round, a vector as long as the model"

    # Privacy, part by part.
    parts = _deciding_parts(rule)
    return Explanation(
        clients_disclose=disclosed,
        server_sees=_describe_visible(needs),
        passes=_describe_passes(needs, parts),
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
    if needs.last_step:
        visible.append("inner products of single updates with the step of the previous round")
    if needs.coordinates:
        visible.append("every coordinate of every single update")
    if needs.probe:
        visible.append("how single updates, or mixtures of them, fit proxy data of its own")
    if needs.metrics:
        visible.append("each client's reported " + ", ".join(sorted(needs.metrics)))
    return visible or ["only the sum of the updates"]


def _describe_passes(needs: Needs, parts: Sequence[Weighting]) -> str:
    """Return how often the updates are read."""
    own = [part.info.passes for part in parts if part.info.passes]
    if own:
        return own[0]
    if needs.probe:
        return (
            "two passes over the updates per step on the proxy data, "
            "and one forward and backward pass of one network"
        )
    if needs.gram:
        return "two passes over the updates: inner products, then the sum; the rule itself takes microseconds"
    return "one pass over the updates"
