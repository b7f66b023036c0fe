"""The rules, one file per paper, and the combinators that join them.

Importing this package registers every rule under its text name.
"""

from steelyard.weightings import (
    bulyan,
    centered_clipping,
    chain,
    coordinate,
    detectors,
    fedadp,
    fedavg,
    fedawa,
    feddisco,
    fedlaw,
    fedlaw_swa,
    fednova,
    gate,
    geometric_median,
    guard,
    if_finite,
    krum,
    ldawa,
    modifiers,
    nnm,
    pa3fed,
    per_layer,
)

__all__ = [
    "bulyan",
    "centered_clipping",
    "chain",
    "coordinate",
    "detectors",
    "fedadp",
    "fedavg",
    "fedawa",
    "feddisco",
    "fedlaw",
    "fedlaw_swa",
    "fednova",
    "gate",
    "geometric_median",
    "guard",
    "if_finite",
    "krum",
    "ldawa",
    "modifiers",
    "nnm",
    "pa3fed",
    "per_layer",
]
