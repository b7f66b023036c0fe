"""What Python prints of results is short."""

import subprocess
import sys

import torch

import steelyard
from steelyard.runs._history import History


def test_the_repr_of_an_aggregate_is_a_few_lines():
    clients = {f"client {k}": torch.randn(500) for k in range(300)}
    clients["bad"] = torch.full((500,), torch.nan)
    out = steelyard.aggregate("uniform|fedadp", torch.zeros(500), clients)
    assert len(repr(out)) < 1000
    assert len(repr(out).splitlines()) <= 8
    assert "301 clients" in repr(out)
    assert "'bad'" in repr(out)
    assert "500 parameters" in repr(out)


def test_the_repr_of_a_history_is_a_few_lines():
    weights = {str(k): 0.01 for k in range(100)}
    records = [
        {"round": r, "accuracy": 0.5, "loss": 1.25, "weights": weights} for r in range(1, 51)
    ]
    history = History("fedadp", records, {"w": torch.zeros(1000)})
    assert len(repr(history)) < 500
    assert "50 rounds, accuracy=0.5000, loss=1.2500" in repr(history)
    assert repr(History("fedavg", [])) == "History('fedavg', 0 rounds)"


def test_the_repr_of_a_merge_outcome_is_short(tmp_path):
    from safetensors.torch import save_file

    for name in ("base", "a"):
        save_file({"w": torch.zeros(1000)}, tmp_path / f"{name}.safetensors")
    job = steelyard.Merge(
        tmp_path / "base.safetensors", {"a": tmp_path / "a.safetensors"}, "uniform"
    )
    assert len(repr(job.run(tmp_path / "out.safetensors"))) < 200


def test_the_package_is_a_command():
    done = subprocess.run(
        [sys.executable, "-m", "steelyard", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == steelyard.__version__
