"""What do lazy arrays cost, and what do they save, beside NumPy, numexpr, dask.array and JAX?"""

from __future__ import annotations

from collections.abc import Callable
from time import process_time, thread_time
from typing import Any

import numpy as np
import numpy.typing as npt

import actorflow as af
import actorflow.array as xp
from benchmarks.harness import Budget, Case, Harness, Relation, Table, per

__all__ = ["measure"]

_US, _MS = 1e-6, 1e-3
_MINE, _NUMPY, _NUMEXPR = "actorflow.array", "NumPy", "numexpr"
_DERIVED = "actorflow.array, gradients derived"
_TRACED = "traced to a graph"
_Array = npt.NDArray[np.float32]


async def measure(harness: Harness) -> list[Table]:
    """The cost of recording, a chain of ten operations, steps of training, many small operations."""
    with xp.session():
        return [
            await _recording(harness),
            await _chain(harness),
            await _perceptron(harness),
            await _regression(harness, harness.pick(6_000, 600)),
            await _regression(harness, harness.pick(200_000, 2_000)),
            await _small(harness),
        ]


async def _recording(harness: Harness) -> Table:
    count = harness.pick(5_000, 100)
    x, y = xp.asarray(np.ones((8, 8), np.float32)), xp.asarray(np.ones((8, 8), np.float32))
    cases: dict[str, Callable[[], Any]] = {
        "x + y": lambda: x + y,
        "x * 2.0": lambda: x * 2.0,
        "x @ y": lambda: x @ y,
        "sum(x, axis=0)": lambda: xp.sum(x, axis=0),
        "x[1:, :]": lambda: x[1:, :],
        "reshape(x, (-1,))": lambda: xp.reshape(x, (-1,)),
    }

    def cpu_time(operation: Callable[[], Any]) -> Case:
        def case() -> float:
            # Of this thread alone: on a busy machine the clock on the wall counts others' work.
            start = thread_time()
            for _ in range(count):
                operation()
            return (thread_time() - start) / count / _US

        return case

    budgets = [Budget(f"{name}: at most 5 us", name, Relation.AT_MOST, 5) for name in cases]
    return await harness.compare(
        "recording one operation", "us of CPU", {n: cpu_time(f) for n, f in cases.items()}, budgets=budgets
    )


def _ten(ns: Any, x: Any, y: Any) -> Any:
    """Ten elementwise operations."""
    t = ns.sqrt((x * y + x) * 0.5 * y + 3.0)
    return ns.maximum(t / (x * x + 2.0), y)


_TEN = "sqrt((x * y + x) * h * y + t) / (x * x + w)"


async def _chain(harness: Harness) -> Table:
    size = harness.pick(10_000_000, 10_000)
    rng = np.random.default_rng(0)
    a, b = rng.random(size, np.float32), rng.random(size, np.float32)
    x, y = xp.asarray(a), xp.asarray(b)
    cases: dict[str, Case] = {
        _NUMPY: per(1, _MS, lambda: _ten(np, a, b)),
        _MINE: per(1, _MS, lambda: _ten(xp, x, y).wait()),
        f"{_MINE}, and its sum": per(1, _MS, lambda: xp.sum(_ten(xp, x, y)).wait()),
    }
    budgets = [Budget("at least 2x faster than NumPy", _MINE, Relation.TIMES, 0.5, _NUMPY)]
    numexpr = harness.peer("numexpr")
    if numexpr is not None:
        names = {"x": a, "y": b, "h": np.float32(0.5), "t": np.float32(3), "w": np.float32(2)}

        def evaluate() -> None:
            numexpr.evaluate(f"where({_TEN} > y, {_TEN}, y)", names)

        cases[_NUMEXPR] = per(1, _MS, evaluate)
        budgets.append(Budget("at most 1.1x of numexpr's time", _MINE, Relation.TIMES, 1.1, _NUMEXPR))
    dask = harness.peer("dask.array")
    if dask is not None:
        u, v = dask.from_array(a, chunks=1_000_000), dask.from_array(b, chunks=1_000_000)
        cases["dask.array"] = per(1, _MS, lambda: _ten(dask, u, v).compute())
    jax = harness.peer("jax")
    if jax is not None:
        jnp = jax.numpy
        p, q = jnp.asarray(a), jnp.asarray(b)
        compiled = jax.jit(lambda p, q: _ten(jnp, p, q))
        cases["jax.jit"] = per(1, _MS, lambda: compiled(p, q).block_until_ready())
    title = f"ten elementwise operations on {size:,} float32"
    return await harness.compare(title, "ms", cases, reference=_NUMPY, budgets=budgets)


def _train(ns: Any, images: Any, targets: Any, weights: list[Any], steps: int, batch: int) -> None:
    """Steps of a perceptron of two layers, its gradients by hand."""
    count = images.shape[0] // batch
    w1, b1, w2, b2 = weights
    for step in range(steps):
        start = step % count * batch
        x, t = images[start : start + batch, :], targets[start : start + batch, :]
        h = ns.maximum(ns.matmul(x, w1) + b1, 0.0)
        scores = ns.matmul(h, w2) + b2
        exp = ns.exp(scores - ns.max(scores, axis=1, keepdims=True))
        dscores = (exp / ns.sum(exp, axis=1, keepdims=True) - t) / batch
        dh = ns.matmul(dscores, ns.matrix_transpose(w2)) * ns.astype(h > 0.0, ns.float32)
        w2 = w2 - 0.1 * ns.matmul(ns.matrix_transpose(h), dscores)
        b2 = b2 - 0.1 * ns.sum(dscores, axis=0)
        w1 = w1 - 0.1 * ns.matmul(ns.matrix_transpose(x), dh)
        b1 = b1 - 0.1 * ns.sum(dh, axis=0)
    for each in (w1, b1, w2, b2):
        np.asarray(each)


def _loss(weights: list[Any], images: Any, labels: Any) -> Any:
    w1, b1, w2, b2 = weights
    return xp.nn.softmax_loss(xp.nn.relu(images @ w1 + b1) @ w2 + b2, labels)


_loss_and_slopes = af.value_and_grad(_loss, cache=True)


def _train_derived(images: Any, labels: Any, weights: list[Any], steps: int, batch: int) -> None:
    """The same steps as a user writes them."""
    count = images.shape[0] // batch
    for step in range(steps):
        start = step % count * batch
        part = slice(start, start + batch)
        _, slopes = _loss_and_slopes(weights, images[part, :], labels[part])
        weights = [weight - 0.1 * slope for weight, slope in zip(weights, slopes, strict=True)]
    for each in weights:
        np.asarray(each)


def _traced(images: _Array, labels: npt.NDArray[Any], first: list[_Array], batch: int) -> Callable[[int], Any]:
    """The same steps as runs of a graph, whose variables are the weights."""
    weights = [xp.asarray(each) for each in first]
    part = slice(0, batch)
    graph = af.to_graph(lambda x, t: _loss(weights, x, t), images[part], labels[part])
    step = af.nn.SGD(0.1).minimize(graph["result/out"])
    count = len(images) // batch

    async def train(steps: int) -> None:
        for i in range(steps):
            start = i % count * batch
            part = slice(start, start + batch)
            await graph.run({"x": images[part], "t": labels[part]}, fetch=[step])

    return train


async def _perceptron(harness: Harness) -> Table:
    steps, batch = harness.pick(40, 2), 128
    rng = np.random.default_rng(0)
    images = rng.random((harness.pick(2_560, 256), 784), np.float32)
    labels = rng.integers(0, 10, len(images))
    targets = np.eye(10, dtype=np.float32)[labels]
    first = [rng.normal(0, 0.05, shape).astype(np.float32) for shape in ((784, 256), (256,), (256, 10), (10,))]
    mine = [xp.asarray(each) for each in first]
    x, t, y = xp.asarray(images), xp.asarray(targets), xp.asarray(labels)
    traced = _traced(images, labels, first, batch)
    budgets = [
        Budget("at most 1.1x of NumPy's time", _MINE, Relation.TIMES, 1.1, _NUMPY),
        Budget("derived: at most 0.95x of NumPy's time", _DERIVED, Relation.TIMES, 0.95, _NUMPY),
        Budget("traced: at most 0.95x of NumPy's time", _TRACED, Relation.TIMES, 0.95, _NUMPY),
    ]
    return await harness.compare(
        f"a training step of a perceptron (784, 256, 10), batch {batch}",
        "ms",
        {
            _NUMPY: per(steps, _MS, lambda: _train(np, images, targets, first, steps, batch)),
            _MINE: per(steps, _MS, lambda: _train(xp, x, t, mine, steps, batch)),
            _DERIVED: per(steps, _MS, lambda: _train_derived(x, y, mine, steps, batch)),
            _TRACED: per(steps, _MS, lambda: traced(steps)),
        },
        reference=_NUMPY,
        budgets=budgets,
    )


def _entropy(weights: tuple[Any, Any], x: Any, y: Any) -> Any:
    return xp.nn.binary_cross_entropy_with_logits(x @ weights[0] + weights[1], y)


_entropy_and_slopes = af.value_and_grad(_entropy, cache=True)


async def _regression(harness: Harness, rows: int) -> Table:
    """Logistic regression: gradients by hand beside derived ones; processor time, as BLAS's threads come and go."""
    columns, steps = 32, max(4, 300_000 // rows)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, columns)).astype(np.float32)
    y = (x @ rng.standard_normal(columns).astype(np.float32) > 0).astype(np.float32)
    mine, targets = xp.asarray(x), xp.asarray(y)
    rate, count = np.float32(0.1), np.float32(rows)

    def by_hand() -> None:
        w, b = np.zeros(columns, np.float32), np.zeros((), np.float32)
        for _ in range(steps):
            g = (1 / (1 + np.exp(-(x @ w + b))) - y) / count
            w, b = w - rate * (x.T @ g), b - rate * g.sum()

    def derived() -> None:
        w, b = xp.zeros(columns, dtype=xp.float32), xp.zeros((), dtype=xp.float32)
        for _ in range(steps):
            _, (dw, db) = _entropy_and_slopes((w, b), mine, targets)
            w, b = w - 0.1 * dw, b - 0.1 * db
        np.asarray(w), np.asarray(b)

    def cpu_time(work: Callable[[], None]) -> Case:
        def case() -> float:
            start = process_time()
            work()
            return (process_time() - start) / steps / _US

        return case

    return await harness.compare(
        f"a step of logistic regression, {rows:,} rows of {columns} float32",
        "us of CPU",
        {_NUMPY: cpu_time(by_hand), _DERIVED: cpu_time(derived)},
        reference=_NUMPY,
        budgets=[Budget("at most 1.3x of NumPy's processor time", _DERIVED, Relation.TIMES, 1.3, _NUMPY)],
    )


async def _small(harness: Harness) -> Table:
    count = harness.pick(2_000, 50)
    a = np.ones((8, 8), np.float32)
    x = xp.asarray(a)

    def work(ns: Any, x: Any) -> Callable[[], None]:
        def run() -> None:
            y = x
            for _ in range(count):
                y = ns.matmul(y, x) * 0.125
            np.asarray(y)

        return run

    cases = {_NUMPY: per(2 * count, _US, work(np, a)), _MINE: per(2 * count, _US, work(xp, x))}
    budgets = [Budget("at most 3x of NumPy's time", _MINE, Relation.TIMES, 3.0, _NUMPY)]
    title = "a chain of operations on 8 x 8 matrices"
    return await harness.compare(title, "us per op", cases, reference=_NUMPY, budgets=budgets)
