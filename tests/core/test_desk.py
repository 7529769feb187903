"""Operations of array code that are computed in their line, on both forms: the bits are NumPy's."""

from __future__ import annotations

import gc
import operator
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

MOST = 2_000
FUNCTIONS = [np.add, np.subtract, np.multiply, np.divide, np.maximum, np.less, np.power, np.hypot, np.logical_and]
FUNCTIONS += [np.bitwise_or, np.floor_divide, np.negative, np.exp, np.sqrt, np.isnan, np.abs]
DTYPES = ["float32", "float64", "float16", "complex64", "int8", "int64", "uint16", "bool"]


class World:
    """Arrays of one form."""

    def __init__(self, form: Any) -> None:
        class Record(form.Node):  # type: ignore[misc]
            __slots__ = ()

        class Array(form.Holder):  # type: ignore[misc]
            __slots__ = ()

            def _read(self, key: Any) -> Any:
                return "recorded", key

        self.form, self.desk, self.evaluator = form, form.desk, SimpleNamespace(at_once=MOST)
        self.desk.node_type, self.desk.array_type, self.desk.place = Record, Array, "here"

    def __call__(self, value: Any) -> Any:
        """An array with a value."""
        return self.desk.show(value, self.evaluator)


@pytest.fixture
def world(form: Any) -> Iterator[World]:
    kept = [getattr(form.desk, name) for name in ("node_type", "array_type", "place", "placing", "dry_runs")]
    form.desk.placing, form.desk.dry_runs = None, 0
    yield World(form)
    for name, value in zip(("node_type", "array_type", "place", "placing", "dry_runs"), kept, strict=True):
        setattr(form.desk, name, value)


def drawn(dtype: str, shape: tuple[int, ...], seed: int) -> Any:
    random = np.random.default_rng(seed)
    with np.errstate(all="ignore"):
        found = random.integers(0, 5, shape).astype(dtype)
        return np.asarray(found * np.dtype(dtype).type(0.37) if found.dtype.kind in "fc" else found)


def layouts(x: Any) -> Iterator[Any]:
    """The same numbers, in several ways in memory."""
    yield x
    yield np.asfortranarray(x).reshape(x.shape, copy=False) if x.ndim > 1 else x
    if x.ndim:
        yield np.repeat(x, 2, axis=-1)[..., ::2]
        yield x[::-1].copy()[::-1]
        yield np.concatenate([x, x], axis=0)[: len(x)]


def check(found: Any, wanted: Callable[[], Any], size: int) -> None:
    """An array at once, with the bits that NumPy computes, or nothing where that raises, or takes long."""
    try:
        with np.errstate(all="ignore"):
            value = np.asarray(wanted())
    except Exception:  # noqa: BLE001  whatever it is, it is recorded
        assert found is None
        return
    if size > MOST or found is None:
        assert size > MOST
        assert found is None
        return
    node = found._node
    assert (node.value.dtype, node.value.shape) == (value.dtype, value.shape)
    assert (node.shape, node.dtype, node.size, node.place) == (value.shape, value.dtype, value.size, "here")
    assert node.value.flags.c_contiguous
    assert np.array_equal(node.value, value, equal_nan=value.dtype.kind in "fc")
    same = value == value
    assert np.where(same, node.value, 0).tobytes() == np.where(same, value, 0).tobytes()


PAIRS = [
    ((), ()),
    ((3, 5), (3, 5)),
    ((7,), ()),
    ((4, 1), (1, 3)),
    ((2, 3, 4), (4,)),
    ((2, 3, 4), (3, 1)),
    ((0, 2), (2,)),
    ((0, 1), (1, 3)),
]
PAIRS += [((60, 30), (60, 30)), ((200, 40), (200, 1)), ((60, 30, 1), (60, 30, 1)), ((700, 2), (700, 1)), ((3,), (4,))]


@pytest.mark.together("function", FUNCTIONS, ids=lambda f: f.__name__, at_once=20)
def test_functions_on_elements(world: World, function: np.ufunc) -> None:
    loop = world.form.Loop(function)
    for seed, (dtype, (one, other)) in enumerate((dtype, pair) for dtype in DTYPES for pair in PAIRS):
        for a, b in zip(layouts(drawn(dtype, one, seed)), layouts(drawn(dtype, other, seed + 1)), strict=False):
            if function.nin == 1:
                check(loop.of_one(world(a)), lambda a=a: function(a), a.size)
                continue
            try:
                size = np.broadcast(a, b).size
            except ValueError:
                size = 0
            check(loop.of_two(world(a), world(b)), lambda a=a, b=b: function(a, b), size)


@pytest.mark.together("function", [np.add, np.divide, np.power, np.less, np.bitwise_or], ids=lambda f: f.__name__)
def test_functions_of_arrays_and_numbers(world: World, function: np.ufunc) -> None:
    loop = world.form.Loop(function)
    numbers = [2.0, -0.0, 1e300, 3, 99, 100, -1, 1 << 70, np.float32(0.5), np.int8(3), np.float64(1e40)]
    for dtype in DTYPES:
        for x in (drawn(dtype, (2, 3), 1), drawn(dtype, (), 2)):
            for number in (*numbers, np.ones((2, 1))):
                check(loop.of_two(world(x), number), lambda x=x, n=number: function(x, n), x.size)
                check(loop.of_two(number, world(x)), lambda x=x, n=number: function(n, x), x.size)
    for other in ("1", True, 1j, None, np.datetime64("2020-01-01")):
        assert loop.of_two(world(np.ones(2)), other) is None
        assert loop.of_two(other, world(np.ones(2))) is None
    assert loop.of_two(1, 2) is None
    assert world.form.Loop(None).of_two(world(np.ones(2)), 1.0) is None


def test_products_of_matrices(world: World) -> None:
    sizes = [1, 2, 3, 17]
    for dtype in ("float32", "float64", "complex64", "int32"):
        for m, n, p in ((m, n, p) for m in sizes for n in sizes for p in (0, *sizes)):
            a, b = drawn(dtype, (m, n), m), drawn(dtype, (n, p) if p else (n,), p)
            for x, y in zip(layouts(a), layouts(b), strict=True):
                found = world.desk.product(world(x), world(y))
                is_flat = all(each.flags.forc for each in (x, y))
                if dtype == "int32" or not is_flat:
                    assert found is None
                    continue
                check(found, lambda x=x, y=y: x @ y, 1)
                turned, other = x.T.copy(), y.T.copy()
                check(world.desk.product(world(turned), world(y), True), lambda x=turned, y=y: x.T @ y, 1)
                if p:
                    check(world.desk.product(world(x), world(other), False, True), lambda x=x, y=other: x @ y.T, 1)
    many = np.ones((50, 50))
    assert world.desk.product(world(many), world(many)) is None
    assert world.desk.product(world(np.ones((2, 3))), world(np.ones((2, 3)))) is None


KEYS: list[Any] = [0, -1, (1, 2), slice(None), (slice(1, None), None, 0), ..., (..., 1), (), (slice(None, None, -2), 1)]
OTHERS: list[Any] = [np.array([0, 1]), True, [0], (0, np.int64(1)), slice(np.int64(0), 1), "a"]


def test_parts(world: World) -> None:
    x = drawn("float32", (3, 4), 1)
    for key in KEYS:
        found = world(x)[key]
        assert np.array_equal(found._node.value, x[key])
        assert type(found._node.value) is np.ndarray
    for key in (*OTHERS, 5, (0, 0, 0)):
        assert world(x)[key] == ("recorded", key)
    large = np.zeros((1000, 40))
    assert world(large)[3]._node.value.base is None  # it does not keep the whole
    assert world(large)[3:]._node.value.base is large


def test_writing(world: World) -> None:
    for key in KEYS:
        for value in (7.0, 3, drawn("float32", (), 5)):
            x = drawn("float32", (3, 4), 1)
            wanted = x.copy()
            wanted[key] = value
            array = world(x)
            node, address = array._node, x.ctypes.data
            del x, node
            assert world.desk.write(array, key, world(value) if isinstance(value, np.ndarray) else value)
            assert np.array_equal(array._node.value, wanted)
            assert array._node.value.ctypes.data == address  # nothing else could see it
    many, imaginary = np.ones(9, np.float32), np.ones(4) * 1j
    for wrong, key in ((1j, 0), (True, 0), ("1", 0), (1.0, [0]), (1.0, 9), (many, 0), (imaginary, 0)):
        assert world.desk.write(world(np.zeros((3, 4), np.float32)), key, wrong) is False
    with pytest.raises(OverflowError):
        world.desk.write(world(np.zeros(3, np.int8)), 0, 300)


@pytest.mark.together("function", [np.add, np.divide, np.less, np.bitwise_or], ids=lambda f: f.__name__)
def test_writing_over_an_operand(world: World, function: np.ufunc) -> None:
    loop = world.form.Loop(function)
    for seed, (dtype, (one, other)) in enumerate((dtype, pair) for dtype in DTYPES for pair in PAIRS):
        same, beside = drawn(dtype, one, seed + 1), drawn(dtype, other, seed + 1)
        for operand in (same, beside, same.real.astype("float64"), 3, 2.0, np.int8(3)):
            before = drawn(dtype, one, seed)
            array = world(before.copy())
            address = array._node.value.ctypes.data
            done = loop.onto(array, world(operand) if isinstance(operand, np.ndarray) else operand)
            wanted: Any = None
            with suppress(Exception), np.errstate(all="ignore"):
                wanted = function(before, operand)
            fits = wanted is not None and (wanted.dtype, wanted.shape) == (before.dtype, before.shape)
            if done or (fits and operand is same and 1 < before.size <= MOST):
                assert done
                assert fits
                assert np.array_equal(array._node.value, wanted, equal_nan=dtype[0] in "fc")
                assert array._node.value.ctypes.data == address
            else:
                assert array._node.value.tobytes() == before.tobytes()


@pytest.mark.parametrize("seen", ["value", "record", "view", "read-only"])
def test_what_something_else_sees_is_not_written_over(world: World, seen: str) -> None:
    for size in (12, MOST + 1):
        base = np.zeros(size)
        array = world(base[:] if seen == "view" else base)
        if seen == "read-only":
            base.flags.writeable = False
        kept: Any = {"value": base, "record": array._node}.get(seen)
        if seen != "value":
            before = array._node.value.tobytes()
            del base
        else:
            before = base.tobytes()
        node = array._node
        del node
        assert not world.form.Loop(np.add).onto(array, 1.0)
        assert array._node.value.tobytes() == before
        assert world.desk.write(array, 0, 1.0) is (size == 12)
        value = kept.value if seen == "record" else kept
        if value is not None:
            assert value.tobytes() == before
        assert (array._node.value[0] == 1.0) is np.bool_(size == 12)


def test_functions_of_one_array(world: World) -> None:
    x = np.arange(6.0).reshape(2, 3)
    found = world.desk.call(operator.methodcaller("transpose", (1, 0)), world(x), True)
    assert np.array_equal(found._node.value, x.T)
    number = world.desk.call(np.add.reduce, world(np.arange(4.0)), False)
    assert number._node.value.shape == ()
    assert number._node.value == 6.0
    for function in (None, lambda x: 1 / 0, lambda x: "text", lambda x: x.nothing):
        assert world.desk.call(function, world(x), True) is None
    assert world.desk.call(np.negative, world(np.zeros(MOST + 1)), False) is None
    assert world.desk.call(np.negative, world(np.zeros(MOST + 1)), True) is not None


def test_nothing_is_computed_at_once_where_it_may_not_be(world: World) -> None:
    loop, x = world.form.Loop(np.negative), world(np.ones(2))
    assert loop.of_one(x) is not None
    for name, value, usual in (("dry_runs", 1, 0), ("placing", print, None)):
        setattr(world.desk, name, value)
        assert loop.of_one(x) is None
        assert x[0] == ("recorded", 0)
        assert not world.desk.write(x, 0, 1.0)
        assert not world.form.Loop(np.add).onto(x, 1.0)
        setattr(world.desk, name, usual)
    world.evaluator.at_once = 0
    assert loop.of_one(x) is None
    assert x[0] == ("recorded", 0)
    assert not world.desk.write(x, 0, 1.0)
    assert not world.form.Loop(np.add).onto(x, 1.0)
    assert world.desk.call(np.negative, x, True) is None
    assert loop.of_one(world(np.zeros((0, 2)))) is None
    assert world.desk.product(world(np.ones((1, 1))), world(np.ones(1))) is None


def test_numbers_rise_and_nothing_is_left_behind(world: World) -> None:
    first, second = world(np.ones(2)), world.form.Node.__new__(world.desk.node_type)
    assert second.number > first._node.number
    assert (second.inputs, second.params, second.value, second.handle) == ((), (), None, None)
    gc.collect()
    count = len(gc.get_objects())
    loop = world.form.Loop(np.add)
    for _ in range(100):
        loop.of_two(first, first)
        loop.of_two(first, world(np.ones(3)))
    gc.collect()
    assert len(gc.get_objects()) - count < 50
