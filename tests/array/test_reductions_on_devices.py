"""Reductions that end chains of elementwise operations on devices: what is one op, and what comes out."""

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.extra import numpy as hnp

import actorflow as af
import actorflow.array as xp
from actorflow.array import Session
from actorflow.ops import Fused
from tests.array.test_placement import graphs
from tests.array.test_random_programs import PROGRAMS

VALUE = np.random.default_rng(0).standard_normal((6, 5, 4))
ASKED = ("any", "all", "count_nonzero")
DTYPES = ("float32", "float64", "int8", "int32", "int64", "uint8", "uint64", "bool")


def on_device(value: np.ndarray) -> xp.Array:
    return xp.asarray(value, device="sim:0").wait()


def fused(session: Session) -> list[Fused]:
    """The chains of all graphs that were made."""
    assert session.service is not None
    made: list[Any] = [*session.service.graphs.values()]
    plans = [compiled.graph.compile(compiled.fetched) for compiled in made]
    return [op.operation for plan in plans for op in plan.ops if isinstance(op.operation, Fused)]


# -- what is one op -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [None, 0, 2, (0, 1), (1, 2), 1, ()])
@pytest.mark.parametrize("name", ["sum", "prod", "max", "min"])
def test_a_chain_and_its_reduction_are_one_op(lazy: Session, name: str, axis: Any) -> None:
    x = on_device(VALUE)
    found = getattr(xp, name)(xp.exp(-x) * x + 0.5, axis=axis)
    expected = getattr(np, name)(np.exp(-VALUE) * VALUE + 0.5, axis=axis)
    np.testing.assert_allclose(found.to_numpy(), expected, rtol=1e-12)
    assert graphs(lazy)[1] == ["Fused"]
    (operation,) = fused(lazy)
    assert operation.steps[-1].operation.kind.lower() == f"reduce{name}"


def several(ns: Any, x: Any) -> list[Any]:
    y = x * x - 1.0
    return [y, ns.sum(y, axis=1), ns.max(y, axis=1, keepdims=True), ns.min(x + y, axis=1)]


def along_other_axes(ns: Any, x: Any) -> list[Any]:
    y = x * x - 1.0
    return [ns.sum(y, axis=0), ns.sum(y, axis=2), ns.max(y, axis=2), ns.min(y, axis=0), ns.sum(y, axis=(0, 2))]


def behind_a_reduction(ns: Any, x: Any) -> list[Any]:
    y = ns.exp(x) + 1.0
    return [(y - ns.mean(y, axis=2, keepdims=True)) * 2.0]


def long(ns: Any, x: Any) -> list[Any]:
    """Each part has its own axes."""
    y = early = x
    for i in range(40):
        y = ns.tanh(y)
        if i == 5:
            early = ns.sum(y, axis=0)
    return [early, ns.sum(y, axis=2)]


@pytest.mark.parametrize(
    ("program", "kinds"),
    [
        *[(lambda ns, x, name=name: [getattr(ns, name)(ns.round(x), axis=1)], ["Fused"]) for name in ASKED],
        *[(lambda ns, x, name=name: [getattr(ns, name)(x > abs(x) * 0.5, axis=1)], ["Fused"]) for name in ASKED],
        # Sums of booleans and truths of numbers stay on the device.
        (lambda ns, x: [ns.sum(x > 0)], ["Fused"]),
        (lambda ns, x: [ns.any(x)], ["Fused"]),
        (lambda ns, x: [ns.all(x, axis=0)], ["Fused"]),
        (lambda ns, x: [ns.prod(x > -9, axis=2)], ["Fused"]),
        (several, ["Fused"]),
        # Those behind the first one read what it wrote: reductions alone are not faster together.
        (along_other_axes, ["Fused", "ReduceMax", "ReduceSum", "ReduceSum"]),
        (behind_a_reduction, ["Divide", "Fused", "Fused"]),  # the sums, the quotients, the differences
        (lambda ns, x: [x / 3.0], ["Divide"]),  # a number needs no kernel
        (lambda ns, x: [x * x / 3.0], ["Fused"]),
        (lambda ns, x: [ns.sum(x, axis=1)], ["ReduceSum"]),  # of what is there
        (long, ["Fused", "Fused"]),
    ],
)
def test_programs_are_few_ops(lazy: Session, program: Any, kinds: list[str]) -> None:
    found = program(xp, on_device(VALUE))
    xp.wait_for_all()
    for mine, its in zip(found, program(np, VALUE), strict=True):
        np.testing.assert_allclose(mine.to_numpy(), its, rtol=1e-11, atol=1e-12)
    assert sorted(kind for each in graphs(lazy)[1:] for kind in each) == kinds


def test_long_chains_and_many_reductions_are_cut(lazy: Session) -> None:
    x = on_device(VALUE)
    y, chain, found, expected = x, VALUE, [], []
    for i in range(60):
        y, chain = y * 0.9 + x, chain * 0.9 + VALUE
        if i % 3 == 0:
            found.append(xp.sum(y, axis=i % 2))
            expected.append(chain.sum(i % 2))
    xp.wait_for_all()
    for mine, its in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine.to_numpy(), its, rtol=1e-11, atol=1e-11)
    assert {kind for kinds in graphs(lazy) for kind in kinds} <= {"Fused", "ReduceSum"}
    assert all(len(operation.steps) <= 3 * 32 for operation in fused(lazy))  # numbers are steps, too


# -- what comes out -----------------------------------------------------------------------------------------------


def test_sums_are_formed_in_the_dtype_that_is_asked_for(lazy: Session) -> None:
    value = np.full(30_000, 0.1, np.float32)
    value[0] = 2.0**24
    x = on_device(value)
    found = xp.sum(x * xp.asarray(1.0, dtype=xp.float32), dtype=xp.float64)
    assert found.dtype == xp.float64
    np.testing.assert_allclose(found.to_numpy(), value.sum(dtype=np.float64), rtol=1e-14)
    small = on_device(np.full(1000, 100, np.int8))
    total = xp.sum(small + xp.asarray(1, dtype=xp.int8))
    assert (total.dtype, int(total)) == (xp.int64, 101_000)
    assert graphs(lazy)[1] == ["Fused"]


@settings(PROGRAMS)
@given(st.data(), hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4), st.sampled_from(DTYPES))
def test_reductions_of_chains_are_numpys(data: Any, shape: tuple[int, ...], dtype: str) -> None:
    axes = st.none() | st.sets(st.integers(0, len(shape) - 1)).map(lambda found: tuple(sorted(found)))
    value = data.draw(hnp.arrays(dtype, shape, elements=st.integers(0, 1 if dtype == "bool" else 3)))
    names = ["sum", "prod", "any", "all", "count_nonzero", *([] if 0 in shape else ["max", "min"])]
    wanted = st.tuples(st.sampled_from(names), axes if shape else st.none(), st.booleans())
    several = data.draw(st.lists(wanted, min_size=1, max_size=4))

    def computed(ns: Any, x: Any) -> list[Any]:
        y = ns.logical_xor(x, ns.logical_not(x)) if dtype == "bool" else (x + x) * x
        found = []
        for name, axis, keepdims in several:
            if name in ("max", "min") and dtype == "bool":
                name = "any"
            found.append(getattr(ns, name)(y, axis=axis, keepdims=keepdims))
        return [y, *found]

    with xp.session(run_ahead=False):
        found = computed(xp, xp.asarray(value, device="sim:0"))
        if not data.draw(st.booleans()):
            del found[0]  # the chain's own value is not wanted
        xp.wait_for_all()
        for mine, its in zip(reversed(found), reversed(computed(np, value)), strict=False):
            np.testing.assert_array_equal(mine.to_numpy(), its)


STEPS = ("subtract", "maximum", "halve", "choose", "sum", "max", "min")


@st.composite
def networks(draw: st.DrawFn) -> list[tuple[str, int, int, tuple[int, ...]]]:
    """Operations on earlier values: (name, first, second, axes)."""
    position, axes = st.integers(0, 19), st.sampled_from([(0,), (1,), (2,), (0, 1), (1, 2), (0, 2), (0, 1, 2)])
    return draw(st.lists(st.tuples(st.sampled_from(STEPS), position, position, axes), min_size=1, max_size=20))


def values_of(ns: Any, x: Any, steps: list[tuple[str, int, int, tuple[int, ...]]]) -> list[Any]:
    values = [x]
    for name, i, j, axes in steps:
        a, b = values[i % len(values)], values[j % len(values)]
        if name in ("sum", "max", "min"):
            values.append(getattr(ns, name)(a, axis=axes, keepdims=True))
        elif name == "halve":
            values.append(a * 0.5)
        elif name == "choose":
            values.append(ns.where(a > b, a, b * 0.5))
        else:
            values.append(getattr(ns, name)(a, b))
    return values


@settings(PROGRAMS)
@given(networks(), st.sets(st.integers(0, 20), min_size=1, max_size=4))
def test_networks_of_chains_and_reductions_are_numpys(steps: Any, wanted: set[int]) -> None:
    """All numbers are small multiples of powers of 2, so that no order of additions rounds."""
    value = np.random.default_rng(0).integers(-4, 5, (3, 2, 4)).astype(np.float64)
    expected = values_of(np, value, steps)
    with xp.session(run_ahead=False):
        found = values_of(xp, xp.asarray(value, device="sim:0"), steps)
        kept = {i % len(found): found[i % len(found)] for i in wanted}
        del found
        xp.wait_for_all()
        for i, mine in kept.items():
            np.testing.assert_array_equal(mine.to_numpy(), expected[i])


def test_a_chain_that_is_only_reduced_takes_no_memory() -> None:
    with xp.session(devices={"sim:0": af.devices.SimOptions(memory_bytes=4 << 20)}):
        x, w = (xp.ones((n,), device="sim:0").wait() for n in (1 << 15, 64))
        product = xp.expand_dims(w, axis=1) * (x + 1.0)  # 16 MiB
        total, largest = xp.sum(product, axis=0), xp.max(product, axis=0)
        del product
        xp.wait_for_all()
        np.testing.assert_array_equal(total.to_numpy(), np.full(1 << 15, 128.0))
        np.testing.assert_array_equal(largest.to_numpy(), np.full(1 << 15, 2.0))
