"""Augmentation of batches of images: what happens to an example depends on the seed, the epoch and its number alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from actorflow.data.draws import Draws
from actorflow.errors import DataError
from actorflow.pipeline.stages.sampler import Rows

#: Images of any dtype, shape (batch, height, width, channels).
Images = npt.NDArray[Any]
#: What an augmentation is made of: gives new images of a batch, whose random numbers are the draws'.
Step = Callable[[Images, Draws], Images]


class Augmentation:
    """Steps that are taken one after the other.

    ::

        augment = Augmentation([Crop(32, padding=4), Mirror(), normalize], seed=0)
        augment(images, rows, epoch)

    What becomes of an image is the same in whatever batch, process or order it comes; so any number of workers may
    share the work, and a training that goes on behind a checkpoint sees what it would have seen.

    Args:
        steps: `Crop`, `Mirror`, `Normalize`, ..., or any function of a batch and its `Draws`. A step must give each
            image what it would give it in another batch, and leave its input as it is.
        seed: Not negative. Augmentations with one seed and the same steps do the same, to images and masks, say.

    Raises:
        DataError: if the seed is negative.
    """

    def __init__(self, steps: Sequence[Step], *, seed: int = 0) -> None:
        if seed < 0:
            raise DataError(f"Augmentation: expected a seed that is not negative, got {seed}")
        self.steps = tuple(steps)
        self.seed = seed

    def __call__(self, images: Images, rows: npt.ArrayLike, epoch: int) -> Images:
        """The images as they are to be learned from; those given stay as they are.

        Args:
            images: Shape (batch, height, width, channels).
            rows: Number of each image in its data set, integers, shape (batch,).
            epoch: Counted from 0.
        Raises:
            DataError: if there are not as many rows as images, or a step does not fit them.
        """
        numbers = np.asarray(rows, np.int64)
        if images.ndim != 4 or numbers.shape != images.shape[:1]:
            raise DataError(
                "Augmentation: expected images (batch, height, width, channels) and a row for each, "
                f"got shapes {images.shape} and {numbers.shape}"
            )
        for place, step in enumerate(self.steps):
            images = step(images, Draws(self.seed, epoch, numbers, 1 + place))  # a sampler draws from stream 0
        return images


class Mirror:
    """Images turned left to right, at random.

    Args:
        probability: Of that, from 0 to 1.

    Raises:
        DataError: if it is out of range.
    Source: Purine2 ``ImageLabel`` (mirror).
    """

    def __init__(self, probability: float = 0.5) -> None:
        if not 0 <= probability <= 1:
            raise DataError(f"Mirror: expected a probability from 0 to 1, got {probability}")
        self.probability = probability

    def __call__(self, images: Images, draws: Draws) -> Images:
        """New images of the same dtype and shape."""
        columns, mirrored = np.arange(images.shape[2])[::-1], np.empty(images.shape, images.dtype)
        chosen = draws.uniform()[:, 0] < self.probability
        for new, old, turned in zip(mirrored, images, chosen.tolist(), strict=True):
            if turned:
                np.take(old, columns, axis=1, out=new, mode="clip")  # faster than a copy of old[:, ::-1]
            else:
                new[...] = old
        return mirrored


class Crop:
    """A part of each image, of a given size, at random.

    Args:
        size: Height and width of the part, or one number for both; at least 1.
        padding: Pixels of ``fill`` around the image, of which the part may contain some; not negative.
        fill: Value of these pixels. After the mean has been subtracted 0 is the mean.

    Raises:
        DataError: if a number is out of range; when called, if the padded image is smaller than the part.
    Source: Purine2 ``ImageLabel`` (crop_size).
    """

    def __init__(self, size: int | tuple[int, int], *, padding: int = 0, fill: float = 0) -> None:
        self.height, self.width = size if isinstance(size, tuple) else (size, size)
        self.padding = padding
        self.fill = fill
        if self.height < 1 or self.width < 1 or padding < 0:
            raise DataError(f"Crop: expected a size of at least 1 and a padding of at least 0, got {size}, {padding}")

    def __call__(self, images: Images, draws: Draws) -> Images:
        """New images of the same dtype, shape (batch, size, size, channels)."""
        room = _room(images, self.height, self.width, self.padding)
        places = draws.below(*(pixels + 1 for pixels in room)) - self.padding
        return _cut(images, places, self.height, self.width, self.fill)


class CenterCrop:
    """The middle of each image, for testing what was trained with `Crop`.

    Args:
        size: As for `Crop`.

    Raises:
        DataError: as for `Crop`.
    """

    def __init__(self, size: int | tuple[int, int]) -> None:
        self.height, self.width = size if isinstance(size, tuple) else (size, size)
        if self.height < 1 or self.width < 1:
            raise DataError(f"CenterCrop: expected a size of at least 1, got {size}")

    def __call__(self, images: Images, draws: Draws) -> Images:
        """Views of the images, shape (batch, size, size, channels)."""
        top, left = (pixels // 2 for pixels in _room(images, self.height, self.width, 0))
        return images[:, top : top + self.height, left : left + self.width]


def _room(images: Images, height: int, width: int, padding: int) -> tuple[int, int]:
    """How far down and how far right a part can be moved."""
    down, right = images.shape[1] + 2 * padding - height, images.shape[2] + 2 * padding - width
    if down < 0 or right < 0:
        around = f" and a padding of {padding}" if padding else ""
        raise DataError(
            f"expected images of at least {height}x{width} pixels to crop, "
            f"got {images.shape[1]}x{images.shape[2]}{around}"
        )
    return down, right


def _cut(images: Images, places: Rows, height: int, width: int, fill: float) -> Images:
    """The part of each image that begins at a place, which may lie outside of it."""
    parts = np.full((len(images), height, width, images.shape[3]), fill, images.dtype)
    # What of each part lies inside: its begin and end, both down and right, in the image and in the part.
    begin, end = (np.clip(places + size, 0, images.shape[1:3]) for size in (0, (height, width)))
    slices = np.concatenate([begin, end, begin - places, end - places], axis=1)
    for part, image, (y, x, y_end, x_end, top, left, bottom, right) in zip(parts, images, slices.tolist(), strict=True):
        # Slices copy whole lines of pixels, which is many times as fast as an index for each pixel.
        part[top:bottom, left:right] = image[y:y_end, x:x_end]
    return parts
