"""Terms settle a stretch at a time, and the result is that of settling all coordinates at once."""

import pytest
import torch

import steelyard
from steelyard import kernels, threads
from steelyard.core.settling import Settling
from steelyard.core.term import AtServer

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
    [(steelyard.scaffold(), "control"), (steelyard.feddyn(form="fedlaw"), "h"), (steelyard.vrlsgd(), "delta")],
    ids=["scaffold", "feddyn", "vrlsgd"],
)
@pytest.mark.parametrize("count", [1, 2])
def test_stretches_give_what_the_whole_gives(term, slot, count):
    weights, work = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([4.0, 8.0, 2.0])
    store, old, new, kept, theta = parts()
    rows = store.rows(0, D, None)
    held = {slot: kept} if term.server_slots else {}
    term.settle(AtServer(theta, rows[-1], rows[:-1], weights, {slot: old}, {slot: new}, held, work, 0.1, 9))

    again, old2, new2, kept2, theta2 = parts()
    asked = []

    def own(part_of, part):
        asked.append(part.stop - part.start)
        return {slot: old2[:, part].clone()}, {slot: new2[:, part].clone()}

    def file(part_of, part, changed):
        new2[:, part] = changed[slot]

    with threads.parallel(count):
        Settling(again, theta2, weights, own, file, {f"{term.name}.{slot}": kept2}, work, 0.1, 9).run([term])
    assert sum(asked) == D
    assert max(asked) <= kernels.BLOCK
    for ours, whole in ((theta2, theta), (kept2, kept), (new2, new)):
        assert torch.allclose(ours, whole, rtol=1e-6, atol=1e-6)
    assert not torch.equal(kept2 if term.server_slots else new2, parts()[3 if term.server_slots else 2])


def test_nothing_is_read_for_terms_that_do_not_settle(monkeypatch):
    passes = []
    monkeypatch.setattr(kernels, "combine", lambda *given: passes.append(given))
    store, _, _, kept, theta = parts()
    end = Settling(store, theta, torch.ones(K), None, None, {"scaffold.control": kept}, torch.ones(K), 0.1, 9)
    end.run([steelyard.fedcos()])
    assert passes == []
    end.run([steelyard.fedcos(), steelyard.scaffold()])
    assert len(passes) == 1
