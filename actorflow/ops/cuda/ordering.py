"""Kernels of `actorflow.ops.ordering` and of choices by scores.

CuPy's functions, which take memory of their own, or wait for the stream.
"""

from __future__ import annotations

import cupy
import numpy as np

from actorflow.ops.cuda.launch import FLOATS, NUMBERS, REALS, Array, kernel
from actorflow.ops.nn.sampling import Sample
from actorflow.ops.operation import wide_dtype
from actorflow.ops.ordering import ArgSort, CumProd, CumSum, Sort


@kernel(CumSum, dtypes=NUMBERS, captures=False)
@kernel(CumProd, dtypes=NUMBERS, captures=False)
def _scan(operation: CumSum | CumProd, inputs: list[Array], outputs: list[Array]) -> None:
    x, y = operation.lines(*inputs, *outputs)
    dtype = wide_dtype(y.dtype) if y.dtype.kind == "f" else y.dtype
    if operation.exclusive:
        y[:1].fill(operation.ufunc.identity)
        x, y = x[:-1], y[1:]
    if y.size:
        scan = cupy.cumsum if operation.ufunc is np.add else cupy.cumprod
        cupy.copyto(y, scan(x, axis=0, dtype=dtype), casting="unsafe")


@kernel(Sort, dtypes=REALS, captures=False)
def _sort(operation: Sort, inputs: list[Array], outputs: list[Array]) -> None:
    x, y = operation.lines(*inputs, *outputs)
    cupy.copyto(y, cupy.sort(x, axis=0, kind="stable"))


@kernel(ArgSort, dtypes=REALS, captures=False)
def _argsort(operation: ArgSort, inputs: list[Array], outputs: list[Array]) -> None:
    x, y = operation.lines(*inputs, *outputs)
    cupy.copyto(y, cupy.argsort(x, axis=0, kind="stable"))
    if operation.reverse:
        cupy.subtract(y.dtype.type(x.shape[0] - 1), y, out=y)


@kernel(Sample, dtypes=FLOATS, captures=False)
def _sample(operation: Sample, inputs: list[Array], outputs: list[Array]) -> None:
    cupy.copyto(outputs[0], operation.compute(*inputs))
