"""Layouts of images, and what is folded into weights when a file is loaded."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper
from onnx.reference import ReferenceEvaluator

import actorflow as af
from tests.support.onnx_files import model, results

RANDOM = np.random.default_rng(0)


def weights(*shape: int) -> np.ndarray:
    return (RANDOM.standard_normal(shape) * 0.3).astype("float32")


def kinds(loaded: af.Model) -> Counter[str]:
    """How many ops of each operation there are."""
    return Counter(op.operation.kind for op in loaded.graph.ops)


def check(proto, **feeds: np.ndarray) -> af.Model:
    """Load a model and compare its results with those of ONNX's own evaluator."""
    loaded = af.onnx.load(proto.SerializeToString())
    expected = ReferenceEvaluator(proto).run(None, feeds)
    (found,) = results(loaded, feeds)
    for name, got, want in zip(found, found.values(), expected, strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape), name
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5, err_msg=name)
    return loaded


def node(operator: str, inputs: str, outputs: str, **attributes):
    return helper.make_node(operator, inputs.split(), outputs.split(), outputs.split(maxsplit=1)[0], **attributes)


def detector():
    """Convolutions with all that stands between them in a detector, two branches of which are joined."""
    nodes = [
        node("Conv", "x w1", "a", pads=[1, 1, 1, 1], strides=[2, 2]),
        node("BatchNormalization", "a s b m v", "a1"),
        node("Relu", "a1", "a2"),
        node("Conv", "a2 w2", "c", group=4),
        node("Mul", "c half", "c1"),
        node("Add", "c1 shift", "c2"),
        node("Sigmoid", "c2", "gate"),
        node("Mul", "a2 gate", "d"),
        node("GlobalAveragePool", "d", "e"),
        node("Mul", "d e", "f"),
        node("MaxPool", "f", "g", kernel_shape=[2, 2], strides=[2, 2]),
        node("Resize", "g  scales", "h", mode="nearest"),
        node("Concat", "h f", "i", axis=1),
        node("Pad", "i pads", "j"),
        node("ReduceMean", "j", "k", axes=[1], keepdims=1),
        node("Sub", "j k", "l"),
        node("Slice", "l starts ends axes", "o"),
        node("Split", "o", "p q", axis=1),
        node("Add", "p q", "r"),
        node("Conv", "r w3 b3", "y"),
    ]
    nodes[11] = helper.make_node("Resize", ["g", "", "scales"], ["h"], "h", mode="nearest")
    return model(
        nodes,
        [("x", (2, 3, 16, 16))],
        [("y", None)],
        {
            "w1": weights(4, 3, 3, 3), "s": weights(4), "b": weights(4), "m": weights(4), "v": np.abs(weights(4)) + 1,
            "w2": weights(4, 1, 1, 1), "half": np.float32(0.5), "shift": weights(4, 1, 1),
            "scales": np.array([1, 1, 2, 2], "float32"), "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1]),
            "starts": np.array([1]), "ends": np.array([9]), "axes": np.array([2]), "w3": weights(5, 4, 1, 1),
            "b3": weights(5),
        },
    )  # fmt: skip


def test_a_detector_is_transposed_at_its_ends_alone() -> None:
    loaded = check(detector(), x=weights(2, 3, 16, 16))
    found = kinds(loaded)
    assert found["Transpose"] == 2
    assert found["Bias"] == 3
    assert found["BatchNormInference"] == 0


def test_inputs_that_are_channels_last_already_are_not_transposed() -> None:
    nodes = [
        node("Transpose", "x", "a", perm=[0, 3, 1, 2]),
        node("Conv", "a w", "b"),
        node("Transpose", "b", "y", perm=[0, 2, 3, 1]),
    ]
    proto = model(nodes, [("x", (2, 5, 5, 3))], [("y", None)], {"w": weights(4, 3, 3, 3)})
    assert kinds(check(proto, x=weights(2, 5, 5, 3)))["Transpose"] == 0


def test_axes_of_length_1_come_and_go_without_transpositions() -> None:
    """Columns of an image become a sequence, as in networks that read text."""
    nodes = [
        node("Conv", "x w", "a"),
        node("Squeeze", "a two", "b"),
        node("Transpose", "b", "c", perm=[0, 2, 1]),
        node("MatMul", "c m", "d"),
        node("Transpose", "d", "e", perm=[0, 2, 1]),
        node("Reshape", "e four", "f"),
        node("Conv", "f v", "g"),
        node("Reshape", "g three", "h"),
        node("Transpose", "h", "y", perm=[0, 2, 1]),
    ]
    constants = {
        "w": weights(4, 3, 5, 3), "two": np.array([2]), "m": weights(4, 6), "four": np.array([2, 6, 1, 7]),
        "v": weights(5, 6, 1, 1), "three": np.array([2, 5, 7]),
    }  # fmt: skip
    loaded = check(model(nodes, [("x", (2, 3, 5, 9))], [("y", None)], constants), x=weights(2, 3, 5, 9))
    assert kinds(loaded)["Transpose"] == 1


def test_patches_become_a_sequence_without_a_transposition() -> None:
    """``conv(x).flatten(2).transpose(1, 2)``, and the heads of detectors, joined over the places of all images."""
    nodes = [
        node("Conv", "x w", "a", strides=[2, 2]),
        node("Reshape", "a merged", "b"),
        node("Transpose", "b", "c", perm=[0, 2, 1]),
        node("MatMul", "c m", "y"),
        node("Conv", "a v", "d", strides=[2, 2]),
        node("Reshape", "d merged", "e"),
        node("Concat", "b e", "f", axis=2),
        node("Reshape", "f split", "g"),
        node("Transpose", "g", "z", perm=[0, 3, 1, 2]),
    ]
    constants = {
        "w": weights(4, 3, 2, 2), "merged": np.array([2, 4, -1]), "m": weights(4, 5), "v": weights(4, 4, 1, 1),
        "split": np.array([2, 2, 2, -1]),
    }  # fmt: skip
    proto = model(nodes, [("x", (2, 3, 8, 12))], [("y", None), ("z", None)], constants)
    assert kinds(check(proto, x=weights(2, 3, 8, 12)))["Transpose"] == 1


@given(st.permutations(range(4)), st.sampled_from([
    (24, 5), (6, 20), (2, 3, 4, 5), (2, 12, 5), (6, 4, 5), (2, 3, 20), (2, 3, 2, 2, 5), (1, 2, 3, 1, 4, 5, 1), (120,),
    (4, 30), (5, 24), (2, 60), (40, 3), (3, 40), (8, 15),
]))  # fmt: skip
def test_reshapes_behind_transpositions(perm: list[int], shape: tuple[int, ...]) -> None:
    x = np.arange(120, dtype="float32").reshape(2, 3, 4, 5)
    nodes = [node("Transpose", "x", "a", perm=perm), node("Reshape", "a s", "b"), node("Neg", "b", "y")]
    proto = model(nodes, [("x", x.shape)], [("y", None)], {"s": np.array(shape)})
    (found,) = results(af.onnx.load(proto.SerializeToString()), {"x": x})
    np.testing.assert_array_equal(found["y"], -x.transpose(perm).reshape(shape))


def test_in_doubt_images_have_their_channels_last_and_sequences_stay() -> None:
    nodes = [node("Conv", "x w", "a"), node("Add", "a other", "b"), node("Conv", "b v", "y")]
    constants = {"w": weights(4, 3, 1, 1), "v": weights(2, 4, 1, 1)}
    inputs = [("x", (1, 3, 4, 5)), ("other", (1, 4, 4, 5))]
    loaded = check(model(nodes, inputs, [("y", None)], constants), x=weights(1, 3, 4, 5), other=weights(1, 4, 4, 5))
    assert kinds(loaded)["Transpose"] == 3
    nodes = [node("Transpose", "x", "a", perm=[0, 2, 1]), node("Add", "a other", "b"), node("MatMul", "b m", "y")]
    inputs = [("x", (2, 4, 3)), ("other", (2, 3, 4))]
    proto = model(nodes, inputs, [("y", None)], {"m": weights(4, 5)})
    assert kinds(check(proto, x=weights(2, 4, 3), other=weights(2, 3, 4)))["Transpose"] == 1


@pytest.mark.together("chain", [
    [("Mul", "a k"), ("Add", "a k")], [("Sub", "a k"), ("Div", "a k")], [("Sub", "k a")], [("Mul", "k a")],
    [("Add", "a one"), ("Mul", "one a")],
], at_once=15)  # fmt: skip
@pytest.mark.together("operator", ["Conv", "Gemm", "MatMul"])
def test_constants_for_each_channel_are_folded(operator: str, chain: list[tuple[str, str]]) -> None:
    if operator == "Conv":
        x, w, k = weights(2, 3, 4, 4), weights(5, 3, 2, 2), weights(5, 1, 1) + 2
    else:
        x, w, k = weights(2, 3), weights(3, 5), weights(5) + 2
    names = ["x", *[f"t{i}" for i in range(len(chain))], "y"]
    nodes = [helper.make_node(operator, ["x", "w"], [names[1]])]
    for i, (each, arguments) in enumerate(chain):
        arguments = [names[i + 1] if name == "a" else name for name in arguments.split()]
        nodes.append(helper.make_node(each, arguments, [names[i + 2]]))
    proto = model(nodes, [("x", x.shape)], [("y", None)], {"w": w, "k": k, "one": np.float32(1.5)})
    found = kinds(check(proto, x=x))
    assert not set(found) & {"Sum", "Multiply", "Subtract", "Divide", "Scale"}


def test_what_is_read_twice_or_differs_by_pixel_is_not_folded() -> None:
    twice = [node("Conv", "x w", "a"), node("Mul", "a k", "b"), node("Add", "a b", "y")]
    proto = model(twice, [("x", (1, 3, 4, 4))], [("y", None)], {"w": weights(5, 3, 2, 2), "k": weights(5, 1, 1)})
    assert kinds(check(proto, x=weights(1, 3, 4, 4)))["Conv"] == 1
    pixels = [node("Conv", "x w", "a"), node("Mul", "a k", "y")]
    proto = model(pixels, [("x", (1, 3, 4, 4))], [("y", None)], {"w": weights(5, 3, 2, 2), "k": weights(1, 5, 3, 3)})
    assert kinds(check(proto, x=weights(1, 3, 4, 4)))["Multiply"] == 1


def test_what_stands_behind_a_squeezed_convolution_is_computed_with_it() -> None:
    """As TensorFlow's convolutions of sequences are exported."""
    nodes = [
        node("Conv", "x w", "a"), node("Squeeze", "a two", "b"), node("Add", "b k", "c"), node("Relu", "c", "d"),
        node("Unsqueeze", "d two", "e"), node("Squeeze", "e two", "f"), node("Exp", "f", "y"),
    ]  # fmt: skip
    constants = {"w": weights(4, 3, 1, 3), "two": np.array([2]), "k": weights(4, 1)}
    loaded = check(model(nodes, [("x", ("n", 3, 1, 9))], [("y", None)], constants), x=weights(2, 3, 1, 9))
    assert "Sum" not in kinds(loaded)
    (relu,) = [op for op in loaded.graph.ops if op.operation.kind == "Relu"]
    assert relu.inputs[0].producers[0].operation.kind in ("Conv", "Bias")


@pytest.mark.parametrize("differs", [None, "weight", "order", "step"])
def test_a_layer_written_out_for_each_step_is_computed_at_once(differs: str | None) -> None:
    constants = {
        "rows": np.array([-1, 3]),
        "k": weights(5),
        "first": np.array([0]),
        "w": weights(3, 5),
        "v": weights(3, 5),
    }
    constants |= {f"at{i}": np.array([i]) for i in range(4)}
    nodes = []
    for step in range(3):
        at = 0 if differs == "step" else step
        nodes += [
            node("Slice", f"x at{at} at{at + 1} at1", f"s{step}"),
            node("Reshape", f"s{step} rows", f"r{step}"),
            node("MatMul", f"r{step} {'v' if differs == 'weight' and step else 'w'}", f"m{step}"),
            node("Add", f"m{step} k", f"b{step}"),
            node("Unsqueeze", f"b{step} first", f"u{step}"),
        ]
    order = "u0 u2 u1" if differs == "order" else "u0 u1 u2"
    proto = model([*nodes, node("Concat", order, "y", axis=0)], [("x", ("n", 3, 3))], [("y", None)], constants)
    loaded = check(proto, x=weights(2, 3, 3))
    assert (loaded.outputs["y"].producers[0].operation.kind == "Transpose") == (differs is None)


def test_a_factor_that_is_not_finite_stays_apart() -> None:
    nodes = [node("Conv", "x w", "a"), node("Mul", "a k", "y")]
    k = np.array([np.inf, 1, 0], "float32").reshape(3, 1, 1)
    proto = model(nodes, [("x", (1, 3, 4, 4))], [("y", None)], {"w": weights(3, 3, 2, 2), "k": k})
    check(proto, x=weights(1, 3, 4, 4))


def test_shape_arithmetic_is_folded() -> None:
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s zero", "n"),
        node("Unsqueeze", "n first", "n1"),
        node("Concat", "n1 rest", "shape", axis=0),
        node("Reshape", "x shape", "y"),
    ]
    constants = {"zero": np.array(0), "first": np.array([0]), "rest": np.array([-1])}
    loaded = check(model(nodes, [("x", (2, 3, 4))], [("y", None)], constants), x=weights(2, 3, 4))
    assert kinds(loaded) == {"Reshape": 1}


def test_names_of_nodes_are_names_of_ops() -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["a"], "/stem/conv/Conv"),
        helper.make_node("Relu", ["a"], ["c"], "/stem/act"),
        helper.make_node("Neg", ["c"], ["d"], "/stem/act"),
        helper.make_node("Exp", ["d"], ["y"]),
    ]
    proto = model(nodes, [("x", (1, 3, 4, 4))], [("y", None)], {"w": weights(5, 3, 2, 2), "b": weights(5)})
    graph = check(proto, x=weights(1, 3, 4, 4)).graph
    assert graph["stem/conv/Conv"].operation.kind == "Conv"
    assert graph["stem/conv/Conv.bias"].operation.kind == "Bias"
    assert graph["stem/act"].operation.kind == "Relu"
    assert graph["stem/act.negative"].operation.kind == "Negative"
    assert graph["Exp_y"].operation.kind == "Exp"


async def test_an_error_of_a_run_names_the_node() -> None:
    nodes = [helper.make_node("Gather", ["x", "i"], ["y"], "/head/pick")]
    loaded = af.onnx.load(model(nodes, [("x", (3, 2)), ("i", (2, 2), "int64")], [("y", (2, 2, 2))]).SerializeToString())
    async with loaded.graph:
        with pytest.raises(af.OpError, match="head/pick"):
            await loaded.run({"x": np.zeros((3, 2), "float32"), "i": np.full((2, 2), 7)})
