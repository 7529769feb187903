"""Dynamic axes of files are open axes: shape arithmetic follows their lengths."""

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from onnxruntime import InferenceSession

import actorflow as af
from tests.onnx.test_layouts import kinds, node, weights
from tests.support.onnx_files import model, results


def check(proto, *shapes: tuple[int, ...]) -> af.Model:
    """Run a model of one input on several shapes, and compare with ONNX's own evaluator."""
    loaded = af.onnx.load(proto.SerializeToString())
    feeds = [{"x": weights(*shape)} for shape in shapes]
    for each, found in zip(feeds, results(loaded, *feeds), strict=True):
        for got, want in zip(found.values(), ReferenceEvaluator(proto).run(None, each), strict=True):
            assert (got.dtype, got.shape) == (want.dtype, want.shape)
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    return loaded


def test_a_classifier_of_any_batch_and_size() -> None:
    nodes = [
        node("Conv", "x w", "a", pads=[1, 1, 1, 1], strides=[2, 2]),
        node("MaxPool", "a", "b", kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
        node("GlobalAveragePool", "b", "c"),
        node("Flatten", "c", "d"),
        node("Gemm", "d v", "y", transB=1),
    ]
    proto = model(
        nodes, [("x", ("batch", 3, "height", "width"))], [("y", ("batch", 7))],
        {"w": weights(4, 3, 3, 3), "v": weights(7, 4)},
    )  # fmt: skip
    loaded = check(proto, (1, 3, 9, 8), (3, 3, 12, 17))
    assert str(loaded.inputs["x"].spec) == "float32[batch, 3, height, width]"
    assert str(loaded.outputs["y"].spec) == "float32[batch, 7]"


def test_attention_reshapes_by_lengths() -> None:
    """Shape -> Gather -> Concat -> Reshape, as PyTorch exports it."""
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s i0", "n"),
        node("Gather", "s i1", "t"),
        node("Unsqueeze", "n ax", "n1"),
        node("Unsqueeze", "t ax", "t1"),
        node("Concat", "n1 t1 four two", "split", axis=0),
        node("Reshape", "x split", "h"),
        node("Transpose", "h", "q", perm=[0, 2, 1, 3]),
        node("Transpose", "h", "k", perm=[0, 2, 3, 1]),
        node("MatMul", "q k", "a"),
        node("Softmax", "a", "p", axis=-1),
        node("MatMul", "p q", "o"),
        node("Transpose", "o", "o1", perm=[0, 2, 1, 3]),
        node("Concat", "n1 t1 eight", "joined", axis=0),
        node("Reshape", "o1 joined", "r"),
        node("Mul", "t two0", "t2"),
        node("Range", "zero t one", "positions"),
        node("Cast", "positions", "places", to=1),
        node("Unsqueeze", "places last", "column"),
        node("Add", "r column", "y"),
    ]
    constants = {
        "i0": np.array(0), "i1": np.array(1), "ax": np.array([0]), "four": np.array([4]), "two": np.array([2]),
        "eight": np.array([8]), "two0": np.array(2), "zero": np.array(0), "one": np.array(1), "last": np.array([1]),
    }  # fmt: skip
    proto = model(nodes, [("x", ("batch", "time", 8))], [("y", ("batch", "time", 8))], constants)
    loaded = check(proto, (1, 3, 8), (2, 5, 8), (4, 1, 8))
    assert str(loaded.outputs["y"].spec) == "float32[batch, time, 8]"


@pytest.mark.together(
    ("nodes", "constants"),
    [
        ([("Div", "t", "i", {})], {"by": np.array([2])}),
        ([("Mul", "t", "i", {})], {"by": np.array([3])}),
        ([("Sub", "t", "i", {})], {"by": np.array([1])}),
        ([("Max", "t", "i", {})], {"by": np.array([4])}),
        ([("Min", "t", "i", {})], {"by": np.array([4])}),
    ],
)
def test_lengths_are_computed_with(nodes, constants) -> None:
    ((operator, *_),) = nodes
    made = [
        node("Shape", "x", "s"),
        node("Slice", "s lo hi", "t"),
        node(operator, "t by", "n"),
        node("Concat", "n one", "shape", axis=0),
        node("ConstantOfShape", "shape", "y"),
    ]
    constants = {**constants, "lo": np.array([0]), "hi": np.array([1]), "one": np.array([3])}
    check(model(made, [("x", ("n", 2))], [("y", None)], constants), (5, 2), (8, 2), (2, 2))


def test_expand_chooses_by_lengths() -> None:
    """Where(Equal(shape, -1), ones, shape), as PyTorch exports `expand`."""
    nodes = [
        node("Shape", "x", "s"),
        node("Equal", "s minus", "is"),
        node("Where", "is ones s", "shape"),
        node("Expand", "w shape", "e"),
        node("Add", "e x", "y"),
    ]
    constants = {"minus": np.array(-1), "ones": np.array([1, 1]), "w": weights(1, 4)}
    check(model(nodes, [("x", ("n", 4))], [("y", None)], constants), (3, 4), (6, 4))


def test_resizing_to_the_size_of_another() -> None:
    nodes = [
        node("MaxPool", "x", "small", kernel_shape=[2, 2], strides=[2, 2]),
        node("Shape", "x", "s"),
        node("Resize", "small", "z", mode="linear"),
        node("Add", "z x", "y"),
    ]
    nodes[2] = helper.make_node("Resize", ["small", "", "", "s"], ["z"], mode="linear")
    check(model(nodes, [("x", (1, 2, "h", "w"))], [("y", None)]), (1, 2, 8, 6), (1, 2, 4, 10))


def test_axes_are_fixed_and_renamed() -> None:
    proto = model([node("Relu", "x", "y")], [("x", ("N", 3, "the height", None))], [("y", None)]).SerializeToString()
    assert str(af.onnx.load(proto).inputs["x"].spec) == "float32[N, 3, the_height, x_3]"
    loaded = af.onnx.load(proto, axes={"N": 2, "the height": "h", "x_3": 5})
    assert str(loaded.inputs["x"].spec) == "float32[2, 3, h, 5]"
    assert str(loaded.outputs["y"].spec) == "float32[2, 3, h, 5]"
    with pytest.raises(af.GraphError, match="no open axis of an input has the name 'batch'"):
        af.onnx.load(proto, axes={"batch": 2})


def test_a_length_as_a_value() -> None:
    nodes = [node("Shape", "x", "s"), node("Cast", "s", "f", to=1), node("Mul", "x f", "y")]
    proto = model(nodes, [("x", ("n", 2))], [("y", None), ("s", None, "int64")])
    check(proto, (3, 2), (5, 2))


def test_transposes_stay_few_with_open_axes() -> None:
    nodes = [node("Conv", "x w", "a"), node("Relu", "a", "b"), node("Conv", "b v", "y")]
    proto = model(
        nodes, [("x", ("n", 3, "h", "w"))], [("y", None)], {"w": weights(4, 3, 3, 3), "v": weights(2, 4, 1, 1)}
    )
    assert kinds(check(proto, (1, 3, 5, 5), (2, 3, 6, 7)))["Transpose"] == 2


def test_axes_are_counted() -> None:
    proto = model([node("Relu", "x0", "y")], [(f"x{i}", (f"n{i}",)) for i in range(257)], [("y", ("n0",))])
    with pytest.raises(af.GraphError, match="its inputs have more than 256 open axes"):
        af.onnx.load(proto.SerializeToString())
    proto.graph.input.pop()
    assert len(af.onnx.load(proto.SerializeToString()).inputs) == 256


def test_axes_whose_names_are_spelt_alike_are_different_ones() -> None:
    nodes = [helper.make_node("MatMul", ["x", "z"], ["y"])]
    made = model(nodes, [("x", ["a-b", 3]), ("z", [3, "a_b"])], [("y", ["a-b", "a_b"])])
    loaded = af.onnx.load(made.SerializeToString())
    found = loaded.run_sync({"x": np.ones((2, 3), "f"), "z": np.ones((3, 4), "f")})["y"]
    np.testing.assert_array_equal(found, np.full((2, 4), 3, "f"))


def test_a_length_that_does_not_fit_a_dtype_wraps() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Cast", ["s"], ["small"], to=TensorProto.INT8),
        helper.make_node("Cast", ["small"], ["y"], to=TensorProto.FLOAT),
    ]
    loaded = af.onnx.load(model(nodes, [("x", ["n"])], [("y", [1])]).SerializeToString())
    assert loaded.run_sync({"x": np.zeros(300, "f")})["y"].tolist() == [44]


def test_a_part_of_known_length_whose_place_data_say() -> None:
    nodes = [node("Add", "i two", "j"), node("Slice", "x i j one", "part"), node("ReduceSum", "part", "y")]
    one = np.array([1])
    proto = model(
        nodes, [("x", ("n", 5)), ("i", (1,), "int64")], [("part", None), ("y", None)], {"two": one + 1, "one": one}
    )
    loaded, x = af.onnx.load(proto.SerializeToString()), weights(2, 5)
    assert loaded.outputs["part"].shape == (loaded.inputs["x"].shape[0], 2)
    for i in (0, 3, -5, -3):
        found = loaded.run_sync({"x": x, "i": one * 0 + i})
        np.testing.assert_array_equal(found["part"], x[:, [i, i + 1]])
    for i in (4, -1, -2, -6):  # of which the file's own part is shorter
        with pytest.raises(af.OpError, match="indices must be from -5 to 4"):
            loaded.run_sync({"x": x, "i": one * 0 + i})


@pytest.mark.parametrize("given", ["constants", "open", "data"])
def test_parts_beyond_the_ends_of_an_axis(given: str) -> None:
    places = [-9, -6, -5, -1, 0, 4, 5, 9]
    ends = [(start, end, step) for start in places for end in (*places, -(2**31), 2**31 - 1) for step in (1, 2, -1, -2)]
    taken = ends[:: 7 if given == "data" else 3]
    inputs = [("x", ["n" if given == "open" else 5])]
    if given == "data":
        inputs += [(f"{name}{i}", (1,), "int64") for i in range(len(taken)) for name in ("start", "end")]
    numbers = {
        f"{name}{i}": np.array([n])
        for i, each in enumerate(taken)
        for name, n in zip(("start", "end", "step"), each, strict=True)
    }
    fed = {name for name, *_ in inputs}
    proto = model(
        [node("Slice", f"x start{i} end{i} zero step{i}", f"y{i}") for i in range(len(taken))],
        inputs,
        [(f"y{i}", None) for i in range(len(taken))],
        {"zero": np.array([0]), **{name: n for name, n in numbers.items() if name not in fed}},
    )
    session = InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    loaded = af.onnx.load(proto.SerializeToString())
    for n in (5, 1, 2, 0) if given == "open" else (5,):
        feeds = {"x": np.arange(n, dtype="f"), **{name: n for name, n in numbers.items() if name in fed}}
        for got, want, each in zip(loaded.run_sync(feeds).values(), session.run(None, feeds), taken, strict=True):
            assert got.tolist() == want.tolist(), (n, each)
