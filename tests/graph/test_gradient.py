"""Gradients as graphs: what is built, where, in which order, and what is refused."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import actorflow as af
from actorflow import ops
from actorflow.graph.gradient import trainable
from tests.support.effort import FULL, slow


def scalar(graph: af.Graph, x: af.Blob) -> af.Blob:
    """The sum of the elements of ``x``."""
    row = ops.reshape(x, (1, x.spec.size))
    return ops.reshape(ops.inner(row, ops.fill(graph, 1.0, row.shape, x.dtype)), ())


def values(graph: af.Graph, feeds: dict, blobs: list[af.Blob]) -> list[np.ndarray]:
    result = graph.run_sync(feeds, fetch=blobs)
    return [result[blob].copy() for blob in blobs]


def test_the_gradient_is_of_the_kind_of_wrt() -> None:
    graph = af.Graph("g")
    x = graph.blob("x", (3,), "float64")
    loss = scalar(graph, ops.multiply(x, x))
    one, many = af.gradient(loss, x), af.gradient(loss, [x])
    assert one.spec == x.spec
    assert isinstance(many, list)
    found = values(graph, {x: np.array([1.0, 2.0, 3.0])}, [one, *many])
    assert [grad.tolist() for grad in found] == [[2.0, 4.0, 6.0]] * 2


def test_the_gradient_by_the_loss_itself_is_one() -> None:
    graph = af.Graph("g")
    x = graph.blob("x", ())
    loss = ops.scale(x, 3.0)
    grads = af.gradient(loss, [loss, x])
    assert [grad.item() for grad in values(graph, {x: np.float32(5)}, grads)] == [1.0, 3.0]


def test_several_consumers_are_added_in_the_order_in_which_they_were_connected() -> None:
    graph = af.Graph("g")
    x = graph.blob("x", ())
    terms = [ops.scale(x, factor) for factor in (2.0, 3.0, 5.0)]
    loss = ops.add(terms[1], terms[0], terms[2])
    grad = af.gradient(loss, x)
    (total,) = grad.producers
    assert isinstance(total.operation, ops.Sum)
    assert [term.producers[0].operation.factor for term in total.inputs] == [2.0, 3.0, 5.0]
    assert values(graph, {x: np.float32(1)}, [grad])[0] == 10.0


def test_a_blob_with_several_producers_sends_its_gradient_to_each() -> None:
    graph = af.Graph("g")
    a, b, total = graph.blob("a", ()), graph.blob("b", ()), graph.blob("total", ())
    [a] >> graph.op("double", ops.Scale(2.0)) >> [total]
    [b] >> graph.op("triple", ops.Scale(3.0)) >> [total]
    loss = ops.multiply(total, total)
    grads = af.gradient(loss, [a, b])
    found = values(graph, {a: np.float32(1), b: np.float32(2)}, grads)
    assert [grad.item() for grad in found] == [2 * 8 * 2, 2 * 8 * 3]


def test_a_gradient_that_uses_the_output_means_the_op_s_own_term_of_a_sum() -> None:
    graph = af.Graph("g")
    x, total = graph.blob("x", (), "float64"), graph.blob("total", (), "float64")
    [x] >> graph.op("tanh", ops.Tanh()) >> [total]
    [x] >> graph.op("triple", ops.Scale(3.0)) >> [total]
    grad = values(graph, {x: np.array(0.5)}, [af.gradient(total, x)])[0]
    assert np.isclose(grad, 3 + 1 - np.tanh(0.5) ** 2)


def test_only_what_is_asked_for_is_built() -> None:
    graph = af.Graph("g")
    x, w = graph.blob("x", (2, 3)), graph.variable("w", (4, 3))
    loss = scalar(graph, ops.inner(x, w))
    before = len(graph.ops)
    af.gradient(loss, w)
    kinds = [op.operation.kind for op in graph.ops[before:]]
    assert "InnerWeight" in kinds
    assert kinds.count("InnerDown") == 1  # through the scalar's own product, none for x
    assert len(kinds) == 5


def test_all_nodes_are_in_a_subgraph_whose_scopes_are_named_as_the_forward_ones() -> None:
    graph = af.Graph("g")
    x = graph.blob("x", ())
    with graph.subgraph("model"), graph.unique_subgraph("block"):
        y = ops.relu(x)
    loss = ops.scale(y, 2.0)
    before = set(graph.nodes)
    with graph.subgraph("training"):
        af.gradient(loss, x)
    made = [node.name for node in graph.nodes if node not in before]
    assert all(name.startswith("training/gradient/") for name in made)
    assert "training/gradient/model/block/reludown" in made
    af.gradient(loss, x)
    assert "gradient/model/block/reludown" in [node.name for node in graph.nodes]
    af.gradient(loss, x)
    assert "gradient_1/model/block/reludown" in [node.name for node in graph.nodes]


def test_gradients_are_on_the_place_and_lane_of_their_ops() -> None:
    graph = af.Graph("g")
    x = graph.blob("x", ())
    with graph.at(lane="side"):
        y = ops.relu(x)
    loss = ops.scale(y, 2.0)
    af.gradient(loss, x)
    lanes = {op.name: op.lane for op in graph.ops}
    assert lanes["gradient/reludown"] == "side"
    assert lanes["gradient/scale"] == lanes["scale"] != "side"


def test_the_line_of_user_code_is_the_call_of_gradient() -> None:
    graph = af.Graph("g")
    x = graph.blob("x", ())
    grad = af.gradient(ops.relu(x), x)
    assert grad.site.filename == __file__
    assert grad.site.function == "test_the_line_of_user_code_is_the_call_of_gradient"


@pytest.mark.parametrize("length", [2_000, *slow([20_000])])
def test_a_long_chain_has_a_gradient(length: int) -> None:
    graph = af.Graph("g")
    x = graph.blob("x", (), "float64")
    y = x
    for _ in range(length):
        y = ops.scale(y, 1.0)
    before = len(graph.ops)
    af.gradient(y, x)
    assert len(graph.ops) - before == length + 1


def test_a_wide_fan_out_is_one_sum() -> None:
    graph = af.Graph("g")
    x = graph.blob("x", ())
    loss = ops.add(*(ops.scale(x, float(i)) for i in range(3000)))
    grad = af.gradient(loss, x)
    assert len(grad.producers[0].inputs) == 3000


def combine(kind: int, a: af.Blob, b: af.Blob) -> af.Blob:
    match kind:
        case 0:
            return ops.tanh(a)
        case 1:
            return ops.multiply(a, b)
        case 2:
            return ops.add(a, b, a)
        case _:
            return ops.scale(a, -0.7)


@settings(deadline=None, max_examples=300 if FULL else 40)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 99), st.integers(0, 99)), min_size=1, max_size=25))
def test_random_graphs_have_the_gradients_of_finite_differences(steps) -> None:
    graph = af.Graph("g", sequential=True)
    sources = [graph.blob(f"x{i}", (2,), "float64") for i in range(3)]
    blobs = list(sources)
    for kind, i, j in steps:
        a, b = blobs[i % len(blobs)], blobs[j % len(blobs)]
        if kind == 4:  # two producers
            total = graph.blob(graph.unique_name("total"), (2,), "float64")
            [a] >> graph.op(graph.unique_name("p"), ops.Scale(0.5)) >> [total]
            [b] >> graph.op(graph.unique_name("q"), ops.Tanh()) >> [total]
            blobs.append(total)
        else:
            blobs.append(ops.tanh(combine(kind, a, b)))
    loss = scalar(graph, blobs[-1])
    point = np.random.default_rng(0).standard_normal((3, 2))
    reached = [x for x in sources if x in needed_by(loss)]
    if not reached:
        return
    grads = af.gradient(loss, reached)

    async def measure() -> None:
        async with graph:
            result = await graph.run(dict(zip(sources, point, strict=True)), fetch=grads)
            found = [result[grad].copy() for grad in grads]
            for x, grad in zip(reached, found, strict=True):
                for k in range(2):
                    ends = []
                    for step in (1e-5, -1e-5):
                        moved = point.copy()
                        moved[sources.index(x), k] += step
                        ends.append(
                            float((await graph.run(dict(zip(sources, moved, strict=True)), fetch=[loss]))[loss])
                        )
                    np.testing.assert_allclose(grad[k], (ends[0] - ends[1]) / 2e-5, rtol=1e-5, atol=1e-8)

    af.run(measure())


def needed_by(loss: af.Blob) -> set[af.Blob]:
    todo, seen = [loss], {loss}
    while todo:
        for op in todo.pop().producers:
            for blob in op.inputs:
                if blob not in seen:
                    seen.add(blob)
                    todo.append(blob)
    return seen


# -- variables ------------------------------------------------------------------------------------------------------


def test_an_update_of_a_variable_is_not_looked_through() -> None:
    graph = af.Graph("g")
    w, other = graph.variable("w", (), "float64", 3.0), graph.variable("other", (), "float64", 1.0)
    loss = ops.multiply(w, w)
    [other] >> graph.op("overwrite", ops.Copy()) >> [w]
    assert values(graph, {}, [af.gradient(loss, w)])[0] == 6.0
    with pytest.raises(af.GraphError, match="loss 'multiply/out' does not depend on blob 'other'"):
        af.gradient(loss, other)


def test_trainable_lists_the_variables_that_the_loss_can_be_differentiated_by() -> None:
    graph = af.Graph("g")
    unused, w, b = (graph.variable(name, ()) for name in ("unused", "w", "b"))
    count = graph.variable("count", (), "int64")
    stopped = graph.variable("stopped", ())
    gate = graph.function("gate", lambda s, c: s > c, outputs=af.TensorSpec.of((), "bool"))(stopped, count)
    use = graph.function("use", lambda g: np.float32(g), outputs=af.TensorSpec.of(()))(gate)
    loss = ops.add(ops.multiply(b, w), ops.copy(use))
    assert trainable(loss) == (w, b)
    assert unused not in trainable(loss)


# -- integers and operations without gradients ----------------------------------------------------------------------


def test_labels_have_no_gradient_and_do_not_hinder() -> None:
    graph = af.Graph("g")
    x, labels = graph.blob("x", (2, 3)), graph.blob("labels", (2,), "int64")
    loss = ops.softmax_loss(x, labels)
    assert af.gradient(loss, x).shape == (2, 3)
    with pytest.raises(af.DTypeError, match=r"only floating blobs have gradients, blob 'labels' is int64\[2\]"):
        af.gradient(loss, labels)


def test_a_path_through_integers_has_no_gradient() -> None:
    graph = af.Graph("g")
    x = graph.blob("x", ())
    rounded = graph.function("round", lambda v: np.int64(v), outputs=af.TensorSpec.of((), "int64"))(x)
    back = graph.function("back", lambda v: np.float32(v), outputs=af.TensorSpec.of(()))(rounded)
    loss = ops.add(ops.scale(x, 2.0), back)
    assert values(graph, {x: np.float32(4)}, [af.gradient(loss, x)])[0] == 2.0
    with pytest.raises(af.GraphError, match="depends on blob 'x' only through blob 'round/out', which is not floating"):
        af.gradient(ops.copy(back), x)


def test_an_operation_without_gradient_in_the_way_is_named() -> None:
    graph = af.Graph("g")
    x = graph.blob("x", ())
    y = graph.function("mystery", lambda v: v, outputs=af.TensorSpec.of(()))(ops.relu(x))
    with pytest.raises(
        af.GraphError, match=r"depends on 'x' through op 'mystery' .*has no gradient; created at .*test_gr"
    ):
        af.gradient(ops.scale(y, 2.0), x)


def test_an_operation_without_gradient_beside_the_way_does_not_matter() -> None:
    graph = af.Graph("g")
    x, z = graph.blob("x", ()), graph.blob("z", ())
    y = graph.function("mystery", lambda v: v, outputs=af.TensorSpec.of(()))(z)
    loss = ops.multiply(x, y)
    grad = values(graph, {x: np.float32(2), z: np.float32(5)}, [af.gradient(loss, x)])[0]
    assert grad == 5.0


# -- refusals -------------------------------------------------------------------------------------------------------


def test_the_loss_must_be_a_floating_scalar() -> None:
    graph = af.Graph("g")
    x = graph.blob("x", (3,))
    with pytest.raises(af.ShapeError, match=r"the loss must be 0-d, blob 'relu/out' is float32\[3\]"):
        af.gradient(ops.relu(x), x)
    count = graph.blob("count", (), "int64")
    with pytest.raises(af.DTypeError, match=r"only floating blobs have gradients, blob 'count' is int64\[\]"):
        af.gradient(count, x)


def test_the_loss_must_depend_on_each_blob() -> None:
    graph = af.Graph("g")
    x, unused = graph.blob("x", ()), graph.blob("unused", ())
    before = graph.nodes
    with pytest.raises(af.GraphError, match="loss 'relu/out' does not depend on blob 'unused'"):
        af.gradient(ops.relu(x), [x, unused])
    assert [node.name for node in graph.nodes if node not in before] == ["relu", "relu/out"]


def test_a_blob_of_another_graph_is_refused() -> None:
    graph, other = af.Graph("g"), af.Graph("other")
    loss = ops.relu(graph.blob("x", ()))
    with pytest.raises(af.GraphError, match="blob 'x' is of graph 'other', the loss of 'g'"):
        af.gradient(loss, other.blob("x", ()))


def test_a_cycle_is_named() -> None:
    graph = af.Graph("g")
    x, a, b = (graph.blob(name, ()) for name in ("x", "a", "b"))
    [x, b] >> graph.op("first", ops.Multiply()) >> [a]
    [a] >> graph.op("second", ops.Relu()) >> [b]
    with pytest.raises(af.CycleError) as caught:
        af.gradient(ops.copy(a), x)
    assert set(caught.value.cycle) == {"first", "second"}
    assert str(caught.value).count(" created at ") == 2
    assert __file__ in str(caught.value)
    assert caught.value.cycle[0] == caught.value.cycle[-1]


@dataclass(frozen=True)
class Odd(ops.Operation):
    """Gives ``grads`` as its gradient, whatever it is asked."""

    grads: tuple

    def infer(self, *inputs):
        return inputs

    def gradient(self, op, grads, wanted):
        return [None if grad == "none" else op.inputs[0].graph.root.resolve(grad) for grad in self.grads]


def test_an_operation_may_say_that_its_gradient_is_zero() -> None:
    graph = af.Graph("g")
    x = graph.blob("x", (2,))
    loss = scalar(graph, graph.op("odd", Odd(("none",)))(x))
    grad = af.gradient(loss, x)
    assert values(graph, {}, [grad])[0].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("grads", "error", "message"),
    [
        (("none", "none"), af.GraphError, "must return one blob or None per input: 1, got 2, for op 'odd'"),
        (("x",), af.ShapeError, r"must give float32\[\] for 'y', got float32\[2\], for op 'odd'"),
    ],
)
def test_a_gradient_that_does_not_fit_is_refused(grads, error, message) -> None:
    graph = af.Graph("g")
    graph.blob("x", (2,))
    y = graph.blob("y", ())
    with pytest.raises(error, match=message):
        af.gradient(graph.op("odd", Odd(grads))(y), y)
