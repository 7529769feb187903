"""Attention, and positions by rotation: compositions of products, softmax and elementwise operations."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from actorflow.errors import DTypeError, ShapeError
from actorflow.ops import reductions
from actorflow.ops.elementwise import cast, greater, scaled, where
from actorflow.ops.fills import numbers
from actorflow.ops.linalg import matmul
from actorflow.ops.nn.softmax import softmax
from actorflow.ops.operation import Operation, X, rank_is, same_dtype, savable, whole, wide_dtype
from actorflow.ops.shaping import concat, reshape, split, squeeze, stack, transpose
from actorflow.spec import TensorSpec, following, may_divide


@whole
def attention(
    q: X,
    k: X,
    v: X,
    mask: X | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    heads: int | None = None,
    name: str | None = None,
) -> X:
    """Scaled dot product attention: ``y = softmax(q @ k.T * scale + mask) @ v``.

    Args:
        q: Queries, shape (..., heads, queries, features), floating; or (..., queries, heads * features) with ``heads``.
        k: Keys, (..., heads, keys, features), dtype of ``q``. The axes in front broadcast with the axes of ``q``; where
            there are fewer heads, each serves as many of ``q``, which are neighbours.
        v: Values, (..., heads, keys, values): the heads and keys of ``k``.
        mask: Broadcasts to (..., heads, queries, keys). Booleans are True where a query sees a key; numbers, of the
            dtype of ``q``, are added to the scores.
        causal: Whether a query sees no key of a later position; positions are counted from the first query and key.
        scale: Factor on the products; the default is ``1 / sqrt(features)``.
        heads: Number of heads of ``q`` that lie side by side on the last axes of ``q``, ``k`` and ``v``.
    Returns:
        Blob of shape (..., heads, queries, values), or (..., queries, heads * values); 0 for a query that sees nothing.
    Raises:
        ShapeError, DTypeError: if the inputs do not fit.
    Gradient: by q, k, v and a mask of numbers.
    Source: Vaswani et al., Attention is all you need, 2017; `torch.nn.functional.scaled_dot_product_attention`.
    Example:
        >>> q = k = xp.asarray([[[1.0, 0.0], [0.0, 1.0]]])  # (heads, positions, features)
        >>> v = xp.asarray([[[10.0], [20.0]]])
        >>> print(af.ops.attention(q, k, v, causal=True, scale=100.0))
        [[[10.]
          [20.]]]
    """
    if heads is not None:
        features = q.shape[-1] // max(heads, 1)
        shared = k.shape[-1] // max(features, 1)
        q, k, v = _apart(q, heads), _apart(k, shared), _apart(v, shared)
        y = transpose(attention(q, k, v, mask, causal=causal, scale=scale), (*range(len(q.shape) - 3), -2, -3, -1))
        return reshape(y, (*y.shape[:-2], y.shape[-2] * y.shape[-1]), name=name)
    (*_, queries, features), keys = q.shape, k.shape[-2]
    q = scaled(q, following(_damped, features) if scale is None else scale)
    served = k.shape[-3] if len(q.shape) > 2 < len(k.shape) else 0
    sharing = max(q.shape[-3] // served, 1) if served and not q.shape[-3] % served else 1
    if sharing > 1:  # the heads that share one of k and v are rows of one product
        q = reshape(q, (*q.shape[:-3], k.shape[-3], sharing * queries, features))
    scores = matmul(q, k, transpose_b=True)
    if sharing > 1:
        scores = reshape(scores, (*scores.shape[:-3], -1, queries, keys))
    if causal:
        positions = cast(q.constant_like(0.0, (queries, 1)), "float32")  # exact up to 16 million
        keyed = q.literal(numbers(_counted, keys, 1, shape=(keys,), dtype="f4"))
        is_later = positions + keyed > q.literal(numbers(_counted, queries, 2, shape=(queries, 1), dtype="f4"))
    sees: Any = None
    if mask is None:
        scores = where(is_later, -np.inf, scores) if causal else scores
    elif mask.dtype == bool:
        mask = mask & ~is_later if causal else mask
        sees = reductions.any(mask, -1, keepdims=True)
        # A query that sees nothing gets all scores, since a softmax of none has no sum, and 0 as its result.
        scores = where(mask | ~sees, scores, -np.inf)
    else:
        mask = where(is_later, -np.inf, mask) if causal else mask
        sees = greater(reductions.max(mask, -1, keepdims=True), -np.inf)
        scores = scores + where(sees, mask, 0.0)
    shares = softmax(scores)
    if sharing > 1:
        shares = reshape(shares, (*scores.shape[:-3], k.shape[-3], sharing * queries, keys))
    last = name if sees is None else None
    y = matmul(shares, v, name=last if sharing == 1 else None)
    if sharing > 1:
        y = reshape(y, (*scores.shape[:-1], v.shape[-1]), name=last)
    return y if sees is None else where(sees, y, 0.0, name=name)


@dataclass(frozen=True)
class CachedAttention(Operation):
    """Attention of new positions to positions that sessions have in blocks, and to themselves; see `Cache.attention`.

    Attributes:
        heads: Number of heads of ``q``.
        scale: Factor on the products; None for ``1 / sqrt(features)``.
    """

    arguments = ("q", "k", "v", "keys", "values", "table", "used")
    function_name = "cached_attention"
    differentiable = False

    heads: int
    scale: float | None = None

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        q, k, v, keys, values, table, used = inputs
        same_dtype(self.kind, q=q, k=k, v=v, keys=keys, values=values)
        for name, spec in (("q", q), ("k", k), ("v", v)):
            rank_is(self.kind, name, spec, ("rows", "new", "heads * features"))
        features = q.shape[2] // max(self.heads, 1)
        if not features or features * self.heads != q.shape[2] or k.shape[2] % features or not k.shape[2]:
            raise ShapeError(f"{self.kind}: {self.heads} heads must have the same features in q {q} and k {k}")
        if self.heads % (k.shape[2] // features):
            raise ShapeError(f"{self.kind}: the heads of k {k} must divide {self.heads}")
        rows, new = q.shape[:2]
        block = keys.shape[1] if len(keys.shape) == 3 else -1
        for name, spec, shape in (
            ("k", k, (rows, new, k.shape[2])),
            ("v", v, k.shape),
            ("keys", keys, (*keys.shape[:1], block, k.shape[2])),
            ("values", values, keys.shape),
            ("table", table, (rows, *table.shape[1:2])),
            ("used", used, (rows,)),
        ):
            if spec.shape != shape:
                raise ShapeError(f"{self.kind}: {name} must have shape {shape}, got {spec}")
        for name, spec in (("table", table), ("used", used)):
            if spec.dtype != np.int64:
                raise DTypeError(f"{self.kind}: {name} must be int64, got {spec}")
        return (q,)

    def compute(self, *inputs: Any) -> Any:
        q, k, v, keys, values, table, used = inputs
        (rows, new, width), block = q.shape, keys.shape[1]
        blocks = -(-int(used.max(initial=0)) // block)
        known = np.arange(blocks * block) < used[:, np.newaxis]
        # Zeros in the place of positions that are not used: they may be NaN, which no weight makes nothing.
        before = [
            np.where(known[..., np.newaxis], x[table[:, :blocks]].reshape(rows, -1, k.shape[2]), 0)
            for x in (keys, values)
        ]
        k, v = (np.concatenate(pair, 1) for pair in zip(before, (k, v), strict=True))
        features = width // self.heads
        groups = k.shape[2] // features
        sees = np.tile(known[:, np.newaxis], (1, new, 1))
        sees = np.concatenate([sees, np.tile(np.tri(new, dtype=bool), (rows, 1, 1))], 2)[:, np.newaxis, np.newaxis]
        q = q.reshape(rows, new, groups, -1, features).transpose(0, 2, 3, 1, 4)
        k, v = (x.reshape(rows, -1, groups, 1, features).transpose(0, 2, 3, 1, 4) for x in (k, v))
        wide = wide_dtype(q.dtype)
        scores = np.matmul(q.astype(wide), k.astype(wide).swapaxes(-1, -2)) * wide.type(self.damped(features))
        scores = np.where(sees, scores, -np.inf)
        shares = np.exp(scores - scores.max(-1, keepdims=True, initial=-np.inf))
        y = np.matmul(shares / shares.sum(-1, keepdims=True), v.astype(wide))
        return y.transpose(0, 3, 1, 2, 4).reshape(rows, new, width).astype(inputs[0].dtype)

    def damped(self, features: int) -> float:
        """Factor on the products."""
        return _damped(features) if self.scale is None else self.scale


@savable
def _damped(features: int) -> float:
    return 1 / math.sqrt(max(features, 1))


@savable
def _counted(length: int, rank: int) -> npt.NDArray[np.float32]:
    return np.arange(length, dtype="f4").reshape(-1, *[1] * (rank - 1))


def _apart(x: X, heads: int) -> X:
    """Heads that lie side by side on the last axis, as an axis of their own before the positions."""
    *front, positions, features = x.shape
    if not heads or not may_divide(features, heads):
        raise ShapeError(f"attention: {heads} heads must have the same number of features, got {x.spec}")
    parts = reshape(x, (*front, positions, heads, features // heads))
    return transpose(parts, (*range(len(front)), -2, -3, -1))


@whole
def rotary(x: X, cos: X, sin: X, *, interleaved: bool = False, name: str | None = None) -> X:
    """Positions as rotations: pairs of features turned by angles, ``(a * cos - b * sin, b * cos + a * sin)``.

    Args:
        x: Shape (..., positions, features), floating; the queries or keys of `attention`.
        cos: Cosines of the angles, dtype of ``x``, a shape that broadcasts with (..., positions, pairs). Features after
            the first ``2 * pairs`` stay as they are.
        sin: Their sines, likewise.
        interleaved: Whether neighbours are pairs; by default a feature's partner is ``pairs`` features later.
    Returns:
        Blob of the type of ``x``.
    Raises:
        ShapeError, DTypeError: if the inputs do not fit.
    Gradient: by all inputs; by x it is the rotation back.
    Source: Su et al., RoFormer, 2021, which interleaves; GPT-NeoX and LLaMA take halves.
    Example:
        >>> x = xp.asarray([[1.0, 0.0], [1.0, 0.0]])  # (positions, features)
        >>> angles = xp.asarray([[0.0], [np.pi / 2]])  # (positions, pairs)
        >>> print(np.round(af.ops.rotary(x, xp.cos(angles), xp.sin(angles)), 6))
        [[1. 0.]
         [0. 1.]]
    """
    pairs = cos.shape[-1]
    rest = x.shape[-1] - 2 * pairs
    if rest < 0:
        raise ShapeError(f"rotary: x must have at least 2 features for each of {pairs} angles, got {x.spec}")
    turned, *kept = split(x, [2 * pairs, rest], axis=-1) if rest else [x]
    paired: Any = reshape(turned, (*x.shape[:-1], *((pairs, 2) if interleaved else (2, pairs))))
    axis = -1 if interleaved else -2
    a, b = (squeeze(part, axis) for part in split(paired, 2, axis))
    y: X = stack([a * cos - b * sin, b * cos + a * sin], axis)
    return concat([reshape(y, turned.shape), *kept], axis=-1, name=name) if kept else reshape(y, x.shape, name=name)
