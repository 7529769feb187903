"""Chains behind a product: computed in its primitive, as far as that can be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import MagicMock, patch

import numpy as np
import pytest

import actorflow as af
from actorflow.ops import (
    bias,
    clip,
    elu,
    gelu,
    hard_sigmoid,
    hard_swish,
    leaky_relu,
    maximum,
    normal_cdf,
    relu,
    scale,
    sigmoid,
    silu,
    softmax,
    softplus,
    tanh,
)
from actorflow.ops.elementwise import erf
from actorflow.ops.onednn import weighted
from actorflow.ops.onednn.library import Library, UnsupportedError
from actorflow.plan.plan import Plan

pytestmark = pytest.mark.usefixtures("by_default")

Follow = Callable[[af.Graph, af.Blob], af.Blob]
RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((2, 5, 6, 8)).astype("f")
WEIGHTS = RANDOM.standard_normal((3, 3, 8, 12)).astype("f") / 8
COLUMNS = [RANDOM.uniform(0.5, 1.5, 12).astype("f") for _ in range(4)]
ROWS = RANDOM.standard_normal((2, 5, 6, 12)).astype("f")


def normalized(graph: af.Graph, y: af.Blob) -> af.Blob:
    """Normalization by given statistics."""
    mean, variance, factor, shift = map(graph.constant, COLUMNS)
    return af.ops.batch_norm(y, mean, variance, factor, shift)


def gelu_in_pieces(graph: af.Graph, y: af.Blob) -> af.Blob:
    """As exporters write it."""
    return y * (erf(y / 2**0.5) + 1.0) * 0.5


#: What follows, and how many operations of the plan it takes with the product: 1 where all is one primitive.
FOLLOWING: dict[str, Follow] = {
    "bias": lambda graph, y: bias(y, graph.constant(COLUMNS[0])),
    "bias, relu": lambda graph, y: relu(bias(y, graph.constant(COLUMNS[0]))),
    "norm": normalized,
    "norm, sum, relu": lambda graph, y: relu(normalized(graph, y) + graph.constant(ROWS)),
    "norm, hard_swish": lambda graph, y: hard_swish(normalized(graph, y)),
    "hard_swish in pieces": lambda graph, y: y * clip(y + 3.0, 0.0, 6.0) / 6.0,
    "hard_swish with six": lambda graph, y: y * clip(y + 3.0, 0.0, 6.0),
    "hard_sigmoid": lambda graph, y: hard_sigmoid(y),
    "sigmoid": lambda graph, y: sigmoid(y),
    "silu": lambda graph, y: silu(y),
    "swish": lambda graph, y: y * sigmoid(scale(y, 1.5)),
    "tanh": lambda graph, y: tanh(y),
    "leaky_relu": lambda graph, y: leaky_relu(y, 0.1),
    "elu": lambda graph, y: elu(y, 0.7),
    "softplus": lambda graph, y: softplus(y, 2.0),
    "gelu": lambda graph, y: gelu(y),
    "gelu, tanh": lambda graph, y: gelu(y, tanh=True),
    "gelu in pieces": gelu_in_pieces,
    "gelu by cdf": lambda graph, y: normal_cdf(y) * y,
    "clip": lambda graph, y: clip(y, -0.5, 0.25),
    "negative, numbers": lambda graph, y: 3.0 - (-y) * 2.0,
    "difference": lambda graph, y: relu(graph.constant(COLUMNS[0]) - y),
    "quotient": lambda graph, y: y / graph.constant(COLUMNS[1]),
    "relu, then columns": lambda graph, y: relu(y) * graph.constant(COLUMNS[1]) + graph.constant(COLUMNS[2]),
    "product with rows": lambda graph, y: y * graph.constant(ROWS),
}
#: Chains that no primitive has.
LEFT: dict[str, Follow] = {
    "two values": lambda graph, y: relu(y) + tanh(y),
    "erf": lambda graph, y: erf(y) * 2.0,
    "a quotient by it": lambda graph, y: graph.constant(COLUMNS[1]) / (y * y + 1.0),
    "larger than columns": lambda graph, y: maximum(y, graph.constant(COLUMNS[1])),
    "one number of each row": lambda graph, y: y * graph.constant(ROWS[..., :1].copy()),
}


def product(graph: af.Graph, x: af.Blob) -> af.Blob:
    return af.ops.conv(x, graph.constant(WEIGHTS), pad=1)


def kinds(plan: Plan) -> list[str]:
    return [op.operation.kind for op in plan.ops]


def computed(follow: Follow, library: str) -> tuple[np.ndarray, list[str]]:
    """What it gives, and the kinds of the steps."""
    graph = af.Graph("g", libraries=[library])
    x = graph.blob("x", X.shape)
    y = follow(graph, af.ops.conv(x, graph.constant(WEIGHTS), pad=1))
    for _ in range(2):  # of the second one on, all that follows from constants is kept
        found: np.ndarray = graph.run_sync({x: X})[y]
    return found, kinds(graph.compile([y]))


@pytest.mark.parametrize("name", FOLLOWING)
def test_in_one_primitive(left: list[str], name: str) -> None:
    found, steps = computed(FOLLOWING[name], "onednn")
    assert (steps, left) == (["Followed"], [])
    np.testing.assert_allclose(found, computed(FOLLOWING[name], "numpy")[0], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", LEFT)
def test_left_to_others(left: list[str], name: str) -> None:
    """What no primitive has, plans do not join; nor does NumPy, as values are small."""
    found, steps = computed(LEFT[name], "onednn")
    expected, by_itself = computed(LEFT[name], "numpy")
    assert steps == by_itself
    assert "Followed" not in left
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", ["bias, relu", "norm, hard_swish", "leaky_relu", "sigmoid", "silu", "gelu", "tanh"])
def test_nan_stays_nan(name: str) -> None:
    graph = af.Graph("g")
    x = graph.blob("x", X.shape)
    y = FOLLOWING[name](graph, af.ops.conv(x, graph.constant(WEIGHTS), pad=1))
    image = X.copy()
    image[0, 2, 3, 1] = np.nan
    found = graph.run_sync({x: image})[y]
    assert np.isnan(found[0, 1:4, 2:5]).all()
    assert np.isfinite(found[0, 4]).all()


def test_what_follows_is_not_left_for_the_sake_of_a_reduction(left: list[str]) -> None:
    """Squeeze-and-excite: the mean of an activation, which others read, too."""
    found = {}
    for library in ("onednn", "numpy"):
        graph = af.Graph("g", libraries=[library])
        x = graph.blob("x", X.shape)
        y = hard_swish(bias(af.ops.conv(x, graph.constant(WEIGHTS), pad=1), graph.constant(COLUMNS[0])))
        z = y * af.ops.mean(y, (1, 2), keepdims=True)
        plan = graph.compile([z])
        found[library] = [op.operation.kind for op in plan.ops], graph.run_sync({x: X})[z]
    assert found["onednn"][0] == ["Followed", "ReduceMean", "Multiply"]
    assert left == []
    np.testing.assert_allclose(found["onednn"][1], found["numpy"][1], rtol=2e-5, atol=2e-5)
    assert found["numpy"][0][-3:] == ["Multiply", "ReduceMean", "Multiply"]


def built(build: Follow, **options: Any) -> tuple[list[str], np.ndarray]:
    """Kinds of the steps of a graph, and the result."""
    graph = af.Graph("g", **options)
    x = graph.blob("x", X.shape)
    y = build(graph, x)
    return kinds(graph.compile([y])), graph.run_sync({x: X})[y]


#: Graphs, and their steps.
TOGETHER: dict[str, tuple[Follow, list[str]]] = {
    "as far as it can be": (
        lambda graph, x: maximum(relu(bias(product(graph, x), graph.constant(COLUMNS[0]))), graph.constant(COLUMNS[1])),
        ["Followed", "Maximum"],
    ),
    "two products, one sum": (
        lambda graph, x: relu(normalized(graph, product(graph, x)) + normalized(graph, product(graph, relu(x)))),
        ["Followed", "Relu", "Followed"],
    ),
    "a value that others read": (
        lambda graph, x: softmax(values := relu(product(graph, x))) + values,
        ["Followed", "Softmax", "Sum"],
    ),
    "a result that others read": (
        lambda graph, x: softmax(values := product(graph, x)) + relu(values),
        ["Conv", "Softmax", "Relu", "Sum"],
    ),
    "two results": (
        lambda graph, x: softmax(values := relu(product(graph, x))) + tanh(values),
        ["Followed", "Softmax", "Tanh", "Sum"],
    ),
    "no product": (gelu_in_pieces, ["Fused"]),
    "one number": (
        lambda graph, x: gelu_in_pieces(graph, af.ops.sum(x)),
        [*["ReduceSum", "Divide", "Erf", "Sum"], *["Multiply"] * 2],
    ),
}


@pytest.mark.parametrize("name", TOGETHER)
def test_what_is_one_step(left: list[str], name: str) -> None:
    build, expected = TOGETHER[name]
    steps, found = built(build)
    assert sorted(steps) == sorted(expected)
    assert {"Followed", "Fused"}.isdisjoint(left)
    np.testing.assert_allclose(found, built(build, fuse=False)[1], rtol=2e-5, atol=2e-5)


def test_plans_ask_the_library_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer takes up to half a millisecond, and plans are made on the loop."""
    asked: list[str] = []
    monkeypatch.setattr(Library, "descriptor", lambda _, kind, *how: asked.append(kind))
    for follow in (*FOLLOWING.values(), *LEFT.values()):
        graph = af.Graph("g")
        graph.compile([follow(graph, product(graph, graph.blob("x", X.shape)))])
    assert asked == []


def test_a_chain_without_a_primitive_follows_the_library_s_product(
    left: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(graph: af.Graph, x: af.Blob) -> af.Blob:
        return relu(product(graph, x))

    expected = built(build, fuse=False)[1]
    monkeypatch.setattr(weighted, "_post_ops", MagicMock(side_effect=UnsupportedError))
    with patch.object(Library, "descriptor", autospec=True, side_effect=Library.descriptor) as asked:
        steps, found = built(build)
    assert (steps, left) == (["Followed"], ["Followed"])
    assert "convolution_forward" in [call.args[1] for call in asked.mock_calls]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
def test_nothing_is_followed_by_nothing(shape: tuple[int, int]) -> None:
    graph = af.Graph("g")
    x, weight, shift = graph.blob("x", shape), graph.blob("w", (4, shape[1])), graph.blob("b", 4)
    y = relu(bias(af.ops.inner(x, weight), shift))
    feeds = {blob: np.ones(blob.shape, "f") for blob in (x, weight, shift)}
    np.testing.assert_array_equal(graph.run_sync(feeds)[y], np.ones((shape[0], 4), "f"))
    assert kinds(graph.compile([y])) == ["Inner", "Bias", "Relu"]


def test_factors_that_are_not_finite_are_not_put_into_weights(left: list[str]) -> None:
    found = {}
    for library in ("onednn", "numpy"):
        graph = af.Graph("g", libraries=[library])
        x, factor = graph.blob("x", X.shape), graph.variable("factor", 12)
        y = relu(af.ops.conv(x, graph.constant(WEIGHTS), pad=1) * factor)
        found[library] = []
        for number in (2.0, np.inf, 3.0):
            factor.value = np.full(12, number, "f")
            found[library].append(graph.run_sync({x: X})[y])
    assert left == ["Followed"]
    for mine, its in zip(found["onednn"], found["numpy"], strict=True):
        np.testing.assert_allclose(mine, its, rtol=2e-5, atol=2e-5)
    assert np.isinf(found["onednn"][1]).any()
    assert not np.isnan(found["onednn"][1]).any()


def test_values_that_are_fetched_on_the_way_are_there() -> None:
    graph = af.Graph("g")
    x = graph.blob("x", X.shape)
    y = af.ops.conv(x, graph.constant(WEIGHTS), pad=1)
    z = relu(y)
    found = graph.run_sync({x: X}, fetch=[y, z])
    np.testing.assert_array_equal(found[z], np.maximum(found[y], 0))


def expected(weight: np.ndarray, shift: np.ndarray) -> np.ndarray:
    graph = af.Graph("g", libraries=["numpy"])
    x = graph.blob("x", X.shape)
    y = relu(bias(af.ops.conv(x, graph.constant(weight), pad=1), graph.constant(shift)))
    found: np.ndarray = graph.run_sync({x: X})[y]
    return found


def test_what_is_kept_of_variables_is_never_older_than_they_are() -> None:
    graph = af.Graph("g")
    x = graph.blob("x", X.shape)
    weight, shift = graph.variable("weight", WEIGHTS.shape), graph.variable("shift", 12)
    y = relu(bias(af.ops.conv(x, weight, pad=1), shift))
    for factor in (1.0, 2.0, 2.0, 3.0):
        weight.value, shift.value = factor * WEIGHTS, np.full(12, factor, "f")
        for _ in range(3):
            found = graph.run_sync({x: X})[y]
            np.testing.assert_allclose(found, expected(weight.value, shift.value), rtol=2e-5, atol=2e-5)


def test_rows_that_are_one_in_some_plans() -> None:
    """What follows one row is as a column is, and has rows elsewhere: plans share what is kept of a weight."""
    graph = af.Graph("rows")
    x, state = graph.blob("x", ("batch", 512)), graph.blob("state", ("batch", 256))
    weight = RANDOM.standard_normal((256, 512)).astype("f") / 32
    y = relu(af.ops.inner(x, graph.constant(weight)) + state)
    with graph:
        for count in (1, 1, 3, 1, 2):
            feeds = RANDOM.standard_normal((count, 512)).astype("f"), RANDOM.standard_normal((count, 256)).astype("f")
            found = graph.run_sync({x: feeds[0], state: feeds[1]}, fetch=y)[y]
            np.testing.assert_allclose(found, np.maximum(feeds[0] @ weight.T + feeds[1], 0), rtol=1e-4, atol=1e-4)
