"""Values and variables of a loaded file, by the names that the file has for them."""

import numpy as np
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

import actorflow as af
from tests.onnx.test_layouts import node, weights
from tests.onnx.test_trainable import network
from tests.support.onnx_files import model

X = weights(2, 3, 6, 6)


def expected(source: bytes, *names: str) -> dict[str, np.ndarray]:
    evaluator = ReferenceEvaluator(af_proto(source, names))
    return dict(zip(names, evaluator.run(None, {"x": X}), strict=True))


def af_proto(source: bytes, names: tuple[str, ...]):
    import onnx

    proto = onnx.load_from_string(source)
    del proto.graph.output[:]
    proto.graph.output.extend([helper.make_tensor_value_info(name, 1, None) for name in names])
    return proto


@pytest.mark.parametrize("trainable", [False, True])
def test_values_are_those_of_the_file_with_its_axes(trainable: bool) -> None:
    loaded = af.onnx.load(network(), trainable=trainable)
    names = [name for name in loaded.values if name not in ("x", *loaded.variables)]
    assert names == (["a", "b"] if trainable else []) + ["b1", "c", "d", "e", "y"]
    found = loaded.run_sync({"x": X}, fetch=names)
    for name, want in expected(network(), *names).items():
        assert found[name].shape == want.shape, name
        np.testing.assert_allclose(found[name], want, rtol=1e-4, atol=1e-5, err_msg=name)


def test_a_value_is_a_blob_to_fetch_from_the_graph() -> None:
    loaded = af.onnx.load(network())
    blob = loaded.values["c"]
    assert blob is loaded.values["c"]
    assert loaded.values["x"] is loaded.inputs["x"]
    assert loaded.values["y"] is loaded.outputs["y"]
    found = loaded.graph.run_sync({loaded.inputs["x"]: X}, fetch=[blob])[blob]
    np.testing.assert_allclose(found, expected(network(), "c")["c"], rtol=1e-4, atol=1e-5)


def test_names_alone_add_nothing_to_the_graph() -> None:
    loaded = af.onnx.load(network())
    before = len(loaded.graph.ops)
    assert "c" in loaded.values
    assert "a" not in loaded.values
    assert loaded.values.get("a") is None
    assert len([*loaded.values]) == len(loaded.values) == 6
    assert repr(loaded.values) == "<FileValues of 'onnx': 6 names>"
    assert len(loaded.graph.ops) == before
    _ = loaded.values["c"], loaded.values["c"]
    assert [op.name for op in loaded.graph.ops[before:]] == ["c.transpose"]


@pytest.mark.together(
    ("name", "message"),
    [
        ("a", "'a' has no blob: .*folded into its weights: 'b1' is the result; .*trainable=True"),
        ("b", "'b' has no blob: .*folded into its weights: 'b1' is the result"),
        ("stem/w", "'stem/w' has no blob: it is constant; .*trainable=True"),
        ("Y", "no tensor named 'Y'; did you mean 'y'"),
        ("e/nothing", "no tensor named 'e/nothing'; `values` has all names"),
        ("", "no tensor named ''; `values` has"),
    ],
)
def test_what_has_no_blob_says_why(name: str, message: str) -> None:
    loaded = af.onnx.load(network())
    with pytest.raises(af.GraphError, match=message):
        loaded.values[name]
    with pytest.raises(af.GraphError, match=message):
        loaded.run_sync({"x": X}, fetch=[name])


def test_unknown_names_are_key_errors() -> None:
    loaded = af.onnx.load(network())
    with pytest.raises(KeyError):
        loaded.values["Y"]
    with pytest.raises(af.GraphError, match="'stem' is no blob"):  # a scope of the graph
        af.onnx.load(network(), trainable=True).run_sync({"x": X}, fetch=["stem"])


def test_constants_and_lengths_and_what_nothing_needs() -> None:
    nodes = [
        node("Add", "k k", "twice"),
        node("Shape", "x", "lengths"),
        node("Reshape", "x lengths", "r"),
        node("Add", "r twice", "y"),
        node("Conv", "image w", "unread"),
    ]
    proto = model(
        nodes, [("x", ("batch", 3)), ("image", (1, 1, 4, 4))], [("y", ("batch", 3))],
        {"k": np.float32([1, 2, 3]), "w": weights(1, 1, 2, 2)},
    )  # fmt: skip
    loaded = af.onnx.load(proto.SerializeToString())
    reasons = {
        "twice": "it is constant", "unread": "no output of the file needs it", "lengths": "follows from the lengths",
    }  # fmt: skip
    for name, message in reasons.items():
        with pytest.raises(af.GraphError, match=message):
            loaded.values[name]
    assert [*loaded.values] == ["x", "image", "r", "y"]


def test_what_onnxruntime_computes_has_no_blob() -> None:
    pytest.importorskip("onnxruntime")
    loaded = af.onnx.load(network(), backend="onnxruntime")
    assert [*loaded.values] == ["x", "y"]
    with pytest.raises(af.GraphError, match=r"'c' has no blob: onnxruntime computes it .*backend='actorflow'"):
        loaded.values["c"]


def test_values_of_a_network_in_another_graph() -> None:
    graph = af.Graph("outer")
    body = af.onnx.Network(network(), trainable=True, name="body")
    assert not body.values
    body(graph.blob("x", (2, 3, 6, 6)))
    blob = body.values["c"]
    assert blob.name == "body/c.transpose/out"
    np.testing.assert_allclose(
        graph.run_sync({"x": X}, fetch=[blob])[blob], expected(network(), "c")["c"], rtol=1e-4, atol=1e-5
    )
    assert body.values["head.w"] is body.weights["head.w"]
    assert body.weights["head.w"].name == "body/head.w"


def test_variables_by_their_names_in_the_file() -> None:
    loaded = af.onnx.load(network(), trainable=True)
    assert set(loaded.variables) == {variable.name for variable in loaded.graph.variables}
    assert loaded.variables["head.w"] is loaded.values["head.w"]
    for error in (KeyError, af.GraphError):
        with pytest.raises(error, match=r"has no variable 'head.v'; did you mean 'head.w'"):
            loaded.variables["head.v"]
    constant = af.onnx.load(network()).variables
    assert not constant
    assert constant.get("head.w") is None
    with pytest.raises(af.GraphError, match=r"<bytes> has no variable 'head.w': load the file with trainable=True"):
        constant["head.w"]


def test_names_that_no_blob_could_have() -> None:
    weight = weights(3, 2)
    nodes = [helper.make_node("Gemm", ["x", "net//w"], ["net/ \n/y"])]
    proto = model(nodes, [("x", (1, 3))], [("net/ \n/y", (1, 2))], {"net//w": weight})
    loaded = af.onnx.load(proto.SerializeToString(), trainable=True)
    np.testing.assert_array_equal(loaded.variables["net//w"].value, weight)
    assert loaded.values["net/ \n/y"].shape == (1, 2)


def test_copies_of_weights_are_weights_of_their_own() -> None:
    """As PyTorch writes one tensor for several that are equal."""
    nodes = [node("Identity", "shift", "mean"), node("Identity", "mean", "again"),
             node("Add", "x shift", "a"), node("Mul", "a mean", "b"), node("Sub", "b again", "y")]  # fmt: skip
    proto = model(nodes, [("x", (2,))], [("y", (2,))], {"shift": np.float32([1, 2])})
    loaded = af.onnx.load(proto.SerializeToString(), trainable=True)
    assert set(loaded.variables) == {"shift", "mean", "again"}
    x = np.float32([3, 5])
    assert loaded.run_sync({"x": x})["y"].tolist() == [3, 12]
    loaded.variables["mean"].value = np.float32([0, 0])
    assert loaded.run_sync({"x": x})["y"].tolist() == [-1, -2]


def test_values_of_models_that_no_file_was() -> None:
    graph = af.Graph("own")
    x, w = graph.blob("x", (2,)), graph.variable("w", (2,), init=[1, 2])
    y = af.ops.multiply(x, w)
    loaded = af.Model(graph, {"in": x}, {"out": y})
    assert dict(loaded.values) == {"in": x, "out": y}
    assert dict(loaded.variables) == {"w": w}
    with pytest.raises(KeyError, match="model 'own' has no variable 'v'"):
        loaded.variables["v"]
    with pytest.raises(af.GraphError, match="has no blob, op or sub-graph named 'outt'"):
        loaded.run_sync({"in": np.ones(2)}, fetch=["outt"])
