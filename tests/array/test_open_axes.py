"""Array code as graphs whose axes are open."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import actorflow as af
import actorflow.array as xp

LENGTHS = (3, 1, 5, 3)
WEIGHTS = xp.asarray(np.random.default_rng(0).standard_normal((4, 3)))


def rows(count: int) -> np.ndarray:
    return np.random.default_rng(count).standard_normal((count, 4))


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "elementwise": lambda x: xp.exp(x * 2.0 + 1.0) - x,
    "broadcast": lambda x: x + xp.arange(4),
    "where": lambda x: xp.where(x > 0.0, x, 0.5),
    "network": lambda x: xp.nn.relu(x @ WEIGHTS),
    "mean": lambda x: xp.mean(x),
    "mean over the axis": lambda x: x - xp.mean(x, axis=0, keepdims=True),
    "mean of complex numbers": lambda x: xp.mean(x * 1j, axis=0),
    "mean of small numbers": lambda x: xp.mean(xp.astype(x, np.float16)),
    "variance": lambda x: xp.var(x, axis=0),
    "deviation of other axes": lambda x: xp.std(x, axis=1, correction=1),
    "reshape": lambda x: xp.reshape(x, (x.shape[0] * 2, 2)),
    "products": lambda x: x.T @ x,
    "ones": lambda x: x + xp.ones(x.shape),
    "like": lambda x: x + xp.full_like(x, 2.0),
    "concat": lambda x: xp.concat([x, x]),
    "flip": lambda x: xp.flip(x, axis=0),
    "along the axis": lambda x: xp.cumulative_sum(xp.sort(x, axis=0), axis=0),
    "argmax": lambda x: xp.argmax(x, axis=1),
}


@pytest.mark.together("name", FUNCTIONS, at_once=18)
def test_a_graph_computes_what_the_function_does_for_each_length(name: str) -> None:
    function = FUNCTIONS[name]
    graph = af.to_graph(function, af.TensorSpec.of(("batch", 4), "float64"), name="open")
    (x,) = [blob for blob in graph.sources if not blob.is_variable]
    for length in LENGTHS:
        (found,) = graph.run_sync({x: rows(length)}).values()
        expected = function(xp.asarray(rows(length))).to_numpy()
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_the_variance_of_too_few_is_as_numpys() -> None:
    graph = af.to_graph(
        lambda x: xp.var(x, axis=0, correction=1.0), af.TensorSpec.of(("batch", 4), "float64"), name="g"
    )
    (found,) = graph.run_sync({"x": rows(1)}).values()
    np.testing.assert_array_equal(found, xp.var(xp.asarray(rows(1)), axis=0, correction=1.0).to_numpy())


def test_arguments_share_axes_by_name_and_an_optimizer_trains_what_is_captured() -> None:
    weights = xp.asarray(np.zeros((4, 3)))

    def loss(x: Any, labels: Any) -> Any:
        return xp.nn.softmax_loss(x @ weights, labels)

    examples = af.TensorSpec.of(("batch", 4), "float64"), af.TensorSpec.of("batch", "int64")
    graph = af.to_graph(loss, *examples)
    result = graph["result/out"]
    train = af.nn.SGD(0.5).minimize(result)
    losses = []
    for length in (9, 4, 9, 9):
        feed = {"x": rows(length), "labels": np.arange(length) % 3}
        losses.append(float(graph.run_sync(feed, fetch=[result, train])[result]))
    assert losses[0] == pytest.approx(np.log(3.0))
    assert losses[3] < losses[2] < losses[0]
    with pytest.raises(af.ShapeError, match=r"axis 'batch' is 4 in the feed for blob .*, and 2 in the one for"):
        graph.run_sync({"x": rows(4), "labels": np.zeros(2, "int64")})


def test_a_length_as_a_number_is_refused_where_it_is_asked_for() -> None:
    with pytest.raises(af.ShapeError, match="the length batch is not known before a run"):
        af.to_graph(lambda x: xp.sum(x) / x.shape[0], af.TensorSpec.of(("batch",)))
