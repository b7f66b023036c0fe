"""Data sets: where they come from, how they are read, and how they are distributed over clients."""

from steelyard.data import (
    domains,
    images,
    news,
    shakespeare,
    tiny_imagenet,
)
from steelyard.data.corruption import corrupt, find_corrupted_clients
from steelyard.data.dataset import Dataset, Federation
from steelyard.data.download import fetch_dataset
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
    "fetch_dataset",
    "find_corrupted_clients",
    "images",
    "load",
    "news",
    "partition",
    "shakespeare",
    "tiny_imagenet",
]
