"""Losses against PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from actorflow import ops
from tests.oracle.comparison import check, drawn, examples

torch = pytest.importorskip("torch", reason="torch is not installed: make test-oracle")
F = torch.nn.functional

pytestmark = pytest.mark.oracle

shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=1, max_side=5)
dtypes = st.sampled_from(["float32", "float64"])
seeds = st.integers(0, 2**32 - 1)
reductions = st.sampled_from(["mean", "sum", "none"])
many = examples(25)


def _channels_second(x):
    return x.movedim(-1, 1) if x.ndim > 1 else x


@pytest.mark.parametrize(
    ("mine", "oracle"), [(ops.softmax_loss, F.cross_entropy), (ops.nll_loss, F.nll_loss)], ids=["softmax", "nll"]
)
@many
@given(
    shape=hnp.array_shapes(min_dims=0, max_dims=2, min_side=1, max_side=4),
    classes=st.integers(1, 5),
    dtype=dtypes,
    reduction=reductions,
    scale=st.sampled_from([1.0, 0.3]),
    weighted=st.booleans(),
    ignore=st.sampled_from([None, 0, -100]),
    seed=seeds,
)
def test_losses_of_labels(mine, oracle, shape, classes, dtype, reduction, scale, weighted, ignore, seed) -> None:
    random = np.random.default_rng(seed)
    (x,) = drawn(seed, (*shape, classes), dtype=dtype)
    labels = np.asarray(random.integers(0, classes, shape))
    labels = np.asarray(np.where(random.random(shape) < 0.2, labels if ignore is None else ignore, labels))
    weights = random.random(classes).astype(dtype) + dtype_one(dtype)

    def ours(x, labels):
        root = x.graph
        given = root.variable("weights", (classes,), dtype, weights) if weighted else None
        return mine(x, labels, given, reduction=reduction, scale=scale, ignore=ignore)

    def theirs(x, labels):
        given = torch.from_numpy(weights) if weighted else None
        more = {} if ignore is None else {"ignore_index": ignore}
        return scale * oracle(_channels_second(x), labels, given, reduction=reduction, **more)

    if reduction == "mean" and ignore is not None and (labels == ignore).all():
        return  # the mean of nothing: tests/ops
    check(ours, theirs, [x, labels])


def dtype_one(dtype):
    return np.dtype(dtype).type(0.5)


PAIRS = {
    "mse": (ops.mse_loss, F.mse_loss),
    "l1": (ops.l1_loss, F.l1_loss),
    "huber": (
        lambda x, t, **how: ops.huber_loss(x, t, 0.7, **how),
        lambda x, t, **how: F.huber_loss(x, t, delta=0.7, **how),
    ),
    "logistic": (ops.binary_cross_entropy_with_logits, F.binary_cross_entropy_with_logits),
    "entropy": (ops.binary_cross_entropy, F.binary_cross_entropy),
    "hinge": (
        ops.hinge_loss,
        lambda x, t, reduction: getattr(torch, reduction, torch.clone)(torch.clamp(1 - x * t, min=0)),
    ),
}


@pytest.mark.parametrize("kind", PAIRS)
@many
@given(shape=shapes, dtype=dtypes, reduction=reductions, scale=st.sampled_from([1.0, 0.3]), seed=seeds)
def test_losses_of_elements(kind, shape, dtype, reduction, scale, seed) -> None:
    mine, oracle = PAIRS[kind]
    x, target = drawn(seed, shape, shape, dtype=dtype)
    if kind in ("logistic", "entropy"):
        target = np.asarray(np.random.default_rng(seed).random(shape)).astype(dtype)
    if kind == "entropy":
        x = np.asarray(0.05 + 0.9 * np.random.default_rng(seed + 1).random(shape)).astype(dtype)
    check(
        lambda x, t: mine(x, t, reduction=reduction, scale=scale),
        lambda x, t: scale * oracle(x, t, reduction=reduction),
        [x, target],
        factor=10.0 if kind == "entropy" else 1.0,
    )


def test_extreme_scores_and_probabilities() -> None:
    x, target = np.array([800.0, -800.0, 0.0, 50.0]), np.array([0.0, 1.0, 0.5, 1.0])
    check(ops.binary_cross_entropy_with_logits, F.binary_cross_entropy_with_logits, [x, target])
    p, target = np.array([0.0, 1.0, 0.0, 1.0]), np.array([0.0, 1.0, 1.0, 0.0])
    check(
        lambda x, t: ops.binary_cross_entropy(x, t, reduction="none"),
        lambda x, t: F.binary_cross_entropy(x, t, reduction="none"),
        [p, target],
        orders=0,  # torch bounds the slope by 1e-12 in single precision
    )


@examples(20)
@given(st.integers(1, 8), st.integers(1, 6), st.data(), seeds)
def test_accuracy_is_the_share_of_labels_in_topk(batch, classes, data, seed) -> None:
    import actorflow as af

    top = data.draw(st.integers(1, classes))
    (x,) = drawn(seed, (batch, classes), dtype="float64")
    labels = np.random.default_rng(seed).integers(0, classes, batch)
    graph = af.Graph("one")
    a, b = graph.blob("x", x.shape, x.dtype), graph.blob("labels", labels.shape, labels.dtype)
    y = ops.accuracy(a, b, top)
    expected = (torch.from_numpy(x).topk(top).indices == torch.from_numpy(labels)[:, None]).any(1).float().mean()
    np.testing.assert_allclose(graph.run_sync({a: x, b: labels})[y], expected.numpy(), rtol=1e-6)
