"""Pictures as the input of a model: JPEG and PNG, scaled to what the model takes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from io import BytesIO
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from actorflow.data.images import ImageFiles, pixels_of
from actorflow.errors import DataError, require
from actorflow.serve.account import Account, Share
from actorflow.serve.answers import refused
from actorflow.serve.limits import Limits
from actorflow.serve.models import Hosted
from actorflow.spec import Length
from actorflow.threads import in_thread

_FORMATS = ("JPEG", "PNG")
#: Bytes that a pixel of a file takes at most while it is decoded, converted and turned.
_PIXEL_BYTES = 16
#: Names of chunks of PNG with packed texts; what a byte of them may unpack to, and most that Pillow unpacks.
_PACKED, _UNPACKED, _MOST_TEXTS = (b"zTXt", b"iTXt"), 1 << 10, 64 << 20
#: The begin of a JPEG file and of a scan in it, and most of these: each may take as long as the whole picture.
_JPEG, _SCAN, _MOST_SCANS = b"\xff\xd8", b"\xff\xda", 128


class Picture(NamedTuple):
    """Form of the pictures that a model takes.

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

    async def read(
        self, data: memoryview, options: Mapping[str, str], limits: Limits, account: Account
    ) -> npt.NDArray[Any]:
        """The pixels of a file, as the model's input; it is decoded in a thread.

        Args:
            data: The content of the file.
            options: ``mean`` and ``std``, one number or one for each channel: what is taken from the values, and what
                they are divided by then; ``upright``, false to leave it as the camera was held (EXIF).
            limits: The largest picture that is decoded, and the largest size of what comes out.
            account: Holds the memory that is needed for it until it is decoded.
        Raises:
            Refused: with 400, if it is not such a file, or the options are wrong; with 413, if it is too large; with
                501, if Pillow is not installed; with 503, if there is no room for it.
            DeviceError: if the system has no thread to give.
        Cancellation: as for `in_thread`.
        """
        return await in_thread(partial(self._read, bytes(data), options, limits, account))

    def _read(self, data: bytes, options: Mapping[str, str], limits: Limits, account: Account) -> npt.NDArray[Any]:
        mean, std = (self._per_channel(options, name, default) for name, default in (("mean", 0.0), ("std", 1.0)))
        if not std.all():
            raise refused(400, "expected std to be other than 0")
        if self.dtype == np.uint8 and ("mean" in options or "std" in options):
            raise refused(400, "mean and std are for models that take floating numbers")
        upright = options.get("upright", "true")
        if upright not in ("true", "false"):
            raise refused(400, "expected upright to be true or false")
        pillow = require("PIL.Image", extra="images", purpose="reading pictures")
        if data.startswith(_JPEG) and data.count(_SCAN) > _MOST_SCANS:
            raise refused(400, f"expected a picture in the format JPEG with at most {_MOST_SCANS} scans")
        # This thread may go on when nobody waits for it any more: it holds its memory by itself.
        with Share(account) as held:
            has_texts = any(chunk in data for chunk in _PACKED)
            held.add(len(data) + has_texts * min(_UNPACKED * len(data), _MOST_TEXTS))
            try:
                picture = pillow.open(BytesIO(data), formats=_FORMATS)
            except (pillow.DecompressionBombError, pillow.DecompressionBombWarning):
                raise refused(413, f"expected a picture of at most {limits.picture_pixels:,} pixels") from None
            except Exception as error:  # noqa: BLE001  a malformed file may raise anything
                raise refused(400, f"expected a picture in the format JPEG or PNG: {type(error).__name__}") from None
            with picture:
                (wide, high), most = picture.size, limits.picture_pixels
                if wide * high > most:
                    raise refused(413, f"expected a picture of at most {most:,} pixels, got {wide} x {high}")
                count = math.prod(self.size or (high, wide)) * self.channels
                if (size := count * self.dtype.itemsize) > limits.body_bytes:
                    raise refused(413, f"expected a picture of at most {limits.body_bytes:,} bytes, got {size:,}")
                held.add(wide * high * _PIXEL_BYTES + sum({size, 4 * count}))  # the result, and float32 before it
                fit = ImageFiles([], size=self.size, channels=self.channels).fitted
                try:
                    pixels = pixels_of(picture, "the picture", self.channels, fit, upright=upright == "true")
                except DataError as error:
                    raise refused(400, str(error)) from None
            if not self.channels_last:
                pixels = pixels.transpose(2, 0, 1)
            if self.dtype == np.uint8:
                return np.ascontiguousarray(pixels[np.newaxis])
            scaled = np.divide(pixels, np.float32(255), order="C")
            scaled -= mean if self.channels_last else mean.reshape(-1, 1, 1)
            scaled /= std if self.channels_last else std.reshape(-1, 1, 1)
            return scaled.astype(self.dtype, copy=False)[np.newaxis]

    def _per_channel(self, options: Mapping[str, str], name: str, default: float) -> npt.NDArray[np.float32]:
        parts = options[name].split(",") if name in options else [str(default)]
        try:
            values = np.array([float(part) for part in parts], np.float64).astype(np.float32)
        except ValueError:
            values = np.array([np.nan], np.float32)
        if len(values) not in (1, self.channels) or not np.isfinite(values).all():
            raise refused(400, f"expected {name} to be one number or {self.channels}, with commas between")
        return values
