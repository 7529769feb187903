"""Choices by scores, drawn by numbers that a seed and a position decide: the same in any frame and company."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from actorflow.errors import DTypeError, GraphError, ShapeError
from actorflow.ops import reductions
from actorflow.ops.elementwise import add, bitwise_right_shift, bitwise_xor, cast, multiply
from actorflow.ops.operation import Operand, Operation, X, blob_of, whole
from actorflow.spec import TensorSpec

#: Constants of splitmix64: the distance of two positions, and the shifts with the factors that follow them.
_APART, _MIX = 0x9E3779B97F4A7C15, ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))

#: Choices are among all.
_ALL = 1 << 62


def _mixed(bits: Any) -> Any:
    for shift, factor in _MIX:
        bits = bitwise_xor(bits, bitwise_right_shift(bits, shift)) * factor
    return bitwise_xor(bits, bitwise_right_shift(bits, 31))


@whole
def uniform_at(seed: X, position: X, name: str | None = None) -> X:
    """A random number for each pair of a seed and a position: from 0, less than 1.

    Equal pairs give the same number in any frame, graph and process. So a session that counts its draws in a state
    draws as it would alone, whatever company it has. The numbers are for `sample`.

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
        random: Shape (...), floating, from 0, less than 1, as `uniform_at` gives them: they decide the choice.
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
        text degeneration, 2020 (top-p, of the rest after top-k).
    Example:
        >>> scores, random = xp.asarray([1.0, 3.0, 2.0]), xp.asarray(0.95, dtype="float32")
        >>> print(af.ops.sample(scores, random), af.ops.sample(scores, random, top_p=0.5), af.ops.sample(scores))
        2 1 1
        >>> even = xp.asarray([1.0, 1.0, 0.0])
        >>> print(af.ops.sample(even, random, top_k=1), af.ops.sample(scores, random, top_p=0.0))
        1 1
    """
    if random is None or not (isinstance(temperature, Operand) or temperature > 0):
        _checked(scores.spec)
        return reductions.argmax(scores, -1, name=name)
    settings = {"temperature": temperature, "top_k": _ALL if top_k is None else top_k}
    settings["top_p"] = 1.0 if top_p is None else top_p
    inputs = [each for each in settings.values() if isinstance(each, Operand)]
    fixed: Any = {what: None if isinstance(each, Operand) else each for what, each in settings.items()}
    return blob_of(Sample(**fixed), scores, random, *inputs, name=name)


def _checked(scores: TensorSpec) -> None:
    if not scores.shape or scores.dtype.kind not in "fV":
        raise DTypeError(f"sample: scores must be floating, with an axis of choices, got {scores}")


@dataclass(frozen=True)
class Sample(Operation):
    """Choices by their scores and numbers that were drawn; see `sample`.

    Attributes:
        temperature, top_k, top_p: For all rows; None for one that is an input, with a value for each row.
    """

    arguments = ("scores", "*numbers")
    differentiable = False

    temperature: float | None = 1.0
    top_k: int | None = _ALL
    top_p: float | None = 1.0

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        scores, *others = inputs
        _checked(scores)
        names = ["random", *[name for name in ("temperature", "top_k", "top_p") if getattr(self, name) is None]]
        if len(others) != len(names):
            raise GraphError(f"{self.kind} takes scores, {', '.join(names)}, got {1 + len(others)} inputs")
        for what, spec in zip(names, others, strict=True):
            if spec.dtype.kind not in ("iu" if what == "top_k" else "fV"):
                raise DTypeError(f"sample: {what} must be {'integers' if what == 'top_k' else 'floating'}, got {spec}")
            if spec.shape != scores.shape[:-1]:
                raise ShapeError(f"sample: {what} must have shape {scores.shape[:-1]}, got {spec}")
        return (TensorSpec(scores.shape[:-1], np.dtype(np.int64)),)

    @property
    def is_of_some(self) -> bool:
        """Whether choices may be among fewer than all."""
        return self.top_k != _ALL or self.top_p != 1.0

    def settings(self, given: Iterable[Any]) -> list[Any]:
        """Temperature, top_k and top_p: numbers, or the inputs that they are."""
        left = iter(given)
        return [next(left) if each is None else each for each in (self.temperature, self.top_k, self.top_p)]

    def compute(self, *inputs: Any) -> Any:
        scores, random, *given = inputs
        heat, most, share = [x[..., np.newaxis] if np.ndim(x) else x for x in self.settings(given)]
        x = scores.astype("f4")
        with np.errstate(all="ignore"):
            shares = np.exp((x - x.max(-1, keepdims=True)) / np.maximum(heat, np.finfo("f4").tiny))
        if self.is_of_some:
            ranked = -np.sort(-shares, -1)
            kept = np.where((ranked * 0 + 1).cumsum(-1) <= most, ranked, 0)
            before = kept.cumsum(-1, dtype="f8") - kept
            kept = np.where(before < kept.sum(-1, keepdims=True, dtype="f8") * share, kept, 0)
            least = np.where(kept > 0, kept, ranked[..., :1]).min(-1, keepdims=True)
            shares = np.where(shares < least, 0, shares)
        ends = shares.cumsum(-1, dtype="f8")
        total = ends[..., -1:]
        drawn = random.astype("f4")[..., np.newaxis] * (heat > 0)  # 0: the first one that has any probability
        # Choices whose shares end before the number drawn; it may be rounded to the total itself.
        return ((ends <= drawn * total) & (ends < total)).sum(-1)
