"""Lengths of open axes compute as the integers do that they stand for."""

import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import actorflow as af
from actorflow.spec import (
    Follows,
    Length,
    assumed,
    at,
    axes_in,
    axis,
    broadcast_shapes,
    following,
    integers,
    is_natural,
    known,
    maximum,
    may_divide,
    may_equal,
    minimum,
    opened,
    slice_length,
)

N, M = axis("n"), axis("m")
Lengths = Mapping[str, int]
lengths = st.fixed_dictionaries({"n": st.integers(0, 9), "m": st.integers(0, 9)})
_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "min": minimum,
    "max": maximum,
}


class Pair:
    """A formula of lengths, and the function of numbers that it is to be."""

    def __init__(self, formula: Any, number: Callable[[Lengths], int], text: str) -> None:
        self.formula, self.number, self.text = formula, number, text

    def __repr__(self) -> str:
        return f"{self.text} = {self.formula}"


def _joined(parts: tuple[str, Pair, Pair]) -> Pair:
    name, a, b = parts
    if name in ("//", "%") and not isinstance(b.formula, Length) and b.formula == 0:
        name = "+"
    function = _OPERATIONS[name]
    exact: Callable[[int, int], int] = {"min": min, "max": max}.get(name, function)
    return Pair(
        function(a.formula, b.formula),
        lambda lengths: exact(a.number(lengths), b.number(lengths)),
        f"({a.text} {name} {b.text})",
    )


_LEAVES = [Pair(N, lambda lengths: lengths["n"], "n"), Pair(M, lambda lengths: lengths["m"], "m")]
_LEAVES += [Pair(i, lambda lengths, i=i: i, str(i)) for i in range(-4, 8)]
formulas = st.recursive(
    st.sampled_from(_LEAVES),
    lambda inner: st.tuples(st.sampled_from([*_OPERATIONS]), inner, inner).map(_joined),
    max_leaves=7,
)


def _value(pair: Pair, lengths: Lengths) -> int | None:
    try:
        return pair.number(lengths)
    except ZeroDivisionError:
        return None


@given(formulas, lengths)
def test_formulas_are_what_integers_give(pair: Pair, lengths: Lengths) -> None:
    expected = _value(pair, lengths)
    assume(expected is not None)
    try:
        assert at(pair.formula, lengths) == expected
    except af.ShapeError as error:
        pytest.fail(f"{pair}: {error}")


@given(formulas, formulas, lengths)
def test_equal_formulas_have_equal_numbers(a: Pair, b: Pair, lengths: Lengths) -> None:
    one, other = _value(a, lengths), _value(b, lengths)
    if a.formula == b.formula and None not in (one, other):
        assert one == other
        assert hash(a.formula) == hash(b.formula)
        assert str(a.formula) == str(b.formula)
    if None not in (one, other) and one == other and min(lengths.values()) > 1 and one > 1:  # type: ignore[operator]
        assert may_equal(a.formula, b.formula)


@given(formulas, formulas)
def test_sums_and_products_have_one_form(a: Pair, b: Pair) -> None:
    x, y = a.formula, b.formula
    assert x + y == y + x
    assert x * y == y * x
    assert (x + y) - y == x
    assert (x - y) * (x + y) == x * x - y * y
    assert minimum(x, y) == minimum(y, x)
    assert minimum(x + 3, y + 3) == minimum(x, y) + 3
    assert maximum(x, y) + minimum(x, y) == x + y
    if isinstance(y, Length):
        assert (x * y) // y == x
    assert (x * 6) // 3 == x * 2


@given(formulas, lengths)
def test_what_is_natural_is_not_negative(pair: Pair, lengths: Lengths) -> None:
    number = _value(pair, lengths)
    if number is not None and is_natural(pair.formula):
        assert number >= 0


_BOUNDS = st.none() | st.integers(-12, 12)


@given(_BOUNDS, _BOUNDS, st.sampled_from([None, -3, -2, -1, 1, 2, 3]), lengths)
def test_slices_pick_what_python_says(start: Any, stop: Any, step: Any, lengths: Lengths) -> None:
    expected = len(range(*slice(start, stop, step).indices(lengths["n"])))
    assert (
        at(slice_length((start, stop, step), N), lengths) == expected == slice_length((start, stop, step), lengths["n"])
    )


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 9), st.integers(0, 9))
def test_nested_divisions_are_one(a: int, b: int, c: int, d: int) -> None:
    assert ((N + c) // a + d) // b == (N + c + a * d) // (a * b)


def test_text() -> None:
    assert str(2 * N * M - M + 3) == "2*m*n - m + 3"
    assert str(-N * N) == "-n**2"
    assert str((N + 1) // 2) == "(n + 1)//2"
    assert str(minimum(M, N + 2)) == "min(m, n + 2)"
    assert str(N // M) == "(n)//(m)"
    assert repr(N) == "n"


def test_what_long_axes_decide() -> None:
    assert N > 3
    assert N - 100 > 0
    assert N >= 0
    assert bool(N)
    assert not -N > 0
    assert N not in (M, 3, "n")
    assert not N % 12  # a long axis can be cut into so many parts
    assert may_divide(N, 7)
    assert not may_divide(9, 2)


def test_the_number_is_refused_by_name() -> None:
    for use in (int, float, range, np.zeros, lambda n: n / 2, lambda n: 2.0 / n, lambda n: [0] * n):
        with pytest.raises(af.ShapeError, match=r"the length 2\*n is not known before a run, .* open axis 'n'"):
            use(2 * N)
    with pytest.raises(af.ShapeError, match=r"unstack needs the number n.*: the axis 'n' cannot be open here"):
        known("unstack", N)
    assert known("unstack", 3) == 3
    with pytest.raises(ZeroDivisionError):
        N // 0
    with pytest.raises(af.ShapeError, match=r"\(n\)//\(m\) with n = 1, m = 0 divides by zero"):
        (N // M).at({"n": 1, "m": 0})
    with pytest.raises(TypeError):
        N + 1.5


def test_equality_may_be_assumed() -> None:
    assert (N == M) is False
    with assumed():
        assert (N, N, N, 2) == (M, 3, 4, 2)
        assert N not in (1, N + 1, "n")
    assert may_equal((N, 2), (M, 2))
    assert not may_equal((N, 2), (M, 3))
    assert not may_equal((N,), (N, 1))


@pytest.mark.together(
    ("formula", "number", "may"),
    [
        (N, 1, False),
        (N + 1, 1, False),
        (N * M, 0, False),
        (N // 2, 1, True),
        ((N + 15) // 48, 1, True),
        ((N + 15) // 48, 0, True),
        ((N + 48) // 48, 0, False),
        (N - 2, 0, True),
        (N // (M - 2), 1, True),
    ],
)
def test_short_lengths_are_equal_to_formulas_that_can_be_so_short(formula: Any, number: int, may: bool) -> None:
    assert may_equal(formula, number) is may_equal(number, formula) is may


def test_open_axes_are_not_repeated() -> None:
    assert broadcast_shapes((N, 3), (1, 3)) == broadcast_shapes((N, 1), (3,)) == (N, 3)
    with pytest.raises(ValueError, match="do not broadcast"):
        broadcast_shapes((N, 3), (M, 3))
    with pytest.raises(ValueError, match="do not broadcast"):
        broadcast_shapes(opened((N, 3), {"n": 1}), (4, 3))
    assert broadcast_shapes(opened((N, 3), {"n": 4}), (4, 1)) == (4, 3)
    with assumed():
        assert broadcast_shapes((N // 2, 3), (1, 3)) == broadcast_shapes((1, 3), (N // 2, 1)) == (N // 2, 3)
        assert str(broadcast_shapes((N // 2,), (1,))) == "((n)//2,)"
        cut = minimum(N, 64)
        assert str(broadcast_shapes((cut,), (N,))) == str(broadcast_shapes((N,), (cut,))) == "(n,)"
        assert broadcast_shapes((cut,), (32,)) == broadcast_shapes((32,), (cut,)) == (32,)
        assert type(broadcast_shapes((cut,), (32,))[0]) is type(broadcast_shapes((32,), (cut,))[0]) is int


def test_what_holds_lengths() -> None:
    assert integers(["n", 2, N]) == (N, 2, N)
    assert integers("n") == (N,)
    assert axes_in((N, slice(M), "k")) == {"n", "m"}
    assert at((N, slice(M, None), "k"), {"n": 1, "m": 2}) == (1, slice(2, None), "k")
    assert following(operator.truediv, 1, 4) == 0.25
    later = following(operator.truediv, 1, N)
    assert later == Follows(operator.truediv, (1, N))
    assert str(later) == "truediv(1, n)"
    assert at(later, {"n": 4}) == 0.25
    with pytest.raises(af.ShapeError, match=r"truediv\(1, n\) is not known before a run"):
        float(later)
