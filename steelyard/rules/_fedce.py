"""FedCE: weigh clients by their estimated contribution.

Jiang, Roth, Li, Yang, Zhao, Nath, Xu, Dou, Xu, "Fair Federated Medical Image Segmentation via Client
Contribution Estimation", CVPR 2023. The equations are those of NVFlare 2.9 (`nvflare.app_opt.pt.
fedce`, by the same group), where w is the weight of the last round, and equal in the first one:

    cos_k   = cos(d_k, sum_{j != k} w_j d_j)
    mean_k  = the mean of cos_k over the rounds of client k
    a_k     = normalised max(0, 1 - mean_k)                the gradient space: new directions count
    error_k = the error on client k's data of the model without client k
    b_k     = normalised mean of error_k over the rounds of client k              the data space
    w_k     = normalised a_k + b_k (`plus`) or a_k b_k (`times`)

`normalised` raises each number to at least `eps` and divides by the sum. A client that was never
seen before has the weight `1 / (number of known clients + 1)` in the sum of cos_k.

Clients report error_k as `error_without`: with its model theta_k of its last round and its weight
w_k in that round, which the server sends, client k evaluates `(theta - w_k theta_k) / (1 - w_k)` on
its validation part, or on all its data if it has none. In its first round the error is 1. The model
is the one without client k if the weights sum to 1, the server takes the weighted mean as it is,
and the client took part in the round before. `score=None` uses the gradient space alone, `w = a`:
this is half of FedCE, for clients that cannot report the error.

Differences from NVFlare: only parameters are used, without BatchNorm statistics; clients report the
error of the round, of which the rule takes the mean, while NVFlare's clients report the mean; a
client with a negative error is quarantined, and not raised to `eps`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steelyard.core import checks
from steelyard.core._errors import RefusedReports, SteelyardError, shorten
from steelyard.core._gram import Array
from steelyard.core._mixture import Mixture
from steelyard.core._needs import Needs
from steelyard.core._registry import RULES
from steelyard.core._state import State, gather, scatter
from steelyard.core._view import View
from steelyard.core._weighting import Info, Weighting


@RULES.register
@dataclass(frozen=True)
class FedCE(Weighting):
    """Weights by how much a client's updates differ from the others', and by its own score.

    Attributes:
        score: name of the reported number for the data space: more of it is more contribution.
            None leaves the data space out.
        mode: how the two spaces are combined, `plus` or `times`.
        eps: lower limit of the numbers before they are divided by their sum.

    Examples:
        Two clients agree, and the third one, which differs, gets the greatest weight.

        >>> import torch
        >>> import steelyard
        >>> clients = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
        >>> errors = {"error_without": [0.2, 0.2, 0.2]}
        >>> out = steelyard.aggregate("fedce", torch.zeros(2), clients, metrics=errors)
        >>> [round(weight, 3) for weight in out.weights.tolist()]
        [0.259, 0.259, 0.482]
    """

    score: str | None = "error_without"
    mode: str = "plus"
    eps: float = 1e-6

    name = "fedce"
    modifies = False
    info = Info(
        "weighs clients by what the model would miss without them",
        "Jiang et al., CVPR 2023",
        secagg="yes, in two passes: the sum is sent to clients, each computes its own cosine",
    )

    def __post_init__(self) -> None:
        is_name = isinstance(self.score, str) and self.score
        if self.score is not None and not is_name:
            raise SteelyardError(
                f"score={shorten(self.score)}: use the name of a number that clients report, or "
                f"leave it out"
            )
        checks.one_of("mode", self.mode, "plus", "times")
        checks.number("eps", self.eps, 0.0, 1.0, open_low=True)

    @property
    def needs(self) -> Needs:
        """The Gram, for cosines, and the score if there is one."""
        names = () if self.score is None else (self.score,)
        return Needs.of(*names, gram=True)

    @property
    def remarks(self) -> tuple[str, ...]:
        """Which half is missing, if one is."""
        if self.score is not None:
            return ()
        return (
            "score=none is half of FedCE: the error of the model without the client does not count",
        )

    def apply(self, prior: Mixture, view: View, state: State) -> tuple[Mixture, State]:
        """Compute the contributions and remember the weights and the mean cosines."""
        # Cosines to the others, with the weights of the last round.
        gram = view.gram
        count = len(view.ids)
        weights = state.get("weights", {})
        unseen = 1 / (len(weights) + 1) if weights else 1 / count
        last = gather(weights, view.ids, np.full((len(gram.dots), count), unseen))
        cosine = gram.cosines_to_others(last)

        # Their means over the rounds of each client.
        means = state.get("cosines", {})
        rounds = state.get("rounds", {})
        before = gather(means, view.ids, np.zeros_like(cosine))
        number = gather(rounds, view.ids, np.zeros((1, count))) + 1
        mean = before + (cosine - before) / number

        # Contributions.
        shares = normalize(np.maximum(1 - mean, 0.0), self.eps)
        after = {
            "cosines": scatter(means, view.ids, mean),
            "rounds": scatter(rounds, view.ids, number),
        }
        if self.score is not None:
            mean_scores = state.get("scores", {})
            score = self._read_scores(view)
            before = gather(mean_scores, view.ids, np.zeros_like(score))
            score = before + (score - before) / number
            after["scores"] = scatter(mean_scores, view.ids, score)
            data_shares = normalize(score, self.eps)
            combined = shares + data_shares if self.mode == "plus" else shares * data_shares
            shares = normalize(combined, self.eps)
        after["weights"] = scatter(weights, view.ids, shares)
        return Mixture.convex(shares), after

    def _read_scores(self, view: View) -> Array:
        """Return the scores that clients reported, `[1, K]`."""
        assert self.score is not None
        scores = view.metric(self.score)
        if scores.ndim != 1:
            raise SteelyardError(
                f"score={self.score!r}: clients report a list: use a metric that is one number"
            )
        negative = np.flatnonzero(scores < 0)
        if negative.size:
            raise RefusedReports(
                {view.ids[k]: f"negative {self.score}={scores[k]:g}" for k in negative}
            )
        return scores[None, :]


def normalize(values: Array, eps: float) -> Array:
    """Return the values, at least `eps` each, divided by their sum over clients."""
    raised = np.maximum(values, eps)
    shares: Array = raised / raised.sum(axis=1, keepdims=True)
    return shares
