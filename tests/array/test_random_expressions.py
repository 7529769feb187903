"""Random expressions of blobs, of lazy arrays, and of NumPy's arrays: values, gradients, and gradients of gradients.

An expression is a list of steps, and a step is written once: ``f`` is the namespace of functions, and operators and
methods are those of the operands. So `af.ops` on blobs, `af.array` and `af.ops` on lazy arrays, and NumPy run one text.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

import actorflow as af
import actorflow.array as xp
from actorflow.ops.rows import Elementwise
from tests.operations import ROWS, Sample
from tests.operations.table import normal
from tests.support.effort import FULL, slow
from tests.support.worlds import World

EXPRESSIONS, BLOCK = (3_000, 50) if FULL else (60, 10)
MOST_ELEMENTS, LARGEST = 60, 4.0
SHAPES = ((), (3,), (4,), (3, 4), (2, 3), (3, 1), (2, 3, 4), (2, 1, 4), (1,))

Form = Callable[..., Any]


def _by_rows() -> SimpleNamespace:
    """The references of elementwise rows and of softmax, with their usual parameters."""
    named = {}
    for row in ROWS.values():
        if row.kind is not None and row.numpy and (issubclass(row.kind, Elementwise) or row.kind is af.ops.Softmax):
            with suppress(TypeError):  # it has no usual parameters
                usual = Sample(row.kind(), normal()).parameters
                named[row.kind.function_name] = partial(row.numpy, **usual)
    return SimpleNamespace(**named)


class Formulas:
    """What neither rows nor NumPy have."""

    erfc, rsqrt = np.vectorize(math.erfc, "d"), staticmethod(lambda x: x**-0.5)
    top_k = staticmethod(lambda x, k, axis: (np.flip(np.sort(x, axis=axis), axis=axis).take(range(k), axis=axis),))
    hard_sigmoid = staticmethod(lambda x: np.clip(x / 6 + 0.5, 0.0, 1.0))
    hard_swish = staticmethod(lambda x: x * Formulas.hard_sigmoid(x))
    log_softmax = staticmethod(lambda x: x - np.log(np.exp(x).sum(axis=-1, keepdims=True)))


class Standard:
    """Names of functions of the array API standard that are others elsewhere."""

    cumsum, cumprod = staticmethod(xp.cumulative_sum), staticmethod(xp.cumulative_prod)


NUMPY, ARRAYS = World(np.asarray, Formulas, np, _by_rows()), World(xp.asarray, Standard, xp, af.ops)
ON_ARRAYS = World(xp.asarray, af.ops)


# -- the operations -------------------------------------------------------------------------------------------------


def as_is(f: Any, x: Any) -> Any:
    return x


def positive(f: Any, x: Any) -> Any:
    return x * x + 0.5


def within(f: Any, x: Any) -> Any:
    return f.tanh(x) * 0.9


#: Functions of one operand, by what is made of it so that it lies where they are smooth.
UNARY: dict[Form, str] = {
    as_is: "negative square sin cos tanh atan asinh erf erfc positive sign floor ceil round trunc sigmoid silu "
    "softplus relu leaky_relu elu gelu hard_sigmoid hard_swish normal_cdf",
    lambda f, x: x * 0.5: "exp expm1 sinh cosh exp2",
    positive: "log log1p log2 log10 sqrt rsqrt reciprocal",
    within: "asin acos atanh tan",
    lambda f, x: x * x + 1.5: "acosh",
}
#: Functions of two operands; their second one likewise.
BINARY: dict[Form, str] = {
    as_is: "add subtract multiply maximum minimum hypot logaddexp copysign atan2",
    positive: "divide remainder floor_divide fmod trunc_divide",
}
COMPARISONS = "less less_equal greater greater_equal equal not_equal"
LOGIC = "logical_and logical_or logical_xor"


def unary(name: str, made: Form) -> Form:
    return lambda f, x: getattr(f, name)(made(f, x))


def binary(name: str, made: Form) -> Form:
    return lambda f, x, y: getattr(f, name)(x, made(f, y))


def compared(name: str, of_numbers: bool) -> Form:
    return lambda f, x, y: f.where(getattr(f, name)(x, 0.5 if of_numbers else y), x, 2.0 * y)


def joined(name: str) -> Form:
    return lambda f, x, y: getattr(f, name)(x > 0.1, f.logical_not(y < 0.2)).astype("float64") * x


ONE: dict[str, Form] = {
    **{name: unary(name, made) for made, names in UNARY.items() for name in names.split()},
    "-x": lambda f, x: -x,
    "+x": lambda f, x: +x,
    "abs(x)": lambda f, x: abs(x),
    "x**2": lambda f, x: x**2,
    "x**3": lambda f, x: x**3,
    "x**0.5": lambda f, x: positive(f, x) ** 0.5,
    "2**x": lambda f, x: 2.0**x,
    "1.5 - x": lambda f, x: 1.5 - x,
    "1 / x": lambda f, x: 1 / positive(f, x),
    "clip": lambda f, x: f.clip(x, -0.7, 1.1),
}
TWO: dict[str, Form] = {
    **{name: binary(name, made) for made, names in BINARY.items() for name in names.split()},
    **{name: compared(name, name.endswith("equal")) for name in COMPARISONS.split()},
    **{name: joined(name) for name in LOGIC.split()},
    "x + y": lambda f, x, y: x + y,
    "x - y": lambda f, x, y: x - y,
    "x * y": lambda f, x, y: x * y,
    "x / y": lambda f, x, y: x / positive(f, y),
    "x // y": lambda f, x, y: x // positive(f, y),
    "x % y": lambda f, x, y: x % positive(f, y),
    "x**y": lambda f, x, y: positive(f, x) ** within(f, y),
    "x < y": lambda f, x, y: f.where(x < y, x * 2.0, y),
    "x >= 0.5": lambda f, x, y: f.where(x >= 0.5, 0.25, y),
    "x > y": lambda f, x, y: (x > y).astype("float64") * x,
    "&, |, ~": lambda f, x, y: f.where((x <= y) & ~(x < 0.1) | (y > 1.0), y, x),
    "^": lambda f, x, y: f.where((x <= y) ^ (x < 0.1), y, x),
}


def over_axes(rng: np.random.Generator, x: np.ndarray) -> dict[str, Form]:
    """Reductions and the like, for an array of this shape."""
    axes = [None, *range(-x.ndim, x.ndim), *([(0, -1)] if x.ndim > 1 else [])]
    axis, keep = axes[rng.integers(len(axes))], bool(rng.integers(2))
    one = axis if isinstance(axis, int) else None
    forms: dict[str, Form] = {
        **{
            f"{name}{'()' * by_method}": (
                (lambda f, x, name=name: getattr(x, name)(axis=axis, keepdims=keep))
                if by_method
                else (lambda f, x, name=name: getattr(f, name)(x, axis=axis, keepdims=keep))
            )
            for name in ("sum", "mean", "max", "min", "prod")
            for by_method in (True, False)
        },
        **{
            f"{name}()": lambda f, x, name=name: getattr(x > 0.3, name)(axis=axis, keepdims=keep).astype("float64")
            for name in ("all", "any")
        },
        **{
            f"{name}()": lambda f, x, name=name: getattr(x, name)(axis=one, keepdims=keep).astype("float64") * 0.5
            for name in ("argmax", "argmin")
        },
        "count_nonzero": lambda f, x: f.count_nonzero(x > 0.3, axis=axis, keepdims=keep).astype("float64"),
    }
    if one is not None:
        forms["cumsum"] = lambda f, x: f.cumsum(x, axis=one)
        forms["cumprod"] = lambda f, x: f.cumprod(x, axis=one)
        forms["sort"] = lambda f, x: f.sort(x, axis=one)
        forms["top_k"] = lambda f, x: f.top_k(x, 1, axis=one)[0]
    return forms


def shapes(rng: np.random.Generator, x: np.ndarray) -> dict[str, Form]:
    """Other shapes and parts, for an array of this shape."""
    rank, order = x.ndim, [int(i) for i in rng.permutation(x.ndim)]
    axis = int(rng.integers(-rank, rank)) if rank else 0
    forms: dict[str, Form] = {
        "reshape()": lambda f, x: x.reshape(*x.shape[::-1], 1),
        "reshape(-1)": lambda f, x: f.reshape(x, (-1,)),
        "flatten()": lambda f, x: x.flatten(),
        "transpose()": lambda f, x: x.transpose(order),
        "x[None].squeeze()": lambda f, x: x[None].squeeze(axis=0) + x[..., None].squeeze(axis=-1),
        "squeeze()": lambda f, x: x.squeeze(),
        "expand_dims": lambda f, x: f.expand_dims(x, axis=axis),
        "broadcast_to": lambda f, x: f.broadcast_to(x, (2, *x.shape)),
        "stack": lambda f, x: f.stack([x, x * 0.5], axis=axis),
        "flip": lambda f, x: f.flip(x),
        "astype": lambda f, x: x.astype("float64"),
    }
    if rank:
        n = x.shape[axis]
        index = rng.integers(-n, n, (3,)) if n < MOST_ELEMENTS else np.zeros(1, int)
        along = rng.integers(0, n, [2 if i == axis % rank else length for i, length in enumerate(x.shape)])
        forms |= {
            "concat": lambda f, x: f.concat([x, x * 2.0, x[:1] if axis % rank == 0 else x], axis=axis),
            "flip(axis)": lambda f, x: f.flip(x, axis=axis),
            "x[1:]": lambda f, x: x[n - 1 if axis == 0 else 0 :],
            "x[..., ::-2]": lambda f, x: x[..., ::-2],
            "x[0]": lambda f, x: x[0],
            "x[..., -1, None]": lambda f, x: x[..., -1, None],
            "x[[...]]": lambda f, x: x[np.arange(3) % x.shape[0]],
            "x[..., [...]]": lambda f, x: x[..., [0, -1, 0]],
            "take": lambda f, x: f.take(x, f.constant(index), axis=axis),
            "take_along_axis": lambda f, x: f.take_along_axis(x, f.constant(along), axis=axis),
            "roll": lambda f, x: f.roll(x, 1, axis=axis),
            "repeat": lambda f, x: f.repeat(x, 2, axis=axis),
            "moveaxis": lambda f, x: f.moveaxis(x, axis, 0),
            "argsort": lambda f, x: f.argsort(x, axis=axis).astype("float64"),
            "isin": lambda f, x: f.isin(x, f.where(x > 0.3, x, 0.5)).astype("float64"),
            "searchsorted": lambda f, x: f.searchsorted(f.sort(x.reshape(-1)), x).astype("float64"),
            "unstack": lambda f, x: f.unstack(x, axis=axis)[n - 1],
            "tile": lambda f, x: f.tile(x, (2,)),
        }
    return forms


def products(rng: np.random.Generator, x: np.ndarray) -> dict[str, Form]:
    """Products of matrices, for an array of this shape."""
    if x.ndim < 2:
        return {}
    left, right = rng.standard_normal((2, x.shape[-2])), rng.standard_normal((x.shape[-1], 3))
    return {
        "x @ matrix": lambda f, x: x @ right,
        "matrix @ x": lambda f, x: left @ x,
        "x.mT @ x": lambda f, x: x.mT @ x,
        "matmul": lambda f, x: f.matmul(x, x.mT),
        "tril": lambda f, x: f.tril(x),
        "triu": lambda f, x: f.triu(x, k=1),
        "einsum": lambda f, x: f.einsum("...ij,...kj->...ik", x, x * 0.5 + 1.0),
        "matrix_transpose": lambda f, x: f.matrix_transpose(x),
        "tensordot": lambda f, x: f.tensordot(x, f.constant(right), axes=1),
        "vecdot": lambda f, x: f.vecdot(x, x * 0.5 + 1.0),
        "x.T": lambda f, x: x.reshape(-1, x.shape[-1]).T,
        "softmax": lambda f, x: f.softmax(x),
        "log_softmax": lambda f, x: f.log_softmax(x),
    }


def in_graphs_and_arrays(name: str) -> bool:
    """Return whether both have an operation; what is written with operators and methods has no name."""
    return not name.isidentifier() or hasattr(af.ops, name)


# -- expressions ----------------------------------------------------------------------------------------------------


class Step(NamedTuple):
    """An operation on earlier values, by their numbers; the inputs of the expression are the first ones."""

    text: str
    form: Form
    inputs: tuple[int, ...]


class Expression:
    """An expression that a seed gives, with its inputs, and values of all steps.

    Compared are the results that no step reads, so that what leads to them may be fused; every other time all.
    """

    def __init__(self, seed: int) -> None:
        self.rng = rng = np.random.default_rng(seed)
        self.inputs = [rng.standard_normal(SHAPES[i]) for i in rng.integers(len(SHAPES), size=2)]
        self.steps: list[Step] = []
        self.values = [*self.inputs]
        wanted = int(rng.integers(3, 10))
        while len(self.steps) < wanted:
            self._grow()
        used = {i for step in self.steps for i in step.inputs}
        self.sinks = [i for i in range(len(self.values)) if i not in used and i >= len(self.inputs)]
        self.compared = self.sinks if seed % 2 else [*range(len(self.inputs), len(self.values))]
        self.weights = [rng.standard_normal(self.values[i].shape) for i in self.sinks]
        self.directions = [rng.standard_normal(x.shape) for x in self.inputs]

    def _grow(self) -> None:
        """Add a random step, if it is defined, smooth and not large."""
        rng, values = self.rng, self.values
        at = int(max(rng.integers(len(values), size=2)))
        x = values[at]
        kind = rng.integers(6)
        forms = ONE if kind < 2 else TWO if kind < 4 else {**over_axes(rng, x), **shapes(rng, x), **products(rng, x)}
        names = [name for name in forms if in_graphs_and_arrays(name)]
        name = names[rng.integers(len(names))]
        inputs = [at]
        if forms is TWO:
            fitting = [i for i, y in enumerate(values) if _fits(x.shape, y.shape)]
            inputs.insert(int(rng.integers(2)), fitting[rng.integers(len(fitting))])
        step = Step(name, forms[name], tuple(inputs))
        value = step.form(NUMPY, *[values[i] for i in inputs])
        near = [
            step.form(NUMPY, *[values[i] + 1e-9 * rng.standard_normal(values[i].shape) for i in inputs])
            for _ in range(2)
        ]
        if (
            0 < value.size <= MOST_ELEMENTS
            and np.isfinite(value).all()
            and all(np.allclose(each, value, rtol=1e-6, atol=1e-6) for each in near)
        ):
            self._add(step, value)
            if (largest := np.abs(value).max()) > LARGEST:
                factor = float(1.0 / largest)
                self._add(Step("scaled", lambda f, x: x * factor, (len(values) - 1,)), value * factor)

    def _add(self, step: Step, value: Any) -> None:
        self.steps.append(step)
        self.values.append(np.asarray(value))

    def evaluate(self, f: Any, inputs: Any) -> list[Any]:
        """Values of all steps, after those of the inputs."""
        values = [*inputs]
        for step in self.steps:
            values.append(step.form(f, *[values[i] for i in step.inputs]))
        return values

    def loss(self, values: list[Any]) -> Any:
        """A number that depends on all results, and on all inputs by more than a straight line."""
        terms = [(values[i] * weight).sum() for i, weight in zip(self.sinks, self.weights, strict=True)]
        for value in values[: len(self.inputs)]:
            terms.append((value * value * value).sum())
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        return total

    def along(self, step: float) -> float:
        """The loss in NumPy, for inputs that are moved along the directions."""
        moved = [x + step * d for x, d in zip(self.inputs, self.directions, strict=True)]
        return float(self.loss(self.evaluate(NUMPY, moved)))

    def projected(self, parts: Any) -> Any:
        """The sum of gradients times the directions."""
        first, *rest = [(part * d).sum() for part, d in zip(parts, self.directions, strict=True)]
        for each in rest:
            first = first + each
        return first

    def __str__(self) -> str:
        inputs = [f"{i} = input {x.shape}" for i, x in enumerate(self.inputs)]
        return "; ".join(
            [*inputs, *[f"{i} = {s.text} of {s.inputs}" for i, s in enumerate(self.steps, len(self.inputs))]]
        )


def _fits(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    try:
        return math.prod(np.broadcast_shapes(a, b)) <= MOST_ELEMENTS
    except ValueError:
        return False


class Found(NamedTuple):
    """Values of steps, the gradients of the loss, and the gradients of these along the directions."""

    values: list[np.ndarray]
    first: list[np.ndarray]
    second: list[np.ndarray]


def by_graph(expression: Expression) -> Found:
    graph = af.Graph("expression")
    blobs = [graph.blob(f"x{i}", x.shape, "float64") for i, x in enumerate(expression.inputs)]
    values = expression.evaluate(World(graph.constant, af.ops), blobs)
    first = af.gradient(expression.loss(values), blobs)
    second = af.gradient(expression.projected(first), blobs)
    computed = [values[i] for i in expression.compared]
    result = graph.run_sync(dict(zip(blobs, expression.inputs, strict=True)), fetch=[*computed, *first, *second])
    return Found([result[y] for y in computed], [result[y] for y in first], [result[y] for y in second])


def by_arrays(expression: Expression, f: World) -> Found:
    inputs = [xp.asarray(x) for x in expression.inputs]
    every = tuple(range(len(inputs)))
    first = af.grad(lambda *xs: expression.loss(expression.evaluate(f, xs)), every)
    second = af.grad(lambda *xs: expression.projected(first(*xs)), every)
    values = expression.evaluate(f, inputs)
    groups = ([values[i] for i in expression.compared], first(*inputs), second(*inputs))
    del values
    return Found(*[[x.to_numpy() for x in group] for group in groups])


def differences(phi: Callable[[float], float]) -> tuple[float | None, float | None]:
    """The first two derivatives at 0, by central differences; None where no two steps agree, as near corners."""
    found: list[tuple[float, float]] = []
    for h in (1e-4, 4e-4, 1e-3, 4e-3, 1e-2):
        a, b, c, d, e = (phi(i * h) for i in (-2, -1, 0, 1, 2))
        found.append(((a - 8 * b + 8 * d - e) / (12 * h), (-a + 16 * b - 30 * c + 16 * d - e) / (12 * h * h)))
    best: list[float | None] = []
    for estimates, tolerance in zip(zip(*found, strict=True), (1e-6, 1e-4), strict=True):
        best.append(next((p for p, q in pairwise(estimates) if abs(p - q) <= tolerance * (1.0 + abs(p))), None))
    return best[0], best[1]


def check(seed: int) -> int:
    """Check one expression; returns how many of its two derivatives had no difference quotient to compare with."""
    expression = Expression(seed)
    try:
        found = by_graph(expression)
        for i, value in zip(expression.compared, found.values, strict=True):
            expected = expression.values[i]
            np.testing.assert_allclose(value, expected, rtol=1e-9, atol=1e-9, strict=True, err_msg=f"value {i}")
        for name, other in (("af.array", by_arrays(expression, ARRAYS)), ("af.ops", by_arrays(expression, ON_ARRAYS))):
            for part, mine, its in zip(Found._fields, found, other, strict=True):
                for position, (a, b) in enumerate(zip(mine, its, strict=True)):
                    np.testing.assert_allclose(
                        b, a, rtol=1e-7, atol=1e-7, strict=True, err_msg=f"{part} {position} by {name}"
                    )
        skipped = 0
        for name, parts, expected, tolerance in zip(
            ("first", "second"), (found.first, found.second), differences(expression.along), (1e-5, 1e-3), strict=True
        ):
            if expected is None:
                skipped += 1
                continue
            mine = float(expression.projected(parts))
            np.testing.assert_allclose(mine, expected, rtol=tolerance, atol=tolerance, err_msg=f"{name} derivative")
    except Exception as error:
        error.add_note(f"seed {seed}: {expression}")
        raise
    return skipped


@pytest.mark.parametrize("first", slow(range(0, EXPRESSIONS, BLOCK), but={0, 10, 20}))
def test_graphs_arrays_and_numpy_agree(first: int) -> None:
    skipped = sum([check(seed) for seed in range(first, first + BLOCK)])
    assert skipped <= BLOCK / 2  # of twice as many


def test_every_function_that_both_have_is_drawn() -> None:
    """An operation that both get later is in a table here, or named as one that is not of numbers."""
    drawn = {*ONE, *TWO}
    for shape in ((2, 3), (2,)):
        x = np.ones(shape)
        for seed in range(20):
            for table in (over_axes, shapes, products):
                drawn |= {name.split("(")[0] for name in table(np.random.default_rng(seed), x)}
    both = {name for name in af.ops.__all__ if name.islower() and name in xp.__all__}
    others = {"all", "any", "squeeze", "where", "logical_not", "conj", "real", "imag", "nextafter", "signbit"}
    others |= {name for name in both if name.startswith(("bitwise_", "is"))} | {"fft", "linalg", "nonzero"}
    assert both <= drawn | others, sorted(both - drawn - others)
