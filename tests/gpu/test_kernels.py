"""Every CUDA kernel against the CPU's, forwards and backwards, on a GPU.

``tests/ops/cuda`` runs the same cases on an emulated device.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest

import actorflow.ops.cpu  # noqa: F401  registers the kernels
from actorflow import ops
from actorflow.ops import find_kernel, load_library
from actorflow.ops.registry import registered_kernels
from actorflow.spec import TensorSpec

#: How far results may lie apart, relative and absolute. The CPU's float16 kernels round after every step, so float16
#: results are compared with the CPU's float32 ones.
TOLERANCE = {"float16": (4e-3, 4e-3), "float32": (2e-5, 2e-5), "float64": (1e-12, 1e-12)}
FLOATS = tuple(TOLERANCE)

Make = Callable[[np.random.Generator], list[np.ndarray]]


class Case(NamedTuple):
    """An operation and how its inputs are drawn, as float64; integers and booleans keep their dtype."""

    operation: ops.Operation
    make: Make

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


def _pooled(operation: Any, down: Any, size: tuple[int, int] = (9, 8), channels: int = 5) -> list[Case]:
    """Forwards, and backwards from the CPU's result. Few different values: windows have several maxima."""

    def images(random: np.random.Generator) -> np.ndarray:
        return random.integers(-3, 4, (3, *size, channels)).astype(np.float64)

    def backwards(random: np.random.Generator) -> list[np.ndarray]:
        x = images(random)
        (y,) = compute_cpu(operation, x)
        g = random.standard_normal(y.shape)
        return [g, x, y] if isinstance(down, ops.MaxPool2dDown) else [g]

    return [Case(operation, lambda random: [images(random)]), Case(down, backwards)]


def _convolved(
    kernel: int, stride: int = 1, pad: int = 0, size: tuple[int, int] = (9, 7), channels: tuple[int, int] = (3, 4)
) -> list[Case]:
    how = ((stride, stride), (pad, pad))
    x, weight = (5, *size, channels[0]), (kernel, kernel, *channels)
    out = ops.Conv2d(*how).output_size(size, (kernel, kernel))
    g = (5, *out, channels[1])
    return [
        Case(ops.Conv2d(*how), _normal(x, weight)),
        Case(ops.Conv2dDown(size, *how), _normal(g, weight)),
        Case(ops.Conv2dWeight((kernel, kernel), *how), _normal(g, x)),
    ]


def _dropped(random: np.random.Generator) -> list[np.ndarray]:
    return [random.standard_normal((7, 33)), random.random((7, 33)) < 0.5]


def _updated(random: np.random.Generator) -> list[np.ndarray]:
    return [*(random.standard_normal((6, 50)) for _ in range(3)), np.asarray(0.125)]


_WINDOW = ((3, 3), (2, 2), (1, 1))
_SPEC = TensorSpec.of((4, 3), "float32")

#: Every operation with a CPU kernel.
CASES = [
    *(Case(ops.Copy(), _normal(shape)) for shape in [(), (0, 3), (4, 70)]),
    *(Case(ops.Sum(), _normal(*[(5, 41)] * terms)) for terms in (1, 2, 3, 16, 17, 40)),
    Case(ops.Mul(), _normal((5, 41), (5, 41))),
    Case(ops.Scale(0.3), _normal((5, 41))),
    Case(ops.Fill(0.25, _SPEC), _normal()),
    Case(ops.Reshape((6, -1)), _normal((4, 3, 5))),
    *(Case(ops.Cast(np.dtype(to)), _normal((5, 41))) for to in FLOATS),
    Case(ops.Cast(np.dtype(np.int32)), lambda random: [random.integers(-9, 9, (5, 41)).astype(float)]),
    Case(ops.Transpose((2, 0, 1)), _normal((4, 3, 5))),
    *(Case(operation, _normal((300, 7))) for operation in (ops.Relu(), ops.Sigmoid(), ops.Tanh())),
    *(Case(down, _normal((300, 7), (300, 7))) for down in (ops.ReluDown(), ops.SigmoidDown(), ops.TanhDown())),
    *(Case(ops.Softmax(axis), _normal((4, 90, 6))) for axis in (-1, 0, 1)),
    *(Case(ops.SoftmaxDown(axis), _normal((4, 90, 6), (4, 90, 6))) for axis in (-1, 0, 1)),
    Case(ops.Softmax(), _normal((3, 3000))),
    Case(ops.Inner(), _normal((9, 20), (6, 20))),
    Case(ops.InnerDown(), _normal((9, 6), (6, 20))),
    Case(ops.InnerWeight(), _normal((9, 6), (9, 20))),
    Case(ops.Bias(), _normal((3, 4, 4, 6), (6,))),
    *(Case(ops.BiasDown(), _normal(shape)) for shape in [(3, 4, 4, 6), (5000, 3), (70, 192), (5,), (0, 4)]),
    *_convolved(1),
    *_convolved(1, stride=2),
    *_convolved(3, pad=1),
    *_convolved(5, stride=2, pad=2),
    *_pooled(ops.MaxPool2d(*_WINDOW), ops.MaxPool2dDown(*_WINDOW)),
    *_pooled(ops.MaxPool2d((2, 2), (2, 2)), ops.MaxPool2dDown((2, 2), (2, 2))),
    *_pooled(ops.AveragePool2d(*_WINDOW), ops.AveragePool2dDown(*_WINDOW, size=(9, 8))),
    *_pooled(
        ops.AveragePool2d(*_WINDOW, count_pad=False), ops.AveragePool2dDown(*_WINDOW, count_pad=False, size=(9, 8))
    ),
    Case(ops.GlobalAverage(), _normal((3, 8, 9, 40))),
    Case(ops.GlobalAverageDown((8, 9)), _normal((3, 40))),
    Case(ops.SoftmaxLoss(), _scores()),
    Case(ops.SoftmaxLossDown(), _scores(())),
    *(Case(ops.Accuracy(top), _scores()) for top in (1, 3)),
    Case(ops.Dropout(0.4, seed=2**70 + 5), _normal((7, 33))),
    Case(ops.DropoutDown(0.4), _dropped),
    *(Case(ops.SgdUpdate(*factors), _updated) for factors in [(0.0, 0.0, 1.0), (0.9, 0.01, 2.0)]),
]


def test_every_operation_of_the_cpu_has_a_case() -> None:
    kinds = {key.operation for key in registered_kernels() if key.device == "cpu" and key.library == "numpy"}
    assert {case.operation.kind for case in CASES} >= {kind for kind in kinds if hasattr(ops, kind)}


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
    precise = "float32" if dtype == "float16" else dtype
    expected = compute_cpu(case.operation, *(a.astype(precise) if a.dtype.kind == "f" else a for a in arrays), frame=3)
    found = compute(case.operation, *arrays, frame=3)
    relative, absolute = TOLERANCE[dtype]
    # Sums lose digits with the number of their terms, whatever comes out.
    scale = max([1.0, *(np.abs(e).max() for e in expected if e.dtype.kind == "f" and e.size)])
    for actual, wanted in zip(found, expected, strict=True):
        assert actual.shape == wanted.shape
        np.testing.assert_allclose(actual, wanted, rtol=relative, atol=absolute * scale)


def _unwritten(cupy: ModuleType, spec: TensorSpec) -> Any:
    """An array whose elements are nan, or odd."""
    memory = cupy.full(spec.size_bytes + 16, 0xFF, np.uint8)
    return memory[: spec.size_bytes].view(spec.dtype).reshape(spec.shape)


@pytest.fixture(scope="module")
def compute_gpu(cupy: ModuleType) -> Callable[..., list[np.ndarray]]:
    load_library("cuda", "cupy")

    def run(operation: ops.Operation, *arrays: np.ndarray, frame: int = 0) -> list[np.ndarray]:
        specs = operation.infer(*(TensorSpec(a.shape, a.dtype) for a in arrays))
        assert specs is not None
        kernel = find_kernel(operation, "cuda", (arrays[0] if arrays else specs[0]).dtype, libraries=("cupy",))
        with cupy.cuda.Stream(non_blocking=True) as stream:
            inputs = [cupy.asarray(a) for a in arrays]
            if kernel.returns:
                outputs = kernel.function(operation, inputs, None)
            else:
                outputs = [_unwritten(cupy, spec) for spec in specs]
                kernel.function(operation, inputs, outputs, *([frame] if kernel.random else []))
            stream.synchronize()
        return [cupy.asnumpy(output) for output in outputs]

    return run


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_kernel_gives_what_the_cpu_gives(compute_gpu, case: Case, dtype: str) -> None:
    check(case, dtype, compute_gpu)


def test_a_mask_is_the_one_of_the_cpu_bit_by_bit(compute_gpu) -> None:
    x = np.ones(1_000_003, np.float32)
    for seed, frame in [(0, 0), (2**127 + 3, 2**40)]:
        operation = ops.Dropout(0.3, seed)
        for actual, wanted in zip(
            compute_gpu(operation, x, frame=frame), compute_cpu(operation, x, frame=frame), strict=True
        ):
            np.testing.assert_array_equal(actual, wanted)
