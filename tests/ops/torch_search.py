"""Calls of torch's kernels that may end the process.

Run as ``python -m tests.ops.torch_search SEED START STOP [FAULT]``.

Says what it is about to compute before each call, in a line of JSON, so that whoever started it knows what it died of.
Arrays lie against pages that nobody may touch; what torch allocates is for the allocator's own checks (see `start`).
"""

from __future__ import annotations

import ctypes
import json
import math
import mmap
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from actorflow import ops
from actorflow.ops import find_kernel, load_library
from actorflow.ops.nn.conv import ConvDown, ConvWeight
from actorflow.ops.nn.pool import AveragePoolDown, MaxPoolDown
from actorflow.spec import TensorSpec

ROOT = Path(__file__).parents[2]
#: Products in a case, at most: what matters are shapes, not sizes.
MOST_PRODUCTS = 2_000_000
#: What a kernel may be made to do wrong, to see that it is found.
FAULTS: dict[str, Callable[[list[np.ndarray], np.ndarray], object]] = {
    "reads": lambda inputs, output: ctypes.string_at(inputs[0].ctypes.data - 8, inputs[0].nbytes + 16 + 8),
    "writes": lambda inputs, output: ctypes.memset(output.ctypes.data - 8, 0, output.nbytes + 16 + 8),
    "exits": lambda inputs, output: os._exit(0),
    "is wrong": lambda inputs, output: output.fill(7.25),
}


class Case(NamedTuple):
    """An operation on arrays of some shapes, as they lie in memory."""

    operation: ops.Operation
    shapes: list[tuple[int, ...]]
    dtype: str
    layout: str

    def __str__(self) -> str:
        return f"{self.operation} of {self.dtype} arrays of shapes {self.shapes}, layout {self.layout!r}"


def draw(seed: int, number: int) -> Iterator[Case]:
    """The operations of a case: a convolution or a pooling, and its gradients."""
    rng = random.Random(f"{seed} {number}")
    rank = rng.choice((1, 2, 2, 3, 3, 3))
    wide = rng.choice((0, rng.randrange(rank)))  # along one axis everything may be large
    kernel = tuple(rng.randint(1, 8 if axis == wide else 3) for axis in range(rank))
    stride = tuple(rng.randint(1, 4 if axis == wide else 2) for axis in range(rank))
    pad = tuple(rng.randint(0, k if axis == wide else min(k, 2)) for axis, k in enumerate(kernel))
    dilation = tuple(rng.randint(1, 2) for _ in range(rank)) if rng.random() < 0.3 else (1,) * rank
    least = (d * (k - 1) + 1 - 2 * p for k, d, p in zip(kernel, dilation, pad, strict=True))
    size = tuple(max(1, n) + rng.randint(0, 6) for n in least)
    batch, groups = rng.randint(1, 3), rng.choice((1, 1, 2, 3, 16))
    channels = [rng.choice((1, 2, 3, 4, 8, 16, 17)) for _ in range(2)]
    dtype, layout = rng.choice(("float32", "float32", "float64")), rng.choice(("C", "C", "F", "strided", "reversed"))
    x = batch, *size, channels[0] * groups
    if rng.random() < 0.2 and all(p < k for p, k in zip(pad, kernel, strict=True)):
        ceil, count_pad = rng.random() < 0.5, rng.random() < 0.5
        for forward, down, least_inputs in (
            (ops.MaxPool(kernel, stride, pad, ceil), MaxPoolDown(kernel, stride, pad, ceil), 3),
            (
                ops.AveragePool(kernel, stride, pad, ceil, count_pad),
                AveragePoolDown(kernel, stride, pad, ceil, count_pad, size=size),
                1,
            ),
        ):
            y = (batch, *forward.windows(size).out, x[-1])
            yield Case(forward, [x], dtype, layout)
            yield Case(down, [y, x, y][:least_inputs], dtype, layout)
        return
    how = stride, pad, dilation, groups
    weight = *kernel, channels[0], channels[1] * groups
    g = batch, *ops.Conv(*how).windows(size, kernel).out, weight[-1]
    if math.prod(g) * math.prod(weight[:-1]) <= MOST_PRODUCTS:
        yield Case(ops.Conv(*how), [x, weight], dtype, layout)
        yield Case(ConvDown(*how, size=size), [g, weight], dtype, layout)
        yield Case(ConvWeight(*how, kernel=kernel), [g, x], dtype, layout)


class Fence:
    """Memory whose end or beginning is that of what may be touched."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._maps: list[mmap.mmap] = []

    def lay(self, array: np.ndarray, layout: str, at_end: bool) -> np.ndarray:
        """A copy that lies as is said."""
        flip = (slice(None, None, -1),) * 2
        if layout == "F":
            return self._place(array.T, at_end).T
        if layout == "strided":
            wide = self._place(np.repeat(array, 2, axis=-1), at_end)
            return wide[..., ::2]
        return self._place(array[flip], at_end)[flip] if layout == "reversed" else self._place(array, at_end)

    def _place(self, array: np.ndarray, at_end: bool) -> np.ndarray:
        page = mmap.PAGESIZE
        inner = -(-array.nbytes // page) * page
        memory = mmap.mmap(-1, inner + 2 * page)
        start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        for guard in (start, start + page + inner):
            if self._libc.mprotect(ctypes.c_void_p(guard), page, 0):
                raise OSError(ctypes.get_errno(), "mprotect")
        at = page + ((inner - array.nbytes) // 16 * 16 if at_end else 0)  # as aligned as allocators do
        placed = np.frombuffer(memory, array.dtype, array.size, at).reshape(array.shape)
        placed[...] = array
        return placed


def inputs_of(case: Case, rng: np.random.Generator) -> list[np.ndarray]:
    if isinstance(case.operation, MaxPoolDown):
        forward = ops.MaxPool(case.operation.kernel, case.operation.stride, case.operation.pad, case.operation.ceil)
        x = rng.standard_normal(case.shapes[1]).astype(case.dtype)
        return [rng.standard_normal(case.shapes[0]).astype(case.dtype), x, computed(forward, "numpy", [x])]
    return [rng.standard_normal(shape).astype(case.dtype) for shape in case.shapes]


def computed(operation: ops.Operation, library: str, inputs: Sequence[np.ndarray], out: Any = None) -> np.ndarray:
    (spec,) = operation.infer(*[TensorSpec(x.shape, x.dtype) for x in inputs])
    out = np.empty(spec.shape, spec.dtype) if out is None else out
    find_kernel(operation, "cpu", spec.dtype, libraries=[library]).function(operation, list(inputs), [out])
    return out


def search(seed: int, start: int, stop: int, fault: str | None) -> None:
    """Compute the cases that torch's kernels are for; say what differs from NumPy's."""
    load_library("cpu", "numpy")
    load_library("cpu", "torch")
    from actorflow.ops.torch import conv

    conv.LEAST_PRODUCTS = conv.LEAST_WINDOWS = 0  # else it does nothing that is as small as this
    for number in range(start, stop):
        for case in draw(seed, number):
            (spec,) = case.operation.infer(*[TensorSpec(shape, np.dtype(case.dtype)) for shape in case.shapes])
            kernel = find_kernel(case.operation, "cpu", spec.dtype, libraries=["torch", "numpy"])
            if kernel.key.library != "torch":
                continue
            fence, at_end = Fence(), number % 2 == 0
            plain = inputs_of(case, np.random.default_rng(number))
            expected = computed(case.operation, "numpy", plain)
            inputs = [fence.lay(x, case.layout, at_end) for x in plain]
            output = fence.lay(np.full(spec.shape, np.nan, spec.dtype), "C", at_end)
            print(json.dumps([number, str(case)]), flush=True)
            if fault is None:
                kernel.function(case.operation, inputs, [output])
            else:
                FAULTS[fault](inputs, output)
            rounding = 2e-4 if case.dtype == "float32" else 1e-10
            is_right = np.allclose(output, expected, rtol=rounding, atol=rounding * max(1, np.abs(expected).max()))
            print(json.dumps([number, "right" if is_right else "wrong"]), flush=True)
    print(json.dumps([stop, "end"]), flush=True)


def start(seed: int, first: int, stop: int, fault: str | None = None, **environment: str) -> list[str]:
    """Search in processes of their own, each from behind what ended the one before; what was found wrong, by case."""
    found = []
    # glibc's allocator looks behind each block that is freed, and fills memory, if it is told to.
    checks = {"GLIBC_TUNABLES": "glibc.malloc.check=3:glibc.malloc.perturb=165"}
    debug = next((path for path in Path("/lib").glob("*/libc_malloc_debug.so.0")), None)
    if debug is not None:
        checks["LD_PRELOAD"] = str(debug)
    while first < stop:
        arguments = [str(each) for each in (seed, first, stop, *([fault] if fault else []))]
        done = subprocess.run(
            [sys.executable, "-m", "tests.ops.torch_search", *arguments],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), **checks, **environment},
            capture_output=True,
            text=True,
        )
        said = [json.loads(line) for line in done.stdout.splitlines()]
        for (_, case), (_, what) in pairwise(said):
            if what == "wrong":
                found.append(f"wrong result: {case}")
        if said and said[-1] == [stop, "end"]:
            assert done.returncode == 0, done.stderr
            return found
        if not said or said[-1][1] in ("right", "wrong"):
            raise AssertionError(f"the search failed with status {done.returncode}:\n{done.stderr}")
        reason = done.stderr.strip().splitlines()[-1:] or [""]
        found.append(f"status {done.returncode}, {reason[0]}: {said[-1][1]}")
        first = said[-1][0] + 1
    return found


if __name__ == "__main__":
    search(*map(int, sys.argv[1:4]), *sys.argv[4:] or [None])
