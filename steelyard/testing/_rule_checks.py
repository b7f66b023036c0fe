"""What every rule must do, one function per fact."""

from __future__ import annotations

import copy
import dataclasses
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from steelyard.api import Aggregate
from steelyard.api import aggregate as call_aggregate
from steelyard.core._gram import Gram, StepProducts
from steelyard.core._layout import Granularity
from steelyard.core._mixture import Mixture
from steelyard.core._needs import Needs
from steelyard.core._probe import Trial
from steelyard.core._registry import RULES
from steelyard.core._spec import to_text
from steelyard.core._state import ClientId, State, load_state, save_state
from steelyard.core._view import View
from steelyard.core._weighting import Info, Weighting
from steelyard.rules._combinators import PerLayer, parse_rule, with_default_source
from steelyard.testing._rounds import (
    QuadraticProbe,
    is_frozen_dataclass,
    make_cohort,
    make_reports,
    require,
    same_bits,
    same_state,
)

ROUND = 4  # past the warm-up of every rule of ours


def check_rule(rule: str | Weighting, *, sums_to_one: bool = True) -> None:
    """Checks that a rule keeps the contract of all rules.

    Args:
        rule: a rule, or its text form.
        sums_to_one: whether its coefficients on the updates must sum to 1 in each layer. Pass False
            for a rule whose paper says otherwise, such as FedNova. A rule with `scales = True` is
            exempt.

    Raises:
        AssertionError: with a sentence that says what the rule does wrong.
    """
    part = parse_rule(rule)
    for check in RULE_CHECKS:
        check(part)
    if sums_to_one and not part.scales:
        check_total_weight(part)


def check_declaration(rule: Weighting) -> None:
    """It is a frozen dataclass with a name and an info, equal to its copy, and its text form builds it again."""
    kind = type(rule)
    require(isinstance(rule, Weighting), f"{rule!r} is not a Weighting: derive its class from that")
    require(
        is_frozen_dataclass(kind),
        f"{kind.__name__} is not a frozen dataclass: decorate it with @dataclass(frozen=True)",
    )
    for attribute, wanted in (("name", str), ("info", Info), ("modifies", bool), ("needs", Needs)):
        value = getattr(rule, attribute, None)
        require(
            isinstance(value, wanted),
            f"{kind.__name__}.{attribute} is {value!r}: set it to a {wanted.__name__}",
        )
    require(
        copy.deepcopy(rule) == rule,
        f"{rule.name}: a copy is not equal to it: keep its options in dataclass fields",
    )
    if rule.name in RULES:
        text = to_text(rule)
        try:
            again = parse_rule(text)
        except Exception as error:
            raise AssertionError(
                f"{rule.name}: its text form {text!r} builds nothing: {error}"
            ) from error
        require(again == rule, f"{rule.name}: its text form {text!r} builds another rule")


def check_total_weight(rule: Weighting) -> None:
    """Its coefficients on the updates sum to 1 in each layer."""
    base, clients = make_cohort()
    totals = aggregate(rule, base, clients).weights.sum(dim=-1)
    wrong = (totals - 1).abs().max().item()
    require(
        wrong < 1e-6,
        (
            f"{rule.name}: its weights sum to {totals.tolist()}, not to 1: use "
            f"Mixture.convex(weights) or "
            "prior.reweight(shares); pass sums_to_one=False if it is meant to be so"
        ),
    )


def check_client_order(rule: Weighting) -> None:
    """The order in which identified clients come in does not change a bit."""
    base, clients = make_cohort()
    table = reports_for(rule, list(clients))
    expected = aggregate(rule, base, clients, metrics=table)
    for order in ([5, 0, 3, 1, 4, 2], [5, 4, 3, 2, 1, 0]):
        ids = [list(clients)[k] for k in order]
        shuffled = aggregate(rule, base, {c: clients[c] for c in ids}, metrics=table)
        require(
            same_bits(expected.params, shuffled.params),
            f"{rule.name}: the order of clients changes the model",
        )
        require(
            torch.equal(expected.weights[..., order], shuffled.weights),
            f"{rule.name}: the order of clients changes their weights",
        )
        require(
            torch.equal(expected.base, shuffled.base),
            f"{rule.name}: the order of clients changes the base's weight",
        )


def check_positions(rule: Weighting) -> None:
    """Renaming clients permutes the weights: positions play no part."""
    dtype = torch.float64 if rule.needs.probe else torch.float32  # Adam amplifies rounding
    base, clients = make_cohort(dtype=dtype)
    models = list(clients.values())
    table = {
        name: list(column.values()) for name, column in reports_for(rule, list(clients)).items()
    }
    order = [3, 0, 5, 1, 4, 2]
    permuted = {name: [values[k] for k in order] for name, values in table.items()}
    first = aggregate(rule, base, models, metrics=table)
    second = aggregate(rule, base, [models[k] for k in order], metrics=permuted)
    why = f"{rule.name}: weights depend on the positions of clients, not on what they sent: "
    _assert_close(why, first.weights[..., order], second.weights, rtol=1e-9, atol=1e-12)
    _assert_close(why, first.params, second.params, rtol=1e-5, atol=1e-6)


def check_one_client(rule: Weighting) -> None:
    """A round with one client has a result."""
    base, clients = make_cohort(1)
    out = aggregate(rule, base, clients, "one client")
    require(
        out.weights.shape[-1] == 1, f"{rule.name}: one client has {out.weights.shape[-1]} weights"
    )
    assert_finite(rule, out, "one client")


def check_degenerate_updates(rule: Weighting) -> None:
    """Equal updates, and updates of zero, have a result.

    Where nobody moved, only the base's weight counts.
    """
    base, cohort = make_cohort()
    ids = list(cohort)
    cases = {
        "equal updates": dict.fromkeys(ids, cohort[ids[0]]),
        "one update of zero": cohort | {ids[2]: base},
        "updates of zero": dict.fromkeys(ids, base),
    }
    for case, clients in cases.items():
        out = aggregate(rule, base, clients, case)
        assert_finite(rule, out, case)
        if case == "updates of zero":
            layer = 0
            if out.base.numel() > 1:
                # A layer is a tensor or a module.
                names = out.report["layers"]
                layer = names.index("fc.weight" if "fc.weight" in names else "fc")
            expected = out.base[layer].item() * base["fc.weight"]
            why = f"{rule.name}: the model moves where no client did: "
            _assert_close(why, _state_dict(out)["fc.weight"], expected, rtol=1e-5, atol=1e-6)


def check_scales(rule: Weighting) -> None:
    """Updates of any size have a result."""
    g = torch.Generator().manual_seed(3)
    base = torch.randn(4000, generator=g).double()
    noise = torch.randn(6, 4000, generator=g).double()
    for scale in (1e-10, 1e-5, 1.0, 1e5, 1e10):
        case = f"updates of size {scale:g}"
        out = aggregate(
            rule, base, list(base + scale * noise), case, metrics=reports_for(rule, range(6))
        )
        assert_finite(rule, out, case)


def check_needs(rule: Weighting) -> None:
    """It reads all that it declares over two rounds, and a missing metric is named."""
    base, clients = make_cohort()
    root = with_default_source(rule)
    watched = Watched(rule)
    # In two rounds, of which the second is a critical period, it reads what it declares.
    table = {
        name: column
        for name, column in reports_for(rule, list(clients)).items()
        if name in root.needs.metrics
    }
    first = aggregate(watched, base, clients, metrics=table)
    if "grad_norm" in table:
        table["grad_norm"] = {c: 2 * value for c, value in table["grad_norm"].items()}
    aggregate(watched, base, clients, metrics=table, state=first.state, round=ROUND + 1)
    declared = set(rule.needs.metrics)
    declared |= {name for name in ("gram", "probe", "last_step") if getattr(rule.needs, name)}
    unread = sorted(declared - watched.reads)
    require(
        not unread,
        f"{rule.name}: declares {unread} in its needs and never reads them: leave them out",
    )
    # Without one of its metrics it must not run.
    for name in root.needs.metrics:
        rest = {other: column for other, column in table.items() if other != name}
        try:
            call_aggregate(rule, base, clients, metrics=rest, round=ROUND, probe=_probe_for(rule))
        except Exception as error:
            require(
                name in str(error),
                f"{rule.name}: without metric {name!r} it fails with {error!r}: name the metric",
            )
        else:
            raise AssertionError(f"{rule.name}: declares metric {name!r} and runs without it")


def check_purity(rule: Weighting) -> None:
    """It is deterministic and changes nothing that it is given."""
    base, clients = make_cohort()
    table = reports_for(rule, list(clients))
    state = copy.deepcopy(aggregate(rule, base, clients, metrics=table).state)
    before = copy.deepcopy((base, clients, table, state))
    one = aggregate(rule, base, clients, metrics=table, state=state, round=ROUND + 1)
    require(
        same_state(state, before[3]),
        f"{rule.name}: it changes the state it is given: return a new one",
    )
    two = aggregate(rule, base, clients, metrics=table, state=state, round=ROUND + 1)
    require(
        torch.equal(one.weights, two.weights) and same_bits(one.params, two.params),
        f"{rule.name}: two calls with the same input differ: draw random numbers from a seeded "
        f"generator only",
    )
    require(
        same_state(one.state, two.state),
        f"{rule.name}: two calls with the same input return different states",
    )
    require(same_bits(base, before[0]), f"{rule.name}: it changes the base model")
    require(
        all(same_bits(clients[c], before[1][c]) for c in clients),
        f"{rule.name}: it changes the clients' models",
    )
    require(table == before[2], f"{rule.name}: it changes the clients' reports")
    aggregate(Watched(rule), base, clients, metrics=table, state=state, round=ROUND + 1)


def check_saved_state(rule: Weighting) -> None:
    """Its state survives a file, and the next round is the same from it."""
    base, clients = make_cohort()
    state = aggregate(rule, base, clients).state
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state"
        try:
            save_state(path, state)
        except Exception as error:
            raise AssertionError(f"{rule.name}: its state cannot be saved: {error}") from error
        loaded = load_state(path)
    require(
        same_state(loaded, state),
        f"{rule.name}: its state comes back from a file as {loaded}, it was {state}",
    )
    straight = aggregate(rule, base, clients, state=state, round=ROUND + 1)
    resumed = aggregate(rule, base, clients, state=loaded, round=ROUND + 1)
    require(
        same_bits(straight.params, resumed.params),
        f"{rule.name}: the round after a saved state differs",
    )
    require(
        same_state(straight.state, resumed.state),
        f"{rule.name}: the state after a saved state differs",
    )


def check_changing_cohorts(rule: Weighting) -> None:
    """Each round may have other clients, and other numbers of them."""
    base: Any
    base, clients = make_cohort(8)
    ids = list(clients)
    table = reports_for(rule, ids)
    state: dict[str, Any] | None = None
    for t, members in enumerate([[0, 1, 2, 3], [4, 5, 6, 7], [0, 5, 2], [7, 1, 3, 4, 6]]):
        cohort = {ids[k]: clients[ids[k]] for k in members}
        out = aggregate(
            rule, base, cohort, "another cohort", metrics=table, state=state, round=ROUND + t
        )
        require(
            out.weights.shape[-1] == len(members),
            f"{rule.name}: wrong number of weights for another cohort",
        )
        assert_finite(rule, out, "another cohort")
        base, state = out.params, out.state
    fresh = aggregate(rule, base, {c: clients[c] for c in ids[:2]}, metrics=table)
    assert_finite(rule, fresh, "a fresh start")


def check_single_layer(rule: Weighting) -> None:
    """`per_layer` with one layer is the rule itself: it is written for arrays `[g, K]`."""
    if rule.needs.per_layer is not None or rule.needs.coordinates or rule.needs.probe:
        return
    base, clients = make_cohort()
    plain = aggregate(rule, base, clients)
    layered = aggregate(PerLayer(rule, layers=("*",)), base, clients)
    same = torch.equal(layered.weights[0], plain.weights) and same_bits(
        layered.params, plain.params
    )
    require(
        same,
        f"{rule.name}: per_layer with a single layer gives another result: write it for arrays [g, "
        f"K]",
    )


def check_dtypes(rule: Weighting) -> None:
    """Models of every float dtype keep it, and have the weights of the same models in float64."""
    tolerances = {
        torch.float16: 4e-3,
        torch.bfloat16: 3e-2,
        torch.float32: 1e-5,
        torch.float64: 1e-12,
    }
    for dtype, tolerance in tolerances.items():
        base, clients = make_cohort(dtype=dtype, step=0.2)
        out = aggregate(rule, base, clients)
        wide = aggregate(rule, _widen(base), {c: _widen(model) for c, model in clients.items()})
        for name, value in _state_dict(out).items():
            require(
                value.dtype == base[name].dtype,
                f"{rule.name}: {name} was {base[name].dtype} and is {value.dtype}",
            )
            require(
                value.shape == base[name].shape,
                f"{rule.name}: {name} has another shape than before",
            )
        why = f"{rule.name}: {dtype} gives another result than float64: "
        _assert_close(why, out.weights, wide.weights, rtol=1e-4, atol=1e-5)
        _assert_close(why, _widen(out.params), wide.params, rtol=tolerance, atol=tolerance)


def check_batchnorm(rule: Weighting) -> None:
    """BatchNorm statistics stay between those of the clients."""
    base, clients = make_cohort()
    params = _state_dict(aggregate(rule, base, clients))
    for name in ("bn.running_mean", "bn.running_var"):
        stacked = torch.stack([model[name] for model in clients.values()])
        above = (params[name] >= stacked.amin(0) - 1e-5).all()
        below = (params[name] <= stacked.amax(0) + 1e-5).all()
        require(above and below, f"{rule.name}: {name} leaves the range of the clients' values")
    count = params["bn.num_batches_tracked"]
    require(
        count.dtype == torch.int64 and count.item() == 6,
        f"{rule.name}: the counter of BatchNorm is {count}",
    )


RULE_CHECKS: tuple[Callable[[Weighting], None], ...] = (
    check_declaration,
    check_one_client,
    check_degenerate_updates,
    check_scales,
    check_purity,
    check_client_order,
    check_positions,
    check_needs,
    check_saved_state,
    check_changing_cohorts,
    check_single_layer,
    check_dtypes,
    check_batchnorm,
)


def aggregate(
    rule: Weighting, base: Any, clients: Any, case: str = "a plain round", **options: Any
) -> Aggregate:
    """Aggregates with reports of every metric, and with proxy data where the rule looks at it.

    Args:
        rule: the rule.
        base: the global model.
        clients: the clients' models.
        case: what is special about the round, for the sentence on a rule that fails.
        options: those of `steelyard.aggregate`.
    """
    options.setdefault("round", ROUND)
    if "metrics" not in options:
        options["metrics"] = reports_for(rule, list(clients))
    try:
        return call_aggregate(rule, base, clients, probe=_probe_for(rule), **options)
    except AssertionError:
        raise
    except Exception as error:
        raise AssertionError(
            f"{rule.name}: fails on {case} with {type(error).__name__}: {error}"
        ) from error


def reports_for(rule: Weighting, ids: Sequence[ClientId]) -> dict[str, dict[ClientId, Any]]:
    """Return what clients report: every metric of ours, and those of the rule's own."""
    return make_reports(ids, extra=rule.needs.metrics)


def assert_finite(rule: Weighting, out: Aggregate, case: str) -> None:
    """Raises AssertionError if weights or model hold NaN or infinity."""
    require(
        out.weights.isfinite().all(), f"{rule.name}: {case} gives weights {out.weights.tolist()}"
    )
    bad = [name for name, value in _state_dict(out).items() if not value.isfinite().all()]
    require(not bad, f"{rule.name}: {case} gives NaN or infinity in {', '.join(bad)}")


def _state_dict(out: Aggregate) -> Mapping[str, torch.Tensor]:
    """Return the new model as a state dict; a model that is one tensor is called `model`."""
    return {"model": out.params} if isinstance(out.params, torch.Tensor) else out.params


def _probe_for(rule: Weighting) -> Any:
    return QuadraticProbe() if with_default_source(rule).needs.probe else None


def _widen(params: Any) -> dict[str, torch.Tensor]:
    return {
        name: value.double() if value.is_floating_point() else value
        for name, value in params.items()
    }


def _assert_close(why: str, one: Any, other: Any, rtol: float, atol: float) -> None:
    torch.testing.assert_close(one, other, rtol=rtol, atol=atol, msg=lambda text: f"{why}{text}")


@dataclass(frozen=True)
class RecordingView(View):
    """A view that notes what is read."""

    reads: set[str] = field(default_factory=set)

    def metric(self, name: str) -> Any:
        """As in a plain view."""
        self.reads.add(name)
        return super().metric(name)

    def _gram(self, layers: Granularity | None) -> Gram:
        self.reads.add("gram")
        return super()._gram(layers)

    @property
    def last_step(self) -> StepProducts:
        """As in a plain view."""
        self.reads.add("last_step")
        return super().last_step

    @property
    def norms(self) -> Any:
        """As in a plain view."""
        self.reads.add("gram")
        return super().norms

    @property
    def probe(self) -> Trial:
        """As in a plain view."""
        self.reads.add("probe")
        return super().probe


@dataclass(frozen=True)
class Watched(Weighting):
    """A rule, with a note of all that it reads, and an error if it changes what it is given."""

    rule: Weighting
    reads: set[str] = field(default_factory=set)

    info = Info("a rule that is watched")

    def __post_init__(self) -> None:
        for attribute in ("name", "modifies", "scales"):
            object.__setattr__(self, attribute, getattr(self.rule, attribute))

    @property
    def needs(self) -> Needs:
        """Those of the rule."""
        return self.rule.needs

    @property
    def parts(self) -> tuple[Weighting, ...]:
        """The rule."""
        return (self.rule,)

    def apply(self, prior: Mixture, view: View, state: State) -> tuple[Mixture, State]:
        """Applies the rule, and compares its arguments before and after."""
        arrays = _arrays_of(self.rule, prior, view)
        before = {name: values.copy() for name, values in arrays.items()}
        settings = {item.name: getattr(view, item.name) for item in dataclasses.fields(View)}
        mixture, after = self.rule.apply(prior, RecordingView(**settings, reads=self.reads), state)
        for name, values in arrays.items():
            same = np.array_equal(values, before[name], equal_nan=True)
            require(same, f"{self.rule.name}: it changes {name} in place: work on a copy")
        return mixture, after


def _arrays_of(rule: Weighting, prior: Mixture, view: View) -> Mapping[str, np.ndarray[Any, Any]]:
    """Return the arrays that a rule could change in place, by name."""
    arrays = {"prior.weights": prior.weights, "prior.base": prior.base}
    arrays |= {f"view.metric({name!r})": values for name, values in view.metrics.items()}
    if rule.needs.gram:
        gram = view.grams(view.layers)
        for name in ("dots", "theta_dots", "theta_sq", "norms", "sq_norms", "model_sq_norms"):
            arrays[f"view.gram.{name}"] = getattr(gram, name)
        if gram.last_step is not None:
            for name in ("dots", "theta_dot", "square"):
                arrays[f"view.last_step.{name}"] = getattr(gram.last_step, name)
    return arrays
