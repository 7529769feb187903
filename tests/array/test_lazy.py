"""Laziness: what is recorded, what is computed, and what is not."""

import asyncio
import contextlib
import copy
import gc
import pickle
import queue
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

import actorflow as af
import actorflow.array as xp
from actorflow.array import Session
from actorflow.array.record.primitives import Primitive
from actorflow.array.record.record import record
from actorflow.core import desk
from actorflow.ops.operation import apply
from actorflow.runtime.service import Service
from tests.support.warm import run_program

places = pytest.mark.parametrize("place", ["cpu", "sim:0"])


def blocking() -> tuple[Primitive, threading.Event, threading.Event]:
    """An operation that gives its input back, an event that it has begun, and one that it waits for."""
    entered, leave = threading.Event(), threading.Event()

    def block(value: np.ndarray) -> np.ndarray:
        entered.set()
        assert leave.wait(60)
        return value

    return Primitive("block", block), entered, leave


def plan_of(session: Session) -> list[Any]:
    """The steps of the only graph that the service has run."""
    assert session.service is not None
    (compiled,) = session.service.graphs.values()
    return list(compiled.graph.compile(compiled.fetched).ops)  # type: ignore[attr-defined]


def called(session: Session) -> dict[str, int]:
    return {name: profile.calls for name, profile in session.profile.items()}


def test_nothing_is_computed_before_it_is_asked_for(lazy: Session) -> None:
    x = xp.asarray([1.0, 2.0])
    y = x * 2 + 1
    assert (y.shape, y.dtype) == ((2,), xp.float64)
    assert lazy.computed == 0
    assert y.to_numpy().tolist() == [3.0, 5.0]
    assert called(lazy) == {"multiply": 1, "add": 1}


@places
def test_forgotten_temporaries_are_never_computed(lazy: Session, place: str) -> None:
    x = xp.asarray(np.ones(1_000_000), device=place)
    for _ in range(100):
        y = xp.exp(x)  # forgotten in the next turn
    del y
    z = xp.sqrt(x)
    xp.wait_for_all()
    assert "exp" not in lazy.profile
    assert lazy.profile["sqrt"].calls == 1
    assert float(z[0]) == 1.0


def test_a_forgotten_record_lets_go_of_what_it_would_have_read(lazy: Session) -> None:
    value = np.ones(100_000)
    value.setflags(write=False)
    gone = weakref.ref(value)
    x = xp.asarray(value, copy=False)
    y = x + 1
    del x, value
    assert gone() is not None  # y still needs it
    del y
    assert gone() is None


@places
def test_a_computed_value_lets_go_of_what_it_was_computed_from(lazy: Session, place: str) -> None:
    x = xp.asarray([1.0, 2.0], device=place)
    node = weakref.ref(x._node)
    y = x + 1
    del x
    assert node() is not None
    y.wait()
    assert node() is None


def test_a_value_that_is_held_is_computed_once(lazy: Session) -> None:
    x = xp.asarray([1.0, 4.0])
    y = xp.sqrt(x)
    assert (y + 1).to_numpy().tolist() == [2.0, 3.0]
    assert (y + 2).to_numpy().tolist() == [3.0, 4.0]
    assert called(lazy) == {"sqrt": 1, "add": 2}


@places
def test_equal_operations_are_computed_once(lazy: Session, place: str) -> None:
    x = xp.asarray(np.arange(6.0).reshape(2, 3), device=place)
    y = xp.exp(x) @ xp.exp(x).mT + xp.sum(xp.exp(x))
    expected = np.exp(x.to_numpy())
    np.testing.assert_allclose(y.to_numpy(), expected @ expected.T + expected.sum())
    assert lazy.shared == 2
    a, b = x + 1, x + 1  # both are held
    xp.wait_for_all()
    assert a.to_numpy().tolist() == b.to_numpy().tolist()
    assert lazy.shared == 3


def test_numbers_that_only_compare_equal_are_not_shared(lazy: Session) -> None:
    x = xp.asarray([1.0])
    assert xp.copysign(x, 0.0).to_numpy().tolist() == [1.0]
    y = xp.copysign(x, -0.0) + xp.copysign(x, 0.0)
    assert y.to_numpy().tolist() == [0.0]

    class Shown(float):
        def __repr__(self) -> str:
            return "a number"

    assert [float(xp.copysign(x, Shown(zero))[0]) for zero in (0.0, -0.0)] == [1.0, -1.0]


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("arange", [(0.0, 2.0), (-0.0, 2.0)]),
        ("linspace", [(0.0, -1.0, 3), (-0.0, -1.0, 3), (1.0, 0.0, 3), (1.0, -0.0, 3)]),
    ],
)
def test_ranges_with_zeros_of_both_signs_are_not_shared(lazy: Session, name: str, numbers: Any) -> None:
    found = [getattr(xp, name)(*each) for each in numbers]
    xp.wait_for_all()
    for x, each in zip(found, numbers, strict=True):
        np.testing.assert_array_equal(np.signbit(x.to_numpy()), np.signbit(getattr(np, name)(*each)))


@dataclass(frozen=True, slots=True)
class _Signed(af.ops.Operation):
    """A user's operation with a number of any kind."""

    by: float | int

    def infer(self, x: af.TensorSpec) -> tuple[af.TensorSpec, ...]:
        return (x,)

    def compute(self, x: np.ndarray) -> np.ndarray:
        return np.copysign(x, self.by)


@pytest.mark.parametrize(
    "operation",
    [
        lambda x, zero: af.ops.pad(x, 1, value=zero),
        lambda x, zero: af.ops.mse_loss(x, x + 1.0, scale=zero),
        lambda x, zero: apply(_Signed(zero), x),
    ],
    ids=["pad", "loss", "own"],
)
def test_operations_with_zeros_of_both_signs_are_not_shared(operation: Any) -> None:
    """Nor is what was made for one of them used for the other, by whoever comes first."""
    x = xp.ones((3,))
    signs = [bool(np.signbit(operation(x, zero).to_numpy()).any()) for zero in (0.0, -0.0, 0.0)]
    assert signs == [False, True, False]


def test_random_numbers_are_not_shared(lazy: Session) -> None:
    x, y, z = xp.randn((100,)), xp.randn((100,)), xp.randn((100,), seed=3)
    assert bool(xp.all(x != y))
    assert bool(xp.all(z == xp.randn((100,), seed=3)))
    assert set(np.unique(xp.randb((1_000,), 0.5, seed=1).to_numpy()).tolist()) == {0.0, 1.0}


def test_normal_numbers_have_the_mean_and_deviation_that_are_asked_for() -> None:
    assert xp.randn((3,), 2.0, 0.0).to_numpy().tolist() == [2.0, 2.0, 2.0]
    assert abs(float(xp.mean(xp.randn((10_000,), 5.0, 0.5, seed=1))) - 5.0) < 0.05
    assert abs(float(xp.std(xp.randn((10_000,), 5.0, 0.5, seed=1))) - 0.5) < 0.05


@pytest.mark.together("numbers", [(0, 2**60 + 1, 2**59), (2**60 + 1, 0, -(2**59)), (5, 5), (5, 0), (0, 7, 3)])
def test_ranges_of_integers_are_those_of_numpy(numbers: tuple[int, ...]) -> None:
    assert xp.arange(*numbers).to_numpy().tolist() == np.arange(*numbers).tolist()


def test_elementwise_chains_are_one_pass_with_the_reductions_that_end_them(lazy: Session) -> None:
    x = xp.asarray(np.linspace(0, 1, 3_000_000, dtype=np.float32))  # larger than the caches
    y = xp.sum(xp.sqrt(x * x + 1) / 2)
    expected = np.sum(np.sqrt(x.to_numpy() ** 2 + 1) / 2)
    assert float(y) == pytest.approx(float(expected), rel=1e-5)
    assert called(lazy) == dict.fromkeys(["multiply", "add", "sqrt", "divide", "sum"], 1)
    assert [op.operation.kind for op in plan_of(lazy)] == ["Fused"]


def test_each_array_is_a_value_of_its_own() -> None:
    x = xp.asarray(np.arange(6))
    part, same = x[:3], x
    x[0] = 7
    x += 1
    assert part.to_numpy().tolist() == [0, 1, 2]
    assert same is x
    assert x.to_numpy().tolist() == [8, 2, 3, 4, 5, 6]
    twin = copy.copy(x)
    twin[:] = 0
    assert x.to_numpy().tolist() == [8, 2, 3, 4, 5, 6]
    assert pickle.loads(pickle.dumps(x)).to_numpy().tolist() == x.to_numpy().tolist()


def _later(x: xp.Array) -> xp.Array:
    return record(Primitive("later", lambda a: a + 1.0), (x._node,), x.shape, x.dtype)


#: What else refers to an array, or to its value, when parts of it are written, and what that is of its elements.
_SEEN: dict[str, tuple[Callable[[xp.Array], Any], Callable[[Any], Any]]] = {
    "value": (lambda x: x.to_numpy(), lambda a: a),
    "part": (lambda x: x[100:900], lambda a: a[100:900]),
    "small part": (lambda x: x[100:200], lambda a: a[100:200]),
    "memory": (lambda x: memoryview(x.to_numpy()), lambda a: a),
    "record": (_later, lambda a: a + 1.0),
    "exchange": (np.from_dlpack, lambda a: a),
}


@pytest.mark.parametrize("seen", _SEEN)
def test_a_part_is_not_written_into_what_something_else_sees(seen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once(monkeypatch)
    see, then = _SEEN[seen]
    x = xp.asarray(np.arange(1_000.0))
    other = see(x)
    x[150:160] = 7.0
    x[0] = x[999]
    expected = np.arange(1_000.0)
    expected[150:160], expected[0] = 7.0, 999.0
    np.testing.assert_array_equal(x.to_numpy(), expected)
    np.testing.assert_array_equal(np.asarray(other), then(np.arange(1_000.0)))


def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute in the line what takes no time, whatever other tests have left behind."""
    gc.collect()
    monkeypatch.setattr(desk, "placing", None)
    monkeypatch.setattr(desk, "dry_runs", 0)


def test_a_part_is_written_in_place_where_nothing_else_sees_it(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once(monkeypatch)
    x = xp.asarray(np.arange(1_000.0))
    address = x._node.value.ctypes.data  # type: ignore[union-attr]
    for _ in range(3):
        x[150:160] = 7.0
        x[:10] = xp.asarray(np.ones(10))
        x[0] = x[999]
        assert x._node.value.ctypes.data == address  # type: ignore[union-attr]
    large = xp.asarray(np.zeros((2_000, 1_000)))  # whose memory is used again later
    address = large._node.value.ctypes.data  # type: ignore[union-attr]
    large[3, 4:8] = 1.0
    assert large._node.value.ctypes.data == address  # type: ignore[union-attr]
    assert large[3, 3:9].tolist() == [0.0, 1.0, 1.0, 1.0, 1.0, 0.0]


def test_numpy_arrays_are_taken_as_they_are_when_recorded() -> None:
    value = np.zeros(3)
    x = xp.asarray(value)
    y = x + 1
    value[:] = 9
    assert y.to_numpy().tolist() == [1, 1, 1]


def test_what_was_given_out_is_never_written() -> None:
    x = xp.asarray(np.zeros(50_000))
    shown = x.to_numpy()
    x += 1
    assert not shown.flags.writeable
    assert shown.max() == 0
    assert x.to_numpy().min() == 1


def test_buffers_are_used_again_in_place(lazy: Session) -> None:
    x = xp.asarray(np.zeros(100_000))
    for _ in range(10):
        x += 1
        x[3] = 5.0
        x.wait()
    assert lazy.memory.pool.allocations <= 2
    assert x.to_numpy()[:5].tolist() == [10, 10, 10, 5, 10]


@pytest.mark.parametrize("size", [3, 1 << 14, (1 << 14) + 1])
@pytest.mark.parametrize("count", [1, 2, 8, 9])
def test_few_small_operations_are_computed_as_many_large_ones_are(lazy: Session, count: int, size: int) -> None:
    value = np.linspace(0.0, 1.0, size)
    x, expected = xp.asarray(value), value
    y = x
    for i in range(count - 1):
        y, expected = y * (1.0 + i), expected * (1.0 + i)
    total = xp.max(y)
    assert float(total) == expected.max()
    assert lazy.computed == count
    assert called(lazy) == ({"multiply": count - 1, "max": 1} if count > 1 else {"max": 1})
    assert x.to_numpy().tolist() == value.tolist()


@pytest.mark.parametrize("size", [2, 1 << 15])
def test_elementwise_operations_that_fail_name_their_line(lazy: Session, size: int) -> None:
    x = xp.full((size,), 2)
    x.wait()
    powers = x ** xp.asarray(np.full(size, -1))
    with pytest.raises(af.OpError, match="'power'") as failed:
        (powers + 1).wait()
    assert "test_elementwise_operations_that_fail_name_their_line" in str(failed.value)
    assert (x + 1).to_numpy().tolist() == [3] * size
    counts = {name: (each.calls, each.failed) for name, each in lazy.profile.items()}
    assert counts.items() >= {"power": (0, 1), "add": (1, 0)}.items()  # what would have read the powers was no call


def test_long_chains_do_not_recurse(lazy: Session) -> None:
    x = xp.asarray([0])
    for _ in range(20_000):
        x += 1
    assert int(x) == 20_000
    for _ in range(20_000):
        x += 1
    del x  # nobody asks
    gc.collect()


def test_run_ahead_computes_what_nobody_has_asked_for_yet(own_session: Session) -> None:
    computed = threading.Event()
    x = xp.ones((1_000, 1_000)) + 1

    def tell(value: np.ndarray) -> np.ndarray:
        computed.set()
        return value

    y = record(Primitive("tell", tell), (x._node,), x.shape, x.dtype)
    assert computed.wait(60)  # a worker sees it by itself
    assert float(xp.sum(y)) == 2_000_000


def test_sequential_computes_each_operation_in_its_line() -> None:
    with xp.session(sequential=True) as session:
        x = xp.asarray([[1.0, 2.0], [3.0, 4.0]])
        y = x + 1
        assert called(session) == {"add": 1}
        xp.linalg.inv(y)
        assert called(session) == {"add": 1, "inv": 1}
        with pytest.raises(af.OpError, match="inv"):
            xp.linalg.inv(x * 0)
    assert not any(thread.name.startswith("actorflow-array") for thread in threading.enumerate())


def test_dry_run_records_only() -> None:
    with xp.session(dry_run=True) as session:
        x = xp.ones((3, 4)) @ xp.zeros((4, 5))
        assert repr(x) == "Array(shape=(3, 5), dtype=float64)"
        xp.wait_for_all()
        assert session.computed == 0
        with pytest.raises(af.GraphError, match="dry run"):
            x.to_numpy()
        with pytest.raises(af.ShapeError):
            x @ x
    with pytest.raises(af.GraphError, match="sequential or a dry run"), xp.session(sequential=True, dry_run=True):
        pass


def test_what_depends_on_a_dry_run_has_no_value() -> None:
    with xp.session(dry_run=True):
        x = xp.ones((1_000, 1_000))
    with xp.session():
        y = xp.zeros((1_000, 1_000))
        z = y + 1 + x  # enough for a worker to look at
        assert (z.shape, float(y[0, 0])) == ((1_000, 1_000), 0.0)
        with pytest.raises(af.GraphError, match="dry run"):
            z.wait()


def test_sessions_work_together() -> None:
    with xp.session(run_ahead=False) as one:
        x = xp.asarray([1.0]) + 1
    with xp.session(run_ahead=False) as other:
        y = xp.asarray([2.0]) * 2
    assert (y + x).to_numpy().tolist() == [6.0]
    assert (called(one), called(other)) == ({"add": 1}, {"multiply": 1, "add": 1})


# -- errors -----------------------------------------------------------------------------------------------------


def test_sessions_that_take_turns_do_not_recurse() -> None:
    with xp.session(run_ahead=False):
        one = xp.asarray([1.0])
    with xp.session(run_ahead=False):
        x = other = xp.asarray([1.0])
    for _ in range(1_000):
        x = other + (one + x)
    assert x.to_numpy().tolist() == [2_001.0]


@pytest.mark.parametrize("options", [{"run_ahead": False}, {"sequential": True}, {"dry_run": True}])
def test_what_was_forgotten_is_not_noted_for_ever(options: dict[str, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actorflow.array.sessions._MOST_PENDING", 100)
    with xp.session(**options) as session:  # type: ignore[arg-type]
        x, held = xp.ones(1_000), xp.zeros(2)
        later = held + 1.0
        for _ in range(1_000):
            x = x + 1.0
            if "dry_run" not in options:
                x.wait()
        assert len(session.pending) < 300
        xp.wait_for_all()
        assert "dry_run" in options or later._node.value is not None


def test_data_errors_name_the_line_that_recorded_the_operation(lazy: Session) -> None:
    x = xp.zeros((3, 3))
    y = xp.linalg.inv(x)  # the line
    z = y + 1
    for array in (z, y, z):
        with pytest.raises(af.OpError, match="op 'inv'") as caught:
            array.to_numpy()
        assert "test_lazy.py" in str(caught.value)
        assert "in test_data_errors_name_the_line_that_recorded_the_operation" in str(caught.value)
        assert "argument 0 float64[3, 3]" in str(caught.value)
        assert isinstance(caught.value.__cause__, np.linalg.LinAlgError)
    line = test_data_errors_name_the_line_that_recorded_the_operation.__code__.co_firstlineno + 2
    assert f"test_lazy.py:{line} " in str(caught.value)
    assert float(xp.sum(x)) == 0  # the session goes on


def test_out_of_bounds_indices_are_errors(lazy: Session) -> None:
    x = xp.asarray([1, 2, 3])
    with pytest.raises(IndexError, match="index 3 is out of bounds"):
        x[3]
    with pytest.raises(af.OpError, match="op 'take'"):
        xp.take(x, xp.asarray([5])).wait()


@pytest.mark.together(
    ("wrong", "error", "message"),
    [
        (lambda x: x + xp.ones(4), af.ShapeError, r"add: shapes \(2, 3\), \(4,\) do not broadcast"),
        (lambda x: x @ x, af.ShapeError, r"Matmul: b must have length 3 on its second last axis, got float64\[2, 3\]"),
        (lambda x: xp.sum(x, axis=2), af.ShapeError, "sum: axis must be from -2 to 1, got 2"),
        (lambda x: xp.reshape(x, (4,)), af.ShapeError, "Reshape: x of 6 elements cannot have shape"),
        (lambda x: x & x, af.DTypeError, "bitwise_and: no such operation on float64"),
        (lambda x: x + "1", TypeError, "unsupported operand"),
        (lambda x: xp.add(x, "1"), af.DTypeError, "add: expected arrays and numbers, got str"),
        (lambda x: xp.sin([1.0]), af.DTypeError, "Sin: x must be a blob or an array, got list"),
        (lambda x: bool(x), af.ShapeError, r"bool\(\): expected an array of one element, got shape \(2, 3\)"),
        (lambda x: range(xp.sum(x)), TypeError, "an index must be an integer, got an array of float64"),
        (lambda x: float(xp.asarray(1j)), TypeError, "expected a real array"),
        (lambda x: x.__iadd__(xp.ones((2, 2, 3))), af.ShapeError, r"\+=: the result has shape \(2, 2, 3\)"),
        (lambda x: x.__setitem__(0, xp.ones(4)), af.ShapeError, "do not broadcast"),
        (lambda x: x.__setitem__(0, xp.asarray(1j)), af.DTypeError, "assignment: expected float64, got complex128"),
        (lambda x: xp.max(x[:0, :], axis=0), af.ShapeError, "ReduceMax: x must have at least 1 element along the axes"),
        (
            lambda x: xp.concat([x, x[0, :]]),
            af.ShapeError,
            "shape beside axis 0",
        ),
        (lambda x: xp.astype(xp.asarray(1j), xp.float32), af.DTypeError, "drop imaginary parts"),
        (lambda x: xp.astype(x, object), af.DTypeError, "astype: expected booleans or numbers, got object"),
        (
            lambda x: xp.from_dlpack(np.array(["a"])),
            af.DTypeError,
            "from_dlpack: expected booleans or numbers, got <U1",
        ),
        (lambda x: xp.iinfo(x), af.DTypeError, "iinfo: expected an integer dtype, got float64"),
        (lambda x: xp.finfo("int8"), af.DTypeError, "finfo: expected a floating dtype, got int8"),
        (lambda x: xp.diff(x, n=-1), af.GraphError, "diff: n must not be negative, got -1"),
        (lambda x: xp.randn(3, std=-1.0), af.GraphError, "randn: std must not be negative, got -1.0"),
        (lambda x: af.ops.scale(xp.asarray([1, 2]), 0.5), af.DTypeError, "Scale: x must be floating, got int64"),
        (lambda x: af.ops.average(), af.GraphError, "WeightedSum: give at least one blob or array"),
        (lambda x: xp.asarray(x, device="abacus:0"), af.DeviceUnavailableError, "no device of kind 'abacus'"),
        (lambda x: xp.asarray("text"), af.DTypeError, "expected booleans or numbers"),
        (lambda x: x[0.5], IndexError, "an index must be an integer"),
        (lambda x: x[[0, 2]], IndexError, "index 2 is out of bounds for an axis of length 2"),
        (lambda x: x[:, np.asarray([-4])], IndexError, "index -4 is out of bounds for an axis of length 3"),
        (lambda x: x[[0.5]], IndexError, "an index must be of integers or bools, got"),
        (lambda x: x.__setitem__(([2], 0), 1.0), IndexError, "index 2 is out of bounds for an axis of length 2"),
        (lambda x: x.__setitem__(xp.asarray([True] * 3), 1.0), IndexError, r"a mask of shape \(3,\) for axes of len"),
        (lambda x: x.__setitem__((..., [True] * 2), 1.0), IndexError, r"a mask of shape \(2,\) for axes of .* \(3,\)"),
        (lambda x: x.__setitem__((0, xp.asarray([[True]])), 1.0), IndexError, "3 indices for an array of shape"),
        (lambda x: xp.Array(), TypeError, "arrays are made by functions"),
        (lambda x: xp.linalg.inv(x), af.ShapeError, "inv: x must be square matrices"),
        (lambda x: xp.asarray([2, 3], dtype=xp.int8) + 300, OverflowError, "300"),
    ],
)
def test_errors_are_raised_in_the_line_that_is_wrong(wrong: Any, error: type[Exception], message: str) -> None:
    x = xp.ones((2, 3))
    with pytest.raises(error, match=message):
        wrong(x)


def test_empty_lists_are_indices() -> None:
    x = xp.ones((2, 3))
    assert [x[[]].shape, x[:, []].shape] == [(0, 3), (2, 0)]
    x[[], 0] = 5.0
    x[None, ..., np.asarray([True, False, True])] = 2.0
    assert x.to_numpy().tolist() == [[2.0, 1.0, 2.0]] * 2


class _Interrupted(af.ops.Operation):
    """A user's operation that is interrupted for as long as there are interrupts."""

    interrupts: ClassVar[list[BaseException]] = []

    def infer(self, x: af.TensorSpec) -> tuple[af.TensorSpec, ...]:
        return (x,)

    def compute(self, value: np.ndarray) -> np.ndarray:
        if self.interrupts:
            raise self.interrupts.pop()
        return value + 1


@pytest.mark.parametrize("size", [10, 100_000])
@pytest.mark.parametrize("form", ["primitive", "operation"])
@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_is_for_the_thread_that_waits(
    lazy: Session, size: int, form: str, interrupt: type[BaseException]
) -> None:
    x = xp.ones((size,))
    if form == "operation":
        y = apply(_Interrupted(), x + 1.0) - 1.0
    else:
        y = record(Primitive("interrupted", _Interrupted().compute), (x._node,), x.shape, x.dtype)
    _Interrupted.interrupts.append(interrupt())
    with pytest.raises(interrupt):
        y.wait()
    assert float(xp.sum(x)) == size
    assert float(xp.sum(y)) == 2 * size


def test_ctrl_c_ends_the_wait_for_what_the_service_computes_and_that_goes_on(lazy: Session) -> None:
    go = threading.Event()

    def block(value: np.ndarray) -> np.ndarray:
        signal.raise_signal(signal.SIGINT)
        assert go.wait(60)
        return value + 1.0

    x = xp.ones((100_000,))
    y = record(Primitive("block", block), (x._node,), x.shape, x.dtype) * 2.0
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        y.wait()
    assert not y._node.done
    assert signal.getsignal(signal.SIGINT) is handler
    go.set()
    assert float(y[0]) == 4.0
    assert lazy.profile["block"].calls == 1


def test_what_is_interrupted_while_it_is_written_over_what_it_reads_is_lost(lazy: Session) -> None:
    """Its input is, too, so to compute it again would give something else."""

    def interrupted(value: np.ndarray, out: np.ndarray) -> None:
        out[:5_000] = value[:5_000] + 1.0
        raise KeyboardInterrupt

    op = Primitive("interrupted", interrupted)
    op.into, op.over = True, 1
    x = xp.ones((10_000,))
    y = record(op, ((x * 2.0)._node,), x.shape, x.dtype)
    with pytest.raises(KeyboardInterrupt):
        y.wait()
    with pytest.raises(af.OpError, match=r"'interrupted' .* failed with KeyboardInterrupt"):
        y.wait()
    z = record(op, (x._node,), x.shape, x.dtype)  # whose input is held
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            z.wait()
    assert float(xp.sum(x)) == 10_000.0


class Interrupted(Exception):  # noqa: N818  it is no error
    """Raised by the handler of a signal."""


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("size", [10, 60_000])
def test_a_signal_at_any_moment(size: int, signum: int) -> None:
    """A handler that raises is called between any two instructions of the main thread, but for those of the engine."""

    def interrupt(signum: int, frame: Any) -> None:
        raise Interrupted

    with xp.session(run_ahead=False), handled(signum, interrupt):
        for moment in range(0, 600, 1 if signum == signal.SIGINT else 5):
            values = [xp.asarray(np.full(size, float(i))) for i in range(3)]
            y = xp.sqrt(values[0] + values[1]) * 2.0 + values[2]
            z = y + 1.0
            with interrupt_after(moment, signum), contextlib.suppress(Interrupted):
                z.wait()
            assert signal.getsignal(signum) is interrupt
            assert (float(y[0]), float(z[0])) == (4.0, 5.0)


def test_signals_that_come_together_while_the_engine_works_are_all_handled_afterwards() -> None:
    seen: list[int] = []

    def note(signum: int, frame: Any) -> None:
        seen.append(signum)
        raise Interrupted

    def signalled() -> weakref.ref[Interrupted]:
        local = Interrupted()
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        return weakref.ref(local)

    def raise_both(value: np.ndarray, out: np.ndarray) -> None:
        assert signalled()() is None  # what has come keeps nothing of where it came: records and their memory
        assert not seen
        out[...] = value

    both = Primitive("both", raise_both)
    both.into = True
    with xp.session(run_ahead=False), handled(signal.SIGINT, note), handled(signal.SIGTERM, note):
        x = xp.ones((2,))
        y = record(both, (x._node,), x.shape, x.dtype)
        with pytest.raises(Interrupted):
            y.wait()
        assert (sorted(seen), y.tolist()) == ([signal.SIGINT, signal.SIGTERM], [1.0, 1.0])
        assert signal.getsignal(signal.SIGINT) is signal.getsignal(signal.SIGTERM) is note


@contextlib.contextmanager
def handled(signum: int, handler: Any) -> Iterator[None]:
    """Have a function called with a signal."""
    before = signal.signal(signum, handler)
    try:
        yield
    finally:
        signal.signal(signum, before)


@contextlib.contextmanager
def interrupt_after(lines: int, signum: int) -> Iterator[None]:
    """Raise a signal after so many lines of the engine."""
    left = [lines]

    def trace(frame: Any, event: str, argument: Any) -> Any:
        name = frame.f_code.co_filename.replace("\\", "/")
        if "actorflow/array/" not in name and "runtime/interrupts.py" not in name:
            return None
        left[0] -= event == "line"
        if left[0] == 0:
            signal.raise_signal(signum)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


@pytest.mark.parametrize("budget", [None, 100_000_000])
def test_a_session_can_be_dropped_in_the_middle(budget: int | None) -> None:
    block, entered, leave = blocking()
    with xp.session(memory_budget=budget) as session:
        x = xp.ones((300, 300))
        y = record(block, (x._node,), x.shape, x.dtype) + 1.0
        assert entered.wait(60)
    gone = weakref.ref(session)
    del session, x, y
    leave.set()
    for thread in threading.enumerate():
        if thread.name.startswith("actorflow-array"):
            thread.join()
    gc.collect()
    assert gone() is None


def test_the_interpreter_ends_with_work_under_way() -> None:
    program = """
import threading
import actorflow.array as xp
from actorflow.array.record.primitives import Primitive
from actorflow.array.record.record import record

entered = threading.Event()

def endless(value):
    entered.set()
    while True:
        value = value + 1

def main():
    x = xp.ones((300, 300))
    y = record(Primitive("endless", endless), (x._node,), x.shape, x.dtype)
    return xp.linalg.inv(y) + 1

z = main()
assert entered.wait(60)
print("end")
"""
    done = run_program("-c", program)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "end", "")


# -- asyncio and threads ----------------------------------------------------------------------------------------


async def test_await_gives_the_value() -> None:
    x = xp.ones((500, 500))
    y = x + 1
    assert (await y).sum() == 500_000
    assert (await y).sum() == 500_000  # once it is there


async def test_await_gives_the_value_at_that_time(own_session: Session) -> None:
    go = threading.Event()

    def wait(value: np.ndarray) -> np.ndarray:
        assert go.wait(60)
        return value

    async def value() -> np.ndarray:
        return await x

    one = xp.asarray([1.0, 2.0])
    x = record(Primitive("wait", wait), (one._node,), one.shape, one.dtype)
    waiting = asyncio.create_task(value())
    await asyncio.sleep(0)
    x += 1.0
    go.set()
    assert (await waiting).tolist() == [1.0, 2.0]
    assert (await x).tolist() == [2.0, 3.0]


async def _value(x: xp.Array) -> np.ndarray:
    return await x


async def test_many_can_await_one_array_and_be_cancelled(own_session: Session) -> None:
    leave = threading.Event()
    x = xp.asarray([1.0])
    op = Primitive("block", lambda value: (leave.wait(60), value)[1])
    y = record(op, (x._node,), x.shape, x.dtype)
    tasks = [asyncio.ensure_future(_value(y)) for _ in range(3)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    leave.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert [each.tolist() for each in results[1:]] == [[1.0], [1.0]]


async def test_await_works_after_the_session_has_ended() -> None:
    with xp.session():
        y = xp.ones((300, 300)) + 1
    assert (await y).sum() == 180_000


async def test_what_is_awaited_goes_on_when_a_thread_that_forced_a_part_has_its_value() -> None:
    block, entered, leave = blocking()
    with xp.session(run_ahead=False) as session:
        x = xp.ones((100, 100))
        y = record(block, (x._node,), x.shape, x.dtype)
        z = xp.linalg.inv(y + xp.eye(100) * 3.0)
        forcing = threading.Thread(target=y.wait)
        forcing.start()
        assert entered.wait(60)
    # What is awaited waits for the thread, and the session is closed.
    waiting = asyncio.ensure_future(_value(z))
    await asyncio.sleep(0)
    assert session.service is None
    leave.set()
    assert (await waiting).shape == (100, 100)
    forcing.join()


def test_a_service_ends_although_a_thread_computes_as_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    monkeypatch.setattr(Service, "later", lambda self, delay_s, look: looks.put(look))
    block, entered, leave = blocking()
    with xp.session(run_ahead=False) as session:
        (xp.ones(2**20) + 1.0).wait()  # large: by the service
        x = xp.ones((100, 100))
        y = record(block, (x._node,), x.shape, x.dtype)
        forcing = threading.Thread(target=y.wait)
        forcing.start()
        assert entered.wait(60)
        service = session.service
        assert service is not None
        looks.get(timeout=60)()
        leave.set()
        forcing.join()
        assert session.service is service
        looks.get(timeout=60)()
        assert session.service is None
        service.join()


async def test_await_raises_what_failed() -> None:
    with pytest.raises(af.OpError, match="inv"):
        await xp.linalg.inv(xp.zeros((2, 2)))


def test_independent_operations_run_at_the_same_time(own_session: Session) -> None:
    both = threading.Barrier(2, timeout=60)

    def meet(value: np.ndarray) -> np.ndarray:
        both.wait()
        return value

    x = xp.ones(100_000)
    x.wait()
    op = Primitive("meet", meet, pure=False)
    parts = [record(op, (x._node,), x.shape, x.dtype) for _ in range(2)]
    xp.wait_for_all()
    assert [float(xp.sum(part)) for part in parts] == [100_000, 100_000]


# -- exchange ---------------------------------------------------------------------------------------------------


def test_exchange_with_other_libraries() -> None:
    x = xp.asarray([[1.0, 2.0]]) * 2
    assert np.asarray(x).tolist() == [[2.0, 4.0]]
    assert np.asarray(x, dtype=np.float32).dtype == np.float32
    assert np.array(x).flags.writeable
    assert np.from_dlpack(x).tolist() == [[2.0, 4.0]]
    assert xp.from_dlpack(np.ones(3)).shape == (3,)
    assert xp.from_dlpack(x) is x
    old = x.__dlpack__()  # who does not know of read-only memory gets a copy
    assert "dltensor" in repr(old)
    assert x.__dlpack_device__()[0] == 1
    assert x.to_device("cpu") is x
    assert x.device == x.to_device(x.device).device
    assert (np.float64(2) * x).to_numpy().tolist() == [[4.0, 8.0]]
    assert isinstance(np.ones((1, 2)) + x, xp.Array)


def test_who_writes_into_what_he_took_by_dlpack_writes_into_his_own() -> None:
    torch = pytest.importorskip("torch")
    x = xp.asarray([1.0, 2.0])
    for take in (torch.from_dlpack, torch.asarray, torch.as_tensor):
        take(x).add_(1.0)
        assert x.to_numpy().tolist() == [1.0, 2.0]


def test_arrays_of_the_other_byte_order_are_taken() -> None:
    x = xp.asarray(np.asarray([1.0, 2.0]).astype(np.dtype(np.float64).newbyteorder("S")))
    assert x.dtype.isnative
    assert float(xp.sum(x)) == 3.0


def test_python_asks_for_values() -> None:
    x = xp.asarray([3, 1])
    assert (int(x[0]), float(x[1]), complex(x[1]), bool(x[1] == 1)) == (3, 1.0, 1 + 0j, True)
    assert list(range(x[0])) == [0, 1, 2]
    assert [int(each) for each in x] == [3, 1]
    assert len(x) == 2
    assert 3 in x
    assert 4 not in x
    assert f"{x[0]:03d}" == "003"
    assert str(x) == "[3 1]"
    assert repr(x) == "Array([3, 1], dtype=int64)"
    assert x.__array_namespace__(api_version="2024.12") is xp
    with pytest.raises(ValueError, match="api_version"):
        x.__array_namespace__(api_version="1999.1")
    with pytest.raises(TypeError, match="unhashable"):
        hash(x)


async def test_an_await_ends_though_another_thread_has_just_computed_it(
    lazy: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = xp.asarray(np.ones(100_000)) * 2.0
    evaluator = x._node.evaluator
    go_on = evaluator._go_on

    def go_on_late() -> None:
        monkeypatch.undo()
        evaluator._changed.release()
        other = threading.Thread(target=x.wait)
        other.start()
        other.join()
        evaluator._changed.acquire()
        go_on()

    monkeypatch.setattr(evaluator, "_go_on", go_on_late)
    async with asyncio.timeout(60):
        assert (await x)[0] == 2.0


class Exported:
    """An array of another library, that speaks DLPack alone."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


class Described:
    """One that has `__array_interface__` alone."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.__array_interface__ = array.__array_interface__


class Converted:
    """One that has `__array__` alone."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.array


def read_only(array: np.ndarray) -> np.ndarray:
    view = array.view()
    view.setflags(write=False)
    return view


SIZES = (1, 50_000)
#: Ways in which memory comes from outside, given a vector of 1, and a lazy one that there is.
ENTRIES: dict[str, Callable[[np.ndarray, Any], Any]] = {
    "asarray": lambda a, x: xp.asarray(a),
    "asarray of a part": lambda a, x: xp.asarray(a[:]),
    "asarray, read-only": lambda a, x: xp.asarray(read_only(a)),
    "asarray of a class": lambda a, x: xp.asarray(a.view(np.recarray)),
    "asarray of a buffer": lambda a, x: xp.asarray(np.frombuffer(a)),
    "asarray by DLPack": lambda a, x: xp.asarray(Exported(a)),
    "asarray by description": lambda a, x: xp.asarray(Described(a)),
    "asarray by conversion": lambda a, x: xp.asarray(Converted(a)),
    "asarray on a device": lambda a, x: xp.asarray(a, device="sim:0"),
    "asarray of a list": lambda a, x: xp.asarray([a])[0],
    "from_numpy": lambda a, x: xp.from_numpy(a),
    "from_dlpack": lambda a, x: xp.from_dlpack(a),
    "from_dlpack of another": lambda a, x: xp.from_dlpack(Exported(a)),
    "from_dlpack, read-only": lambda a, x: xp.from_dlpack(read_only(a)),
    "from_dlpack on a device": lambda a, x: xp.from_dlpack(a, device="sim:0"),
    "full": lambda a, x: xp.full(a.shape, a[0]),
    "full_like": lambda a, x: xp.full_like(x, a[0]),
    "an operand": lambda a, x: x * a,
    "an operand on the left": lambda a, x: a * x,
    "one in place": lambda a, x: x.__imul__(a),
    "a choice": lambda a, x: xp.where(x > 0, a, x),
    "a factor": lambda a, x: (xp.reshape(x, (-1, 1)) * 1.0) @ a[:1] * 1.0,
    "assigned": lambda a, x: assigned(x, slice(None), a),
    "assigned where an index says": lambda a, x: assigned(x * 0, (a > 0).nonzero()[0], 1.0),
    "an index": lambda a, x: x[a.astype("int64") - 1],
    "an argument of an operation": lambda a, x: af.ops.multiply(x, a),
    "a scaled one": lambda a, x: af.value_and_grad(lambda v: xp.sum(v * a))(x)[1],
    "an argument of a cached one": lambda a, x: af.grad(lambda v, w: xp.sum(v * w), cache=True)(x, xp.asarray(a)),
}


def assigned(x: Any, key: Any, value: Any) -> Any:
    x[key] = value
    return x


@pytest.mark.together("size", SIZES)
@pytest.mark.together("entry", ENTRIES)
def test_what_was_recorded_is_computed_whatever_is_written_meanwhile(lazy: Session, entry: str, size: int) -> None:
    a = np.ones(size)
    x = xp.ones((size,))
    given = ENTRIES[entry](a, x)
    y = given * 2.0 + xp.sum(given)
    a.fill(77)
    np.testing.assert_array_equal(y.to_numpy(), np.full(size, 2.0 + size))
    np.testing.assert_array_equal(given.to_numpy(), np.ones(size))


def test_memory_is_shared_only_where_nothing_can_write_to_it() -> None:
    fixed = np.ones(3)
    fixed.setflags(write=False)
    for make in (xp.asarray, xp.from_dlpack):
        for each in (fixed, fixed[1:], np.frombuffer(bytes(16)), np.broadcast_to(fixed, (2, 3))):
            assert np.shares_memory(make(each, copy=False).to_numpy(), each)
        for each in (np.ones(3), read_only(np.ones(3)), np.frombuffer(bytearray(16)), Exported(np.ones(3))):
            with pytest.raises(af.GraphError, match="may be written to before what is recorded has been computed"):
                make(each, copy=False)
