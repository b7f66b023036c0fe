"""Draws the pictures of docs/partitions.md: every partition on the embedded digits.

Run it again after a change to a partition: tests/report/test_partition.py says which pictures are
out of date.
"""

from pathlib import Path

import torch

from steelyard.data import Dataset, Federation, load
from steelyard.report import draw_partition

SEED = 0
DIRECTORY = Path(__file__).parent.parent / "docs" / "pictures" / "partitions"

PICTURES = {  # by name: partition, clients
    "iid": ("iid", 10),
    "dirichlet": ("dirichlet:alpha=0.3", 10),
    "dirichlet_capped": ("dirichlet_capped:alpha=0.3", 10),
    "dirichlet_balanced": ("dirichlet_balanced:alpha=0.3", 10),
    "hybrid_dirichlet": ("hybrid_dirichlet:alpha1=10,alpha2=0.1", 10),
    "long_tail": ("long_tail:rho=10,alpha=1", 10),
    "class_halves": ("class_halves", 12),
    "shards": ("shards:per_client=2", 10),
    "sorted": ("sorted:share_iid=0.1", 10),
    "x_class": ("x_class:classes=1,iid=5,samples=100", 10),
    "quantity": ("quantity:alpha=0.5", 10),
    "by_group": ("by_group", 6),
    "many": ("dirichlet:alpha=0.1", 100),
}


def digits() -> Dataset:
    """The digits, in three groups by how much ink an image has."""
    train, _ = load("digits")
    ink = train.inputs.flatten(1).sum(dim=1)
    edges = ink.quantile(torch.tensor([1 / 3, 2 / 3]))
    return Dataset(
        train.inputs, train.targets, train.classes, train.name, torch.bucketize(ink, edges)
    )


def federation(name: str) -> Federation:
    partition, clients = PICTURES[name]
    return Federation.partitioned(digits(), None, partition, clients, SEED)


def picture(name: str, directory: Path = DIRECTORY) -> Path:
    partition, clients = PICTURES[name]
    title = f"{partition}\n{clients} clients of digits, seed {SEED}"
    return draw_partition(
        federation(name),
        directory / f"{name}.svg",
        title,
        "groups" if name == "by_group" else "labels",
    )


if __name__ == "__main__":
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    for path in map(picture, PICTURES):
        print(f"{path.relative_to(DIRECTORY.parents[2])}: {path.stat().st_size / 1000:.0f} kB")
