"""Python's operators on arrays, beside arrays and numbers, on both sides and in place, against NumPy's."""

import enum
import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import actorflow as af
import actorflow.array as xp
from tests.operations.functions.draws import ALL, BOOL, FLOATS, INTEGERS, NUMERIC, REAL, Draws
from tests.support.effort import FULL

Operator = Callable[[Any, Any], Any]

ARITHMETIC = {
    operator.add: NUMERIC,
    operator.sub: NUMERIC,
    operator.mul: NUMERIC,
    operator.truediv: NUMERIC[-4:],
    operator.floordiv: REAL,
    operator.mod: REAL,
    operator.pow: (*FLOATS, *INTEGERS),
    operator.and_: (*BOOL, *INTEGERS),
    operator.or_: (*BOOL, *INTEGERS),
    operator.xor: (*BOOL, *INTEGERS),
    operator.lshift: INTEGERS,
    operator.rshift: INTEGERS,
}
COMPARISONS = {
    **dict.fromkeys((operator.eq, operator.ne), ALL),
    **dict.fromkeys((operator.lt, operator.le, operator.gt, operator.ge), REAL),
}
BINARY = {**ARITHMETIC, **COMPARISONS}
IN_PLACE = {function: getattr(operator, f"i{function.__name__.rstrip('_')}") for function in ARITHMETIC}
UNARY = {operator.neg: NUMERIC, operator.pos: NUMERIC, abs: NUMERIC, operator.invert: (*BOOL, *INTEGERS)}
EACH = range(300 if FULL else 8)


def number(d: Draws, dtype: np.dtype[Any]) -> Any:
    """A Python number beside an array of a dtype."""
    return {"b": bool(d.whole(0, 1)), "f": d.whole(-12, 12) / 2, "c": 2 - 1j}.get(dtype.kind, d.whole(0, 6))


def operand(function: Operator, value: np.ndarray) -> np.ndarray:
    """An operand that an operator takes: shifts and powers of integers are small and not negative."""
    if function in (operator.lshift, operator.rshift, operator.pow) and value.dtype.kind in "iu":
        return np.asarray(np.abs(value % 7), value.dtype)
    return value


def same(found: xp.Array, expected: Any) -> None:
    reference = np.asarray(expected)
    assert isinstance(found, xp.Array)
    assert (found.shape, found.dtype) == (reference.shape, reference.dtype)
    np.testing.assert_array_equal(found.to_numpy(), reference, strict=True)


by_operators = partial(pytest.mark.parametrize, "function", ids=lambda function: function.__name__)


@by_operators(BINARY)
def test_between_arrays(function: Operator) -> None:
    for d in map(Draws, EACH):  # special values have tests of their own
        one, other = [operand(function, value) for value in d.pair(BINARY[function], small=True)]
        with np.errstate(all="ignore"):
            expected = function(one, other)
        same(function(xp.asarray(one), xp.asarray(other)), expected)
        # NumPy's arrays leave the work to this package's.
        same(function(xp.asarray(one), other), expected)
        same(function(one, xp.asarray(other)), expected)


@by_operators(BINARY)
def test_beside_numbers(function: Operator) -> None:
    for d in map(Draws, EACH):
        x = operand(function, d.array(BINARY[function], small=True))
        other = number(d, x.dtype)
        with np.errstate(all="ignore"):
            same(function(xp.asarray(x), other), function(x, other))
            same(function(other, xp.asarray(x)), function(other, x))


@by_operators(ARITHMETIC)
def test_in_place(function: Operator) -> None:
    for d in map(Draws, EACH):
        x = operand(function, d.array(ARITHMETIC[function], small=True))
        shape = x.shape[d.among(0, 1) :]
        other = operand(function, d.array((x.dtype.name,), shape, small=True))
        beside = number(d, x.dtype)
        for right, mine in ((other, xp.asarray(other)), (beside, beside)):
            array = xp.asarray(x)
            before = xp.asarray(array, copy=True)
            after = IN_PLACE[function](array, mine)
            assert after is array
            with np.errstate(all="ignore"):
                same(after, np.asarray(function(x, right)).astype(x.dtype))
            same(before, x)


@by_operators(UNARY)
def test_of_one_array(function: Callable[[Any], Any]) -> None:
    for d in map(Draws, EACH):
        x = d.array(UNARY[function])
        with np.errstate(all="ignore"):
            same(function(xp.asarray(x)), function(x))


def test_products_of_matrices() -> None:
    a, b = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4)
    same(xp.asarray(a) @ xp.asarray(b), a @ b)
    square = xp.asarray(b[:, :3])
    square @= xp.asarray(b[:, 1:])
    same(square, b[:, :3] @ b[:, 1:])
    for wrong in (2, 2.0, "1"):
        with pytest.raises(TypeError):
            square @ wrong
        with pytest.raises(TypeError):
            wrong @ square
        with pytest.raises(TypeError):
            square @= wrong


def test_products_with_numpys_matrices() -> None:
    matrix, x = np.asarray([[1.0, 2.0], [3.0, 4.0]]), xp.asarray([1.0, 10.0])
    for found, expected in ((matrix @ x, [21.0, 43.0]), (x @ matrix, [31.0, 42.0])):
        assert isinstance(found, xp.Array)
        assert found.to_numpy().tolist() == expected
    x @= matrix
    assert x.to_numpy().tolist() == [31.0, 42.0]


def test_comparisons_with_numbers_beyond_the_dtype() -> None:
    for value in (np.asarray([0, 255], np.uint8), np.asarray([-(2**63), 2**63 - 1]), np.asarray([True, False])):
        x = xp.asarray(value)
        for number in (300 if value.dtype == np.uint8 else 2**70, -(2**70)):
            for function in (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne):
                assert function(x, number).to_numpy().tolist() == [function(int(each), number) for each in value]
                assert function(number, x).to_numpy().tolist() == [function(number, int(each)) for each in value]
    with pytest.raises(OverflowError):
        _ = xp.asarray(np.asarray([1], np.uint8)) + 300


def test_numbers_of_derived_classes() -> None:
    class Two(enum.IntEnum):
        IT = 2

    class Half(float):
        pass

    x = xp.asarray([1.0, 3.0])
    assert (x * Two.IT).to_numpy().tolist() == [2.0, 6.0]
    assert (Half(0.5) * x).to_numpy().tolist() == [0.5, 1.5]


@pytest.mark.parametrize("wrong", [np.asarray([1, None]), np.asarray([1, 2], "m8[s]")])
def test_arrays_that_hold_no_numbers_are_refused(wrong: np.ndarray) -> None:
    with pytest.raises(af.DTypeError, match="expected booleans or numbers"):
        _ = xp.asarray([1, 2]) == wrong


def test_what_is_no_operand_is_left_to_python() -> None:
    x = xp.asarray([1, 2])
    assert (x == "1") is False
    assert (x != "1") is True
    for function in ARITHMETIC:
        with pytest.raises(TypeError):
            function(x, "1")
        with pytest.raises(TypeError):
            function(None, x)


def test_in_place_keeps_shape_and_dtype() -> None:
    x = xp.asarray([1, 2])
    with pytest.raises(af.ShapeError, match="the result has shape"):
        x += xp.asarray([[1, 2], [3, 4]])
    with pytest.raises(af.DTypeError, match="the result is float64"):
        x += 0.5
    with pytest.raises(af.DTypeError, match="the result is float64"):
        x /= 2
    y = xp.asarray([1.0], dtype=xp.float32)
    y += xp.asarray([1.0])
    assert y.dtype == xp.float32
