"""Conversions of the numbers of 2, 4 and 8 bits that files have and NumPy does not, and of bits as they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from actorflow.errors import DTypeError
from actorflow.onnx.values import Array
from actorflow.ops.cpu.buffers import is_plain, narrow
from actorflow.ops.operation import Operation, savable
from actorflow.spec import TensorSpec

#: Names of the integers and of the floating-point numbers that ml_dtypes has.
INTEGERS = {"int2", "uint2", "int4", "uint4"}
FLOATS = {
    "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn",
}  # fmt: skip


def is_narrow(dtype: np.dtype[Any]) -> bool:
    """Whether NumPy itself does not have a dtype, but for bfloat16, which operations here compute with."""
    return dtype.name in INTEGERS or dtype.name in FLOATS


@savable
@dataclass(frozen=True)
class Convert(Operation):
    """Numbers in another dtype, of which one of the two is narrow.

    Attributes:
        dtype: Name of the new dtype.
        saturate: Whether what is too large becomes the largest number, or else infinite or NaN.
        rounding: Which power of 2 a number becomes as ``float8_e8m0fnu``: "up", "down" or "nearest".
    """

    differentiable = False

    dtype: str
    saturate: bool = True
    rounding: str = "up"

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        return (TensorSpec(inputs[0].shape, named(self.dtype)),)

    def compute(self, *inputs: Any) -> Any:
        (x,), to = inputs, named(self.dtype)
        with np.errstate(all="ignore"):
            if self.dtype == "float8_e8m0fnu":
                return _power_of_two(x, self.saturate, self.rounding)
            if self.dtype in FLOATS and self.saturate:
                info = limits(to)
                x = np.clip(x.astype(np.float32), float(info.min), float(info.max))
            return x.astype(to)


@savable
class DynamicQuantizeLinear(Operation):
    """Numbers as unsigned integers of 8 bits, their scale and their zero point: 0 and all of them between 0 and 255."""

    differentiable = False

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        (x,), whole = inputs, np.dtype(np.uint8)
        return TensorSpec(x.shape, whole), TensorSpec((), x.dtype), TensorSpec((), whole)

    def compute(self, *inputs: Any) -> Any:
        y, step, zero = quantized(inputs[0])
        return y, step, zero.astype(np.uint8)


def quantized(x: Array) -> tuple[Array, Any, Any]:
    """Numbers and 0 spread over the integers from 0 to 255, the step between these, and what 0 has become."""
    module = narrow() if x.dtype == np.float32 and x.size and is_plain(x) else None
    # NaN is passed over, and the least number then, as in compiled code.
    ends = module.limits(x.reshape(-1)) if module else [f.reduce(x, None, initial=0) for f in (np.fmin, np.fmax)]
    low, high = map(x.dtype.type, ends)
    with np.errstate(all="ignore"):
        step = (high - low) / x.dtype.type(255) or x.dtype.type(1)
        zero = np.rint(-low / step)
        if module is None:
            return np.fmin(np.fmax(np.rint(x / step) + zero, 0), 255).astype(np.uint8), step, zero
    y = np.empty(x.shape, np.uint8)
    module.to_uint8(x.reshape(-1), y.reshape(-1), step, zero)
    return y, step, zero


def limits(dtype: np.dtype[Any]) -> Any:
    """The least and the greatest number of a dtype, and what else `numpy.finfo` or `numpy.iinfo` says."""
    is_floating = dtype.name in FLOATS or dtype.kind == "f"
    described: Any = ml_dtypes.finfo if is_floating else ml_dtypes.iinfo
    return described(dtype)


def named(name: str) -> np.dtype[Any]:
    """The dtype of a name."""
    return np.dtype(getattr(ml_dtypes, name, name))


def _power_of_two(x: Array, saturate: bool, rounding: str) -> Array:
    """The exponents of numbers, as `float8_e8m0fnu`; of what is not finite NaN."""
    bits = x.astype(np.float32).view(np.uint32)
    exponent = ((bits >> 23) & 0xFF).astype(np.uint16)
    rest = bits & 0x7FFFFF
    finite = exponent != 0xFF
    if rounding == "up":
        more = rest > 0
    elif rounding == "nearest":
        more = (rest > 0x400000) | ((rest == 0x400000) & (exponent > 0))
    else:
        more = np.zeros(x.shape, bool)
    more = more & finite & ((exponent < 0xFE) | (not saturate))
    found: Array = (exponent + more).astype(np.uint8).view(named("float8_e8m0fnu"))
    return found


@savable
@dataclass(frozen=True)
class BitCast(Operation):
    """The bits of numbers as numbers of another dtype of as many bits."""

    differentiable = False

    dtype: str

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        (x,), to = inputs, named(self.dtype)
        if x.dtype.itemsize != to.itemsize:
            raise DTypeError(f"BitCast: x must have the size of {to}, got {x}")
        return (TensorSpec(x.shape, to),)

    def compute(self, *inputs: Any) -> Any:
        return np.ascontiguousarray(inputs[0]).view(named(self.dtype)).reshape(inputs[0].shape)
