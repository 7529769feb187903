"""Operations of `actorflow.ops` on arrays, array code as graphs, and its gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import actorflow as af
import actorflow.array as xp


def numbers(*shape: int, seed: int = 0, dtype: str = "float64") -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


async def test_lifted_operations_compute_what_ops_compute() -> None:
    a, labels = numbers(6, 5, dtype="float32"), np.array([0, 1, 2, 3, 4, 0])
    graph = af.Graph("ops")
    x, y = graph.blob("x", a.shape), graph.blob("y", labels.shape, "int64")
    blobs = {
        "softmax": af.ops.softmax(x, axis=0),
        "relu": af.ops.relu(x),
        "softmax_loss": af.ops.softmax_loss(x, y),
        "accuracy": af.ops.accuracy(x, y),
    }
    async with graph:
        expected = await graph.run({x: a, y: labels}, fetch=list(blobs.values()))
    u, v = xp.asarray(a), xp.asarray(labels)
    found = {
        "softmax": xp.nn.softmax(u, axis=0),
        "relu": xp.nn.relu(u),
        "softmax_loss": xp.nn.softmax_loss(u, v),
        "accuracy": xp.nn.accuracy(u, v),
    }
    for name, array in found.items():
        assert (array.shape, array.dtype) == blobs[name].spec
        np.testing.assert_array_equal(array.to_numpy(), expected[blobs[name]])


def test_lifted_operations_of_several_results_and_of_random_numbers() -> None:
    x = xp.asarray(numbers(4, 6))
    parts = xp.nn.lift(af.ops.split)(x, parts=3, axis=1)
    assert [part.shape for part in parts] == [(4, 2)] * 3
    np.testing.assert_array_equal(parts[2].to_numpy(), x.to_numpy()[:, 4:])
    ones = xp.ones((1_000,))
    one, other = xp.nn.dropout(ones, rate=0.5), xp.nn.dropout(ones, rate=0.5)
    assert set(np.unique(one.to_numpy()).tolist()) == {0.0, 2.0}
    assert bool(xp.any(one != other))


def test_lifted_operations_name_what_is_wrong() -> None:
    with pytest.raises(af.ShapeError, match="Inner"):
        xp.nn.inner(xp.ones((2, 3)), xp.ones((4, 5)))
    with pytest.raises(af.DTypeError, match="relu: argument 0 must be an array"):
        xp.nn.relu(3.0)
    with pytest.raises(af.OpError, match="op 'nllloss'"):
        xp.nn.nll_loss(xp.ones((1, 2)), xp.asarray([7])).wait()


def polynomial(x: Any, w: Any) -> Any:
    return xp.sum(xp.square(x @ w) / 2.0 - x[:, :2])


async def test_trace_gives_a_graph_that_computes_the_same() -> None:
    a, b = numbers(3, 4), numbers(4, 2, seed=1)
    graph = af.trace(polynomial, xp.asarray(a), af.TensorSpec.of((4, 2), "float64"))
    assert [blob.name for blob in graph.sources if not isinstance(blob, af.Variable)][:2] == ["x", "w"]
    async with graph:
        result = await graph.run({"x": a, "w": b})
        [loss] = [blob for blob in graph.nodes if blob.name == "result/out"]
        grad = af.gradient(loss, graph["w"])
        derived = await graph.run({"x": a, "w": b}, fetch=[grad])
    expected = np.sum((a @ b) ** 2 / 2 - a[:, :2])
    np.testing.assert_allclose(result["result/out"], expected)
    np.testing.assert_allclose(derived[grad], a.T @ (a @ b))


async def test_a_traced_graph_computes_where_it_is_placed() -> None:
    a, b = numbers(3, 4), numbers(4, 2, seed=1)
    shift = xp.asarray(1.0)
    graph = af.trace(lambda x, w: polynomial(x, w) + shift, xp.asarray(a), xp.asarray(b), place="sim:0")
    places = {str(op.place) for op in graph.compile().ops if op.operation.kind in ("Matmul", "ReduceSum", "Sum")}
    assert places == {"sim:0"}
    async with graph:
        result = await graph.run({"x": a, "w": b})
    np.testing.assert_allclose(result["result/out"], np.sum((a @ b) ** 2 / 2 - a[:, :2]) + 1)


async def test_what_has_no_op_becomes_a_function_and_what_was_there_a_variable() -> None:
    a = numbers(3, 3) + 5 * np.eye(3)
    table = xp.asarray(a) + 1

    def function(x: Any) -> Any:
        return xp.linalg.inv(x + table), xp.sort(x, axis=0, descending=True) * xp.eye(3)

    graph = af.trace(function, af.TensorSpec.of((3, 3), "float64"))
    async with graph:
        result = await graph.run({"x": a})
    np.testing.assert_allclose(result["result0/out"], np.linalg.inv(2 * a + 1))
    np.testing.assert_allclose(result["result1/out"], np.sort(a, axis=0)[::-1] * np.eye(3))


def test_a_traced_function_has_no_values() -> None:
    with pytest.raises(af.GraphError, match="dry run"):
        af.trace(lambda x: x if x > 0 else -x, af.TensorSpec.of(()))
    with pytest.raises(af.DTypeError, match="what the function returns must be an array"):
        af.trace(lambda x: [3.0], af.TensorSpec.of(()))
    assert xp.asarray([1.0]).to_numpy().tolist() == [1.0]


FUNCTIONS = {
    "polynomial": lambda x: xp.sum(x * x * x - 2.0 * x + x / 3.0),
    "exponential": lambda x: xp.mean(xp.exp(-xp.abs(x)) * xp.tanh(x)),
    "logarithm": lambda x: xp.sum(xp.log(1.0 + xp.square(x)) ** 1.5),
    "choice": lambda x: xp.sum(xp.where(x > 0.1, x, x * 0.1) * xp.maximum(x, 0.2)),
    "axes": lambda x: xp.sum(xp.max(x, axis=1) * xp.sum(x, axis=1)) + xp.sum(xp.mean(x, axis=0) ** 2.0),
    "shapes": lambda x: xp.sum(xp.reshape(x, (-1,))[1:] * xp.reshape(xp.permute_dims(x, (1, 0)), (-1,))[:-1]),
    "matrices": lambda x: xp.sum(xp.matmul(x, xp.matrix_transpose(x)) ** 2.0),
    "joined": lambda x: xp.sum(xp.concat([x, x * 2.0], axis=0) ** 2.0 * 0.5),
    "parts": lambda x: xp.sum(xp.flip(x, axis=0) * xp.broadcast_to(x[0, :], x.shape)),
    "network": lambda x: xp.nn.softmax_loss(xp.nn.gelu(x), xp.asarray([0, 1, 2])),
    "variance": lambda x: xp.var(x) + xp.std(x),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_are_those_of_finite_differences(name: str) -> None:
    function, a = FUNCTIONS[name], numbers(3, 4)
    value, grad = af.value_and_grad(function)(xp.asarray(a))
    assert float(value) == pytest.approx(float(function(xp.asarray(a))))
    found = grad.to_numpy()
    step = 1e-6
    for index in np.ndindex(a.shape):
        up, down = a.copy(), a.copy()
        up[index] += step
        down[index] -= step
        slope = (float(function(xp.asarray(up))) - float(function(xp.asarray(down)))) / (2 * step)
        assert found[index] == pytest.approx(slope, rel=1e-5, abs=1e-7), (name, index)


def test_gradients_of_several_arguments_and_of_other_shapes() -> None:
    w = xp.asarray(numbers(4, 2))
    both = af.grad(lambda x, b: xp.sum(xp.square(x @ w + b)), argnums=(0, 1))
    for rows in (3, 5, 3):
        x, b = xp.asarray(numbers(rows, 4)), xp.asarray(numbers(2, seed=2))
        dx, db = both(x, b)
        error = 2 * (x.to_numpy() @ w.to_numpy() + b.to_numpy())
        np.testing.assert_allclose(dx.to_numpy(), error @ w.to_numpy().T)
        np.testing.assert_allclose(db.to_numpy(), error.sum(axis=0))


def test_captured_arrays_may_change_between_calls() -> None:
    w = xp.asarray([2.0])
    slope = af.grad(lambda x: xp.sum(x * w))
    assert slope(xp.asarray([3.0])).to_numpy().tolist() == [2.0]
    w[0] = 5.0
    assert slope(xp.asarray([3.0])).to_numpy().tolist() == [5.0]


def test_what_has_no_gradient_is_named() -> None:
    with pytest.raises(af.GraphError, match="sort"):
        af.grad(lambda x: xp.sum(xp.sort(x)))(xp.asarray([2.0, 1.0]))
    with pytest.raises(af.ShapeError, match="0-d"):
        af.grad(lambda x: x * 2.0)(xp.asarray([2.0, 1.0]))
    with pytest.raises(af.GraphError, match="no argument 1"):
        af.grad(xp.sum, argnums=1)(xp.asarray([1.0]))
