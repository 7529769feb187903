"""Attention and rotary positions."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from actorflow import ops
from tests.operations.drawn import SIZES
from tests.operations.table import SINGLE_AND_DOUBLE, Make, Row, Sample, call, normal


def _seen(torch: Any, q: Any, k: Any, mask: Any, causal: bool) -> Any:
    """The mask and the positions of a query as one mask: torch takes one of the two."""
    tri = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
    if mask is None or not causal:
        return mask if mask is not None else tri if causal else None
    return mask & tri if mask.dtype == torch.bool else mask.masked_fill(~tri, -torch.inf)


def _attention(
    torch: Any, q: Any, k: Any, v: Any, mask: Any = None, causal: bool = False, scale: Any = None, heads: Any = None
) -> Any:
    if heads:
        served = k.shape[-1] * heads // q.shape[-1]
        q, k, v = (x.unflatten(-1, (n, -1)).transpose(1, 2) for x, n in ((q, heads), (k, served), (v, served)))
    math = torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)  # which has second derivatives
    with math:
        given = _seen(torch, q, k, mask, causal)
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, given, scale=scale, enable_gqa=True)
    return y.transpose(1, 2).flatten(2) if heads else y


def _masked(shapes: tuple[tuple[int, ...], ...], mask: tuple[int, ...], masked: str) -> Make:
    def make(random: np.random.Generator) -> list[np.ndarray]:
        arrays = normal(*shapes)(random)
        seen = random.random(mask) < 0.7
        number = np.where(seen, random.standard_normal(mask), -np.inf)
        return [*arrays, *{"none": [], "bool": [seen], "number": [number]}[masked]]

    return make


@st.composite
def _attentions(draw: st.DrawFn) -> Sample:
    batch = tuple(draw(st.lists(SIZES, max_size=1)))
    queries, keys, features, values, served = (draw(SIZES) for _ in range(5))
    heads = served * draw(st.integers(1, 3))
    q, k, v = (*batch, heads, queries, features), (*batch, served, keys, features), (*batch, served, keys, values)
    mask = draw(st.sampled_from([(queries, keys), (heads, 1, keys), (*q[:-1], keys)]))
    make = _masked((q, k, v), mask, draw(st.sampled_from(["none", "bool", "number"])))
    return call(ops.attention, make, causal=draw(st.booleans()), scale=draw(st.sampled_from([None, 0.3])))


@st.composite
def _side_by_side(draw: st.DrawFn) -> Sample:
    batch, queries, keys, features, served = (draw(SIZES) for _ in range(5))
    heads = served * draw(st.integers(1, 2))
    shapes = (batch, queries, heads * features), (batch, keys, served * features), (batch, keys, served * 3)
    return call(ops.attention, normal(*shapes), heads=heads)


def _rotary(torch: Any, x: Any, cos: Any, sin: Any, interleaved: bool = False) -> Any:
    pairs = cos.shape[-1]
    turned, kept = x[..., : 2 * pairs], x[..., 2 * pairs :]
    if interleaved:
        by = torch.complex(cos, sin)
        turned = torch.view_as_real(torch.view_as_complex(turned.unflatten(-1, (-1, 2)).contiguous()) * by).flatten(-2)
    else:
        a, b = turned.chunk(2, -1)
        turned = torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
    return torch.cat([turned, kept], -1)


def _angles(batch: tuple[int, ...], positions: int, pairs: int, rest: int) -> Make:
    def make(random: np.random.Generator) -> list[np.ndarray]:
        x, angles = normal((*batch, positions, 2 * pairs + rest), (positions, pairs))(random)
        return [x, np.cos(angles), np.sin(angles)]

    return make


@st.composite
def _rotations(draw: st.DrawFn) -> Sample:
    make = _angles(tuple(draw(st.lists(SIZES, max_size=2))), draw(SIZES), draw(SIZES), draw(st.integers(0, 2)))
    return call(ops.rotary, make, interleaved=draw(st.booleans()))


_QKV = ((4, 3, 2), (2, 5, 2), (2, 5, 3))

ROWS = [
    Row(
        None,
        [
            call(ops.attention, _masked(_QKV, (4, 1, 5), "number"), causal=True, scale=0.3),
            call(ops.attention, _masked(_QKV, (3, 5), "bool")),
            call(ops.attention, normal((2, 3, 8), (2, 4, 4), (2, 4, 6)), heads=4),
        ],
        name="ops.attention",
        torch=_attention,
        dtypes=SINGLE_AND_DOUBLE,
        strategy=st.one_of(_attentions(), _side_by_side()),
    ),
    Row(
        None,
        [call(ops.rotary, _angles((2,), 3, 2, 1), interleaved=interleaved) for interleaved in (False, True)],
        name="ops.rotary",
        torch=_rotary,
        dtypes=SINGLE_AND_DOUBLE,
        strategy=_rotations(),
    ),
]
