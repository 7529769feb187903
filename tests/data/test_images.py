"""Image files and folders of them: real files, written by Pillow."""

import os
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actorflow.data import ImageFiles, image_folder, read_image
from actorflow.errors import DataError, MissingExtraError

pillow = pytest.importorskip("PIL.Image")


def write(path: Path, pixels: np.ndarray, mode: str | None = None, **settings: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = pillow.fromarray(pixels)
    (image if mode is None else image.convert(mode)).save(path, **settings)
    return path


def noise(height: int = 6, width: int = 5, channels: int = 3, seed: int = 0) -> np.ndarray:
    drawn = np.random.default_rng(seed).integers(0, 256, (height, width, channels), np.uint8)
    return drawn if channels > 1 else drawn[..., 0]


def stripes(height: int, *widths: int) -> np.ndarray:
    """Upright stripes of red, green, blue."""
    return np.repeat(np.eye(3, dtype=np.uint8)[np.newaxis] * 255, widths, axis=1).repeat(height, axis=0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three images of cats, two of dogs, and what is none."""
    for number, name in enumerate(["cat/b.png", "cat/a.PNG", "cat/deep/c.bmp", "dog/1.png", "dog/10.png"]):
        write(tmp_path / name, noise(seed=number))
    (tmp_path / "cat" / "notes.txt").write_text("no image")
    (tmp_path / "cat" / ".a.png").write_bytes(b"no image")
    (tmp_path / "cat" / ".deep").mkdir()
    (tmp_path / "cat" / ".deep" / "d.png").write_bytes(b"no image")
    (tmp_path / ".cache").mkdir()
    (tmp_path / "list.png").write_bytes(b"in no class")
    return tmp_path


# -- folders ------------------------------------------------------------------------------------------------------


def test_classes_and_files_are_in_order(folder: Path) -> None:
    found = image_folder(str(folder), dtype="uint8")
    assert found.classes == ("cat", "dog")
    names = [path.relative_to(folder).as_posix() for path in found.images.paths]
    assert names == ["cat/a.PNG", "cat/b.png", "cat/deep/c.bmp", "dog/1.png", "dog/10.png"]
    assert found.labels.tolist() == [0, 0, 0, 1, 1]
    assert found.labels.dtype == np.int64
    for image, seed in zip(found.images, [1, 0, 2, 3, 4], strict=True):
        np.testing.assert_array_equal(image, noise(seed=seed))


def test_the_order_is_not_that_of_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"{kind}/{number}.png" for kind in ("a", "b") for number in (1, 10, 2)]
    for name in names:
        write(tmp_path / name, noise())
    walk, listed = os.walk, Path.iterdir
    monkeypatch.setattr(Path, "iterdir", lambda path: iter(sorted(listed(path), reverse=True)))
    monkeypatch.setattr(os, "walk", lambda *a, **k: [(at, down, sorted(up)[::-1]) for at, down, up in walk(*a, **k)])
    found = image_folder(tmp_path)
    assert [path.relative_to(tmp_path).as_posix() for path in found.images.paths] == names
    assert found.classes == ("a", "b")


def test_nothing_is_decoded_before_it_is_asked_for(folder: Path) -> None:
    (folder / "dog" / "1.png").write_bytes(b"junk")
    found = image_folder(folder)
    assert found.images[[0, 4]].shape == (2, 6, 5, 3)
    with pytest.raises(DataError, match=r"dog.1\.png: expected an image, but it cannot be decoded"):
        found.images[[0, 3]]


def test_folders_without_images_are_named(folder: Path) -> None:
    for name in ("ant", "zebra"):
        (folder / name).mkdir()
    with pytest.raises(DataError, match=r"(?m)expected images \(\.bmp, .*\) in each class; none in: ant, zebra$"):
        image_folder(folder)
    for number in range(20):
        (folder / f"m{number:02}").mkdir()
    with pytest.raises(DataError, match=r"(?m)none in: ant, m00, m01, m02, m03, m04, m05, m06 and 14 more$"):
        image_folder(folder)


def test_what_is_no_folder_of_folders(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="absent: expected a folder of images per class, but No such file"):
        image_folder(tmp_path / "absent")
    with pytest.raises(DataError, match="but there are no folders in it"):
        image_folder(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="file: expected a folder of images per class, but Not a directory"):
        image_folder(tmp_path / "file")


def test_a_class_that_cannot_be_read_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.scandir

    def refuse(path: Any) -> Any:
        if Path(path).name == "dog":
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(DataError, match="dog: expected a folder of images, but Permission denied"):
        image_folder(folder)


def test_without_pillow(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(MissingExtraError, match=r"reading image files needs 'PIL': pip install 'actorflow\[images\]'"):
        image_folder(folder)


# -- files --------------------------------------------------------------------------------------------------------


def test_files_are_chosen_as_rows_of_an_array_are(folder: Path) -> None:
    files = image_folder(folder).images
    assert len(files) == 5
    whole = files[:]
    assert whole.shape == (5, 6, 5, 3)
    assert whole.dtype == np.float32
    for rows in (np.array([3, 0, 3]), slice(1, 4), whole[:, 0, 0, 0] > 0.5, np.array([-1]), 2, -2):
        np.testing.assert_array_equal(files[rows], whole[rows])
    assert files[np.array([], np.int64)].shape[0] == 0
    with pytest.raises(IndexError):
        files[5]


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "float64"])
def test_values_are_bytes_or_from_0_to_1(tmp_path: Path, dtype: str) -> None:
    ramp = np.arange(256, dtype=np.uint8).reshape(16, 16)
    (image,) = ImageFiles([write(tmp_path / "ramp.png", ramp)], channels=1, dtype=dtype)
    assert image.shape == (16, 16, 1)
    assert image.dtype == dtype
    expected = ramp if dtype == "uint8" else ramp / np.dtype(dtype).type(255)
    np.testing.assert_array_equal(image[..., 0], expected)


@pytest.mark.together("suffix", [".jpg", ".png", ".webp", ".tif", ".bmp", ".ppm"])
def test_forms(tmp_path: Path, suffix: str) -> None:
    smooth = np.linspace(0, 255, 32 * 24 * 3).reshape(32, 24, 3).astype(np.uint8)
    found = read_image(write(tmp_path / f"image{suffix}", smooth))
    assert found.shape == (32, 24, 3)
    assert found.dtype == np.uint8
    assert found.flags.writeable
    assert np.abs(found.astype(int) - smooth).max() <= (12 if suffix in {".jpg", ".webp"} else 0)


@pytest.mark.together("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK"])
@pytest.mark.together("channels", [1, 3])
def test_modes(tmp_path: Path, mode: str, channels: int) -> None:
    grey = np.full((4, 5, 3), 255, np.uint8)
    grey[1] = 0
    path = write(tmp_path / ("image.jpg" if mode == "CMYK" else "image.png"), grey, mode, quality=100)
    found = read_image(path, channels=channels)
    assert found.shape == (4, 5, channels)
    assert np.abs(found - grey[..., :channels].astype(int)).max() <= 2


def test_transparent_palettes_are_read_without_a_warning(tmp_path: Path) -> None:
    image = pillow.fromarray(noise()).quantize(4)
    image.save(tmp_path / "p.png", transparency=bytes([0, 128, 255, 255]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = read_image(tmp_path / "p.png")
    np.testing.assert_array_equal(found, np.asarray(image.convert("RGB")))


def test_colors_become_grey(tmp_path: Path) -> None:
    path = write(tmp_path / "s.png", stripes(2, 1, 1, 1))
    assert read_image(path, channels=1)[0, :, 0].tolist() == [76, 150, 29]  # ITU-R 601


@pytest.mark.together("suffix", [".jpg", ".png", ".webp", ".tif"], at_once=40)
@pytest.mark.together("orientation", range(10))
def test_images_are_turned_as_they_are_shown(tmp_path: Path, suffix: str, orientation: int) -> None:
    pixels = np.repeat(np.repeat(noise(3, 2), 16, 0), 16, 1)
    image, exif = pillow.fromarray(pixels), pillow.Exif()
    exif[0x0112] = orientation
    image.save(path := tmp_path / f"turned{suffix}", exif=exif, quality=100)
    with pillow.open(path) as saved:
        shown = np.asarray(pytest.importorskip("PIL.ImageOps").exif_transpose(saved))
        if suffix != ".tif":  # which Pillow turns itself
            np.testing.assert_array_equal(read_image(path, upright=False), np.asarray(saved))
    np.testing.assert_array_equal(read_image(path), shown)
    assert ImageFiles([path], upright=True)[0].shape == shown.shape
    cut = read_image(path, size=(20, 30))
    np.testing.assert_array_equal(cut, read_image(write(tmp_path / "shown.png", shown), size=(20, 30)))


def test_broken_orientations_are_passed_over(tmp_path: Path) -> None:
    for number, exif in enumerate((b"Exif\0\0junk", b"", b"Exif\0\0MM\0*\0\0\0\x08\xff\xff")):
        path = write(tmp_path / f"{number}.jpg", noise(16, 8), exif=exif)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert read_image(path).shape == (16, 8, 3)


def test_more_than_8_bits_are_refused(tmp_path: Path) -> None:
    pillow.fromarray(np.full((3, 3), 40_000, np.uint16)).save(tmp_path / "deep.png")
    with pytest.raises(DataError, match=r"deep\.png: expected an image of 8 bits per channel, got one of mode I;16"):
        read_image(tmp_path / "deep.png")
    pillow.fromarray(np.full((3, 3), 0.5, np.float32)).save(tmp_path / "float.tif")
    with pytest.raises(DataError, match=r"float\.tif: .* got one of mode F"):
        read_image(tmp_path / "float.tif")


@pytest.mark.parametrize("suffix", [".png", ".jpg"])
def test_broken_files_are_named(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / f"broken{suffix}", noise(64, 64))
    whole = path.read_bytes()
    for content in (b"", b"junk", whole[: len(whole) // 2], whole[: len(whole) // 10]):
        path.write_bytes(content)
        with pytest.raises(DataError, match=rf"broken\{suffix}: expected an image, but it cannot be decoded: ."):
            read_image(path)
    with pytest.raises(DataError, match=r"nowhere\.png: expected an image, .*No such file"):
        read_image(tmp_path / "nowhere.png")


def test_no_change_of_a_file_is_another_error(tmp_path: Path) -> None:
    """Whatever Pillow raises for a malformed file, or nothing at all."""
    path = write(tmp_path / "fuzzed.png", noise(8, 8))
    whole, random, refused = path.read_bytes(), np.random.default_rng(0), 0
    for place in range(8, len(whole), 3):
        damaged = bytearray(whole)
        damaged[place] ^= int(random.integers(1, 256))
        path.write_bytes(damaged)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                read_image(path)
        except DataError:
            refused += 1
    assert refused > 20


def test_images_too_large_to_be_meant_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "bomb.png", noise(20, 20))
    monkeypatch.setattr(pillow, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(DataError, match=r"bomb\.png: expected an image, but .*exceeds limit of 200 pixels"):
        read_image(path)


# -- sizes --------------------------------------------------------------------------------------------------------


def test_sizes_of_a_batch_are_one(tmp_path: Path) -> None:
    paths = [write(tmp_path / "a.png", noise(6, 5)), write(tmp_path / "b.png", noise(6, 4))]
    with pytest.raises(
        DataError, match=r"b\.png: expected an image of 5x6 pixels, as the first .* got 4x6: give a size"
    ):
        ImageFiles(paths)[:]
    assert ImageFiles(paths, size=3)[:].shape == (2, 3, 3, 3)


def test_the_middle_is_taken(tmp_path: Path) -> None:
    wide = write(tmp_path / "wide.png", stripes(20, 10, 20, 10))
    green = np.zeros((20, 20, 3), np.uint8) + stripes(1, 0, 1, 0)
    np.testing.assert_array_equal(read_image(wide, size=20), green)
    tall = write(tmp_path / "tall.png", stripes(20, 10, 20, 10).transpose(1, 0, 2))
    np.testing.assert_array_equal(read_image(tall, size=20), green)
    np.testing.assert_array_equal(read_image(wide, size=6, shorter=20), green[:6, :6])
    np.testing.assert_array_equal(read_image(wide, size=(20, 40)), stripes(20, 10, 20, 10))
    np.testing.assert_array_equal(read_image(wide, size=(10, 24))[:, [0, 23]], stripes(10, 1, 0, 1)[:, [0, 1]])


@pytest.mark.together(("height", "width"), [(20, 30), (31, 17), (9, 64), (1, 1), (7, 7)])
@pytest.mark.together(("size", "shorter"), [(8, None), ((5, 9), None), (8, 10), ((9, 4), 13), (64, None)])
def test_any_size_comes_out_as_it_was_asked_for(tmp_path: Path, height, width, size, shorter) -> None:
    path = write(tmp_path / "any.png", noise(height, width))
    asked = size if isinstance(size, tuple) else (size, size)
    assert read_image(path, size=size, shorter=shorter).shape == (*asked, 3)


def test_a_scaled_image_looks_like_the_image(tmp_path: Path) -> None:
    ramp = np.broadcast_to(np.arange(0, 240, 5, dtype=np.uint8)[np.newaxis, :, np.newaxis], (24, 48, 3))
    found = read_image(write(tmp_path / "ramp.png", np.ascontiguousarray(ramp)), size=(6, 12))
    np.testing.assert_allclose(found[3, 1:-1, 0], np.arange(12)[1:-1] * 20 + 7.5, atol=1)


@pytest.mark.together(
    ("settings", "message"),
    [
        ({"channels": 2}, "3 channels for colors or 1 for grey, got 2"),
        ({"dtype": "int32"}, "of uint8 or of a floating dtype, got int32"),
        ({"size": 0}, "size must be at least 1, got 0"),
        ({"size": (3, -1)}, "size must be at least 1, got -1"),
        ({"shorter": 10}, "at least the size that is taken of it, None, got 10"),
        ({"size": (5, 11), "shorter": 10}, r"taken of it, \(5, 11\), got 10"),
    ],
)
def test_what_is_wrong_is_an_error(settings, message) -> None:
    with pytest.raises(DataError, match=message):
        ImageFiles([], **settings)
