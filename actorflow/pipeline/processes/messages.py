"""Messages between processes: a pickle, behind it the memory of large arrays as it is.

A message is the length of the pickle and the number of buffers, the length of each, the pickle, the buffers. Small
arrays are a part of the pickle: each then has memory of its own where it arrives. Large ones are neither copied into
the pickle nor out of it (pickle protocol 5, out-of-band buffers).
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Generator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

#: Pickle and buffers, as they came.
Message = tuple[memoryview, list[memoryview]]

_HEAD = struct.Struct("<QI")
#: Bytes from which an array is not copied into the pickle.
_LARGE = 1 << 15


class _Rows(NamedTuple):
    """Small arrays of one shape and dtype, stacked: pickling each takes several times as long."""

    rows: npt.NDArray[Any]


def gathered(values: list[Any]) -> Any:
    """The values themselves, or what stands for them in a message if they are small arrays of one form."""
    first = values[0] if values else None
    if type(first) is not np.ndarray or not first.ndim or first.dtype.hasobject or first.nbytes >= _LARGE:
        return values
    dtype, shape = first.dtype, first.shape
    for value in values:
        if type(value) is not np.ndarray or value.shape != shape or value.dtype != dtype:
            return values
    return _Rows(np.stack(values))


def scattered(values: Any) -> list[Any]:
    """The values that were gathered; each array has memory of its own."""
    if isinstance(values, _Rows):
        return [row.copy() for row in values.rows]
    items: list[Any] = values
    return items


def pack(value: Any) -> list[memoryview]:
    """A message, as memory to be sent in this order; it refers to the value's arrays, and does not copy large ones."""
    buffers: list[memoryview] = []

    def is_small(buffer: pickle.PickleBuffer) -> bool:
        memory = buffer.raw()
        if memory.nbytes < _LARGE:
            return True
        buffers.append(memory)
        return False

    body = pickle.dumps(value, 5, buffer_callback=is_small)
    sizes = struct.pack(f"<{len(buffers)}Q", *[buffer.nbytes for buffer in buffers])
    return [memoryview(_HEAD.pack(len(body), len(buffers)) + sizes), memoryview(body), *buffers]


def reading() -> Generator[memoryview, None, Message]:
    """Read one message: yields memory to be filled with the bytes that come next."""
    head = bytearray(_HEAD.size)
    yield memoryview(head)
    size, count = _HEAD.unpack(head)
    sizes = bytearray(8 * count)
    if count:
        yield memoryview(sizes)
    parts = []
    for length in (size, *struct.unpack(f"<{count}Q", sizes)):
        part = np.empty(length, np.uint8).data
        yield part
        parts.append(part)
    return parts[0], parts[1:]


def open_message(message: Message) -> Any:
    """The value in a message; its large arrays are the message's buffers."""
    body, buffers = message
    return pickle.loads(body, buffers=buffers)  # noqa: S301  both processes are this program
