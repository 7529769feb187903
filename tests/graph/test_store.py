"""A definition call is a transaction: one that fails leaves the graph as it was, whatever it has made before."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import actorflow as af
from actorflow import nn, ops


def picture(graph: af.Graph) -> Any:
    """All that one can see of a graph, but for the numbers of nodes."""
    blobs = {b.name: ([op.name for op in b.producers], [op.name for op in b.consumers]) for b in graph.blobs}
    connections = {op.name: [[b.name for b in blobs] for blobs in (op.inputs, op.outputs)] for op in graph.ops}
    return [node.name for node in graph.nodes], blobs, connections, list(graph._store.scopes)


class Fuse:
    """Lets so many nodes be made and raises at the next one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 10**9
        take_id = af.Graph("g")._store.take_id.__func__

        def burning(members: Any) -> int:
            if not self.left:
                raise LookupError("the fuse has burnt")
            self.left -= 1
            return take_id(members)

        monkeypatch.setattr("actorflow.graph.store.Store.take_id", burning)


@pytest.fixture
def fuse(monkeypatch: pytest.MonkeyPatch) -> Fuse:
    return Fuse(monkeypatch)


def made() -> af.Graph:
    graph = af.Graph("g")
    graph.blob("x", (4, 6, 6, 3))
    graph.blob("rows", (4, 5))
    graph.blob("more", (4, 5))
    graph.variable("w", (7, 5), init=0.5)
    graph.variable("filters", (3, 3, 2, 3))
    with graph.subgraph("loss"):
        scores = ops.inner(graph["rows"], graph["w"])
        ops.mean(ops.multiply(scores, ops.tanh(scores)), name="value")
    [graph["w"]] >> graph.op("copy", ops.Copy()) >> [graph.blob("copied", (7, 5))]
    return graph


Call = Callable[[], Any]


def to_blobs(graph: af.Graph) -> Call:
    class Two(af.Composite):
        def build(self, *bottom: af.Blob, training: bool) -> Any:
            return ops.relu(bottom[0]), ops.tanh(bottom[0])

    two, tops = Two(), [graph.blob(name, (4, 5)) for name in ("first", "second")]
    two(graph["rows"])
    return lambda: two >> tops


def training(graph: af.Graph) -> Call:
    parallel = nn.parallel.DataParallel(nn.InnerProduct(3), ["cpu", "cpu"], loss=lambda y: ops.mean(y))
    parallel(graph["rows"])
    optimizer = nn.SGD(0.1, momentum=0.9)
    return lambda: parallel.minimize(optimizer)


def normalizing(graph: af.Graph) -> Call:
    running = [graph.variable(name, 5, init=1.0) for name in ("mean", "variance")]
    return lambda: ops.batch_norm(graph["rows"], *running, training=True)


def one_step(graph: af.Graph) -> Call:
    hidden, cell = (graph.blob(name, (4, 2)) for name in ("hidden", "cell"))
    weights = [graph.variable("weight_x", (8, 5)), graph.variable("weight_h", (8, 2))]
    return lambda: ops.lstm_cell(graph["rows"], hidden, cell, *weights)


def stepping(graph: af.Graph) -> Call:
    optimizer = nn.SGD(0.1, momentum=0.9)
    return lambda: optimizer.descend({graph["w"]: graph["copied"]})


#: Calls that make several nodes each, on a graph.
CALLS: dict[str, Callable[[af.Graph], Call]] = {
    "op": lambda graph: lambda: ops.relu(graph["rows"]),
    "several outputs": lambda graph: lambda: ops.split(graph["rows"], 5, axis=1),
    "function": lambda graph: partial(graph.function("f", abs, [graph["rows"].spec] * 2), graph["rows"]),
    "batch_norm": normalizing,
    "clip_by_global_norm": lambda graph: lambda: ops.clip_by_global_norm([graph["rows"], graph["w"]], 1.0),
    "conv_transpose": lambda graph: lambda: ops.conv_transpose(graph["x"], graph["filters"], stride=4, output_pad=3),
    "stack": lambda graph: lambda: ops.stack([graph["rows"], graph["more"]]),
    "global_max": lambda graph: lambda: ops.global_max(graph["x"]),
    "slice": lambda graph: lambda: ops.slice(graph["x"], (0, slice(None, None, -1))),
    "lstm_cell": one_step,
    "layer": lambda graph: lambda: nn.Conv(4, 3, activation="relu")(graph["x"]),
    "model": lambda graph: lambda: (nn.Conv(4, 3) >> nn.BatchNorm() >> nn.Flatten())(graph["x"]),
    "to blobs": to_blobs,
    "gradient": lambda graph: lambda: af.gradient(graph["loss/value/out"], graph["w"]),
    "minimize": lambda graph: partial(nn.Adam(0.1).minimize, graph["loss/value/out"]),
    "descend": stepping,
    "parallel": training,
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_fails_anywhere_leaves_nothing(name: str, fuse: Fuse) -> None:
    """Made to fail at its first node, at its second one, ..., it makes in the end what it makes in another graph."""
    graph, other = made(), made()
    call = CALLS[name](graph)
    before, left = picture(graph), 0
    while True:
        fuse.left = left
        try:
            call()
        except LookupError:
            found = picture(graph)
            if name == "function":  # its first connection: see below
                assert found[0] == [each for each in before[0] if each != "f"]
                before = found
            assert found == before
            assert graph.current_scope is graph
            assert not graph._store._restores
            left += 1
        else:
            break
    assert left > 1
    fuse.left = 10**9
    CALLS[name](other)()
    if name != "function":  # which stands elsewhere now
        assert picture(graph) == picture(other)
    assert set(picture(graph)[0]) == set(picture(other)[0])


class TestConnections:
    """An op whose first connection fails leaves the graph, and comes back with the first one that succeeds."""

    @pytest.mark.together(
        "connect",
        [
            lambda h, other: h.graph.function("p", abs)(h),  # which does not say what its output is
            lambda h, other: h.graph.op("p", ops.Inner())(h),
            lambda h, other: [h] >> h.graph.op("p", ops.Inner()),
            lambda h, other: [other] >> h.graph.op("p", ops.Copy()),
            lambda h, other: h.graph.op("p", ops.Copy()) >> [other],
            lambda h, other: h.graph.op("p", ops.Copy()) >> [h, h],
            lambda h, other: h.graph.op("p", ops.Copy()) >> h.graph.op("q", ops.Copy()),
        ],
    )
    def test_its_name_is_free(self, connect: Any) -> None:
        graph, other = af.Graph("g"), af.Graph("other").blob("x", 3)
        h = graph.blob("h", 3)
        with pytest.raises(af.GraphError):
            connect(h, other)
        assert "q" in graph or picture(graph) == (["h"], {"h": ([], [])}, {}, [])
        assert graph.function("p" if "q" not in graph else "r", abs, h.spec)(h).producers[0].name in "pr"

    def test_it_comes_back(self) -> None:
        graph = af.Graph("g")
        h, y = graph.blob("h", 3), graph.blob("y", 3)
        op = graph.function("p", lambda h: h + 1)
        with pytest.raises(af.GraphError, match=r"op 'p' .* does not say what its outputs are: give outputs= or"):
            op(h)
        assert op not in graph
        assert h.consumers == []
        [h] >> op >> [y]
        assert graph["p"] is op
        assert [node.id for node in graph.nodes] == sorted(node.id for node in graph.nodes)
        np.testing.assert_array_equal(graph.run_sync({h: [1, 2, 3]})[y], [2, 3, 4])

    def test_not_when_another_one_has_its_name_by_then(self) -> None:
        graph = af.Graph("g")
        h = graph.blob("h", 3)
        op = graph.function("p", abs)
        with pytest.raises(af.GraphError, match="does not say what its outputs are"):
            op(h)
        again = graph.function("p", abs)
        with pytest.raises(af.GraphError, match="the name 'p' is taken by <Op 'p'"):
            [h] >> op
        assert graph["p"] is again
        assert h.consumers == []

    def test_what_was_deleted_stays_so(self) -> None:
        graph = af.Graph("g")
        h = graph.blob("h", 3)
        with graph.subgraph("part"):
            op, withdrawn = graph.op("p", ops.Copy()), graph.op("q", ops.Inner())
        with pytest.raises(af.GraphError, match="takes 2"):
            withdrawn(h)
        graph.delete_subgraph("part")
        for gone in (op, withdrawn):
            with pytest.raises(af.GraphError, match=rf"op '{gone.name}' was deleted: it cannot be connected"):
                [h] >> gone
        assert picture(graph) == (["h"], {"h": ([], [])}, {}, [])

    def test_a_connection_that_there_was_stays(self) -> None:
        graph = af.Graph("g")
        x, y, wrong = graph.blob("x", 3), graph.blob("y", 3), graph.blob("wrong", 4)
        op = graph.op("p", ops.Copy())
        [x] >> op
        before = picture(graph)
        for fail in (lambda: op >> [wrong], lambda: [x] >> op, lambda: op(x)):
            with pytest.raises(af.GraphError):
                fail()
            assert picture(graph) == before
        op >> [y]
        assert graph.compile().ops[0].node is op

    @given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), st.booleans()), max_size=12))
    def test_any_calls_are_as_if_those_that_failed_had_not_been(self, calls: list[tuple[int, int, bool]]) -> None:
        shapes = [(3,), (3,), (4,), (3,)]

        def connect(graph: af.Graph, kind: int, number: int, first: bool) -> None:
            blobs, name = graph.blobs, f"op{number}"
            source, target = blobs[number % 4], blobs[(number + 1) % 4]
            op = graph[name] if first and name in graph else None
            if kind == 0:
                (op or graph.op(name, ops.Copy()))(source)
            elif kind == 1:
                [source] >> (op or graph.op(name, ops.Copy()))
            elif kind == 2:
                (op or graph.op(name, ops.Copy())) >> [target]
            else:
                (op or graph.function(name, abs))(source)

        graphs = [af.Graph("g"), af.Graph("g")]
        for graph in graphs:
            for i, shape in enumerate(shapes):
                graph.blob(f"x{i}", shape)
        for call in calls:
            before = picture(graphs[0])
            try:
                connect(graphs[0], *call)
            except af.GraphError:
                assert picture(graphs[0]) == before
            else:
                connect(graphs[1], *call)
            assert picture(graphs[0]) == picture(graphs[1])
