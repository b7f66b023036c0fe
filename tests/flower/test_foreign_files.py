"""Checkpoints in a directory that holds other things: nothing of others is touched."""

import pytest

from steelyard.runs._checkpoint import read_verified
from steelyard.runs._directory import read_log
from tests.flower import runs

FOREIGN = (
    ".env",
    ".git/HEAD",
    ".git/objects/ab",
    "best",
    "best-resnet50/weights.bin",
    "best-000001.bak",
    "last.txt",
    "round-robin-results/table.csv",
    "round-2024-baseline/table.csv",
    "round-1/weights.bin",
    "damaged-round-x/weights.bin",
    "notes.md",
)


@pytest.mark.parametrize("first", [True, False])
def test_what_others_put_beside_checkpoints_stays(first, tmp_path):
    """Foreign files are there before the run, or come while it is stopped; the run is started three times."""
    home = tmp_path / "home"
    foreign = [name for name in FOREIGN if name != "best"]

    def put():
        for name in foreign:
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).write_text(f"mine: {name}")

    if first:
        put()
    for rounds in (1, 2, 4):
        made = runs.strategy(
            "fedavg", out=tmp_path / "run", checkpoint_dir=home, resume=True, fraction_evaluate=1.0
        )
        runs.start(made, rounds=rounds)
        put()
    assert [record["round"] for record in read_log(tmp_path / "run")] == [1, 2, 3, 4]
    assert {name: (home / name).read_text() for name in foreign} == {
        name: f"mine: {name}" for name in foreign
    }
    assert read_verified(home / "round-000004").round == 4
    assert not list(home.glob("damaged-round-0*"))


def test_a_file_where_the_best_model_goes(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    (home / "best").write_text("mine")
    made = runs.strategy("fedavg", out=tmp_path / "run", checkpoint_dir=home, fraction_evaluate=1.0)
    with pytest.raises(Exception, match="best"):
        runs.start(made, rounds=1)
    assert (home / "best").read_text() == "mine"
