"""Recipes of random graphs, and the plain sequential program that each one describes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

SHAPES = ((3,), (3,), (), (2, 2), (4,), (0, 2))
LANES = (None, "left", "right")
#: Where graphs for the simulated accelerator have their ops and blobs.
PLACES = ("cpu", "sim:0", "sim:0", "sim:1")

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Step:
    """One op. Values are numbered: sources, then variables, then what steps make; ``target`` is one of them."""

    inputs: tuple[int, ...]
    target: int
    shape: tuple[int, ...]
    kind: str
    lane: str | None
    concurrency: int | None
    retries: int
    place: str = "cpu"


@dataclass(frozen=True)
class Recipe:
    sources: tuple[tuple[int, ...], ...]
    variables: tuple[tuple[int, ...], ...]
    steps: tuple[Step, ...]
    slack: int | None
    sequential: bool
    atomic: bool
    streams: bool
    in_flight: int
    seed: int
    homes: tuple[str, ...] = ()
    kernel_s: float = 0.0
    deterministic: bool = False

    @property
    def is_on_host(self) -> bool:
        """Return whether there is no other device than the CPU."""
        return not self.homes

    @property
    def first_blob(self) -> int:
        return len(self.sources) + len(self.variables)

    def home(self, value: int) -> str:
        """Place of a source or a variable."""
        return self.homes[value] if self.homes else "cpu"

    def is_variable(self, value: int) -> bool:
        return len(self.sources) <= value < self.first_blob


@st.composite
def recipes(draw: st.DrawFn, places: Sequence[str] = ()) -> Recipe:
    """Recipes whose ops and blobs are on ``places``, all on the CPU if that is empty."""
    sources = tuple(draw(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=2)))
    variables = tuple(draw(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=3)))
    shapes = [*sources, *variables]
    first = len(shapes)
    read: set[int] = set()
    steps = []
    for _ in range(draw(st.integers(2, 9))):
        inputs = tuple(draw(st.lists(st.integers(0, len(shapes) - 1), max_size=3)))
        read.update(inputs)
        # A blob that nothing reads yet may have a further producer; a variable always may, its readers see the old one.
        old = [i for i in range(len(sources), len(shapes)) if i < first or i not in read]
        target = draw(st.sampled_from([len(shapes), *old]))
        if target == len(shapes):
            shapes.append(draw(st.sampled_from(SHAPES)))
        kinds = ("plain", "async", "kernel", "same", "view")
        kinds = (*kinds, "kernel", "kernel", "view") if places else kinds
        kind = draw(st.sampled_from(kinds if inputs else ("plain", "async")))
        concurrency = draw(st.sampled_from((None, 1, 2, 3))) if kind == "async" else None
        retries = draw(st.sampled_from((0, 0, 0, 1)))
        lane, place = draw(st.sampled_from(LANES)), draw(st.sampled_from(places)) if places else "cpu"
        steps.append(Step(inputs, target, shapes[target], kind, lane, concurrency, retries, place))
    return Recipe(
        sources,
        variables,
        tuple(steps),
        draw(st.sampled_from((None, None, 0, 100))),
        draw(st.integers(0, 9)) == 0,
        draw(st.booleans()),
        draw(st.booleans()),
        draw(st.integers(1, 4 if places else 8)),
        draw(st.integers(0, 2**32 - 1)),
        tuple(draw(st.sampled_from(places)) for _ in range(first)) if places else (),
        draw(st.sampled_from((0.0, 0.0, 1e-5))) if places else 0.0,
        bool(places) and draw(st.integers(0, 9)) == 0,
    )


def evaluate(index: int, step: Step, values: list[Array]) -> Array:
    """Result of one step; each formula is the one that the op of its kind has."""
    same = all(value.shape == step.shape for value in values)
    if step.kind == "kernel" and same and len(values) > 1:
        total = values[0]
        for value in values[1:]:
            total = total + value
        return total
    if step.kind == "kernel" and same:
        return 0.75 * values[0]
    if is_view(step, [value.shape for value in values]):
        return values[0].reshape(step.shape)
    if step.kind == "same" and same:
        return values[0]  # itself: its buffer has then more readers than the graph says
    number = index + 1.0
    for position, value in enumerate(values):
        number += float(np.sum(value)) / (position + 3)
    return np.full(step.shape, number) * np.linspace(0.1, 0.4, int(np.prod(step.shape))).reshape(step.shape)


def is_view(step: Step, shapes: Sequence[tuple[int, ...]]) -> bool:
    """Return whether a step shows the memory of its input in another shape."""
    return step.kind == "view" and len(shapes) == 1 and math.prod(shapes[0]) == math.prod(step.shape)


class Reference:
    """The recipe as a plain program: one frame after the other, one step after the other."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.writers: dict[int, list[int]] = {}
        for index, step in enumerate(recipe.steps):
            self.writers.setdefault(step.target, []).append(index)
        self.state = [initial(i, shape) for i, shape in enumerate(recipe.variables)]

    def frame(self, feeds: list[Array]) -> tuple[list[Array], dict[int, Array]]:
        """All values of a frame, and the new values of the variables, by number."""
        recipe = self.recipe
        values: list[Array] = [*feeds, *self.state]
        terms: dict[int, list[Array]] = {}
        blobs = sorted(target for target in self.writers if target >= recipe.first_blob)
        values += [np.empty(0)] * len(blobs)
        for index, step in enumerate(recipe.steps):
            term = evaluate(index, step, [values[i] for i in step.inputs])
            terms.setdefault(step.target, []).append(term)
            if step.target >= recipe.first_blob:
                values[step.target] = added(terms[step.target])
        return values, {target: added(parts) for target, parts in terms.items() if recipe.is_variable(target)}

    def upstream(self, steps: set[int]) -> set[int]:
        """Steps that these need, themselves included."""
        todo, found = list(steps), set(steps)
        while todo:
            for value in self.recipe.steps[todo.pop()].inputs:
                if not self.recipe.is_variable(value):
                    new = set(self.writers.get(value, ())) - found
                    found |= new
                    todo += new
        return found


def added(terms: list[Array]) -> Array:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def initial(number: int, shape: tuple[int, ...]) -> Array:
    return np.full(shape, 0.5 + number)
