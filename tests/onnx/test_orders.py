"""Each operator gives the same behind a convolution, whose result has its channels last, and in older opsets."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper
from onnx.reference import ReferenceEvaluator

import actorflow as af
from tests.onnx.test_layouts import weights
from tests.support.onnx_files import model, results

INTEGERS = {name: np.array(value) for name, value in {
    "i0": 0, "i1": 1, "list": [1, 0, 1], "minus": [-1], "one": [1], "two": [2], "three": [3], "table": [[0, 1], [1, 1]],
    "starts": [1, -2], "ends": [3, 100], "axes": [1, -1], "steps": [1, 1], "back": [-1], "far": [-1000],
    "axes2": [2], "axes23": [2, 3], "axis1": 1, "pads": [0, 1, 0, 2, 0, 1, 3, 0], "cut": [0, 1, 1, 0, 0, 0, 2, 0],
    "repeats": [1, 2, 1, 3], "other": [2, 2, 2, 5, 6], "flat": [2, -1], "keep": [0, 0, -1], "parts": [1, 3],
    "sizes": [2, 4, 7, 9], "big": [3, 2, 4, 5, 6], "pair": [2, 3],
}.items()}  # fmt: skip
FLOATS = {
    "per_channel": weights(4, 1, 1), "row": weights(6), "plane": weights(5, 1), "whole": weights(2, 4, 5, 6),
    "number": np.float32(1.5), "scales": np.array([1, 1, 2, 2], "float32"),
    "odd": np.array([1, 1, 0.6, 1.7], "float32"),
    "slope": weights(4, 1, 1), "gain": weights(4), "shift": weights(4), "of_rows": weights(6), "matrix": weights(6, 3),
    "matrices": weights(4, 6, 3), "square": weights(5, 5), "mean": weights(4), "variance": np.abs(weights(4)) + 1,
    "all_rows": weights(4, 5, 6), "low": np.float32(-0.3), "high": np.float32(0.4), "minimum": weights(4, 1, 1),
}  # fmt: skip

CASES: list[tuple[Any, ...]] = [
    ("Add", "a per_channel"), ("Add", "row a"), ("Mul", "plane a"), ("Sub", "whole a"), ("Div", "a number"),
    ("Sub", "number a"), ("Add", "a x"), ("Mul", "x a"), ("Max", "a row x"), ("Mean", "a x whole"), ("Sum", "x a a"),
    ("Pow", "a two_f"), ("PRelu", "a slope"), ("Clip", "a low high"), ("Clip", "a low"), ("Clip", "a  high"),
    ("Max", "a minimum"), ("Where", "c a x"), ("Where", "c a row"), ("Less", "a row"), ("IsNaN", "a"),
    *[("Softmax", "a", {"axis": axis}) for axis in (-1, 0, 1, 2)],
    *[("LogSoftmax", "a", {"axis": axis}) for axis in (1, 3)],
    ("Hardmax", "a", {"axis": 1}), ("LpNormalization", "a", {"axis": 1, "p": 1}),
    *[("Concat", "a x a", {"axis": axis}) for axis in (0, 1, 2, -1)], ("Concat", "x a whole", {"axis": 1}),
    *[
        (operator, "a", {"axes": axes, "keepdims": keep})
        for operator in ("ReduceMean", "ReduceMax", "ReduceL2", "ReduceLogSumExp")
        for axes, keep in (([1], 0), ([2, 3], 1), ([0, -2], 0), (None, 0), (None, 1))
    ],
    ("ReduceSum", "a axes", {"keepdims": 0}), ("ReduceSum", "a axes23"), ("ReduceSum", "a", {"keepdims": 0}),
    *[("ArgMax", "a", {"axis": axis, "keepdims": keep, "select_last_index": last})
      for axis, keep, last in ((1, 0, 0), (1, 1, 1), (-1, 0, 0), (0, 0, 1))],
    ("CumSum", "a axis1", {"reverse": 1}), ("TopK", "a two", {"axis": 1}, 2),
    ("TopK", "a three", {"axis": -1, "largest": 0}, 2),
    ("Slice", "a starts ends axes steps"), ("Slice", "a back far axes2 minus"), ("Slice", "a starts ends axes"),
    ("Gather", "a i1", {"axis": 1}), ("Gather", "a list", {"axis": 1}), ("Gather", "a table", {"axis": 2}),
    ("Gather", "a i0", {"axis": 0}), ("Gather", "a list", {"axis": -1}), ("Gather", "a minus", {"axis": 1}),
    ("Pad", "a pads number"), ("Pad", "a pads", {"mode": "edge"}), ("Pad", "a cut"), ("Pad", "a one_pad"),
    ("Split", "a", {"axis": 1}, 2), ("Split", "a parts", {"axis": 1}, 2), ("Split", "a", {"axis": 3}, 2),
    ("Squeeze", "g"), ("Squeeze", "g axes23"), ("Unsqueeze", "a one"), ("Unsqueeze", "a axes"),
    ("Unsqueeze", "a axes23"),
    *[("Transpose", "a", {"perm": perm}) for perm in ([0, 2, 3, 1], [0, 3, 1, 2], [3, 2, 1, 0], [1, 0, 2, 3])],
    ("Transpose", "a"), ("Flatten", "a"), ("Flatten", "a", {"axis": 2}), ("Flatten", "a", {"axis": 0}),
    ("Flatten", "g"), ("Reshape", "a other"), ("Reshape", "a flat"), ("Reshape", "a keep"), ("Reshape", "g flat"),
    ("Tile", "a repeats"), ("Expand", "a big"), ("Expand", "g sizes"), ("Identity", "a"),
    ("Resize", "a  scales", {"mode": "nearest"}), ("Resize", "a  odd", {"mode": "linear"}),
    ("Resize", "a   sizes", {"mode": "cubic"}), ("Resize", "a   sizes", {"mode": "linear", "antialias": 1}),
    ("Resize", "a   sizes", {"mode": "linear", "coordinate_transformation_mode": "half_pixel_symmetric"}),
    ("Resize", "a   sizes", {"mode": "nearest", "coordinate_transformation_mode": "half_pixel_symmetric"}),
    ("BatchNormalization", "a gain shift mean variance"), ("BatchNormalization", "x gain shift mean variance"),
    ("InstanceNormalization", "a gain shift"), ("LRN", "a", {"size": 3}),
    ("LayerNormalization", "a of_rows", {"axis": -1}), ("LayerNormalization", "a all_rows", {"axis": 1}, 3),
    ("GroupNormalization", "a gain shift", {"num_groups": 2}),
    ("DepthToSpace", "a", {"blocksize": 2}), ("DepthToSpace", "a", {"blocksize": 2, "mode": "CRD"}),
    ("MaxPool", "a", {"kernel_shape": [2, 2]}, 2), ("MaxPool", "a", {"kernel_shape": [3, 2], "storage_order": 1}, 2),
    ("AveragePool", "a", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2], "ceil_mode": 1}),
    ("GlobalAveragePool", "a"), ("GlobalMaxPool", "a"), ("LpPool", "a", {"kernel_shape": [2, 2]}),
    ("MatMul", "a matrix"), ("MatMul", "a matrices"), ("MatMul", "square a"), ("MatMul", "a t"), ("MatMul", "t a"),
    ("Einsum", "a x", {"equation": "bchw,bdhw->bcd"}), ("Trilu", "a i1"), ("ConvTranspose", "a kernel"),
    ("ConvTranspose", "a kernel", {"strides": [2, 2], "output_padding": [1, 0]}), ("Conv", "a kernel2 bias2"),
    ("Conv", "a grouped", {"group": 2, "dilations": [2, 1], "pads": [1, 0, 2, 1]}),
    ("Conv", "a grouped", {"group": 2, "auto_pad": "SAME_UPPER"}),
    ("Conv", "a kernel2", {"strides": [2, 3], "auto_pad": "SAME_LOWER"}), ("Shrink", "a", {"lambd": 0.2}),
    ("ReverseSequence", "a lengths", {"time_axis": 1, "batch_axis": 0}), ("Dropout", "a", {}, 2),
    ("GatherElements", "a all_places", {"axis": 1}), ("ScatterElements", "a places updates", {"axis": 2}),
]  # fmt: skip
EXTRA = {
    "two_f": np.float32(2), "kernel": weights(4, 3, 2, 2), "kernel2": weights(3, 4, 2, 2), "bias2": weights(3),
    "grouped": weights(6, 2, 3, 2), "lengths": np.array([2, 4]), "places": np.arange(36).reshape(2, 2, 3, 3) % 2,
    "updates": weights(2, 2, 3, 3), "all_places": np.arange(120).reshape(2, 2, 5, 6) % 4,
    "one_pad": np.array([0, 0, 0, 0, 0, 1, 0, 0]), "c": weights(2, 4, 5, 6) > 0,
}  # fmt: skip


def compare(proto: Any, feeds: dict[str, Any], rtol: float = 1e-4, atol: float = 1e-5, by: str = "onnxruntime") -> None:
    """Compare with ONNX Runtime, or with ONNX's own evaluator, which does not know older opsets well."""
    expected: Sequence[Any]
    if by == "onnx":
        expected = ReferenceEvaluator(proto).run(None, feeds)
    else:
        runtime = pytest.importorskip("onnxruntime")
        session = runtime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
        expected = session.run(None, feeds)
    for output, want in zip(proto.graph.output, map(np.asarray, expected), strict=True):
        output.CopyFrom(
            helper.make_tensor_value_info(output.name, helper.np_dtype_to_tensor_dtype(want.dtype), want.shape)
        )
    (found,) = results(af.onnx.load(proto.SerializeToString()), feeds)
    for (name, got), want in zip(found.items(), map(np.asarray, expected), strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape), name
        np.testing.assert_allclose(got, want, rtol=rtol, atol=atol, err_msg=name)


@pytest.mark.together("case", CASES, ids=lambda case: " ".join(map(str, case[:3])), at_once=12)
def test_behind_a_convolution(case: tuple[Any, ...]) -> None:
    operator, inputs, attributes, count = (*case, *({}, 1)[len(case) - 2 :])[:4]
    attributes = {name: each for name, each in attributes.items() if each is not None}
    outputs = [f"y{i}" for i in range(count)]
    named = inputs.split(" ")
    nodes = [
        helper.make_node("Conv", ["x", "first"], ["a"]),
        helper.make_node("GlobalAveragePool", ["a"], ["g"]),
        helper.make_node("Transpose", ["a"], ["t"], perm=[0, 1, 3, 2]),
        helper.make_node(operator, named, outputs, "tried", **attributes),
    ]
    constants = {name: each for name, each in {**INTEGERS, **FLOATS, **EXTRA}.items() if name in named}
    proto = model(
        [node for node in nodes if node.name or set(node.output) & {"a"} or set(node.output) & set(named)],
        [("x", (2, 4, 5, 6))], [(name, None) for name in outputs], {**constants, "first": weights(4, 4, 1, 1)},
    )  # fmt: skip
    if operator == "GroupNormalization" or "antialias" in attributes:
        proto.opset_import[0].version = 21
    compare(proto, {"x": weights(2, 4, 5, 6)})


OLD: list[tuple[Any, ...]] = [
    (7, "Softmax", "x", {}), (11, "Softmax", "x", {"axis": 2}), (12, "LogSoftmax", "x", {}), (11, "Hardmax", "x", {}),
    (7, "Clip", "x", {"min": -0.5, "max": 0.25}), (9, "Clip", "x", {"max": 0.25}), (10, "Clip", "x", {}),
    (7, "Pad", "x", {"pads": [0, 0, 1, 2, 0, 0, 0, 3], "value": 1.5}), (9, "Slice", "x", {"starts": [1], "ends": [-1]}),
    (7, "Slice", "x", {"starts": [0, 1], "ends": [1, 9], "axes": [3, 1]}), (11, "ReduceSum", "x", {"axes": [1, -1]}),
    (12, "ReduceSum", "x", {"keepdims": 0}), (11, "ReduceMean", "x", {"axes": [2], "keepdims": 0}),
    (17, "ReduceMax", "x", {"axes": [-1]}), (11, "Squeeze", "s", {"axes": [1]}), (11, "Squeeze", "s", {}),
    (12, "Unsqueeze", "x", {"axes": [0, -1]}), (11, "Split", "x", {"axis": 1, "split": [1, 3]}, 2),
    (12, "Split", "x", {"axis": 3}, 2), (7, "TopK", "x", {"k": 2, "axis": 1}, 2), (10, "TopK", "x two", {"axis": 1}, 2),
    (7, "Upsample", "x", {"scales": [1.0, 1.0, 2.0, 3.0], "mode": "nearest"}), (9, "Upsample", "x scales", {}),
    (10, "Resize", "x scales", {"mode": "linear"}), (10, "Resize", "x scales", {"mode": "nearest"}),
    (7, "Dropout", "x", {"ratio": 0.4}), (10, "Dropout", "x", {}), (12, "Dropout", "x half", {}, 2),
    (7, "BatchNormalization", "x gain shift mean variance", {}),
    (9, "BatchNormalization", "x gain shift mean variance", {}),
    (7, "AveragePool", "x", {"kernel_shape": [2, 2], "pads": [1, 0, 1, 0], "count_include_pad": 1}),
    (7, "Gemm", "m square row5", {"alpha": 0.5}), (10, "Gemm", "m square row5", {"transA": 1, "beta": 2.0}),
    (11, "Gemm", "m square", {}), (7, "Reshape", "x flat", {}), (9, "Flatten", "x", {"axis": 3}),
    (11, "CumSum", "x axis1", {"exclusive": 1}), (7, "Sum", "x x x", {}), (8, "Max", "x whole", {}),
    (9, "Scatter", "x places updates", {"axis": 1}),
    (9, "Where", "c x whole", {}), (11, "Gather", "x list", {"axis": -2}), (14, "Div", "n n2", {}),
    (13, "Mod", "n n2", {}),
]  # fmt: skip
MORE = {
    "half": np.float32(0.5), "m": weights(5, 5), "row5": weights(5), "n": np.array([-7, 7, -8]),
    "n2": np.array([2, -2, 3]),
}  # fmt: skip


@pytest.mark.together("case", OLD, ids=lambda case: " ".join(map(str, case[:4])), at_once=22)
def test_in_an_older_opset(case: tuple[Any, ...]) -> None:
    opset, operator, inputs, attributes, count = (*case, 1)[:5]
    named, outputs = inputs.split(), [f"y{i}" for i in range(count)]
    arrays = {**INTEGERS, **FLOATS, **EXTRA, **MORE, "x": weights(2, 4, 5, 6), "s": weights(2, 1, 5)}
    fed = [name for name in dict.fromkeys(named) if name in ("x", "s", "m", "n")]
    proto = model(
        [helper.make_node(operator, named, outputs, "tried", **attributes)],
        [(name, arrays[name].shape, arrays[name].dtype) for name in fed],
        [(name, None) for name in outputs],
        {name: arrays[name] for name in named if name not in fed},
        opset=opset,
    )
    compare(proto, {name: arrays[name] for name in fed})


SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-30, 1e30, -2.5, 0.5, 1.5]


@given(st.lists(st.sampled_from(SPECIAL), min_size=4, max_size=4), st.sampled_from([
    ("Relu", {}), ("Clip", {"min": -1.0, "max": 1.0}), ("LeakyRelu", {"alpha": 0.1}), ("Sigmoid", {}), ("Abs", {}),
    ("Sign", {}), ("Round", {}), ("Floor", {}), ("IsInf", {}), ("IsInf", {"detect_negative": 0}), ("IsNaN", {}),
    ("ReduceMax", {}), ("ReduceMin", {}), ("ReduceSum", {}), ("Exp", {}), ("Sqrt", {}), ("Neg", {}), ("Not", {}),
    ("Softsign", {}), ("Shrink", {}), ("ThresholdedRelu", {}),
]))  # fmt: skip
def test_special_numbers(numbers: list[float], case: tuple[str, dict[str, Any]]) -> None:
    operator, attributes = case
    x = np.array(numbers, "float32")
    x = x > 0 if operator == "Not" else x
    opset = 10 if operator in ("Clip", "IsInf") else 11 if operator.startswith("Reduce") else 17
    proto = model(
        [helper.make_node(operator, ["x"], ["y"], **attributes)], [("x", (4,), x.dtype)], [("y", None)], opset=opset
    )
    with np.errstate(all="ignore"):
        compare(proto, {"x": x}, 1e-5, 0, by="onnx")


@pytest.mark.together("operator", ["Relu", "Softmax", "ReduceSum", "Concat", "Transpose", "Add", "MatMul", "ArgMax"])
def test_empty_tensors(operator: str) -> None:
    inputs = ["x", "x"] if operator in ("Concat", "Add") else ["x", "w"] if operator == "MatMul" else ["x"]
    attributes = {"axis": 1} if operator in ("Concat", "ArgMax") else {}
    nodes = [helper.make_node(operator, inputs, ["y"], **attributes)]
    constants = {"w": weights(3, 2)} if operator == "MatMul" else {}
    compare(model(nodes, [("x", (0, 3))], [("y", None)], constants), {"x": np.zeros((0, 3), "float32")}, by="onnx")
