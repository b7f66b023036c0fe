"""Shadow rules: they see every round, and can neither change nor break it."""

from dataclasses import dataclass

import pytest
import torch

import steelyard
from steelyard import SteelyardError
from steelyard.core import Info, Needs, Weighting
from steelyard.metrics import METRICS
from steelyard.recorder._shadow import ShadowRules
from tests.sim.runs import Stop

OPTIONS = {"rounds": 6, "clients": 8, "executor": "serial", "participation": {"share": 0.7}}
RULES = ["fedadp", "feddisco|fedawa", "geometric_median"]


def test_shadow_rules_do_not_change_the_run(tmp_path):
    alone = steelyard.simulate("fedavg", "digits", **OPTIONS)
    watched = steelyard.simulate("fedavg", "digits", shadow=RULES, out=tmp_path, **OPTIONS)
    for name, tensor in alone.params.items():
        assert torch.equal(tensor, watched.params[name])
    for record, other in zip(alone.records, watched.records, strict=True):
        assert record["weights"] == other["weights"]
        assert set(other["shadow_weights"]) == set(RULES)


def test_shadow_weights_are_those_of_a_replay(tmp_path):
    history = steelyard.simulate("fedavg", "digits", shadow=RULES, out=tmp_path, **OPTIONS)
    result = steelyard.replay(history, RULES)
    for rule in RULES:
        for record, replayed in zip(history.records, result.rounds[rule], strict=True):
            weights = {str(client): weight for client, weight in replayed.weights.items()}
            assert record["shadow_weights"][rule] == weights


def test_the_state_of_shadow_rules_survives_a_resume(tmp_path):
    options = {**OPTIONS, "shadow": RULES, "checkpoint_pace": 1.0}
    whole = steelyard.simulate("fedavg", "digits", out=tmp_path / "whole", **options)
    with pytest.raises(KeyboardInterrupt):
        steelyard.simulate("fedavg", "digits", out=tmp_path / "run", callbacks=[Stop(3)], **options)
    resumed = steelyard.simulate("fedavg", "digits", out=tmp_path / "run", resume=True, **options)
    assert whole.column("shadow_weights") == resumed.column("shadow_weights")
    assert (tmp_path / "run" / "grams.bin").read_bytes() == (
        tmp_path / "whole" / "grams.bin"
    ).read_bytes()


def test_a_resumed_run_may_have_other_shadow_rules(tmp_path):
    steelyard.simulate("fedavg", "digits", out=tmp_path, **{**OPTIONS, "rounds": 2})
    history = steelyard.simulate(
        "fedavg", "digits", out=tmp_path, resume=True, shadow="feddisco", **OPTIONS
    )
    assert "shadow_weights" not in history.records[1]
    assert set(history.records[2]["shadow_weights"]) == {"feddisco"}


@dataclass(frozen=True)
class Crash(Weighting):
    """Fails in round 3."""

    name = "crash"
    info = Info("fails")
    modifies = False

    @property
    def needs(self):
        return Needs.of("num_examples")

    def apply(self, prior, view, state):
        if view.round >= 3:
            raise ZeroDivisionError("round 3")
        return prior, {"seen": view.round}


def test_a_crashing_shadow_rule_is_noted_and_left_out():
    shadow = ShadowRules([Crash(), "fedadp"])
    base = torch.zeros(6)
    states = []
    for number in range(1, 6):
        clients = base + torch.randn(4, 6, generator=torch.Generator().manual_seed(number))
        out = steelyard.aggregate(
            "fedavg", base, clients, metrics={"num_examples": [1, 2, 3, 4]}, diagnose=True
        )
        seen = out.gram.__class__(**{**vars(out.gram), "round": number})
        states.append(shadow.observe(seen, None, None))
    assert [sorted(entry["shadow_weights"]) for entry in states] == (
        [["crash", "fedadp"]] * 2 + [["fedadp"]] * 3
    )
    assert states[2]["shadow_failures"] == {"crash": "ZeroDivisionError: round 3"}
    assert "shadow_failures" not in states[3]


def test_the_loss_of_every_rule_on_proxy_data():
    history = steelyard.simulate(
        "fedavg", "digits", shadow=["uniform", "fedavg"], proxy={"per_class": 2}, **OPTIONS
    )
    for record in history.records:
        losses = record["shadow_loss"]
        assert set(losses) == {"run", "uniform", "fedavg"}
        assert losses["run"] == losses["fedavg"]
    assert any(
        record["shadow_loss"]["run"] != record["shadow_loss"]["uniform"] for record in history
    )


@pytest.mark.parametrize(
    ("shadow", "reason"),
    [
        (["fedlaw"], "proxy data"),
        (["median"], "single coordinates"),
        (["nonsense"], "nonsense"),
        (["fedawa_l"], "record the layers"),
        (5, "use a list of texts"),
    ],
)
def test_a_shadow_that_cannot_work_is_refused_before_the_run(shadow, reason):
    with pytest.raises(SteelyardError, match=reason):
        steelyard.Experiment("fedavg", shadow=shadow)


def test_a_metric_that_changes_training_must_be_asked_for():
    with pytest.raises(SteelyardError, match=r"pa3fed needs 'grad_norm'.*metrics="):
        steelyard.simulate("fedavg", "digits", shadow="pa3fed", **OPTIONS)
    options = {**OPTIONS, "metrics": ("grad_norm",)}
    alone = steelyard.simulate("fedavg", "digits", **options)
    watched = steelyard.simulate("fedavg", "digits", shadow="pa3fed", **options)
    for name, tensor in alone.params.items():
        assert torch.equal(tensor, watched.params[name])
    assert "pa3fed" in watched.records[-1]["shadow_weights"]


@pytest.mark.parametrize("name", sorted(METRICS))
def test_only_marked_metrics_change_training(name):
    alone = steelyard.simulate("fedavg", "digits", **OPTIONS)
    measured = steelyard.simulate("fedavg", "digits", metrics=(name,), **OPTIONS)
    is_same = all(torch.equal(alone.params[key], measured.params[key]) for key in alone.params)
    assert is_same or METRICS[name].changes_training


def test_a_layered_shadow_works_if_layers_are_recorded():
    history = steelyard.simulate(
        "fedavg", "digits", shadow="fedawa_l", record="gram:layers=tensor", **OPTIONS
    )
    assert "fedawa_l" in history.records[0]["shadow_weights"]
