"""Initializers: first values of variables.

Each is called as ``init(spec, name)`` and gives an array. Random ones draw from a counter-based stream that the seed
and the variable's name choose, so one initializer gives every variable its own values, and the same values in every
process, whatever else is made before or at the same time.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from actorflow.errors import DTypeError, GraphError, real, whole
from actorflow.graph.nodes import Initializer
from actorflow.ops.fills import fans
from actorflow.spec import TensorSpec

_FANS: dict[str, Callable[[int, int], float]] = {
    "in": lambda fan_in, _: fan_in,
    "out": lambda _, fan_out: fan_out,
    "average": lambda fan_in, fan_out: (fan_in + fan_out) / 2,
}


def constant(value: float = 0.0) -> Initializer:
    """The same value everywhere. Source: Purine2 ``Constant``.

    Example:
        >>> graph = af.Graph("g")
        >>> graph.variable("w", [2], init=af.nn.init.constant(0.5)).value
        array([0.5, 0.5], dtype=float32)
    """

    def init(spec: TensorSpec, name: str) -> npt.NDArray[Any]:
        if spec.dtype.kind in "biu" and not float(value).is_integer():
            raise _rounds("constant", name, spec)
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

    Example:
        >>> graph = af.Graph("g")
        >>> w = graph.variable("w", [100, 100], init=af.nn.init.gaussian(std=2.0, seed=0))
        >>> w.value.std().round(1).item()
        2.0
    """
    std, mean, seed = real("gaussian: std", std, 0), real("gaussian: mean", mean), _seed_of("gaussian", seed)

    return _drawn("gaussian", seed, lambda stream, spec: mean + std * stream.standard_normal(spec.shape))


def uniform(low: float = -0.05, high: float = 0.05, seed: int | None = None) -> Initializer:
    """Uniform distribution over ``[low, high)``.

    Args:
        low: Least value.
        high: Bound that is not reached, not less than ``low``.
        seed: As in `gaussian`.
    Raises:
        GraphError: if ``high`` is less than ``low`` or ``seed`` is negative.
    Source: Purine2 ``Uniform``.

    Example:
        >>> graph = af.Graph("g")
        >>> w = graph.variable("w", [1000], init=af.nn.init.uniform(-1, 1, seed=0))
        >>> bool((w.value >= -1).all() and (w.value < 1).all())
        True
    """
    low, seed = real("uniform: low", low), _seed_of("uniform", seed)
    high = real("uniform: high", high, low)

    return _drawn("uniform", seed, lambda stream, spec: stream.uniform(low, high, spec.shape))


def bernoulli(probability: float = 0.5, seed: int | None = None) -> Initializer:
    """1 with a probability, else 0.

    Args:
        probability: From 0 to 1.
        seed: As in `gaussian`.
    Raises:
        GraphError: if ``probability`` is out of range or ``seed`` is negative.
    Source: Purine2 ``Bernoulli``.

    Example:
        >>> graph = af.Graph("g")
        >>> mask = graph.variable("mask", [1000], "bool", init=af.nn.init.bernoulli(0.25, seed=0))
        >>> mask.value.mean().round(1).item()
        0.3
    """
    probability, seed = real("bernoulli: probability", probability, 0, 1), _seed_of("bernoulli", seed)

    def init(spec: TensorSpec, name: str) -> npt.NDArray[Any]:
        return (_stream(seed, name).random(spec.shape) < probability).astype(spec.dtype)

    return init


def xavier(
    seed: int | None = None, *, fan: str = "average", distribution: str = "uniform", gain: float = 1.0
) -> Initializer:
    """Variance ``gain ** 2 / fan``, for sigmoid, tanh and linear layers.

    Weights have shape (out, in), or (*kernel, in, out), as for convolutions of any number of axes; fans count the
    kernel's pixels.

    Args:
        seed: As in `gaussian`.
        fan: The divisor: "in", "out", or the "average" of both.
        distribution: "uniform" or "normal".
        gain: Factor on the standard deviation, not negative.
    Raises:
        GraphError: if an argument is none of these.
    Source: Glorot and Bengio, Understanding the difficulty of training deep feedforward neural networks, 2010.

    Example:
        >>> layer = af.nn.InnerProduct(100, activation="tanh", weight_init=af.nn.init.xavier(seed=0))
        >>> graph = af.Graph("g")
        >>> _ = layer(graph.blob("x", ["batch", 300]))
        >>> round(layer.variables[0].value.var().item(), 4)  # 1 / ((300 + 100) / 2)
        0.005
    """
    return _scaled("xavier", gain, fan, distribution, seed)


def he(seed: int | None = None, *, fan: str = "in", distribution: str = "normal", slope: float = 0.0) -> Initializer:
    """Variance ``2 / ((1 + slope ** 2) * fan)``, for layers before a relu. Fans are as in `xavier`.

    Args:
        seed: As in `gaussian`.
        fan: The divisor: "in", "out", or the "average" of both.
        distribution: "uniform" or "normal".
        slope: Of a leaky relu for negative values; 0 for a relu.
    Raises:
        GraphError: if an argument is none of these.
    Source: He et al., Delving deep into rectifiers, 2015.

    Example:
        >>> layer = af.nn.Conv(64, 3, activation="relu", weight_init=af.nn.init.he(seed=0))
        >>> graph = af.Graph("g")
        >>> _ = layer(graph.blob("x", ["batch", 8, 8, 16]))
        >>> round(layer.variables[0].value.var().item(), 3)  # 2 / (3 * 3 * 16)
        0.014
    """
    return _scaled("he", math.sqrt(2.0 / (1.0 + real("he: slope", slope) ** 2)), fan, distribution, seed)


def _scaled(kind: str, gain: float, fan: str, distribution: str, seed: int | None) -> Initializer:
    gain, seed = real(f"{kind}: gain", gain, 0), _seed_of(kind, seed)
    for name, value, known in (("fan", fan, _FANS), ("distribution", distribution, ("uniform", "normal"))):
        if value not in known:
            raise GraphError(f"{kind}: {name} must be one of {', '.join(known)}, got {value!r}")

    def draw(stream: np.random.Generator, spec: TensorSpec) -> npt.NDArray[Any]:
        std = gain / math.sqrt(max(1.0, _FANS[fan](*fans(spec.shape))))
        if distribution == "normal":
            return std * stream.standard_normal(spec.shape)
        bound = math.sqrt(3.0) * std
        return stream.uniform(-bound, bound, spec.shape)

    return _drawn(kind, seed, draw)


def _drawn(
    kind: str, seed: int | None, draw: Callable[[np.random.Generator, TensorSpec], npt.NDArray[Any]]
) -> Initializer:
    """Random numbers; raises DTypeError where they would be rounded to integers, mostly to 0."""

    def init(spec: TensorSpec, name: str) -> npt.NDArray[Any]:
        if spec.dtype.kind in "biu":
            raise _rounds(kind, name, spec)
        return draw(_stream(seed, name), spec).astype(spec.dtype)

    return init


def _rounds(kind: str, name: str, spec: TensorSpec) -> DTypeError:
    return DTypeError(f"{kind}: it gives variable {name!r} fractions, which would be rounded to {spec.dtype}")


def _seed_of(kind: str, seed: int | None) -> int | None:
    return None if seed is None else whole(f"{kind}: seed", seed, 0)


def _stream(seed: int | None, name: str) -> np.random.Generator:
    chosen = f"{'' if seed is None else seed}:{name}".encode()
    key = int.from_bytes(hashlib.blake2b(chosen, digest_size=16).digest(), "little")
    return np.random.Generator(np.random.Philox(key=key))
