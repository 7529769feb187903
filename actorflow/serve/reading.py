"""JSON that is read in steps, so that a loop does other things while it reads a long text.

Python's own reader holds the loop for the whole of a text, from a thread too, as it never gives up the interpreter:
for about a quarter of a second with 10 MB of numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from json import JSONDecodeError, JSONDecoder
from typing import Any, NoReturn

from actorflow.loop import Steps

#: Characters of a text that is read at once, in less than a millisecond.
SHORT = 1 << 14
#: Characters of numbers that are read in a step.
_PIECE = 1024
#: Arrays and objects inside each other.
_MOST_DEEP = 64

_SPACE = re.compile(r"[ \t\n\r]*+")
_NUMBERS = re.compile(r"[-+0-9.eE, \t\n\r]++")
#: Short arrays of numbers one after another, each with its comma.
_ROWS = re.compile(r"(?:\[[-+0-9.eE, \t\n\r]*+\][ \t\n\r]*+,[ \t\n\r]*+)++")


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a value of JSON: send the tensor as binary data")


_DECODER = JSONDecoder(parse_constant=_no_number)
_scan: Callable[[str, int], tuple[Any, int]] = _DECODER.scan_once  # type: ignore[attr-defined]


def read_json(text: str) -> Steps[Any]:
    """The value of a JSON text, as `json.loads` reads it; NaN and infinities are refused.

    Raises:
        ValueError: if it is not JSON, has an integer of thousands of digits, or is nested too deep.
    """
    if len(text) <= SHORT:
        try:
            return _DECODER.decode(text)
        except RecursionError:
            raise ValueError("arrays and objects are nested too deep") from None
    value, at = yield from _value(text, _skip(text, 0), 0)
    if at != len(text):
        raise JSONDecodeError("Extra data", text, at)
    return value


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None
    return found.end()


def _value(text: str, at: int, depth: int) -> Steps[tuple[Any, int]]:
    """The value that begins at a place, and the place of what follows it and the space behind."""
    yield
    if depth > _MOST_DEEP:
        raise ValueError("arrays and objects are nested too deep")
    begin = text[at : at + 1]
    value: Any
    if begin == "[":
        value, at = yield from _array(text, _skip(text, at + 1), depth)
    elif begin == "{":
        value, at = yield from _object(text, _skip(text, at + 1), depth)
    else:
        try:
            value, at = _scan(text, at)
        except StopIteration as end:
            raise JSONDecodeError("Expecting value", text, end.value) from None
    return value, _skip(text, at)


def _array(text: str, at: int, depth: int) -> Steps[tuple[list[Any], int]]:
    items: list[Any] = []
    if text[at : at + 1] == "]":
        return items, at + 1
    while True:
        end = _end_of_numbers(text, at)
        if end:
            items += _DECODER.decode(f"[{text[at:end]}]")
            at = _skip(text, end + 1)
            yield
            continue
        value, at = yield from _value(text, at, depth + 1)
        items.append(value)
        if text[at : at + 1] == "]":
            return items, at + 1
        if text[at : at + 1] != ",":
            raise JSONDecodeError("Expecting ',' delimiter", text, at)
        at = _skip(text, at + 1)


def _end_of_numbers(text: str, at: int) -> int:
    """The place of a comma before which only numbers stand, or rows of numbers; 0 if there is none soon."""
    found = (_ROWS if text[at : at + 1] == "[" else _NUMBERS).match(text, at, at + _PIECE)
    return 0 if found is None else max(text.rfind(",", at + 1, found.end()), 0)


def _object(text: str, at: int, depth: int) -> Steps[tuple[dict[str, Any], int]]:
    members: dict[str, Any] = {}
    if text[at : at + 1] == "}":
        return members, at + 1
    while True:
        if text[at : at + 1] != '"':
            raise JSONDecodeError("Expecting property name enclosed in double quotes", text, at)
        name, at = yield from _value(text, at, depth + 1)
        if text[at : at + 1] != ":":
            raise JSONDecodeError("Expecting ':' delimiter", text, at)
        members[name], at = yield from _value(text, _skip(text, at + 1), depth + 1)
        if text[at : at + 1] == "}":
            return members, at + 1
        if text[at : at + 1] != ",":
            raise JSONDecodeError("Expecting ',' delimiter", text, at)
        at = _skip(text, at + 1)
