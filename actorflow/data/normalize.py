"""Mean subtraction and scaling of images, per pixel or per channel."""

from __future__ import annotations

from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from actorflow.data.draws import Draws
from actorflow.errors import DataError
from actorflow.pipeline.stages.sampler import Rows

#: Images that are looked at together when their mean is taken.
_BLOCK = 256


class Column(Protocol):
    """One value for each example of a data set: an array, or what makes a part of one when asked.

    ``column[rows]`` is the array of the values of some examples, of shape (len(rows), ...).
    """

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Rows, /) -> Any: ...


class Normalize:
    """``(images - mean) / std``, for any number of axes.

    ::

        Normalize(std=255)                       # bytes to numbers from 0 to 1
        Normalize(mean=(125.3, 123.0, 113.9))    # a mean for each channel
        Normalize.of(train.images, per="pixel")  # the mean image, and the deviation of each pixel

    A mean image is that of whole images: subtract it before they are cropped, so that each part loses the mean of its
    own pixels.

    Args:
        mean: A number, one for each channel, or one for each pixel and channel.
        std: Likewise; not 0.
        dtype: Of the result, floating.

    Attributes:
        mean, std: Arrays of the dtype.

    Raises:
        DataError: if the dtype is not floating, or ``std`` has a 0; when called, if the images have another shape.
    Source: Purine2 ``ImageLabel`` (mean).
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
        """What gives these images a mean of 0 and a standard deviation of 1.

        Args:
            images: Those to learn from: an array, or files of images; shape (count, ..., channels).
            per: What a mean is taken over: each pixel and channel of the images, each channel, or all together.
            scale: Whether to divide by the deviations; what does not vary is left as it is. Else the mean is subtracted
                alone.
            dtype: As for the class.
        Raises:
            DataError: if there is no image, or ``per`` is something else.
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
