"""Gradients of array code: each rule against central differences, and their gradients against those of gradients."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import actorflow as af
import actorflow.array as xp
from actorflow import ops
from actorflow.ops.rows import Elementwise
from tests.array.derivatives import CASES, CORNERS, complexes, numbers, regular

STEP = 1e-6


def weighted(results: Any) -> Any:
    """A number that depends on every element of every result, and on real and imaginary parts in another way."""
    results = results if isinstance(results, tuple | list) else [results]
    total = xp.asarray(0.0)
    for i, y in enumerate(results):
        if y.dtype.kind == "c":
            total = total + weighted([xp.real(y), 0.5 * xp.imag(y)])
        else:
            total = total + xp.sum(y * xp.asarray(np.random.default_rng(i).uniform(0.5, 1.5, y.shape)))
    return total


def loss_of(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arrays: weighted(function(*arrays))


def slopes(function: Callable[..., Any], arrays: list[np.ndarray], i: int) -> np.ndarray:
    """Central differences by the elements of one argument; by both parts of complex ones."""
    found = np.zeros_like(arrays[i])
    for index in np.ndindex(arrays[i].shape):
        for direction in (1.0, 1j) if found.dtype.kind == "c" else (1.0,):
            values = []
            for sign in (1, -1):
                moved = [np.array(array) for array in arrays]
                moved[i][index] += sign * STEP * direction
                values.append(float(function(*[xp.asarray(array) for array in moved])))
            found[index] += direction * (values[0] - values[1]) / (2 * STEP)
    return found


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_central_differences(name: str) -> None:
    function, _, arrays = CASES[name]
    loss = loss_of(function)
    found = af.grad(loss, argnums=range(len(arrays)))(*[xp.asarray(array) for array in arrays])
    for i, (grad, array) in enumerate(zip(found, arrays, strict=True)):
        assert (grad.shape, grad.dtype) == (array.shape, array.dtype)
        expected = slopes(loss, [*arrays], i)
        scale = max(1.0, float(np.max(np.abs(expected), initial=0.0)))
        np.testing.assert_allclose(grad.to_numpy(), expected, rtol=2e-5, atol=2e-7 * scale, err_msg=name)


#: By name: second derivatives of these are what gradients of gradients should be.
TWICE = (
    "sin",
    "tanh_complex",
    "divide_rows",
    "pow_same",
    "logaddexp_same",
    "hypot_same",
    "prod_axis",
    "prod_zeros",
    "var_1",
    "cumulative_prod_zeros",
    "take",
    "index_arrays",
    "assign_mask",
    "assign_again",
    "matmul_batch",
    "tensordot_crossed",
    "matrix_power_5",
    "linalg.inv",
    "linalg.det",
    "linalg.slogdet_complex",
    "cholesky",
    "eigh",
    "linalg.qr_tall",
    "svd",
    "svd_full",
    "linalg.pinv",
    "linalg.solve",
    "matrix_norm_nuc_False",
    "vector_norm_3",
    "rfft_ortho_5",
    "network",
)


@pytest.mark.parametrize("name", TWICE)
def test_gradients_of_gradients_are_central_differences(name: str) -> None:
    function, _, arrays = CASES[name]

    def loss(*values: Any) -> Any:
        results = function(*values)
        squares = [y * y for y in (results if isinstance(results, tuple | list) else [results])]
        return weighted(squares)

    inner = af.grad(loss, argnums=range(len(arrays)))

    def of_slopes(*values: Any) -> Any:
        return weighted(inner(*values))

    found = af.grad(of_slopes, argnums=range(len(arrays)))(*[xp.asarray(array) for array in arrays])
    for i, grad in enumerate(found):
        expected = slopes(of_slopes, [*arrays], i)
        scale = max(1.0, float(np.max(np.abs(expected), initial=0.0)))
        np.testing.assert_allclose(grad.to_numpy(), expected, rtol=1e-4, atol=1e-6 * scale)


def test_third_derivatives() -> None:
    third = af.grad(af.grad(af.grad(lambda x: xp.sin(x) * x**3.0)))
    x = 0.7
    expected = -(x**3) * np.cos(x) - 9 * x**2 * np.sin(x) + 18 * x * np.cos(x) + 6 * np.sin(x)
    assert float(third(x)) == pytest.approx(expected)


REAL = [name for name, case in CASES.items() if not any(array.dtype.kind == "c" for array in case.arrays)]


@pytest.mark.parametrize("name", REAL)
def test_traced_graphs_have_the_same_gradients(name: str) -> None:
    function, _, arrays = CASES[name]
    loss = loss_of(function)
    expected = af.grad(loss, argnums=range(len(arrays)))(*[xp.asarray(array) for array in arrays])
    graph = af.to_graph(lambda *values: loss(*values), *arrays)
    blobs = [graph[f"x{i}"] for i in range(len(arrays))]
    grads = af.gradient(graph["result/out"], blobs)
    found = graph.run_sync(dict(zip(blobs, arrays, strict=True)), fetch=grads)
    for grad, each in zip(grads, expected, strict=True):
        np.testing.assert_allclose(found[grad], each.to_numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["sin", "prod_zeros", "index_arrays", "assign_twice", "linalg.inv", "eigh", "network"])
def test_traced_graphs_have_gradients_of_gradients(name: str) -> None:
    function, _, arrays = CASES[name]
    loss = loss_of(lambda *values: [y * y for y in listed(function(*values))])
    expected = af.grad(lambda *values: weighted([af.grad(loss)(*values)]))(*[xp.asarray(array) for array in arrays])
    graph = af.to_graph(lambda *values: loss(*values), *arrays)
    slope = af.gradient(graph["result/out"], graph["x0"])
    weights = graph.variable("weights", slope.shape, "float64", np.random.default_rng(0).uniform(0.5, 1.5, slope.shape))
    found = af.gradient(af.ops.sum(af.ops.multiply(slope, weights)), graph["x0"])
    feeds = {f"x{i}": array for i, array in enumerate(arrays)}
    np.testing.assert_allclose(graph.run_sync(feeds, fetch=[found])[found], expected.to_numpy(), rtol=1e-8, atol=1e-12)


def listed(results: Any) -> list[Any]:
    return [*results] if isinstance(results, tuple | list) else [results]


def test_gradients_of_graphs_go_through_complex_blobs_where_rules_do() -> None:
    graph = af.Graph("complex")
    x = graph.blob("x", (3,), "complex128")
    loss = af.ops.sum(af.ops.multiply(x, x))
    with pytest.raises(af.DTypeError, match="only floating blobs have gradients"):
        af.gradient(loss, x)
    traced = af.to_graph(lambda x: xp.sum(xp.abs(xp.fft.fft(x) * (1.0 + 2.0j)) ** 2.0), numbers(4))
    found = af.gradient(traced["result/out"], traced["x"])
    np.testing.assert_allclose(traced.run_sync({"x": numbers(4)}, fetch=[found])[found], 2 * 5 * 4 * numbers(4))


# -- corners ----------------------------------------------------------------------------------------------------

EXPECTED_CORNERS = {
    "abs": [[0, 0, 0]],
    "sqrt": [[np.inf, np.inf]],
    "maximum_same": [[0.5, 1, 0.5], [0.5, 0, 0.5]],
    "clip": [[1, 1, 1, 0, 0]],
    "clip_low": [[1, 1, 1]],
    "max_None_False": [[[[0, 1 / 3], [1 / 3, 1 / 3]]]],
    "max_0_True": [[[[0.5, 1]], [[0.5, 0]]]],
    "vector_norm_2": [np.zeros((2, 2, 2))],
    "vector_norm_1": [np.zeros((2, 2, 2))],
    "matrix_norm_fro_False": [np.zeros((1, 2, 2))],
    "var_1": [np.zeros((2, 3))],
    "pow_same": [[0, 0, 1, 0], [0, 0, 0, np.log(2)]],
}


@pytest.mark.parametrize("name", EXPECTED_CORNERS)
def test_gradients_at_corners(name: str) -> None:
    function, _, arrays = CORNERS[name]
    positions = range(len(arrays))
    found = af.grad(lambda *values: total(function(*values)), positions)(*[xp.asarray(array) for array in arrays])
    for grad, expected in zip(found, EXPECTED_CORNERS[name], strict=True):
        np.testing.assert_allclose(grad.to_numpy(), expected)


def total(results: Any) -> Any:
    sums = [xp.sum(y) for y in listed(results)]
    return sum(sums[1:], sums[0])


def test_gradients_of_arrays_without_elements() -> None:
    empty = xp.zeros((0, 3))
    functions = [
        lambda x: xp.sum(x * x),
        lambda x: xp.prod(xp.prod(x, axis=0)),
        lambda x: xp.sum(x @ xp.ones((3, 2))),
        lambda x: xp.sum(x.mT @ x),
        lambda x: xp.sum(xp.concat([x, xp.ones((2, 3)) * xp.sum(x)])),
        lambda x: xp.sum(xp.sort(x, axis=0) + xp.cumulative_prod(x, axis=0) + xp.flip(x)),
        lambda x: xp.sum(x[:, [0, 0]]) + xp.sum(x[xp.asarray(np.zeros(0, int))]),
        lambda x: xp.linalg.vector_norm(x),
        lambda x: xp.sum(xp.where(x > 0.0, x, 0.0)) + xp.sum(xp.clip(x, 0.0, 1.0)),
        lambda x: xp.sum(xp.repeat(x, 2, axis=1)) + xp.sum(xp.tile(x, (2, 1))),
    ]
    for function in functions:
        grad = af.grad(function)(empty)
        assert grad.shape == (0, 3)
        assert grad.to_numpy().shape == (0, 3)


def test_gradients_by_arrays_of_any_layout() -> None:
    whole = numbers(6, 8).copy()
    whole.setflags(write=False)
    for part in (whole.T, whole[::2, ::-1], np.broadcast_to(whole[:1], (6, 8)), np.asfortranarray(whole)):
        part.setflags(write=False)
        x = xp.asarray(part, copy=False)
        grad = af.grad(lambda x: xp.sum(xp.square(x) @ xp.exp(x.mT)))(x)
        expected = af.grad(lambda x: xp.sum(xp.square(x) @ xp.exp(x.mT)))(xp.asarray(np.array(part, order="C")))
        np.testing.assert_allclose(grad.to_numpy(), expected.to_numpy())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gradients_have_the_dtypes_of_the_arguments(dtype: str) -> None:
    x, y = numbers(3, 4, dtype=dtype), numbers(4, seed=1)

    def loss(x: Any, y: Any) -> Any:
        return xp.sum(xp.astype(x, xp.float64) * y * x) + xp.sum(xp.mean(x, axis=0) * xp.asarray([1, 2, 3, 4]))

    dx, dy = af.grad(loss, argnums=(0, 1))(xp.asarray(x), xp.asarray(y))
    assert (dx.dtype, dy.dtype) == (dtype, np.float64)
    np.testing.assert_allclose(dx.to_numpy(), 2 * x * y + np.arange(1, 5) / 3, rtol=1e-5)
    np.testing.assert_allclose(dy.to_numpy(), (x.astype(float) ** 2).sum(axis=0), rtol=1e-5)


# -- what there is ----------------------------------------------------------------------------------------------


def test_every_operation_has_a_rule_or_no_use_for_one() -> None:
    from actorflow.array.record.primitives import PART, Primitive

    modules = [module for name, module in sys.modules.items() if name.startswith("actorflow.array")]
    values = [value for module in modules for value in vars(module).values()]
    without = {each.name for each in values if isinstance(each, Primitive) and each is not PART and not each.operation}
    assert without == {"arange", "eye", "full", "linspace", "randb", "randn", "to_device"}  # constants, and copies
    rows = [kind for kind in Elementwise.__subclasses__() if kind.result is None and "f" in kind.kinds]
    rows = [kind for kind in rows if kind.__module__.startswith("actorflow.ops.")]
    assert {kind.function_name for kind in rows if not kind.differentiable} == {"nextafter"}


def test_what_has_no_gradient_is_named_with_its_line() -> None:
    with pytest.raises(
        af.GraphError, match=r"NextAfter\(\) has no gradient; recorded at .*test_gradients\.py:\d+ in <lambda>"
    ):
        af.grad(lambda x: xp.sum(xp.nextafter(x, 2.0)))(xp.asarray([1.0]))
    with pytest.raises(af.GraphError, match=r"Accuracy.* has no gradient|does not depend"):
        af.grad(lambda x: xp.nn.accuracy(x, xp.asarray([0])) * 1.0)(xp.ones((1, 2)))
    with pytest.raises(af.GraphError, match="mode='complete' of tall matrices"):
        af.grad(lambda x: xp.sum(xp.linalg.qr(x, mode="complete").Q))(xp.asarray(numbers(4, 2)))
    with pytest.raises(af.GraphError, match="only for S, or for square"):
        af.grad(lambda x: xp.sum(xp.linalg.svd(x).U))(xp.asarray(numbers(4, 2)))
    mask = xp.asarray(np.eye(2, dtype=bool))
    with pytest.raises(af.GraphError, match="a mask beside other indices"):
        af.grad(lambda x: xp.sum(written(x, (mask, 0), x[:, 0, 0])))(xp.asarray(numbers(2, 2, 3)))


def written(x: Any, key: Any, value: Any) -> Any:
    x[key] = value
    return x


class DoubleOfTest(ops.Operation):
    def infer(self, *inputs: af.TensorSpec) -> tuple[af.TensorSpec, ...]:
        return inputs

    def compute(self, x: np.ndarray) -> np.ndarray:
        return 2.0 * x


class DoubleWithRule(DoubleOfTest):
    def gradient(self, op: Any, grads: Any, wanted: Any) -> Any:
        return [grads[0] * 2.0]


def test_own_operations_have_rules() -> None:
    with pytest.raises(af.GraphError, match="DoubleOfTest has no gradient"):
        af.grad(lambda x: xp.sum(ops.apply(DoubleOfTest(), x)))(xp.asarray([1.0]))
    assert af.grad(lambda x: xp.sum(ops.apply(DoubleWithRule(), x * x)))(xp.asarray([3.0])).to_numpy() == [12.0]


def test_complex_gradients_follow_the_convention() -> None:
    z = complexes(3)
    np.testing.assert_allclose(af.grad(lambda z: xp.sum(xp.real(z * xp.conj(z))))(xp.asarray(z)).to_numpy(), 2 * z)
    with pytest.raises(af.DTypeError, match="must return a real floating array"):
        af.grad(lambda z: xp.sum(z * z))(xp.asarray(z))


def test_determinants_of_singular_matrices_have_gradients_once() -> None:
    x = np.diag([1.0, 2.0, 0.0])
    found = af.grad(xp.linalg.det)(xp.asarray(x))
    np.testing.assert_allclose(found.to_numpy(), np.diag([0.0, 0.0, 2.0]), atol=1e-12)
    twice = af.grad(lambda x: xp.sum(af.grad(xp.linalg.det)(x)))
    with pytest.raises(af.OpError, match="Singular"):
        twice(xp.asarray(x)).wait()
    assert twice(xp.asarray(regular(3, 3))).shape == (3, 3)


# -- random programs --------------------------------------------------------------------------------------------

#: Steps of smooth programs on matrices of one shape; ``k`` picks among variants.
STEPS: list[Callable[[Any, Any, int], Any]] = [
    lambda x, y, k: x + y * (1.0 + k),
    lambda x, y, k: x * y,
    lambda x, y, k: x / (2.0 + xp.abs(y) ** 3.0),
    lambda x, y, k: xp.tanh(x) + xp.sin(y),
    lambda x, y, k: xp.where(xp.asarray([[True], [False], [k > 1]]), x, y),
    lambda x, y, k: xp.roll(x, k, axis=k % 2) * y,
    lambda x, y, k: xp.permute_dims(xp.flip(x, axis=k % 2), (1, 0)) @ y,
    lambda x, y, k: xp.concat([x[k % 3 :, :], y[: k % 3, :]], axis=0),
    lambda x, y, k: x[[k % 3, 0, 2], :] - xp.mean(y, axis=k % 2, keepdims=True),
    lambda x, y, k: xp.cumulative_sum(x, axis=k % 2) * xp.logaddexp(x, y),
    lambda x, y, k: written(x * 1.0, (slice(None), k % 3), xp.sum(y, axis=1)),
    lambda x, y, k: xp.broadcast_to(xp.sum(x * y, axis=k % 2, keepdims=True), (3, 3)) / 3.0,
    lambda x, y, k: xp.linalg.solve(xp.eye(3) * 9.0 + xp.tanh(x), y),
]

programs = st.lists(
    st.tuples(st.integers(0, len(STEPS) - 1), st.integers(0, 5), st.integers(0, 5), st.integers(0, 3)), max_size=6
)


@given(programs, st.integers(0, 2**32 - 1))
@settings(max_examples=12 * settings.default.max_examples // 150)
def test_random_programs_have_right_gradients_as_arrays_and_as_graphs(program: list[Any], seed: int) -> None:
    arrays = [numbers(3, 3, seed=seed), numbers(3, 3, seed=seed + 1)]

    def loss(*values: Any) -> Any:
        known = [*values]
        for step, i, j, k in program:
            known.append(xp.tanh(STEPS[step](known[i % len(known)], known[j % len(known)], k)))
        return weighted([xp.square(each + 0.1) for each in known])

    found = [each.to_numpy() for each in af.grad(loss, argnums=(0, 1))(*arrays)]
    for i, grad in enumerate(found):
        np.testing.assert_allclose(grad, slopes(loss, arrays, i), rtol=1e-4, atol=1e-5)
    graph = af.to_graph(lambda x, y: loss(x, y), *arrays)
    grads = af.gradient(graph["result/out"], [graph["x"], graph["y"]])
    result = graph.run_sync({"x": arrays[0], "y": arrays[1]}, fetch=grads)
    for grad, each in zip(grads, found, strict=True):
        np.testing.assert_allclose(result[grad], each, rtol=1e-9, atol=1e-12)
