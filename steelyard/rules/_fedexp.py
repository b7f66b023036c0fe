"""FedExP: a server step size from the lengths of the updates.

Jhunjhunwala, Wang, Joshi, "FedExP: Speeding Up Federated Averaging via Extrapolation", ICLR 2023.

    eta = max(1, sum_k |d_k|^2 / (2 M (|d|^2 + eps))) ,  d = (1/M) sum_k d_k ,  theta' = theta + eta d

The less the M updates of a round agree, the shorter is their mean, and the larger is eta. With a
prior p, `d = sum_k p_k d_k` and the sum is `M sum_k p_k |d_k|^2`: `uniform|fedexp` is the paper's
formula, and `fedexp` alone weighs by number of examples, as the authors' code does.

The code differs from the paper in eps: it adds `M eps`, not eps, to the square of the mean's norm
(`preset="official"`). Both are absolute numbers: their effect depends on the size of the updates.
The code uses 0.001 for CIFAR and CINIC, and 0.1 for EMNIST.

The authors evaluate the mean of the last two models, because the steps are long. That is not part
of this rule: clients continue from the last model in the code, too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from steelyard.core import checks
from steelyard.core._gram import Array, Gram
from steelyard.core._mixture import Mixture
from steelyard.core._needs import Needs
from steelyard.core._registry import RULES
from steelyard.core._state import State
from steelyard.core._view import View
from steelyard.core._weighting import Info, Weighting


@RULES.register
@dataclass(frozen=True)
class FedExP(Weighting):
    """The prior's step, multiplied by FedExP's step size, which is at least 1.

    The weights sum to the step size; the clients' shares are the prior's.

    Attributes:
        eps: the number that keeps the step size small where the mean is short.
        preset: `paper`, or `official`, where eps is multiplied by the number of clients.

    Examples:
        Two clients at a right angle: the squares sum to 2, the mean's is 1/2.

        >>> import torch
        >>> import steelyard
        >>> out = steelyard.aggregate("uniform|fedexp:eps=0.1", torch.zeros(2), torch.eye(2))
        >>> round(out.weights.sum().item(), 4)  # max(1, 2 / (2 * 2 * (0.5 + 0.1)))
        1.0
        >>> out = steelyard.aggregate("uniform|fedexp:eps=0.1", torch.zeros(8), torch.eye(8))
        >>> round(out.weights.sum().item(), 4)  # 8 / (2 * 8 * (1/8 + 0.1))
        2.2222
    """

    eps: float = 1e-3
    preset: str = "paper"

    name = "fedexp"
    modifies = True
    info = Info(
        "multiplies the step by the extrapolation of the updates",
        "Jhunjhunwala et al., ICLR 2023",
        secagg="yes: one secure sum of [d_k, |d_k|^2]",
        dp="only with the sum of the squared norms noised too",
    )

    def __post_init__(self) -> None:
        checks.number("eps", self.eps, 0.0)
        checks.one_of("preset", self.preset, "paper", "official")

    @property
    def needs(self) -> Needs:
        """The Gram, for the norms of the updates and of their mean."""
        return Needs.of(gram=True)

    def apply(self, prior: Mixture, view: View, state: State) -> tuple[Mixture, State]:
        """Multiply the prior's weights by the step size."""
        eps = self.eps * len(view.ids) if self.preset == "official" else self.eps
        step_size = compute_step_size(view.gram, prior.shares, eps)
        return replace(prior, weights=prior.weights * step_size[:, None]), state


def compute_step_size(gram: Gram, shares: Array, eps: float) -> Array:
    """Return `max(1, sum_k p_k |d_k|^2 / (2 (|sum_k p_k d_k|^2 + eps)))`, `[g]`.

    It is 1 where the denominator is zero.
    """
    squares = (shares * gram.sq_norms).sum(axis=1)
    bound = 2 * (gram.mixture_sq_norm(shares) + eps)
    ratio = np.divide(squares, bound, out=np.zeros_like(squares), where=bound > 0)
    step_size: Array = np.maximum(ratio, 1.0)
    return step_size
