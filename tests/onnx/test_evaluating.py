"""What nodes give of constants, as ONNX's evaluator has it, and without it."""

import numpy as np
import pytest
from onnx import helper, numpy_helper

from actorflow.onnx import evaluating

pytest.importorskip("onnx")

X = np.array([[1.5, -2.0, np.nan], [0.0, np.inf, -3.25]], np.float32)
N = np.array([[7, -7, 2**62], [0, 3, -(2**62)]])
CASES = {
    **{f"{name} {x.dtype}": (name, (x,), {}) for name in ("Abs", "Neg") for x in (X, N)},
    **{name: (name, (X,), {}) for name in ("Ceil", "Cos", "Exp", "Floor", "Log", "Sin", "Sqrt")},
    **{
        f"{name} {x.dtype} {y.shape}": (name, (x, y), {})
        for name in ("Add", "Mul", "Sub", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal", "Max", "Min")
        for x, y in [(X, X[::-1].copy()), (N, N[:1]), (X, X[0, 0]), (N[:0], N[:1])]
    },
    "Max of three": ("Max", (X, X[0], X[1, 1]), {}),
    "Min of one": ("Min", (N,), {}),
    **{name: (name, (X > 0, X[0] > 0), {}) for name in ("And", "Or", "Xor")},
    "Not": ("Not", (X > 0,), {}),
    **{f"Pow {y.shape}": ("Pow", (X, y), {}) for y in (X[:1], np.array(2, np.float32))},
    "Where": ("Where", (X[0] > 0, N, N[:, :1]), {}),
    **{
        f"Cast {x.dtype} {kind}": ("Cast", (x,), {"to": kind})
        for x in (N, X[:, :2], X > 0)
        for kind in (1, 6, 7, 9, 10, 11)
    },
    **{f"Concat {axis}": ("Concat", (N, N[::-1].copy()), {"axis": axis}) for axis in (0, 1, -1)},
    **{f"Gather {axis} {i.shape}": ("Gather", (N, i), {"axis": axis})
       for axis in (0, -1) for i in (np.array(-1), np.array([[1, 0]]), np.array([], int))},
    "Reshape": ("Reshape", (N, np.array([0, -1, 1])), {}),
    "Reshape of nothing": ("Reshape", (N[:0], np.array([3, 0])), {"allowzero": 1}),
    "Slice": ("Slice", (N, np.array([-1]), np.array([-(2**63)]), np.array([1]), np.array([-1])), {}),
    "Slice of all axes": ("Slice", (N, np.array([0, 1]), np.array([2**63 - 1, 2])), {}),
    "Squeeze": ("Squeeze", (N[:, :1], np.array([-1])), {}),
    "Squeeze of all": ("Squeeze", (N[:1, :1],), {}),
    "Unsqueeze": ("Unsqueeze", (N, np.array([0, -1])), {}),
    "Transpose": ("Transpose", (N[None],), {"perm": [2, 0, 1]}),
    "Transpose of all": ("Transpose", (N[None],), {}),
    "ConstantOfShape": ("ConstantOfShape", (np.array([2, 0, 3]),), {}),
    "ConstantOfShape of a value": ("ConstantOfShape", (np.array([], int),), {"value": np.array([7])}),
    "Expand": ("Expand", (N[:, :1], np.array([4, 1, 3])), {}),
    **{f"Range {numbers}": ("Range", numbers, {}) for numbers in [(2, 9, 3), (5, -4, -2), (3, 1, 1)]},
    "Tile": ("Tile", (N, np.array([2, 3])), {}),
    "DequantizeLinear": ("DequantizeLinear", (N[:1].astype(np.int8), np.float32(0.3)), {}),
    "DequantizeLinear by axis": (
        "DequantizeLinear",
        (np.array([[3, 250], [0, 9]], np.uint8), np.array([0.1, 7], np.float32), np.array([5, 1], np.uint8)),
        {"axis": 1},
    ),
}  # fmt: skip


def node_of(operator, arrays, attributes):
    """A node, and its attributes as a lowering has them."""
    said = {k: numpy_helper.from_array(v) if isinstance(v, np.ndarray) else v for k, v in attributes.items()}
    return helper.make_node(operator, [f"x{i}" for i in range(len(arrays))], ["y"], **said)


@pytest.mark.together("case", CASES)
def test_functions_are_those_of_onnx(case, monkeypatch):
    operator, arrays, attributes = CASES[case]
    arrays = [np.asarray(each) for each in arrays]
    node = node_of(operator, arrays, attributes)
    with np.errstate(all="ignore"):
        (expected,) = evaluating._by_onnx(node, arrays, {"": 20})
        with monkeypatch.context() as patched:
            patched.setattr(evaluating, "_by_onnx", None)
            (found,) = evaluating.evaluated(node, attributes, arrays, 20, {"": 20})
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)
    assert evaluating.most_elements(operator, arrays) >= found.size


def test_every_function_has_a_case():
    assert {operator for operator, _, _ in CASES.values()} == {*evaluating._FUNCTIONS} - {"Div"}


def test_quotients_of_integers_are_cut():
    a, b = np.array([7, -7, 7, -7, -6]), np.array([2, 2, -2, -2, 2])
    (found,) = evaluating.evaluated(node_of("Div", (a, b), {}), {}, [a, b], 20, {"": 20})
    np.testing.assert_array_equal(found, [3, -3, -3, 3, -3])


def test_a_part_does_not_hold_the_whole():
    table = np.arange(1000)
    (found,) = evaluating.evaluated(
        node_of("Slice", range(3), {}), {}, [table, np.array([10]), np.array([20])], 20, {"": 20}
    )
    assert not np.may_share_memory(found, table)
    assert (found == table[10:20]).all()


def test_what_cannot_be_computed_is_nothing():
    assert evaluating.evaluated(node_of("Gather", range(2), {}), {}, [N, np.array(9)], 20, {"": 20}) is None
