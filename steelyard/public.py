"""Every public name of the package in one place.

`steelyard/__init__.py` opens it when the first of them is touched. Parts have their names in spec
strings: `steelyard.fedadp(alpha=3)` is `"fedadp:alpha=3"`.
"""

from steelyard import client as _client
from steelyard import rules as _rules
from steelyard import server as _server
from steelyard.adapter_merge import AdapterMerge as AdapterMerge
from steelyard.algorithm import Algorithm as Algorithm
from steelyard.algorithm import parse_optimizer as parse_optimizer
from steelyard.algorithm import parse_refiner as parse_refiner
from steelyard.algorithm import parse_terms as parse_terms
from steelyard.algorithm import recommended as recommended
from steelyard.api import Aggregate as Aggregate
from steelyard.api import aggregate as aggregate
from steelyard.client._adapters import load_model as load_model
from steelyard.client._local import LocalTraining as LocalTraining
from steelyard.core._errors import NoValidClients as NoValidClients
from steelyard.core._errors import SteelyardError as SteelyardError
from steelyard.core._state import load_state as load_state
from steelyard.core._state import save_state as save_state
from steelyard.data import Dataset as Dataset
from steelyard.data import Federation as Federation
from steelyard.data._proxy import Proxy as Proxy
from steelyard.merge import Merge as Merge
from steelyard.recorder import Contributions as Contributions
from steelyard.recorder import Replay as Replay
from steelyard.recorder import contributions as contributions
from steelyard.recorder import replay as replay
from steelyard.rules._combinators import chain as chain
from steelyard.rules._combinators import parse_rule as parse_rule
from steelyard.rules._fedawa import fedawa_l as fedawa_l
from steelyard.rules._fedlaw import gws as gws
from steelyard.rules._fedlaw import law as law
from steelyard.rules._krum import krum as krum
from steelyard.rules._modifiers import cap as cap
from steelyard.rules._modifiers import ema as ema
from steelyard.rules._modifiers import shrink as shrink
from steelyard.runs._history import History as History
from steelyard.server._probe import Probe as Probe
from steelyard.sim._callbacks import Callback as Callback
from steelyard.sim._experiment import Data as Data
from steelyard.sim._experiment import Execution as Execution
from steelyard.sim._experiment import Experiment as Experiment
from steelyard.sim._participation import Participation as Participation
from steelyard.sim._simulate import simulate as simulate
from steelyard.stores._memory import MemoryStore as MemoryStore
from steelyard.stores._safetensors import SafetensorsStore as SafetensorsStore

# Rules.
bulyan = _rules.Bulyan
centered_clipping = _rules.CenteredClipping
craft = _rules.Craft
fedadp = _rules.FedAdp
fedavg = _rules.FedAvg
fedawa = _rules.FedAWA
fedawa_cos = _rules.FedAWACos
fedce = _rules.FedCE
feddisco = _rules.FedDisco
fedexp = _rules.FedExP
fedlaw = _rules.FedLAW
fedlaw_swa = _rules.FedLAWSWA
fedlws = _rules.FedLWS
fedmgda = _rules.FedMGDA
fednova = _rules.FedNova
fltrust = _rules.FLTrust
gate = _rules.Gate
geometric_median = _rules.GeometricMedian
guard = _rules.Guard
if_finite = _rules.IfFinite
ldawa = _rules.LDAWA
median = _rules.Median
mgda = _rules.MGDA
model_stock = _rules.ModelStock
multikrum = _rules.MultiKrum
nnm = _rules.NNM
pa3fed = _rules.PA3Fed
per_layer = _rules.PerLayer
record_coherence = _rules.RecordCoherence
trimmed_mean = _rules.TrimmedMean
uniform = _rules.Uniform

# Detectors.
always = _rules.Always
angle_gap = _rules.AngleGap
criticalfl_window = _rules.CriticalFLWindow
fgn_increase = _rules.FGNIncrease

# Client terms and broadcasts.
creff = _client.CReFF
fedcos = _client.FedCos
feddyn = _client.FedDyn
fedmut = _client.FedMut
fedproto = _client.FedProto
fedprox = _client.FedProx
fpl = _client.FPL
scaffold = _client.Scaffold
vrlsgd = _client.VRLSGD

# Server optimizers and refiners.
adagrad = _server.Adagrad
adam = _server.Adam
fedbe = _server.FedBE
feddf = _server.FedDF
momentum = _server.Momentum
server_ft = _server.ServerFT
sgd = _server.SGD
yogi = _server.Yogi
