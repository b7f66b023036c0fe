"""The server side: server optimizers, refiners and proxy data.

Importing this package registers every optimizer and refiner under its name in spec strings.
"""

from steelyard.server._optimizers import SGD, Adagrad, Adam, Momentum, Yogi
from steelyard.server._probe import Probe
from steelyard.server._refiners import FedBE, FedDF, ServerFT

__all__ = ["SGD", "Adagrad", "Adam", "FedBE", "FedDF", "Momentum", "Probe", "ServerFT", "Yogi"]
