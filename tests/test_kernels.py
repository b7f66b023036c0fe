"""The tensor loops against plain float64 arithmetic."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from steelyard import kernels
from steelyard.stores._memory import MemoryStore


class Matrix:
    def __init__(self, rows):
        self.matrix = rows

    def scratch(self, length):
        return None

    def rows(self, start, stop, scratch):
        return self.matrix[:, start:stop]


def reference(rows, spans):
    return np.stack([(rows[:, a:b].double() @ rows[:, a:b].double().T).numpy() for a, b in spans])


@pytest.mark.parametrize("count", [1, 2, 3, 9, 21, 60, 101])
@pytest.mark.parametrize("n", [1, 100, 2048, 2049, 70_000, 300_001])
def test_gram_is_accurate(count, n):
    g = torch.Generator().manual_seed(count + n)
    rows = torch.randn(count, n, generator=g)
    spans = [(0, n // 3), (n // 3, n)]
    found, exact = kernels.gram(Matrix(rows), count, spans), reference(rows, spans)
    scale = np.sqrt(np.einsum("gii,gjj->gij", exact, exact)) + 1e-300
    assert (np.abs(found - exact) / scale).max() < 1.5e-7
    assert np.array_equal(found, found.transpose(0, 2, 1))


def test_float64_rows_are_multiplied_in_float64():
    rows = torch.randn(5, 200_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found, exact = kernels.gram(Matrix(rows), 5, [(0, 200_000)]), reference(rows, [(0, 200_000)])
    assert (np.abs(found - exact) / np.abs(exact).max()).max() < 1e-13


@pytest.mark.parametrize("scale", [1e-30, 1e-22, 1e22, 1e37])
def test_squares_outside_float32_are_done_again_in_float64(scale):
    rows = torch.randn(4, 50_000, generator=torch.Generator().manual_seed(0))
    rows[1] *= scale
    found, exact = kernels.gram(Matrix(rows), 4, [(0, 50_000)]), reference(rows, [(0, 50_000)])
    assert np.isfinite(found).all()
    assert found[0, 1, 1] == pytest.approx(exact[0, 1, 1], rel=1e-6)


def test_a_zero_row_is_not_mistaken_for_underflow(monkeypatch):
    rows = torch.randn(4, 50_000, generator=torch.Generator().manual_seed(0))
    rows[2] = 0
    passes = []
    original = kernels._gram
    monkeypatch.setattr(
        kernels, "_gram", lambda *a, **k: passes.append(k["wide"]) or original(*a, **k)
    )
    assert (kernels.gram(Matrix(rows), 4, [(0, 50_000)])[0, 2] == 0).all()
    assert passes == [False]


def test_combine_visits_every_coordinate_once():
    rows = torch.arange(3.0)[:, None].expand(3, 700_000)
    seen = torch.zeros(700_000)
    spans = [(0, 5), (5, 400_000), (400_000, 700_000)]

    def emit(piece, block):
        assert block.shape == (3, piece.stop - piece.start)
        assert spans[piece.span][0] <= piece.start < piece.stop <= spans[piece.span][1]
        seen[piece.start : piece.stop] += 1

    for chunk in (None, 1, 300_000):
        seen.zero_()
        kernels.combine(Matrix(rows), 3, spans, emit, chunk)
        assert (seen == 1).all()


def test_errors_in_a_worker_reach_the_caller():
    def emit(piece, block):
        raise ValueError("from a worker")

    with pytest.raises(ValueError, match="from a worker"):
        kernels.combine(Matrix(torch.zeros(30, 900_000)), 30, [(0, 900_000)], emit)


def test_the_callers_thread_count_is_left_alone():
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        kernels.gram(Matrix(torch.zeros(10, 900_000)), 10, [(0, 900_000)])
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads)


SCRIPT = """
import hashlib, torch, steelyard
g = torch.Generator().manual_seed(0)
base = torch.randn(400_000, generator=g)
clients = base + 0.01 * torch.randn(12, 400_000, generator=g)
digest = hashlib.sha256()
for rule in ("fedavg", "fedadp", "fedawa:steps=10", "krum", "guard(fedawa)"):
    out = steelyard.aggregate(rule, base, clients, metrics={"num_examples": range(1, 13)})
    digest.update(out.params.numpy().tobytes() + out.weights.numpy().tobytes())
print(digest.hexdigest())
"""


def test_bits_do_not_depend_on_thread_settings_or_hash_seed():
    digests = set()
    for threads, seed in (("1", "0"), ("2", "1"), ("4", "random")):
        names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        settings = {**os.environ, **dict.fromkeys(names, threads), "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT], env=settings, check=True, capture_output=True, text=True
        )
        digests.add(done.stdout)
    assert len(digests) == 1


FORK = """
import os, sys, torch, steelyard
base, clients = torch.zeros(400_000), torch.ones(12, 400_000)
torch.set_num_threads(2)
steelyard.aggregate("krum", base, clients)  # the pool of threads is up
pid = os.fork()
if pid == 0:
    torch.set_num_threads(1)  # torch's own threads do not survive a fork
    out = steelyard.aggregate("krum", base, clients)
    os._exit(0 if out.params.mean() == 1 else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_a_forked_child_can_aggregate():
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", FORK], timeout=600).returncode == 0


@pytest.mark.parametrize("scale", [1e-25, 1.0, 1e25])
def test_norms_are_those_of_the_gram(scale):
    g = torch.Generator().manual_seed(0)
    clients = scale * torch.randn(5, 300_001, generator=g)
    clients[2] = 0
    store = MemoryStore.of(torch.zeros(300_001), clients)
    found = kernels.norms(store, 5, 300_001)
    assert np.allclose(found, clients.double().norm(dim=1).numpy(), rtol=1e-6)
    assert found[2] == 0
    assert np.array_equal(found, kernels.norms(store, 5, 300_001, chunk=131072))
