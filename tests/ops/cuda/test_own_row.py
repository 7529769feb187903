"""A row is all that an elementwise operation needs: those that are written here work everywhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import actorflow as af
import actorflow.array as xp
from actorflow import ops
from actorflow.ops.registry import KernelKey
from tests.ops.cuda import nvrtc

Cbrt, cbrt = ops.unary(
    "cbrt", "The cube root.", np.cbrt, lambda g, x, y: g / (3.0 * y * y), kinds="fV", cuda="cbrt(W(x))"
)
Mix, mix = ops.binary(
    "mix",
    "The first and twice the second.",
    lambda a, b, out: np.add(a, 2.0 * b, out=out),
    lambda g, a, b: g,
    lambda g, a, b: 2.0 * g,
    kinds="fV",
    cuda="W(a) + W(2) * W(b)",
)
X = np.array([[0.5, 1.0, 8.0], [27.0, 2.0, 3.0]])


def test_it_has_a_name_a_class_and_words() -> None:
    assert (cbrt.__name__, Cbrt.__name__, str(Cbrt())) == ("cbrt", "Cbrt", "Cbrt()")
    assert cbrt.__doc__ is not None
    assert cbrt.__doc__.startswith("The cube root.\n\nArgs:\n    x: Any shape; a blob is real and floating.")
    with pytest.raises(af.DTypeError, match=r"Cbrt: x must be real and floating, got int64\[2\]"):
        cbrt(af.Graph("g").blob("n", 2, "int64"))
    _, doubled = ops.unary("doubled", "Twice.", lambda x, out: np.add(x, x, out=out), kinds="f")
    with pytest.raises(af.DTypeError, match=r"Doubled: x must be of a dtype of kind f, got int64\[2\]"):
        doubled(af.Graph("g").blob("n", 2, "int64"))


@pytest.mark.parametrize("place", ["cpu", "sim:0"])
def test_graphs_compute_and_differentiate_it(place: str) -> None:
    graph = af.Graph("g")
    with graph.at(place):
        x = graph.blob("x", X.shape, "float64")
        y = cbrt(x)
        slope = af.gradient(ops.sum(y), x)
        curve = af.gradient(ops.sum(slope), x)
        both = mix(x, ops.sum(x, 0))
        by_both = af.gradient(ops.sum(both * both), x)
    result = graph.run_sync({x: X}, fetch=[y, slope, curve, both, by_both])
    sums = X + 2 * X.sum(0)
    for blob, expected in (
        (y, np.cbrt(X)),
        (slope, X ** (-2 / 3) / 3),
        (curve, X ** (-5 / 3) * -2 / 9),
        (both, sums),
        (by_both, 2 * sums + 4 * sums.sum(0)),
    ):
        np.testing.assert_allclose(af.to_numpy(result[blob]), expected, rtol=1e-12)
    af.testing.check_gradient(Cbrt(), X)
    af.testing.check_gradient(Mix(), X, X[:1])


def test_arrays_compute_and_differentiate_it() -> None:
    x = xp.asarray(X)
    slope = af.grad(lambda x: xp.sum(cbrt(x)))
    np.testing.assert_allclose(cbrt(x).to_numpy(), np.cbrt(X))
    np.testing.assert_allclose(slope(x).to_numpy(), X ** (-2 / 3) / 3)
    np.testing.assert_allclose(af.grad(lambda x: xp.sum(slope(x)))(x).to_numpy(), X ** (-5 / 3) * -2 / 9)
    np.testing.assert_allclose(mix(x, 1.5).to_numpy(), X + 3.0)
    assert cbrt(xp.asarray(X.astype("f"))).dtype == np.float32
    graph = af.to_graph(lambda x: mix(cbrt(x), 1.0), x)
    assert [op.operation.kind for op in graph.ops if op.operation.kind in ("Cbrt", "Mix")] == ["Cbrt", "Mix"]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_cuda_computes_it(emulated: Any, compute_cuda: Any, dtype: str) -> None:
    x = X.astype(dtype)
    for kind, inputs, expected in ((Cbrt, [x], np.cbrt(x)), (Mix, [x, x], 3 * x)):
        key = KernelKey(kind.__name__, "cuda", "cupy", dtype, "any")
        emulated.kernels[key] = emulated.modules["elementwise"].make(kind, key)
        (found,) = compute_cuda(kind(), *inputs)
        np.testing.assert_allclose(found, expected, rtol=4 * np.finfo(dtype).eps, strict=True)
        del emulated.kernels[key]


@pytest.mark.nvrtc
def test_nvrtc_compiles_it(emulated: Any) -> None:
    launch = emulated.modules["launch"]
    library, arch = nvrtc.load(), nvrtc.lowest_architecture(nvrtc.load())
    fused = emulated.modules["fused"]
    chain = ops.Fused((ops.Step(Cbrt(), (0,)), ops.Step(Mix(), (1, 0))), (1,))
    spec = af.TensorSpec.of((3,))
    lines = fused.statements_of(chain, chain.specs([spec]), "Half").lines
    text = 'extern "C" __global__ void run(float x0, float *y) { ' + " ".join(lines) + " *y = v2; }"
    options = (*launch.OPTIONS, "-DINDEX=int", "-DSCALAR=float")
    assert nvrtc.compile_to_cubin(library, f"{launch.source('tile')}\n{text}", arch, options)
