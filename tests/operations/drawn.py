"""Strategies of further samples: of any shapes, axes and parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.operations.table import Make, Sample, normal

SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
#: Shapes of at least one element.
FILLED = hnp.array_shapes(min_dims=0, max_dims=4, min_side=1, max_side=4)
#: Shapes of at least one axis, and of no element at times.
AXES = hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=4)
SIZES = st.integers(1, 4)


@st.composite
def broadcast(draw: st.DrawFn, samples: Sequence[Sample]) -> Sample:
    """One of some samples, with the same numbers in any shapes that broadcast."""
    sample = draw(st.sampled_from(samples))
    count = len(sample.drawn())
    shapes = draw(hnp.mutually_broadcastable_shapes(num_shapes=count, max_dims=4, min_side=0, max_side=4)).input_shapes

    def make(random: np.random.Generator) -> list[np.ndarray]:
        return [np.resize(x, shape) for x, shape in zip(sample.make(random), shapes, strict=True)]

    return replace(sample, make=make)


@st.composite
def axes_of(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Some of the axes, or None for all."""
    if not shape or draw(st.booleans()):
        return None
    return tuple(sorted(draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))))


@st.composite
def reduced(
    draw: st.DrawFn, kind: Any, make: Callable[..., Make] = normal, shapes: Any = SHAPES, is_one_axis: bool = False
) -> Sample:
    """A reduction along some axes, one of them long at times."""
    shape = draw(shapes)
    axes = draw(axes_of(shape))
    if axes is not None and is_one_axis:
        axes = axes[:1]
    if shape and draw(st.booleans()):
        i = draw(st.integers(0, len(shape) - 1))
        shape = (*shape[:i], shape[i] * 50, *shape[i + 1 :])
    return Sample(kind(axes, axes is not None and draw(st.booleans())), make(shape))


@st.composite
def along_axis(draw: st.DrawFn, kind: Any, make: Callable[..., Make] = normal, *more: Any) -> Sample:
    """An operation along any axis, with further parameters."""
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=5))
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    return Sample(kind(axis, *(draw(each) for each in more)), make(shape))


class Axes:
    """Draws values for each of one to three spatial axes."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.rank = draw(st.sampled_from([1, 2, 2, 3]))
        self.draw = draw

    def __call__(self, low: int, high: int) -> tuple[int, ...]:
        return self.draw(st.tuples(*[st.integers(low, high)] * self.rank))
