"""Programs of cached gradients, and operations that are computed in their line: the same values, and nothing kept."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import threadpoolctl
from hypothesis import given, settings
from hypothesis import strategies as st

import actorflow as af
import actorflow.array as xp
from actorflow.array import jobs
from actorflow.array.record.primitives import Primitive, elementwise_primitive
from actorflow.array.record.record import record
from actorflow.array.record.steps import Step
from actorflow.array.transforms.to_graph import Given, Program
from actorflow.ops import elementwise as ew
from actorflow.ops.step import StepError
from actorflow.runtime.caller import callers_device
from actorflow.spec import TensorSpec
from tests.support.numbers import with_specials as numbers

#: Around the size up to which an operation is computed in its line, and around that of memory that is used again.
SHAPES = [(3, 4), (0, 5), (), (128, 128), (129, 129), (1, 200)]

Call = tuple[str, int, int]
_UNARY: dict[str, Callable[[Any, Any], Any]] = {
    "exp": lambda ns, x: ns.exp(x),
    "scaled": lambda ns, x: x * 0.5,
    "root": lambda ns, x: ns.sqrt(ns.abs(x)),
    "sums": lambda ns, x: x + ns.sum(x, axis=-1, keepdims=True) if x.ndim else x,
    "flat": lambda ns, x: ns.reshape(ns.reshape(x, (-1,)), x.shape) + 1.0,
    "part": lambda ns, x: ns.concat([x[:1, ...], x[1:, ...]], axis=0) if x.ndim else x,
    "product": lambda ns, x: ns.matmul(ns.matmul(x, ns.matrix_transpose(x)), x) if x.ndim == 2 else x,
}
_BINARY: dict[str, Callable[[Any, Any, Any], Any]] = {
    "add": lambda ns, x, y: x + y,
    "subtract": lambda ns, x, y: x - y,
    "multiply": lambda ns, x, y: x * y,
    "greater": lambda ns, x, y: ns.where(x > y, x, y),
    "again": lambda ns, x, y: (x * y) - (x * y),
}


@st.composite
def programs(draw: st.DrawFn) -> list[Call]:
    names = st.sampled_from([*_UNARY, *_BINARY])
    count = draw(st.integers(1, 8))
    return [(draw(names), draw(st.integers(0, i + 1)), draw(st.integers(0, i + 1))) for i in range(count)]


def run(program: list[Call], ns: Any, x: Any, y: Any) -> list[Any]:
    values = [x, y]
    for name, i, j in program:
        found = _UNARY[name](ns, values[i]) if name in _UNARY else _BINARY[name](ns, values[i], values[j])
        values.append(found)
    return values


@given(programs(), st.sampled_from(SHAPES), st.sampled_from(["float32", "float64"]), st.booleans())
def test_what_is_computed_in_its_line_is_what_is_computed_later(
    program: list[Call], shape: tuple[int, ...], dtype: str, specials: bool
) -> None:
    a, b = (numbers(shape, dtype, seed, specials) for seed in (0, 1))
    with np.errstate(all="ignore"):
        expected = run(program, np, a, b)
    for ahead in (True, False, True):
        with xp.session(run_ahead=ahead):
            found = run(program, xp, xp.asarray(a), xp.asarray(b))
            if ahead and shape == (3, 4) and {"part", "flat"}.isdisjoint([name for name, *_ in program]):
                assert all(x._node.done for x in found)
            for x, y in zip(found, expected, strict=True):
                assert (x.shape, x.dtype) == (y.shape, y.dtype)
                np.testing.assert_array_equal(x.to_numpy(), y)


@settings(max_examples=settings.default.max_examples // 2)
@given(programs(), st.sampled_from(SHAPES), st.sampled_from(["float32", "float64"]), st.booleans())
def test_programs_compute_what_records_compute(
    program: list[Call], shape: tuple[int, ...], dtype: str, specials: bool
) -> None:
    def loss(weights: dict[str, Any], y: Any) -> Any:
        values = run(program, xp, weights["x"], y)
        return xp.sum(values[-1] * weights["x"]), values[2:]

    plain, cached = (af.value_and_grad(loss, has_aux=True, cache=cache) for cache in (False, True))
    for seed in (0, 10, 20):  # recorded, and twice from the cache, on other numbers
        a, b = (numbers(shape, dtype, seed + i, specials) for i in (0, 1))
        for ahead in (True, False):
            # Products of 128 by 128 have other bits where BLAS has got another number of cores.
            with threadpoolctl.threadpool_limits(1, user_api="blas"), xp.session(run_ahead=ahead):
                (value, aux), slopes = cached({"x": xp.asarray(a)}, xp.asarray(b))
                (value2, aux2), slopes2 = plain({"x": xp.asarray(a)}, xp.asarray(b))
                order = [slopes["x"], value, *aux] if seed else [*aux, value, slopes["x"]]
                order2 = [slopes2["x"], value2, *aux2] if seed else [*aux2, value2, slopes2["x"]]
                for x, y in zip(order, order2, strict=True):
                    np.testing.assert_array_equal(x.to_numpy(), y.to_numpy())


def test_other_shapes_dtypes_nestings_and_constants_have_programs_of_their_own() -> None:
    calls = []

    def loss(w: Any, factor: Any = 1.0) -> Any:
        calls.append(w)
        first = w["a"] if isinstance(w, dict) else w[0]
        return xp.sum(first * first) * factor

    slope = af.grad(loss, cache=True)
    small, large = np.arange(3.0), np.arange(4.0)
    for _ in range(2):
        for value in (small, large, small.astype(np.float32)):
            found = slope({"a": xp.asarray(value)})["a"]
            assert found.dtype == value.dtype
            assert found.to_numpy().tolist() == (2 * value).tolist()
            assert slope((xp.asarray(value),))[0].to_numpy().tolist() == (2 * value).tolist()
            assert slope([xp.asarray(value)])[0].to_numpy().tolist() == (2 * value).tolist()
        for factor in (2.0, -2.0, 0.0):
            assert slope([xp.asarray(small)], factor)[0].to_numpy().tolist() == (2 * small * factor).tolist()
    assert len(calls) == 9 + 3


def test_threads_share_programs() -> None:
    def loss(w: Any, x: Any) -> Any:
        return xp.sum(xp.tanh(x @ w) ** 2.0)

    slope, plain = af.grad(loss, cache=True), af.grad(loss)

    def work(seed: int) -> bool:
        rng = np.random.default_rng(seed)
        for size in (5, 200):  # at once, and recorded
            w, x = rng.standard_normal((size, 150)), rng.standard_normal((size, size))
            with xp.session():
                found = slope(xp.asarray(w), xp.asarray(x)).to_numpy()
                expected = plain(xp.asarray(w), xp.asarray(x)).to_numpy()
            if not np.array_equal(found, expected):
                return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(16)))


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("rows", [10, 20_000])
def test_programs_keep_no_array_alive(rows: int, ahead: bool) -> None:
    both = af.value_and_grad(lambda w, x: xp.sum(xp.exp(x @ w)), cache=True)
    refs: list[weakref.ref[Any]] = []
    with xp.session(run_ahead=ahead):
        for _ in range(3):
            w = xp.asarray(np.zeros(20))
            x = xp.asarray(np.ones((rows, 20)))
            value, slope = both(w, x)
            slope.wait()
            value.wait()
            refs += [weakref.ref(array._node.value) for array in (w, slope, value)]
            refs += [weakref.ref(array._node) for array in (w, x, slope, value)]
        del w, x, value, slope
        xp.wait_for_all()
        gc.collect()
        assert [ref() for ref in refs] == [None] * len(refs)


def test_a_value_that_is_not_asked_for_is_not_computed() -> None:
    both = af.value_and_grad(lambda w: xp.sum(xp.exp(w)), cache=True)
    with xp.session(run_ahead=False) as session:
        for _ in range(2):
            _, slope = both(xp.asarray(np.zeros((30, 30))))
            slope.wait()
    assert not any("sum" in name for name in session.profile)


@pytest.mark.parametrize("size", [3, 200])
def test_results_of_a_program_fail_one_by_one(size: int) -> None:
    def loss(w: Any) -> Any:
        return xp.sum(w), xp.linalg.inv(w)

    both = af.value_and_grad(loss, has_aux=True, cache=True)
    for matrix in (np.eye(size), np.zeros((size, size)), np.eye(size)):
        (value, inverse), slope = both(xp.asarray(matrix))
        assert float(value) == matrix.sum()
        assert slope.to_numpy().tolist() == np.ones((size, size)).tolist()
        if matrix.any():
            assert inverse.to_numpy().tolist() == matrix.tolist()
        else:
            with pytest.raises(af.OpError, match=r"op 'inv'.*Singular") as caught:
                inverse.wait()
            assert "test_programs.py" in str(caught.value)


def test_what_could_not_be_planned_is_planned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def made() -> Any:
        return xp.sqrt((xp.ones((37,)) * 3.0 + 6.0) * 4.0) / 2.0

    def refuse(*_: Any, **options: bool) -> Program:
        raise MemoryError("no room for a plan")

    with xp.session(run_ahead=False):
        made().wait()
        with monkeypatch.context() as patch:
            patch.setattr(jobs, "_program", refuse)
            x = made()
            with pytest.raises(MemoryError, match="no room for a plan"):
                x.wait()
        assert x._node.unit is None  # nobody computes it now: to ask again does not wait
        assert x.to_numpy().tolist() == [3.0] * 37


def test_programs_of_many_sizes_hold_little_memory() -> None:
    pool = callers_device().memory
    for size in range(1_600, 2_000, 4):
        for _ in range(3):  # recorded, and then from the cache
            with xp.session(run_ahead=False):
                x, w = xp.asarray(np.ones((4, size))), xp.asarray(np.eye(4))
                y = w @ (w @ x) - x
                assert float(xp.sum(w @ (w @ y) + x)) == 4.0 * size
    assert pool.held_bytes < 8 << 20


def test_an_operation_of_a_program_may_use_arrays_itself() -> None:
    calls = []

    def compute(x: np.ndarray) -> np.ndarray:
        calls.append(x)
        part = xp.asarray(x)
        part[0] = part[1] * 2.0 + float(xp.sum(part[1:]))
        return part.to_numpy().copy()

    own = Primitive("own", compute)
    with xp.session(run_ahead=False):
        for k in range(3):
            x = xp.asarray(np.arange(4.0) + k)
            y = record(own, ((x + 1.0)._node,), x.shape, x.dtype)
            expected = np.arange(4.0) + k + 1.0
            expected[0] = expected[1] * 2.0 + expected[1:].sum()
            assert ((y * 2.0 - x) / 4.0).to_numpy().tolist() == ((expected * 2.0 - x.to_numpy()) / 4.0).tolist()
        assert len(calls) == 3  # none again, as one whose program has failed is


def test_a_program_names_the_step_that_failed() -> None:
    add = elementwise_primitive(ew.Sum())
    kind = np.dtype(np.float64)
    steps = [Step(add, (), (2,), kind, reads) for reads in ((-1, -2), (0, -3), (0, -4))]
    values = [np.zeros(2), np.ones(2), np.ones(3), np.ones(2)]
    types = [Given(TensorSpec(x.shape, kind)) for x in values]
    assert Program(steps, types, [2])(values)[0].tolist() == [2.0, 2.0]
    with pytest.raises(StepError) as caught:
        Program(steps, types, [2, 1])(values)
    assert caught.value.step == 1
