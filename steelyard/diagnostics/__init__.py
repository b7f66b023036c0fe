"""Diagnostics: the measurements of the papers, as functions of tensors and models.

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
from steelyard.diagnostics.datasets import (
    ClientDistances,
    client_distances,
    data_distances,
    data_vector,
    matrix_correlation,
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
from steelyard.diagnostics.fisher import (
    empirical_fisher_trace,
    federated_fisher_trace,
    fisher_trace,
)
from steelyard.diagnostics.flatness import Spectrum, hessian_spectrum, losses_along
from steelyard.diagnostics.landscape import Landscape, simplex_grid, to_plane, weight_landscape
from steelyard.diagnostics.periods import (
    Deviation,
    Periods,
    critical_periods,
    detect,
    loss_deviation,
    stability,
)
from steelyard.diagnostics.recorded import ByClient, Series, by_client, client_names, curves, series
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
from steelyard.diagnostics.weights import (
    Correlations,
    IdealDistances,
    effective_clients,
    heterogeneity,
    ideal_distances,
    ideal_model,
    run_correlations,
    run_similarity,
    similarity,
    weight_correlations,
)

__all__ = [
    "THREE_CLIENTS",
    "TWO_CLIENTS",
    "ByClient",
    "ClientDistances",
    "Coherence",
    "Correlations",
    "Deviation",
    "Distances",
    "Histogram",
    "IdealDistances",
    "Landscape",
    "Periods",
    "Point",
    "Series",
    "Shrinking",
    "Spectrum",
    "Surface",
    "Toy",
    "Trajectory",
    "by_client",
    "client_distances",
    "client_names",
    "cohort_alignment",
    "critical_periods",
    "critical_point",
    "curves",
    "data_distances",
    "data_vector",
    "detect",
    "effective_clients",
    "empirical_fisher_trace",
    "federated_fisher_trace",
    "fisher_trace",
    "gradient_coherence",
    "gradient_divergence",
    "group_coherence",
    "hessian_spectrum",
    "heterogeneity",
    "heterogeneity_coherence",
    "ideal_distances",
    "ideal_model",
    "loss_deviation",
    "losses_along",
    "matrix_correlation",
    "mean_cosine",
    "moving_distances",
    "parameter_histogram",
    "parameter_norm",
    "rescaled_losses",
    "run_correlations",
    "run_similarity",
    "series",
    "share_near_zero",
    "shrinking_terms",
    "similarity",
    "simplex_grid",
    "smoothed_angles",
    "stability",
    "to_plane",
    "trajectory",
    "update_angles",
    "update_cosines",
    "weight_correlations",
    "weight_landscape",
]
