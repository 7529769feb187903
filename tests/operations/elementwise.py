"""Operations of one element at each place: rows of the package, whose rows here follow from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import numpy as np

import actorflow as af
from actorflow import ops
from actorflow.ops import Operation
from actorflow.ops.nn.activation import GeluDown, NormalCdf, NormalDensity, ReluDown
from actorflow.ops.rows import ZERO, Elementwise
from tests.operations.table import (
    COMPLEX,
    DEVICES,
    FLOATS,
    HOST,
    INTEGERS,
    Make,
    Row,
    Sample,
    fixed,
    flags,
    integers,
    normal,
    positive,
    refused,
    whole,
)

#: Dtypes by the kinds that blobs of an operation may have; ml_dtypes' bfloat16 has kind V.
DTYPES = {
    "b": ("bool",),
    "i": tuple(name for name in INTEGERS if name[0] == "i"),
    "u": tuple(name for name in INTEGERS if name[0] == "u"),
    "f": FLOATS,
    "V": ("bfloat16",),
    "c": COMPLEX,
}
PAIR = ((5, 41), (5, 41))
#: Zeros of both signs, ones, ties with their negatives, infinities, what is not a number.
POINTS = np.array([0.0, -0.0, 1.0, -1.0, 2.0, -0.5, 0.5, np.inf, -np.inf, 3.0, -3.0, np.nan])
#: Those that sums of squares are finite of.
FEW_POINTS = POINTS[:7]
#: Further ones for activations.
EXTREMES = np.array([1e-30, 1e30, -1e30, 20.5, -20.5, 700.0, -700.0])


def rows() -> list[type[Elementwise]]:
    """The elementwise operations that are a row without parameters."""
    kinds = [kind for kind in Elementwise.__subclasses__() if kind.__module__.startswith("actorflow.ops.")]
    return [kind for kind in kinds if not fields(kind) and kind is not ops.Sum]


#: Rows with parameters, whose kernels are made of formulas, too.
WITH_PARAMETERS = (ops.Elu(), ops.LeakyRelu(), ops.Scale(0.3), ops.Softplus())


def is_of_the_host(kind: type[Elementwise]) -> bool:
    """Whether accelerators leave a row to the host: it has no formula. A copy is one of theirs."""
    return not kind.formula and kind.function is not None and kind is not ops.Copy


def dtypes_of(kind: type[Elementwise]) -> list[str]:
    """Dtypes that blobs of a row may have."""
    return [name for each in kind.kinds for name in DTYPES[each]]


def defined(kind: type[Elementwise], *shapes: tuple[int, ...]) -> Make:
    """Numbers that a row is defined for, and that are nowhere near a jump; of shapes that broadcast."""
    dtype = "bool" if kind.kinds == "b" else "int64" if kind.kinds in ("iu", "biu") else "float64"
    given = [(shapes or ((5, 41),))[i % max(1, len(shapes))] for i in range(len(kind.arguments))]

    def make(random: np.random.Generator) -> list[np.ndarray]:
        conditions = [random.random(shape) < 0.5 for shape in given[: kind.conditions]]
        numbers = given[kind.conditions :]
        if dtype != "float64":
            high = 2 if dtype == "bool" else 6
            return [*conditions, *(np.asarray(random.integers(0, high, shape)).astype(dtype) for shape in numbers)]
        return [*conditions, *(random.uniform(0.1, 0.9, shape) + (kind is ops.Acosh) for shape in numbers)]

    return make


def at_points(kind: type[Elementwise]) -> Make:
    """All tuples of special numbers."""
    count = len(kind.arguments) - kind.conditions

    def make(random: np.random.Generator) -> list[np.ndarray]:
        each = np.append(POINTS, EXTREMES) if kind.__module__.endswith("activation") and count == 1 else POINTS
        points = [x.reshape(-1) for x in np.meshgrid(*[each] * count, indexing="ij")]
        return [*(random.random(points[0].shape) < 0.5 for _ in range(kind.conditions)), *points]

    return make


def triples(points: np.ndarray) -> Make:
    """All triples of some numbers, along the second axis."""
    return fixed(np.stack([x.reshape(-1) for x in np.meshgrid(points, points, points, indexing="ij")], 1))


def _chosen(random: np.random.Generator) -> list[np.ndarray]:
    return [random.random((5, 41)) < 0.5, *random.standard_normal((2, 5, 41))]


#: Shapes of the operands of a row: of all, or such that they broadcast.
SHAPES: tuple[tuple[tuple[int, ...], ...], ...] = ((), ((),), ((2, 0, 3),), ((2, 3), (3,)), ((2, 1), (3,)), ((4,), ()))


ACTIVATIONS = (ops.Relu, ops.Sigmoid, ops.Tanh, ops.Silu, ops.Gelu, ops.GeluTanh)
#: Further inputs of some rows: with ties, of integers, broadcast.
MORE: dict[type[Operation], list[Make]] = {
    **{
        kind: [whole(-3, *PAIR)]
        for kind in (
            *(ops.Subtract, ops.Multiply, ops.Maximum, ops.Minimum, ops.Equal, ops.NotEqual),
            *(ops.Less, ops.LessEqual, ops.Greater, ops.GreaterEqual),
        )
    },
    ops.Divide: [positive(*PAIR)],
    ops.Power: [positive(*PAIR), integers(*PAIR)],
    **{kind: [flags(*PAIR)] for kind in (ops.LogicalAnd, ops.LogicalOr, ops.LogicalXor)},
    ops.LogicalNot: [flags((5, 41))],
    ops.Where: [_chosen],
    **{kind: [whole(-3, (5, 41)), integers((5, 41))] for kind in (ops.Negative, ops.Absolute, ops.Sign, ops.Square)},
    **{kind: [normal((5, 41))] for kind in (ops.Floor, ops.Ceil, ops.Round, ops.Exp)},
    **{kind: [positive((5, 41))] for kind in (ops.Log, ops.Sqrt, ops.Reciprocal)},
    ops.Copy: [normal(shape) for shape in [(), (0, 3), (4, 70)]],
    **{kind: [normal((300, 7))] for kind in ACTIVATIONS},
}
MORE[NormalCdf] = MORE[NormalDensity] = [normal((300, 7))]
MORE[GeluDown] = MORE[ReluDown] = [normal((300, 7), (300, 7))]
#: Rows whose further inputs have ties.
_TIES = (ops.Maximum, ops.Minimum, ops.Absolute)

_erf = np.vectorize(math.erf, otypes=[float])
#: What NumPy has another name for, or does not have.
NUMPY: Mapping[str, Callable[..., Any]] = {
    "at_least": np.maximum,
    "at_most": np.minimum,
    "deviation": np.sqrt,
    "erf": _erf,
    # Of infinities the quotient, which the standard prefers to Python's -1 and NaN.
    "floor_divide": lambda a, b: np.where(np.isinf(a) | np.isinf(b), a / b, np.floor_divide(a, b)).astype(a.dtype),
    "gelu": lambda x: np.where(x == -np.inf, 0, x * 0.5 * np.vectorize(math.erfc, otypes=[float])(-x / math.sqrt(2))),
    "gelu_down": lambda g, x: g * (NUMPY["normal_cdf"](x) + x * NUMPY["normal_density"](x)),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "normal_cdf": lambda x: 0.5 * np.vectorize(math.erfc, otypes=[float])(-x / math.sqrt(2)),
    "normal_density": lambda x: np.exp(-x * x / 2) / math.sqrt(2 * math.pi),
    "relu": lambda x: np.maximum(x, 0),
    "relu_down": lambda g, y: np.where(y > 0, g, 0),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "trunc_divide": lambda a, b: np.where((b == 0) & (a.dtype.kind in "iu"), 0, np.trunc(a / b)).astype(a.dtype),
}


def _of_whole(function: Callable[..., Any]) -> Callable[..., Any]:
    """PyTorch divides no integer by 0, where the result is 0 here."""

    def divided(torch: Any, a: Any, b: Any) -> Any:
        if a.is_floating_point():
            return function(torch, a, b)
        return torch.where(b == 0, torch.zeros_like(a), function(torch, a, torch.where(b == 0, torch.ones_like(b), b)))

    return divided


def _floor(torch: Any, a: Any, b: Any) -> Any:
    """Of the quotient, as the standard has it for infinities."""
    y = torch.div(a, b, rounding_mode="floor")
    return (
        torch.where(torch.isinf(a) | torch.isinf(b), torch.floor((a / b).detach()), y) if a.is_floating_point() else y
    )


def _hypot(torch: Any, a: Any, b: Any) -> Any:
    """With a slope of 0 at the origin, as `vector_norm` has there, too; torch.hypot has NaN."""
    is_origin = (a == 0) & (b == 0)
    return torch.where(is_origin, 0.0, torch.hypot(torch.where(is_origin, 1.0, a), b))


#: What PyTorch calls rows that have another name there.
TORCH: Mapping[str, str | Callable[..., Any]] = {
    "absolute": "abs", "copy": "clone", "divide": "div", "equal": "eq", "hypot": _hypot,
    # The element itself is picked at the bound, as by torch.clamp.
    "at_least": lambda torch, a, b: torch.where((a >= b) | torch.isnan(a), a, b),
    "at_most": lambda torch, a, b: torch.where((a <= b) | torch.isnan(a), a, b),
    # A 1 or a -1 for infinities, too, where torch.copysign has NaN.
    "copysign": lambda torch, a, b: torch.where(torch.signbit(b), -abs(a), abs(a)),
    # A square root of what is never negative, and equal numbers have no direction.
    "deviation": lambda torch, x: torch.where(x == 0, 0.0, torch.where(x == 0, 1.0, x).sqrt()),
    "floor_divide": _of_whole(_floor),
    "fmod": _of_whole(lambda torch, a, b: torch.fmod(a, b)),
    "remainder": _of_whole(lambda torch, a, b: torch.remainder(a, b)),
    "round": lambda torch, x: torch.complex(x.real.round(), x.imag.round()) if x.is_complex() else x.round(),
    # Of what is not a number that, where torch.sgn has 0.
    "sign": lambda torch, x: torch.where(torch.isnan(x), x.detach(), torch.sgn(x)),
    # The limit at -infinity, where torch has NaN.
    "gelu": lambda torch, x: torch.where(x == -math.inf, 0.0, torch.nn.functional.gelu(x)),
    "gelu_tanh": lambda torch, x: torch.nn.functional.gelu(x, approximate="tanh"),
    "greater": "gt", "greater_equal": "ge", "imag": lambda torch, x: x.imag if x.is_complex() else torch.zeros_like(x),
    "less": "lt", "less_equal": "le", "multiply": "mul", "negative": "neg", "normal_cdf": "special.ndtr",
    "not_equal": "ne", "power": "pow", "bitwise_invert": "bitwise_not", "silu": "nn.functional.silu",
    "subtract": "sub", "trunc_divide": _of_whole(lambda torch, a, b: torch.div(a, b, rounding_mode="trunc")),
}  # fmt: skip
#: Rows that PyTorch does not have, and why that is no loss.
WITHOUT = dict.fromkeys(("gelu_down", "normal_density", "relu_down"), "only gradients are made of it")
#: Names of the array API standard that are others.
STANDARD = {"absolute": "abs", "power": "pow"}
NOT_STANDARD = ("at_least", "at_most", "copy", "deviation", "erf", "fmod", "trunc_divide")


#: Operators of ONNX that have the name of the row; and those that have another.
SAME_IN_ONNX = (
    "Acos Acosh Asin Asinh Atan Atanh BitwiseAnd BitwiseOr BitwiseXor Ceil Cos Cosh Equal Erf Exp Floor Gelu Greater "
    "IsInf Less Log Reciprocal Relu Round Sigmoid Sign Sin Sinh Sqrt Tan Tanh Where"
)
ONNX = {
    "Absolute": "Abs", "AtLeast": "Max", "AtMost": "Min", "BitwiseInvert": "BitwiseNot", "Copy": "Identity",
    "Deviation": "Sqrt", "Divide": "Div", "Expm1": "Exp", "FloorDivide": "Floor", "Fmod": "Mod", "GeluTanh": "Gelu",
    "GreaterEqual": "GreaterOrEqual", "IsFinite": "IsInf", "IsNan": "IsNaN", "LessEqual": "LessOrEqual", "Log10":
    "Log", "Log1p": "Log", "Log2": "Log", "LogicalAnd": "And", "LogicalNot": "Not", "LogicalOr": "Or", "LogicalXor":
    "Xor", "Maximum": "Max", "Minimum": "Min", "Multiply": "Mul", "Negative": "Neg", "NotEqual": "Equal",
    "Positive": "Identity", "Power": "Pow", "Silu": "Sigmoid", "Square": "Mul", "Subtract": "Sub", "Trunc": "Floor",
    **{name: name for name in SAME_IN_ONNX.split()},
}  # fmt: skip


def _row(kind: type[Elementwise]) -> Row:
    name = kind.function_name
    own = [Sample(kind(), defined(kind, *shapes)) for shapes in SHAPES[: None if len(kind.arguments) > 1 else 3]]
    more = [Sample(kind(), make, smooth=kind not in _TIES) for make in MORE.get(kind, [])]
    floating = set(kind.kinds) & set("fV")
    has_standard = kind.__module__.endswith("elementwise") and name not in NOT_STANDARD
    return Row(
        kind,
        [*own, *more],
        numpy=NUMPY.get(name) or getattr(np, name),
        torch=None if name in WITHOUT else TORCH.get(name, name),
        standard=STANDARD.get(name, name) if has_standard else None,
        without={"torch": WITHOUT[name]} if name in WITHOUT else {},
        onnx=ONNX.get(kind.__name__, ""),
        widened=kind not in (ops.NextAfter, ops.TruncDivide),  # whose results are others beside a jump
        dtypes=dtypes_of(kind),
        devices=HOST if is_of_the_host(kind) else DEVICES,
        special=Sample(kind(), at_points(kind)) if floating else None,
        orders=1 if all(rule is ZERO for rule in kind.rules) or kind in (ops.Imag, ops.Sign) else 2,
    )


def _added(*terms: np.ndarray) -> np.ndarray:
    return sum(terms[1:], terms[0])


ROWS = [
    *map(_row, rows()),
    Row(
        ops.Sum,
        [
            Sample(ops.Sum(), normal(*[(5, 41)] * 3)),
            *(Sample(ops.Sum(), normal(*[(5, 41)] * terms)) for terms in (1, 2, 16, 17, 40)),
            Sample(ops.Sum(), normal((2, 3), (3,), (2, 1))),
        ],
        numpy=_added,
        by_steps=True,
        torch=lambda torch, *terms: sum(terms[1:], terms[0]),
        standard=lambda xp, *terms: sum(terms[1:], terms[0]),
        dtypes=dtypes_of(ops.Sum),
        onnx="Add",
    ),
    Row(
        ops.WeightedSum,
        [
            *(Sample(ops.WeightedSum((0.5, -2.0, 0.1)[:n]), normal(*[(5, 41)] * n)) for n in (3, 1)),
            Sample(ops.WeightedSum((0.5, -2.0)), normal((2, 3), (3,))),
        ],
        numpy=lambda *terms, weights: _added(*(w * x for w, x in zip(weights, terms, strict=True))),
        torch=lambda torch, *terms, weights: _added(*(w * x for w, x in zip(weights, terms, strict=True))),
        dtypes=dtypes_of(ops.WeightedSum),
        onnx="Mul",
    ),
    Row(
        ops.Scale,
        [Sample(ops.Scale(0.3), normal((5, 41))), Sample(ops.Scale(-2.5), normal((2, 3)))],
        numpy=lambda x, factor: x * factor,
        torch=lambda torch, x, factor: x * factor,
        dtypes=dtypes_of(ops.Scale),
        onnx="Mul",
    ),
    Row(
        ops.Cast,
        [
            *(Sample(ops.Cast(np.dtype(to)), normal((5, 41))) for to in ("float64", "float32", "float16")),
            Sample(
                ops.Cast(np.dtype(np.int32)),
                lambda random: [random.integers(-9, 9, (5, 41)).astype(float)],
                smooth=False,
            ),
        ],
        numpy=lambda x, dtype: x.astype(dtype),
        torch=lambda torch, x, dtype: x.to(getattr(torch, np.dtype(dtype).name)),
        standard=lambda xp, x, dtype: xp.astype(x, getattr(xp, np.dtype(dtype).name)),
        onnx="Cast",
    ),
    Row(
        ops.Dummy,
        [Sample(ops.Dummy(), normal((5, 41), (3,)), wrt=(0,))],
        numpy=lambda x, *after: x,
        without={"torch": "an order of ops, which PyTorch does not have"},
        onnx="Identity",
    ),
]

_X, _N = (2, 3), ("int64", 2, 3)

WRONG = [
    *refused(
        af.ShapeError,
        (ops.add, [_X, (4, 5)], r"Sum: terms\[1\] must broadcast with terms\[0\]'s shape \(2, 3"),
        (
            ops.add,
            [(3,), (3,), (4,)],
            r"Sum: terms\[2\] must broadcast with the shape of those before it, \(3,\), got ",
        ),
        (ops.multiply, [(3,), (4,)], r"Multiply: b must broadcast with a's shape \(3,\), got float32\[4"),
        (
            ReluDown(),
            [("float64", 2), ("float64", 3)],
            r"ReluDown: y must broadcast with g's shape \(2,\), got float64\[3\]",
        ),
    ),
    *refused(
        af.DTypeError,
        (ops.add, [(3,), ("float64", 3)], r"Sum: terms\[1\] must have terms\[0\]'s dtype float32, got float64\[3\]"),
        (ops.add, [("bool", 1)], r"Sum: terms\[0\] must be numeric, got bool\[1\]"),
        (ops.multiply, [_X, _N], r"Multiply: b must have a's dtype float32, got int64\[2, 3"),
        (ops.divide, [_N, _N], "Divide: a must be floating"),
        (lambda n: ops.maximum(n, 0.5), [_N], "the number 0.5 does not fit to blob 'x0'"),
        (ops.logical_not, [_X], "LogicalNot: x must be bool, got float32"),
        (ops.where, [_X, _X, _X], "Where: condition must be bool"),
        (ops.where, [("bool", 2, 3), _X, _N], "Where: b must have a's dtype float32"),
        (lambda n: ops.clip(n, 0.5), [_N], "the number 0.5 does not fit"),
        (ops.negative, [("uint8", 2)], "Negative: x must be numeric and signed"),
        (ops.relu, [("int32", 3)], r"Relu: x must be real and floating, got int32\[3\]"),
    ),
    *refused(
        af.GraphError,
        (ops.add, [], "Sum: give at least one blob"),
        (lambda x: ops.add(x, np.ones(3)), [_X], "Sum: terms must be a blob or an array, got ndarray"),
        (lambda x: ops.multiply(x, np.ones(3)), [_X], "Multiply: b must be a blob or an array, got nd"),
        (lambda x: ops.weighted_sum([x, x], [1.0]), [_X], "a weight for each of 2 terms, got 1"),
        (lambda x: ops.clip(x, 2.0, 1.0), [_X], "clip: low must not be more than high"),
    ),
]
