"""Whether a run had the data set that the paper's number is of, or only a part of it."""

from __future__ import annotations

from pathlib import Path

from steelyard.core.spec import parse
from steelyard.data.partitions import PARTITIONS
from steelyard.experiments.cost import SIZES
from steelyard.runs.directory import read_clients
from steelyard.sim.config import Config


def subset(config: Config, path: Path) -> str | None:
    """What clients held, if it is not the whole data set; None if it is, or if nothing tells.

    Samples are counted only where the partition hands out all of them.
    """
    known, held = SIZES.get(config.data.name.partition(":")[0]), read_clients(path)
    if known is None or held is None or "counts" not in held:
        return None
    train, _, _, wanted = known
    samples, classes = sum(held["sizes"]), len(held["counts"][0])
    if classes == wanted and (samples == train or not parse(config.data.partition, PARTITIONS).whole):
        return None
    return f"subset: {samples:,} samples, {classes} classes"
