"""Image files, decoded by Pillow when they are asked for; folders of them, one for each class."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from actorflow.data.augment import height_and_width
from actorflow.errors import DataError, flag, listed, require, whole

#: Names of files that are taken for images end so, in small letters or capitals.
IMAGE_SUFFIXES = (".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")

_MODES = {1: "L", 3: "RGB"}
_ORIENTATION = 0x0112  # number of the orientation in EXIF
_SHOWN = 8


def read_image(
    path: str | Path,
    *,
    size: int | tuple[int, int] | None = None,
    shorter: int | None = None,
    channels: int = 3,
    upright: bool = True,
) -> npt.NDArray[np.uint8]:
    """Decode an image file: uint8, shape (height, width, channels). It blocks; most of it without the GIL.

    Args:
        path: The file, of any form that Pillow knows. Transparent pixels have the color that the file gives them.
        size: Height and width, or one number for both: the image is scaled, then its middle is taken. None leaves it as
            it is.
        shorter: Length of the shorter side before the middle is taken, at least the larger one of ``size``, as
            in ``size=224, shorter=256``. None scales the image so that it just covers ``size``.
        channels: 3 for red, green and blue, 1 for grey.
        upright: Whether it is turned and mirrored as the file says that it is shown (orientation in EXIF), as
            photographs of phones are.
    Raises:
        DataError: if the file cannot be read or decoded, or has more than 8 bits per channel; if a size is out of
            range.
        MissingExtraError: if Pillow is not installed (extra ``images``).

    Example:
        >>> from PIL import Image
        >>> Image.new("RGB", (64, 48), "red").save("red.png")
        >>> af.data.read_image("red.png").shape
        (48, 64, 3)
        >>> af.data.read_image("red.png", size=32)[0, 0]
        array([255,   0,   0], dtype=uint8)
    """
    return ImageFiles([path], size=size, shorter=shorter, channels=channels, dtype=np.uint8, upright=upright)[0]


class ImageFiles:
    """Images in files, which are decoded when they are asked for, each time anew.

    Args:
        paths: The files.
        size, shorter, channels, upright: As for `read_image`.
        dtype: uint8 for values from 0 to 255; a floating one for values from 0 to 1.

    Attributes:
        paths, size, channels, dtype: As given; the size as height and width.

    Raises:
        DataError: if an argument is out of range.
        MissingExtraError: if Pillow is not installed (extra ``images``).

    Example:
        >>> from PIL import Image
        >>> for name in "red", "lime":
        ...     Image.new("RGB", (64, 48), name).save(f"{name}.png")
        >>> files = af.data.ImageFiles(["red.png", "lime.png"], size=32)
        >>> len(files), files[1].shape, files[np.array([1, 0])].shape
        (2, (32, 32, 3), (2, 32, 32, 3))
        >>> files[1][0, 0]
        array([0., 1., 0.], dtype=float32)
    """

    def __init__(
        self,
        paths: Sequence[str | Path],
        *,
        size: int | tuple[int, int] | None = None,
        shorter: int | None = None,
        channels: int = 3,
        dtype: npt.DTypeLike = np.float32,
        upright: bool = True,
    ) -> None:
        _pillow()
        self.paths = tuple(map(Path, paths))
        self.size = None if size is None else height_and_width("size", size)
        self.channels = channels = whole("channels", channels, error=DataError)
        self.dtype = np.dtype(dtype)
        self._shorter = shorter = None if shorter is None else whole("shorter", shorter, 1, error=DataError)
        self._upright = flag("upright", upright)
        if channels not in _MODES:
            raise DataError(f"expected 3 channels for colors or 1 for grey, got {channels}")
        if self.dtype != np.uint8 and self.dtype.kind != "f":
            raise DataError(f"expected images of uint8 or of a floating dtype, got {self.dtype}")
        if shorter is not None and (self.size is None or shorter < max(self.size)):
            raise DataError(f"expected a shorter side of at least the size that is taken of it, {size}, got {shorter}")

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, rows: int | slice | npt.NDArray[Any]) -> npt.NDArray[Any]:
        """One image, (height, width, channels), or a batch of some, chosen as those of an array are.

        Raises:
            DataError: as `read_image` does; if the images of a batch have several sizes, naming the first that differs.
            IndexError: if there is no such image.
        """
        chosen = np.arange(len(self))[rows]
        images: npt.NDArray[Any] = np.empty((0, *(self.size or (0, 0)), self.channels), self.dtype)
        for place, row in enumerate(chosen.reshape(-1).tolist()):
            path = self.paths[row]
            image = decoded(path, str(path), self.channels, self.fitted, upright=self._upright)
            if not place:
                images = np.empty((chosen.size, *image.shape), self.dtype)
            elif image.shape != images.shape[1:]:
                raise DataError(
                    f"{path}: expected an image of {_sides(images[0])} pixels, as the first of its batch "
                    f"is, got {_sides(image)}: give a size"
                )
            if self.dtype == np.uint8:
                images[place] = image
            else:
                np.divide(image, self.dtype.type(255), out=images[place])
        return images if chosen.ndim else images[0]

    def fitted(self, image: Any) -> Any:
        """The middle of an image of Pillow's, scaled to the size."""
        if self.size is None:
            return image
        (height, width), (wide, high) = self.size, image.size
        scale = max(height / high, width / wide) if self._shorter is None else self._shorter / min(high, wide)
        # Down, but for the rounding of a side that fits exactly.
        scaled = max(int(wide * scale + 1e-6), width), max(int(high * scale + 1e-6), height)
        if scaled != image.size:
            image = image.resize(scaled, _pillow().Resampling.BILINEAR)
        left, top = round((scaled[0] - width) / 2), round((scaled[1] - height) / 2)
        return image.crop((left, top, left + width, top + height))


class ImageFolder(NamedTuple):
    """The images of a folder.

    Attributes:
        images: The files, ordered by class and then by name.
        labels: Positions in ``classes``, int64, shape (count,).
        classes: Names of the classes.

    Example:
        >>> from pathlib import Path
        >>> from PIL import Image
        >>> for name in "cat", "dog":
        ...     Path("pets", name).mkdir(parents=True)
        ...     Image.new("L", (8, 8)).save(f"pets/{name}/1.png")
        >>> images, labels, classes = af.data.image_folder("pets", channels=1)
        >>> images[0].shape, labels, classes
        ((8, 8, 1), array([0, 1]), ('cat', 'dog'))
    """

    images: ImageFiles
    labels: npt.NDArray[np.int64]
    classes: tuple[str, ...]


def image_folder(
    root: str | Path,
    *,
    size: int | tuple[int, int] | None = None,
    shorter: int | None = None,
    channels: int = 3,
    dtype: npt.DTypeLike = np.float32,
    upright: bool = True,
) -> ImageFolder:
    """The images in a folder of folders, one for each class: ``root/cat/1.jpg``, ``root/cat/more/2.png``, ...

    Files are images whose names end with one of `IMAGE_SUFFIXES`; other files, and names with a dot before, are passed
    over. Nothing is decoded yet.

    Args:
        root: The folder.
        size, shorter, channels, dtype, upright: As for `ImageFiles`.
    Returns:
        Classes are sorted by name, files by class and path, both by code points: the same order on each machine.
    Raises:
        DataError: if there is no such folder, no class in it, or a class without images; all such classes are named.
        MissingExtraError: if Pillow is not installed (extra ``images``).

    Example:
        >>> from pathlib import Path
        >>> from PIL import Image
        >>> for name in "cat", "dog":
        ...     Path("pets", name).mkdir(parents=True)
        ...     Image.new("RGB", (64, 48)).save(f"pets/{name}/1.png")
        >>> pets = af.data.image_folder("pets", size=32)
        >>> pets.classes, pets.labels
        (('cat', 'dog'), array([0, 1]))
        >>> loader = af.data.Loader({"images": pets.images, "labels": pets.labels}, 2)
        >>> next(iter(loader))["images"].shape
        (2, 32, 32, 3)
    """
    folder = Path(root)
    classes = _subfolders(folder)
    found = [_images_below(folder / name) for name in classes]
    empty = [name for name, paths in zip(classes, found, strict=True) if not paths]
    if empty:
        shown = listed(empty, _SHOWN)
        raise DataError(f"{folder}: expected images ({', '.join(IMAGE_SUFFIXES)}) in each class; none in: {shown}")
    paths = [path for paths in found for path in paths]
    files = ImageFiles(paths, size=size, shorter=shorter, channels=channels, dtype=dtype, upright=upright)
    return ImageFolder(files, np.repeat(np.arange(len(classes)), [len(paths) for paths in found]), classes)


def decoded(
    file: Path | BytesIO,
    what: str,
    channels: int | None,
    fit: Callable[[Any], Any] | None = None,
    *,
    upright: bool = True,
) -> npt.NDArray[np.uint8]:
    """The pixels of an image file, as `pixels_of` gives them."""
    pillow = _pillow()
    try:
        image = pillow.open(file)
    except Exception as error:  # a malformed file may raise anything
        raise _broken(what, error) from error
    with image:
        return pixels_of(image, what, channels, fit, upright=upright)


def pixels_of(
    image: Any, what: str, channels: int | None, fit: Callable[[Any], Any] | None = None, *, upright: bool = True
) -> npt.NDArray[np.uint8]:
    """The pixels of an image that Pillow has opened, shape (height, width, channels).

    Raises:
        DataError: if it cannot be decoded, or has more than 8 bits per channel.
    """
    if image.mode.startswith(("I", "F")):
        raise DataError(f"{what}: expected an image of 8 bits per channel, got one of mode {image.mode}")
    try:
        image.load()
        turn = _turn(image) if upright else None
        if image.mode == "P" and "transparency" in image.info:
            image = image.convert("RGBA")  # else Pillow warns of the loss
        has = 1 if image.mode in ("1", "L", "LA") else 3
        image = image.convert(_MODES[channels or has])
        if turn is not None:
            image = image.transpose(turn)
        pixels = np.asarray(image if fit is None else fit(image))
    except Exception as error:  # as above
        raise _broken(what, error) from error
    return pixels.reshape(*pixels.shape[:2], channels or has)


def _broken(what: str, error: Exception) -> DataError:
    return DataError(f"{what}: expected an image, but it cannot be decoded: {error}")


def _turn(image: Any) -> Any:
    """How an image is to be turned or mirrored so that it is upright; None for not at all."""
    try:
        orientation = image.getexif().get(_ORIENTATION)
    except Exception:  # noqa: BLE001  as above; the pixels are good without their metadata
        return None
    turn = _pillow().Transpose
    mirrored = {2: turn.FLIP_LEFT_RIGHT, 4: turn.FLIP_TOP_BOTTOM, 5: turn.TRANSPOSE, 7: turn.TRANSVERSE}
    return (mirrored | {3: turn.ROTATE_180, 6: turn.ROTATE_270, 8: turn.ROTATE_90}).get(orientation)


def _pillow() -> Any:
    return require("PIL.Image", extra="images", purpose="reading image files")


def _subfolders(folder: Path) -> tuple[str, ...]:
    try:
        entries = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
    except OSError as error:
        raise DataError(f"{folder}: expected a folder of images per class, but {error.strerror}") from error
    classes = tuple(name for name in entries if not name.startswith("."))
    if not classes:
        raise DataError(f"{folder}: expected a folder of images per class, but there are no folders in it")
    return classes


def _images_below(folder: Path) -> list[str]:
    """Image files of a class, those in folders of its own included."""

    def refuse(error: OSError) -> None:
        raise DataError(f"{error.filename}: expected a folder of images, but {error.strerror}") from error

    found = []
    for place, folders, names in os.walk(folder, onerror=refuse, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [
            os.path.join(place, name)
            for name in names
            if name.lower().endswith(IMAGE_SUFFIXES) and not name.startswith(".")
        ]
    return sorted(found, key=lambda path: path.split(os.sep))


def _sides(image: npt.NDArray[Any]) -> str:
    return f"{image.shape[1]}x{image.shape[0]}"
