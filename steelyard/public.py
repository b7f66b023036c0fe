"""Every public name of the package in one place.

`steelyard/__init__.py` opens it when the first of them is touched.
"""

from steelyard.algorithm import Algorithm, parse_optimizer, parse_refiner, parse_terms
from steelyard.api import Aggregate, aggregate
from steelyard.client.fedcos import FedCos as fedcos
from steelyard.client.feddyn import FedDyn as feddyn
from steelyard.client.fedmut import FedMut as fedmut
from steelyard.client.fedprox import FedProx as fedprox
from steelyard.client.local import LocalTraining
from steelyard.client.scaffold import Scaffold as scaffold
from steelyard.client.vrlsgd import VRLSGD as vrlsgd
from steelyard.core.errors import NoValidClients, SteelyardError
from steelyard.core.state import load_state, save_state
from steelyard.data import Dataset, Federation
from steelyard.data.proxy import Proxy
from steelyard.merge import Merge
from steelyard.rules.bulyan import Bulyan as bulyan
from steelyard.rules.centered_clipping import CenteredClipping as centered_clipping
from steelyard.rules.combinators import Gate as gate
from steelyard.rules.combinators import IfFinite as if_finite
from steelyard.rules.combinators import PerLayer as per_layer
from steelyard.rules.combinators import chain, parse_rule
from steelyard.rules.coordinate import Median as median
from steelyard.rules.coordinate import TrimmedMean as trimmed_mean
from steelyard.rules.detectors import Always as always
from steelyard.rules.detectors import AngleGap as angle_gap
from steelyard.rules.detectors import CriticalFLWindow as criticalfl_window
from steelyard.rules.detectors import FGNIncrease as fgn_increase
from steelyard.rules.fedadp import FedAdp as fedadp
from steelyard.rules.fedavg import FedAvg as fedavg
from steelyard.rules.fedavg import Uniform as uniform
from steelyard.rules.fedawa import FedAWA as fedawa
from steelyard.rules.fedawa import FedAWACos as fedawa_cos
from steelyard.rules.fedawa import fedawa_l
from steelyard.rules.feddisco import FedDisco as feddisco
from steelyard.rules.fedlaw import FedLAW as fedlaw
from steelyard.rules.fedlaw import gws, law
from steelyard.rules.fedlaw_swa import FedLAWSWA as fedlaw_swa
from steelyard.rules.fednova import FedNova as fednova
from steelyard.rules.geometric_median import GeometricMedian as geometric_median
from steelyard.rules.guard import Guard as guard
from steelyard.rules.krum import MultiKrum as multikrum
from steelyard.rules.krum import krum
from steelyard.rules.ldawa import LDAWA as ldawa
from steelyard.rules.modifiers import cap, ema, shrink
from steelyard.rules.nnm import NNM as nnm
from steelyard.rules.pa3fed import PA3Fed as pa3fed
from steelyard.runs.history import History
from steelyard.server.optimizers import SGD as sgd
from steelyard.server.optimizers import Adagrad as adagrad
from steelyard.server.optimizers import Adam as adam
from steelyard.server.optimizers import Momentum as momentum
from steelyard.server.optimizers import Yogi as yogi
from steelyard.server.probe import Probe
from steelyard.server.refiners import FedBE as fedbe
from steelyard.server.refiners import FedDF as feddf
from steelyard.server.refiners import ServerFT as server_ft
from steelyard.sim.callbacks import Callback
from steelyard.sim.experiment import Data, Execution, Experiment
from steelyard.sim.participation import Participation
from steelyard.sim.simulate import simulate
from steelyard.stores.memory import MemoryStore
from steelyard.stores.safetensors import SafetensorsStore

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
