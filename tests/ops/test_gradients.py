"""Gradients of all rows of the table, beside differences: of graphs, and of arrays to the second order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import actorflow as af
import actorflow.array as xp
from actorflow.testing import check_gradient
from tests.operations import ROWS, Row, Sample, calls, cases, samples
from tests.operations.shaping import parts
from tests.support.effort import FULL

#: Floating elements that differences are taken by, at most: each takes two runs.
MOST = 2_000 if FULL else 150


def has_slopes(row: Row, sample: Sample, kinds: str = "f") -> bool:
    """Whether differences say what the gradient is, by inputs of some kinds of dtypes."""
    return bool(row.differentiable) and sample.smooth and any(x.dtype.kind in kinds for x in sample.drawn())


def by(sample: Sample, arrays: list[np.ndarray], kinds: str = "fc") -> tuple[int, ...]:
    """Positions that are differentiated by."""
    return tuple(i for i, x in enumerate(arrays) if x.dtype.kind in kinds) if sample.wrt is None else sample.wrt


def is_real(row: Row, sample: Sample) -> bool:
    """Whether all of the inputs and results are real and have gradients."""
    specs = sample.specs("float64")
    specs += sample.operation.infer(*specs) or ()
    return row.slopes is None and all(spec.dtype.kind != "c" for spec in specs)


def is_small(sample: Sample) -> bool:
    """Whether differences by each element take little time."""
    return sum(x.size for x in sample.drawn() if x.dtype.kind == "f") <= MOST


SMOOTH = [each for each in samples() if has_slopes(*each)]
SMALL = [(row, sample) for row, sample in SMOOTH if is_small(sample) and is_real(row, sample)]


@pytest.mark.together(("row", "sample"), cases(SMALL), at_once=8)
def test_gradients_are_those_of_differences(row: Row, sample: Sample) -> None:
    arrays = sample.inputs("float64")
    check_gradient(sample.operation, *arrays, wrt=by(sample, arrays))


def _first(chosen: list[tuple[Row, Sample]]) -> list[tuple[Row, Sample]]:
    """One sample of each row, or all."""
    return chosen if FULL else [*{row.name: (row, sample) for row, sample in reversed(chosen)}.values()][::-1]


#: Without what only gradients are made of, whose own are of the second order already.
TWICE = [each for each in _first(SMOOTH) if each[0].orders > 1 and not each[0].name.endswith(("Down", "Weight"))]
TWICE += [each for each in calls() if has_slopes(*each)]


@pytest.mark.together(("row", "sample"), cases(TWICE), at_once=12)
def test_gradients_of_gradients_are_those_of_differences(row: Row, sample: Sample) -> None:
    """Along one direction: that of the loss, and of its own slope along it."""
    given = sample.inputs("float64")
    which = by(sample, given, kinds="f")
    random = np.random.default_rng(1)
    points, towards = [given[i] for i in which], [random.standard_normal(given[i].shape) for i in which]
    weights: dict[int, Any] = {}

    def loss(*moved: Any) -> Any:
        inputs = [xp.asarray(x) for x in given]
        for i, x in zip(which, moved, strict=True):
            inputs[i] = x
        terms = []
        for i, y in enumerate(parts(sample.apply(*inputs))[: row.slopes]):
            for j, part in enumerate((xp.real(y), xp.imag(y)) if y.dtype.kind == "c" else (y,)):
                if part.dtype.kind == "f":
                    weight = weights.setdefault((i, j), np.random.default_rng([i, j]).uniform(0.5, 1.5, part.shape))
                    part = xp.astype(part, xp.float64)
                    terms.append(xp.sum((part + 0.5 * part * part) * xp.asarray(weight)))
        return sum(terms[1:], terms[0])

    def slope(*moved: Any) -> Any:
        grads = af.grad(loss, tuple(range(len(which))))(*moved)
        return sum(xp.sum(xp.astype(g, xp.float64) * xp.asarray(t)) for g, t in zip(grads, towards, strict=True))

    # In short, the second order is of the first sample alone.
    for function in (loss, slope)[: row.orders if FULL or sample is row.first else 1]:
        found = af.grad(function, tuple(range(len(which))))(*map(xp.asarray, points))
        along = sum(float(np.sum(g.to_numpy() * t)) for g, t in zip(found, towards, strict=True))
        ahead, behind = (
            float(function(*[xp.asarray(x + step * t) for x, t in zip(points, towards, strict=True)]))
            for step in (1e-5, -1e-5)
        )
        scale = max(1.0, abs(float(function(*map(xp.asarray, points)))))
        np.testing.assert_allclose(along, (ahead - behind) / 2e-5, rtol=1e-5, atol=1e-5 * scale, err_msg=str(sample))


def test_each_differentiable_operation_is_tried_or_says_why_not() -> None:
    tried = {row.name for row, _ in SMOOTH}
    floating = [row for row in ROWS.values() if row.kind and row.differentiable and row.kind.arguments]
    assert {row.name for row in floating if "differences" not in row.without} == tried
