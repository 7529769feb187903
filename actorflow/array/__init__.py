"""Lazy arrays: array code that looks sequential, computed in parallel, in one pass where possible, within a budget.

The package is a namespace of the Python Array API standard, 2024.12, with its extensions `linalg` and `fft`.
"""

from math import e, inf, nan, pi

from actorflow.array import fft, linalg
from actorflow.array.arrays import Array
from actorflow.array.creation import (
    arange,
    asarray,
    empty,
    empty_like,
    eye,
    from_dlpack,
    from_numpy,
    full,
    full_like,
    linspace,
    meshgrid,
    ones,
    ones_like,
    randb,
    randn,
    tril,
    triu,
    zeros,
    zeros_like,
)
from actorflow.array.elementwise import *  # noqa: F403  the standard's elementwise functions, listed there
from actorflow.array.elementwise import __all__ as _elementwise
from actorflow.array.indexing import take, take_along_axis
from actorflow.array.linear import matmul, matrix_transpose, tensordot, vecdot
from actorflow.array.manipulation import (
    broadcast_arrays,
    broadcast_to,
    concat,
    expand_dims,
    flip,
    moveaxis,
    permute_dims,
    repeat,
    reshape,
    roll,
    squeeze,
    stack,
    tile,
    unstack,
)
from actorflow.array.session import Session, current, session
from actorflow.array.sets import nonzero, unique_all, unique_counts, unique_inverse, unique_values
from actorflow.array.statistical import (
    all,
    any,
    argmax,
    argmin,
    argsort,
    count_nonzero,
    cumulative_prod,
    cumulative_sum,
    diff,
    max,
    mean,
    min,
    prod,
    searchsorted,
    sort,
    std,
    sum,
    var,
)
from actorflow.array.types import *  # noqa: F403  dtypes and what is asked of them, listed there
from actorflow.array.types import __all__ as _types

__array_api_version__ = "2024.12"
API_VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12")
newaxis = None


def wait_for_all() -> None:
    """Compute all that was recorded in the current session and that the program can still ask for.

    What fails is reported where its value is asked for.
    """
    current().flush(forced=True)


__all__ = [
    "API_VERSIONS",
    "Array",
    "Session",
    "__array_api_version__",
    "all",
    "any",
    "arange",
    "argmax",
    "argmin",
    "argsort",
    "asarray",
    "broadcast_arrays",
    "broadcast_to",
    "concat",
    "count_nonzero",
    "cumulative_prod",
    "cumulative_sum",
    "current",
    "diff",
    "e",
    "empty",
    "empty_like",
    "expand_dims",
    "eye",
    "fft",
    "flip",
    "from_dlpack",
    "from_numpy",
    "full",
    "full_like",
    "inf",
    "linalg",
    "linspace",
    "matmul",
    "matrix_transpose",
    "max",
    "mean",
    "meshgrid",
    "min",
    "moveaxis",
    "nan",
    "newaxis",
    "nonzero",
    "ones",
    "ones_like",
    "permute_dims",
    "pi",
    "prod",
    "randb",
    "randn",
    "repeat",
    "reshape",
    "roll",
    "searchsorted",
    "session",
    "sort",
    "squeeze",
    "stack",
    "std",
    "sum",
    "take",
    "take_along_axis",
    "tensordot",
    "tile",
    "tril",
    "triu",
    "unique_all",
    "unique_counts",
    "unique_inverse",
    "unique_values",
    "unstack",
    "var",
    "vecdot",
    "wait_for_all",
    "zeros",
    "zeros_like",
    *_elementwise,
    *_types,
]
