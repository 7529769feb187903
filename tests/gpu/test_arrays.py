"""Lazy arrays on a GPU."""

from __future__ import annotations

from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import actorflow as af
import actorflow.array as xp
from tests.support.waiting import in_threads


@pytest.fixture(autouse=True)
def own_session() -> Any:
    with xp.session(run_ahead=False) as session:
        yield session


def chain(ns: Any, x: Any, y: Any) -> Any:
    return ns.sqrt(ns.exp(-(x * x)) + y * y) * x / (ns.abs(y) + 1.0) - x


def kinds(session: xp.Session) -> set[str]:
    """Kinds of the ops of all plans that were made, but for those that give views or copy to another place."""
    assert session.service is not None
    made: list[Any] = [*session.service.graphs.values()]
    plans = [compiled.graph.compile(compiled.fetched) for compiled in made]
    return {op.operation.kind for plan in plans for op in plan.ops} - {"Reshape", "Stage", "Transfer"}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shapes", [((7,), (7,)), ((300, 70), (70,)), ((1 << 20,), (1 << 20,)), ((0, 3), (3,))])
def test_a_chain_is_one_kernel_with_the_cpus_values(own_session: xp.Session, shapes: Any, dtype: str) -> None:
    x, y = (np.random.default_rng(0).standard_normal(shape).astype(dtype) for shape in shapes)
    a, b = (xp.asarray(value, device="cuda:0") for value in (x, y))
    z = chain(xp, a, b)
    assert z.device == af.Place.parse("cuda:0")
    np.testing.assert_allclose(z.to_numpy(), chain(np, x, y), rtol=16 * np.finfo(dtype).eps, atol=np.finfo(dtype).eps)
    # What is computed of the smaller one alone is computed once, not for each row.
    assert kinds(own_session) == ({"Fused"} if shapes[0] == shapes[1] else {"Fused", "Multiply"})


def test_a_chain_is_its_steps_to_the_bit() -> None:
    """Products and sums are not contracted across the steps of a kernel."""
    x = xp.asarray(np.random.default_rng(0).standard_normal(10_000).astype("f"), device="cuda:0")
    product = (x * x).wait()
    np.testing.assert_array_equal((x * x - x).to_numpy(), (product - x).to_numpy())


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
@pytest.mark.parametrize("axis", [None, 0, 1, 2, (0, 1), (1, 2), ()])
@pytest.mark.parametrize("shape", [(1 << 20, 3, 1), (3, 5, 1 << 18), (5, 700, 300), (1, 1, 1), (0, 3, 2), (3, 0, 2)])
def test_a_chain_with_its_reductions_is_one_op_with_the_cpus_values(
    own_session: xp.Session, shape: tuple[int, ...], axis: Any, dtype: str
) -> None:
    """Whole numbers, of which no order of additions rounds."""
    random = np.random.default_rng(0)
    x, y = (random.integers(-3, 4, each).astype(dtype) for each in (shape, shape[-1:]))
    a, b = (xp.asarray(value, device="cuda:0").wait() for value in (x, y))

    def reduced(ns: Any, x: Any, y: Any) -> list[Any]:
        z = x * y + x
        found = [ns.sum(z, axis=axis), ns.count_nonzero(z, axis=axis), ns.any(z > 11, axis=axis), z]
        if 0 not in shape:
            found += [ns.max(z, axis=axis, keepdims=True), ns.min(z, axis=axis)]
        return found

    for _ in range(2):  # always in the same order
        found = reduced(xp, a, b)
        xp.wait_for_all()
        for mine, its in zip(found, reduced(np, x, y), strict=True):
            np.testing.assert_array_equal(mine.to_numpy(), its)
    assert kinds(own_session) == {"Fused"}


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_reductions_of_random_numbers_are_the_cpus_and_always_the_same(axis: int | None) -> None:
    value = np.random.default_rng(0).standard_normal((3000, 700)).astype("f")
    x = xp.asarray(value, device="cuda:0")
    found = [xp.mean(xp.tanh(x) * x, axis=axis).to_numpy() for _ in range(3)]
    np.testing.assert_allclose(found[0], (np.tanh(value) * value).mean(axis, dtype="d"), rtol=1e-5)
    for again in found[1:]:
        np.testing.assert_array_equal(again, found[0])


def test_a_chain_of_more_elements_than_32_bits_count_is_reduced() -> None:
    x = xp.asarray(np.arange(1 << 16, dtype="f"), device="cuda:0")
    total = xp.sum(xp.expand_dims(x, axis=1) * 0.0 + xp.ones((1, 1 << 16), dtype=xp.float32, device="cuda:0"), axis=1)
    np.testing.assert_array_equal(total.to_numpy(), np.full(1 << 16, 65536, "f"))


def test_values_stay_on_the_device(cupy: ModuleType) -> None:
    x = xp.asarray(np.arange(6.0), device="cuda:0").wait()
    assert isinstance(x._node.value, cupy.ndarray)
    shared = cupy.from_dlpack(x)
    shared += 1  # a copy of its own
    assert x.to_numpy().tolist() == list(range(6))


@pytest.mark.parametrize("capture", [False, True])
def test_a_training_is_that_of_the_cpu(capture: bool) -> None:
    random = np.random.default_rng(0)
    data, labels, first = random.standard_normal((32, 20)), random.integers(0, 5, 32), random.standard_normal((20, 5))

    def loss(w: xp.Array, x: xp.Array, labels: xp.Array) -> xp.Array:
        return xp.nn.softmax_loss(xp.nn.relu(x @ w), labels)

    step = af.value_and_grad(loss)

    def trained(place: str) -> list[float]:
        with xp.session(capture=capture), xp.at(place):
            w, x, y = (xp.asarray(value) for value in (first, data, labels))
            losses = []
            for _ in range(12):
                value, slope = step(w, x, y)
                w = w - 0.1 * slope
                losses.append(float(value))
            return losses

    np.testing.assert_allclose(trained("cuda:0"), trained("cpu"), rtol=1e-9)


def test_what_has_no_kernel_is_computed_on_the_cpu_in_between() -> None:
    value = np.random.default_rng(0).standard_normal((5, 5))
    x = xp.asarray(value, device="cuda:0")
    found = xp.linalg.inv(xp.sort(x, axis=0)) * 2.0
    np.testing.assert_allclose(found.to_numpy(), np.linalg.inv(np.sort(value, axis=0)) * 2, rtol=1e-9)


def test_threads_share_the_device() -> None:
    x = xp.asarray(np.ones(1 << 16), device="cuda:0")
    found: dict[int, float] = {}

    def work(number: int) -> None:
        y = x
        for _ in range(20):
            y = y * 1.5 + number
            y.wait()
        found[number] = float(y[0])

    in_threads(*(partial(work, number) for number in range(4)))
    expected = {}
    for number in range(4):
        value = 1.0
        for _ in range(20):
            value = value * 1.5 + number
        expected[number] = value
    assert found == expected


def test_a_budget_holds() -> None:
    with xp.session(memory_budget=8 << 20):
        held = []
        with pytest.raises(af.OutOfMemoryError, match="on cuda:0"):
            for _ in range(10):
                held.append((xp.zeros((512, 256), device="cuda:0") + 1.0).wait())
        assert 3 <= len(held) < 8
