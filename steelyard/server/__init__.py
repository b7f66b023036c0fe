"""The server side: server optimizers, refiners and proxy data.

Importing this package registers every optimizer and refiner under its name in spec strings.
"""

from steelyard.server.optimizers import SGD, Adagrad, Adam, Momentum, Yogi
from steelyard.server.probe import Probe
from steelyard.server.refiners import FedBE, FedDF, ServerFT

__all__ = ["SGD", "Adagrad", "Adam", "FedBE", "FedDF", "Momentum", "Probe", "ServerFT", "Yogi"]
