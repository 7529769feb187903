"""Kernels compiled by numba for the CPU, library ``"numba"``; importing this package registers them, and not numba."""

from importlib.util import find_spec

from actorflow.errors import MissingExtraError
from actorflow.ops.numba.machine import address_index

if find_spec("numba") is None or address_index() is None:
    raise MissingExtraError("kernel library 'numba' needs 'numba': pip install 'actorflow[jit]'", name="numba")

from actorflow.ops.numba import (  # noqa: F401  each registers its kernels
    conv,
    dense,
    fused,
    indexing,
    lrn,
    maxima,
    norm,
    pool,
    updates,
)
from actorflow.ops.numba.compile_queue import compile_queue as queue
from actorflow.ops.numba.routine import Routine, compiled
from actorflow.ops.registry import compiles

__all__ = ["Routine", "compiled"]

compiles(queue.settled)
