"""The client side: client terms (one file per paper), the training loop, models and losses.

Importing this package registers every term and broadcast under its name in spec strings.
"""

from steelyard.client.fedcos import FedCos
from steelyard.client.feddyn import FedDyn
from steelyard.client.fedmut import FedMut
from steelyard.client.fedprox import FedProx
from steelyard.client.local import LocalTraining
from steelyard.client.scaffold import Scaffold
from steelyard.client.vrlsgd import VRLSGD

__all__ = ["VRLSGD", "FedCos", "FedDyn", "FedMut", "FedProx", "LocalTraining", "Scaffold"]
