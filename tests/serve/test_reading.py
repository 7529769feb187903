"""JSON that is read in steps is what Python's own reader makes of it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorflow.loop import at_once
from actorflow.serve import reading
from actorflow.serve.reading import read_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=30,
)
NUMBERS = st.lists(st.integers(-(10**6), 10**6) | st.floats(-1e9, 1e9), max_size=200)
TEXTS = st.builds(
    json.dumps,
    VALUES | NUMBERS | st.lists(NUMBERS, max_size=20) | st.lists(st.lists(NUMBERS, max_size=4), max_size=4),
    indent=st.sampled_from([None, 1]),
    ensure_ascii=st.booleans(),
)


@pytest.fixture(autouse=True)
def long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have short texts read as long ones are, in small pieces."""
    monkeypatch.setattr(reading, "SHORT", -1)
    monkeypatch.setattr(reading, "_PIECE", 40)


def outcome(read: Any, text: str) -> Any:
    try:
        return repr(read(text))
    except ValueError:
        return "refused"


def in_steps(text: str) -> Any:
    return at_once(read_json(text))


def no_constants(name: str) -> Any:
    raise ValueError(name)


def in_one(text: str) -> Any:
    return json.loads(text, parse_constant=no_constants)


@given(TEXTS)
def test_json_is_read(text: str) -> None:
    assert in_steps(text) == json.loads(text)


@given(TEXTS, st.data())
def test_what_is_no_json_is_refused(text: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(at, min(at + 3, len(text))))
    changed = text[:at] + data.draw(st.text('[]{},:"\\0123456789-+.eENaInfityulrs \n', max_size=3)) + text[end:]
    assert outcome(in_steps, changed) == outcome(in_one, changed)


NO_JSON = """
    [,1] [1,] [1,,2] [1\t2] [[1],,[2]] [[1],[2],] [[1][2]] {,} {"a":1,} {1:2} [1 [ {"a" {"a": [01] [+1]
    [1.] [.5] [1e] [1]] NaN [-Infinity]
"""


@pytest.mark.parametrize("text", ["", " ", '"\n"', "\ufeff1", *re.split("[ \n]+", NO_JSON.strip())])
def test_these_are_no_json(text: str) -> None:
    assert outcome(in_steps, text) == outcome(in_one, text) == "refused"


@pytest.mark.parametrize("short", [-1, 1 << 20])
@pytest.mark.parametrize("text", ["[" * 10_000, '{"a":' * 10_000, "[" * 10_000 + "]" * 10_000, "9" * 10_000])
def test_what_is_too_much_is_refused(text: str, short: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "SHORT", short)
    with pytest.raises(ValueError, match=r"nested too deep|Exceeds the limit"):
        in_steps(text)


def test_steps_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long an array is, a step reads a piece of it."""
    monkeypatch.setattr(reading, "_PIECE", 1024)
    for text in (json.dumps([0.5] * 100_000), json.dumps([[1, 2, 3]] * 50_000), json.dumps([[[1, 2]] * 50] * 500)):
        assert sum(1 for _ in read_json(text)) >= len(text) / 1024
