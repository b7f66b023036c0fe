"""The server side: server optimizers, refiners and proxy data.

Importing this package registers every optimizer and refiner under its name in spec strings.
"""

from steelyard.server._optimizers import SGD as SGD
from steelyard.server._optimizers import Adagrad as Adagrad
from steelyard.server._optimizers import Adam as Adam
from steelyard.server._optimizers import Momentum as Momentum
from steelyard.server._optimizers import Yogi as Yogi
from steelyard.server._probe import Probe as Probe
from steelyard.server._refiners import FedBE as FedBE
from steelyard.server._refiners import FedDF as FedDF
from steelyard.server._refiners import ServerFT as ServerFT
