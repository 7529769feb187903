"""Composites: built on blobs, connected by >>, one set of variables for all builds."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import actorflow as af
from actorflow import ops
from tests.graph.test_store import picture


class Scaled(af.Composite):
    """y = x * w, with a variable."""

    def build(self, *bottom: af.Blob, training: bool) -> af.Blob:
        (x,) = bottom
        return ops.multiply(x, self.variable(x, "w", x.shape, 2.0))


class Split(af.Composite):
    """Two tops of one bottom."""

    def build(self, *bottom: af.Blob, training: bool) -> Sequence[af.Blob]:
        (x,) = bottom
        return [ops.scale(x, 2.0), ops.scale(x, 3.0)]


class Join(af.Composite):
    """One top of two bottoms."""

    def build(self, *bottom: af.Blob, training: bool) -> af.Blob:
        return ops.add(*bottom)


class Mode(af.Composite):
    """Shows how it was built."""

    def build(self, *bottom: af.Blob, training: bool) -> af.Blob:
        return ops.scale(bottom[0], 1.0 if training else -1.0)


@pytest.fixture
def graph() -> Iterator[af.Graph]:
    graph = af.Graph("g")
    yield graph
    asyncio.run(graph.aclose())


@pytest.fixture
def x(graph: af.Graph) -> af.Blob:
    return graph.blob("x", 3)


def value(graph: af.Graph, y: af.Blob) -> Any:
    return graph.run_sync({"x": np.ones(3, "f")}, fetch=[y])[y].tolist()


class TestConnecting:
    @pytest.mark.parametrize("connect", [lambda x, c: [x] >> c, lambda x, c: (x,) >> c, lambda x, c: x >> c])
    def test_blobs_to_composite(self, graph: af.Graph, x: af.Blob, connect: Any) -> None:
        layer = Scaled("layer")
        assert connect(x, layer) is layer
        (y,) = layer.top
        assert layer.bottom == (x,)
        assert y.name == "layer/multiply/out"
        assert value(graph, y) == [2, 2, 2]

    @pytest.mark.parametrize("sequence", [list, tuple])
    def test_composite_to_blobs(self, graph: af.Graph, x: af.Blob, sequence: Any) -> None:
        a, b = graph.blob("a", 3), graph.blob("b", 3)
        outputs = sequence([a, b])
        assert [x] >> Split() >> outputs is outputs
        assert (value(graph, a), value(graph, b)) == ([2, 2, 2], [3, 3, 3])

    def test_composite_to_a_single_blob(self, graph: af.Graph, x: af.Blob) -> None:
        y = graph.blob("y", 3)
        assert x >> Scaled() >> y is y
        assert value(graph, y) == [2, 2, 2]

    def test_composite_to_composite(self, graph: af.Graph, x: af.Blob) -> None:
        split, join = Split(), Join()
        assert [x] >> split >> join is join
        assert join.bottom == split.top
        assert value(graph, join.top[0]) == [5, 5, 5]

    def test_blobs_after_composites_go_on_to_ops(self, graph: af.Graph, x: af.Blob) -> None:
        y, z = graph.blob("y", 3), graph.blob("z", 3)
        [x] >> Scaled() >> [y] >> graph.op("half", ops.Scale(0.5)) >> [z]
        assert value(graph, z) == [1, 1, 1]

    def test_a_call_returns_the_top(self, graph: af.Graph, x: af.Blob) -> None:
        layer = Scaled()
        assert layer(x) is layer.top[0]
        assert isinstance(Split()(x), tuple)

    def test_two_composites_write_one_blob(self, graph: af.Graph, x: af.Blob) -> None:
        y = graph.blob("y", 3)
        for factor in (2.0, 5.0):
            [x] >> Scaled() >> [y]
            graph.variables[-1].value = np.full(3, factor, "f")
        assert value(graph, y) == [7, 7, 7]


class TestBuildingTwice:
    def test_variables_are_shared(self, graph: af.Graph, x: af.Blob) -> None:
        layer = Scaled("layer")
        first, second = layer(x), layer(ops.relu(x))
        assert (first.name, second.name) == ("layer/multiply/out", "layer_1/multiply/out")
        assert [variable.name for variable in graph.variables] == ["layer/w"]
        assert layer.variables == graph.variables
        assert layer.top == (second,)
        graph["layer/w"].value = np.full(3, 7, "f")
        assert value(graph, first) == value(graph, second) == [7, 7, 7]

    def test_training_and_inference(self, graph: af.Graph, x: af.Blob) -> None:
        layer = Mode()
        train, test = layer(x), layer(x, training=False)
        assert (value(graph, train), value(graph, test)) == ([1, 1, 1], [-1, -1, -1])
        assert value(graph, af.Chain(Mode(), Mode(), Mode())(x, training=False)) == [-1, -1, -1]

    def test_another_shape(self, graph: af.Graph, x: af.Blob) -> None:
        layer = Scaled("layer")
        layer(x)
        with pytest.raises(
            af.ShapeError, match=r"variable 'layer/w' was built with shape \(3,\), this build needs \(4,\)"
        ):
            layer(graph.blob("z", 4))

    def test_another_graph(self, graph: af.Graph, x: af.Blob) -> None:
        layer = Scaled("layer")
        layer(x)
        with pytest.raises(
            af.GraphError, match="composite 'layer' has its variables in graph 'g' and cannot be built in graph 'other'"
        ):
            layer(af.Graph("other").blob("x", 3))

    def test_without_variables_another_graph_is_fine(self, x: af.Blob) -> None:
        layer = Split()
        layer(x)
        layer(af.Graph("other").blob("x", 3))

    def test_deleted_variables(self, graph: af.Graph, x: af.Blob) -> None:
        layer = Scaled("layer")
        layer(x)
        graph.delete_subgraph("layer")
        with pytest.raises(af.GraphError, match="blob 'layer/w', which was deleted"):
            layer(x)


class TestChains:
    def test_parts_without_a_bottom_wait_for_it(self, graph: af.Graph, x: af.Blob) -> None:
        a, b, c = Scaled("a"), Scaled("b"), Scaled("c")
        chain = a >> b >> c
        assert isinstance(chain, af.Chain)
        assert chain.parts == [a, b, c]
        assert graph.nodes == (x,)
        [x] >> chain
        assert [variable.name for variable in chain.variables] == ["chain/a/w", "chain/b/w", "chain/c/w"]
        assert value(graph, chain.top[0]) == [8, 8, 8]

    def test_chains_of_chains_are_flat_unless_named(self, graph: af.Graph, x: af.Blob) -> None:
        a, b, c, d = (Scaled(name) for name in "abcd")
        assert ((a >> b) >> (c >> d)).parts == [a, b, c, d]  # type: ignore[attr-defined]
        encoder = af.Chain(a, b, name="encoder")
        network = encoder >> af.Chain(c, d) >> Scaled("e")
        assert network.parts[:3] == [encoder, c, d]
        y = network(x)
        assert [variable.name for variable in network.variables][:3] == [
            "chain/encoder/a/w",
            "chain/encoder/b/w",
            "chain/c/w",
        ]
        assert encoder.top[0].name == "chain/encoder/b/multiply/out"
        assert value(graph, y) == [32, 32, 32]

    def test_a_chain_in_a_row(self, graph: af.Graph, x: af.Blob) -> None:
        y = graph.blob("y", 3)
        [x] >> (Scaled() >> Scaled()) >> Split() >> Join() >> [y]
        assert value(graph, y) == [20, 20, 20]

    def test_several_blobs_between_parts(self, graph: af.Graph, x: af.Blob) -> None:
        assert value(graph, (Split() >> Join())(x)) == [5, 5, 5]

    def test_an_empty_chain_passes_its_bottom_on(self, graph: af.Graph, x: af.Blob) -> None:
        assert af.Chain()(x) is x

    def test_a_chain_built_twice_shares_variables(self, graph: af.Graph, x: af.Blob) -> None:
        chain = Scaled("a") >> Scaled("b")
        first, second = chain(x), chain(x, training=False)
        assert [variable.name for variable in graph.variables] == ["chain/a/w", "chain/b/w"]
        graph["chain/a/w"].value = np.full(3, 5, "f")
        assert value(graph, first) == value(graph, second) == [10, 10, 10]


class TestChildren:
    def test_composites_among_the_attributes(self, graph: af.Graph, x: af.Blob) -> None:
        class Tree(af.Composite):
            def __init__(self) -> None:
                super().__init__()
                self.stem = Scaled("stem")
                self.branches = [Scaled("left"), Scaled("right")]
                self.again = (self.stem,)
                self.number = 3

            def build(self, *bottom: af.Blob, training: bool) -> af.Blob:
                stem = self.again[0](self.stem(*bottom))
                return ops.add(*[branch(stem) for branch in self.branches])

        tree = Tree()
        assert value(graph, tree(x)) == [16, 16, 16]
        assert tree.children() == [tree.stem, *tree.branches, tree.stem]
        assert [variable.name for variable in tree.variables] == ["tree/stem/w", "tree/left/w", "tree/right/w"]
        assert tree.variables == graph.variables

    def test_variables_take_graph_dtype_and_place_of_the_blob(self, graph: af.Graph) -> None:
        layer = Scaled()
        layer(graph.blob("x", 3, "float64", place="sim:2"))
        (w,) = layer.variables
        assert (w.dtype, str(w.place), w.graph.name) == (np.dtype("float64"), "sim:2", "scaled")

    def test_the_default_name_is_the_class(self) -> None:
        assert (Scaled().name, Scaled("mine").name, af.Chain().name) == ("scaled", "mine", "chain")


@dataclass
class Fuse:
    """Blows when so many composites have passed it."""

    left: int = 10**9

    def burn(self) -> None:
        self.left -= 1
        if not self.left:
            raise LookupError("the fuse has blown")


class Nested(af.Composite):
    """Ops, a variable and other composites, with the fuse in between; a forgiving one goes on without a part."""

    def __init__(self, fuse: Fuse, parts: list["Nested"], forgiving: bool) -> None:
        super().__init__("n")
        self.fuse, self.parts, self.forgiving = fuse, parts, forgiving

    def build(self, *bottom: af.Blob, training: bool) -> af.Blob:
        (x,) = bottom
        self.fuse.burn()
        x = ops.multiply(x, self.variable(x, "w", x.shape, 1.0), name="times")
        for part in self.parts:
            try:
                x = part(x, training=training)
            except LookupError:
                if not self.forgiving:
                    raise
        x.graph.root.subgraph(f"beside {len(x.graph.root.nodes)}").blob("b", 1)
        self.fuse.burn()
        return ops.relu(ops.relu(x))


def state(composite: Nested) -> Any:
    return composite.bottom, composite.top, composite.variables, [state(part) for part in composite.parts]


class TestFailedBuilds:
    def test_it_can_then_be_built_in_another_graph(self, graph: af.Graph, x: af.Blob) -> None:
        fuse = Fuse(2)
        nested = Nested(fuse, [], forgiving=False)
        with pytest.raises(LookupError):
            nested(x)
        other = af.Graph("other")
        fuse.left = 10
        assert nested(other.blob("x", 3)).graph.root is other

    @given(
        tree=st.recursive(
            st.tuples(st.just([]), st.booleans()), lambda inner: st.tuples(st.lists(inner, max_size=3), st.booleans())
        ),
        builds=st.lists(st.integers(1, 12), min_size=1, max_size=4),
    )
    def test_any_build_leaves_all_or_nothing(self, tree: Any, builds: list[int]) -> None:
        """In a second graph, only the builds that end well are made at all."""
        fuse = Fuse()

        def grown(tree: Any, fuse: Fuse) -> Nested:
            parts, forgiving = tree
            return Nested(fuse, [grown(part, fuse) for part in parts], forgiving)

        nested, graph = grown(tree, fuse), af.Graph("g")
        x = graph.blob("x", 3)
        for left in builds:
            fuse.left = left
            before, inside = picture(graph), state(nested)
            try:
                nested(x)
            except LookupError:
                assert picture(graph) == before
                assert state(nested) == inside
                assert not graph._store._restores
        fuse.left, other = 10**9, af.Graph("g")
        assert set(nested.variables) <= set(graph.variables)
        assert value(graph, nested(x)) == value(other, grown(tree, Fuse())(other.blob("x", 3)))


class TestMistakes:
    def test_ops_need_a_blob_between(self, graph: af.Graph, x: af.Blob) -> None:
        op = graph.op("op", ops.Copy())
        with pytest.raises(
            af.GraphError, match=r"connect op 'op' to composite 'scaled' through a blob: op >> \[y\] >>"
        ):
            op >> Scaled()
        with pytest.raises(
            af.GraphError, match=r"connect composite 'scaled' to op 'op' through a blob: .* >> \[y\] >> op"
        ):
            [x] >> Scaled() >> op

    def test_no_bottom(self, graph: af.Graph) -> None:
        with pytest.raises(af.GraphError, match="composite 'scaled' needs at least one input blob"):
            [] >> Scaled()
        with pytest.raises(
            af.GraphError,
            match=r"composite 'scaled' has 0 top blobs, got 1: connect its bottom first, \[x\] >> composite",
        ):
            Scaled() >> [graph.blob("y", 3)]

    @pytest.mark.parametrize("thing", [3, None, "x", np.ones(3)])
    def test_what_is_no_blob(self, thing: Any) -> None:
        with pytest.raises(af.GraphError, match=f"composite 'scaled' connects blobs, got {type(thing).__name__}"):
            Scaled()(thing)
        with pytest.raises(TypeError, match=r"unsupported operand|not supported"):
            thing >> Scaled()
        with pytest.raises(TypeError, match="unsupported operand"):
            Scaled() >> thing

    def test_number_of_tops(self, graph: af.Graph, x: af.Blob) -> None:
        with pytest.raises(af.GraphError, match=r"composite 'split' has 2 top blobs, got 1$"):
            [x] >> Split() >> [graph.blob("y", 3)]

    @pytest.mark.parametrize(
        ("blobs", "error", "message"),
        [
            (
                [(3, "float32"), (4, "float32")],
                af.ShapeError,
                r"gives float32\[3\], blob 'y1' is declared as float32\[4\]",
            ),
            (
                [(3, "float64"), (3, "float32")],
                af.DTypeError,
                r"gives float32\[3\], blob 'y0' is declared as float64\[3\]",
            ),
        ],
    )
    def test_types_of_tops(self, graph: af.Graph, x: af.Blob, blobs: Any, error: type[Exception], message: str) -> None:
        outputs = [graph.blob(f"y{i}", *spec) for i, spec in enumerate(blobs)]
        split = [x] >> Split()
        before = graph.nodes
        with pytest.raises(error, match=f"composite 'split' {message}"):
            split >> outputs
        assert graph.nodes == before  # not half connected

    def test_blobs_of_another_graph(self, graph: af.Graph, x: af.Blob) -> None:
        other = af.Graph("other")
        with pytest.raises(
            af.GraphError, match="composite 'scaled' is built in graph 'g', blob 'y' is of another one, 'other'"
        ):
            [x] >> Scaled() >> [other.blob("y", 3)]
        with pytest.raises(af.GraphError, match="blob 'y' of another one, 'other'"):
            Join()(x, other["y"])

    def test_build_is_missing_or_returns_no_blobs(self, x: af.Blob) -> None:
        class Nothing(af.Composite):
            pass

        class Wrong(af.Composite):
            def build(self, *bottom: af.Blob, training: bool) -> Any:
                ops.relu(bottom[0])
                return 3

        before = picture(x.graph)
        with pytest.raises(af.GraphError, match=r"Nothing does not say what it is made of: define build\(\)"):
            Nothing()(x)
        with pytest.raises(af.GraphError, match=r"Wrong\.build\(\) must return blobs"):
            Wrong()(x)
        assert picture(x.graph) == before
