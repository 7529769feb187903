"""Caffe's messages."""

from contextlib import suppress
from io import BytesIO

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorflow.data import read_datum, read_mean
from actorflow.data.datum import label_of
from actorflow.errors import DataError
from tests.support.datums import blob_proto, datum, field

COLORS = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3) * 13
GREY = np.array([[[7], [200]], [[0], [255]], [[1], [2]]], np.uint8)


def test_a_message_byte_by_byte() -> None:
    """As a protocol buffer's own writer has it: 1 channel, 2 x 2 pixels, label 300."""
    record = bytes.fromhex("08 01 10 02 18 02 22 04 00 7f 80 ff 28 ac 02")
    image, label = read_datum(record)
    assert (image.dtype, image.tolist(), label) == (np.uint8, [[[0], [127]], [[128], [255]]], 300)


@pytest.mark.together("image", [COLORS, GREY, np.zeros((1, 1, 4), np.uint8)])
@pytest.mark.together("bgr", [True, False])
@pytest.mark.together("label", [0, 1, 127, 128, 999, 2**31 - 1, -1])
def test_bytes(image: np.ndarray, bgr: bool, label: int) -> None:
    record = datum(image, label, bgr=bgr)
    found = read_datum(memoryview(record), bgr=bgr)
    assert found.image.dtype == np.uint8
    np.testing.assert_array_equal(found.image, image)
    assert found.label == label_of(record) == label
    assert found.image.flags.writeable
    if image.shape[2] == 3:
        np.testing.assert_array_equal(read_datum(record, bgr=not bgr).image, image[:, :, ::-1])


@pytest.mark.parametrize("packed", [True, False])
def test_floating_numbers(packed: bool) -> None:
    image = np.random.default_rng(0).standard_normal((4, 5, 3)).astype("f")
    image[0, 0] = np.inf, -0.0, 1e-40
    found = read_datum(datum(image, 3, packed=packed))
    assert found.image.dtype == np.float32
    np.testing.assert_array_equal(found.image, image)
    assert found.label == 3


def test_fields_in_any_order_and_of_other_numbers() -> None:
    record = field(99, 5) + field(5, 4) + field(100, b"more") + field(98, 1.5) + bytes([15 << 3 | 1]) + bytes(8)
    assert label_of(record + field(5, 6)) == 6  # the last one counts
    planes = COLORS.transpose(2, 0, 1)[::-1].tobytes()
    found = read_datum(field(4, planes) + field(98, 1.5) + field(3, 3) + field(2, 2) + field(1, 3))
    np.testing.assert_array_equal(found.image, COLORS)
    assert found.label == 0


def test_encoded() -> None:
    pillow = pytest.importorskip("PIL.Image")
    for image in (COLORS, GREY):
        content = BytesIO()
        pillow.fromarray(image if image.shape[2] == 3 else image[:, :, 0]).save(content, "png")
        found = read_datum(datum(image, 5, encoded=content.getvalue()))
        np.testing.assert_array_equal(found.image, image)
        assert found.label == 5
    with pytest.raises(DataError, match="Datum: expected an image, but it cannot be decoded"):
        read_datum(datum(COLORS, 5, encoded=b"no image"))


@pytest.mark.together(
    ("record", "message"),
    [
        (b"", r"expected channels x height x width numbers, got 0 for \(0, 0, 0\)"),
        (
            datum(COLORS, 1)[:-3],
            "expected a protocol buffer of this kind, but 18 bytes at byte .* are cut off after 15",
        ),
        (b"\x00\x01", "there is no field at byte 0"),
        (b"\x0b", "a field at byte 0 is of kind 3"),
        (b"\x08\x80", "an integer at byte 2 is cut off"),
        (b"\x08" + b"\xff" * 11, "an integer at byte .* is cut off"),
        (b"\x35\x00\x00", "are cut off"),
        (field(1, 3) + field(2, 2) + field(3, 2) + field(4, bytes(18)), r"got 18 for \(3, 2, 2\)"),
        (field(1, -1) + field(2, 2) + field(3, 2) + field(4, bytes(4)), r"got 4 for \(-1, 2, 2\)"),
        (field(1, b"a text") + field(4, bytes(4)), "expected"),
        (field(1, 1) + field(2, 1) + field(3, 1) + field(4, 5), "expected"),
        (field(5, b"a text"), "expected"),
    ],
)
def test_what_is_no_datum(record: bytes, message: str) -> None:
    with pytest.raises(DataError, match=f"^Datum: .*{message}"):
        read_datum(record)


CUT = st.tuples(st.integers(0, 40), st.binary(max_size=20)).map(lambda drawn: datum(GREY, 9)[: drawn[0]] + drawn[1])


@given(st.binary(max_size=60) | CUT)
def test_any_bytes_are_read_or_refused(record: bytes) -> None:
    for read in (read_datum, label_of):
        with suppress(DataError):
            read(record)


@pytest.mark.together("kind", ["packed", "numbers", "shape", "dims"])
@pytest.mark.together("channels", [1, 3])
def test_means(tmp_path, kind: str, channels: int) -> None:
    mean = np.random.default_rng(0).uniform(0, 255, (4, 6, channels)).astype("f")
    path = tmp_path / "mean.binaryproto"
    path.write_bytes(blob_proto(mean, kind=kind))
    found = read_mean(path)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, mean)
    np.testing.assert_array_equal(read_mean(str(path), bgr=False), mean[:, :, ::-1])


def test_what_is_no_mean(tmp_path) -> None:
    path = tmp_path / "mean"
    with pytest.raises(DataError, match="mean: expected a mean image, but No such file"):
        read_mean(path)
    path.write_bytes(b"\x0b")
    with pytest.raises(DataError, match="mean: BlobProto: expected a protocol buffer of this kind, but"):
        read_mean(path)
    path.write_bytes(blob_proto(np.ones((2, 2, 3)))[:10])
    with pytest.raises(DataError, match=str(path)):
        read_mean(path)
    path.write_bytes(field(2, 3) + field(3, 2) + field(5, 1.0))
    with pytest.raises(DataError, match=r"mean: expected a mean of channels x height x width numbers, got 1 for"):
        read_mean(path)


@pytest.mark.together(
    "shape",
    [b"\x08", b"\x08\x80", b"\x0a\x02\x80\x80", b"\xff", b"\x09" + bytes(8), b"\x0d" + bytes(4)],
)
def test_a_mean_of_a_damaged_shape(tmp_path, shape: bytes) -> None:
    path = tmp_path / "mean"
    path.write_bytes(bytes([7 << 3 | 2, len(shape)]) + shape)
    with pytest.raises(DataError, match="mean: BlobProto: expected a protocol buffer of this kind, but"):
        read_mean(path)
