"""JSON of requests: the data of tensors is read in steps, and the rest, which must be short, at once.

Python's own reader holds the loop for the whole of a text, from a thread too, as it never gives up the interpreter: for
about a quarter of a second with 10 MB of numbers. And what it makes of a text may take 30 times the size of it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from json import JSONDecoder
from typing import Any, NamedTuple, NoReturn

from actorflow.loop import Steps
from actorflow.serve.answers import refused

#: Characters of a request beside the data of its tensors: whatever they are, they are read in a few milliseconds.
MOST_TEXT = 1 << 17
#: Characters of a request that is read at once as a whole.
SHORT = 1 << 14
#: Characters of data that are searched for its end in a step, and those that are read in one.
_SEARCHED, _PIECE = 1 << 15, 1 << 11

_SPACE = b" \t\n\r"
#: The begin of data. It stands nowhere else in JSON: within a text, its quotes have backslashes before them.
_DATA = re.compile(rb'(?<!\\)"data"[ \t\n\r]*+:[ \t\n\r]*+\[')
#: Characters that are in no list of numbers.
_NO_NUMBER = b'"{}'
_VALUE = re.compile(rb"[-+.0-9A-Za-z]++")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a value of JSON: send the tensor as binary data")


_DECODER = JSONDecoder(parse_constant=_no_constant)


def _read(text: bytes) -> Any:
    try:
        return _DECODER.decode(str(text, "utf-8"))
    except RecursionError:
        raise ValueError("JSON: arrays and objects are nested too deep") from None
    except ValueError as error:
        raise ValueError(f"JSON: {error}") from None


class Numbers(NamedTuple):
    """A list of numbers as it stands in a request, not read yet.

    Attributes:
        text: The list, from its first bracket to its last.
        commas: Number of commas in it.
    """

    text: memoryview
    commas: int

    @classmethod
    def of(cls, values: list[Any]) -> Numbers:
        """A list that has been read."""
        text = json.dumps(values).replace("Infinity", "1e999").encode()  # which it was read from
        return cls(memoryview(text), text.count(b","))

    @property
    def begin(self) -> bytes:
        """The first character behind the first bracket."""
        return bytes(self.text[1:_PIECE]).lstrip(_SPACE)[:1]

    def flat(self) -> Iterator[list[Any]]:
        """The values, piece by piece.

        Raises:
            ValueError: if it is not JSON; it says what was expected.
        """
        for piece in self._pieces(1, len(self.text) - 1):
            yield _read(b"[%b]" % piece[:-1])

    def nested(self, shape: Sequence[int]) -> Iterator[list[Any]]:
        """The values of lists inside each other, piece by piece.

        Raises:
            ValueError: if it is not JSON, or not nested as the shape is; it says what was expected.
        """
        frame, expected, is_empty = _frame(shape), b"", 0 in shape
        for piece in self._pieces(0, len(self.text)):
            found = _VALUE.sub(b"0", piece).translate(None, _SPACE)
            while len(expected) < len(found) and (more := next(frame, b"")):
                expected += more
            if not expected.startswith(found):
                raise ValueError(f"data flat, or nested as shape {list(shape)}")
            expected = expected[len(found) :]
            yield [] if is_empty else _read(b"[%b]" % piece[:-1].translate(None, b"[]"))
        if expected or next(frame, b""):
            raise ValueError(f"data flat, or nested as shape {list(shape)}")

    def _pieces(self, at: int, end: int) -> Iterator[bytes]:
        """The text between two places in pieces, each of which ends with a comma."""
        while end - at > _PIECE:
            length = bytes(self.text[at : at + _PIECE]).rfind(b",") + 1
            if not length:
                raise ValueError(f"a comma within {_PIECE:,} characters of data")
            yield bytes(self.text[at : at + length])
            at += length
        yield bytes(self.text[at:end]) + b","


def _frame(shape: Sequence[int], behind: bytes = b",") -> Iterator[bytes]:
    """A tensor as JSON without spaces, 0 in place of each value, and what is behind it, in pieces."""
    if not shape:
        yield b"0" + behind
        return
    length, *inner = shape
    size = math.prod([max(each, 1) for each in inner])
    yield b"[" if length else b"[]" + behind
    if size > _PIECE:
        for row in range(1, length + 1):
            yield from _frame(inner, b"," if row < length else b"]" + behind)
        return
    text = b"0"
    for each in reversed(inner):
        text = b"[%b]" % b",".join([text] * each)
    rows = _PIECE // size
    for row in range(0, length, rows):
        yield b",".join([text] * min(rows, length - row)) + (b"," if row + rows < length else b"]" + behind)


def read_json(body: memoryview) -> Steps[tuple[Any, dict[str, Numbers]]]:
    """The value of a JSON text and, of a long one, the data of tensors, by the texts that stand in its place there.

    Raises:
        ValueError: if it is not JSON, has NaN or infinities, or is nested too deep; it says what was expected.
        Refused: with 413, if there is too much beside the data.
    """
    data: dict[str, Numbers] = {}
    if len(body) <= SHORT:
        return _read(bytes(body)), data
    parts: list[bytes] = []
    left, at = MOST_TEXT, 0
    while begin := _DATA.search(body, at, min(len(body), at + left)):
        first = begin.end() - 1
        end, commas = yield from _list_at(body, first)
        if end:
            # A client that has such a text itself finds its own data there.
            part = b'%b"\\u0000data %d"' % (bytes(body[at:first]), len(data))
            data[f"\0data {len(data)}"] = Numbers(body[first:end], commas)
        else:
            end = first + 1
            part = bytes(body[at:end])
        parts.append(part)
        left, at = max(left - len(part), 0), end
    if len(body) - at > left:
        raise refused(413, f"expected at most {MOST_TEXT:,} bytes of JSON beside the data of inputs")
    return _read(b"".join([*parts, body[at:]])), data


def _list_at(body: memoryview, first: int) -> Steps[tuple[int, int]]:
    """The end of the list of numbers that begins at a place, and the commas in it; 0 if it has no end or has texts."""
    at, commas, depth = first, 0, 0
    while at < len(body):
        window = bytes(body[at : at + _SEARCHED])
        length = min([found for each in _NO_NUMBER if (found := window.find(each)) >= 0], default=len(window))
        commas += window.count(b",", 0, length)
        depth += window.count(b"[", 0, length) - window.count(b"]", 0, length)
        at += length
        if length < len(window):
            break
        yield
    begin = max(first, at - _SEARCHED)
    behind = bytes(body[begin:at])
    end = behind.rfind(b"]") + 1
    if not end or depth != behind.count(b"[", end):  # a text stands inside
        return 0, 0
    return begin + end, commas - behind.count(b",", end)
