"""Data sets: where they come from, how they are read, and how they are distributed over clients."""

from steelyard.data import (
    domains,
    images,
    news,
    shakespeare,
    tiny_imagenet,
)
from steelyard.data.corruption import corrupt
from steelyard.data.dataset import Dataset, Federation
from steelyard.data.partitions import PARTITIONS, Partition, partition
from steelyard.data.sources import SOURCES, Source, load
from steelyard.data.text import Vocabulary, encode

__all__ = [
    "PARTITIONS",
    "SOURCES",
    "Dataset",
    "Federation",
    "Partition",
    "Source",
    "Vocabulary",
    "corrupt",
    "domains",
    "encode",
    "images",
    "load",
    "news",
    "partition",
    "shakespeare",
    "tiny_imagenet",
]
