"""Runs in several threads of one process: the bits of each are those of a run alone, and locks are its own."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import steelyard
from steelyard import threads
from steelyard.models import build
from steelyard.runs._lock import close_private, open_private
from steelyard.sim._executors import one_thread
from tests.sim.runs import OPTIONS, net, same, simulate


def test_networks_of_one_seed_are_alike_in_all_threads():
    spec, shape = "mlp:hidden=[200,200]", (1, 8, 8)
    expected = build(spec, shape, 10, 0).state_dict()
    before = torch.random.get_rng_state()

    def differing(_):
        found = build(spec, shape, 10, 0).state_dict()
        return sum(not torch.equal(found[name], expected[name]) for name in expected)

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(differing, range(120))) == 0
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("kind", ["mlp", "dropout", "batch_norm"])
def test_runs_side_by_side_have_the_bits_of_a_run_alone(kind, tmp_path):
    model = net(kind)
    expected = simulate("fedawa", model=model, **OPTIONS)
    before = torch.random.get_rng_state(), torch.get_num_threads()

    def run(number):
        executor = {"executor": "process" if number % 3 == 2 else "serial", "workers": 2}
        return simulate("fedawa", model=model, out=tmp_path / str(number), **(OPTIONS | executor))

    with ThreadPoolExecutor(6) as pool:
        assert [same(found, expected) for found in pool.map(run, range(12))] == [True] * 12
    assert torch.equal(torch.random.get_rng_state(), before[0])
    assert torch.get_num_threads() == before[1]


def test_a_finished_run_is_free_while_another_run_s_workers_live(tmp_path):
    """Workers are forked while the directory of the other run is open, in another thread."""
    opened, forked, done = threading.Event(), threading.Event(), threading.Event()

    class Wait(steelyard.Callback):
        def __init__(self, reached, go):
            self.reached, self.go = reached, go

        def round(self, simulation, record):
            if record["round"] == 1:
                self.reached.set()
                assert self.go.wait(60)

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(
            simulate, out=tmp_path / "a", rounds=2, callbacks=[Wait(opened, forked)]
        )
        assert opened.wait(60)
        second = pool.submit(
            simulate,
            out=tmp_path / "b",
            rounds=2,
            callbacks=[Wait(forked, done)],
            executor="process",
            workers=2,
        )
        try:
            first.result(60)
            assert len(simulate(out=tmp_path / "a", rounds=3, resume=True)) == 3
        finally:
            done.set()
        second.result(60)


def test_a_forked_process_does_not_keep_private_handles(tmp_path):
    handle = open_private(tmp_path / "lock", os.O_RDWR)
    child = os.fork()
    if not child:
        try:
            os.fstat(handle)
        except OSError:
            close_private(handle)  # nothing to do, and no error
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    os.fstat(handle)
    close_private(handle)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(handle)


def test_the_limit_of_blas_ends_with_its_last_user():
    from threadpoolctl import threadpool_info, threadpool_limits

    def limit():
        return [
            library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"
        ]

    with threadpool_limits(2, user_api="blas"):
        before = limit()
        first, second = one_thread(), one_thread()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert set(limit()) == {1}  # the first one ended, and the second still computes
        second.__exit__(None, None, None)
        assert limit() == before


def test_each_thread_has_its_own_number_of_threads():
    with threads.parallel(7), ThreadPoolExecutor(1) as pool:
        assert pool.submit(threads.count).result() != 7
        assert threads.count() == 7


def test_a_fork_waits_for_whoever_draws_random_numbers():
    """A child in which the generator is taken for ever could train nothing."""
    held, drawn = threading.Event(), threading.Event()

    def draw():
        with threads.seeded(1):
            held.set()
            drawn.wait(0.2)

    drawing = threading.Thread(target=draw)
    drawing.start()
    assert held.wait(10)
    child = os.fork()
    if not child:
        with threads.seeded(2):
            os._exit(0 if torch.rand(1).item() >= 0 else 1)
    drawing.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
