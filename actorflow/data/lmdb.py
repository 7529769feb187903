"""Labelled images in LMDB databases, as Caffe and Purine2 wrote them (package ``lmdb``, an extra)."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from actorflow.data.augment import Augmentation, AugmentationStep, CenterCrop, Crop, Mirror, Normalize
from actorflow.data.datum import Datum, label_of, read_datum, read_mean
from actorflow.data.loader import Batches, Loader
from actorflow.errors import DataError, require, shown, whole
from actorflow.pipeline.stages.sampler import Rows, Sampler
from actorflow.threads import held_at_fork

Decode = Callable[[memoryview], Datum]


class LmdbImages:
    """Images in an LMDB database, which are read and decoded when they are asked for, each time anew.

    Images are numbered in the order of their keys. The database is opened when it is first read, once for all that read
    it, and again in each process; it can be pickled and be there when a process forks. Nothing may write to it
    meanwhile: it is read without locks.

    Args:
        path: The database, a folder or a file.
        color: Whether images have three channels, red, green and blue, or one: grey ones are repeated, colored ones
            weighted (ITU-R 601), as Pillow does it. None leaves them as they are.
        bgr: As for `read_datum`.
        decode: Makes a `Datum` of a record, where records are something other than Caffe's; a function that can be
            pickled if the images are.

    Attributes:
        path, color: As given.
        labels: The labels, a `Column` as well: int64.

    Raises:
        DataError: if there is no such database, or nothing in it.
        MissingExtraError: if ``lmdb`` is not installed (extra ``lmdb``).

    Example:
        >>> import lmdb
        >>> with lmdb.open("train_lmdb") as database, database.begin(write=True) as transaction:
        ...     for number in range(3):  # Caffe's records: channels, height, width, data, label
        ...         message = bytes([8, 1, 16, 1, 24, 2, 34, 2, number, 20, 40, number])
        ...         _ = transaction.put(b"%08d" % number, message)
        >>> images = af.data.LmdbImages("train_lmdb")
        >>> len(images), images[2].shape, images.labels[np.array([2, 0])]
        (3, (1, 2, 1), array([2, 0]))
    """

    def __init__(
        self, path: str | Path, *, color: bool | None = None, bgr: bool = True, decode: Decode | None = None
    ) -> None:
        self.path = Path(path)
        self.color = color
        self._decode = partial(read_datum, bgr=bgr) if decode is None else decode
        self._label = label_of if decode is None else partial(_label, decode)
        self._environment: _Environment | None = None
        if not len(self):
            raise DataError(f"{self.path}: expected an LMDB database of images, there is no record in it")

    @property
    def labels(self) -> _Labels:
        """The labels: ``labels[rows]`` is int64."""
        return _Labels(self)

    def __len__(self) -> int:
        return len(self._opened.keys)

    def __getitem__(self, rows: int | slice | npt.NDArray[Any]) -> npt.NDArray[Any]:
        """One image, (height, width, channels), or a batch of some, chosen as those of an array are.

        Raises:
            DataError: if a record is not an image, or the images of a batch have several sizes; it names the first such
                record.
            IndexError: if there is no such image.
        """
        images: npt.NDArray[Any] | None = None
        with self._records(rows) as (chosen, records):
            for place, (name, record) in enumerate(records):
                with _naming(name):
                    image = _of_color(self._decode(record).image, self.color)
                if images is None:
                    images = np.empty((chosen.size, *image.shape), image.dtype)
                elif (image.shape, image.dtype) != (images.shape[1:], images.dtype):
                    raise DataError(
                        f"{name}: expected an image {images.dtype}{list(images.shape[1:])}, as the first of its batch "
                        f"is, got {image.dtype}{list(image.shape)}"
                    )
                images[place] = image
        if images is None:
            return np.empty((0, *self[0].shape), self[0].dtype)
        return images if chosen.ndim else images[0]

    def __repr__(self) -> str:
        return f"<LmdbImages {str(self.path)!r}: {len(self)} images>"

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_environment": None}

    @property
    def _opened(self) -> _Environment:
        opened = self._environment
        if opened is None or opened.pid != os.getpid():
            opened = self._environment = _opened[self.path]
        return opened

    @contextmanager
    def _records(self, rows: Any) -> Iterator[tuple[npt.NDArray[Any], Iterator[tuple[str, memoryview]]]]:
        """Numbers of records, and each with a name for messages; to be used before the block ends."""
        opened = self._opened
        chosen = _numbers(rows, len(opened.keys))
        with opened.handle.begin(buffers=True) as transaction:

            def each() -> Iterator[tuple[str, memoryview]]:
                for row in chosen.reshape(-1).tolist():
                    key = opened.keys[row]
                    record = transaction.get(key)
                    name = f"{self.path}: record {row} ({key!r})"
                    if record is None:
                        raise DataError(f"{name} is gone: the database has been changed while it was read")
                    yield name, record

            yield chosen, each()


class _Labels:
    def __init__(self, images: LmdbImages) -> None:
        self._images = images

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, rows: int | slice | npt.NDArray[Any]) -> Any:
        images, labels = self._images, []
        with images._records(rows) as (chosen, records):
            for name, record in records:
                with _naming(name):
                    labels.append(images._label(record))
        return np.array(labels, np.int64).reshape(chosen.shape)[()]


@dataclass(frozen=True)
class Blocks(Sampler):
    """Purine2's order: blocks of neighbours, the first one at ``offset``, each ``interval`` behind the one before.

    ``Blocks(count, offset=rank * 64, interval=ranks * 64, block=64)`` gives each rank blocks of its own. Behind the
    last example comes the first; an epoch has the blocks of one round, and begins where the one before ended.

    Attributes:
        count: As for `Sampler`.
        seed: None.
        offset: Number of the first example; not negative.
        interval: From the beginning of one block to that of the next, at least ``block``.
        block: Examples of a block, from 1 to ``count``.

    Raises:
        DataError: if a number is out of range.
    Source: Purine2 ``ImageLabel`` (offset, interval, batch_size).

    Example:
        >>> shares = [af.data.Blocks(8, offset=rank * 2, interval=4, block=2) for rank in range(2)]
        >>> [share.rows(epoch=0).tolist() for share in shares]
        [[0, 1, 4, 5], [2, 3, 6, 7]]
    """

    block: int = 1

    def __post_init__(self) -> None:
        for name in ("count", "offset", "interval", "block"):
            object.__setattr__(self, name, whole(f"Blocks: {name}", getattr(self, name), error=DataError))
        if self.seed is not None or self.offset < 0 or not 1 <= self.block <= min(self.interval, self.count):
            raise DataError(
                "Blocks: expected no seed, 0 <= offset, 1 <= block <= interval and block <= count, "
                f"got seed {shown(self.seed)}, offset {self.offset}, block {self.block}, interval {self.interval} "
                f"and count {self.count}"
            )

    def __len__(self) -> int:
        return self._blocks * self.block

    @property
    def _blocks(self) -> int:
        return max(self.count // self.interval, 1)

    def rows(self, epoch: int) -> Rows:
        """The examples of an epoch, int64, shape (len(self),).

        Raises:
            DataError: if the epoch is negative.
        """
        epoch = whole("epoch", epoch, 0, error=DataError)
        begins = self.offset + (epoch * self._blocks + np.arange(self._blocks)) * self.interval
        rows: Rows = ((begins[:, np.newaxis] + np.arange(self.block)) % self.count).reshape(-1)
        return rows


def image_label(
    source: str | Path,
    images: Any,
    labels: Any,
    *,
    batch_size: int,
    mean: str | Path | npt.ArrayLike | None = None,
    mirror: bool = False,
    random: bool = False,
    color: bool = True,
    offset: int = 0,
    interval: int | None = None,
    crop_size: int | None = None,
    bgr: bool = True,
    seed: int = 0,
) -> Batches:
    """Purine2's ``ImageLabel``: feeds of images and labels from an LMDB database, in the order of the records.

    Each rank of several reads batches of its own:
    ``image_label(..., batch_size=64, offset=rank * 64, interval=ranks * 64)``. For other orders, other augmentations,
    and images of other forms make a `Loader` of `LmdbImages`; this is one of

    - ``LmdbImages(source, color=color)`` and their labels,
    - ``Blocks(count, offset=offset, interval=interval, block=batch_size)``,
    - ``Normalize(mean)``, ``Crop(crop_size)`` or ``CenterCrop(crop_size)``, and ``Mirror()``.

    Args:
        source: The database.
        images: Blob or name that is fed with images: float32, shape (batch, height, width, channels), of 0 to 255 less
            the mean.
        labels: Blob or name that is fed with labels, int64.
        batch_size: Images of a batch.
        mean: Numbers to subtract: a file that `read_mean` reads, or numbers, one for each channel or for each pixel and
            channel. A mean of the size of the images is subtracted before they are cropped, one of the size of the crop
            after that. In the order of channels that images have then: red, green, blue.
        mirror: Whether half of the images, at random, are turned left to right.
        random: Whether a part at random is cropped, else the middle.
        color: As for `LmdbImages`: three channels, or one.
        offset: Number of the first record.
        interval: Records from the beginning of one batch to that of the next; by default ``batch_size``, all of them.
        crop_size: Height and width of the part; None for the whole image.
        bgr: As for `read_datum`, and for a mean that is read from a file.
        seed: Seed of mirroring and cropping.
    Raises:
        DataError: if the database or the mean cannot be read or do not fit each other, or a number is out of range.
        MissingExtraError: if ``lmdb`` is not installed (extra ``lmdb``).
    Source: Purine2 ``ImageLabel``.

    Example:
        >>> import lmdb
        >>> with lmdb.open("train_lmdb") as database, database.begin(write=True) as transaction:
        ...     for number in range(4):  # Caffe's records: channels, height, width, data, label
        ...         message = bytes([8, 1, 16, 1, 24, 2, 34, 2, number, 20, 40, number])
        ...         _ = transaction.put(b"%08d" % number, message)
        >>> feeds = af.data.image_label("train_lmdb", "x", "y", batch_size=2, color=False, mean=10)
        >>> [feed["y"].tolist() for feed in feeds]
        [[0, 1], [2, 3]]
    """
    batch_size = whole("image_label: batch_size", batch_size, 1, error=DataError)
    if crop_size is not None:
        crop_size = whole("image_label: crop_size", crop_size, 1, error=DataError)
    column = LmdbImages(source, color=color, bgr=bgr)
    order = Blocks(len(column), None, offset, batch_size if interval is None else interval, batch_size)
    height, width, _ = column[0].shape
    cuts: list[AugmentationStep] = []
    if crop_size is not None:
        if crop_size > min(height, width):
            raise DataError(
                f"image_label: expected a crop_size from 1 to the size of the images, {height}x{width}, got {crop_size}"
            )
        cuts.append(Crop(crop_size) if random else CenterCrop(crop_size))
    if isinstance(mean, str | Path):
        mean = read_mean(mean, bgr=bgr)
    subtrahend = np.asarray(0 if mean is None else mean, np.float32)
    sizes: dict[tuple[int, ...], list[AugmentationStep]] = {(height, width): [Normalize(subtrahend), *cuts]}
    if crop_size is not None:
        sizes.setdefault((crop_size, crop_size), [*cuts, Normalize(subtrahend)])
    per_pixel = subtrahend.ndim == 3 and subtrahend.shape[:2] != (1, 1)
    found = sizes.get(subtrahend.shape[:2] if per_pixel else (height, width))
    channels = 3 if color else 1
    if found is None or subtrahend.ndim not in (0, 1, 3) or subtrahend.shape[-1:] not in ((), (1,), (channels,)):
        known = " or ".join(f"{h}x{w}" for h, w in sizes)
        raise DataError(
            f"image_label: expected a mean of {channels} channels, one for each or for pixels of {known}, "
            f"got one of shape {subtrahend.shape}"
        )
    steps: list[AugmentationStep] = [*found, Mirror()] if mirror else found
    return Loader(
        {images: column, labels: column.labels},
        batch_size,
        sampler=order,
        transforms={images: Augmentation(steps, seed=seed)},
    )


def _label(decode: Decode, record: memoryview) -> int:
    return decode(record).label


def _of_color(image: npt.NDArray[Any], color: bool | None) -> npt.NDArray[Any]:
    """An image of three channels or one; as it is where nothing is wanted."""
    channels = image.shape[-1]
    if color is None or channels == (3 if color else 1):
        return image
    if channels not in (1, 3):
        raise DataError(f"expected an image of 1 or 3 channels, got {channels}")
    if color:
        return image.repeat(3, axis=-1)
    weights, share = np.array([[19595], [38470], [7471]]), 1 << 16
    grey: npt.NDArray[Any] = image @ weights
    grey = grey / share if image.dtype.kind == "f" else (grey + share // 2) // share
    return grey.astype(image.dtype, copy=False)


def _numbers(rows: Any, count: int) -> npt.NDArray[Any]:
    if isinstance(rows, slice) or np.asarray(rows).dtype.kind not in "iu":
        chosen: npt.NDArray[Any] = np.arange(count)[rows]
        return chosen
    numbers = np.array(rows, np.int64)
    if numbers.size and not (-count <= numbers.min() and numbers.max() < count):
        raise IndexError(f"there are {count} images, got the numbers {numbers.min()} to {numbers.max()}")
    numbers[numbers < 0] += count
    return numbers


@contextmanager
def _naming(record: str) -> Iterator[None]:
    try:
        yield
    except DataError as error:
        raise DataError(f"{record}: {error}") from error.__cause__


class _Environment:
    """A database that this process has open: LMDB allows that once, so that all that read it share it."""

    def __init__(self, path: Path) -> None:
        library = require("lmdb", extra="lmdb", purpose="reading LMDB databases")
        self.pid = os.getpid()  # id of the process
        try:
            self.handle = library.open(str(path), subdir=path.is_dir(), readonly=True, lock=False, create=False)
            with self.handle.begin() as transaction, transaction.cursor() as cursor:
                self.keys: Sequence[bytes] = [*cursor.iternext(keys=True, values=False)]
        except library.Error as error:
            raise DataError(f"{path}: expected an LMDB database, but it cannot be read: {error}") from error


class _Opened:
    """The databases that this process has open, by path."""

    def __init__(self) -> None:
        self._environments: WeakValueDictionary[str, _Environment] = WeakValueDictionary()
        self._lock = held_at_fork(threading.Lock())

    def __getitem__(self, path: Path) -> _Environment:
        place = os.path.realpath(path)
        with self._lock:
            found = self._environments.get(place)
            if found is not None and found.pid != os.getpid():
                found.handle.close()  # this process has copies of the handles of the one that it was forked from
                found = None
            if found is None:
                found = self._environments[place] = _Environment(path)
        return found


_opened = _Opened()
