"""Kernels of `actorflow.ops.nn.activation`."""

from __future__ import annotations

import numpy as np

from actorflow.ops.cuda.elementwise import register_elementwise
from actorflow.ops.cuda.launch import FLOATS, Array, elementwise, kernel
from actorflow.ops.nn import activation as ops
from actorflow.ops.operation import Operation

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


def _register(operation: type[Operation], arrays: str, body: str, *parameters: str) -> None:
    """Register a kernel of CUDA C, which reads some of the operation's parameters and writes ``r``."""
    numbers = "".join(f", float64 {name}" for name in parameters)
    compiled = elementwise(operation.__name__.lower(), arrays + numbers, "T r", body)

    @kernel(operation, dtypes=FLOATS, inplace=arrays == "T x" and operation is not ops.NormalDensity)
    def compute(operation: Operation, inputs: list[Array], outputs: list[Array]) -> None:
        compiled(*inputs, *[np.float64(getattr(operation, name)) for name in parameters], outputs[0])


_register(
    ops.LeakyRelu, "T x", "const W v = W(x); r = v > W(0) || v != v ? x : slope == 0 ? T(0) : T(v * W(slope))", "slope"
)
_register(ops.LeakyReluDown, "T g, T y", "r = W(y) > W(0) ? g : slope == 0 ? T(0) : T(W(g) * W(slope))", "slope")
_register(ops.Elu, "T x", "const W v = W(x); r = v > W(0) ? x : T(W(alpha) * W(expm1(v)))", "alpha")
_register(ops.EluDown, "T g, T y", "r = W(y) > W(0) ? g : T(W(g) * (W(y) + W(alpha)))", "alpha")
_register(ops.Silu, "T x", "const W v = W(x); r = T(v * (W(1) / (W(1) + exp(-v))))")
_register(
    ops.SiluDown, "T g, T x", "const W v = W(x), s = W(1) / (W(1) + exp(-v)); r = T(W(g) * s * (W(1) + v * (W(1) - s)))"
)
_register(
    ops.Softplus,
    "T x",
    "const W b = W(beta), v = b * W(x), bend = log1p(exp(v > W(0) ? -v : v));"
    "r = v > W(threshold) ? x : T(((v > W(0) ? v : W(0)) + bend) / b)",
    *("beta", "threshold"),
)
_register(
    ops.SoftplusDown,
    "T g, T x",
    "const W v = W(beta) * W(x); r = v > W(threshold) ? g : T(W(g) / (W(1) + exp(-v)))",
    *("beta", "threshold"),
)
_register(ops.NormalDensity, "T x", "const W v = W(x); r = T(W(0.39894228040143268) * exp(W(-0.5) * v * v))")

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


@kernel(ops.Gelu, dtypes=FLOATS, inplace=True)
def _gelu(operation: ops.Gelu, inputs: list[Array], outputs: list[Array]) -> None:
    (_GELU_TANH if operation.tanh else _GELU)(*inputs, outputs[0])


@kernel(ops.GeluDown, dtypes=FLOATS)
def _gelu_down(operation: ops.GeluDown, inputs: list[Array], outputs: list[Array]) -> None:
    (_GELU_TANH_DOWN if operation.tanh else _GELU_DOWN)(*inputs, outputs[0])
