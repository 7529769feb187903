"""Kernels of `actorflow.ops.fills`, with the random bits of the CPU's."""

from __future__ import annotations

from typing import Any

import numpy as np

from actorflow.ops.cuda.launch import ANYTHING, FLOATS, REALS, Array, kernel, launch_flat
from actorflow.ops.fills import Bernoulli, Fill, Gaussian, Uniform
from actorflow.ops.operation import wide_dtype


@kernel(Fill, dtypes=ANYTHING)
def _fill(operation: Fill, inputs: list[Array], outputs: list[Array]) -> None:
    outputs[0].fill(operation.value)


_WORD = (1 << 64) - 1


def _launch(function: str, seed: int, frame: int, y: Array, per_block: int, parameters: tuple[Any, ...]) -> None:
    words = (np.uint64(frame), np.uint64(seed & _WORD), np.uint64(seed >> 64))
    groups = -(-y.size // per_block)
    launch_flat("fills", function, groups, (y, groups, y.size, *words, *parameters), y.dtype)


def _per_block(y: Array) -> int:
    return 4 if y.dtype == np.float64 else 8


@kernel(Uniform, dtypes=FLOATS, random=True)
def _uniform(operation: Uniform, inputs: list[Array], outputs: list[Array], frame: int) -> None:
    (y,), wide = outputs, wide_dtype(outputs[0].dtype).type
    bounds = (wide(operation.low), wide(operation.high - operation.low))
    _launch("uniform", operation.seed, frame, y, _per_block(y), bounds)


@kernel(Bernoulli, dtypes=("bool", *REALS), random=True)
def _bernoulli(operation: Bernoulli, inputs: list[Array], outputs: list[Array], frame: int) -> None:
    y = outputs[0].view(np.uint8) if outputs[0].dtype == np.bool_ else outputs[0]
    _launch("bernoulli", operation.seed, frame, y, 8, (np.float32(operation.probability),))


@kernel(Gaussian, dtypes=FLOATS, random=True)
def _gaussian(operation: Gaussian, inputs: list[Array], outputs: list[Array], frame: int) -> None:
    (y,), wide = outputs, wide_dtype(outputs[0].dtype).type
    _launch("gaussian", operation.seed, frame, y, _per_block(y), (wide(operation.mean), wide(operation.std)))
