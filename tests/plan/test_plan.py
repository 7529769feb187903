"""Plans: what is checked, which ops are chosen, and in what order."""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import actorflow as af
from actorflow import ops


@pytest.fixture
def graph() -> af.Graph:
    return af.Graph("g", fuse=False)


def link(graph: af.Graph, name: str, inputs: Sequence[af.Blob], outputs: Sequence[af.Blob]) -> af.Op:
    op = graph.function(name, lambda *inputs: None)
    inputs >> op >> outputs
    return op


def ring(graph: af.Graph, names: Sequence[str]) -> list[str]:
    """Ops in a ring, each reading the blob of the one before; returns the names along it, from the first op's blob."""
    blobs = [graph.blob(f"after_{name}", ()) for name in names]
    for i, name in enumerate(names):
        link(graph, name, [blobs[i - 1]], [blobs[i]])
    return [part for name in names for part in (name, f"after_{name}")]


def is_rotation(cycle: Sequence[str], of: Sequence[str]) -> bool:
    """Return whether ``cycle``, whose first name is repeated at the end, goes once around the ring ``of``."""
    if cycle[0] != cycle[-1] or cycle[0] not in of:
        return False
    start = of.index(cycle[0])
    return list(cycle[:-1]) == [*of[start:], *of[:start]]


def test_what_gradients_alone_need_is_left_out_where_none_reads_it(graph: af.Graph) -> None:
    x, weight = graph.blob("x", (5, 2, 3)), graph.variable("w", (12, 3), init=0.1)
    made = ops.gru(x, weight, graph.variable("h", (12, 4), init=0.1), name="gru")
    slope = af.gradient(ops.sum(made[0]), weight)
    activations = graph["gru"].outputs[-1]
    for fetched, saves in (([made[0]], False), ([made[0], slope], True), ([made[1], activations], True)):
        (step,) = [step for step in graph.compile(fetched).ops if step.node.name == "gru"]
        assert step.operation == ops.GRU(saves=saves)
        assert len(step.outputs) == 2 + saves


class TestCycles:
    def test_the_message_names_the_cycle_in_the_direction_of_the_data(self, graph: af.Graph) -> None:
        names = ring(graph, ["a", "b", "c"])
        with pytest.raises(af.CycleError, match="the graph has a cycle: ") as caught:
            graph.compile()
        assert is_rotation(caught.value.cycle, names)
        first, *lines = str(caught.value).splitlines()
        assert first.endswith(" -> ".join(caught.value.cycle))
        sites = [f"  op {name!r} created at {graph[name].site}" for name in caught.value.cycle if name in "abc"]
        assert lines == sites[:3]
        assert __file__ in lines[0]

    def test_an_op_that_reads_what_it_writes(self, graph: af.Graph) -> None:
        x = graph.blob("x", ())
        link(graph, "self", [x], [x])
        with pytest.raises(
            af.CycleError, match=r"the graph has a cycle: self -> x -> self\n  op 'self' created at .* in link$"
        ):
            graph.compile()

    def test_through_sub_graphs(self, graph: af.Graph) -> None:
        a, b = graph.subgraph("a"), graph.subgraph("b").subgraph("c")
        x, y = a.blob("x", ()), b.blob("y", ())
        link(a, "op", [y], [x])
        link(b, "op", [x], [y])
        with pytest.raises(af.CycleError) as caught:
            graph.compile()
        assert is_rotation(caught.value.cycle, ["a/op", "a/x", "b/c/op", "b/c/y"])

    def test_long(self, graph: af.Graph) -> None:
        names = ring(graph, [f"op{i}" for i in range(3000)])
        with pytest.raises(af.CycleError, match=r"\.\.\. 5981 more \.\.\.") as caught:
            graph.compile()
        assert is_rotation(caught.value.cycle, names)

    def test_none_through_a_variable(self, graph: af.Graph) -> None:
        w, v = graph.variable("w", ()), graph.variable("v", ())
        link(graph, "a", [w], [v])
        link(graph, "b", [v], [w])
        link(graph, "c", [w], [w])
        assert [op.node.name for op in graph.compile().ops if op.site is op.node] == ["a", "b", "c"]

    def test_what_is_not_run_may_have_one(self, graph: af.Graph) -> None:
        ring(graph, ["a", "b"])
        y = ops.relu(graph.blob("x", 3))
        assert len(graph.compile(fetch=[y]).ops) == 1
        with pytest.raises(af.CycleError):
            graph.compile(fetch=["after_a"])

    @given(st.integers(1, 8), st.data())
    def test_any_graph_is_sorted_or_its_cycle_is_named(self, count: int, data: st.DataObject) -> None:
        graph = af.Graph("g")
        blobs = [graph.blob(f"x{i}", ()) for i in range(count)]
        index = st.integers(0, count - 1)
        edges = data.draw(st.lists(st.tuples(index, index), min_size=1, max_size=12))
        for number, (source, target) in enumerate(edges):
            link(graph, f"op{number}", [blobs[source]], [blobs[target]])
        try:
            plan = graph.compile()
        except af.CycleError as error:
            cycle = error.cycle
            assert cycle[0] == cycle[-1]
            assert len(set(cycle)) == len(cycle) - 1
            for one, other in itertools.pairwise(cycle):
                one, other = graph[one], graph[other]
                assert other in one.outputs if isinstance(one, af.Op) else other in one.consumers
        else:
            written: set[int] = set(plan.feeds.values())
            for op in plan.ops:
                assert set(op.inputs) <= written
                assert written.isdisjoint(op.outputs)
                written.update(op.outputs)
            assert {op.node for op in plan.ops} == set(graph.ops)


class TestMissing:
    def test_inputs(self, graph: af.Graph) -> None:
        graph.op("inner", ops.Inner()) >> [graph.blob("y", (2, 4))]
        with pytest.raises(
            af.GraphError,
            match=r"op 'inner' \(Inner\(\)\) is missing its inputs \(x, weight\): connect them, \[blobs\] >> op; "
            r"created at .*test_plan\.py:\d+ in test_inputs",
        ):
            graph.compile()

    def test_outputs(self, graph: af.Graph) -> None:
        [graph.blob("x", 3)] >> graph.op("copy", ops.Copy())
        with pytest.raises(
            af.GraphError,
            match=r"op 'copy' \(Copy\(\)\) is missing its output blobs: connect them, op >> \[blobs\]; "
            r"created at .*test_plan\.py:\d+ in test_outputs",
        ):
            graph.compile()

    def test_functions_may_have_neither(self, graph: af.Graph) -> None:
        graph.function("f", lambda: None)
        assert len(graph.compile().ops) == 1

    def test_ops(self, graph: af.Graph) -> None:
        for _ in range(2):
            with pytest.raises(af.GraphError, match="graph 'g' has no ops to run"):
                graph.compile()
            graph.variable("w", 3)
            graph.blob("x", 3)
            with pytest.raises(af.GraphError, match="graph 'g' has no ops to run"):
                graph.compile(fetch=[])
            graph = af.Graph("g")

    def test_half_built_ops_that_are_not_run_do_no_harm(self, graph: af.Graph) -> None:
        y = ops.relu(graph.blob("x", 3))
        graph.op("later", ops.Inner())
        assert len(graph.compile(fetch=[y]).ops) == 1
        with pytest.raises(af.GraphError, match="op 'later'"):
            graph.compile()


class TestPlaces:
    @pytest.mark.parametrize(
        ("place", "error", "message"),
        [
            ("none:0", af.DeviceUnavailableError, "place 'none:0': no device of kind 'none'; known: cpu, sim, cuda"),
            (
                "1/cpu",
                af.PlaceError,
                "place '1/cpu' is on rank 1, but this program has 1 rank: start it with mpiexec -n 2",
            ),
        ],
    )
    @pytest.mark.parametrize("where", ["op", "input", "output", "variable"])
    def test_what_is_not_there(
        self, graph: af.Graph, where: str, place: str, error: type[Exception], message: str
    ) -> None:
        def at(node: str) -> str:
            return place if node == where else "cpu"

        x, y = graph.blob("input", 3, place=at("input")), graph.blob("output", 3, place=at("output"))
        w = graph.variable("variable", 3, place=at("variable"))
        [x, w] >> graph.op("op", ops.Multiply(), place=at("op")) >> [y]
        kind = "op" if where == "op" else "blob"
        with pytest.raises(error, match=rf"{kind} '{where}': {message}; created at .*test_plan\.py:\d+ in test_what"):
            graph.compile()

    def test_a_fetched_variable_elsewhere(self, graph: af.Graph) -> None:
        w = graph.variable("w", 3, place="cuda:0")
        with pytest.raises(af.DeviceUnavailableError, match="blob 'w': place 'cuda:0'"):
            graph.compile(fetch=[w])

    def test_what_is_not_run_may_be_elsewhere(self, graph: af.Graph) -> None:
        y = ops.relu(graph.blob("x", 3))
        with graph.at("cuda:0"):
            ops.relu(y)
        assert len(graph.compile(fetch=[y]).ops) == 1


class TestKernels:
    def test_a_missing_one_lists_what_is_registered(self, graph: af.Graph) -> None:
        @dataclass(frozen=True)
        class Unheard(ops.Operation):
            def infer(self, *inputs: af.TensorSpec) -> tuple[af.TensorSpec, ...]:
                return inputs

        graph.apply(Unheard(), graph.blob("x", 3))
        with pytest.raises(
            af.KernelNotFoundError,
            match=r"(?m)no kernel for Unheard\(device=cpu, library=numpy, "
            r"dtype=float32, layout=any\); registered:\n"
            r"  nothing: register one with @af\.ops\.kernel\(Unheard\)\n"
            rf"  created at {re.escape(__file__)}:\d+ in test_a_missing_one_lists_what_is_registered$",
        ):
            graph.compile()

    def test_a_library_that_there_is_not(self, graph: af.Graph) -> None:
        with graph.at(libraries=["numpi"]):
            ops.relu(graph.blob("x", 3), name="act")
        with pytest.raises(
            af.KernelNotFoundError,
            match=r"(?m)op 'act': no library 'numpi'; libraries: numpy \(cpu\), .*; did you mean 'numpy'.*\?\n"
            r"  created at .* in test_a_library_that_there_is_not$",
        ):
            graph.compile()

    def test_functions_need_none(self, graph: af.Graph) -> None:
        graph.function("f", lambda: 1.0, outputs=af.TensorSpec.of(()))()
        assert graph.compile().ops[0].kernel is None


class TestSelection:
    def build(self, graph: af.Graph) -> dict[str, af.Blob]:
        x, other, w = graph.blob("x", 3), graph.blob("other", 3), graph.variable("w", 3)
        y = ops.multiply(x, w, name="y")
        z = ops.relu(y, name="z")
        u = ops.tanh(other, name="u")
        [z] >> graph.op("update", ops.Copy()) >> [w]
        return {"x": x, "other": other, "w": w, "y": y, "z": z, "u": u}

    def names(self, plan: af.Plan) -> list[str]:
        return [op.node.name for op in plan.ops]

    def test_all_by_default(self, graph: af.Graph) -> None:
        blobs = self.build(graph)
        plan = graph.compile()
        assert self.names(plan) == ["y", "u", "z", "update"]
        assert set(plan.feeds) == {blobs["x"], blobs["other"]}
        assert list(plan.fetches) == [blobs["u"]]
        assert plan.updates == (blobs["w"],)

    @pytest.mark.parametrize(
        ("fetch", "ops_", "feeds", "fetches"),
        [
            (["z/out"], ["y", "z"], ["x"], ["z"]),
            (["u/out", "y/out"], ["y", "u"], ["x", "other"], ["u", "y"]),
            (["update"], ["y", "z", "update"], ["x"], []),
            (["w"], [], [], ["w"]),
            (["x"], [], ["x"], ["x"]),
            (["w", "update", "w"], ["y", "z", "update"], ["x"], ["w"]),
        ],
    )
    def test_only_what_is_needed(
        self, graph: af.Graph, fetch: list[str], ops_: list[str], feeds: list[str], fetches: list[str]
    ) -> None:
        blobs = self.build(graph)
        plan = graph.compile(fetch)
        assert sorted(self.names(plan)) == sorted(ops_)
        assert set(plan.feeds) == {blobs[name] for name in feeds}
        assert list(plan.fetches) == [blobs[name] for name in fetches]
        assert plan.updates == ((blobs["w"],) if "update" in ops_ else ())

    def test_a_sub_graph_with_what_it_needs(self, graph: af.Graph) -> None:
        x = graph.blob("x", 3)
        y = ops.relu(x, name="before")
        with graph.subgraph("part") as part:
            z = ops.relu(y, name="in")
        ops.relu(z, name="after")
        for target in (part, "part"):
            assert self.names(graph.compile([target])) == ["before", "part/in"]
            assert graph.compile([target]).fetches == {}

    @pytest.mark.parametrize("fetch", ["y/out", "y", "part"])
    async def test_one_is_as_good_as_a_list_of_it(self, graph: af.Graph, fetch: str) -> None:
        self.build(graph)
        with graph.subgraph("part"):
            ops.relu(graph["y/out"], name="in")
        feeds = {"x": [1, 2, 3]}
        async with graph:
            for one in (fetch, graph[fetch]):
                plan = graph.compile([one])
                assert self.names(graph.compile(one)) == self.names(plan)
                assert graph.compile(one).fetches.keys() == plan.fetches.keys()
                assert str(graph.memory_cost(one)) == str(plan.footprint())
                names = [blob.name for blob in plan.fetches]
                assert list(await graph.run(feeds, fetch=one)) == names
                assert [list(result) async for result in graph.stream([feeds], fetch=one)] == [names]

    @pytest.mark.parametrize("wrong", [5, b"y", {"y": 1}.items(), object])
    def test_what_cannot_be_fetched(self, graph: af.Graph, wrong: object) -> None:
        self.build(graph)
        with pytest.raises(af.GraphError, match="expected a blob, an op, a sub-graph or a name, got "):
            graph.compile(wrong)


class TestSeveralProducers:
    def test_a_sum_is_inserted_in_the_order_of_connection(self, graph: af.Graph) -> None:
        x, y = graph.blob("x", 3), graph.blob("y", 3)
        made = [graph.op(name, ops.Scale(2.0)) for name in "abc"]
        for op in (made[2], made[0], made[1]):
            [x] >> op >> [y]
        plan = graph.compile()
        *terms, total = plan.ops
        assert [op.node.name for op in terms] == ["a", "b", "c"]
        assert isinstance(total.operation, ops.Sum)
        assert total.site is y
        written = {op.outputs[0]: op.node.name for op in terms}
        assert [written[slot] for slot in total.inputs] == ["c", "a", "b"]
        assert total.outputs == (plan.fetches[y],)
        assert y.producers == [made[2], made[0], made[1]]

    def test_consumers_wait_for_the_sum(self, graph: af.Graph) -> None:
        x, y = graph.blob("x", 3), graph.blob("y", 3)
        for name in "ab":
            [x] >> graph.op(name, ops.Copy()) >> [y]
        ops.multiply(y, y)
        plan = graph.compile()
        assert [type(op.operation).__name__ for op in plan.ops] == ["Copy", "Copy", "Sum", "Multiply"]
        assert set(plan.ops[3].inputs) == set(plan.ops[2].outputs)
        assert plan.ops[3].waits == 2

    @pytest.mark.parametrize(("shape", "dtype"), [(3, "bool"), ((), object), (3, "U4")])
    def test_only_numbers_can_be_added(self, graph: af.Graph, shape: Any, dtype: Any) -> None:
        y = graph.blob("y", shape, dtype)
        for name in ("a", "b"):
            link(graph, name, [], [y])
        with pytest.raises(
            af.DTypeError, match=r"blob 'y' .*\[3?\] has several producers \(a, b\), which only numbers can have"
        ):
            graph.compile()

    def test_updates_that_are_not_chosen_are_not_waited_for(self, graph: af.Graph) -> None:
        w = graph.variable("w", 3)
        for name in ("a", "b", "c"):
            [w] >> graph.op(name, ops.Scale(2.0)) >> [w]
        plan = graph.compile(["a", "c"])
        assert [op.node.name for op in plan.ops[:2]] == ["a", "c"]
        assert isinstance(plan.ops[2].operation, ops.Sum)
        assert len(plan.ops[2].inputs) == 2
        assert plan.updates == (w,)

    def test_all_producers_of_a_blob_are_needed(self, graph: af.Graph) -> None:
        x, z, y = graph.blob("x", 3), graph.blob("z", 3), graph.blob("y", 3)
        [x] >> graph.op("a", ops.Copy()) >> [y]
        [z] >> graph.op("b", ops.Copy()) >> [y]
        assert set(graph.compile([y]).feeds) == {x, z}


class TestVariables:
    def test_an_update_waits_for_its_turn_even_unread(self, graph: af.Graph) -> None:
        x, w = graph.blob("x", 3), graph.variable("w", 3)
        [x] >> graph.op("assign", ops.Copy()) >> [w]
        plan = graph.compile()
        (assign,) = plan.ops
        assert assign.waits == 2
        assert plan.slots[plan.reads[w]].consumers == [0]
        assert plan.slots[plan.reads[w]].readers == 0

    def test_readers_read_the_value_from_before(self, graph: af.Graph) -> None:
        w = graph.variable("w", 3)
        update = graph.op("update", ops.Scale(2.0))
        [w] >> update >> [w]
        ops.relu(w)
        plan = graph.compile()
        new = plan.ops[0].outputs[0]
        assert plan.slots[new].updates is w
        assert [op.inputs for op in plan.ops] == [(plan.reads[w],), (plan.reads[w],)]


class TestSlots:
    def test_readers_are_counted_once_per_argument_and_fetch(self, graph: af.Graph) -> None:
        x = graph.blob("x", 3)
        y = ops.multiply(x, x)
        ops.relu(y)
        plan = graph.compile([y, "relu"])
        by_name = {slot.blob.name: slot for slot in plan.slots}
        assert {name: slot.readers for name, slot in by_name.items()} == {"x": 2, "multiply/out": 2, "relu/out": 0}
        assert by_name["x"].is_fed
        assert by_name["multiply/out"].is_fetched
        assert by_name["x"].consumers == [0, 0]

    def test_ops_that_can_start_at_once_stay_in_order_of_creation(self, graph: af.Graph) -> None:
        for i in range(20):
            ops.relu(graph.blob(f"x{i}", 3), name=f"op{i}")
        assert [op.node.name for op in graph.compile().ops] == [f"op{i}" for i in range(20)]
