"""Cases of every operation, forwards and backwards, for kernels that are compared with the CPU's.

``tests/gpu`` runs them on a GPU, ``tests/ops/cuda`` on the host, and other tests take those of one kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from itertools import product
from typing import Any, NamedTuple

import numpy as np

import actorflow.ops.cpu  # noqa: F401  registers the kernels
from actorflow import ops
from actorflow.ops import Operation, find_kernel, registry
from actorflow.ops.indexing import INDEX, AddAt, Gather, PadDown, TakeAlongAxisDown, TakeDown, numpy_key
from actorflow.ops.linalg import BiasDown, InnerDown, InnerWeight
from actorflow.ops.nn.activation import ReluDown
from actorflow.ops.nn.conv import ConvDown, ConvWeight
from actorflow.ops.nn.loss import SoftmaxLossDown
from actorflow.ops.nn.pool import AveragePoolDown, MaxPoolDown
from actorflow.ops.nn.softmax import SoftmaxDown
from actorflow.ops.nn.updates import NormFactor, ScaleBy, SquareSum
from actorflow.ops.ordering import Recurrence
from actorflow.ops.rows import Elementwise
from actorflow.spec import TensorSpec
from tests.support.neural_cases import NEURAL_CASES

#: How far results may lie apart, relative and absolute. The CPU's float16 kernels round after every step, so float16
#: results are compared with the CPU's float32 ones.
TOLERANCE = {"float16": (4e-3, 4e-3), "float32": (2e-5, 2e-5), "float64": (1e-12, 1e-12)}
FLOATS = tuple(TOLERANCE)

Make = Callable[[np.random.Generator], list[np.ndarray]]


class Case(NamedTuple):
    """An operation and how its inputs are drawn, as float64; integers and booleans keep their dtype."""

    operation: ops.Operation
    make: Make
    statistics: tuple[int, ...] = ()  # positions of inputs that are float32 at least
    exact: tuple[int, ...] = ()  # positions of inputs that are float64

    def __str__(self) -> str:
        return str(self.operation)


def _normal(*shapes: tuple[int, ...]) -> Make:
    return lambda random: [random.standard_normal(shape) for shape in shapes]


def _scores(*before: tuple[int, ...], batch: int = 37, classes: int = 11) -> Make:
    return lambda random: [
        *(random.standard_normal(shape) for shape in before),
        random.standard_normal((batch, classes)),
        random.integers(0, classes, batch),
    ]


def _pooled(*how: Any, size: tuple[int, ...] = (9, 8), channels: int = 5) -> list[Case]:
    """Forwards, and backwards from the CPU's result. Few different values: windows have several maxima."""
    operation = ops.MaxPool(*how)

    def images(random: np.random.Generator) -> np.ndarray:
        return random.integers(-3, 4, (3, *size, channels)).astype(np.float64)

    def backwards(random: np.random.Generator) -> list[np.ndarray]:
        x = images(random)
        (y,) = compute_cpu(operation, x)
        return [random.standard_normal(y.shape), x, y]

    forwards = [
        Case(op, lambda random: [images(random)]) for op in (operation, replace(operation, return_indices=True))
    ]
    return [*forwards, Case(MaxPoolDown(*how), backwards)]


def _averaged(*how: Any, size: tuple[int, ...] = (9, 8), channels: int = 5, dilation: int = 1) -> list[Case]:
    operation = ops.AveragePool(*how, dilation=dilation)
    out = operation.windows(size).out
    down = AveragePoolDown(*how, size=size, dilation=dilation)
    return [Case(operation, _normal((3, *size, channels))), Case(down, _normal((3, *out, channels)))]


def _convolved(
    kernel: int,
    stride: int = 1,
    pad: Any = 0,
    dilation: int = 1,
    groups: int = 1,
    size: tuple[int, ...] = (9, 7),
    channels: tuple[int, int] = (3, 4),
) -> list[Case]:
    how = (stride, pad, dilation, groups)
    kernels = (kernel,) * len(size)
    x, weight = (5, *size, channels[0] * groups), (*kernels, channels[0], channels[1] * groups)
    out = ops.Conv(*how).windows(size, kernels).out
    g = (5, *out, weight[-1])
    return [
        Case(ops.Conv(*how), _normal(x, weight)),
        Case(ConvDown(*how, size=size), _normal(g, weight)),
        Case(ConvWeight(*how, kernel=kernels), _normal(g, x)),
    ]


def _updated(random: np.random.Generator) -> list[np.ndarray]:
    return [*(random.standard_normal((6, 50)) for _ in range(3)), np.asarray(0.125)]


def _state(*moments: int) -> Callable[[np.random.Generator], list[np.ndarray]]:
    """Arguments of an update: weight, gradient, as many arrays that are not negative, rate, as many more, step."""

    def draw(random: np.random.Generator) -> list[np.ndarray]:
        before, after, *step = moments
        weight, grad = random.standard_normal((2, 6, 50))
        states = [1 + random.random((6, 50)) for _ in range(before + after)]
        rate = np.asarray(0.125)
        return [weight, grad, *states[:before], rate, *states[before:], *(np.asarray(s) for s in step)]

    return draw


_WINDOW = (3, 2, 1)
_SPEC = TensorSpec.of((4, 3), "float32")


def _whole(low: int, *shapes: tuple[int, ...]) -> Make:
    """Few different whole numbers: many are equal."""
    return lambda random: [random.integers(low, 4, shape).astype(np.float64) for shape in shapes]


def _flags(*shapes: tuple[int, ...]) -> Make:
    return lambda random: [random.random(shape) < 0.5 for shape in shapes]


def _chosen(random: np.random.Generator) -> list[np.ndarray]:
    return [random.random((5, 41)) < 0.5, *random.standard_normal((2, 5, 41))]


def _integers(*shapes: tuple[int, ...], high: int = 4) -> Make:
    return lambda random: [random.integers(0, high, shape) for shape in shapes]


def _picked(shape: tuple[int, ...], picked: tuple[int, ...], length: int) -> Make:
    return lambda random: [random.standard_normal(shape), random.integers(0, length, picked)]


def _positive(*shapes: tuple[int, ...]) -> Make:
    return lambda random: [random.uniform(0.5, 2.0, shape) for shape in shapes]


def _placed(*shapes: tuple[int, ...]) -> Make:
    """Arrays, and indices of the first and of the third axis, of length 4 and 5."""
    return lambda random: [
        *(random.integers(-3, 4, shape).astype(np.float64) for shape in shapes),
        random.integers(0, 4, 6),
        random.integers(-5, 5, 6),
    ]


_PLACES = (INDEX, (None, None, -1), INDEX)
_KEYS = [((1, 4, 2), (0, 3, None), (2, None, -2)), (-1, None, (0, 0, None)), ()]


def rows() -> list[type[Elementwise]]:
    """The elementwise operations that are a row without parameters."""
    kinds = [kind for kind in Elementwise.__subclasses__() if kind.__module__.startswith("actorflow.ops.")]
    return [kind for kind in kinds if not fields(kind) and kind is not ops.Sum]


def _of_row(kind: type[Elementwise]) -> Case:
    """A row with numbers that it is defined for, and that are nowhere near a jump."""
    dtype = "bool" if kind.kinds == "b" else "int64" if kind.kinds in ("iu", "biu") else "float64"
    count = len(kind.arguments) - kind.conditions

    def make(random: np.random.Generator) -> list[np.ndarray]:
        conditions = [random.random((5, 41)) < 0.5 for _ in range(kind.conditions)]
        if dtype != "float64":
            return [*conditions, *random.integers(0, 2 if dtype == "bool" else 6, (count, 5, 41)).astype(dtype)]
        return [*conditions, *(random.uniform(0.1, 0.9, (count, 5, 41)) + (kind is ops.Acosh))]

    return Case(kind(), make)


#: Rows with parameters, whose kernels are made of formulas, too.
WITH_PARAMETERS = (ops.Elu(), ops.LeakyRelu(), ops.Scale(0.3), ops.Softplus())


def is_of_the_host(operation: Operation) -> bool:
    """Whether accelerators leave it to the host."""
    kind = type(operation)
    if isinstance(operation, Recurrence | ops.Nonzero | ops.SearchSorted | ops.IsIn):
        return True
    return issubclass(kind, Elementwise) and kind in rows() and not kind.formula and kind.function is not None


_PAIR = ((5, 41), (5, 41))
_AXES = (None, (0,), (1,), (2,), (0, 1), (0, 2))
_WIDTHS = ((2, 1), (0, 3), (1, 0))
_BORDER = ((3, 4, 5), tuple(n + before + after for n, (before, after) in zip((3, 4, 5), _WIDTHS, strict=True)))

#: Arithmetic, comparisons, reductions, shapes, indices.
TENSOR_CASES = [
    *map(_of_row, rows()),
    *(
        Case(operation, _whole(-3, *_PAIR))
        for operation in (ops.Subtract(), ops.Multiply(), ops.Maximum(), ops.Minimum())
    ),
    *(Case(ops.WeightedSum((0.5, -2.0, 0.1)[:n]), _normal(*[(5, 41)] * n)) for n in (1, 3)),
    *(Case(operation, _positive(*_PAIR)) for operation in (ops.Divide(), ops.Power())),
    Case(ops.Power(), _integers(*_PAIR)),
    *(
        Case(operation, _whole(-3, *_PAIR))
        for operation in (
            ops.Equal(),
            ops.NotEqual(),
            ops.Less(),
            ops.LessEqual(),
            ops.Greater(),
            ops.GreaterEqual(),
        )
    ),
    *(Case(operation, _flags(*_PAIR)) for operation in (ops.LogicalAnd(), ops.LogicalOr(), ops.LogicalXor())),
    Case(ops.LogicalNot(), _flags((5, 41))),
    Case(ops.Where(), _chosen),
    *(Case(operation, _whole(-3, (5, 41))) for operation in (ops.Negative(), ops.Absolute(), ops.Sign(), ops.Square())),
    *(Case(operation, _integers((5, 41))) for operation in (ops.Negative(), ops.Absolute(), ops.Sign(), ops.Square())),
    *(Case(operation, _normal((5, 41))) for operation in (ops.Floor(), ops.Ceil(), ops.Round(), ops.Exp())),
    *(Case(operation, _positive((5, 41))) for operation in (ops.Log(), ops.Sqrt(), ops.Reciprocal())),
    Case(ops.Dummy(), _normal((5, 41), (3,))),
    Case(ops.BroadcastTo((3, 5, 4)), _normal((5, 1))),
    *(
        Case(operation(axis, keepdims), make)
        for axis, keepdims in [(axis, axis == (1,)) for axis in _AXES]
        for operation in (ops.ReduceSum, ops.ReduceMax, ops.ReduceMin, ops.ReduceProd, ops.CountNonzero)
        for make in (_whole(-1, (4, 30, 6)), _integers((4, 30, 6), high=3))
    ),
    *(Case(ops.ReduceMean(axis), _normal((4, 30, 6))) for axis in _AXES),
    *(Case(operation(None), _whole(-3, (70_000,))) for operation in (ops.ReduceMax, ops.ReduceMin, ops.CountNonzero)),
    Case(ops.ReduceSum(), _integers((70_000,))),
    Case(ops.ReduceProd(), lambda random: [random.choice([-1.0, 1.0], 70_000)]),
    *(Case(operation(axis), _flags((4, 30, 6))) for axis in _AXES for operation in (ops.ReduceAny, ops.ReduceAll)),
    *(Case(operation(axis), _flags((4, 3, 1))) for axis in _AXES for operation in (ops.ReduceAny, ops.ReduceAll)),
    *(
        Case(operation(axis), make)
        for axis in (None, (0,), (1,), (2,))
        for operation in (ops.ArgMax, ops.ArgMin)
        for make in (_whole(-3, (4, 90, 6)), _integers((4, 90, 6)))
    ),
    *(Case(ops.Concat(axis), _normal((4, 3, 5), (4, 3, 5), (4, 3, 5))) for axis in (0, 1, -1)),
    *(Case(ops.Split((1, 0, 2), axis), _normal((3, 3, 3))) for axis in (0, 1, -1)),
    *(Case(ops.Slice(key), _normal((4, 3, 5))) for key in _KEYS),
    *(Case(AddAt(key, (4, 3, 5)), _normal(np.empty((4, 3, 5))[numpy_key(key)].shape)) for key in _KEYS),
    Case(Gather(_PLACES), _placed((4, 3, 5))),
    Case(AddAt(_PLACES, (4, 3, 5)), _placed((6, 3))),
    *(Case(ops.Scatter(_PLACES, mode), _placed((4, 3, 5), (6, 3))) for mode in ("set", "add", "mul", "min", "max")),
    *(Case(ops.Flip(axis), _normal((4, 3, 5))) for axis in (None, (1,))),
    *(Case(ops.Pad(_WIDTHS, mode, 1.5), _normal(_BORDER[0])) for mode in ("constant", "reflect", "edge", "wrap")),
    *(Case(PadDown(_WIDTHS, mode), _normal(_BORDER[1])) for mode in ("reflect", "edge", "wrap")),
    *(Case(ops.Take(axis), _picked((4, 4, 4), (7, 2), 4)) for axis in (0, 1, -1)),
    *(Case(TakeDown(4, axis), _picked((*(4,) * axis, 7, 2, *(4,) * (2 - axis)), (7, 2), 4)) for axis in (0, 1, 2)),
    *(Case(ops.TakeAlongAxis(axis), _picked((4, 4, 4), (4, 4, 4), 4)) for axis in (0, 1, -1)),
    *(Case(TakeAlongAxisDown(5, axis), _picked((4, 4, 4), (4, 4, 4), 5)) for axis in (0, 1, 2)),
    *(
        Case(scan(1, *how), _normal((4, 30, 6)))
        for scan in (ops.CumSum, ops.CumProd)
        for how in product((False, True), repeat=2)
    ),
    *(Case(Recurrence(-1, reverse), _normal((4, 30), (4, 30))) for reverse in (False, True)),
    *(
        Case(order(1, *how), _whole(-3, (4, 90, 6)))
        for order in (ops.Sort, ops.ArgSort)
        for how in product((False, True), (True,))
    ),
    *(Case(ops.Nonzero(size, -1), _flags((5, 41))) for size in (3, 300)),
    *(
        Case(
            ops.SearchSorted(side), lambda random: [np.sort(random.standard_normal(40)), random.standard_normal((5, 3))]
        )
        for side in ("left", "right")
    ),
    *(Case(ops.IsIn(invert), _whole(-3, (5, 41), (3,))) for invert in (False, True)),
    *(Case(ops.OneHot(4, np.dtype(dtype)), _integers((5, 3))) for dtype in ("float32", "int64", "bool")),
    Case(ops.Gaussian(TensorSpec.of((5, 41), "float64"), 2**70 + 5, 1.0, 2.0), _normal()),
    *(
        Case(operation, _normal())
        for spec in (TensorSpec.of((5, 41), "float32"), TensorSpec.of((205,), "float64"))
        for operation in (
            ops.Uniform(spec, 7, -1.0, 3.0),
            ops.Bernoulli(spec, 7, 0.3),
        )
    ),
    *(Case(ops.Bernoulli(TensorSpec.of((5, 41), dtype), 7, 0.3), _normal()) for dtype in ("bool", "int32", "float16")),
]

#: A value that is read twice, a vector that is broadcast, two results.
_FUSED = ops.Fused(
    (
        ops.FusedStep(ops.Multiply(), (0, 1)),
        ops.FusedStep(ops.Sum(), (3, 2)),
        ops.FusedStep(ops.Scale(0.3), (4,)),
        ops.FusedStep(ops.Sigmoid(), (5,)),
        ops.FusedStep(ops.Greater(), (6, 0)),
        ops.FusedStep(ops.Where(), (7, 6, 0)),
    ),
    (1, 5),
)


def _reduced(axis: tuple[int, ...]) -> ops.Fused:
    """A chain, one of its values, and reductions along an axis."""
    return ops.Fused(
        (
            ops.FusedStep(ops.Multiply(), (0, 1)),
            ops.FusedStep(ops.Subtract(), (2, 0)),
            ops.FusedStep(ops.ReduceMean(axis), (3,)),
            ops.FusedStep(ops.ReduceMax(axis, keepdims=True), (2,)),
            ops.FusedStep(ops.ReduceMin(axis), (0,)),
            ops.FusedStep(ops.CountNonzero(axis), (3,)),
        ),
        (0, 2, 3, 4, 5),
    )


#: Every operation with a CPU kernel.
CASES = [
    Case(_FUSED, _normal((5, 41), (5, 41), (41,))),
    *(Case(_reduced(axis), _normal((9, 41), (41,))) for axis in [(0,), (1,), (0, 1)]),
    Case(_reduced((0, 1)), _normal((3, 2100), (3, 1))),
    *(Case(ops.Copy(), _normal(shape)) for shape in [(), (0, 3), (4, 70)]),
    *(Case(ops.Sum(), _normal(*[(5, 41)] * terms)) for terms in (1, 2, 3, 16, 17, 40)),
    *(case for case in TENSOR_CASES if not is_of_the_host(case.operation)),
    Case(ops.Scale(0.3), _normal((5, 41))),
    Case(ops.Fill(0.25, _SPEC), _normal()),
    Case(ops.Reshape((6, -1)), _normal((4, 3, 5))),
    *(Case(ops.Cast(np.dtype(to)), _normal((5, 41))) for to in FLOATS),
    Case(ops.Cast(np.dtype(np.int32)), lambda random: [random.integers(-9, 9, (5, 41)).astype(float)]),
    Case(ops.Transpose((2, 0, 1)), _normal((4, 3, 5))),
    *(Case(operation, _normal((300, 7))) for operation in (ops.Relu(), ops.Sigmoid(), ops.Tanh())),
    *(Case(down, _normal((300, 7), (300, 7))) for down in (ReluDown(),)),
    *(Case(ops.Softmax(axis), _normal((4, 90, 6))) for axis in (-1, 0, 1)),
    *(Case(SoftmaxDown(axis), _normal((4, 90, 6), (4, 90, 6))) for axis in (-1, 0, 1)),
    Case(ops.Softmax(), _normal((3, 3000))),
    Case(ops.Inner(), _normal((9, 20), (6, 20))),
    Case(InnerDown(), _normal((9, 6), (6, 20))),
    Case(InnerWeight(), _normal((9, 6), (9, 20))),
    Case(ops.Bias(), _normal((3, 4, 4, 6), (6,))),
    *(Case(BiasDown(), _normal(shape)) for shape in [(3, 4, 4, 6), (5000, 3), (70, 192), (5,), (0, 4)]),
    *_convolved(1),
    *_convolved(1, stride=2),
    *_convolved(3, pad=1),
    *_convolved(5, stride=2, pad=2),
    *_convolved(3, stride=2, pad=((1, 0), 2), dilation=2),
    *_convolved(3, pad=1, groups=2),
    *_convolved(3, pad=1, groups=4, channels=(1, 1)),
    *_convolved(3, stride=2, groups=3, channels=(1, 2)),
    *_convolved(3, stride=2, pad=1, size=(11,)),
    *_convolved(2, pad=1, size=(4, 5, 3), groups=2),
    *_pooled(*_WINDOW),
    *_pooled(2),
    *_pooled(3, 1, ((0, 2), 1), True, 2),
    *_pooled(3, 2, size=(11,)),
    *_pooled(2, 1, 1, size=(4, 5, 3)),
    *_averaged(*_WINDOW),
    *_averaged(*_WINDOW, True, False),
    *_averaged(3, 2, ((0, 2), 1), size=(4, 5)),
    *_averaged(2, 1, ((0, 1), 1), True, False, dilation=3),
    *_averaged(3, 2, 1, dilation=2),
    *_averaged(2, 2, 1, size=(4, 5, 3)),
    Case(ops.GlobalAverage(), _normal((3, 4, 5, 2, 6))),
    Case(ops.GlobalAverage(), _normal((3, 8, 9, 40))),
    Case(ops.SoftmaxLoss(), _scores()),
    Case(SoftmaxLossDown(), _scores(())),
    *(Case(ops.Accuracy(top), _scores()) for top in (1, 3)),
    Case(ops.Dropout(0.4, seed=2**70 + 5), _normal((7, 33))),
    *(
        Case(ops.SgdUpdate(*factors), _updated)
        for factors in [(0.0, 0.0, 1.0), (0.9, 0.01, 2.0), (0.9, 0.01, 2.0, True)]
    ),
    *(Case(ops.AdamUpdate(weight_decay=0.01, decoupled=apart), _state(2, 0, 4), (2, 3)) for apart in (False, True)),
    Case(ops.AdamUpdate(beta1=0.0, beta2=0.0), _state(2, 0, 0), (2, 3)),
    *(Case(ops.AdagradUpdate(1e-3, decay, 2.0), _state(1, 0), (2,)) for decay in (0.0, 0.01)),
    Case(ops.RmsPropUpdate(), _state(1, 0), (2,)),
    Case(ops.RmsPropUpdate(momentum=0.9, weight_decay=0.01), _state(1, 1), (2, 4)),
    Case(ops.RmsPropUpdate(alpha=0.5, eps=1e-2, centered=True), _state(1, 1), (2, 4)),
    Case(ops.RmsPropUpdate(alpha=0.5, eps=1e-2, momentum=0.9, centered=True, rate_scale=2.0), _state(1, 2), (2, 4, 5)),
    *(Case(SquareSum(), _normal(shape)) for shape in [(), (0, 3), (70, 300)]),
    *(
        Case(NormFactor(limit), lambda random: [*map(np.asarray, random.random(3))], exact=(0, 1, 2))
        for limit in (0.5, 9.0)
    ),
    Case(ScaleBy(), lambda random: [random.standard_normal((5, 41)), np.asarray(0.3)], exact=(1,)),
    *(Case(*case) for case in NEURAL_CASES),
]


def kernel_on_cpu(key: registry.KernelKey) -> registry.Kernel:
    """The kernel of the CPU for the operation of a key."""
    [kind] = [kind for kind in _kinds(Operation) if kind.__name__ == key.operation]
    found = registry.lookup(kind.__new__(kind), "cpu", "numpy", np.dtype(key.dtype))
    assert found is not None
    return found


def _kinds(base: type[Operation]) -> Iterator[type[Operation]]:
    for kind in base.__subclasses__():
        if kind.__module__.startswith("actorflow.ops."):
            yield kind
            yield from _kinds(kind)


def compute_cpu(operation: ops.Operation, *arrays: np.ndarray, frame: int = 0) -> list[np.ndarray]:
    """Outputs of the CPU's kernel."""
    specs = operation.infer(*(TensorSpec(a.shape, a.dtype) for a in arrays))
    assert specs is not None
    kernel = find_kernel(operation, "cpu", (arrays[0] if arrays else specs[0]).dtype)
    if kernel.returns:
        return kernel.function(operation, list(arrays), None)
    outputs = [np.empty(spec.shape, spec.dtype) for spec in specs]
    kernel.function(operation, list(arrays), outputs, *([frame] if kernel.random else []))
    return outputs


def check(case: Case, dtype: str, compute: Callable[..., list[np.ndarray]]) -> None:
    """Compare ``compute(operation, *arrays, frame=...)`` with the CPU."""
    drawn = [np.asarray(a) for a in case.make(np.random.default_rng(0))]
    arrays = [a.astype(dtype) if a.dtype.kind == "f" else a for a in drawn]
    for i in case.statistics:
        arrays[i] = arrays[i].astype(np.promote_types(dtype, np.float32))
    for i in case.exact:
        arrays[i] = arrays[i].astype(np.float64)
    precise = [a.astype(np.float32) if a.dtype == np.float16 else a for a in arrays]
    expected = compute_cpu(case.operation, *precise, frame=3)
    found = compute(case.operation, *arrays, frame=3)
    relative, absolute = TOLERANCE[dtype]
    # Sums lose digits with the number of their terms, whatever comes out.
    scale = max([1.0, *(np.abs(e).max() for e in expected if e.dtype.kind == "f" and e.size)])
    for actual, wanted in zip(found, expected, strict=True):
        assert actual.shape == wanted.shape
        np.testing.assert_allclose(actual, wanted, rtol=relative, atol=absolute * scale)
