"""Other orders than the usual one, from a seed: orders that come under load come in a test, and come again."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from typing import Any

from actorflow.actors.dispatcher import Dispatcher
from actorflow.actors.op import OpActor
from actorflow.errors import whole
from actorflow.graph.graph import Graph
from actorflow.runtime.engine import Engine

_SHORT_NS, _LONG_NS = 0, 1 << 62


def interleave(graph: Graph, seed: int) -> None:
    """Run a graph's actors in a seeded random order, in slices of random length, inline or on their lane at random.

    A right program gives the same results under every seed.

    Args:
        graph: A root graph that has not run yet.
        seed: Names the order, as far as the loop and the lanes' threads let it be chosen.

    Example:
        >>> def run(seed):
        ...     graph = af.Graph("g")
        ...     x = graph.blob("x", [3])
        ...     y = af.ops.sum(af.ops.exp(x) - af.ops.sqrt(x))
        ...     af.testing.interleave(graph, seed)
        ...     return graph.run_sync({x: [1, 2, 3]})[y].item()
        >>> len({run(seed) for seed in range(3)})  # one result, whatever the order
        1
    """
    if graph.root._engine is not None:
        raise ValueError(f"graph {graph.name!r} has run already: interleave() comes first")
    seed = whole("interleave: seed", seed)
    Engine(graph.root, partial(_ShufflingDispatcher, seed=seed))


class _ShufflingDispatcher(Dispatcher):
    def __init__(self, loop: asyncio.AbstractEventLoop, seed: int) -> None:
        super().__init__(loop)
        self._random = random.Random(seed)  # noqa: S311  not for secrets
        self.take = self._take_any

    def _take_any(self) -> tuple[Any, Any]:
        choose = self._random
        self.ready.rotate(choose.randrange(len(self.ready)))
        actor, frame = self.ready.popleft()
        if isinstance(actor, OpActor):
            actor.cost_ns = choose.choice((_SHORT_NS, _LONG_NS))
        if choose.random() < 0.2:
            self.slice_ns = choose.choice((0, 1_000_000))
        return actor, frame
