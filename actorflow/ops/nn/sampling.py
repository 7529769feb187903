"""Choices by scores, drawn by numbers that a seed and a position decide: the same in any frame and company."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from actorflow.errors import DTypeError, ShapeError
from actorflow.ops import reductions
from actorflow.ops.elementwise import add, bitwise_right_shift, bitwise_xor, cast, maximum, multiply, where
from actorflow.ops.fills import numbers
from actorflow.ops.nn.softmax import softmax
from actorflow.ops.operation import Operand, X, savable, whole
from actorflow.ops.ordering import cumsum, sort
from actorflow.ops.shaping import expand_dims

#: Constants of splitmix64: the distance of two positions, and the shifts with the factors that follow them.
_APART, _MIX = 0x9E3779B97F4A7C15, ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


def _mixed(bits: Any) -> Any:
    for shift, factor in _MIX:
        bits = bitwise_xor(bits, bitwise_right_shift(bits, shift)) * factor
    return bitwise_xor(bits, bitwise_right_shift(bits, 31))


@whole
def uniform_at(seed: X, position: X, name: str | None = None) -> X:
    """A random number for each pair of a seed and a position: from 0, less than 1.

    Equal pairs give the same number in any frame, graph and process. So a session that counts its draws in a state
    draws what it would draw alone, whatever company it has. The numbers are for `sample`.

    Args:
        seed: Any shape, int64; it names a sequence of numbers.
        position: A shape that broadcasts with it, int64; the place in the sequence.
    Returns:
        Blob of the common shape, float32.
    Raises:
        DTypeError, ShapeError: if the inputs do not fit.
    Gradient: none.
    Source: Steele, Lea and Flood, Fast splittable pseudorandom number generators, 2014: splitmix64, of the mixed seed.
    Example:
        >>> print(af.ops.uniform_at(xp.asarray([7, 7, 8]), xp.asarray([0, 1, 0])))
        [0.45589703 0.72150815 0.84868866]
    """
    for what, each in (("seed", seed), ("position", position)):
        if each.dtype != np.int64:
            raise DTypeError(f"uniform_at: {what} must be int64, got {each.spec}")
    start, steps = cast(seed, "uint64"), cast(position, "uint64")
    bits: Any = _mixed(_mixed(add(start, _APART)) + multiply(steps, _APART))
    found: X = multiply(cast(bitwise_right_shift(bits, 40), "float32"), 2.0**-24, name=name)
    return found


@whole
def sample(
    scores: X,
    random: X | None = None,
    *,
    temperature: X | float = 1.0,
    top_k: X | int | None = None,
    top_p: X | float | None = None,
    name: str | None = None,
) -> X:
    """Choices by their scores: each index with the probability ``softmax(scores / temperature)``.

    Args:
        scores: Shape (..., choices), floating.
        random: Shape (...), floating, from 0, less than 1, as `uniform_at` gives them: they decide what is chosen.
            Without them it is the highest score, of equal ones the first.
        temperature: A number, or floating of shape (...); where it is 0 the highest score is chosen.
        top_k: Number of the highest scores to choose from; or integers of shape (...). One at least is.
        top_p: Probability that the highest scores, which are chosen from, have together at least; or floating of shape
            (...). All scores that equal the lowest one of them are chosen from, too.
    Returns:
        Blob of shape (...), int64.
    Raises:
        DTypeError, ShapeError: if the inputs do not fit.
    Gradient: none.
    Source: Fan et al., Hierarchical neural story generation, 2018 (top-k); Holtzman et al., The curious case of neural
        text degeneration, 2020 (top-p, of what top-k has left).
    Example:
        >>> scores, random = xp.asarray([1.0, 3.0, 2.0]), xp.asarray(0.95, dtype="float32")
        >>> print(af.ops.sample(scores, random), af.ops.sample(scores, random, top_p=0.5), af.ops.sample(scores))
        2 1 1
        >>> even = xp.asarray([1.0, 1.0, 0.0])
        >>> print(af.ops.sample(even, random, top_k=1), af.ops.sample(scores, random, top_p=0.0))
        1 1
    """
    if not scores.shape or scores.dtype.kind not in "fV":
        raise DTypeError(f"sample: scores must be floating, with an axis of choices, got {scores.spec}")
    if random is None:
        return reductions.argmax(scores, -1, name=name)
    x: Any = cast(scores, "float32")
    drawn = _of_each(scores, "random", random)
    x = x - reductions.max(x, -1, keepdims=True)
    if isinstance(temperature, Operand):
        heat = _of_each(scores, "temperature", temperature)
        drawn = where(heat > 0.0, drawn, 0.0)  # the first one that has any probability
        x = x / maximum(heat, float(np.finfo(np.float32).tiny))
    elif temperature > 0:
        x = x * (1 / temperature)
    else:
        return reductions.argmax(scores, -1, name=name)
    shares = softmax(x)
    if top_k is not None or top_p is not None:
        ranked = kept = sort(shares, -1, descending=True, stable=False)
        if top_k is not None:
            most = _of_each(scores, "top_k", top_k, "int64", "iu") if isinstance(top_k, Operand) else top_k
            count = shares.shape[-1]
            kept = where(shares.literal(numbers(_counted, count, shape=(count,))) < most, kept, 0.0)
        if top_p is not None:
            most = _of_each(scores, "top_p", top_p) if isinstance(top_p, Operand) else top_p
            before = cumsum(kept, -1, exclusive=True)
            kept = where(before < reductions.sum(kept, -1, keepdims=True) * most, kept, 0.0)
        least = reductions.min(where(kept > 0.0, kept, ranked[..., :1]), -1, keepdims=True)
        shares = where(shares < least, 0.0, shares)
    ends = cumsum(shares, -1)
    total = reductions.max(ends, -1, keepdims=True)
    # Choices whose shares end before the number drawn; it may be rounded to the total itself.
    passed = (ends <= drawn * total) & (ends < total)
    choice: X = reductions.sum(cast(passed, "int64"), -1, name=name)
    return choice


def _of_each(scores: Any, what: str, given: Any, dtype: str = "float32", kinds: str = "fV") -> Any:
    """A parameter with a value for each row of scores, checked and as an array beside them."""
    if given.dtype.kind not in kinds:
        raise DTypeError(f"sample: {what} must be {'floating' if dtype == 'float32' else 'integers'}, got {given.spec}")
    if given.shape != scores.shape[:-1]:
        raise ShapeError(f"sample: {what} must have shape {scores.shape[:-1]}, got {given.spec}")
    return expand_dims(cast(given, dtype), -1)


@savable
def _counted(length: int) -> npt.NDArray[np.int64]:
    return np.arange(length)
