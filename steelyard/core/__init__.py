"""The core: one round of aggregation, the interfaces of all parts, and their names.

What an extension needs is imported from here: interfaces, registries and options.
"""

from steelyard.core.errors import NoValidClients, SteelyardError
from steelyard.core.gram import Gram
from steelyard.core.mixture import Mixture
from steelyard.core.needs import Needs
from steelyard.core.optimizer import ServerOptimizer
from steelyard.core.options import check_options, option
from steelyard.core.refiner import Refiner
from steelyard.core.registry import BROADCASTS, OPTIMIZERS, REFINERS, RULES, TERMS
from steelyard.core.state import ClientId, State
from steelyard.core.term import Broadcast, ClientContext, ClientTerm, ServerContext, Terms, TermTags
from steelyard.core.view import View
from steelyard.core.weighting import Info, Weighting

__all__ = [
    "BROADCASTS",
    "OPTIMIZERS",
    "REFINERS",
    "RULES",
    "TERMS",
    "Broadcast",
    "ClientContext",
    "ClientId",
    "ClientTerm",
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
    "TermTags",
    "Terms",
    "View",
    "Weighting",
    "check_options",
    "option",
]
