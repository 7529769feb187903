"""Kernels of activations that have parameters; those of the others are made of their formulas."""

from __future__ import annotations

from typing import Any

import numpy as np

from actorflow.ops.cuda.launch import FLOATS, Array, elementwise, kernel
from actorflow.ops.nn import activation as ops


def _register(operation: Any, body: str, *parameters: str) -> None:
    """Register a kernel of CUDA C, which reads ``x`` and the operation's parameters and writes ``r``."""
    numbers = "".join(f", float64 {name}" for name in parameters)
    compiled = elementwise(operation.__name__.lower(), f"T x{numbers}", "T r", f"const W v = W(x); {body}")

    @kernel(operation, dtypes=FLOATS, inplace=True)
    def compute(operation: Any, inputs: list[Array], outputs: list[Array]) -> None:
        compiled(*inputs, *[np.float64(getattr(operation, name)) for name in parameters], outputs[0])


_register(ops.LeakyRelu, "r = v > W(0) || v != v ? x : slope == 0 ? T(0) : T(v * W(slope))", "slope")
_register(ops.Elu, "r = v > W(0) ? x : T(W(alpha) * W(expm1(v)))", "alpha")
_register(
    ops.Softplus,
    "const W b = W(beta), scaled = b * v, bend = log1p(exp(scaled > W(0) ? -scaled : scaled));"
    "r = scaled > W(threshold) ? x : T(((scaled > W(0) ? scaled : W(0)) + bend) / b)",
    *("beta", "threshold"),
)
