from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

CODES = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}
ToIdx = Callable[[npt.NDArray[np.generic]], bytes]


@pytest.fixture(scope="session")
def idx() -> ToIdx:
    """What makes an IDX file's content of an array, after the format's description and apart from the reader."""

    def content(array: npt.NDArray[np.generic]) -> bytes:
        code = CODES[array.dtype.str[1:]]
        header = struct.pack(f">HBB{array.ndim}I", 0, code, array.ndim, *array.shape)
        return header + array.astype(array.dtype.newbyteorder(">")).tobytes()

    return content
