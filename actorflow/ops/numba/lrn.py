"""Local response normalization in one pass, with the usual power, which takes square roots alone."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from actorflow.ops.cpu.buffers import Array
from actorflow.ops.cpu.lrn import MOST_SHIFTS
from actorflow.ops.nn.lrn import LRN, ChannelWindowSum, LRNDown
from actorflow.ops.numba.flat import call
from actorflow.ops.numba.kernels import are_plain, kernel
from actorflow.ops.numba.machine import Function
from actorflow.ops.numba.routine import Routine

#: The power of which this is the inverse.
_USUAL = 0.75
_INVERSE = ("s = sqrt(scale[i])", "p = one / (s * sqrt(s))")


def _shifts(source: str, to: str, reach: tuple[int, int]) -> list[str]:
    """Lines that add what is beside each channel of a row to it, nearest to the first one first."""
    before, after = reach
    lines = []
    for shift in [n for n in range(-before, after + 1) if n]:
        lines.append(f"for c in range({max(0, -shift)}, width - {max(0, shift)}):")
        lines.append(f"    {to.format(i='row + c')} += {source.format(i=f'row + c + {shift}')}")
    return lines


def _rows(name: str, dtype: str, arrays: str, numbers: str, lines: Iterable[str]) -> Routine:
    text = [
        f"def {name}({arrays}, {numbers}, width, start, stop):",
        f"    one = np.{dtype}(1)",
        "    for number in range(start, stop):",
        "        row = number * width",
        *[f"        {line}" for line in lines],
    ]
    types = [*[f"{dtype}*"] * (arrays.count(",") + 1), *[dtype] * (numbers.count(",") + 1), *["intp"] * 3]
    return Routine("\n".join(text), name, types)


@lru_cache(maxsize=16)
def _forward(dtype: str, reach: tuple[int, int]) -> Routine:
    lines = [
        "for c in range(width):",
        "    scale[row + c] = x[row + c] * x[row + c]",
        *_shifts("x[{i}] * x[{i}]", "scale[{i}]", reach),
        "for i in range(row, row + width):",
        "    scale[i] = scale[i] * factor + k",
        *[f"    {line}" for line in _INVERSE],
        "    y[i] = p * x[i]",
    ]
    return _rows("lrn", dtype, "x, y, scale", "factor, k", lines)


@lru_cache(maxsize=16)
def _backward(dtype: str, reach: tuple[int, int]) -> Routine:
    lines = [
        "for c in range(width):",
        "    r = g[row + c] * y[row + c] / scale[row + c]",
        "    ratio[c] = r",
        "    seen[c] = r",
        *[line.replace("row + ", "") for line in _shifts("ratio[{i}]", "seen[{i}]", reach)],
        "for c in range(width):",
        "    i = row + c",
        *[f"    {line}" for line in _INVERSE],
        "    dx[i] = p * g[i] + seen[c] * x[i] * factor",
    ]
    return _rows("lrn_down", dtype, "g, x, y, scale, dx, ratio, seen", "factor", lines)


@kernel(LRN)
def _lrn(operation: LRN, inputs: list[Array], outputs: list[Array]) -> bool:
    arrays = [*inputs, *outputs]
    reach = ChannelWindowSum(operation.size).reach(inputs[0].shape[-1])
    if operation.beta != _USUAL or sum(reach) > MOST_SHIFTS or not are_plain(arrays, inputs[0].dtype):
        return False
    function = _forward(inputs[0].dtype.name, reach).function
    return function is not None and _call(function, arrays, operation.alpha / operation.size, operation.k)


@kernel(LRNDown)
def _lrn_down(operation: LRNDown, inputs: list[Array], outputs: list[Array]) -> bool:
    arrays = [*inputs, *outputs]
    reach = ChannelWindowSum(operation.size, transposed=True).reach(inputs[0].shape[-1])
    if operation.beta != _USUAL or sum(reach) > MOST_SHIFTS or not are_plain(arrays, inputs[0].dtype):
        return False
    function = _backward(inputs[0].dtype.name, reach).function
    factor = -2 * operation.alpha * operation.beta / operation.size
    return function is not None and _call(function, arrays, factor, spare=2)


def _call(function: Function, arrays: list[Array], *numbers: float, spare: int = 0) -> bool:
    width = arrays[0].shape[-1]
    if arrays[0].size:
        call(function, arrays, *numbers, rows=arrays[0].size // width, width=width, spare=spare)
    return True
