"""Tensors of the Open Inference Protocol: names of dtypes, values in JSON, bytes behind it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from actorflow.errors import DTypeError
from actorflow.loop import Steps
from actorflow.serve.account import Share
from actorflow.serve.answers import refused
from actorflow.serve.reading import Numbers
from actorflow.spec import Length, TensorSpec
from actorflow.web.http import Refused

_Array = npt.NDArray[Any]

#: Names of the protocol, by those of NumPy; texts are Python objects in a graph, see `TEXTS`.
DATATYPES = {
    "bool": "BOOL",
    **{f"{kind}int{bits}": f"{kind.upper()}INT{bits}" for kind in ("", "u") for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"FP{bits}" for bits in (16, 32, 64)},
    "bfloat16": "BF16",
}
#: The protocol's name of texts: in binary data, each has its size before it, four bytes, the lowest one first.
TEXTS = "BYTES"
#: Bytes that a text takes in memory, beside its characters.
_TEXT_BYTES = 80
#: Types of Python that JSON's values have, by the kind of dtype that takes them.
_VALUES: dict[str, set[type]] = {"b": {bool}, "i": {int}, "u": {int}, "f": {int, float}}
_EXPECTED = {"b": "true and false", "i": "integers", "u": "integers", "f": "numbers"}
#: Elements that are written in a step, and those of a list that are converted in one.
_PIECE, _READ = 64, 512


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input or an output of a model, as clients see it."""

    name: str
    spec: TensorSpec
    datatype: str  # the protocol's name of the dtype
    shape: tuple[int, ...]  # with -1 for lengths that are open

    @classmethod
    def of(cls, name: str, spec: TensorSpec, model: str) -> Tensor:
        """The tensor of that name; a Python object is an array of texts, of whatever shape.

        Raises:
            DTypeError: if the protocol has no such dtype.
        """
        if spec.is_object:
            return cls(name, spec, TEXTS, (-1,))
        datatype = DATATYPES.get(spec.dtype.name) if spec.dtype.isnative else None
        if datatype is None:
            raise DTypeError(f"model {model!r}: {name!r} {spec} cannot be served: expected a dtype of {[*DATATYPES]}")
        lengths: tuple[Any, ...] = spec.shape
        return cls(name, spec, datatype, tuple([-1 if isinstance(n, Length) else n for n in lengths]))

    @property
    def is_text(self) -> bool:
        """Whether it has texts, or whatever a Python object has, where it is an output."""
        return self.datatype == TEXTS

    def described(self) -> dict[str, Any]:
        """The tensor in a model's metadata."""
        return {"name": self.name, "datatype": self.datatype, "shape": list(self.shape)}

    def checked(self, shape: Any, datatype: Any, most_bytes: int) -> tuple[int, ...]:
        """The shape that a request gives, if it and the datatype fit.

        Raises:
            Refused: with 400, if they do not; with 413, if it would be too large.
        """
        if datatype != self.datatype:
            raise refused(400, f"input {self.name!r}: expected datatype {self.datatype}, got {datatype!r}")
        given = shape if type(shape) is list and all(type(n) is int and n >= 0 for n in shape) else None
        if given is None:
            raise refused(400, f"input {self.name!r}: expected a shape, a list of lengths, got {str(shape)[:100]}")
        fits = len(given) == len(self.shape) and all(n in (-1, m) for n, m in zip(self.shape, given, strict=True))
        if not fits and not self.is_text:
            raise refused(400, f"input {self.name!r}: expected shape {list(self.shape)}, got {given}")
        # An axis of length 0 must not let others be as long as they like, since what is computed may not have it.
        if math.prod([max(n, 1) for n in given]) * self.spec.dtype.itemsize > most_bytes:
            raise refused(413, f"input {self.name!r}: shape {given} has more than {most_bytes:,} bytes")
        return tuple(given)

    def of_bytes(self, data: memoryview, shape: tuple[int, ...]) -> _Array:
        """A tensor on the memory of binary data, which must be as long as the shape says.

        Raises:
            Refused: with 400, if it is not, or has other booleans than 0 and 1.
        """
        dtype, count = self.spec.dtype, math.prod(shape)
        if len(data) != count * dtype.itemsize:
            expected = f"{count * dtype.itemsize} bytes of binary data for shape {list(shape)}"
            raise refused(400, f"input {self.name!r}: expected {expected}, got {len(data)}")
        if not count:
            return np.empty(shape, dtype)
        if dtype.kind == "b" and np.frombuffer(data, np.uint8).max() > 1:
            raise refused(400, f"input {self.name!r}: expected bytes 0 and 1 for BOOL")
        array: _Array = np.frombuffer(data, dtype).reshape(shape)
        return array if array.flags.aligned else array.copy()

    def of_texts(self, data: memoryview, shape: tuple[int, ...], held: Share) -> Steps[_Array]:
        """A tensor of texts in binary data, UTF-8, each with its size before it.

        Args:
            data: The binary data.
            shape: Its shape.
            held: Holds the memory that it takes.
        Raises:
            Refused: with 400, if they are not as many as the shape says, or not UTF-8; with 503, if there is no room
                for them.
        """
        count, at = math.prod(shape), 0
        held.add(min(count, len(data) // 4) * _TEXT_BYTES + len(data))
        texts: list[str] = []
        while at + 4 <= len(data) and len(texts) < count:
            end = at + 4 + int.from_bytes(data[at : at + 4], "little")
            if end > len(data):
                break
            try:
                texts.append(str(data[at + 4 : end], "utf-8"))
            except UnicodeDecodeError:
                raise self._unexpected(f"texts in UTF-8, text {len(texts)} is not") from None
            at = end
            if not len(texts) % _READ:
                yield
        if at != len(data) or len(texts) < count:
            raise self._unexpected(f"{count} texts for shape {list(shape)}, each behind its size in four bytes")
        return _objects(texts).reshape(shape)

    def _texts_of(self, data: Any, shape: tuple[int, ...], held: Share) -> _Array:
        """A tensor of texts from JSON, which is short: a long list has numbers alone."""
        texts = data if type(data) is list else [data]
        if texts and type(texts[0]) is list:
            texts = [texts]
            for length in shape:
                if not all(type(row) is list and len(row) == length for row in texts):
                    raise self._unexpected(f"data flat, or nested as shape {list(shape)}")
                texts = [each for row in texts for each in row]
        if not {str}.issuperset(map(type, texts)):
            raise self._unexpected(f"texts for {TEXTS}; long ones as binary data")
        count = math.prod(shape)
        if len(texts) != count:
            raise self._unexpected(f"{count} values for shape {list(shape)}, got {len(texts)}")
        held.add(count * self.spec.dtype.itemsize)
        return _objects(texts).reshape(shape)

    def of_json(self, data: Any, shape: tuple[int, ...], held: Share) -> Steps[_Array]:
        """A tensor of values from JSON, flat or nested as the shape is.

        Args:
            data: The tensor's data: `Numbers`, or parsed JSON.
            shape: Its shape.
            held: Holds the memory that it takes.
        Raises:
            Refused: with 400, if they are not as many as the shape says, or do not fit the datatype; with 503, if there
                is no room for them.
        """
        if self.is_text:
            return self._texts_of(data, shape, held)
        dtype, count = self.spec.dtype, math.prod(shape)
        if type(data) is list and data and type(data[0]) is list:
            data = Numbers.of(data)
        parts: Iterator[list[Any]]
        if isinstance(data, Numbers):
            begin = data.begin
            is_nested, given = begin == b"[", 0 if begin == b"]" else data.commas + 1
            parts = data.nested(shape) if is_nested else data.flat()
        elif type(data) is list:
            is_nested, given = False, len(data)
            parts = (data[at : at + _READ] for at in range(0, given, _READ))
        else:
            raise self._unexpected("a list of data")
        if not is_nested and given != count:
            raise self._unexpected(f"{count} values for shape {list(shape)}, got {given}")
        if is_nested and count and given != count:
            raise self._unexpected(f"data flat, or nested as shape {list(shape)}")
        held.add(count * dtype.itemsize)
        kind = "f" if self.datatype == "BF16" else dtype.kind
        array, at = np.empty(count, dtype), 0
        try:
            for part in parts:
                if not _VALUES[kind].issuperset(map(type, part)):
                    raise self._unexpected(f"{_EXPECTED[kind]} for {self.datatype}")
                self._convert(part, array[at : at + len(part)], kind)
                at += len(part)
                yield
        except ValueError as error:
            raise self._unexpected(str(error)) from None
        assert at == count, (at, count)
        return array.reshape(shape)

    def _convert(self, values: list[Any], array: _Array, kind: str) -> None:
        try:
            with np.errstate(over="ignore"):
                array[:] = np.array(values, np.float64 if kind == "f" else array.dtype)
            fits = kind != "f" or bool(np.isfinite(array).all())  # 1e999 is read as an infinity
        except OverflowError:
            fits = False
        if not fits:
            raise refused(400, f"input {self.name!r}: a value is out of the range of {self.datatype}")

    def _unexpected(self, expected: str) -> Refused:
        return refused(400, f"input {self.name!r}: expected {expected}")


def _objects(values: list[Any]) -> _Array:
    array = np.empty(len(values), object)
    array[:] = values
    return array


def datatype_of(tensor: Tensor, array: _Array) -> str:
    """The protocol's name of the type of a result, which a tensor does not say where it is a Python object.

    Raises:
        DTypeError: if the protocol has none.
    """
    if not isinstance(cast(object, array), np.ndarray):  # a list, as a sequence of an ONNX file is
        raise DTypeError(f"output {tensor.name!r}: a {type(array).__name__} cannot be served")
    if not tensor.is_text or array.dtype.kind in "OSU":
        return tensor.datatype
    if array.dtype.name not in DATATYPES:
        raise DTypeError(f"output {tensor.name!r}: {array.dtype} cannot be served")
    return DATATYPES[array.dtype.name]


def _text(tensor: Tensor, value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if not isinstance(value, bytes):
        raise DTypeError(f"output {tensor.name!r}: expected texts, got {type(value).__name__}")
    return value


def texts_to_bytes(tensor: Tensor, array: _Array) -> Steps[bytes]:
    """The bytes of a tensor of texts, row by row, each with its size before it.

    Raises:
        DTypeError: if something else is among them.
    """
    values, pieces = array.reshape(-1).tolist(), []
    for at in range(0, len(values), _READ):
        texts = [_text(tensor, value) for value in values[at : at + _READ]]
        pieces.append(b"".join([len(text).to_bytes(4, "little") + text for text in texts]))
        yield
    return b"".join(pieces)


def to_bytes(array: _Array) -> memoryview:
    """The bytes of a tensor, row by row; those of the array itself, where they lie so."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def to_json(tensor: Tensor, array: _Array) -> Steps[list[bytes]]:
    """The values of a tensor as a list in JSON, in pieces.

    Raises:
        Refused: with 400, if it has NaN or infinities, which JSON cannot express.
    """
    values = array.reshape(-1)
    if array.dtype.kind in "OSU":
        try:
            values = _objects([str(_text(tensor, value), "utf-8") for value in values.tolist()])
        except UnicodeDecodeError:
            raise refused(400, f"output {tensor.name!r} has bytes that are not UTF-8: ask for binary data") from None
    if tensor.datatype == "BF16":
        values = values.astype(np.float32)
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        advice = 'ask for binary data, "parameters": {"binary_data": true}'
        raise refused(400, f"output {tensor.name!r} has NaN or infinities, which JSON cannot express: {advice}")
    pieces = [b"["]
    for at in range(0, len(values), _PIECE):
        text = json.dumps(values[at : at + _PIECE].tolist())[1:-1]
        pieces.append(f"{', ' if at else ''}{text}".encode())
        yield
    pieces.append(b"]")
    return pieces
