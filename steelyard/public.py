"""Every public name of the package in one place.

`steelyard/__init__.py` opens it when the first of them is touched.
"""

from steelyard.algorithm import Algorithm, parse_optimizer, parse_refiner, parse_terms
from steelyard.api import Aggregate, aggregate
from steelyard.client._fedcos import FedCos as fedcos
from steelyard.client._feddyn import FedDyn as feddyn
from steelyard.client._fedmut import FedMut as fedmut
from steelyard.client._fedprox import FedProx as fedprox
from steelyard.client._local import LocalTraining
from steelyard.client._scaffold import Scaffold as scaffold
from steelyard.client._vrlsgd import VRLSGD as vrlsgd
from steelyard.core._errors import NoValidClients, SteelyardError
from steelyard.core._state import load_state, save_state
from steelyard.data import Dataset, Federation
from steelyard.data._proxy import Proxy
from steelyard.merge import Merge
from steelyard.rules._bulyan import Bulyan as bulyan
from steelyard.rules._centered_clipping import CenteredClipping as centered_clipping
from steelyard.rules._combinators import Gate as gate
from steelyard.rules._combinators import IfFinite as if_finite
from steelyard.rules._combinators import PerLayer as per_layer
from steelyard.rules._combinators import chain, parse_rule
from steelyard.rules._coordinate import Median as median
from steelyard.rules._coordinate import TrimmedMean as trimmed_mean
from steelyard.rules._detectors import Always as always
from steelyard.rules._detectors import AngleGap as angle_gap
from steelyard.rules._detectors import CriticalFLWindow as criticalfl_window
from steelyard.rules._detectors import FGNIncrease as fgn_increase
from steelyard.rules._fedadp import FedAdp as fedadp
from steelyard.rules._fedavg import FedAvg as fedavg
from steelyard.rules._fedavg import Uniform as uniform
from steelyard.rules._fedawa import FedAWA as fedawa
from steelyard.rules._fedawa import FedAWACos as fedawa_cos
from steelyard.rules._fedawa import fedawa_l
from steelyard.rules._feddisco import FedDisco as feddisco
from steelyard.rules._fedlaw import FedLAW as fedlaw
from steelyard.rules._fedlaw import gws, law
from steelyard.rules._fedlaw_swa import FedLAWSWA as fedlaw_swa
from steelyard.rules._fednova import FedNova as fednova
from steelyard.rules._geometric_median import GeometricMedian as geometric_median
from steelyard.rules._guard import Guard as guard
from steelyard.rules._krum import MultiKrum as multikrum
from steelyard.rules._krum import krum
from steelyard.rules._ldawa import LDAWA as ldawa
from steelyard.rules._modifiers import cap, ema, shrink
from steelyard.rules._nnm import NNM as nnm
from steelyard.rules._pa3fed import PA3Fed as pa3fed
from steelyard.runs._history import History
from steelyard.server._optimizers import SGD as sgd
from steelyard.server._optimizers import Adagrad as adagrad
from steelyard.server._optimizers import Adam as adam
from steelyard.server._optimizers import Momentum as momentum
from steelyard.server._optimizers import Yogi as yogi
from steelyard.server._probe import Probe
from steelyard.server._refiners import FedBE as fedbe
from steelyard.server._refiners import FedDF as feddf
from steelyard.server._refiners import ServerFT as server_ft
from steelyard.sim._callbacks import Callback
from steelyard.sim._experiment import Data, Execution, Experiment
from steelyard.sim._participation import Participation
from steelyard.sim._simulate import simulate
from steelyard.stores._memory import MemoryStore
from steelyard.stores._safetensors import SafetensorsStore

__all__ = [
    "Aggregate",
    "Algorithm",
    "Callback",
    "Data",
    "Dataset",
    "Execution",
    "Experiment",
    "Federation",
    "History",
    "LocalTraining",
    "MemoryStore",
    "Merge",
    "NoValidClients",
    "Participation",
    "Probe",
    "Proxy",
    "SafetensorsStore",
    "SteelyardError",
    "adagrad",
    "adam",
    "aggregate",
    "always",
    "angle_gap",
    "bulyan",
    "cap",
    "centered_clipping",
    "chain",
    "criticalfl_window",
    "ema",
    "fedadp",
    "fedavg",
    "fedawa",
    "fedawa_cos",
    "fedawa_l",
    "fedbe",
    "fedcos",
    "feddf",
    "feddisco",
    "feddyn",
    "fedlaw",
    "fedlaw_swa",
    "fedmut",
    "fednova",
    "fedprox",
    "fgn_increase",
    "gate",
    "geometric_median",
    "guard",
    "gws",
    "if_finite",
    "krum",
    "law",
    "ldawa",
    "load_state",
    "median",
    "momentum",
    "multikrum",
    "nnm",
    "pa3fed",
    "parse_optimizer",
    "parse_refiner",
    "parse_rule",
    "parse_terms",
    "per_layer",
    "save_state",
    "scaffold",
    "server_ft",
    "sgd",
    "shrink",
    "simulate",
    "trimmed_mean",
    "uniform",
    "vrlsgd",
    "yogi",
]
