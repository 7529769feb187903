"""Attention and rotary positions."""

from __future__ import annotations

from typing import Any

import numpy as np

import actorflow as af
from actorflow import ops
from tests.operations.table import Make, call, composed, normal, refused


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


def _masked(shapes: tuple[tuple[int, ...], ...], mask: tuple[int, ...], dtype: str) -> Make:
    def make(random: np.random.Generator) -> list[np.ndarray]:
        arrays = normal(*shapes)(random)
        seen = random.random(mask) < 0.7
        return [*arrays, seen if dtype == "bool" else np.where(seen, random.standard_normal(mask), -np.inf)]

    return make


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


_QKV, _FEW = ((4, 3, 2), (2, 5, 2), (2, 5, 3)), ((2, 1, 3), (1, 4, 3), (1, 4, 1))
_IN_BATCHES = ((2, 3, 2, 4), (2, 3, 3, 4), (2, 3, 3, 2))

ROWS = [
    composed(
        "ops.attention",
        _attention,
        call(ops.attention, _masked(_QKV, (4, 1, 5), "number"), causal=True, scale=0.3),
        call(ops.attention, _masked(_QKV, (3, 5), "bool")),
        call(ops.attention, _masked(_QKV, (4, 3, 5), "bool"), causal=True),
        call(ops.attention, _masked(_IN_BATCHES, (2, 3, 2, 3), "number")),
        *(call(ops.attention, normal(*_FEW), causal=causal) for causal in (False, True)),
        *(
            call(ops.attention, normal((2, 3, heads * n), (2, 4, served * n), (2, 4, served * 3)), heads=heads)
            for heads, served, n in ((4, 2, 2), (3, 3, 1), (2, 1, 4))
        ),
    ),
    composed(
        "ops.rotary",
        _rotary,
        *(
            call(ops.rotary, _angles(batch, positions, pairs, rest), interleaved=interleaved)
            for batch, positions, pairs, rest in (((2,), 3, 2, 1), ((), 1, 1, 0), ((2, 3), 4, 3, 2))
            for interleaved in (False, True)
        ),
    ),
]

_CUBE = (2, 3, 4)

WRONG = refused(
    af.ShapeError,
    *(
        (
            lambda *x, heads=heads: ops.attention(*x, heads=heads),
            [_CUBE] * 3,
            f"{heads} heads must have the same number",
        )
        for heads in (0, 3)
    ),
    (ops.attention, [_CUBE, (2, 3, 5), _CUBE], "Matmul: b must have length 4 on"),
    (ops.rotary, [(2, 3), (2, 2), (2, 2)], "rotary: x must have at least 2 features"),
)
