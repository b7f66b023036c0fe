"""CReFF: the classifier is trained again at the server, on features that it invents.

Shang, Lu, Huang, Wang, "Federated Learning on Heterogeneous and Long-Tailed Data via Classifier
Re-training with Federated Features", IJCAI 2022.

Clients train as without CReFF, and the rule averages their models. Beside that, with psi the second
classifier that the server sends, f the features of the received model and l the cross-entropy:

    client   g_kc = mean of d l(psi, f_i, c) / d psi  over the client's samples of class c
    server   g_c  = mean of g_kc over the clients that have class c
             match      S_c <- S_c - match_lr d/dS_c sum of (1 - cos) between the rows of g_c and of
                        the gradient at S_c, `match_steps` times
             re-train   a new psi on all S_c, by SGD

S_c are the federated features of class c, as many for each class; they start as normal random
numbers and are kept between rounds. The bias of the gradients counts as one more row. The model to
evaluate is the average with psi as its classifier; clients continue from the average itself.

A client discloses which classes it has, but not how many samples of each.

The method follows the authors' code (main.py); of the paper, only the abstract was at hand, so where
the two disagree is not known. One thing differs from the code: there, g_kc is the mean over ten
random batches of at most 32 augmented samples; here it is the mean over all samples, without
augmentation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional

from steelyard.core import checks
from steelyard.core._registry import TERMS
from steelyard.core._side_channel import Classifier, Specs, TensorSpec
from steelyard.core._term import ClientContext, FeatureTerm, TensorContext, Vectors
from steelyard.core._weighting import Info

_EPS = 1e-6  # added to the product of norms in a cosine, as in the code


@TERMS.register
@dataclass(frozen=True)
class CReFF(FeatureTerm):
    """Re-trains the classifier on federated features whose gradients match those of clients.

    Attributes:
        features: number of federated features of each class.
        match_steps: gradient steps on the features in each round.
        match_lr: their learning rate.
        epochs: passes over the features when the classifier is trained.
        lr: learning rate of the classifier.
        batch_size: batch size of the classifier.
        classifier: the name of the last linear layer; empty to find it.
    """

    features: int = 100
    match_steps: int = 100
    match_lr: float = 0.1
    epochs: int = 300
    lr: float = 0.01
    batch_size: int = 32
    classifier: str = ""

    name = "creff"
    info = Info("re-trains the classifier on federated features", "Shang et al., IJCAI 2022")
    summarized_model = "received"

    def __post_init__(self) -> None:
        self.set_classifier_name()
        checks.integer("features", self.features, 1)
        checks.integer("match_steps", self.match_steps, 0)
        checks.number("match_lr", self.match_lr, 0.0, open_low=True)
        checks.integer("epochs", self.epochs, 1)
        checks.number("lr", self.lr, 0.0, open_low=True)
        checks.integer("batch_size", self.batch_size, 1)

    def client_tensors(self, classifier: Classifier) -> Specs:
        """The gradient of each class, and whether the client has the class (1 or 0)."""
        classes = classifier.classes
        return {
            "gradients": TensorSpec((classes, classes, classifier.dim + 1)),
            "has_class": TensorSpec((classes,), torch.int64),
        }

    def server_tensors(self, classifier: Classifier) -> Specs:
        """The federated features, the second classifier, and the number of updates."""
        shape = (classifier.classes, self.features, classifier.dim)
        return {
            "features": TensorSpec(shape, is_sent=False),
            "classifier": TensorSpec((classifier.classes, classifier.dim + 1)),
            "updates": TensorSpec((), torch.int64, is_sent=False),
        }

    def init_tensors(self, classifier: Classifier, rng: np.random.Generator) -> Vectors:
        """Return random features and a random classifier."""
        shape = (classifier.classes, self.features, classifier.dim)
        features = torch.from_numpy(rng.standard_normal(shape)).float()
        return {"features": features, "classifier": draw_classifier(classifier, rng)}

    def summarize(
        self,
        features: torch.Tensor,
        targets: torch.Tensor,
        classifier: Classifier,
        at: ClientContext,
    ) -> Vectors:
        """Return the mean gradient of the second classifier for each class."""
        shape = (classifier.classes, classifier.classes, classifier.dim + 1)
        gradients = torch.zeros(shape, dtype=torch.float32, device=features.device)
        has_class = torch.zeros(classifier.classes, dtype=torch.int64, device=features.device)
        for number in torch.unique(targets).tolist():
            own = add_ones(features[targets == number].float(), classifier.has_bias)
            gradients[number] = compute_gradients(own[None], at.tensors["classifier"], [number])[0]
            has_class[number] = 1
        return {"gradients": gradients, "has_class": has_class}

    def update_tensors(self, at: TensorContext) -> None:
        """Match the gradients of the clients, and train a new classifier."""
        features = at.server_tensors["features"]
        self._match_gradients(at, features)
        psi = self._train_classifier(at, features)
        at.server_tensors["classifier"].copy_(psi)
        at.server_tensors["updates"].add_(1)

    def _match_gradients(self, at: TensorContext, features: torch.Tensor) -> None:
        """Change the features of the classes that clients have, in place."""
        # The mean gradient of each class over the clients that have it.
        has_class = at.messages["has_class"].clamp(max=1).double()  # [K, classes]
        clients = has_class.sum(dim=0)
        classes = torch.nonzero(clients > 0).flatten().tolist()
        if not classes:
            return
        weighted = at.messages["gradients"].double() * has_class[:, :, None, None]
        means = weighted.sum(dim=0)[classes] / clients[classes, None, None]
        targets = means.float()  # [present classes, classes, dim + 1]

        # Gradient steps on all features of these classes.
        psi = at.server_tensors["classifier"]
        selected = features[classes].clone()
        for _ in range(self.match_steps):
            selected.requires_grad_()
            ones = add_ones(selected, at.classifier.has_bias)
            gradients = compute_gradients(ones, psi, classes)
            distance = compute_distance(targets, gradients, at.classifier.has_bias)
            (slope,) = torch.autograd.grad(distance, selected)
            selected = selected.detach() - self.match_lr * slope
        features[classes] = selected

    def _train_classifier(self, at: TensorContext, features: torch.Tensor) -> torch.Tensor:
        """Return a new classifier, trained on the features of all classes."""
        psi = draw_classifier(at.classifier, at.rng)
        samples = add_ones(features.flatten(0, 1), at.classifier.has_bias)
        labels = torch.arange(at.classifier.classes).repeat_interleave(self.features)
        onehot = functional.one_hot(labels, at.classifier.classes).to(samples.dtype)
        for _ in range(self.epochs):
            order = torch.from_numpy(at.rng.permutation(len(samples)))
            for batch in torch.split(order, self.batch_size):
                inputs = samples[batch]
                errors = (inputs @ psi.T).softmax(dim=1) - onehot[batch]
                psi -= self.lr / len(batch) * (errors.T @ inputs)
        return psi

    def classifier_to_evaluate(self, server_tensors: Vectors) -> torch.Tensor | None:
        """Return the second classifier, once it was trained."""
        return server_tensors["classifier"] if int(server_tensors["updates"]) else None


def draw_classifier(classifier: Classifier, rng: np.random.Generator) -> torch.Tensor:
    """Return a random classifier `[classes, dim + 1]`, distributed as a new `nn.Linear`.

    The last column is the bias; it is zero if the network's classifier has none.
    """
    bound = 1 / np.sqrt(classifier.dim)
    values = rng.uniform(-bound, bound, (classifier.classes, classifier.dim + 1))
    if not classifier.has_bias:
        values[:, -1] = 0.0
    return torch.from_numpy(values).float()


def add_ones(features: torch.Tensor, has_bias: bool) -> torch.Tensor:
    """Return features with a last column of ones, or of zeros if the classifier has no bias."""
    column = torch.full_like(features[..., :1], 1.0 if has_bias else 0.0)
    return torch.cat([features, column], dim=-1)


def compute_gradients(
    features: torch.Tensor, psi: torch.Tensor, classes: list[int]
) -> torch.Tensor:
    """Return the gradient of the mean cross-entropy by the classifier, for some classes.

    Args:
        features: the features of each class, with the column of `add_ones`, `[G, n, dim + 1]`.
        psi: the classifier, `[classes, dim + 1]`.
        classes: the class of each group of features, G numbers.

    Returns:
        `[G, classes, dim + 1]`.
    """
    errors = (features @ psi.T).softmax(dim=2)
    onehot = functional.one_hot(torch.tensor(classes), len(psi)).to(errors)
    errors = errors - onehot[:, None]
    return errors.transpose(1, 2) @ features / features.shape[1]


def compute_distance(
    targets: torch.Tensor, gradients: torch.Tensor, has_bias: bool
) -> torch.Tensor:
    """Return the sum over classes and rows of `1 - cos`; the bias is one more row of each class."""
    distance = _sum_cosine_distances(targets[..., :-1], gradients[..., :-1])
    if has_bias:
        distance = distance + _sum_cosine_distances(targets[..., -1], gradients[..., -1])
    return distance


def _sum_cosine_distances(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the sum of `1 - cos` over all vectors, which are the last axis."""
    norms = torch.linalg.vector_norm(a, dim=-1) * torch.linalg.vector_norm(b, dim=-1)
    distances: torch.Tensor = 1 - (a * b).sum(dim=-1) / (norms + _EPS)
    return distances.sum()
