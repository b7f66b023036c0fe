"""Inputs and outputs of the authors' own functions; tests/data/golden/README.md says where each comes from."""

import json
from pathlib import Path

import numpy as np
import torch

DATA = Path(__file__).parent / "data" / "golden"


def arrays(name):
    with np.load(DATA / f"{name}.npz", allow_pickle=False) as file:
        return {key: file[key] for key in file.files}


def document(name):
    return json.loads((DATA / f"{name}.json").read_text())


def tensor(array):
    return torch.from_numpy(np.array(array, dtype=np.float64))


def assert_near(found, expected, tolerance=1e-9):
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=0, atol=tolerance)
