"""Lazy arrays on a GPU."""

from __future__ import annotations

import threading
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import actorflow as af
import actorflow.array as xp


@pytest.fixture(autouse=True)
def own_session() -> Any:
    with xp.session(run_ahead=False) as session:
        yield session


def chain(ns: Any, x: Any, y: Any) -> Any:
    return ns.sqrt(ns.exp(-(x * x)) + y * y) * x / (ns.abs(y) + 1.0) - x


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shapes", [((7,), (7,)), ((300, 70), (70,)), ((1 << 20,), (1 << 20,)), ((0, 3), (3,))])
def test_a_chain_is_one_kernel_with_the_cpus_values(own_session: xp.Session, shapes: Any, dtype: str) -> None:
    x, y = (np.random.default_rng(0).standard_normal(shape).astype(dtype) for shape in shapes)
    a, b = (xp.asarray(value, device="cuda:0") for value in (x, y))
    z = chain(xp, a, b)
    assert z.device == af.Place.parse("cuda:0")
    np.testing.assert_allclose(z.to_numpy(), chain(np, x, y), rtol=16 * np.finfo(dtype).eps, atol=np.finfo(dtype).eps)
    (service,) = own_session._evaluator.devices._running
    kinds = {op.operation.kind for compiled in service._graphs.values() for op in compiled.graph.ops}
    assert kinds <= {"Reshape", "Fused"}


def test_a_chain_is_its_steps_to_the_bit() -> None:
    """Products and sums are not contracted across the steps of a kernel."""
    x = xp.asarray(np.random.default_rng(0).standard_normal(10_000).astype("f"), device="cuda:0")
    product = (x * x).wait()
    np.testing.assert_array_equal((x * x - x).to_numpy(), (product - x).to_numpy())


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

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
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
