"""Steelyard beside other simulators of federated learning: `make bench-peers`."""
