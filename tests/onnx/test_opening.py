"""Axes that a file fixes are opened where all that follows can have another length."""

import re
from importlib.util import find_spec
from typing import Any

import numpy as np
import onnx
import pytest

import actorflow as af
from tests.onnx.test_layouts import weights
from tests.support.onnx_files import model

BACKENDS = ["actorflow", *(["onnxruntime"] if find_spec("onnxruntime") else [])]
OPEN = {"x": {0: "batch"}}


def node(operator: str, inputs: str, outputs: str, name: str | None = None, **attributes: Any) -> Any:
    """A node; a minus stands for an input that is left out."""
    given = [each.strip("-") for each in inputs.split()]
    return onnx.helper.make_node(operator, given, outputs.split(), name or outputs, **attributes)


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def edited(proto: Any, constants: dict[str, np.ndarray]) -> bytes:
    """The file with its first axis open, as whoever exports it would have had it."""
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    for value in (*made.graph.input, *made.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    for tensor in made.graph.initializer:
        if tensor.name in constants:
            tensor.CopyFrom(onnx.numpy_helper.from_array(constants[tensor.name], tensor.name))
    return made.SerializeToString()


def computed(source: bytes, x: np.ndarray) -> np.ndarray:
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


def images(length: int = 1) -> Any:
    nodes = [
        node("Conv", "x w", "a", pads=[1, 1, 1, 1]),
        node("Relu", "a", "b"),
        node("Resize", "b - - sizes", "c", mode="nearest", name="up"),
        node("GlobalAveragePool", "c", "d"),
        node("Reshape", "d flat", "e"),
        node("Gemm", "e v", "f", transB=1),
        node("Reshape", "f rest", "y"),
    ]
    return model(
        nodes, [("x", (length, 3, 4, 4))], [("y", (length, 5))],
        {"w": weights(4, 3, 3, 3), "v": weights(5, 4), "sizes": ints(length, 4, 8, 8), "flat": ints(length, 4),
         "rest": ints(length, -1)},
    )  # fmt: skip


def attention() -> Any:
    nodes = [
        node("Reshape", "x heads", "h"),
        node("Transpose", "h", "q", perm=[0, 2, 1, 3]),
        node("Transpose", "h", "k", perm=[0, 2, 3, 1]),
        node("MatMul", "q k", "a"),
        node("Softmax", "a", "p", axis=-1),
        node("MatMul", "p q", "o"),
        node("Transpose", "o", "o1", perm=[0, 2, 1, 3]),
        node("Reshape", "o1 joined", "r"),
        node("Add", "r positions", "y"),
    ]
    return model(
        nodes, [("x", (1, 6, 8))], [("y", (1, 6, 8))],
        {"heads": ints(1, 6, 4, 2), "joined": ints(1, 6, 8), "positions": weights(1, 6, 8)},
    )  # fmt: skip


#: Files, and constants of theirs as they are where the batch is open.
FILES = {
    "images": (images(), {"flat": ints(-1, 4), "rest": ints(-1, 5)}, (3, 4, 4)),
    "attention": (attention(), {"heads": ints(-1, 6, 4, 2), "joined": ints(-1, 6, 8)}, (6, 8)),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", FILES)
def test_results_are_those_of_the_file_with_an_open_batch(name: str, backend: Any) -> None:
    proto, constants, shape = FILES[name]
    loaded = af.onnx.load(proto.SerializeToString(), axes=OPEN, backend=backend)
    assert str(loaded.inputs["x"].shape[0]) == str(loaded.outputs["y"].shape[0]) == "batch"
    for batch in (1, 3, 4):
        x = weights(batch, *shape)
        found = loaded.run_sync({"x": x})["y"]
        # Each row is what the file itself gives for it
        rows = [computed(proto.SerializeToString(), row[np.newaxis]) for row in x]
        np.testing.assert_allclose(found, np.concatenate(rows), rtol=1e-4, atol=1e-5)
        if name != "images":  # whose size cannot be edited by a constant
            np.testing.assert_allclose(found, computed(edited(proto, constants), x), rtol=1e-4, atol=1e-5)


def test_a_file_of_another_length() -> None:
    source = images(4).SerializeToString()
    loaded = af.onnx.load(source, axes=OPEN)
    x = weights(4, 3, 4, 4)
    want = computed(source, x)
    np.testing.assert_allclose(loaded.run_sync({"x": x})["y"], want, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(loaded.run_sync({"x": x[:3]})["y"], want[:3], rtol=1e-4, atol=1e-5)


def test_its_rows_are_batched() -> None:
    loaded = af.onnx.load(attention().SerializeToString(), axes=OPEN)
    assert loaded.batched(max_rows=4)
    with pytest.raises(af.GraphError, match=re.escape("axes={'x': {0: 'batch'}}")):
        af.onnx.load(attention().SerializeToString()).batched(max_rows=4)


@pytest.mark.together("backend", BACKENDS, at_once=12)
@pytest.mark.together(
    ("nodes", "constants", "shape", "refused"),
    [
        ([node("Reshape", "x s", "y", name="pairs")], {"s": ints(2, 12)}, (2, 12), "Reshape 'pairs': ShapeError"),
        ([node("Squeeze", "x", "y", name="squeezed")], {}, (6, 4), "Squeeze 'squeezed'"),
        ([node("Squeeze", "x s", "y", name="squeezed")], {"s": ints(0)}, (6, 4), "Squeeze 'squeezed'"),
        ([node("Concat", "x s", "y", axis=1, name="token")], {"s": weights(1, 1, 4)}, (1, 7, 4), "Concat 'token'"),
        ([node("Split", "x s", "y", axis=0, name="split")], {"s": ints(1)}, (1, 6, 4), "Split 'split'"),
        ([node("Gemm", "m s", "y", name="last"), node("Reshape", "x t", "m", name="flat")][::-1],
         {"s": weights(8, 2), "t": ints(3, 8)}, (3, 2), "Reshape 'flat'"),
    ],
)  # fmt: skip
def test_what_needs_the_length_is_refused_by_name(nodes, constants, shape, refused: str, backend: Any) -> None:
    proto = model(nodes, [("x", (1, 6, 4))], [("y", shape)], constants)
    af.onnx.load(proto.SerializeToString(), backend=backend)
    with pytest.raises(af.GraphError, match="cannot be opened, 'batch' \\(1 in the file, 1010 tried\\)") as caught:
        af.onnx.load(proto.SerializeToString(), axes=OPEN, backend=backend)
    assert refused in str(caught.value)


@pytest.mark.parametrize(("target", "opens"), [((6, 1, 2, 2), True), ((0, 1, -1), True), ((3, 1, 8), False)])
def test_an_axis_is_opened_behind_those_that_stay_as_they_are(target: tuple[int, ...], opens: bool) -> None:
    """Where others are cut anew before it, the fixed length at its place may be any."""
    nodes = [node("Transpose", "x", "t", perm=[1, 0, 2]), node("Reshape", "t s", "y", name="cut")]
    proto = model(nodes, [("x", (1, 6, 4))], [("y", None)], {"s": ints(*target)})
    if opens:
        x = weights(5, 6, 4)
        found = af.onnx.load(proto, axes=OPEN).run_sync({"x": x})["y"]
        np.testing.assert_array_equal(found.reshape(6, 5, 4), x.transpose(1, 0, 2))
        assert found.shape[1] == 5
    else:
        with pytest.raises(af.GraphError, match="Reshape 'cut': ShapeError"):
            af.onnx.load(proto, axes=OPEN)


def test_lengths_that_weights_have_are_not_open() -> None:
    """That an open axis could be as long as a weight's is found out when it is not."""
    proto = model([node("Add", "x s", "y", name="added")], [("x", (4, 3))], [("y", (4, 3))], {"s": weights(4, 3)})
    with pytest.raises(af.GraphError, match="Add 'added': ShapeError"):
        af.onnx.load(proto.SerializeToString(), axes={"x": {0: "rows"}})


def test_what_is_refused_whatever_the_length_is_not_blamed_on_it() -> None:
    proto = model([node("RandomNormalLike", "x", "y", name="drawn")], [("x", (1, 3))], [("y", (1, 3))], {})
    with pytest.raises(af.GraphError, match="these nodes cannot be loaded:\n  RandomNormalLike 'drawn'"):
        af.onnx.load(proto.SerializeToString(), axes=OPEN)


def test_axes_by_position() -> None:
    proto = model([node("Add", "x z", "y")], [("x", (1, "n", 3)), ("z", (1, "n", 3))], [("y", (1, "n", 3))], {})
    source = proto.SerializeToString()
    both = af.onnx.load(source, axes={"x": {0: "batch", 1: "time"}, "z": {0: "batch", 1: "time"}})
    assert str(both.outputs["y"].spec) == "float32[batch, time, 3]"
    fixed = af.onnx.load(source, axes={"x": {1: 5, 2: 3}, "z": {1: 5}})
    assert str(fixed.inputs["x"].spec) == str(fixed.inputs["z"].spec) == "float32[1, 5, 3]"


@pytest.mark.together(
    ("axes", "error", "message"),
    [
        ({"z": {0: "batch"}}, af.GraphError, "no input 'z'"),
        ({"X": {0: "batch"}}, af.GraphError, "no input 'X', only 'x'"),
        ({"x": {3: "batch"}}, af.GraphError, r"input 'x' float32\[1, 6, 8\] has no axis 3"),
        ({"x": {0: 2}}, af.GraphError, "axis 0 of input 'x' has length 1 in the file, and 2 is another one: give it"),
        ({"x": {0: "n", 1: "n"}}, af.GraphError, "'n' would be of 6 and of 1 elements"),
        ({"x": "batch"}, af.GraphError, r"by its position, axes=\{'x': \{0: 'batch'\}\}"),
        ({"x": {"0": "batch"}}, TypeError, "axes must be like"),
        ({"x": 1.5}, TypeError, "axes must be like"),
        ({"x": {0: -1}}, TypeError, "axes must be like"),
        ({"x": {0: ""}}, TypeError, "axes must be like"),
        ([("x", 1)], TypeError, "axes must be a mapping, .*, got list"),
    ],
)
def test_what_is_no_axis(axes: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        af.onnx.load(attention().SerializeToString(), axes=axes)
