"""Random graphs give what a plain Python loop gives: any shape, order of events, overlap, and planted errors."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import actorflow as af
from actorflow.testing import interleave

SHAPES = ((), (1,), (3,), (2, 2), (0, 2))
LANES = ("main", "left", "right")


@dataclass(frozen=True)
class Step:
    """One op: what it reads, whether it adds to an existing blob, and what it is."""

    inputs: tuple[int, ...]
    adds_to: int | None
    shape: tuple[int, ...]
    kind: str
    lane: str
    scope: int
    awaits: int
    fails: bool


@dataclass(frozen=True)
class Recipe:
    """A graph: sources, steps, whether a variable is updated by the last blob, frames to run."""

    sources: tuple[tuple[int, ...], ...]
    steps: tuple[Step, ...]
    counts: bool
    frames: int
    seed: int


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    sources = tuple(draw(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=3)))
    shapes = list(sources)
    consumed: set[int] = set(range(len(sources)))
    steps = []
    for _ in range(draw(st.integers(1, 12))):
        inputs = tuple(draw(st.lists(st.integers(0, len(shapes) - 1), max_size=4)))
        # A blob that nothing reads yet may get another producer without a cycle, if that does not come from itself.
        free = [i for i in range(len(shapes)) if i not in consumed and i not in inputs]
        adds_to = draw(st.sampled_from(free)) if free and draw(st.booleans()) else None
        shape = draw(st.sampled_from(SHAPES)) if adds_to is None else shapes[adds_to]
        steps.append(
            Step(
                inputs,
                adds_to,
                shape,
                draw(st.sampled_from(("function", "function", "async", "kernel"))),
                draw(st.sampled_from(LANES)),
                draw(st.integers(0, 2)),
                draw(st.integers(0, 2)),
                draw(st.integers(0, 19)) == 0,
            )
        )
        consumed.update(inputs)
        if adds_to is None:
            shapes.append(shape)
    return Recipe(sources, tuple(steps), draw(st.booleans()), draw(st.integers(1, 4)), draw(st.integers(0, 2**32 - 1)))


class PlantedError(Exception):
    pass


@dataclass
class Subject:
    """A recipe as a graph, and as a plain program."""

    recipe: Recipe
    armed: bool = True
    graph: af.Graph = field(init=False)
    sources: list[af.Blob] = field(init=False)
    blobs: list[af.Blob] = field(init=False)

    def __post_init__(self) -> None:
        self.graph = af.Graph("random")
        self.sources = [self.graph.blob(f"source{i}", shape, "float64") for i, shape in enumerate(self.recipe.sources)]
        self.blobs = list(self.sources)
        scopes: list[af.Graph] = [self.graph]
        for depth in range(2):
            scopes.append(scopes[-1].subgraph(f"inner{depth}"))
        for i, step in enumerate(self.recipe.steps):
            self._add(i, step, scopes[step.scope])
        if self.recipe.counts:
            self.counter = self.graph.variable("counter", (), "float64", init=1.0)
            last = self.blobs[-1]
            update = self.graph.function("count", lambda old, new: old * 0.5 + new.sum(), lane="right")
            [self.counter, last] >> update >> [self.counter]

    def _add(self, index: int, step: Step, scope: af.Graph) -> None:
        inputs = [self.blobs[i] for i in step.inputs]
        if step.adds_to is None:
            self.blobs.append(scope.blob(f"blob{index}", step.shape, "float64"))
        output = self.blobs[-1 if step.adds_to is None else step.adds_to]
        same = [blob for blob in inputs if blob.shape == step.shape]
        if step.kind == "kernel" and same and len(same) == len(inputs) and not step.fails:
            op = scope.op(f"op{index}", af.ops.Sum(), lane=step.lane)
        else:
            op = scope.function(f"op{index}", self._function(index, step), lane=step.lane)
        inputs >> op >> [output]

    def _function(self, index: int, step: Step) -> object:
        def compute(*values: np.ndarray) -> np.ndarray:
            if step.fails and self.armed:
                raise PlantedError(index)
            return evaluate(index, step, values)

        async def compute_async(*values: np.ndarray) -> np.ndarray:
            for _ in range(step.awaits):
                await asyncio.sleep(0)
            return compute(*values)

        return compute_async if step.kind == "async" else compute

    def feeds(self, frame: int) -> dict[af.Blob, np.ndarray]:
        generator = np.random.default_rng([self.recipe.seed, frame])
        return {blob: generator.standard_normal(blob.shape) for blob in self.sources}

    def sequential(self) -> list[dict[str, np.ndarray]]:
        """Results of a plain loop, frame after frame."""
        counter, results = 1.0, []
        for number in range(self.recipe.frames):
            values: list[np.ndarray | None] = list(self.feeds(number).values())
            for index, step in enumerate(self.recipe.steps):
                inputs = [values[i] for i in step.inputs]
                uses_sum = step.kind == "kernel" and inputs and all(v.shape == step.shape for v in inputs)
                if uses_sum and not step.fails:
                    value = inputs[0].copy()
                    for term in inputs[1:]:
                        value = value + term
                else:
                    value = evaluate(index, step, inputs)
                if step.adds_to is None:
                    values.append(value)
                else:
                    values[step.adds_to] = values[step.adds_to] + value
            result = {b.name: v for b, v in zip(self.blobs, values, strict=True) if b.producers}
            if self.recipe.counts:
                result["counter"] = np.float64(counter)
                counter = counter * 0.5 + values[-1].sum()
            results.append(result)
        return results

    def may_fail(self) -> set[str]:
        """Ops that fail before anything that they depend on does."""
        spoiled: set[int] = set()
        first = set()
        known = len(self.sources)
        for index, step in enumerate(self.recipe.steps):
            output = step.adds_to
            if output is None:
                output, known = known, known + 1
            if spoiled & set(step.inputs):
                spoiled.add(output)
            elif step.fails:
                spoiled.add(output)
                first.add("inner0/inner1/"[: 7 * step.scope] + f"op{index}")
        return first


def evaluate(index: int, step: Step, values: object) -> np.ndarray:
    total = float(index)
    for position, value in enumerate(values):
        total += (position + 1) * float(value.sum())
    return np.full(step.shape, total)


@given(recipe=recipes())
async def test_equals_a_plain_loop(recipe: Recipe) -> None:
    subject = Subject(recipe)
    interleave(subject.graph, recipe.seed)
    fetch = [blob for blob in subject.blobs if blob.producers]
    everything = [*fetch, subject.graph]
    if recipe.counts:
        everything.append(subject.counter)
    async with subject.graph:
        failing = subject.may_fail()
        if failing:
            with pytest.raises(af.OpError) as caught:
                await subject.graph.run(subject.feeds(0), fetch=everything)
            assert caught.value.op.name in failing
            assert isinstance(caught.value.__cause__, PlantedError)
            subject.armed = False
            if recipe.counts:
                subject.counter.value = 1.0
        runs = [subject.graph.run(subject.feeds(n), fetch=everything) for n in range(recipe.frames)]
        results = await asyncio.gather(*runs)
        for got, expected in zip(results, subject.sequential(), strict=True):
            assert set(got) == set(expected)
            for name, value in expected.items():
                np.testing.assert_array_equal(got[name], value, err_msg=name)
        counts = subject.graph.engine.frames
        assert (counts.in_flight, counts.finished) == (0, recipe.frames)


async def test_fifty_overlapping_runs_give_fifty_answers() -> None:
    graph = af.Graph("fifty")
    x = graph.blob("x", (64, 32))
    weight = graph.variable("weight", (16, 32), init=lambda spec, name: np.random.default_rng(0).random(spec.shape))
    y = af.ops.softmax(af.ops.relu(af.ops.inner(x, weight)))
    batches = np.random.default_rng(1).standard_normal((50, 64, 32), dtype=np.float32)

    def expected(batch: np.ndarray) -> np.ndarray:
        z = np.maximum(batch @ weight.value.T, 0)
        e = np.exp(z - z.max(axis=1, keepdims=True))
        return e / e.sum(axis=1, keepdims=True)

    async with graph:
        results = await asyncio.gather(*(graph.run({x: batch}) for batch in batches))
    for batch, result in zip(batches, results, strict=True):
        np.testing.assert_allclose(result[y], expected(batch), rtol=1e-5)
