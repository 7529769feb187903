"""Kernels of `actorflow.ops.fills`: numpy.random.Philox, of which each element has bits of its own."""

from __future__ import annotations

import math

import numpy as np

from actorflow.ops.cpu.buffers import BLOCK, Array, scratch
from actorflow.ops.fills import Bernoulli, Constant, Fill, Gaussian, Uniform
from actorflow.ops.operation import wide_dtype
from actorflow.ops.registry import kernel


@kernel(Constant)
def _constant(operation: Constant, inputs: list[Array], outputs: list[Array]) -> None:
    np.copyto(outputs[0], operation.value)


@kernel(Fill)
def _fill(operation: Fill, inputs: list[Array], outputs: list[Array]) -> None:
    outputs[0].fill(operation.value)


def stream(seed: int, frame: int) -> np.random.Generator:
    """The random stream of a seed and a frame; the frame has the counter's upper half, so streams never meet."""
    return np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, frame, 0]))


@kernel(Uniform, random=True)
def _uniform(operation: Uniform, inputs: list[Array], outputs: list[Array], frame: int) -> None:
    random, flat = stream(operation.seed, frame), outputs[0].reshape(-1)
    wide = wide_dtype(flat.dtype)
    for start in range(0, flat.size, BLOCK):
        part = flat[start : start + BLOCK]
        drawn = random.random(dtype=wide.type, out=scratch("drawn", part.shape, wide))
        np.multiply(drawn, operation.high - operation.low, out=drawn)
        np.add(drawn, operation.low, out=drawn)
        np.copyto(part, drawn, casting="unsafe")


@kernel(Bernoulli, random=True)
def _bernoulli(operation: Bernoulli, inputs: list[Array], outputs: list[Array], frame: int) -> None:
    random, flat = stream(operation.seed, frame), outputs[0].reshape(-1)
    probability = np.float32(operation.probability)
    for start in range(0, flat.size, BLOCK):
        part = flat[start : start + BLOCK]
        drawn = random.random(dtype=np.float32, out=scratch("drawn", part.shape, np.float32))
        np.copyto(part, drawn < probability, casting="unsafe")


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
