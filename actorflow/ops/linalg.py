"""Linear algebra: products, decompositions and norms of matrices, and the bias.

Functions take blobs of one dtype, or lazy arrays, which are promoted to one. Sources of the gradients: Giles, Collected
matrix derivative results for forward and reverse mode algorithmic differentiation (2008); Townsend, Differentiating the
singular value decomposition (2016); Walter, Lehmann, On the automatic differentiation of the QR decomposition (2010).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from actorflow.errors import DTypeError, GraphError, ShapeError
from actorflow.ops import indexing, reductions
from actorflow.ops.elementwise import absolute, as_dtype, conj, equal, multiply, plus, real, subtract
from actorflow.ops.fills import filled, number_like, numbers
from actorflow.ops.operation import (
    Application,
    Cost,
    Grads,
    Operand,
    Operation,
    X,
    apply,
    axes_of,
    blob_of,
    normal_axes,
    rank_is,
    same_dtype,
    same_numbers,
    savable,
    whole,
)
from actorflow.ops.rows import conjugated, fit, real_type
from actorflow.ops.shaping import (
    Axis,
    Reduction,
    broadcast_shape,
    concat,
    expand_dims,
    expand_like,
    moveaxis,
    reshape,
    roll,
    spread,
    squeeze,
    sum_to,
    transpose,
)
from actorflow.spec import TensorSpec, broadcast_shapes, maximum, may_equal, minimum

# fmt: off
__all__ = [
    "cholesky", "cross", "det", "diagonal", "eig", "eigh", "eigvals", "eigvalsh", "einsum", "inv", "matmul",
    "matrix_norm", "matrix_power", "matrix_rank", "matrix_transpose", "outer", "pinv", "qr", "slogdet", "solve", "svd",
    "svdvals", "tensordot", "trace", "vecdot", "vector_norm",
]
# fmt: on


def _has_features(kind: str, name: str, spec: TensorSpec, features: str) -> None:
    if len(spec.shape) < 2:
        raise ShapeError(f"{kind}: {name} must have shape (batch, ..., {features}), got {spec}")


class Inner(Operation):
    """``y = x @ weight.T``; see `inner`."""

    arguments = ("x", "weight")
    one_dtype = True

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        x, weight = inputs
        same_dtype("Inner", x=x, weight=weight)
        _has_features("Inner", "x", x, "in_features")
        rank_is("Inner", "weight", weight, ("out_features", "in_features"))
        if x.shape[-1] != weight.shape[1]:
            raise ShapeError(
                f"Inner: weight must have x's {x.shape[-1]} features on its last axis, got {weight}; x is {x}"
            )
        return (TensorSpec((*x.shape[:-1], weight.shape[0]), x.dtype),)

    def cost(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> Cost | None:
        return Cost(outputs[0].size * inputs[0].shape[-1])

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        (g,), (x, weight) = grads, op.inputs
        return [apply(InnerDown(), g, weight) if wanted[0] else None, apply(InnerWeight(), g, x) if wanted[1] else None]


class InnerDown(Operation):
    """``dx = g @ weight``: the data gradient of `Inner`.

    Source: Purine2 ``InnerDown``.
    """

    arguments = ("g", "weight")

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        g, weight = inputs
        same_dtype("InnerDown", g=g, weight=weight)
        _has_features("InnerDown", "g", g, "out_features")
        rank_is("InnerDown", "weight", weight, ("out_features", "in_features"))
        if g.shape[-1] != weight.shape[0]:
            raise ShapeError(f"InnerDown: weight must have g's {g.shape[-1]} features on its first axis, got {weight}")
        return (TensorSpec((*g.shape[:-1], weight.shape[1]), g.dtype),)

    def cost(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> Cost | None:
        return Cost(outputs[0].size * inputs[0].shape[-1])

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        (c,), (g, weight) = grads, op.inputs
        return [apply(Inner(), c, weight) if wanted[0] else None, apply(InnerWeight(), g, c) if wanted[1] else None]


class InnerWeight(Operation):
    """``dweight = g.T @ x``: the weight gradient of `Inner`.

    Source: Purine2 ``InnerWeight``.
    """

    arguments = ("g", "x")

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        g, x = inputs
        same_dtype("InnerWeight", g=g, x=x)
        _has_features("InnerWeight", "g", g, "out_features")
        _has_features("InnerWeight", "x", x, "in_features")
        if g.shape[:-1] != x.shape[:-1]:
            raise ShapeError(f"InnerWeight: x must have g's batch {g.shape[:-1]}, got {x}")
        return (TensorSpec((g.shape[-1], x.shape[-1]), g.dtype),)

    def cost(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> Cost | None:
        return Cost(inputs[0].size * inputs[1].shape[-1])

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        (c,), (g, x) = grads, op.inputs
        return [apply(Inner(), x, c) if wanted[0] else None, apply(InnerDown(), g, c) if wanted[1] else None]


class Bias(Operation):
    """``y = x + bias``, over the last axis; see `bias`."""

    arguments = ("x", "bias")
    one_dtype = True
    per_element = 1

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        x, bias = inputs
        same_dtype("Bias", x=x, bias=bias)
        if not x.shape:
            raise ShapeError(f"Bias: x must have shape (..., features), got {x}")
        if bias.shape != x.shape[-1:]:
            raise ShapeError(f"Bias: bias must have the shape of x's last axis {x.shape[-1:]}, got {bias}; x is {x}")
        return (x,)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        (g,) = grads
        return [g if wanted[0] else None, apply(BiasDown(), g) if wanted[1] else None]


class BiasDown(Operation):
    """``dbias = g`` summed over all axes but the last: the gradient of `Bias`.

    Source: Purine2 ``BiasDown``.
    """

    arguments = ("g",)

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        (g,) = inputs
        same_dtype("BiasDown", g=g)
        if not g.shape:
            raise ShapeError(f"BiasDown: g must have shape (..., features), got {g}")
        return (TensorSpec(g.shape[-1:], g.dtype),)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        return [spread(grads[0], op.inputs[0])]


def inner(x: X, weight: X, name: str | None = None) -> X:
    """Matrix product over the last axis: ``y = x @ weight.T``.

    Args:
        x: Shape (batch, ..., in_features), floating.
        weight: Shape (out_features, in_features), dtype of ``x``.
    Returns:
        Shape (batch, ..., out_features), dtype of ``x``.
    Raises:
        ShapeError: if the last axes differ.
        DTypeError: if the dtypes differ or are not floating.
    Gradient: dx = g @ weight; dweight = g.T @ x.
    Source: Purine2 ``Inner``.
    Example:
        >>> x, weight = xp.asarray([[1.0, 2.0]]), xp.asarray([[3.0, 4.0], [5.0, 6.0], [7.0, 8.0]])
        >>> af.ops.inner(x, weight)
        Array([[11., 17., 23.]], dtype=float64)
    """
    return blob_of(Inner(), x, weight, name=name)


def bias(x: X, bias: X, name: str | None = None) -> X:
    """A vector added along the last axis: ``y = x + bias``.

    Args:
        x: Shape (..., features), floating.
        bias: Shape (features,), dtype of ``x``.
    Returns:
        The type of ``x``.
    Raises:
        ShapeError: if ``bias`` does not have the shape of the last axis.
        DTypeError: if the dtypes differ or are not floating.
    Gradient: dx = g; dbias = g summed over all axes but the last.
    Source: Purine2 ``Bias``.
    Example:
        >>> af.ops.bias(xp.zeros((2, 3)), xp.asarray([1.0, 2.0, 3.0]))
        Array([[1., 2., 3.],
               [1., 2., 3.]], dtype=float64)
    """
    return blob_of(Bias(), x, bias, name=name)


# -- products ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Matmul(Operation):
    """``y = a @ b`` over the last two axes; see `matmul`.

    Attributes:
        batch: Axes of the result before the matrices: products are summed over axes that it lacks or has length 1 on,
            and repeated on those that they lack or have length 1 on. None for those of the products. Gradients of
            operands that were broadcast need it.
    """

    arguments = ("a", "b")
    takes_complex = True
    one_dtype = True

    transpose_a: bool = False
    transpose_b: bool = False
    batch: tuple[int, ...] | None = None

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        a, b = inputs
        if a.dtype.kind != "b" or b.dtype != a.dtype:
            same_numbers("Matmul", a=a, b=b)
        for name, spec, turned in (("a", a, self.transpose_a), ("b", b, self.transpose_b)):
            if len(spec.shape) < (2 if turned else 1):
                axes = "(..., rows, columns)" if turned else "(n,) or (..., rows, columns)"
                raise ShapeError(f"Matmul: {name} must have shape {axes}, got {spec}")
        left = a.shape if len(a.shape) > 1 else (1, *a.shape)
        right = b.shape if len(b.shape) > 1 else (*b.shape, 1)
        rows, inner = left[-2:][:: -1 if self.transpose_a else 1]
        other, columns = right[-2:][:: -1 if self.transpose_b else 1]
        if inner != other:
            axis = "last" if self.transpose_b or len(b.shape) == 1 else "second last"
            raise ShapeError(f"Matmul: b must have length {inner} on its {axis} axis, got {b}; a is {a}")
        try:
            batch = broadcast_shapes(left[:-2], right[:-2])
        except ValueError:
            raise ShapeError(f"Matmul: b must broadcast with a's batch {left[:-2]}, got {b}; a is {a}") from None
        if self.batch is not None:
            try:
                broadcast_shapes(batch, self.batch)
            except ValueError:
                raise ShapeError(f"Matmul: products of batch {batch} cannot be summed to {self.batch}") from None
            batch = self.batch
        matrix = (*([rows] if len(a.shape) > 1 else []), *([columns] if len(b.shape) > 1 else []))
        return (TensorSpec((*batch, *matrix), a.dtype),)

    def cost(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> Cost | None:
        (a, b), (y,) = inputs, outputs
        inner = a.shape[-2 if self.transpose_a else -1]
        if self.batch is None:
            return Cost(y.size * inner)
        products = broadcast_shapes(a.shape[:-2], b.shape[:-2], self.batch)
        return Cost(math.prod(products) * math.prod(y.shape[-2:]) * inner)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        a, b = op.inputs
        if len(a.shape) == 2 and len(b.shape) == 1 and not wanted[0]:
            return [None, apply(Matmul(not self.transpose_a), conjugated(a), grads[0])]
        a, b, g = self.as_matrices(a, b, grads[0])
        da = db = None
        if wanted[0]:
            batch, other = a.shape[:-2], conjugated(b)
            if self.transpose_a:  # a.T = g @ b'.H, so a = b'.conj() @ g.T
                da = apply(Matmul(self.transpose_b, True, batch), other, g)
            else:
                da = apply(Matmul(False, not self.transpose_b, batch), g, other)
        if wanted[1]:
            batch, other = b.shape[:-2], conjugated(a)
            if self.transpose_b:
                db = apply(Matmul(True, self.transpose_a, batch), g, other)
            else:
                db = apply(Matmul(not self.transpose_a, False, batch), other, g)
        return [
            grad if grad is None or grad.shape == x.shape else reshape(grad, x.shape)
            for grad, x in zip((da, db), op.inputs, strict=True)
        ]

    @staticmethod
    def as_matrices(a: Any, b: Any, y: Any) -> tuple[Any, Any, Any]:
        """Operands and result as matrices: a vector is a row on the left, a column on the right."""
        if len(b.shape) == 1:
            b, y = b.reshape((*b.shape, 1)), y.reshape((*y.shape, 1))
        if len(a.shape) == 1:
            a, y = a.reshape((1, *a.shape)), y.reshape((*y.shape[:-1], 1, *y.shape[-1:]))
        return a, b, y


def matmul(a: X, b: X, /, *, transpose_a: bool = False, transpose_b: bool = False, name: str | None = None) -> X:
    """Products of matrices, or of stacks of them: ``y = a @ b`` over the last two axes.

    Args:
        a: Shape (..., rows, inner), or (..., inner, rows) with ``transpose_a``; a vector (inner,) is a row. Numeric.
        b: Shape (..., inner, columns), or (..., columns, inner) with ``transpose_b``; a vector (inner,) is a column.
            Dtype of ``a``. The axes before the last two broadcast with the axes of ``a`` before them.
        transpose_a: Use the transposed matrices of ``a``.
        transpose_b: Use the transposed matrices of ``b``.
    Returns:
        Shape (..., rows, columns), without the axes that vectors do not have; dtype of ``a``.
    Raises:
        ShapeError: if the shapes do not fit.
        DTypeError: if the dtypes of blobs differ or are not numeric.
    Gradient: da = g @ b.H; db = a.H @ g; summed over axes that were broadcast.
    Source: `numpy.matmul`.
    Example:
        >>> a, b = xp.asarray([[1, 2], [3, 4]]), xp.asarray([[1, 0], [1, 1]])
        >>> af.ops.matmul(a, b)
        Array([[3, 2],
               [7, 4]], dtype=int64)
        >>> af.ops.matmul(a, xp.asarray([1, 1]))
        Array([3, 7], dtype=int64)
    """
    return blob_of(Matmul(transpose_a, transpose_b), a, b, name=name)


def matrix_transpose(x: X, /, *, name: str | None = None) -> X:
    """``x`` with its last two axes exchanged.

    Args:
        x: Shape (..., rows, columns), any dtype.
    Returns:
        Shape (..., columns, rows); on the CPU it shares the memory of ``x``.
    Raises:
        ShapeError: if there are fewer.
    Gradient: g, transposed.
    Source: `numpy.matrix_transpose`.
    Example:
        >>> af.ops.matrix_transpose(xp.zeros((5, 2, 3))).shape
        (5, 3, 2)
    """
    rank = len(x.shape)
    if rank < 2:
        raise ShapeError(f"matrix_transpose: x must have shape (..., rows, columns), got {x.spec}")
    return transpose(x, (*range(rank - 2), rank - 1, rank - 2), name=name)


@whole
def vecdot(x1: X, x2: X, /, *, axis: int = -1, name: str | None = None) -> X:
    """The inner products of vectors along an axis, the first conjugated; the other axes broadcast.

    Args:
        x1: Numeric.
        x2: Dtype of ``x1``, and its length along the axis.
        axis: The axis, counted from the end; one of arrays with as many axes may be counted from the front.
    Returns:
        The common shape without the axis, dtype of ``x1``.
    Raises:
        ShapeError: if the shapes do not fit.
    Gradient: by both operands.
    Source: `numpy.vecdot`.
    Example:
        >>> af.ops.vecdot(xp.asarray([[1, 2], [3, 4]]), xp.asarray([10, 1]))
        Array([12, 34], dtype=int64)
    """
    least = min(len(x1.shape), len(x2.shape))
    if not -least <= axis < (least if len(x1.shape) == len(x2.shape) else 0):
        raise ShapeError(f"vecdot: axis {axis} is out of bounds for x1 {x1.spec} and x2 {x2.spec}")
    row, column = (moveaxis(x, axis, -1) for x in (conjugated(x1), x2))
    product = matmul(expand_dims(row, -2), expand_dims(column, -1))
    return reshape(product, product.shape[:-2], name=name or "vecdot")


#: Names of axes in a sum of products.
_Labels = list[Any]


@whole
def tensordot(x1: X, x2: X, /, *, axes: int | tuple[Sequence[int], Sequence[int]] = 2, name: str | None = None) -> X:
    """The sum of products over axes: the last ones of ``x1`` with the first ones of ``x2``, or the named ones.

    Args:
        x1: Numeric.
        x2: Dtype of ``x1``.
        axes: Number of axes, or the axes of ``x1`` and the axes of ``x2`` that belong to them.
    Returns:
        The axes of ``x1`` that are left, then the axes of ``x2``.
    Raises:
        ShapeError: if the axes do not exist, or their lengths differ.
    Gradient: by both operands.
    Source: `numpy.tensordot`.
    Example:
        >>> a, b = xp.ones((2, 3, 4)), xp.ones((3, 4, 5))
        >>> af.ops.tensordot(a, b).shape
        (2, 5)
    """
    rank, other_rank = len(x1.shape), len(x2.shape)
    if isinstance(axes, int):
        if not 0 <= axes <= min(rank, other_rank):
            raise ShapeError(f"tensordot: x1 {x1.spec} and x2 {x2.spec} do not have {axes} axes to sum over")
        axes = range(rank - axes, rank), range(axes)
    ones, others = (
        [axes_of("tensordot", int(i), n)[0] for i in each] for each, n in zip(axes, (rank, other_rank), strict=True)
    )
    if not may_equal(tuple([x1.shape[i] for i in ones]), tuple([x2.shape[i] for i in others])):
        raise ShapeError(f"tensordot: x1 {x1.spec} and x2 {x2.spec} differ along axes {ones} and {others}")
    labels = [ones[others.index(i)] if i in others else i + rank for i in range(other_rank)]
    left = [i for i in range(rank) if i not in ones]
    product, _ = _product(x1, [*range(rank)], x2, labels, {*left, *labels} - {*ones})
    y: X = reshape(product, product.shape, name=name or "tensordot")
    return y


def _product(x: Any, ones: _Labels, y: Any, others: _Labels, kept: set[Any]) -> tuple[Any, _Labels]:
    """The products of two operands, summed over the axes that both have and that are not ``kept``; with their axes."""
    shared = [i for i in ones if i in others]
    batch, summed = [i for i in shared if i in kept], [i for i in shared if i not in kept]
    left, right = [i for i in ones if i not in others], [i for i in others if i not in ones]
    lengths = dict(zip([*ones, *others], [*x.shape, *y.shape], strict=True))

    def arranged(operand: Any, labels: _Labels, *groups: _Labels) -> Any:
        order = [labels.index(i) for group in (batch, *groups) for i in group]
        sizes = [math.prod([lengths[i] for i in group]) for group in groups]
        turned = operand if order == sorted(order) else transpose(operand, order)
        return reshape(turned, [*[lengths[i] for i in batch], *sizes])

    a, b = arranged(x, ones, left, summed), arranged(y, others, summed, right)
    found = [*batch, *left, *right]
    return reshape(matmul(a, b) if summed else a * b, [lengths[i] for i in found]), found


@whole
def einsum(equation: str, /, *operands: X, name: str | None = None) -> X:
    """Sums of products of operands, whose axes are named by letters: ``einsum("ij,jk->ik", a, b)`` is ``a @ b``.

    Operands are multiplied one after the other, each two by one `matmul`.

    Args:
        equation: The letters of each operand's axes, separated by commas, then ``->`` and the result's. Axes of
            one letter go together, axes that the result lacks are summed over, and a letter twice in one operand takes
            its diagonal. ``...`` stands for any number of axes, which broadcast. Without ``->`` the result has the axes
            of ``...``, and then the letters that come once, in their order in the alphabet.
        operands: One or more of one dtype, numeric. Axes of length 1 broadcast.
    Returns:
        Blob or array of the axes that the equation names.
    Raises:
        ShapeError: if the equation does not fit the operands.
    Gradient: by each operand.
    Source: `numpy.einsum`.
    Example:
        >>> a, b = xp.asarray([[1, 2], [3, 4]]), xp.asarray([[1, 0], [1, 1]])
        >>> af.ops.einsum("ij,jk->ik", a, b)
        Array([[3, 2],
               [7, 4]], dtype=int64)
        >>> print(af.ops.einsum("ii", a))  # the trace
        5
    """
    terms, output = _terms_of(equation, operands)
    lengths: dict[Any, int] = {}
    for term, x in zip(terms, operands, strict=True):
        for label, length in zip(term, x.shape, strict=True):
            known = lengths.setdefault(label, length)
            if not may_equal(length, known) and 1 not in (length, known):
                raise ShapeError(f"einsum: axis {label!r} of {equation!r} has lengths {known} and {length}")
            lengths[label] = length if known == 1 else known
    factors = [_of_distinct_axes(x, term, lengths) for x, term in zip(operands, terms, strict=True)]
    x, ones = factors[0]
    for i, (y, others) in enumerate(factors[1:], 2):
        kept = {*output}.union(*[term for _, term in factors[i:]])
        x, ones = _summed(x, ones, {*kept, *others})
        y, others = _summed(y, others, {*kept, *ones})
        x, ones = _product(x, ones, y, others, kept)
    x, ones = _summed(x, ones, {*output})
    order = [ones.index(label) for label in output]
    x = x if order == sorted(order) else transpose(x, order)
    made: X = reshape(x, x.shape, name=name or "einsum")
    return made


def _terms_of(equation: str, operands: Sequence[Any]) -> tuple[list[_Labels], _Labels]:
    """The axes of each operand, and of the result; the axes of an ellipsis are numbers, counted from the last one."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    names = left.split(",")
    if len(names) != len(operands):
        raise ShapeError(f"einsum: {equation!r} is of {len(names)} operands, got {len(operands)}")
    counts = [
        len(x.shape) - len(text.replace("...", "")) if "..." in text else 0
        for text, x in zip(names, operands, strict=True)
    ]

    def labels(text: str, count: int) -> _Labels:
        before, _, after = text.partition("...")
        return [*before, *reversed(range(count)), *after]

    terms = [labels(*each) for each in zip(names, counts, strict=True)]
    for i, (term, text, x) in enumerate(zip(terms, names, operands, strict=True)):
        letters = text.replace("...", "", 1)
        if len(term) != len(x.shape) or counts[i] < 0 or not (letters.isalpha() or not letters):
            raise ShapeError(f"einsum: {text!r} does not name the axes of operand {i}, got {x.spec}")
    given = [label for term in terms for label in term]
    if arrow:
        output = labels(right, max(counts) if "..." in right else 0)
    else:
        once = sorted(label for label in given if isinstance(label, str) and given.count(label) == 1)
        output = [*reversed(range(max(counts))), *once]
    if len({*output}) != len(output) or not {*output} <= {*given}:
        raise ShapeError(f"einsum: the result of {equation!r} must name axes of the operands, each once")
    return terms, output


def _of_distinct_axes(x: Any, labels: _Labels, lengths: Mapping[Any, int]) -> tuple[Any, _Labels]:
    """An operand whose axes have distinct names, without axes along which it is repeated."""
    for label in dict.fromkeys(labels):
        while labels.count(label) > 1:
            i = labels.index(label)
            j = labels.index(label, i + 1)
            if not may_equal(x.shape[i], x.shape[j]):
                raise ShapeError(f"einsum: axis {label!r} of one operand has lengths {x.shape[i]} and {x.shape[j]}")
            rest = [k for k in range(len(labels)) if k not in (i, j)]
            x, labels = diagonal(transpose(x, [*rest, i, j])), [*[labels[k] for k in rest], label]
    repeated = [i for i, label in enumerate(labels) if not may_equal(x.shape[i], lengths[label])]
    if repeated:
        x, labels = squeeze(x, repeated), [label for i, label in enumerate(labels) if i not in repeated]
    return x, labels


def _summed(x: Any, labels: _Labels, kept: set[Any]) -> tuple[Any, _Labels]:
    axes = [i for i, label in enumerate(labels) if label not in kept]
    if axes:
        x = as_dtype(reductions.sum(x, axes), x.dtype)
    return x, [label for label in labels if label in kept]


@whole
def outer(x1: X, x2: X, /, *, name: str | None = None) -> X:
    """The products of each element of a vector with each one of another: ``y[i, j] = x1[i] * x2[j]``.

    Args:
        x1: Shape (n,), numeric.
        x2: Shape (m,), dtype of ``x1``.
    Returns:
        Shape (n, m), dtype of ``x1``.
    Raises:
        ShapeError: if one is not a vector.
    Gradient: by both operands.
    Source: `numpy.linalg.outer`.
    Example:
        >>> xp.linalg.outer(xp.asarray([1, 2]), xp.asarray([1, 10, 100]))
        Array([[  1,  10, 100],
               [  2,  20, 200]], dtype=int64)
    """
    for argument, x in (("x1", x1), ("x2", x2)):
        rank_is("outer", argument, x.spec, ("n",))
    return multiply(expand_dims(x1, 1), expand_dims(x2, 0), name=name or "outer")


@whole
def cross(x1: X, x2: X, /, *, axis: int = -1, name: str | None = None) -> X:
    """The cross products of vectors of three elements along an axis; the other axes broadcast.

    Args:
        x1: Numeric.
        x2: Dtype of ``x1``.
        axis: The axis, counted from the end if negative.
    Returns:
        The common shape, dtype of ``x1``.
    Raises:
        ShapeError: if there are not three elements along the axis.
    Gradient: by both operands.
    Source: `numpy.linalg.cross`.
    Example:
        >>> xp.linalg.cross(xp.asarray([1, 0, 0]), xp.asarray([0, 1, 0]))
        Array([0, 0, 1], dtype=int64)
    """
    least = min(len(x1.shape), len(x2.shape))
    if not -least <= axis < least or not may_equal((x1.shape[axis], x2.shape[axis]), (3, 3)):
        raise ShapeError(f"cross: expected 3 elements along axis {axis}, got x1 {x1.spec} and x2 {x2.spec}")
    one, other = (multiply(roll(x1, -i, axis), roll(x2, i, axis)) for i in (1, -1))
    return subtract(one, other, name=name or "cross")


@whole
def diagonal(x: X, /, *, offset: int = 0, name: str | None = None) -> X:
    """The diagonals of matrices.

    Args:
        x: Shape (..., rows, columns), any dtype.
        offset: Distance from the main diagonal, to the right.
    Returns:
        Shape (..., length).
    Raises:
        ShapeError: if ``x`` does not have two axes.
    Gradient: g on the diagonals of zeros.
    Source: `numpy.linalg.diagonal`.
    Example:
        >>> xp.linalg.diagonal(xp.asarray([[1, 2], [3, 4]]))
        Array([1, 4], dtype=int64)
    """
    if len(x.shape) < 2:
        raise ShapeError(f"diagonal: x must have shape (..., rows, columns), got {x.spec}")
    *lead, rows, columns = x.shape
    length = maximum(0, minimum(rows, columns - offset) if offset >= 0 else minimum(rows + offset, columns))
    start = (max(0, offset) + max(0, -offset) * columns) if length else 0
    part = slice(start, start + length * (columns + 1), columns + 1)
    return indexing.slice(reshape(x, (*lead, rows * columns)), (..., part), name=name or "diagonal")


@whole
def trace(x: X, /, *, offset: int = 0, dtype: npt.DTypeLike | None = None, name: str | None = None) -> X:
    """The sums of the diagonals of matrices; of integers in 64 bits, unless ``dtype`` says otherwise.

    Args:
        x: Shape (..., rows, columns), numeric.
        offset: Distance from the main diagonal, to the right.
        dtype: Of the result, and of the sums.
    Returns:
        Shape (...).
    Raises:
        ShapeError: if ``x`` does not have two axes.
    Gradient: g on the diagonals of zeros.
    Source: `numpy.linalg.trace`.
    Example:
        >>> print(xp.linalg.trace(xp.asarray([[1, 2], [3, 4]])))
        5
    """
    elements = diagonal(x, offset=offset)
    if dtype is None:
        return reductions.sum(elements, -1, name=name or "trace")
    return as_dtype(reductions.sum(as_dtype(elements, np.dtype(dtype)), -1, name=name or "trace"), np.dtype(dtype))


@whole
def matrix_power(x: X, n: int, /, *, name: str | None = None) -> X:
    """Square matrices to an integer power; negative ones are powers of the inverse.

    Args:
        x: Square matrices, numeric.
        n: The power.
    Returns:
        The type of ``x``.
    Raises:
        ShapeError: if the matrices are not square.
        DTypeError: if there is no inverse of the dtype.
    Gradient: through the products.
    Source: `numpy.linalg.matrix_power`.
    Example:
        >>> xp.linalg.matrix_power(xp.asarray([[1, 1], [1, 0]]), 10)  # Fibonacci numbers
        Array([[89, 55],
               [55, 34]], dtype=int64)
    """
    _check_matrices("matrix_power", "x", x.spec, is_square=True, is_floating=False)
    y: X = _power(x if n >= 0 else inv(x), abs(n))
    return reshape(y, x.shape, name=name or "matrix_power")


def _power(x: Any, n: int) -> Any:
    if n < 2:
        return x if n else filled(1, x.shape, x) * _eye(x)
    half = _power(x, n // 2)
    return half @ half @ x if n % 2 else half @ half


# -- decompositions ---------------------------------------------------------------------------------------------------


class EigResult(NamedTuple, Generic[X]):
    """Result of `eig` and `eigh`."""

    eigenvalues: X
    eigenvectors: X


class QRResult(NamedTuple, Generic[X]):
    """Result of `qr`."""

    Q: X
    R: X


class SlogdetResult(NamedTuple, Generic[X]):
    """Result of `slogdet`."""

    sign: X
    logabsdet: X


class SVDResult(NamedTuple, Generic[X]):
    """Result of `svd`."""

    U: X
    S: X
    Vh: X


def _check_matrices(name: str, argument: str, x: TensorSpec, is_square: bool, is_floating: bool = True) -> None:
    if len(x.shape) < 2 or (is_square and x.shape[-1] != x.shape[-2]):
        kind, axes = ("square ", "n, n") if is_square else ("", "rows, columns")
        raise ShapeError(f"{name}: {argument} must be {kind}matrices of shape (..., {axes}), got {x}")
    if is_floating and (x.dtype.kind not in "fc" or x.dtype.itemsize < 4):
        raise DTypeError(f"{name}: {argument} must be of float32, float64 or complex numbers, got {x}")


class _OfMatrices(Operation):
    """Base of the operations on the matrices that the last two axes are.

    Class attributes:
        is_square: Whether the matrices must be square.
    """

    takes_complex = True
    is_square: ClassVar[bool] = True

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        (x,) = inputs
        _check_matrices(self.function_name, "x", x, self.is_square)
        return self.results(x)

    def results(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        """Types of the results for matrices that fit."""
        return (x,)

    def compute(self, *inputs: Any) -> Any:
        return getattr(np.linalg, self.function_name)(*inputs, **vars(self))


def _transposed(x: Any) -> Any:
    return conjugated(matrix_transpose(x))


def _eye(x: Any) -> Any:
    return _beside(x, _identity, x.shape[-1], x.dtype, shape=(x.shape[-1], x.shape[-1]))


@savable
def _identity(length: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    return np.eye(length, dtype=dtype)


def _beside(x: Any, function: Callable[..., Any], *given: Any, shape: tuple[int, ...]) -> Any:
    """An array that follows from lengths, as a constant of the place of ``x`` where these are open."""
    found = numbers(function, *given, shape=shape, dtype=x.dtype)
    return found if isinstance(found, np.ndarray) else x.literal(found)


@savable
def _lower_half(shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    return np.tril(np.ones(shape, dtype)) - np.eye(shape[-1], dtype=dtype) / 2


def _half(x: Any) -> Any:
    """The lower triangle with half of the diagonal."""
    return x * _beside(x, _lower_half, x.shape[-2:], x.dtype, shape=x.shape[-2:])


def _inverse_gaps(values: Any) -> Any:
    """``1 / (values[j] - values[i])``, 0 on the diagonal."""
    return (1 - _eye(values)) / (values[..., None, :] - values[..., None] + _eye(values))


@dataclass(frozen=True)
class Cholesky(_OfMatrices):
    """The triangular factor; see `cholesky`."""

    upper: bool = False

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        factor, g = (_transposed(x) if self.upper else x for x in (op.outputs[0], grads[0]))
        inverse = inv(factor)
        found = _transposed(inverse) @ _half(_transposed(factor) @ g) @ inverse
        return [0.5 * (found + _transposed(found))]


class Det(_OfMatrices):
    """The determinants; see `det`."""

    def results(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        return (TensorSpec(x.shape[:-2], x.dtype),)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        return [grads[0][..., None, None] * apply(Cofactors(), op.inputs[0])]


class Cofactors(_OfMatrices):
    """The matrices of cofactors, conjugated: ``det(x).conj() * inv(x).H`` where there is an inverse."""

    def compute(self, *inputs: Any) -> Any:
        (x,) = inputs
        u, s, vh = np.linalg.svd(x)
        others = np.where(np.eye(s.shape[-1], dtype=bool), 1.0, s[..., None, :]).prod(axis=-1).astype(x.dtype)
        turn = np.linalg.det(u) * np.linalg.det(vh)
        return np.asarray(turn.conj()[..., None, None] * ((u * others[..., None, :]) @ vh), x.dtype)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        (g,), (x,), (y,) = grads, op.inputs, op.outputs
        inverse = inv(x)
        back = _transposed(inverse)
        share = conjugated(reductions.sum(matrix_transpose(inverse) * g, (-2, -1)))
        return [share[..., None, None] * y - back @ _transposed(det(x)[..., None, None] * g) @ back]


class Slogdet(_OfMatrices):
    """Signs and logarithms of determinants; see `slogdet`."""

    def results(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        return TensorSpec(x.shape[:-2], x.dtype), TensorSpec(x.shape[:-2], real_type(x.dtype))

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        (x,), (sign, _), (by_sign, by_log) = op.inputs, op.outputs, grads
        terms = [] if by_log is None else [as_dtype(by_log, x.dtype)]
        if by_sign is not None and x.dtype.kind == "c":
            turn = by_sign * conj(sign)
            terms.append(0.5 * (turn - conj(turn)))
        return [plus(*terms)[..., None, None] * _transposed(inv(x)) if terms else None]


class Inv(_OfMatrices):
    """The inverses; see `inv`."""

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        back = _transposed(op.outputs[0])
        return [-(back @ grads[0] @ back)]


class Solve(Operation):
    """The solutions of linear equations; see `solve`."""

    arguments = ("x1", "x2")
    takes_complex = True
    one_dtype = True

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        a, b = inputs
        _check_matrices("solve", "x1", a, is_square=True)
        if b.dtype != a.dtype:
            raise DTypeError(f"solve: x2 must have x1's dtype {a.dtype}, got {b}")
        if not b.shape or b.shape[0 if len(b.shape) == 1 else -2] != a.shape[-1]:
            raise ShapeError(f"solve: x2 must have shape (n,) or (..., n, columns) for x1 {a}, got {b}")
        if len(b.shape) == 1:
            return (TensorSpec(a.shape[:-1], a.dtype),)
        lead = broadcast_shape("solve", x1=TensorSpec(a.shape[:-2], a.dtype), x2=TensorSpec(b.shape[:-2], b.dtype))
        return (TensorSpec((*lead, *b.shape[-2:]), a.dtype),)

    def compute(self, *inputs: Any) -> Any:
        a, b = inputs
        return np.linalg.solve(a, b[..., None])[..., 0] if b.ndim == 1 else np.linalg.solve(a, b)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        (g,), (a, b), (y,) = grads, op.inputs, op.outputs
        if len(b.shape) == 1:
            g, y = g[..., None], y[..., None]
        back = solve(_transposed(a), g)
        da = apply(Matmul(False, True, a.shape[:-2]), -back, conjugated(y)) if wanted[0] else None
        return [da, sum_to(reshape(back, back.shape[:-1]) if len(b.shape) == 1 else back, b.shape)]


@dataclass(frozen=True)
class Eigh(_OfMatrices):
    """Eigenvalues of Hermitian matrices, and ``vectors`` if they are wanted; see `eigh`."""

    vectors: bool = True

    def results(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        return (TensorSpec(x.shape[:-1], real_type(x.dtype)), x)[: 1 + self.vectors]

    def compute(self, *inputs: Any) -> Any:
        return tuple(np.linalg.eigh(inputs[0])) if self.vectors else np.linalg.eigvalsh(inputs[0])

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        values, vectors = op.outputs if self.vectors else apply(Eigh(), op.inputs[0])
        by_values, by_vectors = grads if self.vectors else (*grads, None)
        terms, back = [], _transposed(vectors)
        if by_values is not None:
            terms.append((vectors * as_dtype(by_values[..., None, :], vectors.dtype)) @ back)
        if by_vectors is not None:
            inner = (back @ by_vectors) * as_dtype(_inverse_gaps(values), vectors.dtype)
            terms.append(vectors @ inner @ back)
        return [plus(*terms)]


@dataclass(frozen=True)
class Eig(_OfMatrices):
    """Eigenvalues, and ``vectors`` of norm 1 if they are wanted; see `eig`."""

    vectors: bool = True

    def results(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        dtype = np.result_type(x.dtype, np.complex64)
        return (TensorSpec(x.shape[:-1], dtype), TensorSpec(x.shape, dtype))[: 1 + self.vectors]

    def compute(self, *inputs: Any) -> Any:
        found = np.linalg.eig(inputs[0]) if self.vectors else (np.linalg.eigvals(inputs[0]),)
        return tuple([each.astype(np.result_type(each, np.complex64), copy=False) for each in found])

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        (x,) = op.inputs
        values, vectors = op.outputs if self.vectors else apply(Eig(), x)
        by_values, by_vectors = grads if self.vectors else (*grads, None)
        terms, back = [], _transposed(vectors)
        if by_values is not None:
            terms.append(by_values[..., None, :] * _eye(vectors))
        if by_vectors is not None:
            turn = back @ by_vectors
            along = as_dtype(real(diagonal(turn)), turn.dtype)
            terms.append((turn - back @ (vectors * along[..., None, :])) * conj(_inverse_gaps(values)))
        return [fit(solve(back, plus(*terms) @ back), x)]


@dataclass(frozen=True)
class Qr(_OfMatrices):
    """Orthonormal and triangular factors; see `qr`."""

    is_square = False

    mode: Literal["reduced", "complete"] = "reduced"

    def results(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        if self.mode not in ("reduced", "complete"):
            raise ShapeError(f"qr: mode must be 'reduced' or 'complete', got {self.mode!r}")
        *lead, rows, columns = x.shape
        inner = minimum(rows, columns) if self.mode == "reduced" else rows
        return TensorSpec((*lead, rows, inner), x.dtype), TensorSpec((*lead, inner, columns), x.dtype)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        (x,), (q, r) = op.inputs, op.outputs
        rows, columns = x.shape[-2:]
        if self.mode == "complete" and rows > columns:
            raise GraphError(
                "qr: mode='complete' of tall matrices has no gradient, since Q is not determined: use 'reduced'"
            )
        by_q, by_r = (filled(0.0, y.shape, y) if g is None else g for g, y in zip(grads, (q, r), strict=True))
        if rows >= columns:
            return [_of_qr(q, r, by_q, by_r)]
        # Q is determined by the first columns; the others are Q times theirs in R.
        by_rest = by_r[..., rows:]
        by_q = by_q + x[..., rows:] @ _transposed(by_rest)
        return [concat([_of_qr(q, r[..., :rows], by_q, by_r[..., :rows]), q @ by_rest], -1)]


def _of_qr(q: Any, r: Any, by_q: Any, by_r: Any) -> Any:
    lower = _half(_transposed(by_r @ _transposed(r) - _transposed(q) @ by_q))
    return _transposed(solve(r, _transposed(by_q + q @ (lower + _transposed(lower)))))


@dataclass(frozen=True)
class Svd(_OfMatrices):
    """Singular values, and ``vectors`` if they are wanted; see `svd`."""

    is_square = False

    full_matrices: bool = True
    vectors: bool = True

    def results(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        *lead, rows, columns = x.shape
        inner = minimum(rows, columns)
        left, right = (rows, columns) if self.full_matrices else (inner, inner)
        values = TensorSpec((*lead, inner), real_type(x.dtype))
        if not self.vectors:
            return (values,)
        return TensorSpec((*lead, rows, left), x.dtype), values, TensorSpec((*lead, right, columns), x.dtype)

    def compute(self, *inputs: Any) -> Any:
        if not self.vectors:
            return np.linalg.svdvals(inputs[0])
        return tuple(np.linalg.svd(inputs[0], full_matrices=self.full_matrices))

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        (x,), (by_u, by_s, by_vh) = op.inputs, grads if self.vectors else (None, *grads, None)
        rows, columns = x.shape[-2:]
        if self.full_matrices and rows != columns and (by_u is not None or by_vh is not None):
            raise GraphError("svd: full_matrices=True has a gradient only for S, or for square matrices")
        thin = op.outputs if self.vectors and (not self.full_matrices or rows == columns) else apply(Svd(False), x)
        u, s, vh = thin[0], as_dtype(thin[1], x.dtype), thin[2]
        terms, middle = [], []
        if by_s is not None:
            terms.append((u * as_dtype(by_s[..., None, :], x.dtype)) @ vh)
        if by_u is not None or by_vh is not None:
            inverse = as_dtype(_inverse_gaps(thin[1] * thin[1]), x.dtype)
        if by_u is not None:
            turn = _transposed(u) @ by_u
            skew = turn - _transposed(turn)
            middle.append(skew * inverse * s[..., None, :])
            if x.dtype.kind == "c":
                middle.append(0.5 * skew / s[..., None, :] * _eye(s))
            terms.append(((by_u - u @ turn) / s[..., None, :]) @ vh)
        if by_vh is not None:
            by_v = _transposed(by_vh)
            turn = vh @ by_v
            middle.append(s[..., None] * ((turn - _transposed(turn)) * inverse))
            terms.append((u / s[..., None, :]) @ _transposed(by_v - _transposed(vh) @ turn))
        return [plus(*terms, *([u @ plus(*middle) @ vh] if middle else []))]


class Pinv(Operation):
    """The pseudo-inverses, with a tolerance for each matrix; see `pinv`."""

    arguments = ("x", "rtol")
    constants = ("rtol",)
    takes_complex = True

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        x, rtol = inputs
        _check_matrices("pinv", "x", x, is_square=False)
        _check_tolerance("pinv", rtol, x)
        return (TensorSpec((*x.shape[:-2], x.shape[-1], x.shape[-2]), x.dtype),)

    def compute(self, *inputs: Any) -> Any:
        return np.linalg.pinv(inputs[0], rtol=inputs[1].real)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        """The gradient where the rank does not change."""
        x, y = op.inputs[0], op.outputs[0]
        by_y, back = _transposed(grads[0]), _transposed(y)
        if x.shape[-2] <= x.shape[-1]:
            inner = by_y @ y
            turned = inner @ back
            found = turned - _transposed(y @ inner) - (x @ y) @ turned + (back @ y) @ (by_y - inner @ x)
        else:
            inner = y @ by_y
            turned = back @ inner
            found = turned - _transposed(inner @ y) + (by_y - x @ inner) @ y @ back - (turned @ y) @ x
        return [found, None]


def _check_tolerance(name: str, rtol: TensorSpec, x: TensorSpec) -> None:
    if rtol.dtype.kind not in "fc":
        raise DTypeError(f"{name}: rtol must be floating, got {rtol}")
    try:
        fits = broadcast_shapes(rtol.shape, x.shape[:-2]) == x.shape[:-2]
    except ValueError:
        fits = False
    if not fits:
        raise ShapeError(f"{name}: rtol must be a number, or one for each matrix, got {rtol}; x is {x}")


def cholesky(x: X, /, *, upper: bool = False, name: str | None = None) -> X:
    """The triangular factor of Hermitian positive definite matrices: ``x = L @ L.H``, or ``x = U.H @ U``.

    As all functions of matrices here it takes stacks of them, of shape (..., rows, columns) and of float32, float64 or
    complex numbers, and is computed by LAPACK on the CPU. Matrices that have no result are an error when they are
    computed.

    Args:
        x: Square matrices, of which one triangle is read.
        upper: Give ``U`` in the place of ``L``.
    Returns:
        The type of ``x``.
    Raises:
        ShapeError: if the matrices are not square.
        DTypeError: if the dtype is another one.
    Gradient: that of a Hermitian change of ``x``.
    Example:
        >>> x = xp.asarray([[4.0, 2.0], [2.0, 5.0]])
        >>> xp.linalg.cholesky(x)
        Array([[2., 0.],
               [1., 2.]], dtype=float64)
    """
    return blob_of(Cholesky(bool(upper)), x, name=name)


def det(x: X, /, *, name: str | None = None) -> X:
    """The determinants of square matrices.

    Args:
        x: Square matrices, of the dtypes that `cholesky` takes.
    Returns:
        Shape (...), dtype of ``x``.
    Raises:
        ShapeError, DTypeError: as for `cholesky`.
    Gradient: the cofactors, of singular matrices too; they have a gradient themselves where there is an inverse.
    Source: `numpy.linalg.det`.
    Example:
        >>> print(round(float(xp.linalg.det(xp.asarray([[1.0, 2.0], [3.0, 4.0]]))), 6))
        -2.0
    """
    return blob_of(Det(), x, name=name)


def inv(x: X, /, *, name: str | None = None) -> X:
    """The inverses of square matrices.

    Args:
        x: Square matrices, of the dtypes that `cholesky` takes.
    Returns:
        The type of ``x``.
    Raises:
        ShapeError, DTypeError: as for `cholesky`.
    Gradient: -y.H @ g @ y.H.
    Source: `numpy.linalg.inv`.
    Example:
        >>> xp.linalg.inv(xp.asarray([[2.0, 0.0], [0.0, 4.0]]))
        Array([[0.5 , 0.  ],
               [0.  , 0.25]], dtype=float64)
    """
    return blob_of(Inv(), x, name=name)


def solve(x1: X, x2: X, /, *, name: str | None = None) -> X:
    """The solutions ``x`` of ``x1 @ x = x2``.

    Args:
        x1: Square matrices.
        x2: One vector of shape (n,), or matrices of shape (..., n, columns); dtype of ``x1``.
    Returns:
        The shape of ``x2``, its stacks broadcast with the stacks of ``x1``.
    Raises:
        ShapeError, DTypeError: if they do not fit.
    Gradient: dx2 = solve(x1.H, g); dx1 = -dx2 @ y.H.
    Source: `numpy.linalg.solve`.
    Example:
        >>> a = xp.asarray([[2.0, 0.0], [0.0, 4.0]])
        >>> xp.linalg.solve(a, xp.asarray([1.0, 2.0]))
        Array([0.5, 0.5], dtype=float64)
    """
    return blob_of(Solve(), x1, x2, name=name)


def eig(x: X, /, *, name: str | None = None) -> EigResult[X]:
    """Eigenvalues, in any order, and eigenvectors of square matrices: complex numbers.

    Args:
        x: Square matrices, of the dtypes that `cholesky` takes.
    Returns:
        The named tuple ``eigenvalues``, shape (..., n), and ``eigenvectors``, shape (..., n, n), its columns.
    Raises:
        ShapeError, DTypeError: as for `cholesky`.
    Gradient: of the vectors as of norm 1; none where eigenvalues are equal.
    Source: `numpy.linalg.eig`.
    Example:
        >>> values, vectors = xp.linalg.eig(xp.asarray([[0.0, -1.0], [1.0, 0.0]]))  # a quarter turn
        >>> print(sorted(np.asarray(values).imag.round(6).tolist()))
        [-1.0, 1.0]
    """
    return EigResult(*apply(Eig(), x, name=name))


def eigvals(x: X, /, *, name: str | None = None) -> X:
    """The eigenvalues of `eig` alone.

    Arguments, errors and gradient: as of `eig`.
    Source: `numpy.linalg.eigvals`.
    Example:
        >>> values = xp.linalg.eigvals(xp.asarray([[2.0, 1.0], [0.0, 3.0]]))
        >>> print(np.sort(np.asarray(values).real))
        [2. 3.]
    """
    return blob_of(Eig(vectors=False), x, name=name or "eigvals")


def eigh(x: X, /, *, name: str | None = None) -> EigResult[X]:
    """Eigenvalues, ascending, and eigenvectors of symmetric or Hermitian matrices.

    Args:
        x: Square matrices, of the dtypes that `cholesky` takes.
    Returns:
        The named tuple ``eigenvalues``, shape (..., n), real, and ``eigenvectors``, shape (..., n, n), its columns.
    Raises:
        ShapeError, DTypeError: as for `cholesky`.
    Gradient: that of a Hermitian change of ``x``; that of the vectors is none where eigenvalues are equal.
    Source: `numpy.linalg.eigh`.
    Example:
        >>> x = xp.asarray([[2.0, 1.0], [1.0, 2.0]])
        >>> values, vectors = xp.linalg.eigh(x)
        >>> print(np.round(values, 6), np.allclose(x @ vectors, vectors * values))
        [1. 3.] True
    """
    return EigResult(*apply(Eigh(), x, name=name))


def eigvalsh(x: X, /, *, name: str | None = None) -> X:
    """The eigenvalues of `eigh` alone.

    Arguments, errors and gradient: as of `eigh`.
    Source: `numpy.linalg.eigvalsh`.
    Example:
        >>> print(np.round(xp.linalg.eigvalsh(xp.asarray([[2.0, 1.0], [1.0, 2.0]])), 6))
        [1. 3.]
    """
    return blob_of(Eigh(vectors=False), x, name=name or "eigvalsh")


def slogdet(x: X, /, *, name: str | None = None) -> SlogdetResult[X]:
    """Signs and logarithms of the magnitudes of the determinants of square matrices.

    Args:
        x: Square matrices, of the dtypes that `cholesky` takes.
    Returns:
        The named tuple ``sign`` and ``logabsdet``, shape (...).
    Raises:
        ShapeError, DTypeError: as for `cholesky`.
    Gradient: of the logarithm, g * inv(x).H; none of the sign of real numbers.
    Source: `numpy.linalg.slogdet`.
    Example:
        >>> sign, logarithm = xp.linalg.slogdet(xp.asarray([[0.0, 1.0], [1.0, 0.0]]))
        >>> print(sign, logarithm)
        -1.0 0.0
    """
    return SlogdetResult(*apply(Slogdet(), x, name=name))


def qr(x: X, /, *, mode: Literal["reduced", "complete"] = "reduced", name: str | None = None) -> QRResult[X]:
    """Orthonormal and upper triangular factors of matrices.

    Args:
        x: Matrices.
        mode: "complete" for a square Q.
    Returns:
        The named tuple ``Q`` and ``R``, dtype of ``x``.
    Raises:
        ShapeError, DTypeError: if ``x`` has less than two axes or is not floating, or there is no such mode.
    Gradient: none of tall matrices in mode "complete", since Q is not determined.
    Source: `numpy.linalg.qr`.
    Example:
        >>> x = xp.asarray([[3.0, 1.0], [4.0, 2.0], [0.0, 5.0]])
        >>> q, r = xp.linalg.qr(x)
        >>> print(q.shape, r.shape, np.allclose(q @ r, x))
        (3, 2) (2, 2) True
    """
    return QRResult(*apply(Qr(mode), x, name=name))


def svd(x: X, /, *, full_matrices: bool = True, name: str | None = None) -> SVDResult[X]:
    """The singular value decomposition ``x = U @ diag(S) @ Vh`` of matrices, S descending.

    Args:
        x: Matrices.
        full_matrices: Whether U and Vh are square.
    Returns:
        The named tuple ``U``, ``S`` and ``Vh``; ``S`` is real.
    Raises:
        ShapeError, DTypeError: if ``x`` has less than two axes, or is not floating.
    Gradient: of U and Vh if they are as wide as S, and where singular values differ.
    Source: `numpy.linalg.svd`.
    Example:
        >>> x = xp.asarray([[0.0, 2.0], [3.0, 0.0], [0.0, 0.0]])
        >>> u, s, vh = xp.linalg.svd(x, full_matrices=False)
        >>> print(np.round(s, 6), np.allclose((u * s) @ vh, x))
        [3. 2.] True
    """
    return SVDResult(*apply(Svd(bool(full_matrices)), x, name=name))


def svdvals(x: X, /, *, name: str | None = None) -> X:
    """The singular values of `svd` alone.

    Arguments, errors and gradient: as of `svd`.
    Source: `numpy.linalg.svdvals`.
    Example:
        >>> print(np.round(xp.linalg.svdvals(xp.asarray([[0.0, 2.0], [3.0, 0.0]])), 6))
        [3. 2.]
    """
    return blob_of(Svd(vectors=False), x, name=name or "svdvals")


@whole
def matrix_rank(x: X, /, *, rtol: float | X | None = None, name: str | None = None) -> X:
    """The number of singular values of matrices above ``rtol`` times the greatest; int64.

    Args:
        x: Matrices.
        rtol: A number, or one for each matrix; by default the greater side of a matrix times the dtype's epsilon.
    Returns:
        Shape (...), int64.
    Raises:
        ShapeError, DTypeError: if ``x`` has less than two axes, or is not floating.
    Gradient: none.
    Source: `numpy.linalg.matrix_rank`.
    Example:
        >>> print(xp.linalg.matrix_rank(xp.asarray([[1.0, 2.0], [2.0, 4.0]])))
        1
    """
    values: Any = svdvals(x)
    limit = _tolerance(rtol, x)
    _check_tolerance("matrix_rank", limit.spec, x.spec)
    limit = as_dtype(limit if limit.dtype.kind == "f" else real(limit), values.dtype)
    y: X = reductions.count_nonzero(values > values[..., :1] * limit[..., None], -1, name=name or "matrix_rank")
    return y


def _tolerance(rtol: Any, x: Any) -> Any:
    if isinstance(rtol, Operand):
        return rtol
    if rtol is None:
        return x.literal(numbers(_rounding, x.shape[-2:], x.dtype, shape=(), dtype=x.dtype))
    return number_like(float(rtol), x)


@savable
def _rounding(shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    return np.asarray(max(shape) * np.finfo(dtype).eps, dtype)


@whole
def pinv(x: X, /, *, rtol: float | X | None = None, name: str | None = None) -> X:
    """The pseudo-inverses of matrices.

    Args:
        x: Matrices.
        rtol: Singular values below ``rtol`` times the greatest count as zero, as for `matrix_rank`.
    Returns:
        Shape (..., columns, rows), dtype of ``x``.
    Raises:
        ShapeError, DTypeError: if ``x`` has less than two axes, or is not floating.
    Gradient: that where the rank does not change; none by ``rtol``.
    Source: `numpy.linalg.pinv`.
    Example:
        >>> x = xp.asarray([[1.0], [1.0]])
        >>> xp.round(xp.linalg.pinv(x) * 4) / 4
        Array([[0.5, 0.5]], dtype=float64)
    """
    _check_matrices("pinv", "x", x.spec, is_square=False)
    return blob_of(Pinv(), x, _tolerance(rtol, x), name=name)


# -- norms ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class VectorNorm(Reduction):
    """Norms along axes of a finite ``order`` that is not 0; see `vector_norm`."""

    function_name = "vector_norm"
    takes_complex = True

    order: float = 2

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        (x,) = inputs
        if x.dtype.kind not in "fcV":
            raise DTypeError(f"vector_norm: x must be floating, got {x}")
        return (TensorSpec(self.reduced(x), real_type(x.dtype)),)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        """The gradient at the origin is 0."""
        (x,) = op.inputs
        g, y = (expand_like(self, each, x) for each in (grads[0], op.outputs[0]))
        y = _not_zero(y)
        share = g / y
        if self.order != 2:
            share = share * (_not_zero(absolute(x)) / y) ** (self.order - 2.0)
        return [x * as_dtype(share, x.dtype)]


def _not_zero(x: Any) -> Any:
    return x + as_dtype(equal(x, 0.0), x.dtype)


@whole
def vector_norm(x: X, /, *, axis: Axis = None, keepdims: bool = False, ord: float = 2, name: str | None = None) -> X:
    """The norms of vectors along axes; of all elements as one vector if none is named.

    Args:
        x: Floating.
        axis: One axis or several, negative ones counted from the end.
        keepdims: Keep the axes, with length 1.
        ord: Order: ``sum(absolute(x) ** ord) ** (1 / ord)``; at infinity the greatest magnitude, at minus infinity the
            least one, at 0 the number of elements that are not 0.
    Returns:
        The dtype of the magnitudes of ``x``.
    Raises:
        AxisError: if ``x`` does not have the axes.
        DTypeError: if it is not floating.
    Gradient: 0 at the origin; equal shares where several magnitudes are the greatest.
    Source: `numpy.linalg.vector_norm`.
    Example:
        >>> x = xp.asarray([[3.0, 4.0], [6.0, 8.0]])
        >>> print(xp.linalg.vector_norm(x, axis=1), xp.linalg.vector_norm(x, axis=1, ord=np.inf))
        [ 5. 10.] [4. 8.]
    """
    (spec,) = VectorNorm(normal_axes(axis), keepdims).infer(x.spec)
    name = name or "vector_norm"
    folds = {0: reductions.count_nonzero, 1: reductions.sum, math.inf: reductions.max, -math.inf: reductions.min}
    if ord not in folds:
        return blob_of(VectorNorm(normal_axes(axis), keepdims, ord), x, name=name)
    return as_dtype(folds[ord](absolute(x), axis=axis, keepdims=keepdims, name=name), spec.dtype)


@whole
def matrix_norm(x: X, /, *, keepdims: bool = False, ord: Any = "fro", name: str | None = None) -> X:
    """The norms of matrices.

    Args:
        x: Matrices.
        keepdims: Keep the last two axes, with length 1.
        ord: "fro", the root of the sum of squares; "nuc", 2 and -2, the sum, the greatest and the least of the singular
            values; 1 and -1, the greatest and the least sum of magnitudes in a column, inf and -inf in a row.
    Returns:
        The remaining shape, dtype of the magnitudes of ``x``.
    Raises:
        ShapeError, DTypeError: if ``x`` has less than two axes, or is not floating.
    Gradient: that of the composition of reductions, or of singular values.
    Source: `numpy.linalg.matrix_norm`.
    Example:
        >>> x = xp.asarray([[3.0, 0.0], [0.0, -4.0]])
        >>> print(xp.linalg.matrix_norm(x), xp.linalg.matrix_norm(x, ord=1))
        5.0 4.0
    """
    _check_matrices("matrix_norm", "x", x.spec, is_square=False)
    name = name or "matrix_norm"
    if ord == "fro":
        return vector_norm(x, axis=(-2, -1), keepdims=keepdims, name=name)
    if ord not in ("nuc", 2, -2, 1, -1, math.inf, -math.inf):
        raise ShapeError(f"matrix_norm: ord must be 'fro', 'nuc', 1, -1, 2, -2, inf or -inf, got {ord!r}")
    if ord in ("nuc", 2, -2):
        terms = svdvals(x)
    else:
        terms = reductions.sum(absolute(x), -2 if abs(ord) == 1 else -1)
    fold = reductions.sum if ord == "nuc" else reductions.max if ord > 0 else reductions.min
    y = fold(terms, axis=-1, name=name)
    return reshape(y, (*y.shape, 1, 1)) if keepdims else y
