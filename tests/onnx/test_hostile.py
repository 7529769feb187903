"""Files with anything in them: an error that names the file, or a model, and never anything else."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import AttributeProto, TensorProto, helper

import actorflow as af
from tests.onnx.test_layouts import detector, node, weights
from tests.support.onnx_files import model


def others():
    """A network of other operators than the detector's."""
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s i", "n"),
        node("Unsqueeze", "n i", "n1"),
        node("Concat", "n1 rest", "shape", axis=0),
        node("Reshape", "x shape", "a"),
        node("Transpose", "a", "b", perm=[1, 0]),
        node("MatMul", "a b", "c"),
        node("Softmax", "c", "d", axis=1),
        node("TopK", "d k", "e f", axis=-1),
        node("ReduceSum", "e i", "g", keepdims=0),
        node("Tile", "g k", "h"),
        node("Split", "h", "l r", axis=0),
        node("Gemm", "d w", "m", alpha=0.5),
        node("LSTM", "q u v", "y"),
    ]
    constants = {
        "i": np.array([0]), "rest": np.array([-1]), "k": np.array([2]), "w": weights(2, 3), "u": weights(1, 8, 3),
        "v": weights(1, 8, 2),
    }  # fmt: skip
    nodes[1] = helper.make_node("Gather", ["s", "zero"], ["n"])
    constants["zero"] = np.array(0)
    return model(nodes, [("x", (2, 6)), ("q", (3, 1, 3))], [("y", None), ("m", None), ("l", None)], constants)


FILES = [detector().SerializeToString(), others().SerializeToString()]


def test_the_files_are_loaded_as_they_are() -> None:
    for each in FILES:
        af.onnx.load(each)


def tried(content: bytes) -> None:
    try:
        af.onnx.load(content)
    except af.GraphError as error:
        assert "<bytes>" in str(error)  # noqa: PT017


SLOW = settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)


@SLOW
@given(st.sampled_from(FILES), st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4))
def test_bytes_that_were_changed(content: bytes, changes: list[tuple[int, int]]) -> None:
    data = bytearray(content)
    for place, byte in changes:
        data[place % len(data)] = byte
    tried(bytes(data))


@SLOW
@given(st.sampled_from(FILES), st.data())
def test_attributes_and_connections_that_were_changed(content: bytes, data: st.DataObject) -> None:
    proto = onnx.ModelProto.FromString(content)
    chosen = data.draw(st.sampled_from(list(proto.graph.node)))
    names = sorted({name for each in proto.graph.node for name in (*each.input, *each.output)})
    number = st.sampled_from([-(2**62), -3, -1, 0, 1, 2, 5, 10**6, 2**62])
    for attribute in chosen.attribute:
        if attribute.type == AttributeProto.INT:
            attribute.i = data.draw(number)
        elif attribute.type == AttributeProto.INTS:
            del attribute.ints[:]
            attribute.ints.extend(data.draw(st.lists(number, max_size=5)))
    if chosen.input and data.draw(st.booleans()):
        place = data.draw(st.integers(0, len(chosen.input) - 1))
        chosen.input[place] = data.draw(st.sampled_from(names))
    tried(proto.SerializeToString())


@SLOW
@given(st.sampled_from(FILES), st.data())
def test_constants_that_were_changed(content: bytes, data: st.DataObject) -> None:
    proto = onnx.ModelProto.FromString(content)
    integers = [each for each in proto.graph.initializer if each.data_type == TensorProto.INT64]
    chosen = data.draw(st.sampled_from(integers))
    values = data.draw(st.lists(st.sampled_from([-(2**62), -2, -1, 0, 1, 3, 7, 2**31, 2**62]), max_size=4))
    chosen.CopyFrom(onnx.numpy_helper.from_array(np.array(values, np.int64), chosen.name))
    tried(proto.SerializeToString())


def test_a_function_that_calls_itself() -> None:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    body = [helper.make_node("Loop1", ["a"], ["b"], domain="own")]
    function = helper.make_function("own", "Loop1", ["a"], ["b"], body, opsets)
    graph = helper.make_graph(
        [helper.make_node("Loop1", ["x"], ["y"], "call", domain="own")],
        "recursive",
        [helper.make_tensor_value_info("x", 1, [3])],
        [helper.make_tensor_value_info("y", 1, [3])],
    )
    proto = helper.make_model(graph, functions=[function], opset_imports=opsets, ir_version=8)
    with pytest.raises(af.GraphError, match="<bytes>"):
        af.onnx.load(proto.SerializeToString())


def test_a_constant_that_would_be_huge_is_not_made() -> None:
    nodes = [node("ConstantOfShape", "s", "a"), node("ReduceSum", "a", "y", keepdims=0)]
    proto = model(nodes, [], [("y", ())], {"s": np.array([10**5, 10**5])})
    loaded = af.onnx.load(proto.SerializeToString())
    assert max(op.outputs[0].spec.size for op in loaded.graph.ops) == 10**10
    far = [helper.make_node("Range", ["o", "n", "l"], ["y"], "endless")]
    constants = {"o": np.array(0), "n": np.array(10**12), "l": np.array(1)}
    with pytest.raises(af.GraphError, match="Range 'endless': more than"):
        af.onnx.load(model(far, [], [("y", ("n",), "int64")], constants).SerializeToString())
