"""FedLAW: learn weights and a shrinking factor on proxy data.

Li et al., "Revisiting Weighted Aggregation in Federated Learning with Neural Networks", ICML 2023.

The server learns a shrinking factor and aggregation weights on a small proxy set:

    gamma*, lambda* = argmin L_proxy(gamma sum_k lambda_k theta_k),
                      gamma > 0, lambda_k >= 0, |lambda|_1 = 1                              (8), (9)

    gws      learns gamma, lambda is the prior     adaptive global weight shrinking, section 4
    law      learns lambda, gamma is 1             attentive learnable aggregation weights, section 5
    fedlaw   learns both together                  Algorithm 1

lambda is the softmax of logits x (`function="exp"`, gamma = exp g) or x^2 divided by its sum
(`"quad"`, gamma = g^2). With theta_k = theta + d_k the mixed model is `gamma theta + sum_k gamma
lambda_k d_k`, so the weights on updates are `gamma lambda_k` and the base is `gamma`. gamma scales
all parameters, including those of BatchNorm, but no statistics.

The global learning rate eta of Eq. (2) and (4) is inside the shrinking, `gamma (theta + eta sum_k
lambda_k d_k)`, and gamma and lambda are learned at that point (Table 10): option `global_lr`, or
`server="sgd:lr=..."`, which has the same effect. Other server optimizers act inside the shrinking,
too, but gamma and lambda are learned before their step.

Where the authors' code adds to the paper or differs from it, there is an option. The presets differ
in

              paper               official
    epochs    100                 20
    init      "prior"             "prior" for exp; for quad "uniform", unlike Algorithm 1, line 10

Both use a new Adam with betas (0.5, 0.999) every round, learning rate `lr` (not stated in any
paper: in the code 0.01 for CIFAR-10, 0.005 for all other data), halved every 20 epochs (`halve`,
only in the code), and the weights after the last step. With one batch per epoch, 100 epochs move
log gamma by about 0.39 at most: the argmin is a short, bounded search.

The method does not limit the product of gammas over rounds, and users report collapses. `floor`
does: gamma is raised where the product would fall below it. The report always has the product
(`gamma_product`) and `gamma_bounded`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from steelyard.core import checks
from steelyard.core._errors import NonFiniteLoss, SteelyardError
from steelyard.core._gram import Array
from steelyard.core._mixture import Mixture
from steelyard.core._needs import Needs
from steelyard.core._registry import RULES, UNSET, fill
from steelyard.core._round_report import coherence
from steelyard.core._state import ClientId, State
from steelyard.core._view import View
from steelyard.core._weighting import Info, Weighting
from steelyard.rules._optim import Step, adam, sgd, softmax

# The server's training curves within one round, as in FedLAW's Fig. 14.

MAX_POINTS = 25  # recorded epochs per round


class Curves:
    """Loss, gamma and lambda after each epoch over the proxy data."""

    def __init__(self) -> None:
        self.points: list[tuple[float, float, Array]] = []

    def add(self, loss: float, gamma: float, shares: Array) -> None:
        """Add the values after one epoch."""
        self.points.append((loss, gamma, shares))

    def thin_out(self, ids: Sequence[ClientId]) -> dict[str, Any]:
        """Return `epoch`, `loss`, `gamma` and, by client, `lambda`.

        At most 25 epochs are returned, including the first and the last.
        """
        # Select epochs at equal distances.
        count = min(MAX_POINTS, len(self.points))
        epochs = np.unique(np.linspace(0, len(self.points) - 1, count).round().astype(int))
        points = [self.points[epoch] for epoch in epochs]

        # One list per curve.
        lambdas = {}
        for k, client in enumerate(ids):
            lambdas[client] = [_round_digits(shares[k]) for _, _, shares in points]
        return {
            "epoch": (epochs + 1).tolist(),
            "loss": [_round_digits(loss) for loss, _, _ in points],
            "gamma": [_round_digits(gamma) for _, gamma, _ in points],
            "lambda": lambdas,
        }


def _round_digits(value: float) -> float:
    """Return the value with five digits: enough for a plot, and a third of the size."""
    return float(f"{value:.5g}")


BETAS = (0.5, 0.999)
EPOCHS = {"paper": 100, "official": 20}
_PAPER = "Li et al., ICML 2023"
_SECAGG = "yes in principle: each step needs two secure sums of vectors"


@RULES.register
@dataclass(frozen=True)
class FedLAW(Weighting):
    """Learns gamma and lambda on the server's proxy data.

    Attributes:
        preset: `paper` or `official`.
        epochs: passes over the proxy data.
        lr: learning rate of the first epochs.
        optimizer: `adam` or `sgd` (momentum 0.9).
        betas: decay rates of adam.
        function: `exp` or `quad`.
        init: initial lambda: the `prior` or `uniform`.
        halve: number of epochs after which the learning rate is halved each time; 0 for never.
        learn: `both`, `gamma` (the same as `gws`) or `lambda` (the same as `law`).
        critical: for `law` only: as soon as coherence (Def. 5.1) is at most this number, the prior
            is used from then on ("early-stopped", Fig. 5). The paper calls the round in which
            coherence is near zero the critical point, without a number: try 0.
        floor: lower limit of the product of all gammas so far.
        trace: whether to report the server's training curves (Fig. 14), at most 25 epochs, as
            `trace`.
        global_lr: learning rate on the aggregated step, inside the shrinking (eta in Eq. 4).
    """

    preset: str = "paper"
    epochs: int = UNSET
    lr: float = 0.01
    optimizer: str = "adam"
    betas: tuple[float, float] = BETAS
    function: str = "exp"
    init: str = UNSET
    halve: int = 20
    learn: str = "both"
    critical: float | None = None
    floor: float | None = None
    trace: bool = False
    global_lr: float = 1.0

    name = "fedlaw"
    modifies = True
    info = Info("learns weights and a shrinking factor on proxy data", _PAPER, _SECAGG)

    def __post_init__(self) -> None:
        checks.one_of("preset", self.preset, *EPOCHS)
        checks.one_of("function", self.function, "exp", "quad")
        fill(
            self, {"epochs": EPOCHS[self.preset], "init": default_init(self.preset, self.function)}
        )
        checks.integer("epochs", self.epochs, 1)
        checks.number("lr", self.lr, 0.0, open_low=True)
        check_optimizer(self.optimizer, self.betas)
        checks.one_of("init", self.init, "prior", "uniform")
        checks.integer("halve", self.halve)
        checks.one_of("learn", self.learn, "both", "gamma", "lambda")
        if self.critical is not None:
            checks.number("critical", self.critical, -1.0, 1.0)
            if self.learn != "lambda":
                raise SteelyardError(
                    f"critical={self.critical}: only law stops early: use law, or leave critical "
                    f"out"
                )
        if self.floor is not None:
            checks.number("floor", self.floor, 0.0, 1.0, open_low=True)
        checks.one_of("trace", self.trace, True, False)
        checks.number("global_lr", self.global_lr, 0.0, open_low=True)

    @property
    def needs(self) -> Needs:
        """The proxy loss, and the Gram if `critical` is set."""
        return Needs(probe=True, gram=self.critical is not None)

    @property
    def reach(self) -> float:
        """How far a logit can move with one batch per epoch: about the sum of learning rates."""
        return sum(rate(self.lr, epoch, self.halve) for epoch in range(self.epochs))

    @property
    def remarks(self) -> tuple[str, ...]:
        """The range of gamma."""
        if self.learn == "lambda":
            return ()
        return (describe_range(self.reach, self.floor),)

    def apply(self, prior: Mixture, view: View, state: State) -> tuple[Mixture, State]:
        """Learn gamma, lambda or both in `epochs` passes over the proxy data."""
        # After the critical point, return the prior.
        prior = prior.scale_step(self.global_lr)
        if self.critical is not None:
            state = {"passed": False, **state}
            if state["passed"] or coherence(view.whole_gram, prior.shares[0]) <= self.critical:
                mixture = prior.add_report(law="past the critical point: the prior passes")
                return mixture, {**state, "passed": True}

        # Learn gamma, lambda or both.
        point = Point.at(prior.shares[0], self.function, self.init)
        learn_lambda = self.learn != "gamma"
        learn_gamma = self.learn != "lambda"
        curves = Curves()
        point = minimize_proxy_loss(
            view,
            prior,
            point,
            self.epochs,
            lambda epoch: rate(self.lr, epoch, self.halve),
            optimizer(self.optimizer, self.betas),
            learn_lambda,
            learn_gamma,
            lambda _, reached, loss: curves.add(loss, reached.gamma, reached.shares),
        )

        # Build the mixture.
        shares = point.shares if learn_lambda else prior.shares[0]
        mixture, after = finish_mixture(prior, shares, point.gamma, self.floor, view, state)
        if self.trace:
            mixture = mixture.add_report(trace=curves.thin_out(view.ids))
        return mixture, after


def gws(**options: Any) -> FedLAW:
    """Return adaptive global weight shrinking: gamma is learned, the weights are the prior's."""
    return FedLAW(learn="gamma", **options)


def law(**options: Any) -> FedLAW:
    """Return attentive learnable aggregation weights: the weights are learned, gamma is 1."""
    return FedLAW(learn="lambda", **options)


def _signature_without(*names: str) -> inspect.Signature:
    """Return FedLAW's options, except these, as a signature of keywords."""
    parameters = []
    for parameter in inspect.signature(FedLAW).parameters.values():
        if parameter.name not in names:
            parameters.append(parameter.replace(kind=parameter.KEYWORD_ONLY))
    return inspect.Signature(parameters)


gws.__signature__ = _signature_without("learn", "critical", "init")  # type: ignore[attr-defined]
law.__signature__ = _signature_without("learn", "floor")  # type: ignore[attr-defined]
RULES.alias("gws", Info("learns a shrinking factor on proxy data", _PAPER, _SECAGG), gws)
RULES.alias("law", Info("learns weights on proxy data", _PAPER, _SECAGG), law)


@dataclass(frozen=True)
class Point:
    """The parameters that are learned: logits `x` of the weights and `g` of gamma."""

    x: Array
    g: float
    function: str

    @staticmethod
    def at(shares: Array, function: str, init: str) -> Point:
        """Return the initial point: lambda at the prior or uniform, gamma at 1."""
        start = shares if init == "prior" else np.full_like(shares, 1 / len(shares))
        if function == "quad":
            return Point(np.sqrt(start), 1.0, function)
        return Point(np.log(np.maximum(start, np.finfo(np.float64).tiny)), 0.0, function)

    @property
    def shares(self) -> Array:
        """The weights lambda, `[K]`."""
        if self.function == "quad":
            squares: Array = self.x**2 / (self.x @ self.x)
            return squares
        return softmax(self.x)

    @property
    def gamma(self) -> float:
        """The shrinking factor gamma."""
        return self.g**2 if self.function == "quad" else math.exp(self.g)

    def gradient(self, by_share: Array, by_gamma: float) -> Array:
        """Return the derivatives by x and g, `[K+1]`, from those by lambda and gamma."""
        shares = self.shares
        centred = by_share - shares @ by_share
        if self.function == "quad":
            total = float(self.x @ self.x)
            return np.append(2 * self.x / total * centred, 2 * self.g * by_gamma)
        return np.append(shares * centred, self.gamma * by_gamma)


def default_init(preset: str, function: str) -> str:
    """Return the default of `init`: the prior, except for `quad` in the authors' code."""
    return "uniform" if preset == "official" and function == "quad" else "prior"


def minimize_proxy_loss(
    view: View,
    prior: Mixture,
    point: Point,
    epochs: int,
    rates: Callable[[int], float],
    step: Step,
    learn_lambda: bool,
    learn_gamma: bool,
    after: Callable[[int, Point, float], None],
) -> Point:
    """Minimise the proxy loss of `gamma (base theta + s sum_k lambda_k d_k)`.

    `base` and `s` are the prior's coefficients, `s` times the server's learning rate: both are 1
    after FedAvg.

    Args:
        view: the round.
        prior: the prior mixture.
        point: the initial point.
        epochs: number of passes over the proxy data.
        rates: returns the learning rate of an epoch.
        step: the optimizer.
        learn_lambda: whether to learn lambda.
        learn_gamma: whether to learn gamma.
        after: called at the end of each epoch with its number, the point, and the mean loss of its
            batches before their steps.

    Returns:
        The last point.
    """
    trial = view.probe
    base = float(prior.base[0])
    step_length = view.global_lr * _total_weight(prior)
    is_learned = np.append(np.full(len(point.x), learn_lambda), learn_gamma)
    for epoch in range(epochs):
        losses = []
        for batch in trial.epoch():
            # Loss and slopes at this point.
            shares, gamma = point.shares, point.gamma
            slopes = trial.slopes(gamma * step_length * shares, gamma * base, batch)
            losses.append(slopes.loss)
            models = (
                step_length * slopes.weights + base * slopes.base
            )  # <grad, base theta + step d_k>
            if not (math.isfinite(slopes.loss) and np.isfinite(models).all()):
                raise NonFiniteLoss(
                    f"the proxy loss is NaN or infinite at the clients' mixture in round "
                    f"{view.round}: lower the clients' learning rate (local.lr) or the rule's, or "
                    "use if_finite(...) to keep the weights before it"
                )
            # One step of the optimizer, on the learned parameters.
            gradient = point.gradient(gamma * models, float(shares @ models))
            vector = np.append(point.x, point.g)
            vector[is_learned] = step(vector[is_learned], gradient[is_learned], rates(epoch))
            point = Point(vector[:-1], float(vector[-1]), point.function)
        after(epoch, point, sum(losses) / len(losses))
    return point


def _total_weight(prior: Mixture) -> float:
    """Return the sum of the weights on updates; exactly 1 if it differs from 1 only by rounding."""
    total = float(prior.weights[0].sum())
    return 1.0 if abs(total - 1.0) < 1e-12 else total


def optimizer(name: str, betas: tuple[float, float]) -> Step:
    """Return a new optimizer."""
    return adam(betas) if name == "adam" else sgd()


def check_optimizer(name: str, betas: tuple[float, float]) -> None:
    """Raise an error if the optimizer or its decay rates are not valid."""
    checks.one_of("optimizer", name, "adam", "sgd")
    checks.betas(betas)


def rate(lr: float, epoch: int, halve: int) -> float:
    """Return the learning rate of an epoch, which is halved every `halve` epochs."""
    return lr * 0.5 ** (epoch // halve) if halve else lr


def describe_range(reach: float, floor: float | None) -> str:
    """Return a sentence about the range of gamma."""
    low = math.exp(-reach)
    high = math.exp(reach)
    bound = "nothing bounds its product over rounds: see floor"
    if floor is not None:
        bound = f"its product stays above {floor:g}"
    return (
        f"gamma stays within about {low:.2f} to {high:.2f} per round with one batch per epoch "
        f"(b batches raise both to the power b); {bound}"
    )


def finish_mixture(
    prior: Mixture, shares: Array, gamma: float, floor: float | None, view: View, state: State
) -> tuple[Mixture, State]:
    """Return the mixture with these shares and gamma, and the state with the product of gammas.

    Args:
        prior: the prior mixture.
        shares: the learned weights, `[K]`.
        gamma: the learned shrinking factor.
        floor: lower limit of the product of all gammas so far, if any.
        view: the round.
        state: the state of the rule.
    """
    # Raise gamma if the product would fall below the limit.
    before = float(state.get("gamma_product", 1.0))
    bound = 0.0 if floor is None else floor / before
    raised = max(gamma, bound)

    # Report and mixture.
    notes = {
        "gamma": raised,
        "lambda": dict(zip(view.ids, shares.tolist(), strict=True)),
        "gamma_product": before * raised,
        "gamma_bounded": None,
    }
    if gamma < bound:
        notes["gamma_bounded"] = f"{gamma:.4f} learned, raised to {raised:.4f}"
    mixture = prior.reweight(shares[None], **notes)
    return mixture.scale_by(raised), {**state, "gamma_product": before * raised}
