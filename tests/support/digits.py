"""A small data set of images that a network learns at once, in the files of MNIST."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["write_digits"]


def write_digits(directory: Path, idx: Callable[[Any], bytes]) -> None:
    """200 images to learn from and 50 to test with; ``idx`` makes a file's content of an array."""
    random = np.random.default_rng(0)
    for part, count in (("train", 200), ("t10k", 50)):
        labels = random.integers(0, 10, count).astype(np.uint8)
        images = random.integers(0, 60, (count, 28, 28)).astype(np.uint8)
        for image, label in zip(images, labels, strict=True):
            image[2 * label : 2 * label + 4] += 150
        (directory / f"{part}-images-idx3-ubyte").write_bytes(idx(images))
        (directory / f"{part}-labels-idx1-ubyte").write_bytes(idx(labels))
