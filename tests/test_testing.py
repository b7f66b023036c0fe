"""The checks for users' own parts find real mistakes, and say which."""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch

import steelyard
from steelyard.core._needs import Needs
from steelyard.core._state import scatter
from steelyard.core._term import ClientTerm, TermTags
from steelyard.core._weighting import Info, Weighting
from steelyard.testing import check_rule, check_term


@dataclass(frozen=True)
class Good(Weighting):
    """Weighs clients by their loss; each wrong rule below differs from it by one mistake."""

    name = "good"
    modifies = True
    info = Info("weighs clients by loss")

    @property
    def needs(self):
        return Needs.of("loss")

    def shares(self, prior, view, state):
        return prior.shares * view.metric("loss")

    def mixture(self, prior, view, state):
        return prior.reweight(self.shares(prior, view, state))

    def after(self, view, state):
        return {"loss": scatter(state.get("loss", {}), view.ids, view.metric("loss")[None])}

    def apply(self, prior, view, state):
        return self.mixture(prior, view, state), self.after(view, state)


@dataclass(frozen=True)
class DoesNotSum(Good):
    def mixture(self, prior, view, state):
        return replace(prior, weights=self.shares(prior, view, state))


@dataclass(frozen=True)
class ByPosition(Good):
    def shares(self, prior, view, state):
        return prior.shares * view.metric("loss") * (1 + np.arange(len(view.ids)))


@dataclass(frozen=True)
class ChangesThePrior(Good):
    def shares(self, prior, view, state):
        prior.weights[:] = view.metric("loss")
        return prior.weights


@dataclass(frozen=True)
class ChangesReports(Good):
    def shares(self, prior, view, state):
        loss = view.metric("loss")
        loss /= loss.sum()
        return prior.shares * loss


@dataclass(frozen=True)
class ChangesNorms(Good):
    @property
    def needs(self):
        return Needs.of("loss", gram=True)

    def shares(self, prior, view, state):
        norms = view.gram.norms
        norms += 1
        return prior.shares * view.metric("loss") / norms


@dataclass(frozen=True)
class ChangesState(Good):
    def after(self, view, state):
        state = state or {"rounds": []}
        state["rounds"].append(1)
        return state


@dataclass(frozen=True)
class Random(Good):
    def shares(self, prior, view, state):
        return (
            prior.shares * view.metric("loss") * np.random.default_rng().uniform(size=len(view.ids))
        )


@dataclass(frozen=True)
class CountsItsCalls(Good):
    calls: list = field(default_factory=list)

    def shares(self, prior, view, state):
        self.calls.append(1)
        return prior.shares * view.metric("loss") ** len(self.calls)


@dataclass(frozen=True)
class UnsavableState(Good):
    def after(self, view, state):
        return {"seen": {*state.get("seen", ()), *view.ids}}


@dataclass(frozen=True)
class TupleInState(Good):
    def after(self, view, state):
        return {"seen": tuple(view.ids)}


@dataclass(frozen=True)
class NotANumber(Good):
    def shares(self, prior, view, state):
        return prior.shares / (view.metric("loss") - view.metric("loss").max())


@dataclass(frozen=True)
class NaNForEqualUpdates(Good):
    @property
    def needs(self):
        return Needs.of("loss", gram=True)

    def mixture(self, prior, view, state):
        distance = np.sqrt(view.gram.sq_distances_to(prior.shares))
        with np.errstate(all="ignore"):
            return prior.reweight(prior.shares * view.metric("loss") / distance)


@dataclass(frozen=True)
class Undeclared(Good):
    def shares(self, prior, view, state):
        return prior.shares * view.metric("accuracy")


@dataclass(frozen=True)
class NeverRead(Good):
    @property
    def needs(self):
        return Needs.of("loss", "accuracy")


@dataclass(frozen=True)
class FixedCohort(Good):
    def shares(self, prior, view, state):
        old = list(state.get("loss", {}).values())[-len(view.ids) :] or 1.0
        return prior.shares * view.metric("loss") * np.asarray(old)

    def after(self, view, state):
        return {"loss": dict(zip(view.ids, view.metric("loss").tolist(), strict=True))}


class NoInfo(Good):
    info = "weighs clients"


def test_a_good_rule_passes():
    check_rule(Good())
    check_rule("fedadp:alpha=3")


@pytest.mark.parametrize(
    ("rule", "sentence"),
    [
        (DoesNotSum, "its weights sum to"),
        (ByPosition, "positions of clients"),
        (ChangesThePrior, "changes prior.weights in place"),
        (ChangesReports, r"changes view.metric\('loss'\) in place"),
        (ChangesNorms, "changes view.gram.norms in place"),
        (ChangesState, "changes the state it is given"),
        (Random, "two calls with the same input differ"),
        (CountsItsCalls, "two calls with the same input differ"),
        (UnsavableState, "its state cannot be saved: state holds a set"),
        (TupleInState, "comes back from a file"),
        (NotANumber, "a weight that is NaN or infinite"),
        (NaNForEqualUpdates, "fails on one client .* a weight that is NaN or infinite"),
        (Undeclared, "reads metric 'accuracy' but declares"),
        (NeverRead, r"declares \['accuracy'\] in its needs and never reads them"),
        (FixedCohort, "fails on another cohort with ValueError"),
        (NoInfo, "NoInfo.info is 'weighs clients'"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*:RuntimeWarning")
def test_a_wrong_rule_is_caught(rule, sentence):
    with pytest.raises(AssertionError, match=sentence):
        check_rule(rule())


def test_weights_may_be_scaled_on_purpose():
    check_rule(DoesNotSum(), sums_to_one=False)
    check_rule("fednova", sums_to_one=False)
    with pytest.raises(AssertionError, match="sum to"):
        check_rule("fednova")


@dataclass(frozen=True)
class Pull(ClientTerm):
    """A good term, with vectors at clients and at the server; each wrong one below differs by one mistake."""

    mu: float = 0.1

    name = "pull"
    info = Info("pulls clients back")
    client_slots = ("h",)
    server_slots = ("h",)
    tags = TermTags(reported_slots=("h",), changes_model=True)

    def add(self, grad, x, at):
        grad.add_(x - at.start + at.own["h"] - at.sent["h"], alpha=self.mu)

    def finish(self, x, at, work):
        at.own["h"].add_(x - at.start)

    def server_update(self, at):
        at.server_vectors["h"].add_((at.new["h"] - at.old["h"]).sum(dim=0) / at.population)
        at.theta.add_(at.server_vectors["h"])


class Overwrites(Pull):
    def add(self, grad, x, at):
        grad.copy_(x - at.start)


class ChangesX(Pull):
    def add(self, grad, x, at):
        grad.add_(x.sub_(at.start))


class MeanOverClients(Pull):
    def add(self, grad, x, at):
        grad.add_(x - x.mean(dim=0))


class ReadsUndeclared(Pull):
    def add(self, grad, x, at):
        grad.add_(at.sent["step"])


class DividesByZero(Pull):
    def add(self, grad, x, at):
        grad.add_((x - at.start) / (x - at.start).norm(dim=1, keepdim=True))


class NoisyTerm(Pull):
    def add(self, grad, x, at):
        grad.add_(
            torch.rand(x.shape, generator=torch.Generator().manual_seed(torch.seed() % 2**31))
        )


class ChangesSent(Pull):
    def finish(self, x, at, work):
        at.sent["h"].zero_()


class MovesSecretly(Pull):
    tags = TermTags(reported_slots=("h",))


class WritesSecretly(Pull):
    def server_update(self, at):
        at.new["h"].zero_()


class LooksAtNeighbours(Pull):
    def server_update(self, at):
        at.theta.add_(at.updates.mean())


class LooksSecretly(Pull):
    tags = TermTags(changes_model=True)


class ListsSlots(Pull):
    client_slots = ["h"]  # noqa: RUF012


def test_a_good_term_passes():
    check_term(Pull())
    check_term("fedprox:mu=0.3")


@pytest.mark.parametrize(
    ("term", "sentence"),
    [
        (Overwrites, "add overwrites the gradient"),
        (ChangesX, "add changes x"),
        (MeanOverClients, "depends on who trains beside it"),
        (ReadsUndeclared, "reads the vector 'step'"),
        (DividesByZero, "start of round 1 holds NaN"),
        (NoisyTerm, "two calls of add"),
        (ChangesSent, "finish changes 'h', which the server sent"),
        (MovesSecretly, "server_update changes theta: .*changes_model=True"),
        (WritesSecretly, "changes_client_vectors=True"),
        (LooksAtNeighbours, "where the model is cut"),
        (LooksSecretly, "reported_slots does not name"),
        (ListsSlots, "use a tuple of names"),
    ],
)
def test_a_wrong_term_is_caught(term, sentence):
    with pytest.raises(AssertionError, match=sentence):
        check_term(term())


def test_what_is_not_a_part_is_refused():
    with pytest.raises(steelyard.SteelyardError, match="pass a rule"):
        check_rule(3)
    with pytest.raises(steelyard.SteelyardError, match="client term"):
        check_term(3)
