"""Augmentation of batches of images: changes of an example depend on the seed, the epoch and its number alone.

Random numbers are drawn by counter (`Draws`): what is drawn for an example depends neither on its batch, nor on the
thread that draws it, when, or what was drawn before, and no generator has a state that a checkpoint would have to hold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from actorflow.errors import DataError, real, whole
from actorflow.pipeline.stages.sampler import Rows, key_of, words_of


@dataclass(frozen=True, eq=False)
class Draws:
    """Random numbers for each example of a batch.

    The same numbers are given whenever they are asked for: a step that needs two asks for two columns.

    Attributes:
        seed: Not negative.
        epoch: Counted from 0.
        rows: Number of each example in the data set, shape (batch,).
        stream: Tells apart the steps of an augmentation.

    Raises:
        DataError: if the seed or the epoch is negative.

    Example:
        >>> draws = af.data.Draws(seed=0, epoch=3, rows=np.array([5, 2]))
        >>> draws.uniform(2).shape, draws.below(8, 8).shape
        ((2, 2), (2, 2))
        >>> alone = af.data.Draws(seed=0, epoch=3, rows=np.array([2]))
        >>> bool(alone.uniform()[0] == draws.uniform()[1])  # whatever batch an example is in
        True
    """

    seed: int
    epoch: int
    rows: Rows
    stream: int = 0
    _words: npt.NDArray[np.uint64] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        words = words_of(key_of(self.seed, self.epoch, self.stream), self.rows)
        object.__setattr__(self, "_words", words)

    def uniform(self, columns: int = 1) -> npt.NDArray[np.float64]:
        """Numbers from 0 to less than 1, float64, shape (batch, columns)."""
        keys = words_of(np.uint64(0), np.arange(whole("columns", columns, 1, error=DataError)))
        return (words_of(keys, self._words[:, np.newaxis]) >> np.uint64(11)) * np.float64(2.0**-53)

    def below(self, *bounds: int) -> npt.NDArray[np.int64]:
        """Integers from 0 to less than each of the bounds, which are at least 1; int64, shape (batch, bounds)."""
        scaled: npt.NDArray[np.float64] = self.uniform(len(bounds)) * np.array(bounds)
        return scaled.astype(np.int64)


#: Images of any dtype, shape (batch, height, width, channels).
Images = npt.NDArray[Any]
#: A step of an augmentation: gives new images of a batch, with the random numbers of the draws.
AugmentationStep = Callable[[Images, Draws], Images]


def height_and_width(name: str, size: int | Sequence[int]) -> tuple[int, int]:
    """The height and width that a size gives, one number for both or one each; raises DataError if it is no size."""
    numbers = tuple(size) if isinstance(size, tuple | list) else (size, size)
    if len(numbers) != 2:
        raise DataError(f"{name} must be a number, or a height and a width, got {size}")
    height, width = (whole(name, number, 1, error=DataError) for number in numbers)
    return height, width


class Augmentation:
    """Steps that are taken one after the other.

    What becomes of an image is the same in whatever batch, process or order it comes; so any number of workers may
    share the work, and a training that goes on behind a checkpoint sees what it would have seen.

    Args:
        steps: `Crop`, `Mirror`, `Normalize`, ..., or any function of a batch and its `Draws`. A step must give each
            image what it would give it in another batch, and leave its input as it is.
        seed: Not negative. Augmentations with one seed and the same steps do the same, such as to images and masks.

    Raises:
        DataError: if the seed is negative.

    Example:
        >>> images = np.arange(2 * 8 * 8 * 3, dtype="float32").reshape(2, 8, 8, 3)
        >>> augment = af.data.Augmentation([af.data.Crop(8, padding=2), af.data.Mirror()], seed=0)
        >>> both = augment(images, rows=[7, 2], epoch=0)
        >>> both.shape
        (2, 8, 8, 3)
        >>> np.array_equal(augment(images[1:], rows=[2], epoch=0), both[1:])  # the same in another batch
        True
    """

    def __init__(self, steps: Sequence[AugmentationStep], *, seed: int = 0) -> None:
        self.steps = tuple(steps)
        self.seed = whole("Augmentation: seed", seed, 0, error=DataError)

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
        probability: Probability of that, from 0 to 1.

    Raises:
        DataError: if it is out of range.
    Source: Purine2 ``ImageLabel`` (mirror).

    Example:
        >>> images = np.array([1, 2, 3]).reshape(1, 1, 3, 1)
        >>> mirror = af.data.Mirror(probability=1)
        >>> mirror(images, af.data.Draws(seed=0, epoch=0, rows=np.array([0]))).ravel()
        array([3, 2, 1])
    """

    def __init__(self, probability: float = 0.5) -> None:
        self.probability = real("Mirror: probability", probability, 0, 1, error=DataError)

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

    Example:
        >>> images = np.zeros([2, 40, 40, 3])
        >>> draws = af.data.Draws(seed=0, epoch=0, rows=np.array([0, 1]))
        >>> af.data.Crop(32)(images, draws).shape
        (2, 32, 32, 3)
        >>> af.data.Crop((40, 32), padding=4)(images, draws).shape
        (2, 40, 32, 3)
    """

    def __init__(self, size: int | tuple[int, int], *, padding: int = 0, fill: float = 0) -> None:
        self.height, self.width = height_and_width("Crop: size", size)
        self.padding = whole("Crop: padding", padding, 0, error=DataError)
        self.fill = real("Crop: fill", fill, finite=False, error=DataError)

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

    Example:
        >>> images = np.arange(16).reshape(1, 4, 4, 1)
        >>> augment = af.data.Augmentation([af.data.CenterCrop(2)])
        >>> augment(images, rows=[0], epoch=0)[0, :, :, 0]
        array([[ 5,  6],
               [ 9, 10]])
    """

    def __init__(self, size: int | tuple[int, int]) -> None:
        self.height, self.width = height_and_width("CenterCrop: size", size)

    def __call__(self, images: Images, draws: Draws) -> Images:
        """Views of the images, shape (batch, size, size, channels)."""
        top, left = (pixels // 2 for pixels in _room(images, self.height, self.width, 0))
        return images[:, top : top + self.height, left : left + self.width]


def _room(images: Images, height: int, width: int, padding: int) -> tuple[int, int]:
    """Pixels by which a part can be moved down and right."""
    down, right = images.shape[1] + 2 * padding - height, images.shape[2] + 2 * padding - width
    if down < 0 or right < 0:
        around = f" and a padding of {padding}" if padding else ""
        raise DataError(
            f"expected images of at least {height}x{width} pixels to crop, "
            f"got {images.shape[1]}x{images.shape[2]}{around}"
        )
    return down, right


def _cut(images: Images, places: Rows, height: int, width: int, fill: float) -> Images:
    parts = np.full((len(images), height, width, images.shape[3]), fill, images.dtype)
    # The piece of each part that lies inside: its begin and end, both down and right, in the image and in the part.
    begin, end = (np.clip(places + size, 0, images.shape[1:3]) for size in (0, (height, width)))
    slices = np.concatenate([begin, end, begin - places, end - places], axis=1)
    for part, image, (y, x, y_end, x_end, top, left, bottom, right) in zip(parts, images, slices.tolist(), strict=True):
        # Slices copy whole lines of pixels, which is many times as fast as an index for each pixel.
        part[top:bottom, left:right] = image[y:y_end, x:x_end]
    return parts


_BLOCK = 256  # images that are looked at together when their mean is taken


class Column(Protocol):
    """One value for each example of a data set: an array, or what makes a part of one when asked.

    ``column[rows]`` is the array of the values of some examples, of shape (len(rows), ...).

    Example:
        >>> class Squares:
        ...     def __len__(self):
        ...         return 100
        ...
        ...     def __getitem__(self, rows):
        ...         return rows**2
        >>> loader = af.data.Loader({"x": Squares()}, 4)
        >>> next(iter(loader))["x"]
        array([0, 1, 4, 9])
    """

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Rows, /) -> Any: ...


class Normalize:
    """``(images - mean) / std``, for any number of axes.

    A mean image is that of whole images: subtract it before they are cropped, so that each part loses the mean of its
    own pixels.

    Args:
        mean: A number, one for each channel, or one for each pixel and channel.
        std: Likewise; not 0.
        dtype: Floating dtype of the result.

    Attributes:
        mean, std: Arrays of the dtype.

    Raises:
        DataError: if the dtype is not floating, or ``std`` has a 0; when called, if the images have another shape.
    Source: Purine2 ``ImageLabel`` (mean).

    Example:
        >>> bytes_to_units = af.data.Normalize(std=255)
        >>> bytes_to_units(np.array([[0, 51, 255]], "uint8"))
        array([[0. , 0.2, 1. ]], dtype=float32)
        >>> of_channels = af.data.Normalize(mean=(125.3, 123.0, 113.9))
    """

    def __init__(self, mean: npt.ArrayLike = 0, std: npt.ArrayLike = 1, *, dtype: npt.DTypeLike = np.float32) -> None:
        self.dtype = np.dtype(dtype)
        if self.dtype.kind != "f":
            raise DataError(f"Normalize: expected a floating dtype, got {self.dtype}")
        self.mean, self.std = np.asarray(mean, self.dtype), np.asarray(std, self.dtype)
        if not self.std.all():
            raise DataError("Normalize: expected a std that is nowhere 0")

    @classmethod
    def of(
        cls,
        images: Column,
        *,
        per: Literal["pixel", "channel", "all"] = "channel",
        scale: bool = True,
        dtype: npt.DTypeLike = np.float32,
    ) -> Normalize:
        """The normalization that gives these images a mean of 0 and a standard deviation of 1.

        Args:
            images: Images to learn from: an array, or files of images; shape (count, ..., channels).
            per: Elements that share a mean: each pixel and channel of the images, each channel, or all together.
            scale: Whether to divide by the deviations; what does not vary is left as it is. Else the mean is subtracted
                alone.
            dtype: As for the class.
        Raises:
            DataError: if there is no image, or ``per`` is something else.

        Example:
            >>> images = np.array([0, 2, 4, 6], "float32").reshape(4, 1, 1, 1)
            >>> normalize = af.data.Normalize.of(images, scale=False)
            >>> normalize(images).ravel()
            array([-3., -1.,  1.,  3.], dtype=float32)
            >>> af.data.Normalize.of(images, per="pixel").std.shape
            (1, 1, 1)
        """
        if per not in ("pixel", "channel", "all"):
            raise DataError(f"Normalize: expected per='pixel', 'channel' or 'all', got {per!r}")
        mean, std = _moments(images, per)
        varies = std > 1e-12 * np.abs(mean)  # else it is what rounding leaves
        return cls(mean, np.where(varies, std, 1) if scale else 1, dtype=dtype)

    def __call__(self, images: npt.NDArray[Any], draws: Draws | None = None) -> npt.NDArray[Any]:
        """New images of the same shape; nothing is random in it.

        Args:
            images: Shape (batch, ..., channels).
            draws: Not used; there for being a step of an `Augmentation`.
        """
        for name, values in (("mean", self.mean), ("std", self.std)):
            if values.ndim >= images.ndim or any(
                mine not in (1, theirs) for mine, theirs in zip(values.shape[::-1], images.shape[::-1], strict=False)
            ):
                raise DataError(
                    f"Normalize: expected images that a {name} of shape {values.shape} fits, got {images.shape[1:]}"
                )
        normal: npt.NDArray[Any] = np.subtract(images, self.mean, dtype=self.dtype)
        normal /= self.std
        return normal


def _moments(images: Column, per: str) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Mean and standard deviation, float64, in one pass over blocks of images.

    Source: Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979.
    """
    count = 0
    mean = squares = np.zeros(())
    for start in range(0, len(images), _BLOCK):
        block = np.asarray(images[np.arange(start, min(start + _BLOCK, len(images)))], np.float64)
        axes = tuple(range({"pixel": 1, "channel": block.ndim - 1, "all": block.ndim}[per]))
        here = np.asarray(block.mean(axis=axes))
        block -= here
        added = block.size // max(here.size, 1)
        apart = here - mean
        squares = squares + np.square(block, out=block).sum(axis=axes) + apart**2 * (count * added / (count + added))
        count += added
        mean = mean + apart * (added / count)
    if not count:
        raise DataError("Normalize: expected at least one image to take the mean of, got none")
    return mean, np.sqrt(squares / count)
