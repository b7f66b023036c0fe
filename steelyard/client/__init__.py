"""What happens at a client: terms (one file per paper), the one training loop, what clients report.

Importing this package registers every term and broadcast under its text name.
"""

from steelyard.client import fedcos, feddyn, fedmut, fedprox, scaffold, vrlsgd

__all__ = ["fedcos", "feddyn", "fedmut", "fedprox", "scaffold", "vrlsgd"]
