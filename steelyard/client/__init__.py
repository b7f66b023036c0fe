"""The client side: client terms (one file per paper), the training loop, models and losses.

Importing this package registers every term and broadcast under its name in spec strings.
"""

from steelyard.client._creff import CReFF as CReFF
from steelyard.client._fedcos import FedCos as FedCos
from steelyard.client._feddyn import FedDyn as FedDyn
from steelyard.client._fedmut import FedMut as FedMut
from steelyard.client._fedproto import FedProto as FedProto
from steelyard.client._fedprox import FedProx as FedProx
from steelyard.client._fpl import FPL as FPL
from steelyard.client._local import LocalTraining as LocalTraining
from steelyard.client._scaffold import Scaffold as Scaffold
from steelyard.client._vrlsgd import VRLSGD as VRLSGD
