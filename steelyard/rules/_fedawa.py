"""FedAWA: optimise the weights from client vectors, without proxy data.

Shi, Zhao, Zhang, Zhou, Guo, Chang, "FedAWA: Adaptive Optimization of Aggregation Weights in
Federated Learning Using Client Vectors", CVPR 2025.

    tau_k = theta_k - theta_g ,  tau_g = sum_k lambda_k tau_k                                      (1)
    lambda = argmin sum_k lambda_k |tau_k - tau_g|_2 + d(sum_k lambda_k theta_k, theta_g)          (3)
    FedAWA-L: the same per layer                                                                   (4)

with lambda = softmax(T), T kept across rounds, d = 1 - cosine. Where the authors' code differs from
their paper, there is an option, and a preset sets all of them:

    option    paper               official            the difference
    init      "log": log n_k      "raw": n_k / n      the softmax of raw fractions is nearly
                                                      uniform, so that sizes have little effect;
                                                      n counts the examples of all clients,
                                                      sampled or not
    penalty   "model": d of the   "clients":          Eq. (3) uses the aggregated model, the code
              aggregated model    sum lambda_k d_k    the mean over clients
    euclidean "l2"                "mse"               for distance="euc" the code takes a mean
                                                      square, which is about 0
    weights   "after" the steps   "before" the last   the code's step only takes effect in the
                                                      next round
    travel    1.5                 none                see below

Neither specifies the number of steps (the code's default is 1). Both create a new optimizer every
round: Adam, betas (0.5, 0.999), learning rate 0.001, so that a first step moves every logit by
0.001 whatever its gradient; or SGD, learning rate 0.01, momentum 0.9, weight decay 5e-4. `gamma` is
the code's factor on the whole state dict.

The literal argmin is degenerate: at any vertex lambda = e_k the first term is zero, so a long
optimisation puts all weight on one client, and most easily on a free-rider that returns the model
unchanged. The method works because the minimum is not reached: steps x lr is its real parameter.
`travel` limits how far a logit may move from its first value, so that the odds between two clients
never change by more than exp(2 travel). The code keeps T by position in the cohort; here logits
belong to client ids, and a new client starts at the prior's odds.

The n of `init="raw"` is that of the whole population, as in the code. A simulated run knows it;
elsewhere (`aggregate`, Flower, a merge) set the option `population_examples`. Without it, n is that
of the cohort: the same if all clients take part; if clients are sampled, logits are further apart
than in the code.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import numpy as np

from steelyard.core import checks
from steelyard.core._errors import SteelyardError
from steelyard.core._gram import Array, Gram
from steelyard.core._layout import Granularity
from steelyard.core._mixture import Mixture
from steelyard.core._needs import Needs
from steelyard.core._registry import RULES, UNSET, fill
from steelyard.core._state import State, gather, has_rows, scatter
from steelyard.core._view import View
from steelyard.core._weighting import Info, Weighting
from steelyard.rules._combinators import PerLayer
from steelyard.rules._modifiers import Shrink
from steelyard.rules._optim import adam, sgd, softmax

_PRESETS: dict[str, dict[str, Any]] = {
    "paper": {
        "init": "log",
        "penalty": "model",
        "euclidean": "l2",
        "weights": "after",
        "travel": 1.5,
    },
    "official": {
        "init": "raw",
        "penalty": "clients",
        "euclidean": "mse",
        "weights": "before",
        "travel": None,
    },
}
_EPS = 1e-8  # torch's lower limit for the norms in a cosine

_INFO = Info(
    "optimises weights towards the mixture of client vectors",
    "Shi et al., CVPR 2025",
    secagg="yes in principle: each step needs two secure sums of vectors",
)


@RULES.register
@dataclass(frozen=True)
class FedAWA(Weighting):
    """A few optimizer steps on Eq. (3), computed from the Gram: microseconds for any model size.

    Attributes:
        preset: `paper` or `official`; the defaults of the options below.
        steps: optimizer steps per round.
        lr: learning rate of the optimizer.
        optimizer: `adam` or `sgd`.
        distance: d in Eq. (3): `cos`, `euc` or `none`.
        init: initial logits: `log` n_k or `raw` fractions.
        penalty: d of the aggregated `model`, or the mean of d over `clients`.
        euclidean: `l2` or `mse`, for `distance="euc"`.
        weights: use the weights `after` the last step or `before` it.
        travel: how far a logit may move from its first value, over all rounds; None for no limit.
        gamma: factor on the whole state dict.
        population_examples: number of examples of all clients, for `init="raw"`; by default that of
            the run if known, otherwise that of the cohort.
    """

    preset: str = "paper"
    steps: int = 1
    lr: float = UNSET
    optimizer: str = "adam"
    distance: str = "cos"
    init: str = UNSET
    penalty: str = UNSET
    euclidean: str = UNSET
    weights: str = UNSET
    travel: float | None = UNSET
    gamma: float = 1.0
    population_examples: int | None = None

    name = "fedawa"
    modifies = True
    info = _INFO

    def __post_init__(self) -> None:
        checks.one_of("preset", self.preset, *_PRESETS)
        defaults = {**_PRESETS[self.preset], "lr": 0.001 if self.optimizer == "adam" else 0.01}
        fill(self, defaults)
        checks.integer("steps", self.steps, 1)
        checks.number("lr", self.lr, 0.0, open_low=True)
        checks.one_of("optimizer", self.optimizer, "adam", "sgd")
        checks.one_of("distance", self.distance, "cos", "euc", "none")
        checks.one_of("init", self.init, "log", "raw")
        checks.one_of("penalty", self.penalty, "model", "clients")
        checks.one_of("euclidean", self.euclidean, "l2", "mse")
        checks.one_of("weights", self.weights, "after", "before")
        checks.number("gamma", self.gamma, 0.0, open_low=True)
        if self.travel is not None:
            checks.number("travel", self.travel, 0.0, open_low=True)
        if self.population_examples is not None:
            checks.integer("population_examples", self.population_examples, 1)
            if self.init != "raw":
                raise SteelyardError(
                    f"population_examples={self.population_examples}: only init=raw "
                    f"(preset=official) uses it, but init is {self.init}: leave it out"
                )

    @property
    def needs(self) -> Needs:
        """Inner products between updates, and with the global model."""
        return Needs.of(gram=True)

    def apply(self, prior: Mixture, view: View, state: State) -> tuple[Mixture, State]:
        """Run `steps` optimizer steps on the logits of this round's clients."""
        # Logits of this round's clients: from earlier rounds, or initial ones.
        gram = view.gram
        table = state.get("logits", {})
        origins = state.get("origin", {})
        shares = np.broadcast_to(prior.shares, (gram.dots.shape[0], len(view.ids)))
        if self.init == "raw":
            initial = shares * view.cohort_share(self.population_examples)
        else:
            initial = _initial_logits(shares, table, view)
        logits = gather(table, view.ids, initial)  # [g, K]
        origin = gather(origins, view.ids, logits)

        # Optimizer steps.
        step = adam() if self.optimizer == "adam" else sgd(decay=5e-4)
        for _ in range(self.steps):
            shares = softmax(logits)
            slope = self._gradient(gram, shares)  # d objective / d lambda
            gradient = shares * (slope - (shares * slope).sum(axis=1, keepdims=True))
            logits = step(logits, gradient, self.lr)
            if self.travel is not None:
                logits = np.clip(logits, origin - self.travel, origin + self.travel)

        # State for the next round.
        after = {"logits": scatter(table, view.ids, logits)}
        if self.travel is not None:
            after["origin"] = scatter(origins, view.ids, origin)

        # Mixture.
        mixture = prior.reweight(softmax(logits) if self.weights == "after" else shares)
        if self.gamma != 1.0:
            mixture, _ = Shrink(self.gamma, stats=True).apply(mixture, view, {})
        return mixture, after

    def _gradient(self, gram: Gram, shares: Array) -> Array:
        """Return the derivative of Eq. (3) with respect to lambda, `[g, K]`."""
        distance = np.sqrt(gram.sq_distances_to(shares))  # |tau_k - tau_g|
        pull = np.divide(shares, distance, out=np.zeros_like(shares), where=distance > 0)
        slope: Array = distance - gram.apply(pull - pull.sum(axis=1, keepdims=True) * shares)
        return slope + self._penalty_gradient(gram, shares)

    def _penalty_gradient(self, gram: Gram, shares: Array) -> Array | float:
        """Return the derivative of the second term of Eq. (3) with respect to lambda, `[g, K]`."""
        # The penalty is a mean over clients: its derivative is each client's distance.
        if self.distance == "none":
            return 0.0
        if self.penalty == "clients":
            if self.distance == "cos":
                return 1 - gram.model_cosines(_EPS)
            if self.euclidean == "mse":
                return gram.sq_norms / gram.dims[:, None]
            return gram.norms

        # Euclidean distance of the aggregated model.
        dots = gram.apply(shares)
        square = (shares * dots).sum(axis=1, keepdims=True)  # |tau_g|^2
        if self.distance == "euc":
            if self.euclidean == "mse":
                return 2 * dots / gram.dims[:, None]
            slope: Array = dots / np.sqrt(np.maximum(square, _EPS**2))
            return slope

        # Cosine distance of the aggregated model.
        theta = gram.theta_sq[:, None]
        along = (shares * gram.theta_dots).sum(axis=1, keepdims=True)  # <theta_g, tau_g>
        length = np.maximum(theta + 2 * along + square, _EPS**2)  # |theta_g + tau_g|^2
        scale = np.maximum(np.sqrt(theta), _EPS) * np.sqrt(length)
        toward = (theta + along) * (gram.theta_dots + dots) / (scale * length)
        cosine_slope: Array = gram.theta_dots / scale - toward
        return -cosine_slope


def _initial_logits(prior: Array, table: Any, view: View) -> Array:
    """Return logits for new clients, at the prior's odds to the clients that have logits."""
    logits: Array = np.log(np.maximum(prior, np.finfo(np.float64).tiny))
    has_logits = has_rows(table, view.ids)
    if has_logits.any():
        change = gather(table, view.ids, logits) - logits
        logits = logits + change[:, has_logits].mean(axis=1, keepdims=True)
    return logits


def fedawa_l(layers: Granularity = "tensor", **options: Any) -> Weighting:
    """Return FedAWA-L, Eq. (4): `per_layer(fedawa(**options), layers)`.

    Args:
        layers: what a layer is, which the paper does not define: "tensor", "module", sizes or name
            patterns.
        **options: options of `fedawa`.
    """
    return PerLayer(FedAWA(**options), layers)


fedawa_l.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [
        inspect.Parameter(
            "layers", inspect.Parameter.KEYWORD_ONLY, default="tensor", annotation="Granularity"
        ),
        *(p.replace(kind=p.KEYWORD_ONLY) for p in inspect.signature(FedAWA).parameters.values()),
    ]
)
RULES.alias(
    "fedawa_l", Info("FedAWA layer by layer", _INFO.paper, _INFO.secagg, _INFO.dp), fedawa_l
)


@RULES.register
@dataclass(frozen=True)
class FedAWACos(Weighting):
    """FedAWA-COS, the paper's ablation (Table 4): weights directly from `cos(tau_k, tau_g)`.

    The paper states neither lambda in `tau_g` nor the normalisation. Here `tau_g` uses the prior.

    Attributes:
        normalize: `sum` sets negative cosines to zero and divides by the sum; `softmax` takes the
            softmax.
    """

    normalize: str = "sum"

    name = "fedawa_cos"
    modifies = True
    info = Info(
        "weights from cosines to the mean update",
        "Shi et al., CVPR 2025",
        "yes, in two passes, as fedadp",
    )

    def __post_init__(self) -> None:
        checks.one_of("normalize", self.normalize, "sum", "softmax")

    @property
    def needs(self) -> Needs:
        """The Gram, for cosines."""
        return Needs.of(gram=True)

    def apply(self, prior: Mixture, view: View, state: State) -> tuple[Mixture, State]:
        """Return weights from cosines; the prior's where no cosine is positive."""
        cosines = view.gram.cosines_to(prior.shares)
        if self.normalize == "softmax":
            return prior.reweight(softmax(cosines)), state
        positive = np.maximum(cosines, 0.0)
        total = positive.sum(axis=1, keepdims=True)
        return prior.reweight(np.where(total > 0, positive, prior.shares)), state
