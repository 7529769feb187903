"""Gradients of array code: each rule against central differences, and their gradients against those of gradients."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import numpy as np
import pytest

import actorflow as af
import actorflow.array as xp
from actorflow import ops
from actorflow.ops.rows import Elementwise
from tests.operations import Row, Sample, drawn
from tests.operations.functions.corners import CORNERS, Corner
from tests.operations.functions.draws import Draws
from tests.support.effort import FULL, slow
from tests.support.numbers import complexes, numbers, regular
from tests.support.worlds import STANDARD

#: Smooth samples of a function that are compared, and those whose graphs are.
LEAST, MOST, OF_GRAPHS = (100, 300, 20) if FULL else (2, 4, 1)


def listed(results: Any) -> list[Any]:
    return [*results] if isinstance(results, tuple | list) else [results]


def has_slopes(row: Row) -> bool:
    """Whether real or complex numbers go in and come out."""
    arrays = row.first.drawn()
    if not row.differentiable or not any(x.dtype.kind in "fc" for x in arrays):
        return False
    found = listed(row.of_standard(STANDARD, *arrays, **row.first.parameters))
    return any(np.asarray(y).dtype.kind in "fc" for y in found)


FUNCTIONS = [row for row in drawn("differences") if has_slopes(row)]
#: Those whose graphs are differentiated twice.
TWICE_IN_GRAPHS = {f"array.{name}" for name in ("sin", "prod", "x[[...], :, i]", "linalg.inv", "linalg.eigh")}
TWICE_IN_GRAPHS.add("array.x[part], x[:, 1:] = y")


@contextmanager
def noted(row: Row, sample: Sample) -> Iterator[None]:
    """Errors with the arrays and parameters."""
    try:
        yield
    except Exception as error:
        error.add_note(f"{row}: {sample.drawn()} {sample.parameters}")
        raise


def smooth(row: Row) -> Iterator[Sample]:
    """Samples with floating arrays."""
    for sample in row.drawn.smooth(LEAST, MOST):
        if any(x.dtype.kind in "fc" for x in sample.drawn()):
            yield sample


@cache
def weights(i: int, j: int, shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng([i, j]).uniform(0.5, 1.5, shape)


def loss_of(row: Row, sample: Sample, library: Any, given: Sequence[Any], *moved: Any) -> Any:
    """A number that depends on every element of the results, on real and imaginary parts in another way, and on inputs.

    Args:
        row: The function.
        sample: Its parameters.
        library: Computes it.
        given: All arrays.
        moved: What stands for the floating ones.
    """
    rest = iter(moved)
    arrays = [next(rest) if x.dtype.kind in "fc" else library.asarray(x) for x in given]
    total = library.sum(library.zeros(()))
    for i, y in enumerate([*listed(row.of_standard(library, *arrays, **sample.parameters)), *moved]):
        is_complex = library.isdtype(y.dtype, "complex floating")
        for j, part in enumerate((library.real(y), library.imag(y)) if is_complex else (y,)):
            if library.isdtype(part.dtype, "real floating"):
                weight = library.asarray(weights(i, j, tuple(part.shape)))
                total = total + library.sum((part + 0.5 * part * part) * weight)
    return total


def projected(library: Any, parts: Any, directions: Sequence[np.ndarray]) -> Any:
    """The derivative along directions: gradients by complex numbers are ``dL/da + i dL/db``."""
    terms = [
        library.sum(library.real(library.conj(g) * library.asarray(d))) for g, d in zip(parts, directions, strict=True)
    ]
    return sum(terms[1:], terms[0])


def directions_of(arrays: Sequence[np.ndarray], seed: int) -> list[np.ndarray]:
    draws = Draws(seed, is_smooth=True)
    return [draws.elements(x.dtype, x.shape, small=False) for x in arrays]


def check_gradients(row: Row, sample: Sample, order: int) -> bool:
    """Compare gradients, and gradients of these along a direction, with differences; returns whether there were."""
    given = sample.drawn()
    floating = [x for x in given if x.dtype.kind in "fc"]
    ahead, aside = directions_of(floating, 1), directions_of(floating, 2)
    every = tuple(range(len(floating)))

    def phi(s: float, t: float) -> float:
        moved = [x + s * d + t * e for x, d, e in zip(floating, ahead, aside, strict=True)]
        with np.errstate(all="ignore"):
            return float(loss_of(row, sample, STANDARD, given, *moved))

    slopes = af.grad(partial(loss_of, row, sample, xp, given), every)
    found = [g.to_numpy() for g in slopes(*map(xp.asarray, floating))]
    for g, x in zip(found, floating, strict=True):
        assert (g.shape, g.dtype) == (x.shape, x.dtype)
    scale = max(1.0, abs(phi(0, 0)))
    compared = compare(projected(np, found, ahead), partial(slope_of, phi), 1e-4, rtol=1e-7, atol=1e-8 * scale)
    if order > 1:
        twice = af.grad(lambda *moved: projected(xp, slopes(*moved), ahead), every)(*map(xp.asarray, floating))
        along = projected(np, [g.to_numpy() for g in twice], aside)
        compared &= compare(along, partial(bend_of, phi), 1e-3, rtol=1e-5, atol=1e-6 * scale)
    return compared


def slope_of(phi: Callable[[float, float], float], h: float) -> float:
    """The derivative by the first variable at 0."""
    return (phi(-2 * h, 0) - 8 * phi(-h, 0) + 8 * phi(h, 0) - phi(2 * h, 0)) / (12 * h)


def bend_of(phi: Callable[[float, float], float], h: float) -> float:
    """The derivative by both variables at 0."""
    near, far = ((phi(s, s) - phi(s, -s) - phi(-s, s) + phi(-s, -s)) / (4 * s * s) for s in (h, 2 * h))
    return (4 * near - far) / 3


def compare(found: float, differences: Callable[[float], float], step: float, **tolerance: float) -> bool:
    """Compare with differences, unless those of half the step are others, as near a corner; returns whether so."""
    expected = differences(step)
    if np.allclose(found, expected, **tolerance):
        return True
    if np.allclose(differences(step / 2), expected, **tolerance):
        np.testing.assert_allclose(found, expected, **tolerance)
    return False


@pytest.mark.together("row", FUNCTIONS, ids=str, at_once=12)
def test_gradients_are_those_of_differences(row: Row) -> None:
    seen, compared = set(), []
    for sample in smooth(row):
        kinds = str([x.dtype.kind for x in sample.drawn()])
        with noted(row, sample):  # twice for real and for complex numbers
            compared.append(check_gradients(row, sample, order=row.orders if FULL or kinds not in seen else 1))
        seen.add(kinds)
    assert sum(compared) > len(compared) / 2


@pytest.mark.together("row", slow(FUNCTIONS, but=FUNCTIONS[::2]), ids=str, at_once=18)
def test_traced_graphs_have_the_same_gradients(row: Row) -> None:
    real = [each for each in smooth(row) if all(x.dtype.kind != "c" for x in each.drawn())]
    for sample in real[:OF_GRAPHS]:
        with noted(row, sample):
            check_graph(row, sample, is_twice=FULL or row.name in TWICE_IN_GRAPHS)


def check_graph(row: Row, sample: Sample, is_twice: bool) -> None:
    """Compare gradients of a traced graph, and gradients of these along a direction, with those of arrays."""
    given = sample.drawn()
    floating = [x for x in given if x.dtype.kind == "f"]
    loss = partial(loss_of, row, sample, xp, given)
    every, directions = tuple(range(len(floating))), directions_of(floating, 1)
    slopes = af.grad(loss, every)
    graph = af.to_graph(lambda *moved: loss(*moved), *floating)
    blobs = [graph[f"x{i}"] for i in every]
    wanted, expected = af.gradient(graph["result/out"], blobs), [*slopes(*map(xp.asarray, floating))]
    if is_twice:
        terms = [ops.sum(g * graph.constant(d)) for g, d in zip(wanted, directions, strict=True)]
        wanted = [*wanted, *af.gradient(sum(terms[1:], terms[0]), blobs)]
        twice = af.grad(lambda *moved: projected(xp, slopes(*moved), directions), every)
        expected += twice(*map(xp.asarray, floating))
    found = graph.run_sync(dict(zip(blobs, floating, strict=True)), fetch=wanted)
    for mine, its in zip(wanted, expected, strict=True):
        np.testing.assert_allclose(found[mine], its.to_numpy(), rtol=1e-9, atol=1e-12)


def test_third_derivatives() -> None:
    third = af.grad(af.grad(af.grad(lambda x: xp.sin(x) * x**3.0)))
    x = 0.7
    expected = -(x**3) * np.cos(x) - 9 * x**2 * np.sin(x) + 18 * x * np.cos(x) + 6 * np.sin(x)
    assert float(third(x)) == pytest.approx(expected)


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


@pytest.mark.together("corner", [each for each in CORNERS if each.slopes], ids=str)
def test_gradients_at_corners(corner: Corner) -> None:
    found = af.grad(partial(total, corner, xp), range(len(corner.arrays)))(*map(xp.asarray, corner.arrays))
    assert corner.slopes is not None
    for grad, expected in zip(found, corner.slopes, strict=True):
        np.testing.assert_allclose(grad.to_numpy(), expected, atol=1e-15)


def total(corner: Corner, library: Any, *arrays: Any) -> Any:
    sums = [library.sum(library.real(y)) for y in listed(corner.form(library, *arrays))]
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
