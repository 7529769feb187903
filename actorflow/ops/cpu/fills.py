"""Kernels of `actorflow.ops.fills`: numpy.random.Philox, of which each element has bits of its own."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from actorflow.devices.team import team
from actorflow.ops.cpu.buffers import BLOCK, Array, scratch
from actorflow.ops.cpu.parallel import MOST_PIECES, element_ns, even_cuts
from actorflow.ops.fills import Bernoulli, Constant, Fill, Gaussian, Uniform
from actorflow.ops.operation import wide_dtype
from actorflow.ops.registry import kernel

#: A random number takes as long as reading or writing so many.
_PASSES = 4


@kernel(Constant)
def _constant(operation: Constant, inputs: list[Array], outputs: list[Array]) -> None:
    np.copyto(outputs[0], operation.value)


@kernel(Fill)
def _fill(operation: Fill, inputs: list[Array], outputs: list[Array]) -> None:
    outputs[0].fill(operation.value)


def stream(seed: int, frame: int, words: int = 0) -> np.random.Generator:
    """The random stream of a seed and a frame, behind so many 64-bit words, a multiple of 4.

    The frame has the counter's upper half, so streams never meet.
    """
    return np.random.Generator(np.random.Philox(key=seed, counter=[words // 4, 0, frame, 0]))


def spread_uniform(seed: int, frame: int, size: int, dtype: np.dtype[Any], use: Callable[[slice, Array], None]) -> None:
    """Call ``use(places, numbers)`` with the stream's numbers from 0 to 1, block by block, on idle cores, too."""

    def draw(cut: slice) -> None:
        random = stream(seed, frame, cut.start * dtype.itemsize // 8)
        for start in range(cut.start, cut.stop, BLOCK):
            places = slice(start, min(start + BLOCK, cut.stop))
            numbers = scratch("drawn", (places.stop - start,), dtype)
            use(places, random.random(dtype=dtype.type, out=numbers))

    work_ns = element_ns(_PASSES * size)
    team.spread(even_cuts(size, min(MOST_PIECES, size // BLOCK), BLOCK), draw, work_ns)


@kernel(Uniform, random=True)
def _uniform(operation: Uniform, inputs: list[Array], outputs: list[Array], frame: int) -> None:
    flat = outputs[0].reshape(-1)

    def use(places: slice, drawn: Array) -> None:
        np.multiply(drawn, operation.high - operation.low, out=drawn)
        np.add(drawn, operation.low, out=drawn)
        np.copyto(flat[places], drawn, casting="unsafe")

    spread_uniform(operation.seed, frame, flat.size, wide_dtype(flat.dtype), use)


@kernel(Bernoulli, random=True)
def _bernoulli(operation: Bernoulli, inputs: list[Array], outputs: list[Array], frame: int) -> None:
    flat, probability = outputs[0].reshape(-1), np.float32(operation.probability)

    def use(places: slice, drawn: Array) -> None:
        np.copyto(flat[places], drawn < probability, casting="unsafe")

    spread_uniform(operation.seed, frame, flat.size, np.dtype(np.float32), use)


@kernel(Gaussian, random=True)
def _gaussian(operation: Gaussian, inputs: list[Array], outputs: list[Array], frame: int) -> None:
    bits, flat = stream(operation.seed, frame).bit_generator, outputs[0].reshape(-1)
    is_double = flat.dtype == np.float64
    for start in range(0, flat.size, BLOCK):
        part = flat[start : start + BLOCK]
        words = bits.random_raw(part.size + part.size % 2 if is_double else -(-part.size // 4) * 2)
        drawn = _normal(words >> np.uint64(11), 2.0**-53) if is_double else _normal(words.view(np.uint32), 2.0**-32)
        np.multiply(drawn, operation.std, out=drawn)
        np.add(drawn, operation.mean, out=drawn)
        np.copyto(part, drawn.reshape(-1)[: part.size], casting="unsafe")


def _normal(words: Array, unit: float) -> Array:
    """Box and Muller's transform: two numbers from two words, (pairs, 2)."""
    pairs: Array = words.astype(np.float64 if words.dtype == np.uint64 else np.float32).reshape(-1, 2)
    radius = np.sqrt(-2 * np.log((pairs[:, 0] + 1) * unit))
    angle = pairs[:, 1] * (2 * math.pi * unit)
    drawn = np.empty_like(pairs)
    np.multiply(radius, np.cos(angle), out=drawn[:, 0])
    np.multiply(radius, np.sin(angle), out=drawn[:, 1])
    return drawn
