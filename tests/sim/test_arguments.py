"""What simulate takes, and what it says to the rest before anything starts."""

import numpy as np
import pytest
from torch import nn

import steelyard
from steelyard.core._errors import SteelyardError
from tests.sim.runs import clients, same, simulate


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": 0}, "rounds=0"),
        ({"executor": "threads"}, "executor='threads'"),
        ({"workers": 0}, "workers=0"),
        ({"device": "quantum"}, "device='quantum': not available"),
        *(
            (
                {"algorithm": steelyard.Algorithm(client=term), "local": local},
                f"client={term} with {message}",
            )
            for term in ("scaffold", "vrlsgd")
            for local, message in (
                ({"optimizer": "adam"}, "optimizer=adam: .* use optimizer=sgd"),
                (
                    {"momentum": 0.9, "persistent": True},
                    "momentum that persists: .* use persistent=false",
                ),
            )
        ),
        ({"participation": {"count": 7}}, "there are only 6 clients"),
        (
            {"participation": {"shaer": 0.5}},
            "participation: unknown option 'shaer': did you mean 'share'",
        ),
        ({"local": {"learning_rate": 0.5}}, "local: unknown option 'learning_rate': known: epochs"),
        ({"rounds": 1.5}, "rounds=1.5: use a whole number >= 1"),
        ({"rounds": "3"}, "rounds='3': use a whole number >= 1"),
        ({"workers": "2"}, "workers='2': use a whole number >= 1"),
        ({"evaluate_every": -1}, "evaluate_every=-1: use a whole number >= 0"),
        ({"evaluate_clients": 0.5}, "evaluate_clients=0.5: use a whole number >= 0"),
        ({"checkpoint_every": 0}, "checkpoint_every=0: use a whole number >= 1"),
        ({"checkpoint_pace": "x"}, "checkpoint_pace='x': use a number in .0.0, 1.0"),
        ({"checkpoint_pace": 0}, "checkpoint_pace=0: use a number in .0.0, 1.0"),
        ({"keep": 0}, "keep=0: use a whole number >= 1"),
        ({"keep": -1}, "keep=-1: use a whole number >= 1"),
        ({"local": 5}, "local=5: use a LocalTraining, or its options as a dict"),
        (
            {"cohorts": [["a"], ["b"]] * 2},
            r"round 1 has \['a'\]: use distinct whole numbers below 6",
        ),
        ({"cohorts": [[1], [0.5]] * 2}, r"round 2 has \[0.5\]: use distinct whole numbers below 6"),
        ({"cohorts": [1, 2, 3, 4]}, "round 1 has 1: use distinct whole numbers below 6"),
        (
            {"data": {(1, k): pair for k, pair in enumerate(clients().values())}},
            "ids: .1, 0. is a tuple; use text or",
        ),
        ({"data": 3}, "data is a int"),
        ({"model": nn.Linear(5, 3).half()}, "train in one dtype|float16"),
    ],
)
def test_mistakes_are_named_before_anything_starts(options, message, tmp_path):
    with pytest.raises(SteelyardError, match=message):
        simulate(**options, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_numbers_of_numpy_are_numbers(tmp_path):
    pairs = list(clients().values())
    plain, numpy = (
        simulate(
            data=dict(zip(ids, pairs, strict=True)), cohorts=cohorts, out=tmp_path / name, rounds=2
        )
        for name, ids, cohorts in (
            ("plain", range(6), [[0, 1], [2, 3]]),
            ("numpy", np.arange(6), np.array([[0, 1], [2, 3]])),
        )
    )
    assert same(plain, numpy)
    assert (tmp_path / "plain/cohorts.json").read_bytes() == (
        tmp_path / "numpy/cohorts.json"
    ).read_bytes()


def test_terms_that_want_a_fresh_velocity_take_momentum_that_has_one_and_sgd_that_has_none():
    for local in ({"momentum": 0.9}, {"persistent": True}):
        assert len(simulate(steelyard.Algorithm(client="scaffold"), rounds=1, local=local)) == 1


def test_numbers_may_be_numpys(tmp_path):
    history = steelyard.simulate(
        "fedavg",
        "digits",
        "logistic",
        rounds=np.int64(2),
        clients=3,
        evaluate_every=np.int64(1),
        checkpoint_pace=np.float32(0.5),
        cohorts=([0, 1] for _ in range(2)),
        out=tmp_path / "run",
        executor="serial",
    )
    assert len(history) == 2
