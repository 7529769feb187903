"""Caches: keys and values of the positions that sessions have read, in blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from actorflow.errors import ShapeError
from actorflow.graph.nodes import Blob, State
from actorflow.ops.nn.attention import CachedAttention
from actorflow.ops.operation import whole
from actorflow.place import Place
from actorflow.spec import TensorSpec

if TYPE_CHECKING:
    from actorflow.graph.graph import Graph


class Cached(State):
    """A source that the sessions of a batcher feed from a cache.

    Attributes:
        cache: The cache.
    """

    __slots__ = ("cache",)

    cache: Cache


class Cache:
    """Keys and values of the positions that sessions have read, for attention to them; made by `Graph.cache`.

    Sessions take blocks of positions from one pool as they go on, and give them back at their end. So its memory is
    the positions in use, however long the longest session may become.

    Attributes:
        most: Number of positions that a session may have.
        blocks: Number of blocks.
        block: Number of positions of a block.
        used: Number of positions that each session has read before the step, int64 of shape (row,).
        new: Number of positions that a step adds; None before `attention`.

    Example:
        >>> graph = af.Graph("g")
        >>> x = graph.blob("x", ["row", "time", 8])
        >>> cache = graph.cache("cache", most=100, blocks=64)
        >>> y = cache.attention(x, x, x, heads=2)
        >>> async def main():
        ...     async with graph, graph.batched(fetch=y) as batcher, batcher.session() as session:
        ...         for _ in range(3):  # 5 positions each
        ...             result = await session.run({x: np.ones((1, 5, 8), "float32")})
        ...         return result[y].shape, batcher.statistics().blocks
        >>> af.run(main())
        ((1, 5, 8), 1)
    """

    def __init__(self, graph: Graph, name: str, most: int, blocks: int, block: int, axis: str, place: Place) -> None:
        self.most, self.blocks, self.block = most, blocks, block
        self.new: Any = None
        self._graph, self._name, self._place = graph, name, place
        columns = -(-most // block)
        self.table = self._source("table", TensorSpec.of((axis, columns), "int64"))
        self.used: Blob = self._source("used", TensorSpec.of((axis,), "int64"))

    def __repr__(self) -> str:
        return f"<Cache {self._name!r} of {self.blocks} blocks of {self.block} positions>"

    def _source(self, what: str, spec: TensorSpec) -> Cached:
        store = self._graph.root._store
        name = store.free_name(f"{self._name}_{what}")
        made = Cached(self._graph, store.take_id(), name, self._place, spec, np.zeros((), spec.dtype))
        made.cache = self
        store.add(made)
        return made

    @whole
    def attention(
        self, q: Blob, k: Blob, v: Blob, heads: int, scale: float | None = None, name: str | None = None
    ) -> Blob:
        """Attention to all positions that the session has read; of a new position to the positions up to its own.

        Each call has keys and values of its own in the cache, as each layer of a network has.

        Args:
            q: Queries of the new positions, shape (row, new, heads * features), floating.
            k: Their keys, (row, new, kv_heads * features): there may be fewer heads, each for as many of ``q``.
            v: Their values, of the type of ``k``.
            heads: Number of heads of ``q``.
            scale: Factor on the products; the default is ``1 / sqrt(features)``.
        Returns:
            Blob of the type of ``q``.
        Raises:
            ShapeError, DTypeError: if the inputs do not fit.

        The session keeps ``k`` and ``v`` when its step is returned. A graph that trains has `ops.attention` in the
        place of this, ``causal=True``.
        """
        if self.new is not None and k.shape[1] != self.new:
            raise ShapeError(f"cache {self._name!r} takes {self.new} new positions, got k {k.spec}")
        pools = []
        for what, blob in (("keys", k), ("values", v)):
            pool = self._source(what, TensorSpec((self.blocks, self.block, *blob.shape[2:]), blob.dtype))
            pool.following = blob
            pools.append(pool)
        y: Blob = self._graph.root.apply(
            CachedAttention(heads, scale), q, k, v, *pools, self.table, self.used, name=name
        )
        self.new = k.shape[1]
        return y
