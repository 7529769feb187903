"""Attention to what lies in blocks."""

from __future__ import annotations

from typing import Any

import numpy as np

import actorflow as af
from actorflow.ops.nn.attention import CachedAttention
from tests.operations.table import HOST, Make, Row, Sample, refused


def _attended(
    q: Any, k: Any, v: Any, keys: Any, values: Any, table: Any, used: Any, heads: int, scale: float | None
) -> Any:
    """One query after the other, over the positions that it sees."""
    found, size, features = np.empty_like(q), keys.shape[1], q.shape[2] // heads
    sharing = q.shape[2] // k.shape[2]
    for row, new in np.ndindex(q.shape[:2]):
        places = [(table[row, i // size], i % size) for i in range(used[row])]
        own = (new + 1, k.shape[2])
        seen, taken = (
            np.concatenate([np.reshape([pool[at] for at in places], (-1, own[1])), x[row, : new + 1]])
            for pool, x in ((keys, k), (values, v))
        )
        for head in range(heads):
            mine = slice(head * features, (head + 1) * features)
            theirs = slice(head // sharing * features, (head // sharing + 1) * features)
            scores = seen[:, theirs] @ q[row, new, mine] * (features**-0.5 if scale is None else scale)
            shares = np.exp(scores - scores.max())
            found[row, new, mine] = shares @ taken[:, theirs] / shares.sum()
    return found


def _drawn(rows: int, new: int, heads: int, groups: int, features: int, size: int, columns: int) -> Make:
    def make(random: np.random.Generator) -> list[np.ndarray]:
        width, blocks = groups * features, rows * columns + 1
        shapes = (rows, new, heads * features), *[(rows, new, width)] * 2, *[(blocks, size, width)] * 2
        table = random.permutation(blocks)[: rows * columns].reshape(rows, columns)
        return [*map(random.standard_normal, shapes), table, random.integers(0, columns * size + 1, rows)]

    return make


ROWS = [
    Row(
        CachedAttention,
        [
            Sample(CachedAttention(2), _drawn(3, 1, 2, 2, 4, 2, 3)),
            Sample(CachedAttention(4, 0.3), _drawn(2, 3, 4, 2, 5, 4, 2)),
            Sample(CachedAttention(3), _drawn(1, 2, 3, 1, 9, 1, 4)),
        ],
        numpy=_attended,
        without={"torch": "it has no attention to blocks"},
        devices=HOST,
        particular=True,
        closed=2,
    )
]

_Q, _POOL, _USED = (2, 1, 8), (5, 4, 8), ("int64", 2)
_TABLE = ("int64", 2, 3)

WRONG = [
    *refused(
        af.ShapeError,
        (CachedAttention(3), [_Q, _Q, _Q, _POOL, _POOL, _TABLE, _USED], "3 heads must have the same features"),
        (
            CachedAttention(2),
            [_Q, (2, 1, 12), (2, 1, 12), _POOL, _POOL, _TABLE, _USED],
            "the heads of k .* must divide 2",
        ),
        (CachedAttention(2), [_Q, _Q, (2, 2, 8), _POOL, _POOL, _TABLE, _USED], "v must have shape"),
        (CachedAttention(2), [_Q, _Q, _Q, (5, 4, 4), _POOL, _TABLE, _USED], "keys must have shape"),
        (CachedAttention(2), [_Q, _Q, _Q, _POOL, _POOL, ("int64", 3, 3), _USED], "table must have shape"),
    ),
    *refused(
        af.DTypeError,
        (CachedAttention(2), [_Q, _Q, _Q, _POOL, _POOL, (2, 3), _USED], "table must be int64"),
    ),
]
