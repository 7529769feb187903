"""Results of samples of the table of operations, and gradients of them to any order, by us and by PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

import numpy as np
from hypothesis import settings

import actorflow as af
import actorflow.array as xp
from actorflow import ops
from actorflow.ops import Operation
from tests.operations import Row, Sample
from tests.operations.shaping import parts

#: How far floating results may lie apart: relative, and absolute times the largest result.
TOLERANCE = {
    "float16": (4e-3, 4e-3),
    "float32": (1e-4, 1e-4),
    "complex64": (1e-4, 1e-4),
    "float64": (1e-9, 1e-10),
    "complex128": (1e-9, 1e-10),
}


def examples(count: int) -> settings:
    """So many examples; many times as many where the profile asks for all."""
    return settings(max_examples=count * settings.default.max_examples // 150)


def drawn(seed: int, *shapes: tuple[int, ...], dtype: str) -> list[np.ndarray]:
    """Normal numbers."""
    random = np.random.default_rng(seed)
    return [np.asarray(random.standard_normal(shape)).astype(dtype) for shape in shapes]


def wrt(sample: Sample, arrays: Sequence[np.ndarray]) -> list[int]:
    """Positions of the inputs that are differentiated by."""
    return [i for i, x in enumerate(arrays) if x.dtype.kind in "fc"] if sample.wrt is None else [*sample.wrt]


@dataclass(frozen=True)
class Loss:
    """What is differentiated: a sum of results with random weights.

    Attributes:
        only: Number of the one result that it is of; None for all.
        squared: Whether squares are added, so that linear functions have gradients of gradients, too.
    """

    only: int | None = None
    squared: bool = True

    def keeps(self, kept: Sequence[bool]) -> list[bool]:
        """Which results it is of, of those that have gradients."""
        return [keep and self.only in (None, i) for i, keep in enumerate(kept)]

    def __call__(self, library: Any, constant: Callable[[np.ndarray], Any], order: int, results: Sequence[Any]) -> Any:
        terms = []
        for i, y in enumerate(results):
            if y is not None and any(kind in str(y.dtype) for kind in ("float", "complex")):
                is_complex = "complex" in str(y.dtype)
                for j, part in enumerate((library.real(y), library.imag(y)) if is_complex else (y,)):
                    random = np.random.default_rng([order, i, j])
                    weight = np.asarray(random.standard_normal(tuple(part.shape))).astype(
                        str(part.dtype).split(".")[-1]
                    )
                    terms.append(library.sum((part + part * part if self.squared else part) * constant(weight)))
        return sum(terms[1:], terms[0]) if terms else None


def by_graph(
    sample: Sample, arrays: Sequence[np.ndarray], orders: int, kept: Sequence[bool], loss_of: Loss
) -> list[list[Any]]:
    """Results, then the gradients of each order; None where there is none. Inputs lie in memory as they are given."""
    graph = af.Graph("tested")
    blobs = [graph.blob(f"x{i}", a.shape, a.dtype) for i, a in enumerate(arrays)]
    feeds: dict[Any, Any] = dict(zip(blobs, arrays, strict=True))

    def fed(weight: np.ndarray) -> af.Blob:
        blob = graph.blob(f"w{len(feeds)}", weight.shape, weight.dtype)
        feeds[blob] = weight
        return blob

    steps: list[list[Any]] = [parts(sample.apply(*blobs))]
    by = [blobs[i] for i in wrt(sample, arrays)]
    for order in range(orders):
        loss = loss_of(ops, fed, order, compress(steps[0], kept) if order == 0 else steps[-1])
        steps.append([None] * len(by) if loss is None else _gradients(loss, by))
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


def by_arrays(
    sample: Sample, arrays: Sequence[np.ndarray], orders: int, kept: Sequence[bool], loss_of: Loss
) -> list[list[Any]]:
    """The same of lazy arrays."""
    positions, given = wrt(sample, arrays), [xp.asarray(a) for a in arrays]

    def gradients_of(function: Callable[..., Any], order: int) -> Callable[..., Any]:
        def loss(*given: Any) -> Any:
            found = parts(function(*given))
            return loss_of(ops, xp.asarray, order, compress(found, kept) if order == 0 else found)

        return af.grad(loss, positions)

    steps: list[list[Any]] = [parts(sample.apply(*given))]
    function: Callable[..., Any] = sample.apply
    for order in range(orders):
        function = gradients_of(function, order)
        try:
            steps.append(parts(function(*given)))
        except af.GraphError as error:
            if "does not depend" not in str(error):
                raise
            steps += [[None] * len(positions)] * (orders - order)
            break
    return [[None if y is None else y.to_numpy() for y in step] for step in steps]


def by_torch(
    row: Row, sample: Sample, arrays: Sequence[np.ndarray], orders: int, loss_of: Loss
) -> tuple[list[list[Any]], list[bool]]:
    """The same by PyTorch, and which of the results it is about: a reference detaches what has no gradient."""
    import torch  # tests are skipped where it is missing

    tensors = [torch.from_numpy(np.array(a, order="C")) for a in arrays]
    by = [tensors[i].requires_grad_() for i in (wrt(sample, arrays) if orders else ())]
    steps: list[list[Any]] = [parts(row.of_torch(torch, *tensors, **sample.parameters))]
    kept = loss_of.keeps([y.requires_grad for y in steps[0]])
    for order in range(orders):
        loss = loss_of(torch, torch.from_numpy, order, compress(steps[0], kept) if order == 0 else steps[-1])
        if loss is None or not loss.requires_grad:
            steps.append([None] * len(by))
        else:
            # Always as for a further order: torch's faster way is wrong for determinants of singular matrices.
            steps.append(list(torch.autograd.grad(loss, by, create_graph=True, allow_unused=True)))
    return [[None if y is None else y.resolve_conj().numpy(force=True) for y in step] for step in steps], kept


def check(
    row: Row,
    sample: Sample,
    arrays: Sequence[np.ndarray],
    orders: int,
    factor: float = 1.0,
    only: int | None = None,
    is_corner: bool = False,
) -> int:
    """Compare; a gradient that one of the two does not have must be 0 in the other.

    Args:
        row, sample: What is compared.
        arrays: Inputs of the sample.
        orders: Orders of gradients.
        factor: How many times as far apart as `TOLERANCE` says they may lie.
        only: Number of the one result that is differentiated.
        is_corner: Whether inputs are special: then gradients are those of results, not of their squares, too, each
            element is compared by its own size, and NaN must be NaN.
    Returns:
        The number of results that have gradients.
    """
    loss_of = Loss(only, squared=not is_corner)
    expected, kept = by_torch(row, sample, arrays, orders, loss_of)
    is_complex = any(a.dtype.kind == "c" for a in arrays)  # which blobs have no gradients by
    run = by_graph if isinstance(sample.what, Operation) and not is_complex else by_arrays
    orders = orders if any(kept) else 0
    found = run(sample, arrays, orders, kept, loss_of)
    # Casts lose digits.
    names = {x.dtype.name for x in (*arrays, *expected[0])} & TOLERANCE.keys()
    relative, absolute = max((TOLERANCE[name] for name in names), default=(0.0, 0.0))
    for order, (mine, reference) in enumerate(zip(found, expected[: orders + 1], strict=True)):
        if order and not is_corner and any(b is not None and not np.isfinite(b).all() for b in reference):
            break  # beyond the range of the dtype
        for i, (a, b) in enumerate(zip(mine, reference, strict=True)):
            text = f"{sample} of {[*map(str, names)]}: order {order}, {i}"
            if a is None or b is None:
                assert a is b or np.all((a if b is None else b) == 0), f"{text}: {a} {b}"
                continue
            assert a.shape == b.shape, text
            if a.dtype.kind in "biu":
                assert (a.dtype.kind == "b") == (b.dtype.kind == "b"), text
                np.testing.assert_array_equal(a, b, err_msg=text)
                continue
            assert a.dtype == b.dtype, text
            scale = 1.0 if is_corner else max(1.0, float(np.abs(b[np.isfinite(b)]).max(initial=0)))
            least = 1e-50 if is_corner and order == 0 else factor * absolute * scale
            np.testing.assert_allclose(a, b, rtol=factor * relative, atol=least, err_msg=text)
    return sum(kept)
