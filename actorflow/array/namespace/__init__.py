"""The functions of the array API standard, by subject; this package is the namespace that `actorflow.array` shows."""

from math import e, inf, nan, pi

# In rows, which the formatter would give a line for each name.
# fmt: off
# isort: off
from actorflow.array import fft, linalg
from actorflow.array.linalg import matmul, matrix_transpose, tensordot, vecdot
from actorflow.array.namespace.creation import (
    arange, array, asarray, empty, empty_like, eye, from_dlpack, from_numpy, full, full_like, linspace, meshgrid, ones,
    ones_like, randb, randn, zeros, zeros_like,
)
from actorflow.array.namespace.functions import (
    add, broadcast_arrays, broadcast_shapes, clip, cumulative_prod, cumulative_sum, diff, nonzero, permute_dims,
    reshape, std, take, take_along_axis, unique_all, unique_counts, unique_inverse, unique_values, var,
)
from actorflow.array.namespace.types import (
    __array_namespace_info__, astype, bool, can_cast, complex64, complex128, finfo, float32, float64, iinfo, int8,
    int16, int32, int64, isdtype, result_type, uint8, uint16, uint32, uint64,
)
from actorflow.array.record.placement import at
from actorflow.ops.elementwise import absolute as abs
from actorflow.ops.elementwise import (
    acos, acosh, asin, asinh, atan, atan2, atanh, bitwise_and, bitwise_invert, bitwise_left_shift, bitwise_or,
    bitwise_right_shift, bitwise_xor, ceil, conj, copysign, cos, cosh, divide, equal, erf, exp, expm1, floor,
    floor_divide, fmod, greater, greater_equal, hypot, imag, isfinite, isinf, isnan, less, less_equal, log, log10,
    log1p, log2, logaddexp, logical_and, logical_not, logical_or, logical_xor, maximum, minimum, multiply, negative,
    nextafter, not_equal, positive, real, reciprocal, remainder, round, sign, signbit, sin, sinh, sqrt, square,
    subtract, tan, tanh, trunc, trunc_divide, where,
)
from actorflow.ops.elementwise import power as pow
from actorflow.ops.indexing import flip, repeat, tril, triu
from actorflow.ops.ordering import argsort, isin, searchsorted, sort
from actorflow.ops.reductions import all, any, argmax, argmin, count_nonzero, max, mean, min, prod, sum
from actorflow.ops.shaping import (
    broadcast_to, concat, expand_dims, moveaxis, roll, squeeze, stack, tile, unstack,
)
# isort: on

__array_api_version__ = "2024.12"
API_VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12", "2025.12")
newaxis = None

__all__ = [
    "API_VERSIONS", "__array_api_version__", "__array_namespace_info__", "abs", "acos", "acosh", "add", "all", "any",
    "arange", "argmax", "argmin", "argsort", "array", "asarray", "asin", "asinh", "astype", "at", "atan", "atan2",
    "atanh", "bitwise_and", "bitwise_invert", "bitwise_left_shift", "bitwise_or", "bitwise_right_shift",
    "bitwise_xor", "bool", "broadcast_arrays", "broadcast_shapes", "broadcast_to", "can_cast", "ceil", "clip",
    "complex128", "complex64", "concat", "conj", "copysign", "cos", "cosh", "count_nonzero", "cumulative_prod",
    "cumulative_sum", "diff", "divide", "e", "empty", "empty_like", "equal", "erf", "exp", "expand_dims", "expm1",
    "eye", "fft", "finfo", "flip", "float32", "float64", "floor", "floor_divide", "fmod", "from_dlpack", "from_numpy",
    "full", "full_like", "greater", "greater_equal", "hypot", "iinfo", "imag", "inf", "int16", "int32", "int64",
    "int8", "isdtype", "isfinite", "isin", "isinf", "isnan", "less", "less_equal", "linalg", "linspace", "log",
    "log10", "log1p", "log2", "logaddexp", "logical_and", "logical_not", "logical_or", "logical_xor", "matmul",
    "matrix_transpose", "max", "maximum", "mean", "meshgrid", "min", "minimum", "moveaxis", "multiply", "nan",
    "negative", "newaxis", "nextafter", "nonzero", "not_equal", "ones", "ones_like", "permute_dims", "pi", "positive",
    "pow", "prod", "randb", "randn", "real", "reciprocal", "remainder", "repeat", "reshape", "result_type", "roll",
    "round", "searchsorted", "sign", "signbit", "sin", "sinh", "sort", "sqrt", "square", "squeeze", "stack", "std",
    "subtract", "sum", "take", "take_along_axis", "tan", "tanh", "tensordot", "tile", "tril", "triu", "trunc",
    "trunc_divide", "uint16", "uint32", "uint64", "uint8", "unique_all", "unique_counts", "unique_inverse",
    "unique_values", "unstack", "var", "vecdot", "where", "zeros", "zeros_like",
]
