"""Initializers: first values of variables.

Each is called as ``init(spec, name)`` and gives an array. Random ones draw from a stream that the seed and the
variable's name choose, so one initializer gives every variable its own values, and the same values in every process.
"""

from __future__ import annotations

import math
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

from actorflow.errors import GraphError
from actorflow.node import Initializer
from actorflow.spec import TensorSpec

__all__ = ["constant", "gaussian", "he", "uniform", "xavier"]


def constant(value: float = 0.0) -> Initializer:
    """The same value everywhere. Source: Purine2 ``Constant``."""

    def init(spec: TensorSpec, _name: str) -> npt.NDArray[Any]:
        return np.full(spec.shape, value, spec.dtype)

    return init


def gaussian(std: float = 0.01, mean: float = 0.0, seed: int | None = None) -> Initializer:
    """Normal distribution.

    Args:
        std: Standard deviation, not negative.
        mean: Mean.
        seed: Not negative; None leaves the choice of the stream to the variable's name alone.
    Raises:
        GraphError: if ``std`` or ``seed`` is negative.
    Source: Purine2 ``Gaussian``.
    """
    _not_negative("gaussian", std=std, seed=seed)

    def init(spec: TensorSpec, name: str) -> npt.NDArray[Any]:
        return (mean + std * _stream(seed, name).standard_normal(spec.shape)).astype(spec.dtype)

    return init


def uniform(low: float = -0.05, high: float = 0.05, seed: int | None = None) -> Initializer:
    """Uniform distribution over ``[low, high)``.

    Args:
        low: Least value.
        high: Bound that is not reached, not less than ``low``.
        seed: As in `gaussian`.
    Raises:
        GraphError: if ``high`` is less than ``low`` or ``seed`` is negative.
    Source: Purine2 ``Uniform``.
    """
    _not_negative("uniform", seed=seed)
    if high < low:
        raise GraphError(f"uniform: high must be at least low, {low}, got {high}")

    def init(spec: TensorSpec, name: str) -> npt.NDArray[Any]:
        return _stream(seed, name).uniform(low, high, spec.shape).astype(spec.dtype)

    return init


def xavier(seed: int | None = None) -> Initializer:
    """Uniform with variance ``2 / (fan_in + fan_out)``, for sigmoid, tanh and linear layers.

    Weights have shape (out, in), or (kernel_height, kernel_width, in, out); fans count the kernel's pixels.

    Args:
        seed: As in `gaussian`.
    Source: Glorot and Bengio, Understanding the difficulty of training deep feedforward neural networks, 2010.
    """
    _not_negative("xavier", seed=seed)

    def init(spec: TensorSpec, name: str) -> npt.NDArray[Any]:
        bound = math.sqrt(6.0 / max(1, sum(_fans(spec))))
        return _stream(seed, name).uniform(-bound, bound, spec.shape).astype(spec.dtype)

    return init


def he(seed: int | None = None) -> Initializer:
    """Normal with variance ``2 / fan_in``, for layers before a relu.

    Args:
        seed: As in `gaussian`.
    Source: He et al., Delving deep into rectifiers, 2015.
    """
    _not_negative("he", seed=seed)

    def init(spec: TensorSpec, name: str) -> npt.NDArray[Any]:
        std = math.sqrt(2.0 / max(1, _fans(spec)[0]))
        return (std * _stream(seed, name).standard_normal(spec.shape)).astype(spec.dtype)

    return init


def _not_negative(kind: str, **values: float | None) -> None:
    for name, value in values.items():
        if value is not None and value < 0:
            raise GraphError(f"{kind}: {name} must not be negative, got {value}")


def _stream(seed: int | None, name: str) -> np.random.Generator:
    own = zlib.crc32(name.encode())
    return np.random.default_rng(own if seed is None else (seed, own))


def _fans(spec: TensorSpec) -> tuple[int, int]:
    """Inputs that an output element sums over, and outputs that an input element goes to."""
    shape = spec.shape
    if len(shape) == 2:
        return shape[1], shape[0]
    pixels = math.prod(shape[:-2])
    return math.prod(shape[:-1]), pixels * shape[-1] if shape else 1
