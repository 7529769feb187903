"""Random programs of branches and loops, for a graph and for an interpreter that is Python itself."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import actorflow as af

#: Shape of all values; those that conditions are made of are sums.
SHAPE = (3,)
#: Bodies that have gradients, and all kinds.
BODIES = ("cond", "switch", "while", "scan")
ALL_BODIES = (*BODIES, "call", "emit")


class Eager:
    """The same functions as those of a graph, computed at once on arrays."""

    tanh = staticmethod(np.tanh)
    sin = staticmethod(np.sin)

    @staticmethod
    def total(x: Any) -> Any:
        """Sum of all elements."""
        return np.sum(x)

    @staticmethod
    def cond(predicate: Any, then: Callable[..., Any], otherwise: Callable[..., Any], *operands: Any) -> Any:
        """As `af.cond`."""
        return (then if predicate else otherwise)(*operands)

    @staticmethod
    def switch(index: Any, branches: Sequence[Callable[..., Any]], *operands: Any) -> Any:
        """As `af.switch`."""
        return branches[int(index)](*operands)

    @staticmethod
    def while_loop(condition: Callable[..., Any], body: Callable[..., Any], state: Any, limit: int | None) -> Any:
        """As `af.while_loop`."""
        steps = 0
        while steps != limit and condition(*state):
            state = body(*state)
            steps += 1
        return state

    @staticmethod
    def scan(body: Callable[..., Any], carry: Any, xs: Any, reverse: bool) -> Any:
        """As `af.scan`."""
        taken = []
        for x in xs[::-1] if reverse else xs:
            carry, y = body(carry, x)
            taken.append(y)
        return carry, np.stack(taken[::-1] if reverse else taken)

    @staticmethod
    def stack(xs: Sequence[Any]) -> Any:
        """A new first axis."""
        return np.stack(xs)

    @staticmethod
    def whole(x: Any, most: int) -> Any:
        """A whole number from 0 to ``most``, which follows from a value."""
        return np.int64(abs(int(np.floor(np.sum(x) * 7))) % (most + 1))

    @staticmethod
    def zero() -> Any:
        """Where counting begins."""
        return np.int64(0)

    @staticmethod
    def call(fn: Callable[..., Any], *values: Any) -> Any:
        """As `Graph.call` of a graph that a function makes."""
        return fn(*values)

    @staticmethod
    def emit(count: int, body: Callable[..., Any], x: Any, options: Emits) -> Any:
        """The sum of what a function gives for each item of a generator."""
        return np.sum([body(item) for item in items(x, count)], axis=0)


class Emits(NamedTuple):
    """How items are emitted and joined."""

    is_async: bool
    in_flight: int
    is_stacked: bool


def items(x: Any, count: int) -> Iterator[Any]:
    """Some arrays that follow from one."""
    for i in range(count):
        yield x * ((i + 1) / count)


class Graphs:
    """A graph's functions."""

    tanh = staticmethod(af.ops.tanh)
    sin = staticmethod(af.ops.sin)
    total = staticmethod(af.ops.sum)
    cond = staticmethod(af.cond)
    switch = staticmethod(af.switch)

    @staticmethod
    def while_loop(condition: Callable[..., Any], body: Callable[..., Any], state: Any, limit: int | None) -> Any:
        """As `af.while_loop`."""
        return af.while_loop(condition, body, state, limit=limit)

    @staticmethod
    def scan(body: Callable[..., Any], carry: Any, xs: Any, reverse: bool) -> Any:
        """As `af.scan`."""
        return af.scan(body, carry, xs, reverse=reverse)

    @staticmethod
    def stack(xs: Sequence[Any]) -> Any:
        """A new first axis."""
        return af.ops.stack(list(xs))

    @staticmethod
    def whole(x: Any, most: int) -> Any:
        """A whole number from 0 to ``most``, which follows from a value."""
        return af.ops.cast(af.ops.absolute(af.ops.floor(af.ops.sum(x) * 7)), "int64") % (most + 1)

    @staticmethod
    def zero() -> Any:
        """Where counting begins."""
        return 0

    @staticmethod
    def call(fn: Callable[..., Any], *values: af.Blob) -> Any:
        """An op that calls a graph that a function makes."""
        other = af.Graph("called")
        given = [other.blob(f"given{i}", value.shape, value.dtype) for i, value in enumerate(values)]
        made = fn(*given)
        return values[0].graph.root.call(other, dict(zip(given, values, strict=True)), fetch=made)

    @staticmethod
    def emit(count: int, body: Callable[..., Any], x: af.Blob, options: Emits) -> Any:
        """The sum of what is computed for each item of an op that emits."""

        async def awaited(x: Any) -> AsyncIterator[Any]:
            for item in items(x, count):
                yield item
                await asyncio.sleep(0)

        fn = awaited if options.is_async else partial(items, count=count)
        graph = x.graph.root
        name = f"items{len(graph.ops)}"
        emitting = graph.function(name, fn, x.spec, emits=True, in_flight=options.in_flight)
        y = body(emitting(x))
        if options.is_stacked:
            return af.ops.sum(af.collect(y, length=count), 0)
        return af.collect(y, lambda values: np.sum(values, axis=0), outputs=y.spec)


class Program:
    """A function of two values, made of a seed; it does the same in each world.

    Args:
        seed: Decides all of it.
        depth: Bodies inside of each other, at most.
        kinds: What bodies are of.
    """

    def __init__(self, seed: int, depth: int = 3, kinds: Sequence[str] = BODIES) -> None:
        self.seed = seed
        self.depth = depth
        self._bodies = kinds
        self.kinds: set[str] = set()

    def __call__(self, world: Any, x: Any, w: Any) -> Any:
        return self._value(random.Random(self.seed), world, [x, w], self.depth) + x * w * 0.1

    def _value(self, rng: random.Random, world: Any, known: list[Any], depth: int) -> Any:
        values = [*known]
        for _ in range(rng.randint(1, 3)):
            values.append(self._step(rng, world, values, depth))
        return values[-1] + rng.choice(values) * 0.5

    def _step(self, rng: random.Random, world: Any, values: list[Any], depth: int) -> Any:
        kind = rng.choice(["plain", *self._bodies]) if depth else "plain"
        a, b = rng.choice(values), rng.choice(values)
        self.kinds.add(kind)
        inner = rng.randrange(1 << 30)

        def part(x: Any, offset: int = 0) -> Any:
            # What is known outside is read from outside.
            return self._value(random.Random(inner + offset), world, [x, *values], depth - 1)

        if kind == "cond":
            return world.cond(world.total(a) > rng.uniform(-1, 1), part, lambda x: part(x, 1), b)
        if kind == "switch":
            count = rng.randint(1, 3)
            return world.switch(world.whole(a, count - 1), [lambda x, i=i: part(x, i) for i in range(count)], b)
        if kind == "while":
            most, limit = rng.randint(0, 4), rng.randint(0, 4)
            until = world.whole(a, most)
            _, found = world.while_loop(
                lambda n, x: n < until, lambda n, x: (n + 1, world.tanh(part(x))), (world.zero(), b), limit
            )
            return found
        if kind == "scan":
            xs = world.stack([world.sin(rng.choice(values)) for _ in range(rng.randint(1, 3))])
            last, taken = world.scan(
                lambda c, x: (world.tanh(part(c) + x), world.sin(c * x)), b, xs, rng.random() < 0.5
            )
            return last + taken[0]
        if kind == "call":
            return world.call(lambda *given: self._value(random.Random(inner), world, [*given], depth - 1), a, b)
        if kind == "emit":
            options = Emits(rng.random() < 0.5, rng.randint(1, 3), rng.random() < 0.5)
            # The generator reads what is around it, so that its items are inside of those that are emitted there.
            return world.emit(rng.randint(1, 4), lambda x: world.tanh(part(x) + x), b + values[0] * 0, options)
        return rng.choice([lambda: a + b, lambda: a * b * 0.5, lambda: world.tanh(a) - b, lambda: world.sin(a * 2)])()
