"""How fast do callers write by one model, each as long as it likes, beside static batches and a loop over NumPy?"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

import actorflow as af
from benchmarks.harness import Budget, Harness, Relation, Row, Table

__all__ = ["measure"]

_CALLERS, _MOST, _BLOCK = 64, 256, 4
_LETTERS = "".join(map(chr, range(32, 127)))

SESSIONS, STATIC, LOOP = "sessions of a batcher", "static batches", "hand-written loop over NumPy"
_Array = npt.NDArray[Any]


async def measure(harness: Harness) -> list[Table]:
    """The transformer of ``examples/completions.py`` with random weights, answers of heavy-tailed lengths."""
    writer = _example().Writer(_LETTERS * 20, most=_MOST, blocks=_CALLERS * _MOST // _BLOCK)
    lengths = np.clip(np.random.default_rng(0).pareto(1.1, harness.pick(256, 8)) * 10, 1, _MOST - 2).astype(int)
    firsts: dict[str, list[float]] = {SESSIONS: [], LOOP: []}
    memory: list[float] = []
    async with writer.graph, writer.batched(max_rows=_CALLERS) as batcher:
        loop = _Loop(writer)

        def timed(work: Callable[[], Any]) -> Any:
            async def case() -> float:
                start = perf_counter()
                found = work()
                if found is not None:
                    await found
                return (perf_counter() - start) / lengths.sum() * 1e6

            return case

        cases = {
            SESSIONS: timed(lambda: _shared(writer, batcher, lengths, firsts[SESSIONS], memory)),
            STATIC: timed(lambda: _static(writer, batcher, lengths)),
            LOOP: timed(lambda: loop.write(lengths, firsts[LOOP])),
        }
        budgets = [
            Budget("at least 4 times the throughput of static batches", SESSIONS, Relation.BELOW, 4.0, STATIC),
            Budget("at least 0.9 of the throughput of the loop", SESSIONS, Relation.BELOW, 0.9, LOOP),
        ]
        title = f"{_CALLERS} callers, {len(lengths)} answers of {lengths.mean():.0f} letters, {lengths.max()} at most"
        table = await harness.compare(title, "us per letter", cases, reference=LOOP, budgets=budgets)
    rows = {name: Row(name, [float(np.quantile(found, 0.99)) * 1e3]) for name, found in firsts.items()}
    share = Budget("at most 1.1 of what is in use", "blocks", Relation.AT_MOST, 1.1)
    return [
        table,
        Table("time to the first letter, 99th percentile", "ms", rows, LOOP, []),
        Table(
            "memory of the cache",
            "of the positions in use",
            {"blocks": Row("blocks", memory[-harness.rounds :])},
            "blocks",
            [share],
        ),
    ]


def _example() -> Any:
    path = Path(__file__).parents[1] / "examples" / "completions.py"
    spec = importlib.util.spec_from_file_location("completions", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def _shared(writer: Any, batcher: af.Batcher, lengths: _Array, firsts: list[float], memory: list[float]) -> None:
    """Callers that take the next answer as soon as they have one."""
    left = iter(enumerate(lengths.tolist()))
    places: dict[int, int] = {}
    shares: list[float] = []

    async def caller(number: int) -> None:
        for seed, length in left:
            since, places[number] = perf_counter(), 0
            async with aclosing(writer.write(batcher, "a", length, seed=seed)) as letters:
                async for _ in letters:
                    places[number] += 1
                    if places[number] == 1:
                        firsts.append(perf_counter() - since)
            del places[number]
            if places:  # with the place of the letter that each of them waits for
                in_use = sum(count + 1 for count in places.values())
                shares.append(batcher.statistics().blocks * _BLOCK / in_use)

    await asyncio.gather(*[caller(number) for number in range(_CALLERS)])
    memory.append(float(np.median(shares or [1.0])))


async def _static(writer: Any, batcher: af.Batcher, lengths: _Array) -> None:
    """As many answers at a time as there are callers, all as long as the longest of them."""

    async def caller(seed: int, length: int) -> None:
        async with aclosing(writer.write(batcher, "a", length, seed=seed)) as letters:
            async for _ in letters:
                pass

    for start in range(0, len(lengths), _CALLERS):
        part = lengths[start : start + _CALLERS]
        await asyncio.gather(*[caller(start + i, int(part.max())) for i in range(len(part))])


class _Loop:
    """The same model by hand: a row of each array per caller, which takes the next answer when one has ended."""

    def __init__(self, writer: Any) -> None:
        self.weights = {variable.name: variable.value for variable in writer.graph.variables}
        self.width = self.weights["letters/weight"].shape[1]

    def norm(self, x: _Array, name: str) -> _Array:
        centred = x - x.mean(-1, keepdims=True)
        deviation = np.sqrt((centred * centred).mean(-1, keepdims=True) + np.float32(1e-5))
        return centred / deviation * self.weights[f"{name}/scale"] + self.weights[f"{name}/shift"]

    def linear(self, x: _Array, name: str) -> _Array:
        return x @ self.weights[f"{name}/weight"].T + self.weights[f"{name}/bias"]

    def write(self, lengths: _Array, firsts: list[float]) -> None:
        """Write all answers."""
        random, rows, heads = np.random.default_rng(0), np.arange(_CALLERS), 4
        features = self.width // heads
        caches = np.zeros((2, 2, _CALLERS, heads, _MOST, features), np.float32)
        tokens, used, left = (np.zeros(_CALLERS, int) for _ in range(3))
        since = np.zeros(_CALLERS)
        following = iter(lengths.tolist())
        begun = 0
        for row in rows[: len(lengths)]:
            left[row], since[row] = next(following), perf_counter()
        while left.any():
            x = self.weights["letters/weight"][tokens] + self.weights["places/weight"][used]
            longest = used.max() + 1
            hidden = np.where(np.arange(longest) > used[:, np.newaxis], np.float32(-np.inf), np.float32(0))
            for layer, (keys, values) in enumerate(caches):
                q, k, v = (
                    self.linear(self.norm(x, f"norm{layer}"), f"qkv{layer}")
                    .reshape(_CALLERS, 3, heads, features)
                    .swapaxes(0, 1)
                )
                keys[rows, :, used], values[rows, :, used] = k, v
                scores = np.matmul(keys[:, :, :longest], q[..., np.newaxis])[..., 0] * np.float32(features**-0.5)
                scores += hidden[:, np.newaxis]
                shares = np.exp(scores - scores.max(-1, keepdims=True))
                shares /= shares.sum(-1, keepdims=True)
                y = np.matmul(shares[:, :, np.newaxis], values[:, :, :longest])[:, :, 0].reshape(_CALLERS, -1)
                x = x + self.linear(y, f"out{layer}")
                up = np.maximum(self.linear(self.norm(x, f"norm{layer}_up"), f"up{layer}"), 0)
                x = x + self.linear(up, f"down{layer}")
            scores = self.linear(self.norm(x, "norm"), "scores")
            ends = np.exp(scores - scores.max(-1, keepdims=True)).cumsum(-1)
            drawn = random.random(_CALLERS, np.float32)[:, np.newaxis] * ends[:, -1:]
            tokens = np.minimum((ends <= drawn).sum(-1), scores.shape[1] - 1)
            for row in np.flatnonzero((used == 0) & (left > 0)):
                firsts.append(perf_counter() - since[row])
            used += 1
            left -= left > 0
            for row in np.flatnonzero(left == 0):
                used[row] = tokens[row] = 0
                left[row], since[row] = next(following, 0), perf_counter()
                begun += 1
