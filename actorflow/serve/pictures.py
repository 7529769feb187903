"""Pictures as the input of a model: JPEG and PNG, scaled to what the model takes."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from actorflow.data.images import ImageFiles, decoded
from actorflow.errors import DataError, require
from actorflow.serve.answers import refused
from actorflow.serve.models import Hosted
from actorflow.spec import Length

_FORMATS = ("JPEG", "PNG")


class Picture(NamedTuple):
    """What a model takes as a picture.

    Attributes:
        name: Name of its one input.
        dtype: uint8 for values from 0 to 255; a floating one for values from 0 to 1.
        size: Height and width; None if they are open.
        channels: 3 for red, green and blue, 1 for grey.
        channels_last: Whether the channels are the last axis, or follow that of the rows.
    """

    name: str
    dtype: np.dtype[Any]
    size: tuple[int, int] | None
    channels: int
    channels_last: bool

    @classmethod
    def of(cls, hosted: Hosted) -> Picture:
        """The picture that a model takes.

        Raises:
            Refused: with 400, if it takes none.
        """
        for name, tensor in hosted.inputs.items() if len(hosted.inputs) == 1 else ():
            lengths: tuple[Any, ...] = tensor.spec.shape
            dtype = tensor.spec.dtype
            if len(lengths) != 4 or tensor.shape[0] not in (-1, 1) or not (dtype == np.uint8 or dtype.kind == "f"):
                break
            for last, channels, sides in ((True, lengths[3], lengths[1:3]), (False, lengths[1], lengths[2:])):
                if channels in (1, 3) and not isinstance(channels, Length):
                    open_sides = any(isinstance(side, Length) for side in sides)
                    return cls(name, dtype, None if open_sides else sides, channels, last)
        expected = "one input of shape (1, height, width, channels) or (1, channels, height, width), of 1 or 3 channels"
        raise refused(400, f"model {hosted.name!r} takes no pictures: they are for models with {expected}")

    def read(self, data: memoryview, options: Mapping[str, str], most_pixels: int) -> npt.NDArray[Any]:
        """The pixels of a file, as the model's input; takes its time.

        Args:
            data: The content of the file.
            options: ``mean`` and ``std``, one number or one for each channel: what is taken from the values, and what
                they are divided by then.
            most_pixels: More are not decoded.
        Raises:
            Refused: with 400, if it is not such a file, or the options are wrong; with 413, if it is too large; with
                501, if Pillow is not installed.
        """
        mean, std = (self._per_channel(options, name, default) for name, default in (("mean", 0.0), ("std", 1.0)))
        if not std.all():
            raise refused(400, "expected std to be other than 0")
        pillow = require("PIL.Image", extra="images", purpose="reading pictures")
        try:
            with pillow.open(BytesIO(data), formats=_FORMATS) as picture:
                wide, high = picture.size
        except (pillow.DecompressionBombError, pillow.DecompressionBombWarning):
            raise refused(413, f"expected a picture of at most {most_pixels:,} pixels") from None
        except Exception as error:  # noqa: BLE001  a malformed file may raise anything
            raise refused(400, f"expected a picture in the format JPEG or PNG: {type(error).__name__}") from None
        if wide * high > most_pixels:
            raise refused(413, f"expected a picture of at most {most_pixels:,} pixels, got {wide} x {high}")
        fit = ImageFiles([], size=self.size, channels=self.channels).fitted
        try:
            pixels: npt.NDArray[Any] = decoded(BytesIO(data), "the picture", self.channels, fit)
        except DataError as error:
            raise refused(400, str(error)) from None
        if self.dtype != np.uint8:
            pixels = ((pixels / np.float32(255) - mean) / std).astype(self.dtype)
        elif "mean" in options or "std" in options:
            raise refused(400, "mean and std are for models that take floating numbers")
        return np.ascontiguousarray((pixels if self.channels_last else pixels.transpose(2, 0, 1))[np.newaxis])

    def _per_channel(self, options: Mapping[str, str], name: str, default: float) -> npt.NDArray[np.float32]:
        parts = options[name].split(",") if name in options else [str(default)]
        try:
            values = np.array([float(part) for part in parts], np.float64).astype(np.float32)
        except ValueError:
            values = np.array([np.nan], np.float32)
        if len(values) not in (1, self.channels) or not np.isfinite(values).all():
            raise refused(400, f"expected {name} to be one number or {self.channels}, with commas between")
        return values
