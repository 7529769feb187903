"""Kernels of `actorflow.ops.nn.loss`; losses of pairs share one."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from actorflow.ops.cpu.buffers import Array, flat_blocks, in_float32, row_blocks, scratch
from actorflow.ops.cpu.parallel import by_rows
from actorflow.ops.nn import loss as ops
from actorflow.ops.registry import kernel

#: Elements of a row that is short.
_SHORT = 32
#: Dtypes of labels, and those of the same bits without a sign.
_UNSIGNED = {np.dtype(f"{kind}{size}"): np.dtype(f"u{size}") for kind in "iu" for size in (1, 2, 4, 8)}


class _Samples:
    """Labels as indices, and the weight of each sample.

    Attributes:
        labels: 1-d; class 0 for samples that are ignored.
        weights: 1-d; None where every sample counts 1.
    """

    def __init__(self, kind: str, labels: Array, classes: int, ignore: int | None, weights: Array | None) -> None:
        flat = labels.reshape(-1)
        kept = None if ignore is None else flat != ignore
        _check_range(kind, flat, labels.shape, classes, kept)
        self.labels: npt.NDArray[np.intp] = flat.astype(np.intp, copy=False)
        self.weights: Array | None = None
        if kept is not None:
            self.labels = np.where(kept, self.labels, 0)
            self.weights = kept if weights is None else np.where(kept, weights[self.labels], 0)
        elif weights is not None:
            self.weights = weights[self.labels]

    @property
    def rows(self) -> npt.NDArray[np.intp]:
        """Their positions."""
        return np.arange(len(self.labels))

    @classmethod
    def of(cls, operation: ops.LabelLoss, labels: Array, classes: int, weights: list[Array]) -> _Samples:
        return cls(operation.kind, labels, classes, operation.ignore, weights[0] if weights else None)

    def total(self) -> float:
        return self.labels.size if self.weights is None else float(self.weights.sum())

    def reduce(self, operation: ops.LabelLoss, losses: Array, out: Array) -> None:
        if self.weights is not None:
            losses = np.where(self.weights != 0, losses, 0) * self.weights  # an infinite loss may be ignored
        if operation.reduction == "none":
            np.multiply(losses.reshape(out.shape), operation.scale, out=out)
            return
        loss = float(losses.sum())
        if operation.reduction == "mean":
            total = self.total()
            loss = loss / total if total else np.nan
        out[...] = operation.scale * loss

    def shares(self, operation: ops.LabelLoss, g: Array) -> Array:
        factor = operation.scale * g
        if operation.reduction == "mean":
            factor = factor / (self.total() or np.nan)
        if operation.reduction == "none":
            factor = factor.reshape(-1)
        if self.weights is not None:
            factor = np.where(self.weights != 0, factor * self.weights, 0)
        return np.asarray(factor, g.dtype)[..., np.newaxis]


def _check_range(
    kind: str, flat: Array, shape: tuple[int, ...], classes: int, kept: npt.NDArray[np.bool_] | None
) -> None:
    unsigned = _UNSIGNED.get(flat.dtype) if kept is None and flat.size else None
    if unsigned is not None and np.maximum.reduce(flat.view(unsigned)) < classes:  # negative ones are the largest there
        return
    is_wrong = (flat < 0) | (flat >= classes)
    wrong = np.flatnonzero(is_wrong if kept is None else is_wrong & kept)
    if wrong.size:
        where = tuple(int(i) for i in np.unravel_index(wrong[0], shape))
        raise ValueError(f"{kind}: labels must be from 0 to {classes - 1}, got {flat[wrong[0]]} at {where}")


def _column(values: Array) -> Array:
    return values[:, np.newaxis]


def _of_rows(ufunc: np.ufunc, rows: Array) -> Array:
    """The reduction of each row, as a column; of short rows NumPy finds it sooner across them."""
    if rows.shape[1] > _SHORT:
        found: Array = ufunc.reduce(rows, axis=1, keepdims=True)
    else:
        found = _column(ufunc.reduce(np.ascontiguousarray(rows.T), axis=0))
    return found


@kernel(ops.SoftmaxLoss)
@in_float32
def _softmax_loss(operation: ops.SoftmaxLoss, inputs: list[Array], outputs: list[Array]) -> None:
    x, labels, *weights = inputs
    samples = _Samples.of(operation, labels, x.shape[-1], weights)
    losses = np.empty(labels.size, x.dtype)

    def compute(*lines: Array) -> None:
        for rows, own, loss in row_blocks(*lines):
            shifted = np.subtract(rows, _of_rows(np.maximum, rows), out=scratch("scores", rows.shape, x.dtype))
            picked = np.take_along_axis(shifted, own, axis=1)
            np.log(_of_rows(np.add, np.exp(shifted, out=shifted)), out=loss)
            np.subtract(loss, picked, out=loss)

    by_rows([x.reshape(labels.size, x.shape[-1]), _column(samples.labels), _column(losses)], compute, 8)
    samples.reduce(operation, losses, outputs[0])


@kernel(ops.SoftmaxLossDown)
@in_float32
def _softmax_loss_down(operation: ops.SoftmaxLossDown, inputs: list[Array], outputs: list[Array]) -> None:
    g, x, labels, *weights = inputs
    samples = _Samples.of(operation, labels, x.shape[-1], weights)
    shares = np.empty((labels.size, 1), x.dtype)
    shares[...] = samples.shares(operation, g)

    def compute(*lines: Array) -> None:
        for rows, own, share, dx in row_blocks(*lines):
            np.subtract(rows, _of_rows(np.maximum, rows), out=dx)
            np.exp(dx, out=dx)
            np.divide(dx, _of_rows(np.add, dx), out=dx)
            elements = dx.reshape(-1)
            elements[np.arange(0, dx.size, dx.shape[1]) + own[:, 0]] -= 1  # sooner than by row and column
            np.multiply(dx, share, out=dx)

    flat = (labels.size, x.shape[-1])
    by_rows([x.reshape(flat), _column(samples.labels), shares, outputs[0].reshape(flat)], compute, 4)


@kernel(ops.NllLoss)
@in_float32
def _nll_loss(operation: ops.NllLoss, inputs: list[Array], outputs: list[Array]) -> None:
    x, labels, *weights = inputs
    samples = _Samples.of(operation, labels, x.shape[-1], weights)
    rows = x.reshape(labels.size, x.shape[-1])
    samples.reduce(operation, -rows[samples.rows, samples.labels], outputs[0])


@kernel(ops.NllLossDown)
@in_float32
def _nll_loss_down(operation: ops.NllLossDown, inputs: list[Array], outputs: list[Array]) -> None:
    g, labels, *weights = inputs
    samples = _Samples.of(operation, labels, operation.classes, weights)
    dx = outputs[0].reshape(labels.size, operation.classes)
    dx.fill(0)
    dx[samples.rows, samples.labels] = -samples.shares(operation, g)[..., 0]


@kernel(ops.Accuracy)
def _accuracy(operation: ops.Accuracy, inputs: list[Array], outputs: list[Array]) -> None:
    scores, given = inputs
    samples = _Samples("Accuracy", given, scores.shape[-1], None, None)
    labels, x = samples.labels, scores.reshape(given.size, scores.shape[-1])
    if not labels.size:
        outputs[0][...] = np.nan
        return
    own = x[samples.rows, labels][:, np.newaxis]
    before = np.arange(x.shape[1]) < labels[:, np.newaxis]
    # "Not below" rather than "above": comparisons with nan are false, and a nan must not look right.
    ahead = np.where(before, ~(x < own), ~(x <= own))
    ahead[samples.rows, labels] = np.isnan(own[:, 0])
    outputs[0][...] = np.mean(np.count_nonzero(ahead, axis=1) < operation.top)


@in_float32
def _pair_loss(operation: ops.PairLoss, inputs: list[Array], outputs: list[Array]) -> None:
    (x, target), (y,) = inputs, outputs
    if operation.reduction == "none":
        for x_part, target_part, out in flat_blocks(x, target, y):
            np.multiply(operation.each(x_part, target_part), operation.scale, out=out)
        return
    total = 0.0
    for x_part, target_part in flat_blocks(x, target):
        total += float(np.sum(operation.each(x_part, target_part)))
    y[...] = np.nan if operation.reduction == "mean" and not x.size else total * operation.factor(x.size)


for _kind in ops.PairLoss.__subclasses__():
    kernel(_kind)(_pair_loss)
