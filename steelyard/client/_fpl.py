"""FPL: prototypes of a class in clusters, one for each kind of domain.

Huang, Ye, Shi, Li, Du, "Rethinking Federated Learning with Domain Shift: A Prototype View", CVPR
2023.

The server clusters the clients' prototypes of each class with FINCH (Sarfraz, Sharma, Stiefelhagen,
CVPR 2019). P_c are the means of the clusters of class c, and U_c is the mean of these means, which
does not favour a domain with many clients. With f the features of a sample of class y and cosine
similarities s:

    contrast     -log( sum_{p in P_y} exp(s(f, p) / t)  /  sum_{p in all P} exp(s(f, p) / t) )
    regression   |f - U_y|^2 / dim

Both are added to the loss, as means over the batch. A class without prototypes adds nothing.

FINCH links each point with its first neighbour, the one with the largest cosine. The connected
points are the clusters; then the same is done with their means, until one cluster is left. FPL uses
the last partition with more than one cluster, if there is one.

The formulas are those of the authors' code (models/fpl.py); the texts of the two papers were not at
hand. From memory, the paper's regression is a sum over the features where the code has a mean
(`regression=sum` or `mean`). In the code, a client's prototypes are means over its last epoch,
while the model still changes; here they are computed with the trained model, in evaluation mode.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from steelyard.client._features import compute_prototypes
from steelyard.core import checks
from steelyard.core._gram import Array
from steelyard.core._registry import TERMS
from steelyard.core._side_channel import Classifier, Specs, TensorSpec
from steelyard.core._term import ClientContext, FeatureTerm, TensorContext, Vectors
from steelyard.core._weighting import Info

Labels = NDArray[np.int64]

_EPS = 1e-8  # the smallest norm in a cosine


@TERMS.register
@dataclass(frozen=True)
class FPL(FeatureTerm):
    """A contrast between cluster prototypes, and a regression to their mean.

    Attributes:
        weight: weight of both parts.
        temperature: divisor of the cosines.
        regression: `mean` or `sum` over the features.
        max_clusters: the largest number of clusters of a class. If FINCH finds more, all prototypes
            of the class form one cluster.
        classifier: the name of the last linear layer; empty to find it.
    """

    weight: float = 1.0
    temperature: float = 0.02
    regression: str = "mean"
    max_clusters: int = 10
    classifier: str = ""

    name = "fpl"
    info = Info("contrasts features with clusters of prototypes", "Huang et al., CVPR 2023")

    def __post_init__(self) -> None:
        self.set_classifier_name()
        checks.number("weight", self.weight, 0.0)
        checks.number("temperature", self.temperature, 0.0, open_low=True)
        checks.one_of("regression", self.regression, "mean", "sum")
        checks.integer("max_clusters", self.max_clusters, 1)

    def client_tensors(self, classifier: Classifier) -> Specs:
        """The mean feature of each class, and the number of its samples."""
        return {
            "prototypes": TensorSpec((classifier.classes, classifier.dim)),
            "counts": TensorSpec((classifier.classes,), torch.int64),
        }

    def server_tensors(self, classifier: Classifier) -> Specs:
        """The means of the clusters of each class, and the number of its clusters."""
        shape = (classifier.classes, self.max_clusters, classifier.dim)
        return {
            "clusters": TensorSpec(shape),
            "cluster_counts": TensorSpec((classifier.classes,), torch.int64),
        }

    def loss(
        self,
        features: torch.Tensor,
        outputs: torch.Tensor,
        targets: torch.Tensor,
        at: ClientContext,
    ) -> torch.Tensor:
        """Return contrast and regression."""
        # The samples whose class has prototypes.
        clusters = at.tensors["clusters"].to(features.dtype)  # [classes, M, dim]
        counts = at.tensors["cluster_counts"]
        selected = torch.nonzero(counts[targets] > 0).flatten()
        if not len(selected):
            return features.new_zeros(())
        labels = targets[selected]
        selected_features = features[selected]

        # The contrast.
        units = functional.normalize(selected_features, dim=1, eps=_EPS)
        directions = functional.normalize(clusters, dim=2, eps=_EPS)
        cosines = (units @ directions.flatten(0, 1).T).view(len(labels), *clusters.shape[:2])
        slots = torch.arange(clusters.shape[1], device=counts.device)
        is_unused = slots >= counts[:, None]  # [classes, M]
        scores = (cosines / self.temperature).masked_fill(is_unused, -torch.inf)
        own = scores[torch.arange(len(labels), device=labels.device), labels]  # [n, M]
        contrast = scores.flatten(1).logsumexp(dim=1) - own.logsumexp(dim=1)

        # The regression; unused slots are zero.
        means = clusters.sum(dim=1) / counts.clamp(min=1)[:, None]
        squares = (selected_features - means[labels]).square()
        regression = squares.mean(dim=1) if self.regression == "mean" else squares.sum(dim=1)
        return self.weight * (contrast + regression).sum() / len(targets)

    def summarize(
        self,
        features: torch.Tensor,
        targets: torch.Tensor,
        classifier: Classifier,
        at: ClientContext,
    ) -> Vectors:
        """Return the client's prototypes."""
        prototypes, counts = compute_prototypes(features, targets, classifier.classes)
        return {"prototypes": prototypes, "counts": counts}

    def update_tensors(self, at: TensorContext) -> None:
        """Cluster the clients' prototypes of each class."""
        clusters = at.server_tensors["clusters"].zero_()
        prototypes = at.messages["prototypes"].double()
        counts = at.messages["counts"]
        for number in range(at.classifier.classes):
            points = prototypes[counts[:, number] > 0, number].numpy()
            labels = cluster_points(points)
            if len(labels) and labels.max() >= self.max_clusters:
                labels = np.zeros_like(labels)
            means = average_clusters(points, labels)
            clusters[number, : len(means)].copy_(torch.from_numpy(means))
            at.server_tensors["cluster_counts"][number] = len(means)


def cluster_points(points: Array) -> Labels:
    """Return the cluster of each point, by FINCH with cosines, as numbers from 0 on.

    It is the last partition with more than one cluster, or the first one.

    Args:
        points: `[n, dim]`.
    """
    if len(points) < 2:
        return np.zeros(len(points), dtype=np.int64)
    labels = link_first_neighbours(points)
    while labels.max() > 0:
        coarser = link_first_neighbours(average_clusters(points, labels))
        if coarser.max() == 0:
            break
        labels = coarser[labels]
    return labels


def link_first_neighbours(points: Array) -> Labels:
    """Return the connected components if each point is linked with its first neighbour."""
    # The first neighbour: the other point with the largest cosine.
    norms = np.linalg.norm(points, axis=1, keepdims=True)
    units = points / np.maximum(norms, _EPS)
    cosines = units @ units.T
    np.fill_diagonal(cosines, -np.inf)
    neighbours = cosines.argmax(axis=1)

    # Join components until nothing changes.
    labels = np.arange(len(points))
    for point, neighbour in enumerate(neighbours):
        old = labels[point]
        labels[labels == old] = labels[neighbour]
    return np.unique(labels, return_inverse=True)[1].reshape(-1)


def average_clusters(points: Array, labels: Labels) -> Array:
    """Return the mean of each cluster, `[clusters, dim]`."""
    count = int(labels.max()) + 1 if len(labels) else 0
    return np.array([points[labels == number].mean(axis=0) for number in range(count)]).reshape(
        count, points.shape[1]
    )
