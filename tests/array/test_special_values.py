"""Special values that the standard fixes, and that NumPy has otherwise, or does not promise."""

import cmath
import math
import operator
from typing import Any

import numpy as np
import pytest

import actorflow.array as xp
from tests.operations import ROWS
from tests.operations.functions.draws import COMPLEX, FLOATS, Draws
from tests.support.effort import FULL

INF, NAN = math.inf, math.nan
#: An array of one number, whose operations are computed at once; of some, in one sequence; of many, in blocks.
SIZES = (None, 3, 40_000)
EACH = 1_000 if FULL else 40


def drawn(dtype: str, count: int = EACH) -> list[Any]:
    """Numbers, special ones among them."""
    return Draws(0).array((dtype,), (count,)).tolist()


def filled(value: complex, size: int | None, dtype: str) -> xp.Array:
    return xp.asarray(np.full(() if size is None else size, value, dtype))


def is_same(found: complex, expected: complex) -> bool:
    """Equal, with the same signs of zeros; NaN is equal to NaN."""
    if isinstance(expected, complex):
        return is_same(found.real, expected.real) and is_same(found.imag, expected.imag)
    if math.isnan(expected):
        return math.isnan(found)
    return found == expected and math.copysign(1, found) == math.copysign(1, expected)


def check(found: xp.Array, expected: complex) -> None:
    value = found.to_numpy()
    assert is_same(value.flat[0].item(), expected)
    assert is_same(value.flat[-1].item(), expected)


#: For one half of the plane: those of the other one are conjugates.
EXPM1 = (
    (complex(-0.0, 0.0), complex(0.0, 0.0)),
    (complex(1.0, INF), complex(NAN, NAN)),
    (complex(1.0, NAN), complex(NAN, NAN)),
    (complex(INF, 0.0), complex(INF, 0.0)),
    (complex(-INF, 0.0), complex(-1.0, 0.0)),
    (complex(800.0, 0.0), complex(INF, 0.0)),
    (complex(-INF, 2.0), complex(-1.0, 0.0)),
    (complex(INF, 2.0), complex(-INF, INF)),
    (complex(-INF, INF), complex(-1.0, 0.0)),
    (complex(INF, INF), complex(INF, NAN)),
    (complex(-INF, NAN), complex(-1.0, 0.0)),
    (complex(INF, NAN), complex(INF, NAN)),
    (complex(NAN, 0.0), complex(NAN, 0.0)),
    (complex(NAN, 1.0), complex(NAN, NAN)),
    (complex(NAN, NAN), complex(NAN, NAN)),
)
TANH = (
    (complex(INF, 2.0), complex(1.0, 0.0)),
    (complex(INF, 0.5), complex(1.0, 0.0)),
    (complex(-INF, 2.0), complex(-1.0, 0.0)),
    (complex(INF, 0.0), complex(1.0, 0.0)),
    (complex(NAN, 0.0), complex(NAN, 0.0)),
    (complex(0.0, 0.0), complex(0.0, 0.0)),
)


@pytest.mark.together("size", SIZES, at_once=3)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("name", "infix", "in_place"),
    [("FloorDivide", operator.floordiv, operator.ifloordiv), ("Power", operator.pow, operator.ipow)],
)
def test_of_two_numbers(name: str, infix: Any, in_place: Any, dtype: str, size: int | None) -> None:
    row = ROWS[name]
    assert row.special is not None
    assert row.numpy is not None
    inputs = row.special.inputs(dtype)
    with np.errstate(all="ignore"):
        expected = row.numpy(*inputs)
    for x1, x2, result in zip(*[each.tolist() for each in (*inputs, expected)], strict=True):
        one, other = filled(x1, size, dtype), filled(x2, size, dtype)
        for found in (infix(one, other), infix(one, x2), infix(x1, other), row.special.apply(one * 1, other * 1)):
            check(found, result)
        check(in_place(one * 1, other), result)


@pytest.mark.together("size", SIZES, at_once=12)
@pytest.mark.together("dtype", COMPLEX)
@pytest.mark.together(("function", "rows"), [(xp.expm1, EXPM1), (xp.tanh, TANH)])
def test_of_complex_numbers(function: Any, rows: Any, dtype: str, size: int | None) -> None:
    for x, result in rows:
        for value, expected in ((x, result), (x.conjugate(), result.conjugate())):
            array = filled(value, size, dtype)
            check(function(array), expected)
            check(function(xp.conj(xp.conj(array))), expected)  # may be written where the argument was


@pytest.mark.together("size", SIZES, at_once=12)
@pytest.mark.together("dtype", [*FLOATS, *COMPLEX])
def test_the_sign_of_zero_is_positive_zero(dtype: str, size: int | None) -> None:
    for value in (0.0, -0.0):
        check(xp.sign(filled(value, size, dtype)), 0j if dtype in COMPLEX else 0.0)


@pytest.mark.together("exponent", [0.5, -0.5, 1.5, 2.0, 3.0, -1.0, 0.0, INF, -INF, NAN])
def test_powers_do_not_depend_on_how_they_are_computed(exponent: float) -> None:
    is_odd = exponent % 2 == 1
    for x in drawn("float64"):
        try:
            expected = math.pow(x, exponent)
        except ValueError:  # what Python does not want to say: of zero, or of negative numbers
            expected = NAN if x else math.copysign(INF, x) if is_odd else INF
        except OverflowError:
            expected = math.copysign(INF, x) if is_odd else INF
        beside_a_number = float(xp.pow(xp.asarray(x), exponent))
        of_arrays = xp.pow(xp.asarray([x, x, x]), xp.asarray([exponent, 0.5, exponent])).to_numpy()
        for found in (beside_a_number, of_arrays[0].item(), of_arrays[2].item()):
            if math.isfinite(expected) and expected:
                assert math.isclose(found, expected, rel_tol=1e-14), x
            else:
                assert is_same(found, expected), x


def test_expm1_is_symmetric_and_numpys_of_finite_numbers() -> None:
    for x in drawn("complex128"):
        found, mirrored = (complex(xp.expm1(xp.asarray(each))) for each in (x, x.conjugate()))
        assert is_same(mirrored, found.conjugate()), x
        if cmath.isfinite(x) and x.imag and abs(x.real) < 50:
            with np.errstate(all="ignore"):
                assert is_same(found, complex(np.expm1(x))), x


def test_tanh_is_odd_and_symmetric() -> None:
    for x in drawn("complex128"):
        found = complex(xp.tanh(xp.asarray(x)))
        assert is_same(complex(xp.tanh(xp.asarray(x.conjugate()))), found.conjugate()), x
        assert is_same(complex(xp.tanh(xp.asarray(-x))), -found), x
