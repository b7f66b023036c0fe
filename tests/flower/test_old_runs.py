"""Run directories that an older version wrote on Flower can be resumed.

`tests/data/old_flower_runs.tar.xz` contains runs of two rounds, made before simulator and Flower
shared one server state.
"""

import tarfile
from pathlib import Path

import pytest
import torch
from flwr.app import MetricRecord

import steelyard
from steelyard.runs._directory import read_log
from tests.flower import runs
from tests.flower.grid import LocalGrid

ARCHIVE = Path(__file__).parents[1] / "data" / "old_flower_runs.tar.xz"
ALGORITHMS = {
    "fedawa": steelyard.Algorithm("fedawa:steps=3", server="momentum"),
    "fedcos": steelyard.Algorithm("uniform", client="fedcos"),
    "fedmut": steelyard.Algorithm("uniform", broadcast="fedmut:radius=0.5"),
    "feddyn": steelyard.Algorithm("uniform", client="feddyn"),
}


def evaluate(number, arrays):
    return MetricRecord({"accuracy": 1 / (1 + number), "loss": float(number)})


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_old_run_is_resumed(name, tmp_path):
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    old = tmp_path / "old_flower" / name
    new = tmp_path / "new"
    for rounds, out in ((2, new), (4, new), (4, old)):
        strategy = runs.strategy(ALGORITHMS[name], out=out, resume=True)
        grid = LocalGrid(runs.app(), runs.COUNT)
        result = runs.start(strategy, grid, rounds=rounds, evaluate_fn=evaluate)
        if out == new:
            expected = runs.params(result)
    assert len(grid.asked) == 2 * runs.COUNT  # two of the four rounds
    # The machine that wrote the first rounds may round otherwise.
    for key, tensor in runs.params(result).items():
        torch.testing.assert_close(tensor, expected[key], rtol=1e-4, atol=1e-5)
    logs = [read_log(path) for path in (old, new)]
    assert [record["round"] for record in logs[0]] == [1, 2, 3, 4]
    assert logs[0][2].keys() == logs[1][2].keys()
    for one, other in zip(*logs, strict=True):
        assert one["weights"].keys() == other["weights"].keys()
    assert (old / "checkpoints/best").readlink().name == "best-000001"
