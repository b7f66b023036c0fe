"""The rules, one file per paper, and the combinators that join them.

Importing this package registers every rule under its name in spec strings. `steelyard.fedadp` is
short for `steelyard.rules.FedAdp`.
"""

from steelyard.rules.bulyan import Bulyan
from steelyard.rules.centered_clipping import CenteredClipping
from steelyard.rules.combinators import Chain, Gate, IfFinite, PerLayer, chain, parse_rule
from steelyard.rules.coordinate import Median, TrimmedMean
from steelyard.rules.detectors import (
    Always,
    AngleGap,
    CriticalFLWindow,
    Detector,
    FGNIncrease,
    PeriodDetector,
)
from steelyard.rules.fedadp import FedAdp
from steelyard.rules.fedavg import FedAvg, Uniform
from steelyard.rules.fedawa import FedAWA, FedAWACos
from steelyard.rules.feddisco import FedDisco
from steelyard.rules.fedlaw import FedLAW
from steelyard.rules.fedlaw_swa import FedLAWSWA
from steelyard.rules.fednova import FedNova
from steelyard.rules.geometric_median import GeometricMedian
from steelyard.rules.guard import Guard
from steelyard.rules.krum import MultiKrum
from steelyard.rules.ldawa import LDAWA
from steelyard.rules.modifiers import Cap, Ema, Shrink
from steelyard.rules.nnm import NNM
from steelyard.rules.pa3fed import PA3Fed

__all__ = [
    "LDAWA",
    "NNM",
    "Always",
    "AngleGap",
    "Bulyan",
    "Cap",
    "CenteredClipping",
    "Chain",
    "CriticalFLWindow",
    "Detector",
    "Ema",
    "FGNIncrease",
    "FedAWA",
    "FedAWACos",
    "FedAdp",
    "FedAvg",
    "FedDisco",
    "FedLAW",
    "FedLAWSWA",
    "FedNova",
    "Gate",
    "GeometricMedian",
    "Guard",
    "IfFinite",
    "Median",
    "MultiKrum",
    "PA3Fed",
    "PerLayer",
    "PeriodDetector",
    "Shrink",
    "TrimmedMean",
    "Uniform",
    "chain",
    "parse_rule",
]
