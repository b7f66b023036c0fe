"""Every client term equals autograd of its formula, and the authors' own numbers where there are any."""

import random

import numpy as np
import pytest
import torch

import steelyard
from steelyard.client._fedcos import _BLOCK
from steelyard.core._errors import SteelyardError
from steelyard.core._registry import TERMS
from steelyard.core._term import ClientContext, ServerContext, Terms
from steelyard.testing import TERM_CHECKS
from tests.golden import arrays, assert_near, document, tensor

C, D = 3, 11


def seen(own=(), sent=(), lr=0.1, seed=0):
    g = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    return ClientContext(
        start=draw(1, D),
        lr=lr,
        own={name: draw(C, D) for name in own},
        sent={name: draw(D) for name in sent},
        relative_size=torch.tensor([[0.5], [1.0], [1.7]], dtype=torch.float64),
    )


def cosine(moved, step, eps):
    return 1 - (moved * step).sum() / torch.sqrt((moved**2).sum() * (step**2).sum() + eps)


FORMULAS = {
    "fedprox:mu=0.3": lambda x, at, k: 0.15 * ((x - at.start[0]) ** 2).sum(),
    "fedcos:mu=0.3": lambda x, at, k: 0.3 * cosine(x - at.start[0], at.sent["step"], 1e-4),
    "fedcos:mu=0.3,form=paper": lambda x, at, k: (
        0.3 * cosine(x - at.start[0], at.sent["step"], 0.0)
    ),
    "feddyn:alpha=0.2": lambda x, at, k: (
        0.2
        / at.relative_size[k, 0]
        * ((x * (at.own["h"][k] - at.start[0])).sum() + 0.5 * (x**2).sum())
    ),
    "feddyn:alpha=0.2,form=fedlaw": lambda x, at, k: (
        0.1 * (x - at.start[0]).norm() + 0.2 * (x * at.own["h"][k]).sum()
    ),
    "scaffold": lambda x, at, k: (x * (at.sent["control"] - at.own["control"][k])).sum(),
    "vrlsgd": lambda x, at, k: -(x * at.own["delta"][k]).sum(),
}


@pytest.mark.parametrize("text", FORMULAS)
def test_a_term_is_the_gradient_of_its_formula(text):
    (term,) = steelyard.parse_terms(text)
    at = seen(term.client_slots, {*term.server_slots, *term.needs.broadcast})
    x = torch.randn(C, D, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    grad = torch.ones(C, D, dtype=torch.float64)
    term.add(grad, x, at)
    for k in range(C):
        point = x[k].clone().requires_grad_()
        FORMULAS[text](point, at, k).backward()
        assert_near(grad[k] - 1, point.grad, 1e-12)


# Terms that add to the loss, not to the gradient: tests/client/test_features.py has their formulas.
FEATURE_TERMS = (
    "fedproto",
    "fedproto:average=clients",
    "fpl",
    "fpl:regression=sum,max_clusters=1",
    "creff:features=3,match_steps=2,epochs=2",
)


@pytest.mark.parametrize("check", TERM_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("text", [*FORMULAS, *FEATURE_TERMS])
def test_every_term_keeps_the_contract(text, check):
    (term,) = steelyard.parse_terms(text)
    check(term)


def test_every_term_has_a_formula_here():
    names = {text.split(":")[0] for text in (*FORMULAS, *FEATURE_TERMS)}
    assert names == {entry.name for entry in TERMS}


@pytest.mark.parametrize("scale", ["1.0", "0.01"])
@pytest.mark.parametrize("case", ["at_start", "aligned", "opposed", "tiny", "random", "random_big"])
def test_fedcos_equals_the_authors_penalty(scale, case):
    data = arrays("fedcos_penalty")
    start = tensor(np.concatenate([data["x0_w"], data["x0_b"]]))
    step = tensor(np.concatenate([data["d_w"], data["d_b"]])) * float(scale)
    at = ClientContext(start[None], 0.1, {}, {"step": step}, torch.ones(1, 1))
    grad = torch.zeros(1, 8, dtype=torch.float64)
    steelyard.fedcos(mu=0.02).add(
        grad, (start + tensor(data[f"scale{scale}/{case}/delta"]))[None], at
    )
    expected = data[f"scale{scale}/{case}/grad"]
    assert_near(grad[0], expected, 1e-6 * max(1.0, np.abs(expected).max()))


@pytest.mark.parametrize("form", ["official", "paper"])
def test_fedcos_does_nothing_without_a_last_step(form):
    at = seen(sent=["step"])
    at.sent["step"].zero_()
    grad = torch.zeros(C, D, dtype=torch.float64)
    steelyard.fedcos(form=form).add(grad, at.start + 1.0, at)
    assert not grad.any()


@pytest.mark.parametrize("start_count", [1, 5], ids=["one start", "a start per client"])
def test_fedcos_on_a_large_model_gives_each_client_the_bits_it_has_alone(start_count):
    clients = 5
    size = _BLOCK // 2  # two clients at a time, and one is left
    x = torch.randn(clients, size)
    starts = torch.randn(start_count, size)
    sent = {"step": torch.randn(size)}
    together = torch.randn(clients, size)
    alone = together.clone()
    term = steelyard.fedcos(mu=0.02)

    term.add(together, x, ClientContext(starts, 0.1, {}, sent, torch.ones(clients, 1)))
    for client in range(clients):
        start = starts[client if start_count > 1 else 0]
        at = ClientContext(start[None], 0.1, {}, sent, torch.ones(1, 1))
        term.add(alone[client : client + 1], x[client : client + 1], at)

    assert torch.equal(together, alone)


def test_fedcos_at_the_start_pulls_along_the_step_or_not_at_all():
    at = seen(sent=["step"])
    official, paper = torch.zeros(1, D, dtype=torch.float64), torch.zeros(1, D, dtype=torch.float64)
    steelyard.fedcos(mu=0.02).add(official, at.start.clone(), at)
    steelyard.fedcos(mu=0.02, form="paper").add(paper, at.start.clone(), at)
    assert_near(official[0], -100 * 0.02 * at.sent["step"], 1e-12)
    assert not paper.any()


def server_update(
    term, theta, before, updates, weights, kept, old=None, new=None, work=None, lr=0.1, population=4
):
    empty = {slot: torch.zeros_like(updates) for slot in term.client_slots}
    term.server_update(
        ServerContext(
            theta=theta,
            before=before,
            updates=updates,
            weights=weights,
            old=old or empty,
            new=new or empty,
            server_vectors=kept,
            work=torch.ones(len(updates)) if work is None else work,
            lr=lr,
            population=population,
        )
    )


def test_feddyn_server_equals_fedlaws_code():
    data = arrays("fedlaw_baselines")
    theta = tensor(data["g0"])
    weights = tensor(data["sizes"] / data["sizes"].sum())
    term = steelyard.feddyn(alpha=0.01, form="fedlaw")
    kept = {"h": torch.zeros_like(theta)}
    for deltas, expected in zip(
        data["client_deltas"], data["feddyn/global_after_round"], strict=True
    ):
        updates = tensor(deltas)
        after = theta + weights @ updates
        server_update(term, after, theta, updates, weights, kept)
        assert_near(after, expected, 1e-9)
        theta = after


def test_feddyn_official_adds_the_mean_over_all_clients_and_shows_the_average():
    term = steelyard.feddyn()
    before = torch.zeros(D, dtype=torch.float64)
    updates = torch.randn(2, D, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    average = updates.mean(dim=0)
    theta, kept = average.clone(), {"h": torch.zeros(D, dtype=torch.float64)}
    server_update(
        term, theta, before, updates, torch.full((2,), 0.5, dtype=torch.float64), kept, population=8
    )
    assert_near(kept["h"], updates.sum(dim=0) / 8, 1e-12)
    assert_near(theta, average + kept["h"], 1e-12)
    assert_near(term.params_to_evaluate(theta, kept), average, 1e-12)


def test_scaffold_control_variates():
    term = steelyard.scaffold()
    at = seen(["control"], ["control"], lr=0.1)
    before = at.own["control"].clone()
    x = at.start + torch.ones(C, D, dtype=torch.float64)
    work = torch.full((C, 1), 5.0, dtype=torch.float64)
    term.finish(x, at, work)
    assert_near(at.own["control"], before - at.sent["control"] - 1 / (5 * 0.1), 1e-12)
    kept = {"control": torch.zeros(D, dtype=torch.float64)}
    zero = torch.zeros(D, dtype=torch.float64)
    server_update(
        term,
        zero.clone(),
        zero,
        x - at.start,
        torch.ones(C),
        kept,
        {"control": before},
        dict(at.own),
        population=9,
    )
    assert_near(kept["control"], (at.own["control"] - before).sum(dim=0) / 9, 1e-12)


def test_vrlsgd_moves_delta_by_the_distance_to_the_new_model():
    term = steelyard.vrlsgd(scale=0.5)
    g = torch.Generator().manual_seed(0)
    before, updates = torch.randn(D, generator=g), torch.randn(2, D, generator=g)
    theta, delta = before + updates.mean(dim=0), torch.zeros(2, D)
    server_update(
        term,
        theta,
        before,
        updates,
        torch.ones(2),
        {},
        new={"delta": delta},
        work=torch.tensor([4.0, 8.0]),
        lr=0.1,
    )
    models = before + updates
    assert_near(delta, 0.5 * (theta - models) / (torch.tensor([[4.0], [8.0]]) * 0.1), 1e-5)


@pytest.mark.parametrize("clients", [4, 5])
@pytest.mark.parametrize("t", [0, 10, 60])
def test_fedmut_equals_the_authors_coefficients(clients, t):
    expected = document("fedmut")[f"m{clients}_iter{t}"]["coef_of_delta_per_model_and_key"]
    assert_near(steelyard.fedmut().mutations(clients, 3, t, random.Random(123)), expected, 1e-12)


def test_terms_add_up():
    terms = steelyard.fedprox(mu=0.1) + steelyard.fedcos() + steelyard.scaffold()
    assert [term.name for term in terms] == ["fedprox", "fedcos", "scaffold"]
    assert terms == steelyard.parse_terms("fedprox:mu=1e-1+fedcos+scaffold")
    assert terms.needs.broadcast == {"step"}
    assert terms.proximal == 0.1
    assert steelyard.parse_terms(None) == Terms() == steelyard.parse_terms("none")
    assert steelyard.parse_terms("fedprox:mu=1e+1").proximal == 10
    with pytest.raises(SteelyardError, match="use each term once"):
        steelyard.parse_terms("fedprox+fedprox:mu=2")


def test_an_algorithm_is_its_parts_and_says_so():
    made = steelyard.Algorithm(
        "feddisco|fedawa:steps=3",
        client="fedprox:mu=0.5+fedcos",
        server="momentum",
        broadcast="fedmut",
    )
    assert made == steelyard.Algorithm(
        "feddisco|fedawa:steps=3",
        client=steelyard.fedprox(mu=0.5) + steelyard.fedcos(),
        server=steelyard.momentum(),
        broadcast=steelyard.fedmut(),
    )
    assert (
        str(made)
        == "feddisco|fedawa:steps=3 client=fedprox:mu=0.5+fedcos server=momentum broadcast=fedmut"
    )
    assert made.needs.metrics == {"num_examples", "label_hist"}
    assert made.needs.broadcast == {"step", "move"}
    assert made.needs.gram
    assert steelyard.Algorithm("fedavg", client="none", server="none").texts["server"] is None
    with pytest.raises(SteelyardError, match="not a client term"):
        steelyard.Algorithm("fedavg", client=steelyard.momentum())
    with pytest.raises(
        SteelyardError, match="unknown client term 'fedprx': did you mean 'fedprox'"
    ):
        steelyard.Algorithm("fedavg", client="fedprx")
