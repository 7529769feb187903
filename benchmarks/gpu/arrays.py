"""Lazy arrays: chains of elementwise operations as one kernel, by themselves and with a reduction at the end."""

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
    """A chain on arrays that a kernel takes no time for, and on large ones; large ones' sums along each axis."""
    small, large = bench.harness.pick(1 << 10, 16), bench.harness.pick(1 << 24, 64)
    side = bench.harness.pick(1 << 12, 8)
    reduced = [await _measure_reduced(bench, side, axis) for axis in (None, 0, 1)]
    return [await _measure(bench, small, is_large=False), await _measure(bench, large, is_large=True), *reduced]


async def _measure(bench: Bench, size: int, is_large: bool) -> Table:
    values = np.random.default_rng(0).standard_normal((2, size), dtype=np.float32)
    title = f"lazy arrays, ten elementwise operations on {size:,} floats"

    def work(xp: Any, chain: Callable[[Any, Any], Any], x: Any, y: Any) -> Any:
        return chain(x, y)

    return await _compare(bench, title, values, work, is_measured=is_large)


async def _measure_reduced(bench: Bench, side: int, axis: int | None) -> Table:
    values = np.random.default_rng(0).standard_normal((2, side, side), dtype=np.float32)
    along = "all axes" if axis is None else f"axis {axis}"
    title = f"lazy arrays, the sum along {along} of the squares of ten operations on {side:,} x {side:,} floats"

    def work(xp: Any, chain: Callable[[Any, Any], Any], x: Any, y: Any) -> Any:
        return xp.sum(xp.square(chain(x, y)), axis=axis)

    return await _compare(bench, title, values, work, is_measured=True)


async def _compare(bench: Bench, title: str, values: Any, work: Callable[..., Any], is_measured: bool) -> Table:
    """Time ``work(namespace, chain, x, y)`` of arrays of two values."""
    x, y = (bench.xp.asarray(value) for value in values)

    def chain_of(xp: Any) -> Callable[[Any, Any], Any]:
        def chain(x: Any, y: Any) -> Any:  # CuPy calls the fused kernel by the function's name
            return _chain(xp, x, y)

        return chain

    peers: dict[str, Callable[[], Any]] = {bench.bare: lambda: work(bench.xp, chain_of(bench.xp), x, y)}
    if bench.xp is not np:
        fused = bench.xp.fuse(chain_of(bench.xp))
        peers[_FUSED] = lambda: work(bench.xp, fused, x, y)
    with lazy.session(run_ahead=False):
        a, b = (lazy.asarray(value, device=bench.place).wait() for value in values)
        found = work(lazy, chain_of(lazy), a, b).to_numpy()
        bench.check(f"{title}: {ACTORFLOW}", found, work(np, chain_of(np), *values), _TOLERANCE)
        cases = {ACTORFLOW: bench.case(1, _MS, lambda: work(lazy, chain_of(lazy), a, b).wait())}
        cases |= {name: bench.case(1, _MS, each) for name, each in peers.items()}
        rival = _FUSED if _FUSED in peers else bench.bare
        # To ask for a value takes a way to another thread and back: what is small is not measured against bare calls.
        budgets = [Budget(f"as fast as {rival}, within a tenth", ACTORFLOW, Relation.TIMES, 1.1, rival)]
        return await bench.harness.compare(
            title, "ms per chain", cases, reference=bench.bare, budgets=budgets if is_measured else [], warm_up=2
        )
