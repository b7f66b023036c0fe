"""Checks that take minutes: `make test-slow`."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import steelyard
from benchmarks.merge import make_files, merge
from steelyard.experiments import table_names
from steelyard.figures import names as figure_names
from tests.rounds import reports
from tests.rules.test_guard import FACTORS, bound

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("rule", ["fedavg", "fedawa:steps=10"])
def test_merging_twenty_times_400_megabytes_takes_under_700(rule):
    if shutil.disk_usage(tempfile.gettempdir()).free < 12e9:
        pytest.skip("needs 12 GB of free disk")
    with tempfile.TemporaryDirectory() as folder:
        make_files(Path(folder), 20, 100_000_000)
        _, peak = merge(Path(folder), rule)
    assert peak < 700


@given(
    seed=st.integers(0, 2**32 - 1),
    factors=st.lists(FACTORS, min_size=2, max_size=40),
    adversary=st.sampled_from(["mean", "minus mean", "base", "random", "largest"]),
    inner=st.sampled_from(
        [
            "fedadp",
            "fedawa:steps=50,lr=0.05,travel=none",
            "pa3fed",
            "fednova",
            "fedawa_l:layers=[25,75]",
        ]
    ),
)
@settings(max_examples=20_000, deadline=None, derandomize=True)
def test_the_bound_holds_against_adversaries_who_know_the_others(seed, factors, adversary, inner):
    g = torch.Generator().manual_seed(seed)
    base = torch.randn(100, generator=g, dtype=torch.float64)
    steps = torch.tensor(factors, dtype=torch.float64)[:, None] * torch.randn(
        len(factors), 100, generator=g, dtype=torch.float64
    )
    others = steps[1:].mean(dim=0)
    steps[0] = {
        "mean": others,
        "minus mean": -1e3 * others,
        "base": -base,
        "random": 1e3 * torch.randn(100, generator=g, dtype=torch.float64),
        "largest": 1e3 * steps[steps.norm(dim=1).argmax()],
    }[adversary]
    clients = base + steps
    out = steelyard.aggregate(
        f"guard({inner})", base, clients, metrics=reports(range(len(factors)), seed % 97)
    )
    norms = (clients - base).norm(dim=1).numpy()
    limit = bound(clients, base)[1] if (norms > 0).any() else 0.0
    weights = np.abs(np.atleast_2d(out.weights.numpy())).max(axis=0)
    assert out.params.isfinite().all()
    assert (weights * norms <= limit * (1 + 1e-9)).all()


def test_thousands_of_rounds_do_not_grow_state_or_memory():
    g = torch.Generator().manual_seed(0)
    base, state, sizes = torch.zeros(2000), None, []
    for t in range(1, 2001):
        ids = torch.randperm(30, generator=g)[:8].tolist()
        clients = base + 0.01 * torch.randn(8, 2000, generator=g)
        out = steelyard.aggregate(
            "guard(fedadp|ema)",
            base,
            clients,
            ids=ids,
            metrics={"num_examples": [1] * 8},
            state=state,
            round=t,
        )
        base, state = out.params, out.state
        sizes.append(len(str(state)))
    assert max(sizes) < 1.1 * sizes[200]


def test_two_builds_of_the_wheel_are_the_same_bytes(tmp_path):
    if find_spec("pip") is None or find_spec("setuptools") is None:
        pytest.skip("needs pip and setuptools")
    root = Path(steelyard.__file__).parents[1]
    if not (root / "pyproject.toml").is_file():
        pytest.skip("needs the source tree")
    wheels = []
    for name, age in (("first", 10**6), ("second", 10**8)):
        # A copy without compiled files, of another age.
        tree = tmp_path / name
        tree.mkdir()
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(
            root / "steelyard", tree / "steelyard", ignore=ignored, copy_function=shutil.copy
        )
        for file in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(root / file, tree / file)
        for path in tree.rglob("*"):
            os.utime(path, (1.7e9 - age, 1.7e9 - age))
        # Build it without the network.
        out = tmp_path / f"{name}-out"
        options = [
            "--no-deps",
            "--no-build-isolation",
            "--no-index",
            "--quiet",
            "--wheel-dir",
            str(out),
        ]
        environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
        command = [sys.executable, "-m", "pip", "wheel", *options, str(tree)]
        subprocess.run(command, env=environment, check=True, cwd=tmp_path)
        wheels += out.glob("*.whl")
    first, second = wheels
    assert first.name == second.name
    assert first.read_bytes() == second.read_bytes()


def test_every_table_and_figure_runs_quickly(tmp_path):
    """Each is run, or skipped because its data is not on this machine."""
    command = [sys.executable, "-m", "steelyard", "reproduce", "--quick", "--all"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    names = re.findall(r"^(?:ran|skipped)  ([\w-]+),", done.stdout, flags=re.MULTILINE)
    assert names == [*table_names(), *figure_names()]
    skipped = re.findall(r"^skipped  .*", done.stdout, flags=re.MULTILINE)
    assert all(
        "there is no" in line or "is read from files" in line or "is missing" in line
        for line in skipped
    )
    for name in table_names():
        assert (tmp_path / name / "table.md").is_file() or f"skipped  {name}," in done.stdout
    for name in figure_names():
        path = tmp_path / "figures" / name / "figure.png"
        assert path.is_file() or f"skipped  {name}," in done.stdout
