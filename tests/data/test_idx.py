import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from actorflow.data import read_idx
from actorflow.errors import DataError


@given(
    st.sampled_from(["u1", "i1", "i2", "i4", "f4", "f8"]).flatmap(
        lambda dtype: hnp.arrays(dtype, hnp.array_shapes(max_dims=4, max_side=4))
    ),
    st.booleans(),
)
def test_reads_what_was_written(tmp_path_factory: pytest.TempPathFactory, idx, array, compressed: bool) -> None:
    path = tmp_path_factory.mktemp("idx") / "array"
    path.write_bytes(gzip.compress(idx(array), 1) if compressed else idx(array))
    read = read_idx(path)
    np.testing.assert_array_equal(read, array)
    assert read.dtype == array.dtype
    assert read.dtype.isnative
    assert read.flags.writeable


LABELS = b"\x00\x00\x08\x01\x00\x00\x00\x0a" + bytes(range(10))


@pytest.mark.together(
    ("content", "message"),
    [
        (b"\x00\x00", "expected an IDX file, got only 2 bytes"),
        (b"P5 10 10 255", r"starts with 00 00 and a type code \(08, 09, .*\); got 50 35 20 31"),
        (b"\x00\x00\x07\x01" + LABELS[4:], "got 00 00 07 01"),
        (LABELS[:6], r"expected a header of 8 bytes \(1 axes\), got 6 bytes"),
        (LABELS[:-3], r"truncated: expected 10 bytes of data for shape \(10,\) of uint8, got 7"),
        (LABELS + b"\x00", "too long: expected 10 bytes .* got 11"),
        (gzip.compress(LABELS, mtime=0)[:-9], "expected a whole gzip file, got .* bytes that do not decompress"),
        (gzip.compress(LABELS[:-3], mtime=0), "truncated: expected 10 bytes"),
        (gzip.compress(LABELS, mtime=0)[:10] + b"junk" * 8, "expected a whole gzip file"),
        (b"\x00\x00\x0e\x03" + b"\xff" * 12, "truncated: expected .* bytes of data"),
    ],
)
def test_malformed_file(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "labels-idx1-ubyte.gz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        read_idx(path)
    assert str(path) in str(caught.value)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere: expected an IDX file, but it cannot be read: No such file"):
        read_idx(tmp_path / "nowhere")
    with pytest.raises(DataError, match="cannot be read"):
        read_idx(tmp_path)


def test_number_of_axes(tmp_path: Path) -> None:
    path = tmp_path / "labels"
    path.write_bytes(LABELS)
    assert read_idx(path, axes=1).shape == (10,)
    with pytest.raises(DataError, match="expected an array of 3 axes, got 1"):
        read_idx(path, axes=3)
