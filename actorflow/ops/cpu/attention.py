"""Kernel of `CachedAttention` that reads keys and values where they are."""

from __future__ import annotations

import numpy as np

from actorflow.ops.cpu.buffers import Array, compiled, scratch
from actorflow.ops.nn.attention import CachedAttention
from actorflow.ops.registry import kernel


@kernel(CachedAttention, returns=True)
def _cached_attention(operation: CachedAttention, inputs: list[Array], outputs: None) -> list[Array]:
    q, k, v, keys, values, table, used = inputs
    module = compiled("cached")
    if module is None or q.dtype != np.float32 or not keys.flags.c_contiguous or not values.flags.c_contiguous:
        return [operation.compute(*inputs)]
    q, k, v, table, used = (np.ascontiguousarray(x) for x in (q, k, v, table, used))
    y, room = np.empty_like(q), table.shape[1] * keys.shape[1] + q.shape[1]
    scale = operation.damped(q.shape[2] // operation.heads)
    module.attend(q, k, v, keys, values, table, used, operation.heads, scale, scratch("shares", [room], "f4"), y)
    return [y]
