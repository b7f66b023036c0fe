"""Every key that the record of a round can have, in one table.

`ROUND_RECORD` says for each key what it means, its form and unit, where it comes from, which way is
better, and how the report draws it. Reports of rounds, run directories, loggers, diagnostics, the
report page and the documentation read this table. To record a new number, add an entry here and the
line that computes the number.

Rules, callbacks and evaluations of the user may record other keys, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeGuard

Form = Literal[
    "number",
    "true or false",
    "text",
    "number by client",
    "reason by client",
    "list of clients",
    "list of messages",
    "numbers by layer",
    "numbers by name",
    "numbers by metric and client",
    "curves",
    "record",
]
Source = Literal["core", "rule", "simulator", "Flower", "evaluation", "computed when read"]
Section = Literal[
    "Results",
    "Weights",
    "Geometry of the updates",
    "What the rule learned",
    "Clients and data",
    "Contributions of clients",
    "Steps of the rules",
    "Agreement between rules",
    "Agreement between adapters",
    "What the merge lost",
    "Cost",
]

_GEOMETRY: Section = "Geometry of the updates"
_LEARNED: Section = "What the rule learned"
_CLIENT_TRAINED = "metrics=('grad_norm', 'num_examples')"
_RULE_SHRINKS = "a rule that shrinks, such as gws or fedavg|shrink:0.95"
_TEST_SET = "a test set, and evaluate_every > 0"


@dataclass(frozen=True)
class FigureText:
    """How the report draws a key: a number as a curve, a number by client as a heat map.

    Attributes:
        title: the title of the figure.
        axis: the label of the y axis; for a heat map, what the colour means.
        caption: what to look for.
        section: the section of the page.
        palette: the colours of a heat map; a diverging palette is centred at zero.
        starts_at_zero: whether the colours of a heat map begin at zero.
        is_special: whether the report draws the key with code of its own, for example with marks.
    """

    title: str
    axis: str
    caption: str
    section: Section = _LEARNED
    palette: Literal["sequential", "diverging"] = "sequential"
    starts_at_zero: bool = False
    is_special: bool = False


@dataclass(frozen=True)
class RecordKey:
    """One key of the record of a round.

    Attributes:
        key: the key.
        meaning: what the value is.
        form: the form of the value.
        sources: what computes the value.
        unit: the unit, if there is one.
        better: which way is better, if one is.
        paper: the equation or figure that it is from.
        requires: what a run needs in order to record it.
        old_name: the key of the same value in run directories of older versions.
        figure: how the report draws it; None if it does not.
        column: the name of its column in `History.to_pandas`, or the prefix of its columns.
        needs_gram: whether it is computed from the inner products of the updates.
        is_validated: whether a run directory with a value of another form is refused.
        is_logged: whether loggers write it.
        compute: returns the value from a record, for keys that are computed when a record is read.
    """

    key: str
    meaning: str
    form: Form = "number"
    sources: tuple[Source, ...] = ("core",)
    unit: str = ""
    better: Literal["", "higher", "lower"] = ""
    paper: str = ""
    requires: str = ""
    old_name: str = ""
    figure: FigureText | None = None
    column: str = ""
    needs_gram: bool = False
    is_validated: bool = False
    is_logged: bool = False
    compute: Callable[[Mapping[str, Any]], float | None] | None = None


def _compute_gradient_divergence(record: Mapping[str, Any]) -> float | None:
    """Return the divergence of the updates divided by the learning rate."""
    divergence = record.get("update_divergence")
    lr = record.get("lr")
    if not _is_plain_number(divergence) or not _is_plain_number(lr) or lr == 0:
        return None
    return float(divergence / lr)


def _compute_cosine_gain(record: Mapping[str, Any]) -> float | None:
    """Return the sum of FedAdp's Theorem 1 for the rule, minus that for FedAvg."""
    cosine = record.get("weighted_cosine")
    fedavg_cosine = record.get("fedavg_weighted_cosine")
    if not _is_plain_number(cosine) or not _is_plain_number(fedavg_cosine):
        return None
    return float(cosine - fedavg_cosine)


def _compute_mean_over_clients(key: str) -> Callable[[Mapping[str, Any]], float | None]:
    """Return a function that computes the mean over clients of a number by client."""

    def compute(record: Mapping[str, Any]) -> float | None:
        by_client = record.get(key)
        if not isinstance(by_client, Mapping):
            return None
        values = [value for value in by_client.values() if _is_plain_number(value)]
        return math.fsum(values) / len(values) if values else None

    return compute


def _is_plain_number(value: Any) -> TypeGuard[float]:
    """Return whether a value is a finite number, and not a truth value."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value)


_KEYS = (
    # The round and its result.
    RecordKey("round", "number of the round, from 1"),
    RecordKey(
        "accuracy",
        "accuracy of the global model on the test set",
        sources=("evaluation",),
        unit="share",
        better="higher",
        requires=_TEST_SET,
        figure=FigureText(
            "Accuracy on the test set", "accuracy, %", "", "Results", is_special=True
        ),
        is_validated=True,
        is_logged=True,
    ),
    RecordKey(
        "loss",
        "loss of the global model on the test set",
        sources=("evaluation",),
        better="lower",
        requires=_TEST_SET,
        figure=FigureText(
            "Loss on the test set",
            "loss",
            "A loss that rises while accuracy does not change is overfitting.",
            "Results",
            is_special=True,
        ),
        is_validated=True,
        is_logged=True,
    ),
    RecordKey(
        "group_accuracy",
        "accuracy of the global model on the test samples of each group, such as a domain",
        "numbers by name",
        ("evaluation",),
        unit="share",
        better="higher",
        paper="FedAWA, Table 7",
        requires="a test set whose groups have names, such as digits-5, and evaluate_every > 0",
        column="accuracy",
    ),
    RecordKey(
        "client_accuracy",
        "accuracy of the global model on the client's own data",
        "number by client",
        ("evaluation",),
        unit="share",
        better="higher",
        requires="evaluate_clients > 0",
        figure=FigureText(
            "Accuracy by client",
            "accuracy",
            "The global model on each client's own data.",
            "Clients and data",
        ),
        is_validated=True,
    ),
    RecordKey(
        "client_loss",
        "loss of the global model on the client's own data",
        "number by client",
        ("evaluation",),
        better="lower",
        paper="PA3Fed, Fig. 1, Table 1",
        requires="evaluate_clients > 0",
        figure=FigureText(
            "Loss by client",
            "loss",
            "The global model on each client's own data.",
            "Clients and data",
        ),
    ),
    RecordKey(
        "train_loss",
        "loss of the global model on the training samples of all clients",
        sources=("evaluation",),
        better="lower",
        paper="FedAdp, Fig. 5, 7",
        requires="evaluate_train > 0",
        figure=FigureText(
            "Loss on the clients' training samples",
            "loss",
            "The loss that training minimises. It falls while the loss on the test set rises if the "
            "model overfits.",
            "Results",
        ),
    ),
    RecordKey(
        "train_accuracy",
        "accuracy of the global model on the training samples of all clients",
        sources=("evaluation",),
        unit="share",
        better="higher",
        requires="evaluate_train > 0",
        figure=FigureText(
            "Accuracy on the clients' training samples",
            "accuracy",
            "Far above the accuracy on the test set, the model has learned samples by heart.",
            "Results",
        ),
    ),
    RecordKey(
        "fisher_trace",
        "trace of the Fisher information of the global model, over a fixed draw of the clients' "
        "samples",
        sources=("evaluation",),
        paper="PA3Fed, Eq. (2), (3), Fig. 3",
        requires="evaluate_fisher > 0",
        figure=FigureText(
            "Trace of the Fisher information",
            "trace",
            "It rises and falls in the critical period of training; the gradient norm is a cheap "
            "replacement.",
        ),
    ),
    # Weights, and who took part.
    RecordKey(
        "weights",
        "weight of the client in the aggregated step",
        "number by client",
        figure=FigureText(
            "Weights",
            "weight",
            "The weight of each client in each round: a dark row is a client with much weight, a "
            "white cell a client that did not take part.",
            "Weights",
            starts_at_zero=True,
        ),
        column="weight",
        is_validated=True,
    ),
    RecordKey(
        "layer_weights",
        "weights of the clients in each layer, in the order of `weights`",
        "numbers by layer",
        requires="a rule that weighs layers separately",
        is_validated=True,
    ),
    RecordKey(
        "lora_error",
        "distance of the new product of a LoRA adapter from the exact one, as a share of the step",
        "numbers by name",
        better="lower",
        requires="a network with LoRA adapters",
    ),
    RecordKey(
        "effective_clients",
        "1 / sum of squared shares of the weights",
        unit="clients",
        figure=FigureText(
            "Effective clients",
            "effective clients",
            "One divided by the sum of squared weights: the number of equally weighted clients "
            "that would average as much. Near one, a single client decides.",
            "Weights",
        ),
        is_logged=True,
    ),
    RecordKey(
        "quarantined",
        "why the update of the client was not used",
        "reason by client",
        ("core", "simulator", "Flower"),
        figure=FigureText(
            "Quarantined clients",
            "rounds",
            "Rounds, over all seeds, in which a client's update was left out: because of NaN, a "
            "wrong shape, or as an outlier; the table has the reasons.",
            "Clients and data",
            is_special=True,
        ),
        column="quarantined",
        is_validated=True,
    ),
    RecordKey(
        "void",
        "why the round changed nothing; null if it did",
        "text",
        ("core", "simulator"),
        is_validated=True,
    ),
    RecordKey(
        "dropped_clients",
        "clients that dropped out or answered with an error",
        "list of clients",
        ("simulator", "Flower"),
        old_name="dropped",
        column="dropped_clients",
        is_validated=True,
    ),
    RecordKey(
        "late_clients",
        "clients that the server did not wait for",
        "list of clients",
        ("simulator", "Flower"),
        old_name="late",
        column="late_clients",
        is_validated=True,
    ),
    RecordKey(
        "failed",
        "why the client did not answer, or answered with an error",
        "reason by client",
        ("Flower",),
    ),
    RecordKey(
        "unmatched_replies",
        "replies that do not belong to a message of this round",
        "list of messages",
        ("Flower",),
        old_name="strays",
    ),
    RecordKey(
        "unconfirmed",
        "clients that did not confirm that they add the client terms",
        "list of clients",
        ("Flower",),
    ),
    RecordKey(
        "restarted",
        "clients that lost their state between rounds",
        "list of clients",
        ("Flower",),
    ),
    # Geometry of the updates.
    RecordKey(
        "norms",
        "|d_k|: norm of the client's update",
        "number by client",
        unit="norm",
        needs_gram=True,
    ),
    RecordKey(
        "update_norm",
        "|sum_k w_k d_k|: norm of the aggregated step, before the server optimizer",
        unit="norm",
        paper="FedLAW, Fig. 3; FedCos, Fig. 12c",
        figure=FigureText(
            "Length of the global update",
            "norm",
            "How far the global model moves in a round; it should become small as training "
            "converges.",
            _GEOMETRY,
        ),
        needs_gram=True,
    ),
    RecordKey(
        "param_norm",
        "|theta|: norm of the model at the start of the round",
        unit="norm",
        paper="FedLAW, Fig. 10",
        figure=FigureText(
            "Length of the global model",
            "norm",
            "If it keeps growing, more weight decay may help.",
            _GEOMETRY,
        ),
        needs_gram=True,
    ),
    RecordKey(
        "coherence",
        "local gradient coherence: mean weighted cosine between the updates of pairs of clients",
        better="higher",
        paper="FedLAW, Def. 5.1, Fig. 5",
        figure=FigureText(
            "Local gradient coherence",
            "coherence",
            "How much the updates of clients have the same direction (FedLAW, Def. 5.1); rings "
            "mark the critical point, where it first falls to 5 % of its peak.",
            _GEOMETRY,
            is_special=True,
        ),
        needs_gram=True,
        is_logged=True,
    ),
    RecordKey(
        "coherence_across",
        "coherence of the updates without their part along the global model",
        sources=("rule",),
        better="higher",
        requires="the rule record_coherence, such as fedavg|record_coherence",
    ),
    RecordKey(
        "coherence_of_groups",
        "coherence within equal groups of clients, by the number of the group",
        "numbers by name",
        ("rule",),
        better="higher",
        requires="the rule record_coherence:groups=2",
    ),
    RecordKey(
        "heterogeneity_coherence",
        "cosine of the label distribution of the round's weighted cohort and of all clients",
        sources=("simulator",),
        unit="cosine",
        better="higher",
        paper="FedLAW, Def. 5.2, Fig. 7",
        requires="labels",
        figure=FigureText(
            "Heterogeneity coherence",
            "cosine",
            "One if the clients of the round, with their weights, have the same classes as all "
            "clients together (FedLAW, Def. 5.2).",
            _GEOMETRY,
        ),
    ),
    RecordKey(
        "mean_cosine",
        "mean cos(d_i, d_j) over pairs of clients",
        unit="cosine",
        better="higher",
        paper="FedCos, Fig. 3",
        figure=FigureText(
            "Mean cosine between clients",
            "cosine",
            "How much clients agree: one if all updates have the same direction, zero if they are "
            "orthogonal.",
            _GEOMETRY,
        ),
        needs_gram=True,
    ),
    RecordKey(
        "mean_update_norm",
        "mean |d_k|: how far local models moved",
        unit="norm",
        paper="FedCos, Fig. 12a",
        old_name="moved",
        figure=FigureText(
            "Mean length of clients' updates",
            "norm",
            "How far clients move from the model that they receive.",
            _GEOMETRY,
        ),
        needs_gram=True,
    ),
    RecordKey(
        "mean_pairwise_distance",
        "mean |theta_i - theta_j| over pairs of clients",
        unit="norm",
        paper="FedCos, Fig. 12b",
        old_name="spread",
        figure=FigureText(
            "Mean distance between local models",
            "distance",
            "How far the local models are from each other: client drift.",
            _GEOMETRY,
        ),
        needs_gram=True,
    ),
    RecordKey(
        "weighted_cosine",
        "sum_k psi_k cos(d_k, d), psi_k the share of client k, d as for update_divergence",
        better="higher",
        paper="FedAdp, Theorem 1",
        figure=FigureText(
            "Weighted cosine to the mean update",
            "cosine",
            "FedAdp's Theorem 1: the higher this sum of weight times cosine, the faster the loss "
            "falls.",
            _GEOMETRY,
        ),
        needs_gram=True,
    ),
    RecordKey(
        "fedavg_weighted_cosine",
        "the same sum with FedAvg's weights: sum_k p_k cos(d_k, d), p_k by size, or equal if the "
        "rule does not know sizes",
        better="higher",
        paper="FedAdp, Theorem 2",
        needs_gram=True,
    ),
    RecordKey(
        "weighted_cosine_gain",
        "weighted_cosine - fedavg_weighted_cosine: positive if the rule promises a faster decrease "
        "of the loss than FedAvg",
        sources=("computed when read",),
        better="higher",
        paper="FedAdp, Theorem 2",
        figure=FigureText(
            "Weighted cosine, minus FedAvg's",
            "difference",
            "FedAdp's Theorem 2: above zero, the bound on the loss falls faster than with "
            "FedAvg's weights.",
            _GEOMETRY,
        ),
        compute=_compute_cosine_gain,
    ),
    RecordKey(
        "update_divergence",
        "mean |d_k - d|, d the mean update by size, or the plain mean if the rule does not know "
        "sizes",
        unit="norm",
        better="lower",
        paper="FedAdp, Fig. 7",
        old_name="divergence",
        figure=FigureText(
            "Divergence of the updates",
            "divergence",
            "How far the updates of clients are from their mean weighted by the number of "
            "examples.",
            _GEOMETRY,
        ),
        needs_gram=True,
    ),
    RecordKey(
        "gradient_divergence",
        "update_divergence / lr: the same in the unit of gradients",
        sources=("computed when read",),
        unit="norm",
        better="lower",
        paper="FedAdp, Fig. 7",
        compute=_compute_gradient_divergence,
    ),
    RecordKey(
        "cosines",
        "cosine of the client's update to the aggregated step",
        "number by client",
        unit="cosine",
        figure=FigureText(
            "Cosine to the global update",
            "cosine",
            "A client that stays orange moves against the others: it is an outlier, or the only "
            "one with its kind of data.",
            _GEOMETRY,
            "diverging",
        ),
        needs_gram=True,
    ),
    RecordKey(
        "mean_cosines",
        "mean over clients of `cosines`",
        sources=("computed when read",),
        unit="cosine",
        better="higher",
        figure=FigureText(
            "Cosine to the global update, mean",
            "cosine",
            "Near one, clients agree with their mean.",
            _GEOMETRY,
        ),
        compute=_compute_mean_over_clients("cosines"),
    ),
    RecordKey(
        "direction_cosines",
        "cosine of the client's update to the direction that clients received",
        "number by client",
        unit="cosine",
        paper="FedCos, Eq. 6",
        requires="a client term with a direction (client=fedcos), and a second round",
        figure=FigureText(
            "Cosine to the direction sent",
            "cosine",
            "How well a client follows the last global update, as FedCos asks it to.",
            _GEOMETRY,
            "diverging",
        ),
        column="direction_cosine",
    ),
    RecordKey(
        "mean_direction_cosines",
        "mean over clients of `direction_cosines`",
        sources=("computed when read",),
        unit="cosine",
        better="higher",
        requires="a client term with a direction (client=fedcos), and a second round",
        figure=FigureText(
            "Cosine to the direction sent, mean",
            "cosine",
            "FedCos's penalty raises it.",
            _GEOMETRY,
        ),
        compute=_compute_mean_over_clients("direction_cosines"),
    ),
    # What rules learn or decide.
    RecordKey(
        "gamma",
        "shrinking factor, set or learned",
        sources=("rule",),
        unit="factor",
        paper="FedLAW, Fig. 2, 3",
        requires=_RULE_SHRINKS,
        figure=FigureText(
            "Gamma, the global shrinking factor",
            "gamma",
            "The averaged model is multiplied by gamma: below one, the rule pulls the parameters "
            "towards zero, as weight decay does.",
        ),
        is_logged=True,
    ),
    RecordKey(
        "gamma_product",
        "product of gamma over all rounds so far",
        sources=("rule",),
        unit="factor",
        requires="a rule that learns gamma: fedlaw, gws or fedlaw_swa",
        figure=FigureText(
            "Product of all gammas so far",
            "product",
            "The factor by which the first model has been multiplied so far.",
        ),
    ),
    RecordKey(
        "gamma_bounded",
        "how gamma was raised to its lower limit; null if it was not",
        "text",
        ("rule",),
    ),
    RecordKey(
        "shrinking",
        "|(1 - gamma) theta|: norm of the pseudo-gradient of weight shrinking",
        unit="norm",
        paper="FedLAW, Eq. (4), Fig. 2, 11",
        requires=_RULE_SHRINKS,
        figure=FigureText("Shrinking", "norm", "Length of the step that gamma makes towards zero."),
    ),
    RecordKey(
        "shrinking_ratio",
        "r = update_norm / shrinking, times the lr of server=sgd",
        unit="ratio",
        paper="FedLAW, Fig. 3",
        requires=_RULE_SHRINKS,
        figure=FigureText(
            "Global step over shrinking",
            "r",
            "FedLAW's r: length of the global step divided by the shrinking.",
        ),
    ),
    RecordKey(
        "lambda",
        "share of the client that FedLAW learned",
        "number by client",
        ("rule",),
        unit="share",
        figure=FigureText(
            "Lambda, learned shares",
            "share",
            "What the rule learned on its proxy data.",
            starts_at_zero=True,
        ),
    ),
    RecordKey(
        "optimal_weights",
        "weights on a grid with the smallest loss on the test set, for three clients",
        "number by client",
        ("evaluation",),
        unit="share",
        paper="FedLAW, Fig. 12",
        requires="callbacks=[steelyard.diagnostics.OptimumPath()]",
        figure=FigureText(
            "Best weights on the test set",
            "share",
            "The weights that would have been best in this round.",
            "Weights",
            starts_at_zero=True,
        ),
    ),
    RecordKey(
        "optimal_weights_loss",
        "loss on the test set at `optimal_weights`",
        sources=("evaluation",),
        better="lower",
        paper="FedLAW, Fig. 12",
        requires="callbacks=[steelyard.diagnostics.OptimumPath()]",
    ),
    RecordKey(
        "trace",
        "training curves of the rule on its proxy data within the round",
        "curves",
        ("rule",),
        paper="FedLAW, Fig. 14",
        requires="a rule that keeps curves: fedlaw:trace=true",
    ),
    RecordKey(
        "law",
        "why FedLAW did not learn weights in this round",
        "text",
        ("rule",),
    ),
    RecordKey(
        "angles",
        "smoothed angle between the client's update and the mean update",
        "number by client",
        ("rule",),
        unit="radians",
        paper="FedAdp, Eq. (9)",
        figure=FigureText(
            "Smoothed angles", "radians", "FedAdp gives clients with small angles more weight."
        ),
    ),
    RecordKey(
        "alpha",
        "factor by which PA3Fed changed the client's weight",
        "number by client",
        ("rule",),
        unit="factor",
        paper="PA3Fed, Eq. (10)",
        figure=FigureText(
            "Alpha, change of scores", "factor", "Above one, PA3Fed raises the client's weight."
        ),
    ),
    RecordKey(
        "critical",
        "whether the rule treats the round as part of a critical period",
        "true or false",
        ("rule",),
        paper="PA3Fed, Fig. 3",
        requires="a rule with a detector, such as pa3fed or gate(eq6,fedawa)",
        figure=FigureText(
            "Critical periods",
            "run",
            "Dark rounds are those that the rule considers critical; in them it adapts its "
            "weights.",
            is_special=True,
        ),
    ),
    RecordKey(
        "discrepancy",
        "difference between the client's labels and a uniform distribution",
        "number by client",
        ("rule",),
        paper="FedDisco",
        figure=FigureText(
            "Discrepancy of labels",
            "discrepancy",
            "FedDisco gives clients with a large discrepancy less weight.",
        ),
    ),
    RecordKey(
        "tau_eff",
        "FedNova's effective number of steps",
        sources=("rule",),
        unit="steps",
        figure=FigureText(
            "Effective number of steps", "steps", "FedNova's tau_eff, a mean over clients."
        ),
    ),
    RecordKey(
        "withstands",
        "number of malicious clients that a robust rule withstands",
        sources=("rule",),
        unit="clients",
        figure=FigureText(
            "Malicious clients that the rule withstands",
            "clients",
            "It depends on the number of clients that took part.",
        ),
    ),
    RecordKey("selected", "clients that Bulyan selected", "list of clients", ("rule",)),
    RecordKey(
        "clipped",
        "factor by which the guard shortened the client's update",
        "number by client",
        ("rule",),
        unit="factor",
        figure=FigureText(
            "Clipped updates", "factor", "The guard shortened the updates of these clients."
        ),
    ),
    RecordKey("capped", "clients whose weight the guard capped", "list of clients", ("rule",)),
    RecordKey(
        "shortened",
        "factor by which the guard shortened the aggregated step",
        sources=("rule",),
        unit="factor",
        figure=FigureText(
            "Shortening of the global update", "factor", "The guard limits the global update."
        ),
    ),
    # Shadow rules.
    RecordKey(
        "shadow_weights",
        "the weights that shadow rules would have given, by rule",
        "numbers by metric and client",
        ("simulator", "Flower"),
        requires="shadow rules: shadow=['fedadp']",
        is_validated=True,
    ),
    RecordKey(
        "shadow_loss",
        "loss on the proxy data of each rule's model; `run` is the run's own",
        "numbers by name",
        ("simulator", "Flower"),
        requires="shadow rules and proxy data",
    ),
    RecordKey(
        "shadow_failures",
        "why shadow rules are left out from this round on, by rule",
        "reason by client",
        ("simulator", "Flower"),
    ),
    RecordKey("fallback", "why other weights than the rule's were used", "text", ("rule",)),
    # What clients report.
    RecordKey(
        "reported",
        "what clients reported, to six digits",
        "numbers by metric and client",
        ("simulator", "Flower"),
        requires="metrics that change from round to round, such as metrics=('loss', 'grad_norm')",
        is_validated=True,
    ),
    RecordKey(
        "fgn",
        "federated gradient norm, weighted by sizes",
        sources=("simulator", "Flower"),
        paper="PA3Fed, Eq. (5), Fig. 3",
        requires=_CLIENT_TRAINED,
        figure=FigureText(
            "Federated gradient norm",
            "FGN",
            "Weighted by the number of examples (PA3Fed): critical while it rises.",
        ),
    ),
    RecordKey(
        "fgn_mean",
        "federated gradient norm, the plain mean",
        sources=("simulator", "Flower"),
        paper="CriticalFL",
        requires=_CLIENT_TRAINED,
        figure=FigureText(
            "Federated gradient norm, plain mean", "FGN", "CriticalFL's: critical while it rises."
        ),
    ),
    # Evaluations on Flower.
    RecordKey(
        "client_evaluation",
        "means of the metrics that clients returned when they evaluated the model",
        "numbers by name",
        ("Flower",),
    ),
    RecordKey(
        "server_evaluation",
        "metrics of `evaluate_fn` whose names are keys of the record",
        "numbers by name",
        ("Flower",),
    ),
    RecordKey(
        "evaluation",
        "who did not answer when clients evaluated the model, and medians of their metrics",
        "record",
        ("Flower",),
    ),
    # Cost.
    RecordKey(
        "lr",
        "learning rate of the clients",
        sources=("simulator",),
        figure=FigureText(
            "Learning rate", "rate", "As the schedule sets it.", "Cost", is_special=True
        ),
    ),
    RecordKey(
        "simulated_duration",
        "simulated time of the slowest client that the server waits for",
        sources=("simulator",),
        unit="steps",
        better="lower",
        requires="participation.spread or participation.deadline",
        figure=FigureText(
            "Simulated duration of a round",
            "steps",
            "The time of the slowest client that the server waits for.",
            "Cost",
            is_special=True,
        ),
    ),
    RecordKey(
        "timings",
        "wall time of the stages of the round",
        "numbers by name",
        ("simulator", "Flower"),
        unit="seconds",
        better="lower",
        figure=FigureText(
            "Timings",
            "seconds per round",
            "Mean wall time of a round. Aggregation should be short compared with training. "
            "Compare only runs of the same machine.",
            "Cost",
            is_special=True,
        ),
        column="seconds",
        is_validated=True,
    ),
)

ROUND_RECORD: dict[str, RecordKey] = {entry.key: entry for entry in _KEYS}
"""All keys that a record can have, by key."""

OLD_NAMES: dict[str, str] = {entry.old_name: entry.key for entry in _KEYS if entry.old_name}
"""Keys of older versions, with the keys of today."""

_RENAMED = frozenset(OLD_NAMES.values())


def rename_old_keys(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record with the keys of today, in the same order.

    A record that has one of the new keys is not from an older version, and is returned as it is:
    an old name in it is a key of the user.
    """
    if isinstance(record.get("evaluation"), dict):
        record = {**record, "evaluation": rename_old_keys(record["evaluation"])}
    if not _RENAMED.isdisjoint(record):
        return record
    return {OLD_NAMES.get(key, key): value for key, value in record.items()}


def get_value(record: Mapping[str, Any], key: str) -> Any:
    """Return the value of a key, which is computed if the record does not hold it; None without one."""
    if key in record:
        return record[key]
    entry = ROUND_RECORD.get(key)
    if entry is None or entry.compute is None:
        return None
    return entry.compute(record)


def read_path(record: Any, path: str) -> Any:
    """Return the value at a dotted path, such as `timings.train` or `weights.client-0`.

    Keys may contain dots themselves, as client ids do. None if the record has no such value.
    """
    if not isinstance(record, Mapping):
        return None
    value = get_value(record, path)
    if value is not None:
        return value
    head, _, rest = path.partition(".")
    return read_path(record.get(head), rest) if rest else None
