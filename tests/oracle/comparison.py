"""Values, gradients and gradients of gradients of a function of blobs, against those of the same one of tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from hypothesis import settings

import actorflow as af
from actorflow import ops

TOLERANCE = {"float32": 1e-4, "float64": 1e-9}


def examples(count: int) -> settings:
    """So many examples; many times as many where the profile asks for all."""
    return settings(max_examples=count * settings.default.max_examples // 150)


def drawn(seed: int, *shapes: tuple[int, ...], dtype: str) -> list[np.ndarray]:
    """Normal numbers."""
    random = np.random.default_rng(seed)
    return [np.asarray(random.standard_normal(shape)).astype(dtype) for shape in shapes]


def _tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _weights(order: int, i: int, like: Any) -> np.ndarray:
    return np.asarray(np.random.default_rng([order, i]).standard_normal(like.shape)).astype(like.dtype)


def _is_float(x: Any) -> bool:
    return "float" in str(x.dtype)


def ours(function: Callable[..., Any], arrays: Sequence[np.ndarray], orders: int) -> list[list[np.ndarray]]:
    """Outputs, then the gradients of each order by the floating inputs; None where there is none."""
    graph = af.Graph("tested")
    blobs = [graph.blob(f"x{i}", a.shape, a.dtype) for i, a in enumerate(arrays)]
    feeds: dict[Any, Any] = dict(zip(blobs, arrays, strict=True))
    steps: list[list[Any]] = [list(_tuple(function(*blobs)))]
    for order in range(orders):
        terms = []
        for i, y in enumerate(steps[-1]):
            if y is not None and _is_float(y):
                weight = graph.blob(f"w{order}_{i}", y.shape, y.dtype)
                feeds[weight] = _weights(order, i, y)
                terms.append(ops.sum(ops.multiply(y, weight)))
        steps.append(_gradients(ops.add(*terms), [blob for blob in blobs if _is_float(blob)]))
    result = graph.run_sync(feeds, fetch=[y for step in steps for y in step if y is not None])
    return [[None if y is None else np.array(result[y]) for y in step] for step in steps]


def _gradients(loss: af.Blob, blobs: list[af.Blob]) -> list[af.Blob | None]:
    try:
        return [*af.gradient(loss, blobs)]
    except af.GraphError:
        return [_gradient(loss, blob) for blob in blobs]


def _gradient(loss: af.Blob, blob: af.Blob) -> af.Blob | None:
    try:
        return af.gradient(loss, blob)
    except af.GraphError as error:
        if not any(why in str(error) for why in ("does not depend", "hold constant", "which is not floating")):
            raise
        return None


def theirs(oracle: Callable[..., Any], arrays: Sequence[np.ndarray], orders: int) -> list[list[np.ndarray]]:
    """The same by PyTorch."""
    import torch  # tests are skipped where it is missing

    tensors = [torch.from_numpy(np.array(a, order="C")) for a in arrays]
    by = [t.requires_grad_() for t in tensors if t.is_floating_point()]
    steps: list[list[Any]] = [list(_tuple(oracle(*tensors)))]
    for order in range(orders):
        loss = torch.zeros((), dtype=by[0].dtype)
        for i, y in enumerate(steps[-1]):
            if y is not None and y.is_floating_point():
                like = y.detach().numpy()
                loss = loss + (y * torch.from_numpy(_weights(order, i, like))).sum()
        if loss.requires_grad:
            steps.append(list(torch.autograd.grad(loss, by, create_graph=order + 1 < orders, allow_unused=True)))
        else:
            steps.append([None] * len(by))
    return [[None if y is None else y.numpy(force=True) for y in step] for step in steps]


def check(
    function: Callable[..., Any],
    oracle: Callable[..., Any],
    arrays: Sequence[np.ndarray],
    orders: int = 2,
    factor: float = 1.0,
) -> None:
    """Compare; a gradient that one of the two does not have must be 0 in the other."""
    dtype = next(str(a.dtype) for a in arrays if a.dtype.kind == "f")
    tolerance = factor * TOLERANCE[dtype]
    found, expected = ours(function, arrays, orders), theirs(oracle, arrays, orders)
    for order, (mine, reference) in enumerate(zip(found, expected, strict=True)):
        for i, (a, b) in enumerate(zip(mine, reference, strict=True)):
            if a is None or b is None:
                assert np.all((a if b is None else b) == 0) or a is b, f"order {order}, {i}: {a} {b}"
                continue
            scale = max(1.0, float(np.abs(b[np.isfinite(b)]).max(initial=0)))
            assert a.shape == b.shape, (order, i)
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * scale, err_msg=f"order {order}, {i}")
