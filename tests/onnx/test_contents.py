"""What is read of a file: its model, and large weights beside it."""

import numpy as np
import onnx
import pytest
from google.protobuf.message import DecodeError
from onnx import TensorProto, helper, numpy_helper

import actorflow as af
from actorflow.errors import GraphError
from actorflow.onnx.contents import contents_in, contents_of

DTYPES = ["float32", "float64", "float16", "int8", "uint8", "int64", "uint16"]


def model_of(*initializers):
    """A model whose only node adds its first initializer to an input."""
    kind, dims = initializers[0].data_type, initializers[0].dims
    ends = [helper.make_tensor_value_info(name, kind, dims) for name in ("x", "y")]
    node = helper.make_node("Add", ["x", initializers[0].name], ["y"])
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], initializers, "words", [ends[1]])
    return helper.make_model(graph, producer_name="p", opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def weight_of(dtype, name="w", shape=(64, 96)):
    return numpy_helper.from_array((np.arange(np.prod(shape)) % 251).reshape(shape).astype(dtype), name)


@pytest.mark.together("dtype", DTYPES)
def test_large_weights_are_cut_out(dtype, tmp_path):
    model = model_of(weight_of(dtype), numpy_helper.from_array(np.arange(3), "few"))
    onnx.save(model, tmp_path / "m.onnx")
    for found in (contents_of(str(tmp_path / "m.onnx")), contents_in(model.SerializeToString())):
        assert [*found.weights] == ["w"]
        array = found.weights["w"]
        assert array.dtype == dtype
        assert not array.flags.writeable
        assert found.model.graph.initializer[0].raw_data == b""
        found.model.graph.initializer[0].raw_data = array.tobytes()
        assert found.model == model


def test_weights_that_stay_in_the_model():
    typed = helper.make_tensor("typed", TensorProto.FLOAT, [2048], np.arange(2048.0))
    odd = helper.make_tensor("odd", TensorProto.BFLOAT16, [64, 64], b"\1\2" * 4096, raw=True)
    cut = weight_of("float32", "short")
    cut.raw_data = cut.raw_data[:-4]  # one number less than its shape says
    model = model_of(typed, odd, cut)
    found = contents_in(model.SerializeToString())
    assert found.model == model
    assert not found.weights


def test_fields_that_come_in_parts():
    model = model_of(weight_of("float32"))
    more = onnx.ModelProto(producer_version="2")
    more.graph.initializer.append(weight_of("int64", "v"))
    content = model.SerializeToString() + more.SerializeToString()
    whole = onnx.ModelProto.FromString(content)
    found = contents_in(content)
    for tensor in found.model.graph.initializer:
        tensor.raw_data = found.weights[tensor.name].tobytes()
    assert found.model == whole


def test_two_weights_of_one_name():
    with pytest.raises(GraphError, match="two initializers 'w'"):
        contents_in(model_of(weight_of("float32"), weight_of("int64")).SerializeToString())


@pytest.mark.together("size", range(1, 60, 7))
def test_a_part_of_a_file(size, tmp_path):
    content = model_of(weight_of("float32")).SerializeToString()
    for part in (content[:size], content[:-size]):
        (tmp_path / "m.onnx").write_bytes(part)
        with pytest.raises(DecodeError):
            contents_of(str(tmp_path / "m.onnx"))


@pytest.mark.together("content", [b"", b"\x0b\x0b", b"\xff" * 20, b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\x7f"])
def test_what_is_no_file_of_onnx(content, tmp_path):
    (tmp_path / "m.onnx").write_bytes(content)
    with pytest.raises(GraphError, match=r"no ONNX file"):
        af.onnx.load(tmp_path / "m.onnx")


def test_networks_keep_their_weights_and_models_do_not(tmp_path):
    weight = weight_of("float32", shape=(512, 128))
    ends = [helper.make_tensor_value_info(name, 1, ["n", n]) for name, n in (("x", 128), ("y", 512))]
    node = helper.make_node("Gemm", ["x", "w"], ["y"], transB=1)
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], [weight])
    onnx.save(helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 18)]), tmp_path / "m.onnx")
    network = af.onnx.Network(tmp_path / "m.onnx")
    for name in ("first", "second"):
        network(af.Graph(name).blob("x", ["n", 128]))
    assert [*network._file.weights] == ["w"]
    network.lower(graph := af.Graph("third"), [graph.blob("x", ["n", 128])], once=True)
    assert not network._file.weights
    x = np.ones((1, 128), np.float32)
    model = af.onnx.load(tmp_path / "m.onnx")
    with model.graph:
        found = model.run_sync({"x": x})["y"]
    np.testing.assert_allclose(found[0], numpy_helper.to_array(weight).sum(1), rtol=1e-6)
