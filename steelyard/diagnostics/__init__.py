"""Diagnostics: the measurements of the papers, as functions of tensors and models.

from steelyard.diagnostics import gradient_coherence
gradient_coherence(updates, weights=[3, 1, 1])  # updates: [K, d]
"""

from steelyard.diagnostics._checkpoints import Spectra, hessian_spectra, read_models
from steelyard.diagnostics._coherence import (
    Coherence,
    cohort_alignment,
    critical_point,
    gradient_coherence,
    group_coherence,
    heterogeneity_coherence,
)
from steelyard.diagnostics._datasets import (
    ClientDistances,
    client_distances,
    data_distances,
    data_vector,
    matrix_correlation,
)
from steelyard.diagnostics._distances import (
    Distances,
    WeightedCosines,
    gradient_divergence,
    mean_cosine,
    moving_distances,
    smoothed_angles,
    update_angles,
    update_cosines,
    weighted_cosines,
)
from steelyard.diagnostics._fisher import (
    empirical_fisher_trace,
    federated_fisher_trace,
    fisher_trace,
)
from steelyard.diagnostics._landscape import (
    Landscape,
    OptimumPath,
    Point,
    Spectrum,
    Surface,
    hessian_spectrum,
    losses_along,
    simplex_grid,
    to_plane,
    weight_landscape,
)
from steelyard.diagnostics._periods import (
    Deviation,
    Periods,
    critical_periods,
    detect,
    loss_deviation,
    stability,
)
from steelyard.diagnostics._recorded import (
    ByClient,
    Series,
    by_client,
    client_names,
    curves,
    series,
)
from steelyard.diagnostics._recorded import (
    names as series_names,
)
from steelyard.diagnostics._shrinking import (
    Histogram,
    Shrinking,
    parameter_histogram,
    parameter_norm,
    rescaled_losses,
    share_near_zero,
    shrinking_terms,
)
from steelyard.diagnostics._toy import THREE_CLIENTS, TWO_CLIENTS, Toy, Trajectory, trajectory
from steelyard.diagnostics._weights import (
    IdealDistances,
    effective_clients,
    ideal_distances,
    ideal_model,
    run_correlations,
    run_similarity,
    similarity,
)
from steelyard.experiments._correlations import (
    Correlations,
    heterogeneity,
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
    "OptimumPath",
    "Periods",
    "Point",
    "Series",
    "Shrinking",
    "Spectra",
    "Spectrum",
    "Surface",
    "Toy",
    "Trajectory",
    "WeightedCosines",
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
    "hessian_spectra",
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
    "read_models",
    "rescaled_losses",
    "run_correlations",
    "run_similarity",
    "series",
    "series_names",
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
    "weighted_cosines",
]
