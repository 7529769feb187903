"""Data sets of labelled images: readers of the usual forms, splits, augmentation and batches, all seeded."""

from actorflow.data.augment import Augmentation, CenterCrop, Column, Crop, Draws, Mirror, Normalize
from actorflow.data.dataset import Batch, Dataset, Split, stratified_split
from actorflow.data.datum import Datum, read_datum, read_mean
from actorflow.data.images import IMAGE_SUFFIXES, ImageFiles, ImageFolder, image_folder, read_image
from actorflow.data.lmdb import Blocks, LmdbImages, image_label
from actorflow.data.loader import Batches, Feed, Loader, Reshardable
from actorflow.data.sources import CIFAR10_CLASSES, FASHION_MNIST_FILES, cifar10, digits, fashion_mnist, read_idx
from actorflow.pipeline.stages.sampler import Sampler
from actorflow.pipeline.stages.source import Resumable

__all__ = [
    "Augmentation",
    "Batch",
    "Batches",
    "Blocks",
    "CIFAR10_CLASSES",
    "CenterCrop",
    "Column",
    "Crop",
    "Dataset",
    "Datum",
    "Draws",
    "Feed",
    "FASHION_MNIST_FILES",
    "IMAGE_SUFFIXES",
    "ImageFiles",
    "ImageFolder",
    "LmdbImages",
    "Loader",
    "Mirror",
    "Normalize",
    "Reshardable",
    "Resumable",
    "Sampler",
    "Split",
    "cifar10",
    "digits",
    "fashion_mnist",
    "image_folder",
    "image_label",
    "read_datum",
    "read_idx",
    "read_image",
    "read_mean",
    "stratified_split",
]
