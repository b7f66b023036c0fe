"""What every client term must do, one function per fact."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from steelyard.algorithm import parse_terms
from steelyard.core._needs import Needs
from steelyard.core._registry import TERMS
from steelyard.core._side_channel import Classifier, Specs
from steelyard.core._spec import to_text
from steelyard.core._term import (
    ClientContext,
    ClientTerm,
    FeatureTerm,
    ServerContext,
    TensorContext,
    TermTags,
    Vectors,
)
from steelyard.core._weighting import Info
from steelyard.testing._rounds import is_frozen_dataclass, require

CLIENTS = 3
DIM = 101
LR = 0.1
_CUT = 37  # where a model is cut in two stretches


def check_term(term: str | ClientTerm) -> None:
    """Checks that a client term keeps the contract of all terms.

    Args:
        term: a client term, or its text form.

    Raises:
        AssertionError: with a sentence that says what the term does wrong.
    """
    (part,) = parse_terms(term)
    for check in TERM_CHECKS:
        check(part)


def check_declaration(term: ClientTerm) -> None:
    """It is a frozen dataclass with a name, an info and slots, and its text form builds it again."""
    kind = type(term)
    require(
        isinstance(term, ClientTerm), f"{term!r} is not a ClientTerm: derive its class from that"
    )
    require(
        is_frozen_dataclass(kind),
        f"{kind.__name__} is not a frozen dataclass: decorate it with @dataclass(frozen=True)",
    )
    for attribute, wanted in (
        ("name", str),
        ("info", Info),
        ("needs", Needs),
        ("tags", TermTags),
        ("proximal", (int, float)),
    ):
        value = getattr(term, attribute, None)
        require(
            isinstance(value, wanted),
            f"{kind.__name__}.{attribute} is {value!r}: give it another type",
        )
    slots_by_attribute = {
        "client_slots": term.client_slots,
        "server_slots": term.server_slots,
        "tags.reported_slots": term.tags.reported_slots,
    }
    for attribute, slots in slots_by_attribute.items():
        plain = isinstance(slots, tuple) and all(isinstance(slot, str) for slot in slots)
        require(
            plain and len(set(slots)) == len(slots),
            f"{term.name}: {attribute} is {slots!r}: use a tuple of names",
        )
    unknown = set(term.tags.reported_slots) - set(term.client_slots)
    require(
        not unknown,
        f"{term.name}: tags.reported_slots has {sorted(unknown)}, which are not in client_slots",
    )
    require(
        copy.deepcopy(term) == term,
        f"{term.name}: a copy is not equal to it: keep its options in dataclass fields",
    )
    if term.name in TERMS:
        text = to_text(term)
        try:
            (again,) = parse_terms(text)
        except Exception as error:
            raise AssertionError(
                f"{term.name}: its text form {text!r} builds nothing: {error}"
            ) from error
        require(again == term, f"{term.name}: its text form {text!r} builds another term")


def check_add(term: ClientTerm) -> None:
    """`add` adds to the gradient in place, is deterministic, and changes nothing else."""
    x = _draw(7, CLIENTS, DIM)
    at = client_context(term)
    before = copy.deepcopy((x, at))
    zero = torch.zeros(CLIENTS, DIM, dtype=torch.float64)
    grad = _add(term, zero, x, at)
    require(bool(grad.isfinite().all()), f"{term.name}: its gradient holds NaN or infinity")
    require(torch.equal(x, before[0]), f"{term.name}: add changes x: work on a copy")
    _assert_same_context(term, at, before[1], "add")
    require(
        torch.equal(grad, _add(term, zero, x, at)),
        f"{term.name}: two calls of add with the same input differ",
    )
    ones = _add(term, zero + 1, x, at)
    message = f"{term.name}: add overwrites the gradient: add to it, grad.add_(...)"
    torch.testing.assert_close(ones - 1, grad, rtol=1e-9, atol=1e-9, msg=message)


def check_clients_are_independent(term: ClientTerm) -> None:
    """A client's gradient and vectors have the same bits whoever trains beside it."""
    x = _draw(7, CLIENTS, DIM)
    at = client_context(term)
    zero = torch.zeros(CLIENTS, DIM, dtype=torch.float64)
    together = _add(term, zero, x, at)
    finished = copy.deepcopy(at)
    _finish(term, x, finished, _work())
    for k in range(CLIENTS):
        alone = _only_client(at, k)
        require(
            torch.equal(_add(term, zero[k : k + 1], x[k : k + 1], alone), together[k : k + 1]),
            f"{term.name}: a client's gradient depends on who trains beside it: reduce over dim=1 "
            f"only",
        )
        alone = copy.deepcopy(alone)
        _finish(term, x[k : k + 1], alone, _work()[k : k + 1])
        for slot in term.client_slots:
            require(
                torch.equal(alone.own[slot], finished.own[slot][k : k + 1]),
                f"{term.name}: a client's {slot!r} depends on who trains beside it",
            )


def check_first_step(term: ClientTerm) -> None:
    """In round 1, at the start, where all vectors are zero, its gradient is finite."""
    at = client_context(term)
    for vector in (*at.own.values(), *at.sent.values()):
        vector.zero_()
    x = at.start.expand(CLIENTS, DIM).clone()
    grad = _add(term, torch.zeros_like(x), x, at)
    require(
        bool(grad.isfinite().all()),
        f"{term.name}: its gradient at the start of round 1 holds NaN or infinity",
    )


def check_finish(term: ClientTerm) -> None:
    """`finish` changes the clients' own vectors and nothing else."""
    x = _draw(7, CLIENTS, DIM)
    at = client_context(term)
    before = copy.deepcopy((x, at))
    _finish(term, x, at, _work())
    require(torch.equal(x, before[0]), f"{term.name}: finish changes x")
    _assert_same_context(term, dataclasses.replace(at, own=before[1].own), before[1], "finish")
    for slot in term.client_slots:
        values = at.own[slot]
        require(
            values.shape == (CLIENTS, DIM),
            f"{term.name}: finish gives {slot!r} the shape {tuple(values.shape)}",
        )
        require(
            bool(values.isfinite().all()), f"{term.name}: finish puts NaN or infinity into {slot!r}"
        )


def check_server_update(term: ClientTerm) -> None:
    """`server_update` works coordinate by coordinate, and changes only what the term declares."""
    at = server_context(term)
    before = copy.deepcopy(at)
    _server_update(term, at)
    # Only what is declared has changed, and all of it is finite.
    frozen = ["before", "updates", "weights", "work"]
    if not term.tags.changes_model:
        frozen.append("theta")
    for name in frozen:
        hint = ": use TermTags(changes_model=True)" if name == "theta" else ""
        require(
            torch.equal(getattr(at, name), getattr(before, name)),
            f"{term.name}: server_update changes {name}{hint}",
        )
    _assert_same_vectors(
        term, at.old, before.old, "server_update changes the old {slot!r} of clients"
    )
    if not term.tags.changes_client_vectors:
        message = (
            "server_update changes {slot!r} of clients: use TermTags(changes_client_vectors=True)"
        )
        _assert_same_vectors(term, at.new, before.new, message)
    for values in (at.theta, *at.new.values(), *at.server_vectors.values()):
        require(bool(values.isfinite().all()), f"{term.name}: server_update makes NaN or infinity")
    # Two stretches of the model, one after the other, are the whole.
    pieces = [server_context(term, slice(0, _CUT)), server_context(term, slice(_CUT, DIM))]
    for piece in pieces:
        _server_update(term, piece)
    message = f"{term.name}: server_update depends on where the model is cut: work coordinate by coordinate"
    _assert_joined(message, at.theta, [piece.theta for piece in pieces])
    for slot in term.server_slots:
        _assert_joined(
            message, at.server_vectors[slot], [piece.server_vectors[slot] for piece in pieces]
        )
    for slot in term.client_slots:
        _assert_joined(message, at.new[slot], [piece.new[slot] for piece in pieces])


def check_reported_slots(term: ClientTerm) -> None:
    """Model and server's vectors depend on those vectors of clients alone that `tags.reported_slots` names."""
    at = server_context(term)
    other = server_context(term)
    for slot in set(term.client_slots) - set(term.tags.reported_slots):
        other.new[slot].add_(1.0)
    _server_update(term, at)
    _server_update(term, other)
    unchanged = torch.equal(at.theta, other.theta)
    unchanged &= all(
        torch.equal(at.server_vectors[slot], other.server_vectors[slot])
        for slot in term.server_slots
    )
    require(
        unchanged,
        f"{term.name}: server_update looks at vectors of clients that tags.reported_slots does not name",
    )


def check_evaluated_params(term: ClientTerm) -> None:
    """The model to evaluate is a new one of the same shape; the model that is sent stays."""
    at = server_context(term)
    before = copy.deepcopy((at.theta, at.server_vectors))
    shown = term.params_to_evaluate(at.theta, at.server_vectors)
    require(
        shown.shape == at.theta.shape,
        f"{term.name}: params_to_evaluate returns the shape {tuple(shown.shape)}",
    )
    require(
        torch.equal(at.theta, before[0]),
        f"{term.name}: params_to_evaluate changes theta: return a new vector",
    )
    _assert_same_vectors(term, at.server_vectors, before[1], "params_to_evaluate changes {slot!r}")


# Feature terms: the loss, and the side channel.

CLASSIFIER = Classifier("head", classes=4, dim=6, has_bias=True)
_SAMPLES = 11
_LABELS = (0, 1, 1, 0, 2, 0, 1, 2, 1, 0, 0)  # nobody has the last class


def check_tensor_declarations(term: ClientTerm) -> None:
    """What clients send, and the tensors that the server starts with, are as they are declared."""
    if not isinstance(term, FeatureTerm):
        return
    server = start_tensors(term)
    _assert_declared(term, server, term.server_tensors(CLASSIFIER), "init_tensors")
    features, _, targets = feature_batch()
    at = feature_context(term, server)
    summaries = term.summarize(features, targets, CLASSIFIER, at)
    _assert_declared(term, summaries, term.client_tensors(CLASSIFIER), "summarize")
    require(
        term.summarized_model in ("trained", "received"),
        f"{term.name}: summarized_model is {term.summarized_model!r}: use 'trained' or 'received'",
    )


def check_feature_loss(term: ClientTerm) -> None:
    """`loss` is one finite number in every round, is deterministic, and changes nothing."""
    if not isinstance(term, FeatureTerm):
        return
    for tensors in (start_tensors(term), update_tensors(term)):
        features, outputs, targets = feature_batch()
        features.requires_grad_()
        at = feature_context(term, tensors)
        before = copy.deepcopy(at.tensors)
        loss = term.loss(features, outputs, targets, at)
        again = term.loss(features, outputs, targets, at)
        require(
            loss.shape == () and bool(loss.isfinite()),
            f"{term.name}: loss returns {loss}: return one finite number",
        )
        require(torch.equal(loss, again), f"{term.name}: two calls of loss differ")
        _assert_same_vectors(term, at.tensors, before, "loss changes {slot!r} of the server")
        if loss.requires_grad:
            (slope,) = torch.autograd.grad(loss, features)
            require(
                bool(slope.isfinite().all()),
                f"{term.name}: the gradient of its loss holds NaN or infinity",
            )


def check_update_tensors(term: ClientTerm) -> None:
    """`update_tensors` keeps shapes, depends on its random generator alone, and changes no message."""
    if not isinstance(term, FeatureTerm):
        return
    tensors = update_tensors(term)
    _assert_declared(term, tensors, term.server_tensors(CLASSIFIER), "update_tensors")
    again = update_tensors(term)
    _assert_same_vectors(term, again, tensors, "two calls of update_tensors differ in {slot!r}")


def feature_batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return features, outputs and targets of a batch."""
    features = _draw(51, _SAMPLES, CLASSIFIER.dim).float()
    outputs = _draw(52, _SAMPLES, CLASSIFIER.classes).float()
    return features, outputs, torch.tensor(_LABELS)


def feature_context(term: FeatureTerm, tensors: Vectors) -> ClientContext:
    """Return what a feature term sees at a client: of the server's tensors, those that are sent."""
    specs = term.server_tensors(CLASSIFIER)
    sent = {name: tensors[name] for name, spec in specs.items() if spec.is_sent}
    return dataclasses.replace(client_context(term), tensors=sent)


def start_tensors(term: FeatureTerm) -> dict[str, torch.Tensor]:
    """Return the server's tensors before the first round."""
    values = term.init_tensors(CLASSIFIER, np.random.default_rng(0))
    specs = term.server_tensors(CLASSIFIER)
    zeros = {name: torch.zeros(spec.shape, dtype=spec.dtype) for name, spec in specs.items()}
    return {**zeros, **values}


def update_tensors(term: FeatureTerm) -> dict[str, torch.Tensor]:
    """Return the server's tensors after a round of clients that have different data."""
    tensors = start_tensors(term)
    at = feature_context(term, tensors)
    features, _, targets = feature_batch()
    messages = []
    for client in range(CLIENTS):
        part = slice(client, None)
        messages.append(term.summarize(features[part] + client, targets[part], CLASSIFIER, at))
    stacked = {
        name: torch.stack([message[name] for message in messages])
        for name in term.client_tensors(CLASSIFIER)
    }
    before = copy.deepcopy(stacked)
    rng = np.random.default_rng(1)
    term.update_tensors(TensorContext(stacked, tensors, CLASSIFIER, rng))
    _assert_same_vectors(term, stacked, before, "update_tensors changes the message {slot!r}")
    return tensors


def _assert_declared(term: FeatureTerm, tensors: Vectors, specs: Specs, method: str) -> None:
    """Require that the tensors have the names, shapes and dtypes that the term declares."""
    require(
        tensors.keys() == specs.keys(),
        f"{term.name}: {method} returns {sorted(tensors)}, declared are {sorted(specs)}",
    )
    for name, spec in specs.items():
        problem = spec.find_problem(tensors[name])
        require(problem is None, f"{term.name}: {name!r} of {method} {problem}")


TERM_CHECKS: tuple[Callable[[ClientTerm], None], ...] = (
    check_declaration,
    check_add,
    check_first_step,
    check_clients_are_independent,
    check_finish,
    check_server_update,
    check_reported_slots,
    check_evaluated_params,
    check_tensor_declarations,
    check_feature_loss,
    check_update_tensors,
)


def client_context(term: ClientTerm, clients: int = CLIENTS, dim: int = DIM) -> ClientContext:
    """Return what a term sees at clients, with the vectors it declares and no others."""
    sent = sorted({*term.server_slots, *term.needs.broadcast})
    return ClientContext(
        start=_draw(1, 1, dim),
        lr=LR,
        own={slot: _draw(10 + k, clients, dim) for k, slot in enumerate(term.client_slots)},
        sent={name: _draw(20 + k, dim) for k, name in enumerate(sent)},
        relative_size=torch.linspace(0.5, 1.7, clients, dtype=torch.float64)[:, None],
    )


def server_context(term: ClientTerm, part: slice = slice(0, DIM)) -> ServerContext:
    """Return what a term sees at the server, for a stretch of the model."""
    before = _draw(1, DIM)
    updates = _draw(2, CLIENTS, DIM)
    weights = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    theta = before + (weights[:, None] * updates).sum(dim=0)
    old = {
        slot: _draw(10 + k, CLIENTS, DIM)[:, part].clone()
        for k, slot in enumerate(term.client_slots)
    }
    new = {slot: values + _draw(30, CLIENTS, DIM)[:, part] for slot, values in old.items()}
    return ServerContext(
        theta=theta[part].clone(),
        before=before[part].clone(),
        updates=updates[:, part].clone(),
        weights=weights,
        old=old,
        new=new,
        server_vectors={
            slot: _draw(40 + k, DIM)[part].clone() for k, slot in enumerate(term.server_slots)
        },
        work=_work()[:, 0],
        lr=LR,
        population=9,
    )


def _draw(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _work() -> torch.Tensor:
    """Return the local steps of each client, `[C, 1]`."""
    return torch.tensor([[4.0], [5.0], [8.0]], dtype=torch.float64)


def _only_client(at: ClientContext, k: int) -> ClientContext:
    own = {slot: rows[k : k + 1] for slot, rows in at.own.items()}
    return dataclasses.replace(at, own=own, relative_size=at.relative_size[k : k + 1])


def _add(term: ClientTerm, grad: torch.Tensor, x: torch.Tensor, at: ClientContext) -> torch.Tensor:
    """Return a copy of `grad` to which the term has added its gradient."""
    result = grad.clone()
    _run(term, "add", lambda: term.add(result, x, at))
    return result


def _finish(term: ClientTerm, x: torch.Tensor, at: ClientContext, work: torch.Tensor) -> None:
    _run(term, "finish", lambda: term.finish(x, at, work))


def _server_update(term: ClientTerm, at: ServerContext) -> None:
    _run(term, "server_update", lambda: term.server_update(at))


def _run(term: ClientTerm, method: str, call: Callable[[], None]) -> None:
    """Calls a method of the term; its error becomes a sentence."""
    try:
        call()
    except KeyError as error:
        raise AssertionError(
            f"{term.name}: {method} reads the vector {error}, which is not among client_slots, "
            f"server_slots or "
            "needs.broadcast: declare it"
        ) from error
    except Exception as error:
        raise AssertionError(
            f"{term.name}: {method} fails with {type(error).__name__}: {error}"
        ) from error


def _assert_same_context(
    term: ClientTerm, at: ClientContext, before: ClientContext, method: str
) -> None:
    require(torch.equal(at.start, before.start), f"{term.name}: {method} changes the start")
    require(
        torch.equal(at.relative_size, before.relative_size),
        f"{term.name}: {method} changes relative_size",
    )
    _assert_same_vectors(term, at.own, before.own, f"{method} changes {{slot!r}} of clients")
    _assert_same_vectors(
        term, at.sent, before.sent, f"{method} changes {{slot!r}}, which the server sent"
    )


def _assert_same_vectors(term: ClientTerm, now: Any, before: Any, message: str) -> None:
    for slot, values in before.items():
        require(torch.equal(now[slot], values), f"{term.name}: {message.format(slot=slot)}")


def _assert_joined(message: str, whole: torch.Tensor, pieces: list[torch.Tensor]) -> None:
    torch.testing.assert_close(
        torch.cat(pieces, dim=-1), whole, rtol=1e-12, atol=1e-12, msg=message
    )
