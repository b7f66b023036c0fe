"""The client side: client terms (one file per paper), the training loop, models and losses.

Importing this package registers every term and broadcast under its name in spec strings.
"""

from steelyard.client import fedcos, feddyn, fedmut, fedprox, scaffold, vrlsgd

__all__ = ["fedcos", "feddyn", "fedmut", "fedprox", "scaffold", "vrlsgd"]
