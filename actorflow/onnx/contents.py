"""Contents of a file: the model, and its large weights beside it.

Protocol Buffers copy each weight when a file is parsed, and again when it is read from the message. So large weights
are cut out of what is parsed, and are read into arrays once.
"""

from __future__ import annotations

import math
import mmap
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError
from onnx import ModelProto, TensorProto, helper

from actorflow.errors import GraphError

#: Bytes of a weight that is cut out.
_LARGE = 1 << 12
#: Numbers of fields in `onnx.proto`: a model's graph, its initializers, and a tensor's bytes.
_GRAPH, _INITIALIZER, _RAW = 7, 5, 9
#: How a field's contents are written: a number, eight bytes, bytes of a length, four bytes.
_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5
_TEN = 10
#: Reads bytes into an array from some place on, and returns how many.
_Read = Callable[[Any, int], int]


class Contents(NamedTuple):
    """Contents of a file.

    Attributes:
        model: The model.
        weights: Arrays of initializers by their names; the model has them without their bytes.
    """

    model: ModelProto
    weights: dict[str, Any]


def contents_of(path: str) -> Contents:
    """Contents of a file, read once.

    Raises:
        OSError: if it cannot be read.
        DecodeError, GraphError: if it is no file of ONNX.
    """
    with open(path, "rb") as file:
        try:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError):  # no regular file, or an empty one
            return contents_in(file.read())
        with mapped, memoryview(mapped) as view:
            # Mapped memory comes page by page, which takes longer than reading it.
            return _contents(view, lambda array, start: os.preadv(file.fileno(), [array], start))


def contents_in(view: bytes) -> Contents:
    """Contents of a file's bytes, see `contents_of`."""

    def read(array: Any, start: int) -> int:
        array[:] = np.frombuffer(view, np.uint8, array.size, start)
        return int(array.size)

    return _contents(view, read)


def _contents(view: bytes | memoryview, read: _Read) -> Contents:
    model, weights, rest = ModelProto(), dict[str, Any](), bytearray()
    for number, kind, begin, start, stop in _fields(view, 0, len(view)):
        if number != _GRAPH or kind != _BYTES:
            rest += view[begin:stop]
            continue
        others = bytearray()
        for inner, form, first, middle, last in _fields(view, start, stop):
            if inner != _INITIALIZER or form != _BYTES:
                others += view[first:last]
            elif last - middle < _LARGE or not _cut(model, view, middle, last, weights, read):
                model.graph.initializer.add().ParseFromString(bytes(view[middle:last]))
        model.graph.MergeFromString(bytes(others))
    model.MergeFromString(bytes(rest))
    return Contents(model, weights)


def _cut(
    model: ModelProto, view: bytes | memoryview, start: int, stop: int, weights: dict[str, Any], read: _Read
) -> bool:
    """Add a weight without its bytes, which become an array; not one whose bytes are no array's."""
    raw, others = [], bytearray()
    for number, kind, begin, middle, end in _fields(view, start, stop):
        if number == _RAW and kind == _BYTES:
            raw.append((middle, end))
        else:
            others += view[begin:end]
    tensor = TensorProto()
    tensor.ParseFromString(bytes(others))
    try:
        dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    except KeyError:
        return False
    if len(raw) != 1 or dtype.kind not in "fiu" or dtype.isbuiltin != 1 or sys.byteorder != "little":
        return False
    ((begin, end),) = raw
    if min(tensor.dims, default=0) < 0 or math.prod(tensor.dims) * dtype.itemsize != end - begin:
        return False
    if tensor.name in weights:
        raise GraphError(f"it has two initializers {tensor.name!r}")
    array = weights[tensor.name] = np.empty(tuple(tensor.dims), dtype)
    left = array.reshape(-1).view(np.uint8)
    while left.size:
        count = read(left, begin)
        if not count:
            raise DecodeError("it ends inside a weight")
        left, begin = left[count:], begin + count
    array.flags.writeable = False
    model.graph.initializer.append(tensor)
    return True


def _fields(view: bytes | memoryview, start: int, end: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Fields of a message: number, form, and where the field begins, where its contents begin, and where it ends."""
    while start < end:
        begin = start
        key, start = _number(view, start, end)
        form = key & 7
        if form == _BYTES:
            size, start = _number(view, start, end)
            stop = start + size
        elif form == _VARINT:
            stop = _number(view, start, end)[1]
        elif form in (_EIGHT, _FOUR):
            stop = start + (8 if form == _EIGHT else 4)
        else:
            raise DecodeError("a field of an unknown form")
        if stop > end:
            raise DecodeError("it ends inside a field")
        yield key >> 3, form, begin, start, stop
        start = stop


def _number(view: bytes | memoryview, start: int, end: int) -> tuple[int, int]:
    """The number written there, and where it ends."""
    found = 0
    for i in range(_TEN):
        if start + i >= end:
            raise DecodeError("it ends inside a number")
        byte = view[start + i]
        found |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            return found, start + i + 1
    raise DecodeError("a number is too long")
