"""Data sets of labelled images: readers of the standard file forms, splits, shuffled batches."""

from actorflow.data.cifar import CIFAR10_CLASSES, cifar10
from actorflow.data.dataset import Batch, Dataset, Split, stratified_split
from actorflow.data.idx import read_idx
from actorflow.data.sources import FASHION_MNIST_FILES, digits, fashion_mnist

__all__ = [
    "CIFAR10_CLASSES",
    "FASHION_MNIST_FILES",
    "Batch",
    "Dataset",
    "Split",
    "cifar10",
    "digits",
    "fashion_mnist",
    "read_idx",
    "stratified_split",
]
