"""FedProto: features are pulled to the global prototype of their class.

Tan, Long, Liu, Zhou, Lu, Jiang, Zhang, "FedProto: Federated Prototype Learning across Heterogeneous
Clients", AAAI 2022.

The prototype of a class at a client is the mean of its features. With P_y the global prototype of
class y, f the features and n the size of a batch:

    loss     + weight * 1/n sum_i |f_i - P_{y_i}|^2 / dim
    server   P_c = sum_k n_kc P_kc / sum_k n_kc

A class that no client of the last round has gets no pull; neither does any class in round 1.

In the paper, clients exchange only prototypes and keep their own models. Here the rule averages the
models, too, as in the code with which FPL's authors compare the two, and as in Table 7 of the
FedAWA paper. Where paper and code differ (the code was read, lib/update.py and lib/utils.py; what is
said of the paper is from memory and was not compared with its text):

* The paper's loss is a distance between the local and the global prototype; the code's is the mean
  squared error of each sample's features, as above.
* The paper weights prototypes by the number of samples (`average=counts`); in the code, each client
  that has the class has the same weight (`average=clients`).
* In the code, a client's prototypes are means over its last epoch, while the model still changes.
  Here they are computed with the trained model, in evaluation mode.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from steelyard.client._features import compute_prototypes
from steelyard.core import checks
from steelyard.core._registry import TERMS
from steelyard.core._side_channel import Classifier, Specs, TensorSpec
from steelyard.core._term import ClientContext, FeatureTerm, TensorContext, Vectors
from steelyard.core._weighting import Info


@TERMS.register
@dataclass(frozen=True)
class FedProto(FeatureTerm):
    """The mean squared distance of features to the global prototype of their class.

    Attributes:
        weight: lambda, the weight of the distance.
        average: the weights of clients in a prototype: `counts` (samples of the class) or `clients`
            (equal weights).
        classifier: the name of the last linear layer; empty to find it.
    """

    weight: float = 1.0
    average: str = "counts"
    classifier: str = ""

    name = "fedproto"
    info = Info("pulls features to the prototype of their class", "Tan et al., AAAI 2022")

    def __post_init__(self) -> None:
        self.set_classifier_name()
        checks.number("weight", self.weight, 0.0)
        checks.one_of("average", self.average, "counts", "clients")

    def client_tensors(self, classifier: Classifier) -> Specs:
        """The mean feature of each class, and the number of its samples."""
        return _declare_prototypes(classifier)

    def server_tensors(self, classifier: Classifier) -> Specs:
        """The global prototypes, and the number of samples behind each."""
        return _declare_prototypes(classifier)

    def loss(
        self,
        features: torch.Tensor,
        outputs: torch.Tensor,
        targets: torch.Tensor,
        at: ClientContext,
    ) -> torch.Tensor:
        """Return the weighted mean squared distance to the prototypes."""
        prototypes = at.tensors["prototypes"].to(features.dtype)
        has_prototype = at.tensors["counts"][targets] > 0
        distances = (features - prototypes[targets]).square().mean(dim=1)
        return self.weight * torch.where(has_prototype, distances, 0.0).mean()

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
        """Average the clients' prototypes of each class."""
        counts = at.messages["counts"]  # [K, classes]
        shares = counts.double()
        if self.average == "clients":
            shares = (counts > 0).double()
        totals = shares.sum(dim=0).clamp(min=1)
        sums = (shares[:, :, None] * at.messages["prototypes"]).sum(dim=0)
        at.server_tensors["prototypes"].copy_(sums / totals[:, None])
        at.server_tensors["counts"].copy_(counts.sum(dim=0))


def _declare_prototypes(classifier: Classifier) -> Specs:
    """Return the declarations of prototypes and counts."""
    return {
        "prototypes": TensorSpec((classifier.classes, classifier.dim)),
        "counts": TensorSpec((classifier.classes,), torch.int64),
    }
