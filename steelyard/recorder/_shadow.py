"""Shadow rules: candidates that are computed beside the rule of a run, and recorded.

A shadow rule has its own state. It cannot change a round: it reads only the inner products and
reports of the round, and an error of its own is recorded and leaves it out from then on.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from steelyard.core._errors import SteelyardError
from steelyard.core._evidence import base_buffers
from steelyard.core._needs import Needs
from steelyard.core._probe import ProxyLoss, Trial
from steelyard.core._round_gram import RoundGram, describe_recording
from steelyard.core._spec import to_text
from steelyard.core._state import State
from steelyard.core._store import UpdateStore
from steelyard.core._weighting import Weighting
from steelyard.metrics import find_metric
from steelyard.recorder._weigh import Weighed, check_replayable, get_run_weights, weigh
from steelyard.rules._combinators import parse_rule, with_default_source
from steelyard.runs._gram_log import parse_recording

RUN = "run"  # the name of the rule that the run uses


class ShadowRules:
    """Rules that are computed beside the rule of a run.

    Attributes:
        rules: the rules by their spec strings, as the user wrote them.
        specs: what the rules were built from.
    """

    def __init__(self, specs: Sequence[str | Weighting]) -> None:
        """Parse the rules.

        Raises:
            SteelyardError: if a rule needs more than inner products and reports.
        """
        self.specs = tuple(specs)
        self.rules: dict[str, Weighting] = {}
        for spec in specs:
            rule = parse_rule(spec)
            check_replayable(rule)
            if rule.needs.last_step:
                raise SteelyardError(
                    f"{to_text(rule)}: follows its own previous step, and the step of this run is "
                    "another: run it instead"
                )
            name = spec if isinstance(spec, str) else to_text(rule)
            self.rules[name] = with_default_source(rule)
        self._states: dict[str, State] = {}
        self._failures: dict[str, str] = {}

    @property
    def needs(self) -> Needs:
        """What the rules need together."""
        needs = Needs()
        for rule in self.rules.values():
            needs = needs | rule.needs
        return needs

    def check_metrics(self, reported: Collection[str]) -> None:
        """Raise an error if a rule needs a metric whose measurement would change the run.

        Args:
            reported: the metrics that clients report anyway.
        """
        for text, rule in self.rules.items():
            for name in sorted(rule.needs.metrics - set(reported)):
                if find_metric(name).changes_training:
                    raise SteelyardError(
                        f"shadow: {text} needs {name!r}, and measuring it changes the last bits of "
                        f"training: let clients report it in this run (metrics=[{name!r}])"
                    )

    def observe(
        self, round_gram: RoundGram, store: UpdateStore, probe: ProxyLoss | None
    ) -> dict[str, Any]:
        """Compute the weights of every rule for a round, and return the entries for its record.

        Args:
            round_gram: the inner products and reports of the round.
            store: the updates of the same clients.
            probe: the server's proxy data, if any: then the loss of each rule's model is recorded.
        """
        # The weights of every rule. Whatever goes wrong in one is its own problem.
        weighed_rules: dict[str, Weighed] = {}
        failures: dict[str, str] = {}
        for text, rule in self.rules.items():
            if text in self._failures:
                continue
            try:
                weighed = weigh(rule, round_gram, self._states.get(text, {}))
            except Exception as error:
                failures[text] = f"{type(error).__name__}: {error}"
                continue
            self._states[text] = weighed.state
            weighed_rules[text] = weighed
        self._failures |= failures

        # The entries for the record.
        weights = {}
        for text, weighed in weighed_rules.items():
            means = weighed.weights.mean(axis=0).tolist()
            weights[text] = dict(zip(round_gram.ids, means, strict=True))
        entries: dict[str, Any] = {"shadow_weights": weights}
        if failures:
            entries["shadow_failures"] = failures
        if probe is not None:
            try:
                entries["shadow_loss"] = _measure_losses(round_gram, store, probe, weighed_rules)
            except Exception as error:
                entries["shadow_failures"] = {
                    **failures,
                    "loss on proxy data": f"{type(error).__name__}: {error}",
                }
        return entries

    def snapshot(self) -> dict[str, Any]:
        """Return the states and failures, as checkpoints store them."""
        return {"states": dict(self._states), "failures": dict(self._failures)}

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Continue from a snapshot. Rules that are not in it start without a state."""
        self._states = dict(snapshot["states"])
        self._failures = dict(snapshot["failures"])


def _measure_losses(
    round_gram: RoundGram,
    store: UpdateStore,
    probe: ProxyLoss,
    weighed_rules: Mapping[str, Weighed],
) -> dict[str, float]:
    """Return the loss on the proxy data of the model that each rule would aggregate.

    BatchNorm uses the statistics of the global model. Rules that weigh layers differently are left
    out.
    """
    session = probe.open(store.layout, round_gram.round, base_buffers(store), {})
    trial = Trial(store, session)
    losses = {}
    for name, weighed in {RUN: get_run_weights(round_gram), **weighed_rules}.items():
        if weighed.weights.shape[0] == 1 and weighed.step_weight is None:
            trial.mix(weighed.weights[0], float(weighed.base[0]))
            losses[name] = session.evaluate()
    return losses


def parse_shadow(specs: Sequence[str | Weighting], record: str) -> ShadowRules | None:
    """Return the shadow rules of the option `shadow`; None for none.

    Args:
        specs: rules or their spec strings.
        record: the option `record`, which says which layers are recorded.
    """
    if not specs:
        return None
    try:
        shadow = ShadowRules(specs)
    except SteelyardError as error:
        raise SteelyardError(f"shadow: {error}") from None
    layers = shadow.needs.per_layer
    recording = parse_recording(record)
    if layers is not None and (recording is None or recording.layers != layers):
        raise SteelyardError(
            f"shadow: a rule works layer by layer: record the layers, too "
            f"(record={describe_recording(layers)!r})"
        )
    return shadow
