"""Rounds to try rules on: models, clients and everything clients can report."""

from dataclasses import dataclass, replace

import torch

import steelyard
from steelyard.core._needs import Needs
from steelyard.core._registry import RULES
from steelyard.core._weighting import Info, Weighting
from steelyard.rules._detectors import DETECTORS, Detector
from steelyard.testing._rounds import QuadraticProbe as Quadratic
from steelyard.testing._rounds import make_cohort as cohort
from steelyard.testing._rounds import make_model as model
from steelyard.testing._rounds import make_reports as reports
from steelyard.testing._rounds import same_bits as equal
from steelyard.testing._rounds import same_state as equal_states

__all__ = [
    "Broken",
    "Quadratic",
    "aggregate_arrays",
    "cohort",
    "equal",
    "equal_states",
    "every_rule",
    "model",
    "reports",
]

REQUIRED = {"gamma": 0.9, "max_weight": 0.5}
SHORT = {
    "fedlaw": 3,
    "gws": 3,
    "law": 3,
    "fedlaw_swa": 14,
}  # epochs: their defaults would take minutes here


def aggregate_arrays(rule, theta, models, sizes, **options):
    """Aggregate models that are numpy arrays."""
    return steelyard.aggregate(
        rule,
        torch.from_numpy(theta),
        torch.from_numpy(models),
        metrics={"num_examples": sizes.tolist()},
        **options,
    )


def every_rule():
    """Every registered rule, found by itself: wrappers around FedAdp, detectors as gates."""
    made = {}
    inner = {RULES: steelyard.fedadp(), DETECTORS: steelyard.fgn_increase()}
    for entry in sorted([*RULES, *DETECTORS], key=lambda entry: entry.name):
        required = [name for name, p in entry.parameters.items() if p.default is p.empty]
        given = {
            name: inner[entry.slots[name]] if name in entry.slots else REQUIRED[name]
            for name in required
        }
        given |= {"epochs": SHORT[entry.name]} if entry.name in SHORT else {}
        part = entry.make(**given)
        made[entry.name] = (
            steelyard.gate(part, steelyard.fedadp()) if isinstance(part, Detector) else part
        )
        assert isinstance(made[entry.name], Weighting)
    return made


@dataclass(frozen=True)
class Broken(Weighting):
    """A rule whose weights are all this number."""

    weight: float

    name = "broken"
    modifies = True
    info = Info("no weights at all")

    @property
    def needs(self):
        return Needs()

    def apply(self, prior, view, state):
        return replace(prior, weights=prior.weights * self.weight), {"poisoned": True}
