"""The rules, one file per paper, and the combinators that join them.

Importing this package registers every rule under its name in spec strings. `steelyard.fedadp` is
short for `steelyard.rules.FedAdp`.
"""

from steelyard.rules._bulyan import Bulyan as Bulyan
from steelyard.rules._centered_clipping import CenteredClipping as CenteredClipping
from steelyard.rules._combinators import Chain as Chain
from steelyard.rules._combinators import Gate as Gate
from steelyard.rules._combinators import IfFinite as IfFinite
from steelyard.rules._combinators import PerLayer as PerLayer
from steelyard.rules._combinators import chain as chain
from steelyard.rules._combinators import parse_rule as parse_rule
from steelyard.rules._coordinate import Median as Median
from steelyard.rules._coordinate import TrimmedMean as TrimmedMean
from steelyard.rules._craft import Craft as Craft
from steelyard.rules._detectors import Always as Always
from steelyard.rules._detectors import AngleGap as AngleGap
from steelyard.rules._detectors import CriticalFLWindow as CriticalFLWindow
from steelyard.rules._detectors import Detector as Detector
from steelyard.rules._detectors import FGNIncrease as FGNIncrease
from steelyard.rules._detectors import PeriodDetector as PeriodDetector
from steelyard.rules._fedadp import FedAdp as FedAdp
from steelyard.rules._fedavg import FedAvg as FedAvg
from steelyard.rules._fedavg import Uniform as Uniform
from steelyard.rules._fedawa import FedAWA as FedAWA
from steelyard.rules._fedawa import FedAWACos as FedAWACos
from steelyard.rules._fedce import FedCE as FedCE
from steelyard.rules._feddisco import FedDisco as FedDisco
from steelyard.rules._fedexp import FedExP as FedExP
from steelyard.rules._fedlaw import FedLAW as FedLAW
from steelyard.rules._fedlaw_swa import FedLAWSWA as FedLAWSWA
from steelyard.rules._fedlws import FedLWS as FedLWS
from steelyard.rules._fedmgda import FedMGDA as FedMGDA
from steelyard.rules._fednova import FedNova as FedNova
from steelyard.rules._fltrust import FLTrust as FLTrust
from steelyard.rules._geometric_median import GeometricMedian as GeometricMedian
from steelyard.rules._guard import Guard as Guard
from steelyard.rules._krum import MultiKrum as MultiKrum
from steelyard.rules._ldawa import LDAWA as LDAWA
from steelyard.rules._mgda import MGDA as MGDA
from steelyard.rules._model_stock import ModelStock as ModelStock
from steelyard.rules._modifiers import Cap as Cap
from steelyard.rules._modifiers import Ema as Ema
from steelyard.rules._modifiers import Shrink as Shrink
from steelyard.rules._nnm import NNM as NNM
from steelyard.rules._pa3fed import PA3Fed as PA3Fed
from steelyard.rules._record_coherence import RecordCoherence as RecordCoherence
