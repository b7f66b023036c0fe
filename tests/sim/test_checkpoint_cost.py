"""What checkpoints and a resume cost (T08), counted rather than timed."""

import pytest
import torch

from steelyard.runs import _checkpoint as checkpoint
from steelyard.runs._checkpoint import Checkpoints, Snapshot, Writer


def test_a_resume_reads_the_newest_checkpoint_and_no_other(tmp_path, monkeypatch):
    """1e6 parameters: the model's bytes are hashed once, whatever else is in the directory."""
    store = Checkpoints(tmp_path, keep=5)
    for number in range(1, 6):
        store.save(Snapshot(number, {"w": torch.ones(1_000_000)}, {"x": number}, "id"))
    reads = []
    real = checkpoint.read_bytes
    monkeypatch.setattr(
        checkpoint,
        "read_bytes",
        lambda path: reads.append(path.relative_to(tmp_path)) or real(path),
    )
    assert store.read_newest("id")[0].round == 5
    files = ("manifest.json", "model.safetensors", "state.safetensors")
    assert sorted(map(str, reads)) == [f"round-000005/{name}" for name in files]


@pytest.mark.parametrize("pace", [0.02, 0.1, 0.5])
def test_writing_takes_no_more_than_its_share_of_the_time(pace, tmp_path, monkeypatch):
    """By a clock of the test's own: a round takes 10 s, a checkpoint 1 s."""
    now = 0.0

    class Slow(Checkpoints):
        def save(self, snapshot, log=None):
            nonlocal now
            now += 1.0

    monkeypatch.setattr(checkpoint.time, "monotonic", lambda: now)
    writer = Writer(Slow(tmp_path), [], pace)
    saved = 0
    try:
        for number in range(1, 501):
            now += 10.0
            if writer.is_due():
                writer.offer(Snapshot(number, {}, {}, "id"))
                writer.flush()
                saved += 1
    finally:
        writer.close()
    assert 0 < saved <= pace * now + 1
    assert saved >= min(500, 0.5 * pace * now)
