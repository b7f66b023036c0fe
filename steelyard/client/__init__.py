"""The client side: client terms (one file per paper), the training loop, models and losses.

Importing this package registers every term and broadcast under its name in spec strings.
"""

from steelyard.client._fedcos import FedCos
from steelyard.client._feddyn import FedDyn
from steelyard.client._fedmut import FedMut
from steelyard.client._fedprox import FedProx
from steelyard.client._local import LocalTraining
from steelyard.client._scaffold import Scaffold
from steelyard.client._vrlsgd import VRLSGD

__all__ = ["VRLSGD", "FedCos", "FedDyn", "FedMut", "FedProx", "LocalTraining", "Scaffold"]
