"""Kernels of `actorflow.ops.nn.activation`."""

from __future__ import annotations

import numpy as np

from actorflow.ops.cuda.elementwise import register_elementwise
from actorflow.ops.cuda.launch import FLOATS, Array, elementwise, kernel
from actorflow.ops.nn.activation import (
    GELU_CUBIC,
    GELU_SLOPE,
    Elu,
    EluDown,
    Gelu,
    GeluDown,
    LeakyRelu,
    LeakyReluDown,
    NormalDensity,
    Relu,
    ReluDown,
    Sigmoid,
    SigmoidDown,
    Silu,
    SiluDown,
    Softplus,
    SoftplusDown,
    Tanh,
    TanhDown,
)

register_elementwise(
    {Relu: "x < T(0) ? T(0) : x", Sigmoid: "W(1) / (W(1) + exp(-W(x)))", Tanh: "tanh(W(x))"}, FLOATS, "T x"
)
register_elementwise(
    {
        ReluDown: "y > T(0) ? g : T(0)",
        SigmoidDown: "W(g) * W(y) * (W(1) - W(y))",
        TanhDown: "W(g) * (W(1) - W(y) * W(y))",
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
_INNER = f"const W v = W(x), k = W({GELU_SLOPE!r}), c = W({GELU_CUBIC!r}), t = tanh(k * v * (W(1) + c * v * v));"
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


@kernel(LeakyRelu, dtypes=FLOATS, inplace=True)
def _leaky_relu(operation: LeakyRelu, inputs: list[Array], outputs: list[Array]) -> None:
    _LEAKY_RELU(*inputs, np.float64(operation.slope), outputs[0])


@kernel(LeakyReluDown, dtypes=FLOATS)
def _leaky_relu_down(operation: LeakyReluDown, inputs: list[Array], outputs: list[Array]) -> None:
    _LEAKY_RELU_DOWN(*inputs, np.float64(operation.slope), outputs[0])


@kernel(Elu, dtypes=FLOATS, inplace=True)
def _elu(operation: Elu, inputs: list[Array], outputs: list[Array]) -> None:
    _ELU(*inputs, np.float64(operation.alpha), outputs[0])


@kernel(EluDown, dtypes=FLOATS)
def _elu_down(operation: EluDown, inputs: list[Array], outputs: list[Array]) -> None:
    _ELU_DOWN(*inputs, np.float64(operation.alpha), outputs[0])


@kernel(Silu, dtypes=FLOATS, inplace=True)
def _silu(operation: Silu, inputs: list[Array], outputs: list[Array]) -> None:
    _SILU(*inputs, outputs[0])


@kernel(SiluDown, dtypes=FLOATS)
def _silu_down(operation: SiluDown, inputs: list[Array], outputs: list[Array]) -> None:
    _SILU_DOWN(*inputs, outputs[0])


@kernel(Softplus, dtypes=FLOATS, inplace=True)
def _softplus(operation: Softplus, inputs: list[Array], outputs: list[Array]) -> None:
    _SOFTPLUS(*inputs, np.float64(operation.beta), np.float64(operation.threshold), outputs[0])


@kernel(SoftplusDown, dtypes=FLOATS)
def _softplus_down(operation: SoftplusDown, inputs: list[Array], outputs: list[Array]) -> None:
    _SOFTPLUS_DOWN(*inputs, np.float64(operation.beta), np.float64(operation.threshold), outputs[0])


@kernel(Gelu, dtypes=FLOATS, inplace=True)
def _gelu(operation: Gelu, inputs: list[Array], outputs: list[Array]) -> None:
    (_GELU_TANH if operation.tanh else _GELU)(*inputs, outputs[0])


@kernel(GeluDown, dtypes=FLOATS)
def _gelu_down(operation: GeluDown, inputs: list[Array], outputs: list[Array]) -> None:
    (_GELU_TANH_DOWN if operation.tanh else _GELU_DOWN)(*inputs, outputs[0])


@kernel(NormalDensity, dtypes=FLOATS)
def _normal_density(operation: NormalDensity, inputs: list[Array], outputs: list[Array]) -> None:
    _NORMAL_DENSITY(*inputs, outputs[0])
