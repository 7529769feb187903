"""Description of a graph for the page."""

import json

import numpy as np

import actorflow as af
from actorflow.ops.function import Function
from actorflow.web.wire import capture


def captured(graph: af.Graph) -> tuple[dict, object]:
    structure = capture(graph.name, graph.revision, graph.nodes)
    return json.loads(structure.message), structure


def test_nodes_are_described() -> None:
    graph = af.Graph("shown")
    x = graph.blob("x", (2, 3), "float64")
    scope = graph.subgraph("inner")
    w = scope.variable("w", (3,))
    op = scope.function("double", lambda x, w: x, af.TensorSpec.of((2, 3)), lane="side")
    op(x, w)
    message, structure = captured(graph)
    assert (message["type"], message["name"], message["revision"]) == ("graph", "shown", graph.revision)
    nodes = {node["name"]: node for node in message["nodes"]}
    assert [node["name"] for node in message["nodes"]] == [node.name for node in graph.nodes]
    blob, variable, shown = nodes["x"], nodes["inner/w"], nodes["inner/double"]
    assert (blob["kind"], blob["shape"], blob["dtype"]) == ("blob", [2, 3], "float64")
    assert (blob["bytes"], blob["rank"], blob["device"]) == (48, 0, "cpu")
    assert (variable["kind"], variable["label"]) == ("variable", "w")
    assert (shown["kind"], shown["lane"], shown["operation_kind"]) == ("op", "side", "Function")
    assert shown["operation"] == str(op.operation)
    assert shown["id"] == op.id
    assert __file__ in shown["site"]
    assert structure.op_ids.tolist() == [op.id]
    assert [message["nodes"][i]["name"] for i in structure.op_index] == ["inner/double"]
    assert [structure.index_of[node["id"]] for node in message["nodes"]] == list(range(len(graph.nodes)))
    assert structure.names == [node.name for node in graph.nodes]


def test_ops_say_what_they_compute() -> None:
    graph = af.Graph("shown")
    x, z = graph.blob("x", (2, 3)), graph.blob("z", ("n", 3))
    af.ops.exp(x, name="known")
    af.ops.exp(z, name="open")
    graph.function("own", lambda x: x, af.TensorSpec.of((2, 3)))(x)
    graph.op("loose", af.ops.Relu())
    message, _ = captured(graph)
    found = {node["name"]: node["flops"] for node in message["nodes"] if node["kind"] == "op"}
    assert found == {"known": 6, "open": "3*n", "own": None, "loose": None}


def test_edges_follow_the_data_and_updates_go_back(make_training_graph) -> None:
    graph, _, _ = make_training_graph(blocks=3)
    message, _ = captured(graph)
    names = [node["name"] for node in message["nodes"]]
    edges = {(names[a], names[b]): back for a, b, back in message["edges"]}
    expected = {(blob.name, op.name) for op in graph.ops for blob in op.inputs}
    expected |= {(op.name, blob.name) for op in graph.ops for blob in op.outputs}
    assert set(edges) == expected
    assert {edge for edge, back in edges.items() if back} == {(f"block{i}/update", f"block{i}/w") for i in range(3)}


def test_a_graph_with_a_cycle_is_shown() -> None:
    graph = af.Graph("cycle")
    a, b = graph.blob("a", (2,)), graph.blob("b", (2,))
    [a] >> graph.function("there", lambda a: a) >> [b]
    [b] >> graph.function("back", lambda b: b) >> [a]
    message, _ = captured(graph)
    assert len(message["nodes"]) == 4
    assert len(message["edges"]) == 4


def test_places_are_told_apart() -> None:
    graph = af.Graph("placed")
    graph.blob("there", (2,), place="1/sim:0")
    (node,) = captured(graph)[0]["nodes"]
    assert (node["rank"], node["device"]) == (1, "sim:0")


def test_an_operation_that_cannot_say_its_name_is_shown() -> None:
    class Mute(Function):
        def __str__(self) -> str:
            raise RuntimeError("no name")

    graph = af.Graph("mute")
    graph.op("op", Mute(np.negative))
    message, _ = captured(graph)
    assert message["nodes"][0]["operation"] == "<Mute that cannot be shown: RuntimeError>"


def test_nodes_that_came_later_are_left_to_the_next_revision() -> None:
    graph = af.Graph("growing")
    x = graph.blob("x", (2,))
    op = graph.function("f", lambda x: x, af.TensorSpec.of((2,)))
    before = graph.nodes
    op(x)
    message = json.loads(capture(graph.name, 0, before).message)
    assert [node["name"] for node in message["nodes"]] == ["x", "f"]
    assert message["edges"] == [[0, 1, 0]]


def test_an_empty_graph() -> None:
    message, structure = captured(af.Graph("empty"))
    assert message["nodes"] == message["edges"] == []
    assert len(structure.op_ids) == 0
