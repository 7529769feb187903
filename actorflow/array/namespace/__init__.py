"""The functions of the array API standard, by subject; this package is the namespace that `actorflow.array` shows."""

from math import e, inf, nan, pi
from typing import TYPE_CHECKING

# In rows, which the formatter would give a line for each name.
# fmt: off
# isort: off
from actorflow.array import fft, linalg
from actorflow.ops.elementwise import *  # noqa: F403  each row
from actorflow.array.linalg import matmul, matrix_transpose, tensordot, vecdot
from actorflow.array.namespace.creation import (
    arange, asarray, empty, empty_like, eye, from_dlpack, from_numpy, full, full_like, linspace, meshgrid, ones,
    ones_like, randb, randn, zeros, zeros_like,
)
from actorflow.array.namespace.elementwise import FUNCTIONS, abs, clip, pow  # type: ignore[assignment]
from actorflow.array.namespace.indexing import take, take_along_axis
from actorflow.array.namespace.manipulation import (
    broadcast_arrays, broadcast_shapes, broadcast_to, concat, expand_dims, flip, moveaxis, permute_dims, repeat,
    reshape, roll, squeeze, stack, tile, tril, triu, unstack,
)
from actorflow.array.namespace.statistical import (
    all, any, argmax, argmin, argsort, count_nonzero, cumulative_prod, cumulative_sum, diff, max, mean, min, nonzero,
    prod, sort, std, sum, unique_all, unique_counts, unique_inverse, unique_values, var,
)
from actorflow.array.namespace.types import (
    __array_namespace_info__, astype, bool, can_cast, complex64, complex128, finfo, float32, float64, iinfo, int8,
    int16, int32, int64, isdtype, result_type, uint8, uint16, uint32, uint64,
)
from actorflow.array.record.placement import at
from actorflow.ops.ordering import isin, searchsorted
# isort: on

__array_api_version__ = "2024.12"
API_VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12", "2025.12")
newaxis = None

__all__ = [
    "API_VERSIONS", "__array_api_version__", "__array_namespace_info__", "abs", "all", "any", "arange", "argmax",
    "argmin", "argsort", "asarray", "astype", "at", "bool", "broadcast_arrays", "broadcast_shapes", "broadcast_to",
    "can_cast", "clip", "complex128", "complex64", "concat", "count_nonzero", "cumulative_prod", "cumulative_sum",
    "diff", "e", "empty", "empty_like", "expand_dims", "eye", "fft", "finfo", "flip", "float32", "float64",
    "from_dlpack", "from_numpy", "full", "full_like", "iinfo", "inf", "int16", "int32", "int64", "int8", "isdtype",
    "isin", "linalg", "linspace", "matmul", "matrix_transpose", "max", "mean", "meshgrid", "min", "moveaxis", "nan",
    "newaxis", "nonzero", "ones", "ones_like", "permute_dims", "pi", "pow", "prod", "randb", "randn", "repeat",
    "reshape", "result_type", "roll", "searchsorted", "sort", "squeeze", "stack", "std", "sum", "take",
    "take_along_axis", "tensordot", "tile", "tril", "triu", "uint16", "uint32", "uint64", "uint8", "unique_all",
    "unique_counts", "unique_inverse", "unique_values", "unstack", "var", "vecdot", "zeros", "zeros_like",
]
if not TYPE_CHECKING:  # which takes the functions of graphs for those of arrays: they are called alike
    globals().update(FUNCTIONS)
    __all__ += [name for name in FUNCTIONS if name not in __all__]
