"""Operations of `actorflow.ops` on arrays, and array code as graphs."""

import inspect
from typing import Any

import numpy as np
import pytest

import actorflow as af
import actorflow.array as xp
from actorflow.graph.gradient import trainable
from tests.support.numbers import numbers


def test_operations_take_arrays_by_name_and_the_rest_by_position() -> None:
    scores, labels = xp.asarray(numbers(3, 4)), xp.asarray([0, 2, 1])
    whole = xp.nn.softmax_loss(scores, labels).to_numpy()
    np.testing.assert_array_equal(xp.nn.softmax_loss(scores, labels=labels).to_numpy(), whole)
    np.testing.assert_array_equal(xp.nn.softmax_loss(scores, labels, None, reduction="mean").to_numpy(), whole)
    weights = xp.asarray(np.array([1.0, 0.0, 0.0, 0.0]))
    weighted = xp.nn.softmax_loss(x=scores, labels=labels, weights=weights, reduction="sum")
    first = xp.nn.softmax_loss(scores[:1, :], labels[:1], reduction="sum")
    np.testing.assert_allclose(weighted.to_numpy(), first.to_numpy(), rtol=1e-6)
    images = xp.asarray(numbers(1, 8, 8, 1))
    by_position = xp.nn.max_pool(images, 2, 2)
    np.testing.assert_array_equal(by_position.to_numpy(), xp.nn.max_pool(images, kernel=2, stride=2).to_numpy())
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'kernel'"):
        xp.nn.max_pool(images, stride=2)
    with pytest.raises(TypeError, match="unexpected keyword argument 'slope'"):
        xp.nn.relu(images, slope=0.1)
    assert list(inspect.signature(xp.nn.conv).parameters)[:3] == ["x", "weight", "stride"]


def test_operations_of_any_number_of_arrays() -> None:
    x = xp.asarray(numbers(2, 3))
    three = af.ops.weighted_sum([x, x, x], [1.0, 2.0, 4.0])
    np.testing.assert_allclose(three.to_numpy(), 7 * x.to_numpy())
    np.testing.assert_allclose(af.ops.average(x, x * 2.0, x * 3.0).to_numpy(), 2 * x.to_numpy(), rtol=1e-6)
    slopes = af.grad(lambda x: xp.sum(af.ops.weighted_sum([x, x * x], [3.0, 0.5])))(x)
    np.testing.assert_allclose(slopes.to_numpy(), 3 + x.to_numpy(), rtol=1e-6)
    both = af.ops.concat([x, x], axis=1)
    np.testing.assert_array_equal(both.to_numpy(), np.concatenate([x.to_numpy()] * 2, axis=1))


def test_operations_name_what_is_wrong() -> None:
    with pytest.raises(af.ShapeError, match="Inner"):
        xp.nn.inner(xp.ones((2, 3)), xp.ones((4, 5)))
    with pytest.raises(af.GraphError, match="Relu: x must be a blob or an array, got float"):
        xp.nn.relu(3.0)
    with pytest.raises(af.OpError, match="op 'nllloss'"):
        xp.nn.nll_loss(xp.ones((1, 2)), xp.asarray([7])).wait()


async def test_what_ops_does_not_have_is_computed_too_and_what_was_there_is_a_variable() -> None:
    a = numbers(3, 3) + 5 * np.eye(3)
    table = xp.asarray(a) + 1

    def function(x: Any) -> Any:
        return xp.linalg.inv(x + table), xp.sort(x, axis=0, descending=True) * xp.eye(3)

    graph = af.to_graph(function, af.TensorSpec.of((3, 3), "float64"))
    async with graph:
        result = await graph.run({"x": a})
    np.testing.assert_allclose(result["result0/out"], np.linalg.inv(2 * a + 1))
    np.testing.assert_allclose(result["result1/out"], np.sort(a, axis=0)[::-1] * np.eye(3))
    [variable] = [blob for blob in graph.blobs if isinstance(blob, af.Variable)]
    assert variable.spec == (table.shape, table.dtype)


def test_a_traced_function_has_no_values() -> None:
    with pytest.raises(af.GraphError, match="dry run"):
        af.to_graph(lambda x: x if x > 0 else -x, af.TensorSpec.of(()))
    with pytest.raises(af.DTypeError, match="the function must return arrays"):
        af.to_graph(lambda x: [3.0], af.TensorSpec.of(()))
    assert xp.asarray([1.0]).to_numpy().tolist() == [1.0]


def network(weights: Any, x: Any) -> Any:
    hidden = xp.maximum(x @ weights["w1"] + weights["b1"], 0.0)
    order = xp.argsort(hidden, axis=1)
    spread = xp.linalg.vector_norm(xp.take_along_axis(hidden, order, axis=1) * xp.asarray([1.0, 2.0, 3.0]), axis=1)
    return {"loss": xp.mean(spread), "hidden": (hidden, spread)}


def example() -> tuple[Any, Any]:
    return {"w1": numbers(4, 3), "b1": numbers(3, seed=1)}, numbers(5, 4, seed=2)


def feeds_of(weights: Any, x: Any) -> dict[str, np.ndarray]:
    return {"weights.w1": weights["w1"], "weights.b1": weights["b1"], "x": x}


def expected_of(weights: Any, x: Any) -> tuple[np.ndarray, np.ndarray]:
    hidden = np.maximum(x @ weights["w1"] + weights["b1"], 0.0)
    return hidden, np.linalg.norm(np.sort(hidden, axis=1) * [1.0, 2.0, 3.0], axis=1)


async def test_containers_of_arguments_and_results() -> None:
    weights, x = example()
    graph = af.to_graph(network, weights, x)
    async with graph:
        result = await graph.run(feeds_of(weights, x))
    hidden, spread = expected_of(weights, x)
    np.testing.assert_allclose(result["result.loss/out"], spread.mean())
    np.testing.assert_allclose(result["result.hidden.0/out"], hidden)
    np.testing.assert_allclose(result["result.hidden.1/out"], spread)


async def test_traced_graphs_are_differentiated() -> None:
    weights, x = example()
    graph = af.to_graph(network, weights, x)
    blobs = [graph["weights.w1"], graph["weights.b1"]]
    grads = af.gradient(graph["result.loss/out"], blobs)
    slopes = af.grad(lambda weights, x: network(weights, x)["loss"])(weights, x)
    async with graph:
        found = await graph.run(feeds_of(weights, x), fetch=grads)
    for grad, name in zip(grads, ("w1", "b1"), strict=True):
        np.testing.assert_allclose(found[grad], slopes[name].to_numpy())


async def test_traced_graphs_are_streamed() -> None:
    weights, x = example()
    known = {name: xp.asarray(value) for name, value in weights.items()}
    graph = af.to_graph(lambda x: network(known, x)["loss"], x, name="scores")
    batches = [numbers(5, 4, seed=seed) for seed in range(6)]
    async with graph:
        losses = [float(r["result/out"]) async for r in graph.stream(({"x": batch} for batch in batches), in_flight=2)]
    np.testing.assert_allclose(losses, [expected_of(weights, batch)[1].mean() for batch in batches])


async def test_traced_graphs_are_trained() -> None:
    table = xp.asarray(numbers(4, 2))
    x, y = numbers(6, 4, seed=1), numbers(6, 2, seed=2)

    def loss(x: Any, y: Any) -> Any:
        return xp.mean(xp.square((x * xp.asarray([1.0, 2.0, 3.0, 4.0])) @ table - y))

    graph = af.to_graph(loss, x, y)
    result = graph["result/out"]
    assert [variable.name for variable in trainable(result)] == ["captured"]  # no constants
    train = af.nn.SGD(0.05).minimize(result)
    async with graph:
        losses = [float((await graph.run({"x": x, "y": y}, fetch=[result, train]))[result]) for _ in range(5)]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0]


async def test_traced_graphs_run_on_devices_and_their_gradients_too() -> None:
    weights, x = example()
    graph = af.to_graph(lambda weights, x: network(weights, x)["loss"], weights, x, place="sim:0")
    with graph.at("sim:0"):
        grad = af.gradient(graph["result/out"], graph["weights.w1"])
    places = {op.operation.kind: str(op.place) for op in graph.compile().ops}
    assert places["Matmul"] == places["VectorNorm"] == places["ArgSort"] == "sim:0"
    assert "Recorded" not in places
    async with graph:
        result = await graph.run(feeds_of(weights, x), fetch=["result/out", grad])
    np.testing.assert_allclose(result["result/out"], expected_of(weights, x)[1].mean())
    slopes = af.grad(lambda weights, x: network(weights, x)["loss"])(weights, x)
    np.testing.assert_allclose(af.to_numpy(result[grad]), slopes["w1"].to_numpy())


def test_ops_have_the_names_and_the_lines_of_the_code() -> None:
    graph = af.to_graph(network, *example())
    sites = {op.name: op.site for op in graph.ops}
    first = network.__code__.co_firstlineno
    lines = {"matmul": 1, "add": 1, "maximum": 1, "argsort": 2, "take_along_axis": 3, "vector_norm": 3, "sum": 4}
    for name, line in lines.items():
        site = sites[name]
        assert (site.filename, site.line, site.function) == (__file__, first + line, "network"), name
    assert "vector_norm" in graph.summary()


async def test_failures_name_the_line_of_the_code() -> None:
    graph = af.to_graph(lambda x: xp.sum(xp.linalg.inv(x)), af.TensorSpec.of((2, 2), "float64"))
    async with graph:
        with pytest.raises(af.OpError, match=r"op 'inv' \(Inv\(\)\) failed with LinAlgError(.|\n)*test_tracing\.py"):
            await graph.run({"x": np.zeros((2, 2))})


async def test_random_numbers_of_graphs_are_others_in_each_frame() -> None:
    graph = af.to_graph(lambda x: (x * xp.randn((4,)), x * xp.randb((64,), 0.5)[:4], x * xp.randn((4,), seed=1)), DRAWN)
    async with graph:
        runs = [await graph.run({"x": np.ones(4, "float32")}) for _ in range(2)]
    drawn = [[run[f"result{i}/out"] for run in runs] for i in range(3)]
    assert not np.array_equal(*drawn[0])
    assert set(np.unique(drawn[1]).tolist()) <= {0.0, 1.0}
    np.testing.assert_array_equal(*drawn[2])


DRAWN = af.TensorSpec.of((4,))


def test_what_a_function_makes_of_numbers_alone() -> None:
    graph = af.to_graph(lambda x: (xp.arange(3), xp.asarray([4, 5]), xp.ones(2) + 1.0, x), af.TensorSpec.of(()))
    result = graph.run_sync({"x": np.float32(2.0)})
    assert [result[f"result{i}/out"].tolist() for i in range(4)] == [[0, 1, 2], [4, 5], [2.0, 2.0], 2.0]


def test_operations_of_networks_take_labels_made_inside() -> None:
    x = numbers(3, 4)
    graph = af.to_graph(lambda x: xp.nn.softmax_loss(x, xp.asarray([1, 0, 3])), x)
    expected = xp.nn.softmax_loss(xp.asarray(x), xp.asarray([1, 0, 3]))
    np.testing.assert_allclose(graph.run_sync({"x": x})["result/out"], expected.to_numpy())
