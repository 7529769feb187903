"""Reductions computed in blocks, of numbers at the ends of their range: NumPy's results, and no warnings."""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import actorflow as af
import actorflow.array as xp
from actorflow.array import jobs
from actorflow.array.transforms import to_graph
from actorflow.ops.cpu import blocks
from tests.array.test_random_programs import PROGRAMS

#: Elements of a block here, and from which on there are several.
BLOCK, LONG = 64, 128
#: Whatever the numbers are, NumPy's results to the last bit; and those that are rounded on the way.
EXACT = ("prod", "max", "min", "all", "any", "count_nonzero", "argmax", "argmin", "cumulative_sum", "cumulative_prod")
ROUNDED = ("sum", "mean", "var")
OF_COMPLEX = ("prod", "all", "any", "count_nonzero", "cumulative_sum", "cumulative_prod", "sum", "mean")
ALONG_ONE_AXIS = ("argmax", "argmin", "cumulative_sum", "cumulative_prod")


@pytest.fixture(scope="module", autouse=True)
def small_blocks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK", BLOCK)
        patch.setattr(jobs, "LARGE", LONG)
        patch.setattr(to_graph, "LARGE", LONG)
        yield


def extremes(dtype: np.dtype[Any]) -> list[Any]:
    """Numbers that a few operations take out of a dtype's range, and those beyond."""
    if dtype.kind in "iu":
        return [0, 1, 2, 3, int(np.iinfo(dtype).max), int(np.iinfo(dtype).min)]
    info = np.finfo(dtype)
    large, small = float(info.max), float(info.smallest_normal)
    near = [large / 2, large / LONG, math.sqrt(large), small * 4, float(info.smallest_subnormal), 1.5, 0.5, 1.0]
    return [0.0, -0.0, math.inf, -math.inf, math.nan, large, -large, *near, *[-each for each in near]]


@st.composite
def values(draw: st.DrawFn) -> np.ndarray:
    """Arrays in runs of few different numbers, so that blocks leave the range whose whole does not, and back again."""
    dtype = np.dtype(draw(st.sampled_from(["float64", "float32", "float16", "complex128", "int64", "uint8"])))
    shape = draw(st.sampled_from([(LONG,), (3 * LONG + 5,), (20 * BLOCK,), (9, 37), (40, 7), (200, 3), (6, 5, 16)]))
    palette = draw(st.lists(st.sampled_from(extremes(np.empty(0, dtype).real.dtype)), min_size=1, max_size=4))
    length = st.integers(1, 2 * BLOCK + 3)
    runs = draw(st.lists(st.tuples(st.sampled_from(palette), length), min_size=1, max_size=8))
    array = np.repeat(np.array([value for value, _ in runs], dtype), [length for _, length in runs])
    array = np.resize(array, shape)
    if draw(st.booleans()) and array.ndim > 1:  # the runs go along the first axis
        array = np.ascontiguousarray(np.resize(array, shape[::-1]).T)
    if dtype.kind == "c" and draw(st.booleans()):
        array.imag = array.real[::-1]
    return array


class Wanted(NamedTuple):
    """A reduction: its name and its arguments."""

    name: str
    how: dict[str, Any]

    def of(self, namespace: Any, x: Any) -> Any:
        return getattr(namespace, self.name)(x, **self.how)


@st.composite
def reductions(draw: st.DrawFn, x: np.ndarray) -> Wanted:
    name = draw(st.sampled_from(OF_COMPLEX if x.dtype.kind == "c" else EXACT + ROUNDED))
    axis = draw(st.integers(0, x.ndim - 1))
    if name in ALONG_ONE_AXIS:
        return Wanted(name, {"axis": axis})
    axes = draw(st.sampled_from([None, axis, tuple(range(x.ndim))]))
    return Wanted(name, {"axis": axes, "keepdims": draw(st.booleans())})


def check(wanted: Wanted, found: np.ndarray, x: np.ndarray) -> None:
    with np.errstate(all="ignore"):
        if wanted.name.startswith("cumulative_") and x.dtype == np.float16:  # formed in float32, and rounded once
            expected = wanted.of(np, x.astype(np.float32)).astype(x.dtype)
        else:
            expected = np.asarray(wanted.of(np, x))
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    if wanted.name in EXACT or found.dtype.kind in "biu":
        np.testing.assert_array_equal(found, expected)
        return
    axis = wanted.how["axis"]
    for part in ("real", "imag") if found.dtype.kind == "c" else ("real",):
        mine, its, given = getattr(found, part), getattr(expected, part), getattr(x, part).astype(np.longdouble)
        same = (mine == its) | (np.isnan(mine) & np.isnan(its))
        assert not (np.isnan(mine) & ~np.isnan(its)).any(), (mine, its)
        if wanted.name != "var":
            # The sums of one order may leave the range on the way where those of another one do not: a number is more
            # than NaN or infinity, but only where all that is added up are numbers.
            with np.errstate(all="ignore"):
                of_numbers = np.isfinite(x).all(axis=axis, keepdims=wanted.how["keepdims"])
            assert (same | (np.isfinite(mine) & of_numbers)).all(), (mine, its)
        largest = np.where(np.isfinite(given), np.abs(given), 0).max(axis=axis, keepdims=wanted.how["keepdims"])
        power = 2 if wanted.name == "var" else 1
        bound = largest**power * x.size * np.finfo(mine.dtype).eps
        finite = np.isfinite(mine) & np.isfinite(its)
        with np.errstate(all="ignore"):
            assert (np.abs(mine.astype(np.longdouble) - its)[finite] <= bound[finite]).all(), (mine, its)


CHAINS: dict[str, Callable[[Any, Any], Any]] = {
    "nothing": lambda ns, x: x,
    "twice": lambda ns, x: x + x,
    "chosen": lambda ns, x: ns.where(x == x, ns.abs(x), x),
}


@settings(PROGRAMS)
@given(st.data(), values(), st.sampled_from(list(CHAINS)), st.booleans(), st.booleans())
def test_reductions_in_blocks_are_numpys(data: Any, x: np.ndarray, chain: str, is_kept: bool, is_own: bool) -> None:
    with np.errstate(all="ignore"):
        whole = CHAINS[chain](np, x)
    several = data.draw(st.lists(reductions(whole), min_size=1, max_size=3))
    with xp.session(run_ahead=False):
        begin = xp.asarray(x)
        if is_own:  # it is in memory that a chain may write its result into
            begin = (begin + xp.asarray(0, dtype=x.dtype)).wait()
        y = CHAINS[chain](xp, begin)
        del begin
        found = [wanted.of(xp, y) for wanted in several]
        if not is_kept:
            del y
        xp.wait_for_all()
        for wanted, mine in zip(several, found, strict=True):
            check(wanted, mine.to_numpy(), whole)


@pytest.mark.parametrize("first", [1.5, 0.5])
def test_a_product_is_formed_from_left_to_right(first: float) -> None:
    """Half of it is infinite and the other half 0, in this order or in the other one."""
    x = np.full(20 * BLOCK, first**8)
    x[10 * BLOCK :] = (2 - first) ** 8
    expected = {1.5: math.inf, 0.5: 0.0}[first]
    for y in (
        xp.asarray(x),
        xp.abs(xp.asarray(x)),
        xp.asarray(x, device="sim:0"),
        xp.abs(xp.asarray(x, device="sim:0")),
    ):
        assert float(xp.prod(y)) == expected


@settings(PROGRAMS)
@given(st.data(), values(), st.sampled_from(list(CHAINS)))
def test_reductions_in_blocks_on_a_device_are_numpys(data: Any, x: np.ndarray, chain: str) -> None:
    if x.dtype.kind == "c":  # which devices do not have
        x = x.real.copy()
    with np.errstate(all="ignore"):
        whole = CHAINS[chain](np, x)
    wanted = data.draw(reductions(whole).filter(lambda wanted: not wanted.name.startswith("cumulative")))
    with xp.session(run_ahead=False):
        check(wanted, wanted.of(xp, CHAINS[chain](xp, xp.asarray(x, device="sim:0"))).to_numpy(), whole)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, which kernels let pass
@settings(PROGRAMS)
@given(st.data(), values())
def test_reductions_of_graphs_are_numpys(data: Any, x: np.ndarray) -> None:
    names = ["prod", "sum", "max", "min", "count_nonzero", "argmax"]
    wanted = data.draw(reductions(x).filter(lambda wanted: wanted.name in names))
    if x.dtype.kind == "c":
        x = x.real.copy()
    graph = af.Graph("reduction")
    y = wanted.of(af.ops, graph.blob("x", x.shape, x.dtype.name))
    check(wanted, graph.run_sync({"x": x})[y], x)
