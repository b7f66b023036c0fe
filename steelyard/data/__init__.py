"""Data: what a federation trains on, where it comes from, and how it is spread over clients."""

from steelyard.data import blocks, dirichlets, domains, images, tiny_imagenet
from steelyard.data.corruption import corrupt
from steelyard.data.dataset import Dataset, Federation
from steelyard.data.partitions import PARTITIONS, Partition, partition
from steelyard.data.sources import SOURCES, Source, load

__all__ = [
    "PARTITIONS",
    "SOURCES",
    "Dataset",
    "Federation",
    "Partition",
    "Source",
    "blocks",
    "corrupt",
    "dirichlets",
    "domains",
    "images",
    "load",
    "partition",
    "tiny_imagenet",
]
