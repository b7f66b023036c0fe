"""The core: one round of aggregation, the interfaces of all parts, and their names.

What an extension needs is imported from here: interfaces, registries and options.
"""

from steelyard.core._errors import NoValidClients, SteelyardError
from steelyard.core._gram import Gram
from steelyard.core._mixture import Mixture
from steelyard.core._needs import Needs
from steelyard.core._optimizer import ServerOptimizer
from steelyard.core._options import check_options, option
from steelyard.core._refiner import Refiner
from steelyard.core._registry import BROADCASTS, OPTIMIZERS, REFINERS, RULES, TERMS
from steelyard.core._side_channel import Classifier, TensorSpec
from steelyard.core._state import ClientId, State
from steelyard.core._term import (
    Broadcast,
    ClientContext,
    ClientTerm,
    FeatureTerm,
    ServerContext,
    TensorContext,
    Terms,
    TermTags,
)
from steelyard.core._view import View
from steelyard.core._weighting import Info, Weighting

__all__ = [
    "BROADCASTS",
    "OPTIMIZERS",
    "REFINERS",
    "RULES",
    "TERMS",
    "Broadcast",
    "Classifier",
    "ClientContext",
    "ClientId",
    "ClientTerm",
    "FeatureTerm",
    "Gram",
    "Info",
    "Mixture",
    "Needs",
    "NoValidClients",
    "Refiner",
    "ServerContext",
    "ServerOptimizer",
    "State",
    "SteelyardError",
    "TensorContext",
    "TensorSpec",
    "TermTags",
    "Terms",
    "View",
    "Weighting",
    "check_options",
    "option",
]
