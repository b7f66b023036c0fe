"""Server updates of terms run chunk by chunk; the result is that of all coordinates at once."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import steelyard
from steelyard import kernels, threads
from steelyard.core._server_terms import Bounds, ServerTermStep, clip_factors, typical_norm
from steelyard.core._term import ServerContext

D, K = 2 * kernels.BLOCK + 1000, 3


def parts():
    """A store, and everything a term may look at, as functions so that each side has its own."""
    noise = torch.Generator().manual_seed(0)
    base, clients = torch.randn(D, generator=noise), torch.randn(K, D, generator=noise)
    vectors = {name: torch.randn(K, D, generator=noise) for name in ("old", "new")}
    kept, theta = torch.randn(D, generator=noise), torch.randn(D, generator=noise)
    return steelyard.MemoryStore.of(base, clients), vectors["old"], vectors["new"], kept, theta


@pytest.mark.parametrize(
    ("term", "slot"),
    [
        (steelyard.scaffold(), "control"),
        (steelyard.feddyn(form="fedlaw"), "h"),
        (steelyard.vrlsgd(), "delta"),
    ],
    ids=["scaffold", "feddyn", "vrlsgd"],
)
@pytest.mark.parametrize("count", [1, 2])
def test_stretches_give_what_the_whole_gives(term, slot, count):
    weights, work = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([4.0, 8.0, 2.0])
    store, old, new, kept, theta = parts()
    rows = store.rows(0, D, None)
    held = {slot: kept} if term.server_slots else {}
    term.server_update(
        ServerContext(
            theta, rows[-1], rows[:-1], weights, {slot: old}, {slot: new}, held, work, 0.1, 9
        )
    )

    again, old2, new2, kept2, theta2 = parts()
    asked = []

    def own(part_of, part):
        asked.append(part.stop - part.start)
        return {slot: old2[:, part].clone()}, {slot: new2[:, part].clone()}

    def file(part_of, part, changed):
        new2[:, part] = changed[slot]

    with threads.parallel(count):
        ServerTermStep(
            again, theta2, weights, own, file, {f"{term.name}.{slot}": kept2}, work, 0.1, 9
        ).run([term])
    assert sum(asked) == D
    assert max(asked) <= kernels.BLOCK
    for ours, whole in ((theta2, theta), (kept2, kept), (new2, new)):
        assert torch.allclose(ours, whole, rtol=1e-6, atol=1e-6)
    assert not torch.equal(
        kept2 if term.server_slots else new2, parts()[3 if term.server_slots else 2]
    )


def test_nothing_is_read_for_terms_without_a_server_part(monkeypatch):
    passes = []
    monkeypatch.setattr(kernels, "combine", lambda *given: passes.append(given))
    store, _, _, kept, theta = parts()
    end = ServerTermStep(
        store, theta, torch.ones(K), None, None, {"scaffold.control": kept}, torch.ones(K), 0.1, 9
    )
    end.run([steelyard.fedcos()])
    assert passes == []
    end.run([steelyard.fedcos(), steelyard.scaffold()])
    assert len(passes) == 1


N, CLIP, POPULATION = 60, 2.0, 20
SIZES = st.sampled_from([0.0, 1e-9, 0.5, 1.0, 1.0, 1.0, 3.0, 100.0, -1e6, 1e15, 1e30])


def run_guarded_step(term, slot, updates, changes, usual, aside=()):
    """What the server keeps of a term after a round under a guard; it kept nothing before."""
    theta = torch.randn(N, generator=torch.Generator().manual_seed(5))
    norms = updates.double().norm(dim=1).numpy()
    factors = clip_factors(norms, CLIP * typical_norm(norms))
    factors[list(aside)] = 0.0
    weights = torch.from_numpy(factors) / len(
        updates
    )  # of the updates as they came, as a round hands them over
    kept = torch.zeros(N)
    old = torch.zeros(len(updates), N)
    after = ServerTermStep(
        store=steelyard.MemoryStore.of(torch.zeros(N), list(updates)),
        theta=theta,
        weights=weights.float(),
        read_client_vectors=lambda _, part: (
            {slot: old[:, part]},
            {slot: (old.double() + changes)[:, part].float()},
        ),
        write_client_vectors=None,
        server_vectors={f"{term.name}.{slot}": kept},
        work=torch.ones(len(updates)),
        lr=0.1,
        population=POPULATION,
        bounds=Bounds(factors, CLIP),
        usual_norms=usual,
    ).run([term])
    return kept, after


def draw_vectors(seed, sizes):
    noise = torch.Generator().manual_seed(seed)
    vectors = torch.randn(len(sizes), N, generator=noise, dtype=torch.float64)
    return (
        torch.tensor(sizes, dtype=torch.float64)[:, None]
        * vectors
        / vectors.norm(dim=1, keepdim=True)
    )


@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.lists(SIZES, min_size=3, max_size=9),
    form=st.booleans(),
)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_under_a_guard_no_client_moves_feddyns_vector_by_more_than_the_bound(seed, sizes, form):
    updates = draw_vectors(seed, sizes)
    term = steelyard.feddyn(form="official" if form else "fedlaw")
    share = 1 / POPULATION if form else 1 / len(sizes)
    lengths = [abs(size) for size in sizes if size]
    middle = float(np.median(lengths)) if len(lengths) >= 3 else min(lengths, default=0.0)
    limit = CLIP * middle
    kept, _ = run_guarded_step(term, "h", updates.float(), torch.zeros_like(updates), {})
    assert kept.isfinite().all()
    assert kept.double().norm().item() <= share * len(sizes) * limit * (1 + 1e-5)
    for client in range(len(sizes)):
        without, _ = run_guarded_step(
            term, "h", updates.float(), torch.zeros_like(updates), {}, aside=[client]
        )
        assert (kept.double() - without).norm().item() <= share * limit * (1 + 1e-4)


@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.lists(SIZES, min_size=3, max_size=9),
    usual=st.sampled_from([0.0, 0.5, 4.0]),
)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_under_a_guard_no_client_moves_scaffolds_control_by_more_than_the_bound(seed, sizes, usual):
    changes = draw_vectors(seed, sizes)
    updates = draw_vectors(seed + 1, [1.0] * len(sizes)).float()
    before = {"scaffold.control": usual} if usual else {}
    kept, after = run_guarded_step(steelyard.scaffold(), "control", updates, changes, before)
    lengths = [abs(size) for size in sizes if size]
    if len(lengths) >= 3:
        limit = CLIP * max(usual, float(np.median(lengths)))
    else:
        limit = CLIP * (usual or min(lengths, default=0.0))
    assert kept.isfinite().all()
    assert kept.double().norm().item() <= limit / POPULATION * len(sizes) * (1 + 1e-4) + 1e-5
    assert after["scaffold.control"] <= max(usual, limit / CLIP) * (1 + 1e-5)
    # What one client adds, measured against the same round in which it alone changed nothing.
    factors, _ = Bounds(np.ones(len(sizes)), CLIP).limit_vectors(changes.norm(dim=1).numpy(), usual)
    for client in range(len(sizes)):
        rest = sum(changes[k] * factors[k] for k in range(len(sizes)) if k != client) / POPULATION
        if kept.double().norm().item() < limit * (
            1 - 1e-4
        ):  # otherwise the sum itself was shortened
            added = (kept.double() - rest).norm().item()
            assert added <= limit / POPULATION * (1 + 1e-3) + 1e-4 + 1e-6 * rest.norm().item()


def test_cut_changes_do_not_add_up_without_end():
    """An attacker that adds to SCAFFOLD's control in every round gets it to two usual lengths at most."""
    term, control, usual = steelyard.scaffold(), torch.zeros(N), {}
    updates = draw_vectors(1, [1.0] * 5).float()
    for number in range(100):
        changes = draw_vectors(number, [1.0] * 5)
        changes[0] = 1e6
        kept, usual = run_guarded_step(term, "control", updates, changes, usual)
        control += kept
        ServerTermStep(
            store=None,
            theta=None,
            weights=None,
            read_client_vectors=None,
            write_client_vectors=None,
            server_vectors={"scaffold.control": control},
            work=None,
            lr=0.1,
            population=5,
        )._limit_server_vectors([term], CLIP, usual)
    assert usual["scaffold.control"] < 1.01
    assert control.norm().item() <= CLIP * usual["scaffold.control"] * (1 + 1e-6)


def test_two_clients_say_nothing_about_what_is_usual():
    bounds = Bounds(np.ones(2), CLIP)
    factors, usual = bounds.limit_vectors(np.array([1.0, 1e9]), 0.0)
    assert usual == 0
    np.testing.assert_allclose(factors, [1.0, 2e-9])
    factors, usual = bounds.limit_vectors(np.array([1e6, 1e9]), 3.0)
    assert usual == 3.0
    np.testing.assert_allclose(factors, [6e-6, 6e-9])


def test_what_is_within_the_bounds_keeps_its_bits():
    store, old, new, kept, theta = parts()
    weights, work = torch.tensor([0.5, 0.3, 0.2]), torch.ones(K)

    def run(bounds):
        control = kept.clone()
        ServerTermStep(
            store,
            theta.clone(),
            weights,
            lambda _, part: ({"control": old[:, part]}, {"control": new[:, part]}),
            None,
            {"scaffold.control": control},
            work,
            0.1,
            9,
            bounds,
        ).run([steelyard.scaffold()])
        return control

    assert torch.equal(run(None), run(Bounds(np.ones(K), 1e9)))
