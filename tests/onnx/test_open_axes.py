"""Operators with open axes: what a model gives for lengths of 0, 1 and more is what the model of these lengths gives.

Else it is refused: when it is loaded, or when the lengths are known.
"""

from ast import literal_eval
from collections import Counter
from itertools import product
from typing import Any

import numpy as np
import pytest
from onnx import NodeProto, TensorProto, helper

import actorflow as af
from tests.onnx.test_layouts import node
from tests.support.effort import FULL
from tests.support.onnx_files import cases, model, results
from tests.support.onnx_open import faults

#: Differences that lengths have nothing to do with.
OTHERWISE = {
    "test_affine_grid": "ONNX Runtime refuses other rows than the size says; here theta's rows count",
    "test_dft": "ONNX Runtime's transform is less exact",
    "test_mvn": "ONNX Runtime divides 0 by 0 where there is one element, without the text's 1e-9",
    "test_reduce_mean": "ONNX Runtime's mean of nothing is 0, NumPy's is NaN",
    "test_dynamicquantizelinear": "ONNX Runtime's scale of a single value is 1, which the text does not say",
}


def _array(*numbers: float, dtype: Any = np.int64) -> np.ndarray:
    return np.array(numbers, dtype)


CONSTANTS: dict[str, Any] = {
    "zero": _array(0), "one": _array(1), "two": _array(2), "three": _array(3), "four": _array(4), "eight": _array(8),
    "-1": _array(-1), "-2": _array(-2), "-3": _array(-3), "far": _array(999), "-far": _array(-999),
    "i0": np.int64(0), "i1": np.int64(1), "i2": np.int64(2), "i3": np.int64(3), "i-1": np.int64(-1),
    "f0": np.float32(0), "f1": np.float32(1), "d0": np.float64(0), "d-1": np.float64(-1), "half": np.float32(0.5),
    "row": np.arange(4, dtype=np.float32), "rows": np.arange(4, dtype=np.float32)[np.newaxis],
    "column": np.arange(3, dtype=np.float32)[:, np.newaxis], "eye": np.eye(4, dtype=np.float32),
    "[0,-1]": _array(0, -1), "[3,4]": _array(3, 4), "[1,1,4]": _array(1, 1, 4), "[1,-1,4]": _array(1, -1, 4),
    "table": np.arange(256, dtype=np.float32).reshape(64, 4), "cut": _array(-1, 0, 0, 0), "border": _array(1, 0, 1, 0),
    "places": np.array([[0, -1, 0, 0]]), "pair": np.array([[-1], [0]]), "updates": np.ones((1, 4), np.float32),
}  # fmt: skip
#: The length of the first axis of x as a number and as an array, and with others in an array t.
N = ["Shape x s", "Gather s i0 n", "Unsqueeze n zero nn"]


def _with(*names: str) -> list[str]:
    return [*N, f"Concat {' '.join(names)} t axis=0"]


PROGRAMS: list[list[str]] = [
    ["Squeeze x y"], ["Unsqueeze x zero z", "Squeeze z y"], ["Reshape x [1,-1,4] z", "Squeeze z y"],
    ["Reshape x [0,-1] y"], [*_with("nn", "-1"), "Reshape x t y"], [*_with("four", "nn"), "Reshape x t y"],
    [*_with("one", "nn", "four"), "Reshape x t y"],
    [*N, "Div nn two k", "Concat k eight t axis=0", "Reshape x t y"],
    [*N, "Sub nn one k", "Concat k four t axis=0", "Slice x one far zero z", "Reshape z t y"],
    [*_with("nn", "four"), "Expand rows t y"], [*_with("nn", "four"), "Expand column t y"], ["Expand x [3,4] y"],
    ["Expand x [1,1,4] y"], ["Add x row y"], ["Add x rows y"], ["Add x column y"],
    ["Greater x column g", "Where g x rows y"], ["MatMul x row y"], ["Gemm x eye column y"],
    ["Transpose x z perm=[1,0]", "MatMul x z y"], ["Concat x rows y axis=0"],
    *[[f"Flatten x y axis={axis}"] for axis in range(3)],
    *[[f"Slice x {start} {end} zero y"] for start, end in
      [("-2", "far"), ("zero", "-1"), ("one", "far"), ("two", "three"), ("-3", "-1")]],
    ["Slice x -1 -far zero -1 y"], ["Slice x two -far zero -1 y"], ["Slice x zero far zero two y"],
    *[[*N, f"Sub nn {number} k", f"Slice x {start} {end} zero y"]
      for number, (start, end) in product(("one", "three"), (("k", "far"), ("zero", "k")))],
    [*N, "Div nn two k", "Slice x k far zero y"], [*N, "Sub nn one j", "Div j two k", "Slice x k far zero y"],
    [*N, "Neg nn k", "Slice x k far zero y"], [*N, "Sub one nn k", "Slice x k far zero y"],
    ["Gather x -1 y axis=0"], *[[*N, f"Sub nn {number} k", "Gather x k y axis=0"] for number in ("one", "three")],
    [*_with("nn", "one"), "Tile x t y"], [*_with("nn", "zero", "zero", "zero"), "Pad x t half y"],
    [*N, "Sub two nn k", "Concat zero zero k zero t axis=0", "Pad x t half y"], ["Pad x cut half y"],
    *[[f"Pad x border half y mode={mode}"] for mode in ("reflect", "edge")],
    [*N, "Slice table zero nn zero p", "Add x p z", "Concat nn two -1 t axis=0", "Reshape z t h",
     "Concat nn -1 u axis=0", "Reshape h u f", "MatMul f eye y"],
    [*N, "ConstantOfShape nn y"], [*N, "Sub nn two k", "ConstantOfShape k y"],
    [*N, "Range i0 n i1 y"], [*N, "Mul n i2 k", "Range i0 k i2 y"], [*N, "Range n i0 i-1 y"], [*N, "Range i3 n i1 y"],
    [*N, "Cast n f to=1", "Range f0 f f1 y"], [*N, "Cast n f to=11", "Range f d0 d-1 y"],
    *[[*N, f"Equal nn {number} e", f"Where e {number} one y"] for number in ("one", "-1")],
    *[[*N, f"{kind} nn two e", "Where e -1 nn y"] for kind in ("Greater", "Less")],
    *[[*N, f"{kind} nn two y"] for kind in ("Mod", "Min", "Max", "Div")], [*N, "Sub nn three k", "Div k two y"],
    *[[*N, "Sub nn two k", f"{kind} k y"] for kind in ("Abs", "Sign")],
    *[[*N, f"Cast nn y to={kind}"] for kind in (TensorProto.BOOL, TensorProto.INT8)],
    [*N, "Cast nn f to=1", "Mul f half g", "Floor g h", "Cast h y to=7"],
    *[[*N, f"{kind} x z axis=0", "Add z half y"] for kind in ("Softmax",)],
    ["ReduceMax x y axes=[0]"], ["ReduceLogSumExp x y axes=[0]"], ["ReduceProd x y axes=[0]"],
    [*N, "TopK x nn y i axis=0"], ["TopK x two y i axis=0"], [*N, "Min nn two k", "TopK x k y i axis=0"],
    ["ArgMax x y axis=0"], ["CumSum x i0 y"], [*N, "ScatterElements x places updates y axis=0"], ["GatherND x pair y"],
    ["Size x y"], ["Trilu x y upper=0"], ["Einsum x x y equation=ij,kj->ik"],
]  # fmt: skip
BRANCHES = {"of a length": [*N, "Equal n i1 c"], "of a rank": ["Shape x s", "Shape s r", "Equal r two c"]}
IMAGES: list[list[str]] = [
    *[[f"{kind} x {weight}y auto_pad={pad} strides=[2,1] kernel_shape=[3,2]"] for (kind, weight), pad in product(
        [("Conv", "w "), ("ConvTranspose", "w "), ("MaxPool", ""), ("AveragePool", "")],
        ["SAME_UPPER", "SAME_LOWER", "VALID"])],
    *[[f"{kind} x y ceil_mode=1 strides=[2,3] kernel_shape=[3,2] pads=[1,0,1,1]"]
      for kind in ("MaxPool", "AveragePool")],
    *[[f"{kind} x y"] for kind in ("GlobalAveragePool", "GlobalMaxPool", "Squeeze")],
    *[[f"Resize x none scales y mode={mode} coordinate_transformation_mode={how}"] for mode, how in product(
        ["nearest", "linear", "cubic"], ["half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"])],
    ["Shape x s", "Mul s times t", "Resize x none none t y mode=linear"], ["SpaceToDepth x y blocksize=2"],
]  # fmt: skip
OF_IMAGES = {
    "w": np.linspace(-1, 1, 24, dtype=np.float32).reshape(2, 2, 3, 2), "none": np.zeros(0, np.float32),
    "scales": np.array([1, 1, 2, 0.5], np.float32), "times": _array(1, 1, 2, 3),
}  # fmt: skip


def _nodes(program: list[str]) -> list[NodeProto]:
    """Nodes, each said as its operator, inputs, the output (of TopK and Split two) and attributes."""
    made = []
    for line in program:
        operator, *words = line.split()
        names = [word for word in words if "=" not in word or word.startswith("[")]
        given: dict[str, Any] = {}
        for name, value in [word.split("=", 1) for word in words if word not in names]:
            given[name] = value if value[0].isalpha() else literal_eval(value)
        outputs = 2 if operator == "TopK" else 1
        made.append(helper.make_node(operator, names[:-outputs], names[-outputs:], **given))
    return made


def _check(nodes: list[NodeProto], shape: tuple[int, ...], constants: dict[str, Any]) -> None:
    read = {name for each in nodes for name in each.input}
    weights = {name: array for name, array in constants.items() if name in read}
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    proto = model(nodes, [("x", shape)], [("y", None)], weights)
    if not proto.graph.output[0].type.tensor_type.HasField("shape"):
        (y,) = results(
            af.onnx.load(model(nodes, [("x", shape)], [("y", [None] * 2)], weights).SerializeToString()), {"x": x}
        )
        proto = model(nodes, [("x", shape)], [("y", [None] * y["y"].ndim, y["y"].dtype)], weights)
    found, _ = faults(proto, {"x": x})
    assert found == {}


@pytest.mark.together("program", PROGRAMS, ids="; ".join, at_once=9)
def test_programs_of_lengths(program: list[str]) -> None:
    _check(_nodes(program), (3, 4), CONSTANTS)


@pytest.mark.together("program", IMAGES, ids="; ".join, at_once=4)
def test_programs_of_images(program: list[str]) -> None:
    _check(_nodes(program), (2, 2, 4, 5), OF_IMAGES)


@pytest.mark.parametrize("condition", BRANCHES)
def test_branches(condition: str) -> None:
    branches = {
        name: helper.make_graph([helper.make_node(kind, ["x"], [kind])], name, [],
                                [helper.make_tensor_value_info(kind, TensorProto.FLOAT, [None, 4])])
        for name, kind in (("then_branch", "Neg"), ("else_branch", "Exp"))
    }  # fmt: skip
    _check([*_nodes(BRANCHES[condition]), helper.make_node("If", ["c"], ["y"], **branches)], (3, 4), CONSTANTS)


def test_an_axis_that_may_be_squeezed_is_not_1() -> None:
    """It stays where it is longer, and what follows is for that."""
    proto = model([node("Squeeze", "x", "s"), node("Exp", "s", "y")], [("x", ("batch", 4, 1))], [("y", (None, 4))])
    x = np.zeros((3, 4, 1), np.float32)
    for rows, found in zip(
        (3, 2), results(af.onnx.load(proto.SerializeToString()), {"x": x}, {"x": x[:2]}), strict=True
    ):
        assert found["y"].shape == (rows, 4)
    with pytest.raises(af.ShapeError, match=r"with batch = 1: .*would be squeezed"):
        results(af.onnx.load(proto.SerializeToString()), {"x": x[:1]})


@pytest.mark.slow
def test_every_operator_with_open_axes() -> None:
    """The cases that the package onnx ships, some of each operator."""
    tried, wrong, given = Counter[str](), {}, 0
    for case in cases("node"):
        names, (arrays, _) = [each.name for each in case.model.graph.input], case.runs[0]
        operator = case.model.graph.node[0].op_type
        if len(case.model.graph.node) > 1 or tried[operator] >= (4 if FULL else 1):
            continue
        if case.name.startswith(tuple(OTHERWISE)) or not all(
            getattr(each, "dtype", np.dtype(object)).kind in "biufV" for each in arrays
        ):
            continue
        tried[operator] += 1
        feeds = dict(zip(names, arrays, strict=True))
        found, count = faults(case.model, feeds, FULL, max(case.rtol, 1e-3), max(case.atol, 1e-4))
        wrong.update({f"{case.name} {where}": why for where, why in found.items()})
        given += count
    assert wrong == {}
    assert len(tried) > 150
    assert given > 400
