"""Kernels of attention to cached keys and values, which read them where they are, and of choices by scores."""

from __future__ import annotations

import numpy as np

from actorflow.ops.cpu.buffers import Array, compiled, is_plain, plain, scratch
from actorflow.ops.nn.attention import CachedAttention
from actorflow.ops.nn.sampling import Sample
from actorflow.ops.registry import kernel


@kernel(CachedAttention, returns=True)
def _cached_attention(operation: CachedAttention, inputs: list[Array], outputs: None) -> list[Array]:
    q, k, v, keys, values, table, used = inputs
    module = compiled("cached")
    if module is None or q.dtype != np.float32 or not is_plain(keys) or not is_plain(values):
        return [operation.compute(*inputs)]
    q, k, v, table, used = (plain(x) for x in (q, k, v, table, used))
    y, room = np.empty_like(q), table.shape[1] * keys.shape[1] + q.shape[1] + 7
    scale, heads = operation.damped(q.shape[2] // operation.heads), operation.heads
    at, shares = scratch("places", [room], "i8"), scratch("shares", [heads * (room + 1)], "f4")
    module.attend(q, k, v, keys, values, table, used, heads, scale, at, shares, y)
    return [y]


@kernel(Sample, returns=True)
def _sample(operation: Sample, inputs: list[Array], outputs: None) -> list[Array]:
    scores, random, *given = inputs
    module = compiled("cached")
    if module is None or not scores.shape[-1]:
        return [operation.compute(*inputs)]
    front, choices = random.shape, scores.shape[-1]
    found, shares = np.empty(random.size, np.int64), scores.reshape(-1, choices).astype("f4", "C")
    settings = zip(operation.settings(given), ("f4", "i8", "f4"), strict=True)
    rows = [np.full(front, x, dtype).reshape(-1) for x, dtype in settings]
    module.choose(shares, random.astype("f4").reshape(-1), *rows, scratch("ranked", [choices], "f4"), found)
    return [found.reshape(front)]
