"""The rules, one file per paper, and the combinators that join them.

Importing this package registers every rule under its name in spec strings.
"""

from steelyard.rules import (
    bulyan,
    centered_clipping,
    combinators,
    coordinate,
    detectors,
    fedadp,
    fedavg,
    fedawa,
    feddisco,
    fedlaw,
    fedlaw_swa,
    fednova,
    geometric_median,
    guard,
    krum,
    ldawa,
    modifiers,
    nnm,
    pa3fed,
)

__all__ = [
    "bulyan",
    "centered_clipping",
    "combinators",
    "coordinate",
    "detectors",
    "fedadp",
    "fedavg",
    "fedawa",
    "feddisco",
    "fedlaw",
    "fedlaw_swa",
    "fednova",
    "geometric_median",
    "guard",
    "krum",
    "ldawa",
    "modifiers",
    "nnm",
    "pa3fed",
]
