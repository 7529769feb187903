"""Kernels of `actorflow.ops.nn.activation`."""

from __future__ import annotations

import numpy as np

from actorflow.ops.cuda.elementwise import register_elementwise
from actorflow.ops.cuda.launch import FLOATS, Array, elementwise, kernel
from actorflow.ops.nn import activation as ops

register_elementwise(
    {ops.Relu: "x < T(0) ? T(0) : x", ops.Sigmoid: "W(1) / (W(1) + exp(-W(x)))", ops.Tanh: "tanh(W(x))"}, FLOATS, "T x"
)
register_elementwise(
    {
        ops.ReluDown: "y > T(0) ? g : T(0)",
        ops.SigmoidDown: "W(g) * W(y) * (W(1) - W(y))",
        ops.TanhDown: "W(g) * (W(1) - W(y) * W(y))",
    },
    FLOATS,
    "T g, T y",
)


_LEAKY_RELU = elementwise(
    "leaky_relu",
    "T x, float64 slope",
    "T y",
    "const W v = W(x); y = v > W(0) || v != v ? x : slope == 0 ? T(0) : T(v * W(slope))",
)
_LEAKY_RELU_DOWN = elementwise(
    "leaky_relu_down",
    "T g, T y, float64 slope",
    "T dx",
    "dx = W(y) > W(0) ? g : slope == 0 ? T(0) : T(W(g) * W(slope))",
)
_ELU = elementwise("elu", "T x, float64 alpha", "T y", "const W v = W(x); y = v > W(0) ? x : T(W(alpha) * W(expm1(v)))")
_ELU_DOWN = elementwise(
    "elu_down", "T g, T y, float64 alpha", "T dx", "dx = W(y) > W(0) ? g : T(W(g) * (W(y) + W(alpha)))"
)
_SILU = elementwise("silu", "T x", "T y", "const W v = W(x); y = T(v * (W(1) / (W(1) + exp(-v))))")
_SILU_DOWN = elementwise(
    "silu_down",
    "T g, T x",
    "T dx",
    "const W v = W(x), s = W(1) / (W(1) + exp(-v)); dx = T(W(g) * s * (W(1) + v * (W(1) - s)))",
)
_SOFTPLUS = elementwise(
    "softplus",
    "T x, float64 beta, float64 threshold",
    "T y",
    "const W b = W(beta), v = b * W(x), bend = log1p(exp(v > W(0) ? -v : v));"
    "y = v > W(threshold) ? x : T(((v > W(0) ? v : W(0)) + bend) / b)",
)
_SOFTPLUS_DOWN = elementwise(
    "softplus_down",
    "T g, T x, float64 beta, float64 threshold",
    "T dx",
    "const W v = W(beta) * W(x); dx = v > W(threshold) ? g : T(W(g) / (W(1) + exp(-v)))",
)
_GELU = elementwise(
    "gelu", "T x", "T y", "const W v = W(x); y = T(v * (W(0.5) * W(erfc(-v * W(0.70710678118654752)))))"
)
_GELU_DOWN = elementwise(
    "gelu_down",
    "T g, T x",
    "T dx",
    "const W v = W(x), share = W(0.5) * W(erfc(-v * W(0.70710678118654752)));"
    "dx = T(W(g) * (share + v * (W(0.39894228040143268) * exp(W(-0.5) * v * v))))",
)
_INNER = (
    f"const W v = W(x), k = W({ops.GELU_SLOPE!r}), c = W({ops.GELU_CUBIC!r}), t = tanh(k * v * (W(1) + c * v * v));"
)
_GELU_TANH = elementwise("gelu_tanh", "T x", "T y", _INNER + "y = T(W(0.5) * v * (W(1) + t))")
_GELU_TANH_DOWN = elementwise(
    "gelu_tanh_down",
    "T g, T x",
    "T dx",
    _INNER + "dx = T(W(g) * W(0.5) * (W(1) + t + v * (W(1) - t * t) * k * (W(1) + W(3) * c * v * v)))",
)
_NORMAL_DENSITY = elementwise(
    "normal_density", "T x", "T y", "const W v = W(x); y = T(W(0.39894228040143268) * exp(W(-0.5) * v * v))"
)


@kernel(ops.LeakyRelu, dtypes=FLOATS, inplace=True)
def _leaky_relu(operation: ops.LeakyRelu, inputs: list[Array], outputs: list[Array]) -> None:
    _LEAKY_RELU(*inputs, np.float64(operation.slope), outputs[0])


@kernel(ops.LeakyReluDown, dtypes=FLOATS)
def _leaky_relu_down(operation: ops.LeakyReluDown, inputs: list[Array], outputs: list[Array]) -> None:
    _LEAKY_RELU_DOWN(*inputs, np.float64(operation.slope), outputs[0])


@kernel(ops.Elu, dtypes=FLOATS, inplace=True)
def _elu(operation: ops.Elu, inputs: list[Array], outputs: list[Array]) -> None:
    _ELU(*inputs, np.float64(operation.alpha), outputs[0])


@kernel(ops.EluDown, dtypes=FLOATS)
def _elu_down(operation: ops.EluDown, inputs: list[Array], outputs: list[Array]) -> None:
    _ELU_DOWN(*inputs, np.float64(operation.alpha), outputs[0])


@kernel(ops.Silu, dtypes=FLOATS, inplace=True)
def _silu(operation: ops.Silu, inputs: list[Array], outputs: list[Array]) -> None:
    _SILU(*inputs, outputs[0])


@kernel(ops.SiluDown, dtypes=FLOATS)
def _silu_down(operation: ops.SiluDown, inputs: list[Array], outputs: list[Array]) -> None:
    _SILU_DOWN(*inputs, outputs[0])


@kernel(ops.Softplus, dtypes=FLOATS, inplace=True)
def _softplus(operation: ops.Softplus, inputs: list[Array], outputs: list[Array]) -> None:
    _SOFTPLUS(*inputs, np.float64(operation.beta), np.float64(operation.threshold), outputs[0])


@kernel(ops.SoftplusDown, dtypes=FLOATS)
def _softplus_down(operation: ops.SoftplusDown, inputs: list[Array], outputs: list[Array]) -> None:
    _SOFTPLUS_DOWN(*inputs, np.float64(operation.beta), np.float64(operation.threshold), outputs[0])


@kernel(ops.Gelu, dtypes=FLOATS, inplace=True)
def _gelu(operation: ops.Gelu, inputs: list[Array], outputs: list[Array]) -> None:
    (_GELU_TANH if operation.tanh else _GELU)(*inputs, outputs[0])


@kernel(ops.GeluDown, dtypes=FLOATS)
def _gelu_down(operation: ops.GeluDown, inputs: list[Array], outputs: list[Array]) -> None:
    (_GELU_TANH_DOWN if operation.tanh else _GELU_DOWN)(*inputs, outputs[0])


@kernel(ops.NormalDensity, dtypes=FLOATS)
def _normal_density(operation: ops.NormalDensity, inputs: list[Array], outputs: list[Array]) -> None:
    _NORMAL_DENSITY(*inputs, outputs[0])
