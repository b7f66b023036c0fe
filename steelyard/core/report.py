"""What a round's record says, read off the Gram: no extra pass over the updates."""

from __future__ import annotations

from typing import Any

import numpy as np

from steelyard.core.gram import Array, Gram
from steelyard.core.layout import Layers
from steelyard.core.mixture import Mixture
from steelyard.core.store import UpdateStore


class Report(dict[str, Any]):
    """Plain data by name.

    Always: `round`, `clients`, `effective_clients` (1 / sum of squared shares), `quarantined` (id: reason), `void` (the
    reason, or None), `layers` (names). With a Gram: `norms` and `cosines` (of each update, to the aggregated one),
    `update_norm`, `coherence` (FedLAW, Def. 5.1). And what the rule notes: `angles`, `alpha`, `gamma`, `clipped`, ...
    """

    def __missing__(self, key: str) -> Any:
        if key in ("norms", "cosines", "update_norm", "coherence"):
            raise KeyError(f"{key!r}: this rule needs no Gram; ask for one with aggregate(..., diagnose=True)")
        raise KeyError(key)


def describe(
    store: UpdateStore, mixture: Mixture, weights: Array, cut: Layers, gram: Gram | None, number: int
) -> Report:
    """The report of a round that used these weights `[g, K]`."""
    overall = np.abs(weights).mean(axis=0)
    share = overall / overall.sum() if overall.sum() > 0 else overall
    report = Report(
        round=number,
        clients=list(store.ids),
        effective_clients=float(1 / (share**2).sum()) if share.any() else 0.0,
        quarantined={**store.quarantined, **mixture.notes.get("set_aside", {})},
        void=mixture.void,
        layers=list(cut.names),
    )
    if gram is not None:
        report.update(_geometry(store, gram, weights, share))
    report.update({name: value for name, value in mixture.notes.items() if name != "set_aside"})
    return report


def _geometry(store: UpdateStore, gram: Gram, weights: Array, share: Array) -> dict[str, Any]:
    whole = gram.whole()
    along = (weights * gram.apply(weights)).sum()  # |aggregated step|^2, layer by layer
    towards = gram.apply(weights).sum(axis=0)  # <d_k, aggregated step>
    length = np.sqrt(max(float(along), 0.0))
    lengths = whole.norms[0] * length
    cosines = np.divide(towards, lengths, out=np.zeros_like(towards), where=lengths > 0)
    return {
        "norms": dict(zip(store.ids, whole.norms[0].tolist(), strict=True)),
        "cosines": dict(zip(store.ids, np.clip(cosines, -1, 1).tolist(), strict=True)),
        "update_norm": float(length),
        "coherence": coherence(whole, share),
    }


def coherence(gram: Gram, share: Array) -> float:
    """Local gradient coherence of a cohort, `(1/m) sum_{i != j} lambda_i lambda_j cos(d_i, d_j)` (FedLAW, Def. 5.1)."""
    cosines = gram.cosines()[0]
    pairs = np.outer(share, share) * cosines
    return float((pairs.sum() - np.trace(pairs)) / len(share))
