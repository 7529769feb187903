"""JSON that is read in steps is what Python's own reader makes of it, and whatever it is, it takes little."""

import json
import re
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from actorflow.loop import at_once
from actorflow.serve import reading
from actorflow.serve.account import Account, Share
from actorflow.serve.reading import MOST_TEXT, Numbers, read_json
from actorflow.serve.tensors import Tensor
from actorflow.spec import TensorSpec
from actorflow.web.http import Refused
from tests.support.effort import FULL, slow

NUMBERS = st.integers(-(10**6), 10**6) | st.floats(-1e9, 1e9)
LISTS = st.recursive(st.lists(NUMBERS, max_size=9), lambda inner: st.lists(inner, max_size=4), max_leaves=6)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text() | LISTS,
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["data", "shape", '"data"', "\\", ""]), inner),
    max_leaves=20,
)
TEXTS = st.builds(json.dumps, VALUES, indent=st.sampled_from([None, 1]), ensure_ascii=st.booleans())
LITTLE = st.text('[]{},:"\\0123456789-+.eENaInfityulrs \n', max_size=3)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have short texts read in several steps."""
    monkeypatch.setattr(reading, "SHORT", -1)
    monkeypatch.setattr(reading, "_SEARCHED", 40)
    monkeypatch.setattr(reading, "_PIECE", 100)


def outcome(read: Any, *arguments: Any) -> Any:
    try:
        return repr(read(*arguments))
    except (ValueError, Refused):
        return "refused"


def no_constants(name: str) -> Any:
    raise ValueError(name)


def in_one(text: str | bytes) -> Any:
    return json.loads(text, parse_constant=no_constants)


def in_steps(text: str) -> Any:
    """What is read, with the data where it was."""
    content, data = at_once(read_json(memoryview(text.encode())))

    def back(value: Any) -> Any:
        if isinstance(value, str) and value in data:
            numbers = data[value]
            assert numbers.commas == bytes(numbers.text).count(b",")
            return in_one(bytes(numbers.text))
        if isinstance(value, dict):
            return {key: back(each) for key, each in value.items()}
        return [back(each) for each in value] if isinstance(value, list) else value

    for numbers in data.values():
        in_one(bytes(numbers.text))
    return back(content)


def changed(text: str, data: st.DataObject) -> str:
    at = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(at, min(at + 3, len(text))))
    return text[:at] + data.draw(LITTLE) + text[end:]


@pytest.mark.usefixtures("small")
@given(TEXTS)
@example(text='{"data": [[], ""], "n": 1}')
@example(text='{"data": [[1], ["a"]]}')
@example(text='{"data": [[1], [2]], "a": [[3]]}')
def test_json_is_read(text: str) -> None:
    assert in_steps(text) == json.loads(text)


@pytest.mark.usefixtures("small")
@given(TEXTS, st.data())
def test_what_is_no_json_is_refused(text: str, data: st.DataObject) -> None:
    text = changed(text, data)
    assert outcome(in_steps, text) == outcome(in_one, text)


NO_JSON = """
    [,1] [1,] [1,,2] [1\t2] [[1],,[2]] [[1],[2],] [[1][2]] {,} {"a":1,} {1:2} [1 [ {"a" {"a": [01] [+1]
    [1.] [.5] [1e] [1]] NaN [-Infinity] {"data":[1]]} {"data":[1],} {"data":[1],2} {"data":[1],[2]} "data":[1]
    {"data":[1]2} {"data"[1]} {"data":[NaN]} {x"data":[1]} {"data":[1]"data":[1]} {"data":[[1]} {"data":[
"""


@pytest.mark.usefixtures("small")
@pytest.mark.together("text", ["", " ", '"\n"', "\ufeff1", *re.split("[ \n]+", NO_JSON.strip())])
def test_these_are_no_json(text: str) -> None:
    assert outcome(in_steps, text) == outcome(in_one, text) == "refused"


@pytest.mark.parametrize("text", ["[" * 10_000, '{"a":' * 10_000, "[" * 10_000 + "]" * 10_000, "9" * 10_000])
def test_what_is_too_much_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"nested too deep|Exceeds the limit"):
        in_steps(text)


# -- tensors -----------------------------------------------------------------------------------------------------------

SHAPES = st.lists(st.integers(0, 6), min_size=1, max_size=4)


def tensor(text: bytes, shape: list[int]) -> np.ndarray:
    described = Tensor.of("x", TensorSpec.of(shape, "float64"), "model")
    numbers = Numbers(memoryview(text), text.count(b","))
    return at_once(described.of_json(numbers, tuple(shape), Share(Account(1 << 30))))


def by_numpy(text: bytes, shape: list[int]) -> np.ndarray:
    values = in_one(text)
    flat = list(flattened(values))
    if not all(type(value) in (int, float) for value in flat):
        raise ValueError
    if values and all(type(each) is not list for each in values):
        return np.array(values, np.float64).reshape(shape)
    if values and 0 in shape:  # of which an array does not have all lengths
        array = np.empty(shape)
        if values != array.tolist():
            raise ValueError
        return array
    array = np.array(values, np.float64)
    if array.shape != tuple(shape) and values:
        raise ValueError
    return array.reshape(shape)


def flattened(values: Any) -> Any:
    if type(values) is not list:
        yield values
        return
    for each in values:
        yield from flattened(each)


@pytest.mark.usefixtures("small")
@given(st.data(), SHAPES, st.sampled_from([None, 1]), st.booleans())
def test_tensors_are_read(data: st.DataObject, shape: list[int], indent: int | None, nested: bool) -> None:
    array = np.arange(np.prod(shape), dtype=np.float64) * data.draw(st.sampled_from([1, -0.5, 1e100]))
    array = array.reshape(shape) if nested else array
    text = json.dumps(array.tolist(), indent=indent).encode()
    np.testing.assert_array_equal(tensor(text, shape), array.reshape(shape), strict=True)


@pytest.mark.usefixtures("small")
@given(st.data(), st.lists(st.integers(0, 3), min_size=1, max_size=4), st.booleans())
def test_what_is_no_tensor_is_refused(data: st.DataObject, shape: list[int], nested: bool) -> None:
    array = np.arange(np.prod(shape), dtype=np.float64)
    inner = json.dumps((array.reshape(shape) if nested else array).tolist())[1:-1]
    text = f"[{changed(inner, data)}]".encode()
    if b"{" not in text and b'"' not in text:  # what is taken for a list of numbers
        assert outcome(tensor, text, shape) == outcome(by_numpy, text, shape)


@pytest.mark.together(
    "text", ["[[1[,2],[3,4]]", "[[1,2,3],[4]]", "[[1],[2,3],[4]]", "[[1,2],[3,4]", "[[1,2][,3,4]]", "[[1,2],[3,[4]]"]
)
def test_brackets_in_other_places_are_refused(text: str) -> None:
    with pytest.raises(Refused) as refusal:
        tensor(text.encode(), [2, 2])
    assert b"nested as shape [2, 2]" in refusal.value.response.chunks[0]


@pytest.mark.parametrize("shape", [[1, 50_000], [50_000, 1], [2, 25_000, 1], [1, 1, 50, 10, 100], [200, 250], [50_000]])
def test_large_tensors(shape: list[int]) -> None:
    array = np.random.default_rng(0).integers(0, 99, shape).astype(np.float64)
    for separators in ((",", ":"), (", ", ": "), (" , ", ": ")):
        text = json.dumps(array.tolist(), separators=separators).encode()
        np.testing.assert_array_equal(tensor(text, shape), array, strict=True)
        with pytest.raises(Refused):
            tensor(text[:-1] + b",1]", shape)
        with pytest.raises(Refused):
            tensor(text[:-2] + b"1.5" + text[-2:], [2 * shape[0], *shape[1:]])


# -- attacks -----------------------------------------------------------------------------------------------------------

HEAD, TAIL = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,3],"data":[', b"0]}]}"
UNITS = [b"[],", b"[[[[]]]],", b"[", b"]", b",", b"0,", b"0.5,", b" ", b"1", b"-", b"null,", b"NaN,", b"1e999,", b"t"]
TEXT_UNITS = [
    b"{},",
    b'"",',
    b'{"":[]},',
    b'{"data":[',
    b'"data":[0],',
    b'"data":[',
    b'"data":[0]},{',
    b"\\",
    b'"',
    b"\xff",
]


@pytest.mark.parametrize("before", [HEAD, *slow([b"", b'{"inputs":['])])
@pytest.mark.parametrize("unit", [*UNITS, *TEXT_UNITS])
def test_bodies_of_nothing(before: bytes, unit: bytes) -> None:
    """However many values a long text seems to have, few of them are ever made, and in few steps."""
    body = memoryview(before + unit * ((4 << 20 if FULL else 2 << 20) // len(unit)) + TAIL)
    described = Tensor.of("x", TensorSpec.of(("n", 3), "float32"), "model")

    def read() -> None:
        content, data = at_once(read_json(body))
        for entry in content["inputs"]:
            at_once(described.of_json(data.get(entry["data"], entry["data"]), (1, 3), Share(Account(1 << 30))))

    tracemalloc.start()
    try:
        with pytest.raises((ValueError, Refused)):
            read()
        assert tracemalloc.get_traced_memory()[1] < 64 * MOST_TEXT
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("unit", [b"0.5,", b"[1,2,3],", b"1e300,", b"[[0],[1],[2]],"])
def test_steps_are_small(unit: bytes) -> None:
    """However long an array is, a step reads a piece of it."""
    text = HEAD + unit * 50_000 + b"0" + TAIL[1:]
    steps = sum(1 for _ in read_json(memoryview(text)))
    assert steps >= len(unit) * 50_000 // (1 << 15)
    nested = unit.count(b"[")
    shape = [50_000, *((3,) if nested else ()), *((1,) if nested > 1 else ())]
    numbers = Numbers(memoryview(b"[" + (unit * 50_000)[:-1] + b"]"), unit.count(b",") * 50_000 - 1)
    pieces = list(numbers.nested(shape) if nested else numbers.flat())
    assert max(map(len, pieces)) <= 1 << 10
    assert sum(map(len, pieces)) == np.prod(shape)
