"""Attention and rotary positions against PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import actorflow as af
from actorflow import nn, ops
from tests.oracle.comparison import check, drawn, examples

torch = pytest.importorskip("torch", reason="torch is not installed: make test-oracle")
F = torch.nn.functional

pytestmark = pytest.mark.oracle

dtypes = st.sampled_from(["float32", "float64"])
seeds = st.integers(0, 2**32 - 1)
sizes = st.integers(1, 4)
many = examples(40)


def math():
    """Attention by differentiable operations."""
    return torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)


def _seen(q, k, mask, causal):
    """The mask and the positions of a query as one mask: torch takes one of the two."""
    tri = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
    if mask is None or not causal:
        return mask if mask is not None else tri if causal else None
    return mask & tri if mask.dtype == torch.bool else mask.masked_fill(~tri, -torch.inf)


@many
@given(
    st.lists(sizes, max_size=1),
    st.tuples(sizes, st.integers(1, 3)),
    st.tuples(sizes, sizes, sizes, sizes),
    st.sampled_from(["none", "bool", "number"]),
    st.booleans(),
    st.sampled_from([None, 0.3]),
    dtypes,
    seeds,
)
def test_attention(batch, heads, lengths, masked, causal, scale, dtype, seed) -> None:
    (served, sharing), (queries, keys, features, values) = heads, lengths
    q_shape = (*batch, served * sharing, queries, features)
    k_shape, v_shape = (*batch, served, keys, features), (*batch, served, keys, values)
    q, k, v = drawn(seed, q_shape, k_shape, v_shape, dtype=dtype)
    random = np.random.default_rng(seed)
    shape = [(queries, keys), (served * sharing, 1, keys), (*q_shape[:-1], keys)][random.integers(3)]
    seen = random.random(shape) < 0.7
    number = np.where(seen, random.standard_normal(shape), -np.inf).astype(dtype)
    more = {"none": [], "bool": [seen], "number": [number]}[masked]

    def theirs(q, k, v, mask=None):
        with math():  # which has second derivatives
            given = _seen(q, k, mask, causal)
            return F.scaled_dot_product_attention(q, k, v, given, scale=scale, enable_gqa=True)

    check(lambda *given: ops.attention(*given, causal=causal, scale=scale), theirs, [q, k, v, *more])


@many
@given(sizes, sizes, st.tuples(sizes, st.integers(1, 2)), sizes, sizes, dtypes, seeds)
def test_heads_side_by_side(batch, queries, heads, keys, features, dtype, seed) -> None:
    served, sharing = heads
    q_shape = (batch, queries, served * sharing * features)
    shapes = [q_shape, (batch, keys, served * features), (batch, keys, served * 3)]

    def theirs(q, k, v):
        q, k, v = (
            x.unflatten(-1, (n, -1)).transpose(1, 2) for x, n in ((q, served * sharing), (k, served), (v, served))
        )
        with math():
            return F.scaled_dot_product_attention(q, k, v, enable_gqa=True).transpose(1, 2).flatten(2)

    check(lambda q, k, v: ops.attention(q, k, v, heads=served * sharing), theirs, drawn(seed, *shapes, dtype=dtype))


@many
@given(st.lists(sizes, max_size=2), sizes, sizes, st.integers(0, 2), st.booleans(), dtypes, seeds)
def test_rotary(batch, positions, pairs, rest, interleaved, dtype, seed) -> None:
    x, angles = drawn(seed, (*batch, positions, 2 * pairs + rest), (positions, pairs), dtype=dtype)

    def theirs(x, cos, sin):
        turned, kept = x[..., : 2 * pairs], x[..., 2 * pairs :]
        if interleaved:
            turned = torch.view_as_real(
                torch.view_as_complex(turned.unflatten(-1, (-1, 2)).contiguous()) * (cos + 1j * sin)
            )
            turned = turned.flatten(-2)
        else:
            a, b = turned.chunk(2, -1)
            turned = torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
        return torch.cat([turned, kept], -1)

    check(
        lambda x, cos, sin: ops.rotary(x, cos, sin, interleaved=interleaved),
        theirs,
        [x, np.cos(angles), np.sin(angles)],
    )


def test_the_layer() -> None:
    graph = af.Graph("g")
    x, context = graph.blob("x", (2, 4, 6), "float64"), graph.blob("context", (2, 5, 6), "float64")
    layer, oracle = nn.MultiHeadAttention(3), torch.nn.MultiheadAttention(6, 3, batch_first=True).double()
    y, self_y = layer(x, context), layer(x)
    weights = {variable.name.rpartition("/")[2]: variable for variable in layer.variables}
    assert [*weights] == [f"{kind}_{name}" for name in ("q", "k", "v", "out") for kind in ("weight", "bias")]
    with torch.no_grad():
        oracle.in_proj_bias.normal_(generator=torch.Generator().manual_seed(0))
        for i, name in enumerate("qkv"):
            weights[f"weight_{name}"].value = oracle.in_proj_weight[6 * i : 6 * i + 6].numpy()
            weights[f"bias_{name}"].value = oracle.in_proj_bias[6 * i : 6 * i + 6].numpy()
        weights["weight_out"].value = oracle.out_proj.weight.numpy()
    arrays = drawn(0, x.shape, context.shape, dtype="float64")
    result = graph.run_sync(dict(zip((x, context), arrays, strict=True)), fetch=[y, self_y])
    q, k = (torch.from_numpy(a) for a in arrays)
    for mine, other in ((y, k), (self_y, q)):
        np.testing.assert_allclose(result[mine], oracle(q, other, other)[0].detach().numpy(), rtol=1e-9, atol=1e-12)
