"""The rules, one file per paper, and the combinators that join them.

Importing this package registers every rule under its name in spec strings. `steelyard.fedadp` is
short for `steelyard.rules.FedAdp`.
"""

from steelyard.rules._bulyan import Bulyan
from steelyard.rules._centered_clipping import CenteredClipping
from steelyard.rules._combinators import Chain, Gate, IfFinite, PerLayer, chain, parse_rule
from steelyard.rules._coordinate import Median, TrimmedMean
from steelyard.rules._detectors import (
    Always,
    AngleGap,
    CriticalFLWindow,
    Detector,
    FGNIncrease,
    PeriodDetector,
)
from steelyard.rules._fedadp import FedAdp
from steelyard.rules._fedavg import FedAvg, Uniform
from steelyard.rules._fedawa import FedAWA, FedAWACos
from steelyard.rules._feddisco import FedDisco
from steelyard.rules._fedlaw import FedLAW
from steelyard.rules._fedlaw_swa import FedLAWSWA
from steelyard.rules._fednova import FedNova
from steelyard.rules._geometric_median import GeometricMedian
from steelyard.rules._guard import Guard
from steelyard.rules._krum import MultiKrum
from steelyard.rules._ldawa import LDAWA
from steelyard.rules._modifiers import Cap, Ema, Shrink
from steelyard.rules._nnm import NNM
from steelyard.rules._pa3fed import PA3Fed

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
