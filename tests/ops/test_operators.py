"""Operators, indices and methods of blobs, against NumPy's of arrays."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import actorflow as af

Function = Callable[..., Any]

FLOAT = np.array([[-1.5, 2.0, 0.25], [3.0, -0.5, 1.0]])
OTHER = np.array([[2.0, 0.5, 4.0], [-1.0, 8.0, 1.0]])
INT = np.array([[1, -2, 3], [4, 0, 2]])
BOOL = np.array([[True, False, True], [False, False, True]])
ARITHMETIC = (operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, operator.truediv)
COMPARISONS = (operator.lt, operator.le, operator.gt, operator.ge)
LOGIC = (operator.and_, operator.or_, operator.xor)

#: Operator, the blob's value, another array, a number.
BINARY = [
    *[(function, FLOAT, OTHER, 1.5) for function in (*ARITHMETIC, *COMPARISONS)],
    *[(function, INT, INT[::-1], 2) for function in (*ARITHMETIC[:3], *COMPARISONS, *LOGIC)],
    *[(function, INT | 1, np.array([[2, -3, 1], [5, 7, -1]]), 3) for function in (operator.floordiv, operator.mod)],
    *[(function, BOOL, BOOL[::-1], True) for function in LOGIC],
    (operator.pow, np.abs(FLOAT), OTHER, 1.5),
    (operator.pow, INT, np.abs(INT[::-1]), 3),
    (operator.matmul, FLOAT @ FLOAT.T, FLOAT @ OTHER.T, None),
]


def computed(expression: Function, *values: Any) -> tuple[np.ndarray, list[str]]:
    """What an expression of blobs gives for values, and the names of its ops."""
    graph = af.Graph("g")
    blobs = [graph.blob(f"x{i}", np.shape(value), np.asarray(value).dtype) for i, value in enumerate(values)]
    y = expression(*blobs)
    assert isinstance(y, af.Blob)
    result = graph.run_sync({blob: value for blob, value in zip(blobs, values, strict=True) if blob.consumers}, fetch=y)
    found = result[y]
    assert (found.shape, found.dtype) == (y.shape, y.dtype)
    return found, [node.name for node in graph.nodes if isinstance(node, af.Op)]


def check(expression: Function, *values: Any) -> None:
    expected = np.asarray(expression(*values))
    found, _ = computed(expression, *values)
    np.testing.assert_allclose(found, expected, rtol=1e-14, strict=True)


@pytest.mark.together(("function", "value", "other", "number"), BINARY, at_once=5)
def test_both_operands_are_blobs_numbers_or_arrays(function: Function, value: Any, other: Any, number: Any) -> None:
    check(function, value, other)
    check(lambda x: function(x, other), value)
    check(lambda x: function(other, x), np.abs(value) if function is operator.pow else value)
    check(lambda x: function(x, other[0]), value) if function is not operator.matmul else None
    for scalar in () if number is None else (number, value.dtype.type(number)):
        check(lambda x, scalar=scalar: function(x, scalar), value)
        check(lambda x, scalar=scalar: function(scalar, x), np.abs(value) if function is operator.pow else value)


@pytest.mark.together("power", [2, 2.0, 0.5, -1, 3])
def test_powers_by_a_number(power: float) -> None:
    check(lambda x: x**power, np.abs(FLOAT))


UNARY = [(operator.neg, FLOAT), (abs, FLOAT), (abs, INT), (operator.invert, BOOL), (operator.invert, INT)]


@pytest.mark.together(("function", "value"), UNARY)
def test_of_one_operand(function: Function, value: Any) -> None:
    check(function, value)


CUBE = np.arange(24.0).reshape(2, 3, 4)
KEYS: list[Any] = [
    0,
    -1,
    np.int64(1),
    ...,
    None,
    slice(1, None),
    (slice(None), slice(None, None, -2)),
    (..., 0),
    (0, ..., None, slice(1, 3)),
    [1, 0, 1],
    np.array([[0, 1], [1, 1]]),
    np.array(1),
    (slice(None), [2, 0]),
    (..., [3, 0, 1]),
    (..., np.array([2, 1]), slice(None)),
    (slice(1, None), ..., [3, 0]),
    (None, [1, 1], slice(None, None, 2)),
    (slice(None), np.array([[0], [2]]), slice(1, 3)),
]


@pytest.mark.together("key", KEYS, ids=repr)
def test_parts(key: Any) -> None:
    check(lambda x: x[key], CUBE)


def test_parts_at_indices_that_are_blobs() -> None:
    check(lambda x, i: x[i], CUBE, np.array([1, 0, 1]))
    check(lambda x, i: x[..., i], CUBE, np.array([[3], [0]]))


METHODS: list[tuple[Function, Any]] = [
    (lambda x: x.sum(), CUBE),
    (lambda x: x.sum(axis=0, keepdims=True), CUBE),
    (lambda x: x.mean(axis=(0, -1)), CUBE),
    (lambda x: x.mean(1), CUBE),
    (lambda x: x.max(axis=1), CUBE),
    (lambda x: x.min(), CUBE),
    (lambda x: x.prod(axis=-1), FLOAT),
    (lambda x: x.all(axis=0), BOOL),
    (lambda x: x.any(axis=1, keepdims=True), BOOL),
    (lambda x: x.argmax(), CUBE),
    (lambda x: x.argmin(axis=1), CUBE),
    (lambda x: x.reshape(4, -1), CUBE),
    (lambda x: x.reshape((6, 4)), CUBE),
    (lambda x: x.reshape(-1), CUBE),
    (lambda x: x.astype("float32"), CUBE),
    (lambda x: x.astype(np.int64), FLOAT),
    (lambda x: x.transpose(), CUBE),
    (lambda x: x.transpose(1, 0, 2), CUBE),
    (lambda x: x.transpose((2, 0, 1)), CUBE),
    (lambda x: x.T, FLOAT),
    (lambda x: x[:1].squeeze(), CUBE),
    (lambda x: x[:1].squeeze(axis=0), CUBE),
    (lambda x: x.flatten(), CUBE),
]


@pytest.mark.together(("method", "value"), METHODS)
def test_methods(method: Function, value: Any) -> None:
    check(method, value)


def test_shapes() -> None:
    x = af.Graph("g").blob("x", (2, 3, 4))
    assert (x.ndim, x.size, x.mT.shape) == (3, 24, (2, 4, 3))
    for attribute, given in {"T": r"\(2, 3, 4\)", "mT": "1"}.items():
        with pytest.raises(af.ShapeError, match=rf"{attribute}: expected .* axes, got .*{given}"):
            getattr(x.flatten() if attribute == "mT" else x, attribute)


def test_ops_have_the_names_of_the_functions() -> None:
    _, names = computed(lambda x, y: -((x @ y)[0] ** 3) - y.sum(), FLOAT, FLOAT.T)
    assert [name for name in names if not name.startswith("number")] == [
        "matmul", "slice", "power", "negative", "reducesum", "subtract",
    ]  # fmt: skip


def test_numbers_take_the_dtype_of_the_blob_and_arrays_are_widened_to_it() -> None:
    graph = af.Graph("g")
    half, integers, truth = graph.blob("h", (3,), "float16"), graph.blob("i", (3,), "int8"), graph.blob("b", (3,), bool)
    assert (1.5 * half).dtype == "float16"
    assert (half + np.float64(0.1)).dtype == "float16"
    assert (integers - 1).dtype == "int8"
    assert (half * np.arange(3, dtype="int8")).dtype == "float16"
    mask = half > 0
    nodes = len(graph.nodes)
    for expression in (
        lambda: integers + 1.5,
        lambda: truth & 1,
        lambda: half * 2j,
        lambda: half * np.ones(3),
        lambda: np.arange(3) - integers,
        lambda: integers < half,
        lambda: half & half,
        lambda: half[mask],
        lambda: half[[0.5]],
    ):
        with pytest.raises(af.DTypeError):
            expression()
    for expression in (
        lambda: half + np.ones((2, 2), "float16"),
        lambda: half @ np.ones((2, 1), "float16"),
        lambda: half[0, 0],
    ):
        with pytest.raises(af.ShapeError):
            expression()
    for key in ("name", 1.5, True, ([0], 1), ([0], [1]), ([0], "name")):
        with pytest.raises(af.GraphError):
            half[key]
    assert len(graph.nodes) == nodes


@pytest.mark.together(
    ("dtype", "other", "of_blobs", "of_arrays"),
    [
        ("float32", "float64", None, "float64"),
        ("int32", "int64", None, "int64"),
        ("int32", "float32", None, "float64"),
        ("bool", "int32", None, "int32"),
        ("float32", 2, "float32", "float32"),
        ("float32", 0.5, "float32", "float32"),
        ("int32", 2, "int32", "int32"),
        ("int32", 0.5, None, "float64"),
        ("float32", 1j, None, "complex64"),
        ("float32", np.float64(0.5), "float32", "float64"),
        ("float32", np.ones(3, "float32"), "float32", "float32"),
        ("float32", np.ones(3, "int8"), "float32", "float32"),
        ("float32", np.ones(3), None, "float64"),
    ],
)
def test_the_table_of_dtypes(dtype: str, other: Any, of_blobs: str | None, of_arrays: str) -> None:
    graph = af.Graph("g")
    given = isinstance(other, str)
    x, beside = af.array.ones(3, dtype=np.dtype(dtype)), af.array.ones(3, dtype=np.dtype(other)) if given else other
    assert (x + beside).dtype == (beside + x).dtype == of_arrays
    x, beside = graph.blob("x", (3,), dtype), graph.blob("y", (3,), other) if given else other
    if of_blobs is None:
        for expression in (lambda: x + beside, lambda: beside + x):
            with pytest.raises(af.DTypeError):
                expression()
    else:
        assert (x + beside).dtype == (beside + x).dtype == of_blobs


def test_a_blob_is_itself_and_has_no_value() -> None:
    graph = af.Graph("g")
    x, y = graph.blob("x", (3,)), graph.blob("y", (3,))
    assert x == x
    assert (x == y) is False
    assert (x != y) is True
    assert {x: 1, y: 2}[y] == 2
    assert +x is x
    positive = x > 0
    for truth in (lambda: bool(x), lambda: 1 if x else 2, lambda: positive and y, lambda: 0 < x < 1):
        with pytest.raises(af.GraphError, match=r"no value while the graph is defined.*use af\.ops\.where"):
            truth()
    for unknown in (lambda: iter(x), lambda: 1.0 in x, lambda: x + "y", lambda: x @ 2):
        with pytest.raises(TypeError):
            unknown()
    for value in (len, float, int, complex, np.asarray, np.add.reduce):
        with pytest.raises(af.GraphError, match=r"blob.*no value while the graph is defined: result = graph.run_sync"):
            value(x)


def test_functions_of_numpy_are_operators_of_blobs_or_name_the_operation() -> None:
    graph = af.Graph("g")
    x = graph.blob("x", (2,))
    a = np.array([1.0, 4.0], np.float32)
    sums = [np.add(x, a), np.add(a, x), np.float32(2) - x, np.less(a, x), np.add(x, x)]
    result = graph.run_sync({x: [2.0, 3.0]}, fetch=sums)
    assert [result[each].tolist() for each in sums] == [[3, 7], [3, 7], [0, -1], [True, False], [4, 6]]
    assert (a == x) is False
    for function in (np.exp, np.absolute):
        name = function.__name__
        with pytest.raises(af.GraphError, match=rf"np\.{name} of a blob.*in graphs: af\.ops\.{name}"):
            function(x)
    for call, ours in {
        lambda: np.sum(x): "sum",
        lambda: np.stack([x, x]): "stack",
        lambda: np.dot(a, x): "matmul",
    }.items():
        with pytest.raises(af.GraphError, match=rf"^np\.\w+ of a blob: .*in graphs: af\.ops\.{ours}$"):
            call()
    with pytest.raises(af.GraphError, match="no value"):
        a += x


@pytest.mark.together(
    ("name", "hint"),
    [
        ("item", "result = graph.run_sync(feeds), then result[blob]"),
        ("numpy", "result = graph.run_sync(feeds), then result[blob]"),
        ("clip", "there is the function af.ops.clip(x)"),
        ("view", "there is the function af.ops.reshape(x)"),
        ("conv2d", "here: af.ops.conv(x, weight), "),
        ("reshap", "did you mean 'reshape'"),
    ],
)
def test_other_methods_lead_to_the_function(name: str, hint: str) -> None:
    x = af.Graph("g").blob("x", (3,))
    with pytest.raises(AttributeError) as caught:
        getattr(x, name)
    assert str(caught.value).startswith(f"'Blob' object has no attribute {name!r}; ")
    assert hint in str(caught.value)
    assert not hasattr(x, "_nothing")
