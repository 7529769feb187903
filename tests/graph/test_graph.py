"""Graphs: names, scopes, defaults, deletion, selection."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import actorflow as af
from actorflow import ops

names = st.text(st.characters(blacklist_characters="/"), min_size=1, max_size=8).filter(str.isprintable)


@pytest.fixture
def graph() -> Iterator[af.Graph]:
    graph = af.Graph("g")
    yield graph
    asyncio.run(graph.aclose())


def node_names(graph: af.Graph) -> list[str]:
    return [node.name for node in graph.nodes]


class TestNames:
    @given(names)
    def test_any_printable_name(self, name: str) -> None:
        graph = af.Graph(name)
        blob = graph.subgraph(name).blob(name, 3)
        assert blob.name == f"{name}/{name}"
        assert graph[blob.name] is blob
        assert blob in graph

    @pytest.mark.parametrize("name", ["", "a/b", "a\nb", "\x00", 3, None])
    def test_no_name(self, graph: af.Graph, name: Any) -> None:
        message = r"cannot name a node: a name is printable, not empty and has no '/'"
        for make in (
            lambda: graph.blob(name, 3),
            lambda: graph.variable(name, 3),
            lambda: graph.op(name, ops.Copy()),
            lambda: graph.function(name, abs),
            lambda: graph.subgraph(name),
        ):
            with pytest.raises(af.GraphError, match=message):
                make()
        with pytest.raises(af.GraphError, match="cannot name a graph"):
            af.Graph(name)
        assert graph.nodes == ()

    def test_a_name_is_taken_once_whatever_it_names(self, graph: af.Graph) -> None:
        graph.blob("a", 3)
        graph.op("b", ops.Copy())
        graph.subgraph("c")
        taken = {
            "a": r"<Blob 'a' float32\[3\] on cpu>, created at .*test_graph\.py:\d+",
            "b": "<Op 'b'",
            "c": "<Graph 'c'",
        }
        for name, by in taken.items():
            for make in (
                lambda name=name: graph.blob(name, 3),
                lambda name=name: graph.variable(name, 3),
                lambda name=name: graph.op(name, ops.Copy()),
                lambda name=name: graph.subgraph(name),
            ):
                with pytest.raises(af.GraphError, match=f"the name '{name}' is taken by {by}"):
                    make()
        assert node_names(graph) == ["a", "b"]

    def test_one_name_in_two_scopes(self, graph: af.Graph) -> None:
        first, second = graph.subgraph("first"), graph.subgraph("second")
        blobs = [scope.blob("x", 3) for scope in (graph, first, second, first.subgraph("y").subgraph("y"))]
        assert [blob.name for blob in blobs] == ["x", "first/x", "second/x", "first/y/y/x"]
        assert [graph[blob.name] for blob in blobs] == blobs

    def test_a_blob_and_a_scope_cannot_share_a_name(self, graph: af.Graph) -> None:
        scope = graph.subgraph("s")
        scope.blob("x", 3)
        with pytest.raises(af.GraphError, match="the name 's/x' is taken by <Blob 's/x'"):
            scope.subgraph("x")

    def test_functional_names_are_made_unique(self, graph: af.Graph) -> None:
        x = graph.blob("x", 3)
        graph.blob("relu_2", 3)
        outputs = [ops.relu(x), ops.relu(x), ops.relu(x), ops.relu(x, name="mine"), ops.relu(x, name="mine")]
        assert [y.name for y in outputs] == ["relu/out", "relu_1/out", "relu_3/out", "mine/out", "mine_1/out"]

    def test_ids_are_never_used_again(self, graph: af.Graph) -> None:
        part = graph.subgraph("part")
        ids = [graph.blob("a", 3).id, part.blob("b", 3).id]
        graph.delete_subgraph("part")
        ids.append(graph.blob("c", 3).id)
        assert ids == [0, 1, 2]
        assert graph.size == 3


class TestScopes:
    def test_nested_scopes_share_the_root(self, graph: af.Graph) -> None:
        outer = graph.subgraph("outer")
        inner = outer.subgraph("inner")
        x = inner.blob("x", 3)
        assert (outer.name, inner.name, x.name) == ("outer", "outer/inner", "outer/inner/x")
        assert inner.root is outer.root is graph.root is graph
        assert (graph.parent, outer.parent, inner.parent) == (None, graph, outer)
        assert x.graph is inner
        assert graph["outer/inner/x"] is outer["inner/x"] is inner["x"] is x
        assert graph["outer/inner"] is outer["inner"] is inner

    def test_each_scope_sees_its_own(self, graph: af.Graph) -> None:
        a, ab = graph.subgraph("a"), graph.subgraph("ab")
        x = graph.blob("x", 3)
        y = a.op("copy", ops.Copy())(x)
        w = ab.variable("w", 3)
        assert graph.nodes == (x, *a.nodes, w)
        assert a.nodes == (a["copy"], y)  # and nothing of "ab"
        assert (a.ops, a.blobs, a.variables) == ((a["copy"],), (y,), ())
        assert (ab.nodes, ab.variables) == ((w,), (w,))
        assert (graph.sources, graph.sinks) == ((x,), (y,))
        assert (a.sources, a.sinks, ab.sources, ab.sinks) == ((), (y,), (), ())

    def test_what_is_made_inside_goes_there_whatever_it_is(self, graph: af.Graph) -> None:
        with graph.subgraph("a") as a:
            x = graph.blob("x", 3)
            made = [
                x,
                graph.variable("w", 3),
                graph.op("op", ops.Copy()),
                graph.function("f", abs),
                ops.relu(x),
                af.nn.Activation("tanh", name="layer")(x),
            ]
            inner = graph.subgraph("inner")
        names = ["a/x", "a/w", "a/op", "a/f", "a/relu/out", "a/layer/tanh/out"]
        assert [each.name for each in made] == names
        assert [each.graph for each in made[:5]] == [a] * 5
        assert (inner.name, inner.parent) == ("a/inner", a)
        assert graph.blob("x", 3).name == "x"

    def test_a_scope_elsewhere_makes_no_difference(self, graph: af.Graph) -> None:
        a, other = graph.subgraph("a"), graph.subgraph("ab")
        with other:
            assert a.blob("x", 3).name == "a/x"
            assert a.subgraph("b").name == "a/b"
        with a:
            assert a.blob("y", 3).name == "a/y"
            assert graph["a/b"].blob("x", 3).name == "a/b/x"
            with graph["a/b"]:
                assert a.blob("y", 3).name == graph.blob("z", 3).name.replace("z", "y") == "a/b/y"
            with pytest.raises(af.GraphError, match="the name 'a/x' is taken by"):
                graph.blob("x", 3)

    def test_the_functional_form_goes_to_the_current_scope(self, graph: af.Graph) -> None:
        x = graph.blob("x", 3)
        with graph.subgraph("a") as a:
            assert graph.current_scope is a
            first = ops.relu(x)
            with a.subgraph("b"):
                second = ops.relu(first)
            third = ops.relu(second)
        last = ops.relu(third)
        assert [blob.name for blob in (first, second, third, last)] == [
            "a/relu/out",
            "a/b/relu/out",
            "a/relu_1/out",
            "relu/out",
        ]

    def test_an_error_leaves_the_scope(self, graph: af.Graph) -> None:
        lane = graph.op("before", ops.Copy()).lane
        with pytest.raises(ZeroDivisionError), graph.subgraph("a"), graph.at(lane="side"):
            _ = 1 / 0
        assert graph.current_scope is graph
        assert graph.op("after", ops.Copy()).lane == lane

    def test_only_the_root_runs(self, graph: af.Graph) -> None:
        with pytest.raises(
            af.GraphError, match=r"'part' is a sub-graph: run its root 'g', with fetch=\[\.\.\.\] for this part of it"
        ):
            graph.subgraph("part").compile()

    def test_repr(self, graph: af.Graph) -> None:
        ops.relu(graph.subgraph("a").blob("x", 3))
        assert repr(graph) == "<Graph 'g': 1 ops, 2 blobs>"
        assert repr(graph["a"]) == "<Graph 'a': 0 ops, 1 blobs>"


class TestDefaults:
    def test_place_and_lane_of_what_is_made_inside(self, graph: af.Graph) -> None:
        default = graph.op("before", ops.Copy()).lane
        with graph.at("cuda:0", lane="side"):
            op, blob, variable = graph.op("op", ops.Copy()), graph.blob("b", 3), graph.variable("v", 3)
            with graph.at(lane="fetch"):
                inner = graph.op("inner", ops.Copy())
            with graph.subgraph("s").at("1/cuda:1"):
                nested = graph["s"].op("nested", ops.Copy())
            own = graph.op("own", ops.Copy(), place="cpu", lane="main")
        after = graph.op("after", ops.Copy())
        assert after.lane == default
        assert [str(node.place) for node in (op, blob, variable, inner, nested, own, after)] == [
            *["cuda:0"] * 4,
            "1/cuda:1",
            "cpu",
            "cpu",
        ]
        assert [node.lane for node in (op, inner, nested, own)] == ["side", "fetch", "side", "main"]

    def test_the_functional_form_uses_them(self, graph: af.Graph) -> None:
        x = graph.blob("x", 3)
        with graph.at(af.Place(0, 1, "sim"), lane="side"):
            y = ops.relu(x)
        assert (str(y.place), str(y.producers[0].place), y.producers[0].lane) == ("sim:1", "sim:1", "side")

    def test_no_place(self, graph: af.Graph) -> None:
        with pytest.raises(af.PlaceError, match="'gpu 0' is not a place"), graph.at("gpu 0"):
            pass
        with pytest.raises(af.PlaceError, match="'gpu 0' is not a place"):
            graph.blob("x", 3, place="gpu 0")
        with pytest.raises(af.PlaceError, match="'gpu 0' is not a place"):
            graph.op("o", ops.Copy(), place="gpu 0")
        assert graph.nodes == ()

    @pytest.mark.parametrize(
        ("shape", "dtype", "error"), [((2, -1), "float32", af.ShapeError), (2, "float33", af.DTypeError)]
    )
    def test_wrong_types_make_nothing(self, graph: af.Graph, shape: Any, dtype: str, error: type[Exception]) -> None:
        for make in (graph.blob, graph.variable):
            with pytest.raises(error):
                make("x", shape, dtype)
        assert graph.nodes == ()

    def test_names_of_what_functional_forms_make_inside(self, graph: af.Graph) -> None:
        x = graph.blob("x", 3)
        with graph.at(name="head"):
            first = ops.relu(x) * 2.0
            with graph.subgraph("deep"):
                ops.relu(x)
            ops.relu(first, name="own")
        ops.relu(x)
        with graph.at(name="head"):
            ops.relu(x)
        names = [op.name for op in graph.ops]
        assert names == ["head", "head.number", "head.multiply", "deep/head", "head.own", "relu", "head.relu"]


class TestResolving:
    def test_names_nodes_and_graphs(self, graph: af.Graph) -> None:
        part = graph.subgraph("part")
        x = part.blob("x", 3)
        for target in (x, "part/x"):
            assert graph.resolve(target) is x
        for target in (part, "part"):
            assert graph.resolve(target) is part
        assert graph.resolve(graph) is graph

    @pytest.mark.parametrize("name", ["y", "part/y", "part/", "", "/part", "relu"])
    def test_unknown_names(self, graph: af.Graph, name: str) -> None:
        graph.subgraph("part")
        with pytest.raises(af.GraphError, match=f"graph 'g' has no blob, op or sub-graph named '{name}'"):
            graph[name]
        assert name not in graph

    def test_names_that_are_nearly_right(self, graph: af.Graph) -> None:
        with graph.subgraph("encoder") as part:
            ops.relu(part.blob("x", 3), name="conv")
        for wrong, right in {"encodr": "'encoder'", "encoder/conf": "'encoder/conv'", "x": "'encoder/x'"}.items():
            with pytest.raises(af.GraphError, match=rf"named '{wrong}'; did you mean .*{right}.*\?$"):
                graph[wrong]
        with pytest.raises(af.GraphError, match=r"graph 'encoder' has no .* named 'conf'; did you mean 'conv'"):
            part["conf"]
        with pytest.raises(af.GraphError, match=r"sub-graphs: encoder; did you mean 'encoder'\?$"):
            graph.delete_subgraph("encoded")

    def test_nodes_and_graphs_of_others(self, graph: af.Graph) -> None:
        other = af.Graph("other")
        graph.blob("x", 3)
        with pytest.raises(af.GraphError, match=r"<Blob 'x' .*> is not in graph 'g'"):
            graph.resolve(other.blob("x", 3))
        with pytest.raises(af.GraphError, match="'part' is not a part of graph 'g'"):
            graph.resolve(other.subgraph("part"))
        with pytest.raises(af.GraphError, match="'other' is not a part of graph 'g'"):
            graph.resolve(other)
        assert other["x"] not in graph

    @pytest.mark.parametrize("thing", [3, None, 1.5, b"x", ("x",)])
    def test_what_cannot_be_in_a_graph(self, graph: af.Graph, thing: Any) -> None:
        with pytest.raises(af.GraphError, match="expected a blob, an op, a sub-graph or a name, got"):
            graph.resolve(thing)
        assert thing not in graph

    def test_iteration_says_what_over(self, graph: af.Graph) -> None:
        with pytest.raises(TypeError, match="'Graph' object is not iterable"):
            list(graph)  # type: ignore[call-overload]


class TestApply:
    def test_a_failed_call_leaves_nothing_behind(self, graph: af.Graph) -> None:
        x, y = graph.blob("x", (2, 3)), graph.blob("y", (3, 2))
        for make in (
            lambda: ops.multiply(x, y),
            lambda: graph.apply(ops.Function(abs), x),
            lambda: graph.apply(Broken(), x),
        ):
            with pytest.raises((af.GraphError, IndexError)):
                make()
        assert node_names(graph) == ["x", "y"]
        assert x.consumers == y.consumers == []
        assert ops.multiply(x, x).name == "multiply/out"

    def test_no_blobs(self, graph: af.Graph) -> None:
        with pytest.raises(af.GraphError, match="Sum: give at least one blob"):
            ops.add()


class Broken(ops.Operation):
    def infer(self, *inputs: af.TensorSpec) -> tuple[af.TensorSpec, ...]:
        raise IndexError


class TestSourcesAndSinks:
    def test_variables_are_neither(self, graph: af.Graph) -> None:
        x, w = graph.blob("x", 3), graph.variable("w", 3)
        y = ops.multiply(x, w)
        [y] >> graph.op("update", ops.Copy()) >> [w]
        assert graph.sources == (x,)
        assert graph.sinks == ()  # y is read by the update
        z = ops.relu(y)
        assert graph.sinks == (z,)

    def test_blobs_nobody_connected(self, graph: af.Graph) -> None:
        x = graph.blob("x", 3)
        assert graph.sources == (x,)
        assert graph.sinks == ()


class TestDeletion:
    def build(self, graph: af.Graph) -> tuple[af.Blob, af.Blob, af.Blob]:
        x = graph.blob("x", 3)
        with graph.subgraph("a") as a:
            y = ops.relu(x)
            with a.subgraph("b"):
                z = ops.relu(y)
        return x, y, z

    def test_a_sub_graph_goes_with_all_that_is_in_it(self, graph: af.Graph) -> None:
        x, y, _ = self.build(graph)
        inner = graph["a/b"]
        graph.delete_subgraph("a")
        assert node_names(graph) == ["x"]
        assert x.consumers == []
        assert inner not in graph
        assert y not in graph
        assert "a/b" not in graph
        assert graph.subgraph("a").blob("again", 3).name == "a/again"

    def test_only_the_inner_one(self, graph: af.Graph) -> None:
        _, y, _ = self.build(graph)
        graph["a"].delete_subgraph("b")
        assert node_names(graph) == ["x", "a/relu", "a/relu/out"]
        assert graph.sinks == (y,)

    def test_names_that_only_start_alike_stay(self, graph: af.Graph) -> None:
        self.build(graph)
        graph.subgraph("ab").blob("x", 3)
        graph.blob("a_x", 3)
        graph.delete_subgraph("a")
        assert node_names(graph) == ["x", "ab/x", "a_x"]

    def test_unknown(self, graph: af.Graph) -> None:
        with pytest.raises(af.GraphError, match="no sub-graph 'a' to delete; sub-graphs: none"):
            graph.delete_subgraph("a")
        self.build(graph)
        with pytest.raises(af.GraphError, match="no sub-graph 'x' to delete; sub-graphs: a, a/b"):
            graph.delete_subgraph("x")

    def test_nothing_can_be_made_in_a_deleted_one(self, graph: af.Graph) -> None:
        part = graph.subgraph("part")
        inner = part.subgraph("inner")
        graph.delete_subgraph("part")
        for scope in (part, inner):
            with pytest.raises(af.GraphError, match=f"sub-graph '{scope.name}' was deleted: nothing can be made in it"):
                scope.blob("x", 3)
        with pytest.raises(af.GraphError, match="'part' is not a part of graph 'g'"):
            graph.compile(fetch=[part])

    def test_an_op_that_loses_its_input(self, graph: af.Graph) -> None:
        _, y, _ = self.build(graph)
        ops.tanh(y)
        graph.delete_subgraph("a")
        with pytest.raises(
            af.GraphError, match=r"op 'tanh' \(Tanh\(\)\) is connected to blob 'a/relu/out', which was deleted"
        ):
            graph.compile()

    def test_a_blob_that_loses_its_producer_is_a_source(self, graph: af.Graph) -> None:
        x, y = graph.blob("x", 3), graph.blob("y", 3)
        x >> graph.subgraph("a").op("copy", ops.Copy()) >> y
        z = ops.relu(y)
        graph.delete_subgraph("a")
        assert graph.sources == (x, y)
        assert graph.run_sync({y: np.ones(3, "f"), x: np.ones(3, "f")})[z].tolist() == [1, 1, 1]


class TestPruning:
    def test_what_is_not_needed_goes(self, graph: af.Graph) -> None:
        x, unused = graph.blob("x", 3), graph.blob("unused", 3)
        w, v = graph.variable("w", 3), graph.variable("v", 3)
        y = ops.multiply(x, w)
        z = ops.multiply(y, v)
        [z] >> graph.op("update", ops.Copy()) >> [w]
        graph.prune([y])
        assert node_names(graph) == ["x", "w", "multiply", "multiply/out"]
        assert (graph.sinks, y.consumers, w.producers) == ((y,), [], [])
        assert unused not in graph
        assert graph.run_sync({x: [1, 2, 3]})[y].tolist() == [0, 0, 0]

    @pytest.mark.parametrize("sinks", [["relu"], ["relu/out"], ["part"]])
    def test_sinks_by_name(self, graph: af.Graph, sinks: list[str]) -> None:
        x = graph.blob("x", 3)
        y = ops.relu(x)
        with graph.subgraph("part"):
            ops.tanh(y)
        ops.sigmoid(y)
        graph.prune(sinks)
        assert "sigmoid" not in graph
        assert ("part/tanh" in graph) == (sinks == ["part"])

    def test_siblings_of_an_output_stay(self, graph: af.Graph) -> None:
        specs = [af.TensorSpec.of(()), af.TensorSpec.of(())]
        a, b = graph.function("f", lambda: (1.0, 2.0), outputs=specs)()
        graph.prune([a])
        assert graph.blobs == (a, b)

    def test_a_sub_graph_prunes_itself_alone(self, graph: af.Graph) -> None:
        x = graph.blob("x", 3)
        outside = ops.sigmoid(x)
        with graph.subgraph("part") as part:
            kept = ops.tanh(x)
            ops.relu(x)
        part.prune(["tanh/out"])
        assert node_names(part) == ["part/tanh", "part/tanh/out"]
        assert outside in graph
        assert kept in graph


@pytest.mark.parametrize(
    "use",
    [
        lambda no_graph, path: af.save_checkpoint_sync(no_graph, path),
        lambda no_graph, path: af.load_checkpoint_sync(no_graph, path),
        lambda no_graph, path: af.Checkpoints(no_graph, path),
        lambda no_graph, path: af.web.create_app(no_graph),
    ],
)
def test_what_is_no_graph_is_named(use: Any, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="expected a Graph, got 'net' of str"):
        use("net", tmp_path)
