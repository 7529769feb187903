"""Lazy arrays: chains of elementwise operations as one kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import actorflow.array as lazy
from benchmarks.gpu.bench import ACTORFLOW, Bench
from benchmarks.harness import Budget, Relation, Table

__all__ = ["measure"]

_MS = 1e-3
_TOLERANCE = 1e-5
_FUSED = "cupy.fuse"


def _chain(xp: Any, x: Any, y: Any) -> Any:
    """Ten operations; reads two arrays, writes one."""
    return xp.sqrt(xp.exp(-(x * x)) + y * y) * x / (xp.abs(y) + 1.0) - x


async def measure(bench: Bench) -> list[Table]:
    """A chain on arrays that a kernel takes no time for, and on large ones."""
    small, large = bench.harness.pick(1 << 10, 16), bench.harness.pick(1 << 24, 64)
    return [await _measure(bench, small, is_large=False), await _measure(bench, large, is_large=True)]


async def _measure(bench: Bench, size: int, is_large: bool) -> Table:
    values = np.random.default_rng(0).standard_normal((2, size), dtype=np.float32)
    x, y = (bench.xp.asarray(value) for value in values)
    title = f"lazy arrays, ten elementwise operations on {size:,} floats"
    peers: dict[str, Callable[[], Any]] = {bench.bare: lambda: _chain(bench.xp, x, y)}
    if bench.xp is not np:
        fused = bench.xp.fuse(lambda x, y: _chain(bench.xp, x, y))
        peers[_FUSED] = lambda: fused(x, y)
    with lazy.session(run_ahead=False):
        a, b = (lazy.asarray(value, device=bench.place).wait() for value in values)
        bench.check(f"{title}: {ACTORFLOW}", _chain(lazy, a, b).to_numpy(), _chain(np, *values), _TOLERANCE)
        cases = {ACTORFLOW: bench.case(1, _MS, lambda: _chain(lazy, a, b).wait())}
        cases |= {name: bench.case(1, _MS, work) for name, work in peers.items()}
        rival = _FUSED if _FUSED in peers else bench.bare
        # To ask for a value takes a way to another thread and back: what is small is not measured against bare calls.
        budgets = [Budget(f"as fast as {rival}, within a tenth", ACTORFLOW, Relation.TIMES, 1.1, rival)]
        return await bench.harness.compare(
            title, "ms per chain", cases, reference=bench.bare, budgets=budgets if is_large else [], warm_up=2
        )
