"""Diagnostics: what the papers measure to argue with, as functions of tensors and models.

from steelyard.diagnostics import gradient_coherence
gradient_coherence(updates, weights=[3, 1, 1])  # updates: [K, d]
"""

from steelyard.diagnostics.coherence import (
    Coherence,
    cohort_alignment,
    critical_point,
    gradient_coherence,
    group_coherence,
    heterogeneity_coherence,
)
from steelyard.diagnostics.distances import (
    Distances,
    gradient_divergence,
    mean_cosine,
    moving_distances,
    smoothed_angles,
    update_angles,
    update_cosines,
)
from steelyard.diagnostics.fisher import empirical_fisher_trace, federated_fisher_trace, fisher_trace
from steelyard.diagnostics.flatness import Spectrum, hessian_spectrum, losses_along
from steelyard.diagnostics.landscape import Landscape, simplex_grid, to_plane, weight_landscape
from steelyard.diagnostics.shrinking import (
    Histogram,
    Shrinking,
    parameter_histogram,
    parameter_norm,
    rescaled_losses,
    share_near_zero,
    shrinking_terms,
)
from steelyard.diagnostics.surface import Point, Surface
from steelyard.diagnostics.toy import THREE_CLIENTS, TWO_CLIENTS, Toy, Trajectory, trajectory

__all__ = [
    "THREE_CLIENTS",
    "TWO_CLIENTS",
    "Coherence",
    "Distances",
    "Histogram",
    "Landscape",
    "Point",
    "Shrinking",
    "Spectrum",
    "Surface",
    "Toy",
    "Trajectory",
    "cohort_alignment",
    "critical_point",
    "empirical_fisher_trace",
    "federated_fisher_trace",
    "fisher_trace",
    "gradient_coherence",
    "gradient_divergence",
    "group_coherence",
    "hessian_spectrum",
    "heterogeneity_coherence",
    "losses_along",
    "mean_cosine",
    "moving_distances",
    "parameter_histogram",
    "parameter_norm",
    "rescaled_losses",
    "share_near_zero",
    "shrinking_terms",
    "simplex_grid",
    "smoothed_angles",
    "to_plane",
    "trajectory",
    "update_angles",
    "update_cosines",
    "weight_landscape",
]
