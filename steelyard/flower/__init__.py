"""Steelyard on Flower. The only place that imports flwr."""
