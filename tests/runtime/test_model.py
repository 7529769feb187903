"""Models: graphs with names for inputs and outputs."""

import numpy as np
import pytest

import actorflow as af


def doubled() -> tuple[af.Graph, af.Blob, af.Blob]:
    graph = af.Graph("doubled")
    x, unused = graph.blob("x", ("batch", 2)), graph.blob("unused", 3)
    y = af.ops.scale(x, 2.0, name="double")
    af.ops.scale(unused, 3.0)
    return graph, x, y


async def test_runs_by_outer_names() -> None:
    graph, x, y = doubled()
    model = af.Model(graph, {"input": x}, {"output": y, "same": y})
    async with graph:
        result = await model.run({"input": np.ones((3, 2), np.float32)})
    assert list(result) == ["output", "same"]
    np.testing.assert_array_equal(result["output"], np.full((3, 2), 2.0, np.float32))


def test_of_a_graph_has_what_the_outputs_need() -> None:
    graph, x, y = doubled()
    model = af.Model.of(graph, fetch=y)
    assert (model.inputs, model.outputs) == ({"x": x}, {"double/out": y})
    assert list(af.Model.of(graph).inputs) == ["x", "unused"]
    assert af.Model.of(graph, fetch="double/out").outputs == model.outputs
    np.testing.assert_array_equal(model.run_sync({"x": [[1, 2]]})["double/out"], [[2, 4]])


def test_fetches_outputs_and_other_blobs_by_name() -> None:
    graph, x, y = doubled()
    z = af.ops.relu(y, name="relu")
    model = af.Model(graph, {"input": x}, {"output": z})
    found = model.run_sync({"input": [[1, -1]]}, fetch=["double/out", "output"])
    assert {name: value.tolist() for name, value in found.items()} == {"double/out": [[2, -2]], "output": [[2, 0]]}
    with pytest.raises(af.GraphError, match="'double' is no blob; its outputs: 'double/out'"):
        model.run_sync({"input": [[1, -1]]}, fetch="double")


def test_an_op_alone_has_no_value() -> None:
    graph, x, _ = doubled()
    result = graph.run_sync({x: [[1, 2]]}, fetch=["double"])
    with pytest.raises(KeyError, match=r"fetched: nothing \(ops are run, only blobs have values\)"):
        result["double"]


async def test_batches_its_outputs() -> None:
    graph, x, y = doubled()
    model = af.Model.of(graph, fetch=y)
    async with graph, model.batched(max_rows=4) as batcher:
        result = await batcher.run({x: np.ones((1, 2), np.float32)})
    assert result[y].shape == (1, 2)


def test_names_what_is_missing_or_unknown() -> None:
    graph, x, y = doubled()
    model = af.Model(graph, {"input": x}, {"output": y})
    with pytest.raises(af.FeedError, match=r"no value for input 'input' float32\[batch, 2\]"):
        model.feeds({})
    with pytest.raises(af.FeedError, match="has no input 'inputs'; did you mean 'input'"):
        model.feeds({"inputs": 0})


def test_refuses_what_is_no_model() -> None:
    graph, x, y = doubled()
    other = af.Graph("other").blob("x", 1)
    with pytest.raises(af.GraphError, match="its outputs need x, which is no input"):
        af.Model(graph, {}, {"output": y})
    with pytest.raises(af.GraphError, match="has no output"):
        af.Model(graph, {"input": x}, {})
    with pytest.raises(af.GraphError, match="is not in graph 'doubled'"):
        af.Model(graph, {"input": other}, {"output": y})
    with pytest.raises(af.GraphError, match="has no blob, op or sub-graph named 'z'"):
        af.Model.of(graph, fetch="z")
    with graph.subgraph("part") as part:
        z = y + 1
    for make in (lambda: af.Model.of(part), lambda: af.Model(part, {"input": x}, {"output": z})):
        with pytest.raises(af.GraphError, match="'part' is a sub-graph: make a model of its root 'doubled'"):
            make()
