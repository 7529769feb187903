"""Windows over images, by loops over them: what references of convolutions and poolings are made of."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st


class Axis(NamedTuple):
    """Windows along an axis: of which elements they are, and how many of them the border has, too."""

    elements: list[list[int]]
    places: list[list[int]]
    seen: list[int]


def per_axis(value: Any, rank: int) -> tuple[Any, ...]:
    """A parameter for each axis."""
    return value if isinstance(value, tuple) else (value,) * rank


def pairs(pad: Any, rank: int) -> list[tuple[int, int]]:
    """The border before and after, for each axis."""
    return [each if isinstance(each, tuple) else (each, each) for each in per_axis(pad, rank)]


def axes(
    size: tuple[int, ...], kernel: Any, stride: Any = 1, pad: Any = 0, ceil: bool = False, dilation: Any = 1
) -> list[Axis]:
    """The windows along each axis; none starts behind the image."""
    found = []
    stride = kernel if stride is None else stride
    given = (per_axis(each, len(size)) for each in (kernel, stride, dilation))
    for n, k, s, d, (before, after) in zip(size, *given, pairs(pad, len(size)), strict=True):
        room = n + before + after - d * (k - 1) - 1
        count = (-(-room // s) if ceil else room // s) + 1
        count = min(count, (n + before - 1) // s + 1) if ceil else count
        along = Axis([], [], [])
        for start in (i * s - before for i in range(count)):
            reached = [(place, start + place * d) for place in range(k) if start + place * d < n + after]
            inside = [(place, i) for place, i in reached if 0 <= i < n]
            along.places.append([place for place, _ in inside])
            along.elements.append([i for _, i in inside])
            along.seen.append(len(reached))
        found.append(along)
    return found


def windows(along: list[Axis]) -> Iterator[tuple[tuple[int, ...], list[list[int]], list[list[int]], int]]:
    """Each window: its index, its places and elements along each axis, its size with the border."""
    for index in product(*(range(len(each.seen)) for each in along)):
        at = list(zip(along, index, strict=True))
        places, elements = ([getattr(each, name)[i] for each, i in at] for name in ("places", "elements"))
        yield index, places, elements, int(np.prod([each.seen[i] for each, i in at]))


def out_of(along: list[Axis]) -> tuple[int, ...]:
    """Numbers of windows."""
    return tuple(len(each.seen) for each in along)


def channels_first(torch: Any, x: Any) -> Any:
    """A tensor with channels first, copied: torch 2.13 reads beside images of one channel that seem to have it last."""
    return x.movedim(-1, 1).clone(memory_format=torch.contiguous_format)


def channels_last(x: Any) -> Any:
    """A tensor with channels last."""
    return x.movedim(1, -1)


def bordered(torch: Any, x: Any, pad: Any, value: float = 0.0) -> Any:
    """A tensor with channels first, and a border on all sides."""
    border = [n for pair in reversed(pairs(pad, x.ndim - 2)) for n in pair]
    return torch.nn.functional.pad(channels_first(torch, x), border, value=value)


class Sliding(NamedTuple):
    """Images, and windows over them."""

    batch: int
    size: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    pad: tuple[Any, ...]
    dilation: tuple[int, ...]


@st.composite
def sliding(draw: st.DrawFn, is_pooled: bool, is_even: bool) -> Sliding:
    """Windows that fit; the border of pooled ones is less than the kernel, that of even ones the same on both sides."""
    rank = draw(st.sampled_from([1, 2, 2, 2, 3]))
    axis = lambda low, high: st.tuples(*[st.integers(low, high)] * rank)  # noqa: E731
    kernel, dilation = draw(axis(1, 4 if is_pooled else 3)), draw(axis(1, 2))
    sides = [[draw(st.integers(0, k - 1 if is_pooled else 2)) for _ in range(1 if is_even else 2)] for k in kernel]
    least = [max(1, d * (k - 1) + 1 - p[0] - p[-1]) for k, d, p in zip(kernel, dilation, sides, strict=True)]
    size = tuple(n + more for n, more in zip(least, draw(axis(0, 5)), strict=True))
    pad = tuple(p[0] if is_even else tuple(p) for p in sides)
    return Sliding(draw(st.integers(0, 3)), size, kernel, draw(axis(1, 5)), pad, dilation)
