"""The layer of attention against PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

import actorflow as af
from actorflow import nn
from tests.oracle.comparison import drawn

torch = pytest.importorskip("torch", reason="torch is not installed: make test-oracle")

pytestmark = pytest.mark.oracle


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
