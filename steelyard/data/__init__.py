"""Data sets: where they come from, how they are read, and how they are distributed over clients.

Importing this package registers every data set and partition under its name in spec strings.
"""

from steelyard.data._corruption import CORRUPTIONS, Corruption, corrupt, find_corrupted_clients
from steelyard.data._dataset import Dataset, Federation
from steelyard.data._domains import MNISTM, SVHN, USPS, Digits5, Synth
from steelyard.data._download import DOWNLOADS, fetch_dataset
from steelyard.data._images import CIFAR10, CIFAR100, MNIST, Digits, FashionMNIST
from steelyard.data._news import AGNews, SogouNews, THUCNews
from steelyard.data._partitions import PARTITIONS, Partition, partition
from steelyard.data._shakespeare import Shakespeare
from steelyard.data._sources import SOURCES, Source, load
from steelyard.data._text import Vocabulary, encode
from steelyard.data._tiny_imagenet import TinyImageNet

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "CORRUPTIONS",
    "DOWNLOADS",
    "MNIST",
    "MNISTM",
    "PARTITIONS",
    "SOURCES",
    "SVHN",
    "USPS",
    "AGNews",
    "Corruption",
    "Dataset",
    "Digits",
    "Digits5",
    "FashionMNIST",
    "Federation",
    "Partition",
    "Shakespeare",
    "SogouNews",
    "Source",
    "Synth",
    "THUCNews",
    "TinyImageNet",
    "Vocabulary",
    "corrupt",
    "encode",
    "fetch_dataset",
    "find_corrupted_clients",
    "load",
    "partition",
]
