"""Losses: of class scores and labels, and of elements and their targets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from actorflow.errors import DTypeError, GraphError, ShapeError
from actorflow.ops import reductions
from actorflow.ops.composition import composed_gradient
from actorflow.ops.elementwise import clip, maximum, scaled, sign, where
from actorflow.ops.nn.activation import sigmoid
from actorflow.ops.nn.softmax import softmax
from actorflow.ops.operation import Application, Grads, Operation, X, apply, blob_of, same_dtype, savable
from actorflow.spec import TensorSpec, following

_REDUCTIONS = ("mean", "sum", "none")


def check_reduction(kind: str, reduction: str) -> None:
    """Check the name of a reduction."""
    if reduction not in _REDUCTIONS:
        raise GraphError(f"{kind}: reduction must be one of {', '.join(_REDUCTIONS)}, got {reduction!r}")


def _check(kind: str, x: TensorSpec, labels: TensorSpec) -> None:
    same_dtype(kind, x=x)
    if not x.shape or x.shape[-1] == 0:
        raise ShapeError(f"{kind}: x must have shape (..., classes) with at least 1 class, got {x}")
    _check_labels(kind, labels)
    if labels.shape != x.shape[:-1]:
        raise ShapeError(f"{kind}: labels must have x's shape without classes {x.shape[:-1]}, got {labels}")


def _check_labels(kind: str, labels: TensorSpec) -> None:
    if labels.dtype.kind not in "iu":
        raise DTypeError(f"{kind}: labels must be integers, got {labels}")


@dataclass(frozen=True)
class LabelLoss(Operation):
    """Base of the losses of labels. Weights of the classes, where there are any, are one more input.

    Attributes:
        reduction: "mean", "sum" or "none".
        scale: Factor on the loss.
        ignore: Label of samples that do not count.
    """

    arguments: ClassVar[tuple[str, ...]] = ("x", "labels")
    constants: ClassVar[tuple[str, ...]] = ("weights",)

    reduction: str = "mean"
    scale: float = 1.0
    ignore: int | None = None

    @property
    def settings(self) -> tuple[str, float, int | None]:
        """The fields of this class, for an operation that shares them."""
        return self.reduction, self.scale, self.ignore

    def is_constant(self, position: int) -> bool:
        """The weights are."""
        return position >= len(self.arguments)

    def check_arity(self, count: int) -> None:
        """One input more may be given: the weights."""
        if count != len(self.arguments) + 1:
            Operation.check_arity(self, count)

    def _check_options(self, classes: int, dtype: np.dtype[Any], weights: Sequence[TensorSpec]) -> None:
        check_reduction(self.kind, self.reduction)
        for given in weights:
            if given.dtype != dtype:
                raise DTypeError(f"{self.kind}: weights must have dtype {dtype}, got {given}")
            if given.shape != (classes,):
                raise ShapeError(f"{self.kind}: weights must have a value for each of {classes} classes, got {given}")

    def _check_g(self, g: TensorSpec, labels: TensorSpec) -> None:
        expected = labels.shape if self.reduction == "none" else ()
        if g.shape != expected:
            raise ShapeError(f"{self.kind}: g must have shape {expected}, got {g}")


class _Forward(LabelLoss):
    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        x, labels, *weights = inputs
        _check(self.kind, x, labels)
        self._check_options(x.shape[-1], x.dtype, weights)
        return (TensorSpec(labels.shape if self.reduction == "none" else (), x.dtype),)


class SoftmaxLoss(_Forward):
    """``-log(softmax(x)[label])``; see `softmax_loss`."""

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        return [apply(SoftmaxLossDown(*self.settings), grads[0], *op.inputs), *[None] * (len(wanted) - 1)]


class SoftmaxLossDown(LabelLoss):
    """``dx = g * (softmax(x) - one_hot(labels)) * weight / total weight``: the gradient of `SoftmaxLoss`.

    Source: Purine2 ``SoftmaxLossDown``.
    """

    arguments = ("g", "x", "labels")

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        g, x, labels, *weights = inputs
        _check("SoftmaxLossDown", x, labels)
        same_dtype("SoftmaxLossDown", g=g, x=x)
        self._check_options(x.shape[-1], x.dtype, weights)
        self._check_g(g, labels)
        return (x,)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        def down(g: Any, x: Any, labels: Any, *weights: Any) -> Any:
            by_y: Any = apply(NllLossDown(*self.settings, classes=x.shape[-1]), g, labels, *weights)
            return by_y - softmax(x) * reductions.sum(by_y, -1, keepdims=True)

        return composed_gradient(down, op, grads, wanted)


class NllLoss(_Forward):
    """``-x[label]``; see `nll_loss`."""

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        down = NllLossDown(*self.settings, classes=op.inputs[0].shape[-1])
        return [apply(down, grads[0], *op.inputs[1:]), *[None] * (len(wanted) - 1)]


@dataclass(frozen=True)
class NllLossDown(LabelLoss):
    """``dx = -g * weight / total weight`` at each label, else 0: the gradient of `NllLoss`, whatever ``x`` is.

    Attributes:
        classes: Length of the last axis of ``x``.
    """

    arguments = ("g", "labels")

    classes: int = 1

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        g, labels, *weights = inputs
        same_dtype("NllLossDown", g=g)
        _check_labels("NllLossDown", labels)
        self._check_options(self.classes, g.dtype, weights)
        self._check_g(g, labels)
        return (TensorSpec((*labels.shape, self.classes), g.dtype),)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        return [apply(NllLoss(*self.settings), grads[0], *op.inputs[1:]), *[None] * (len(wanted) - 1)]


@dataclass(frozen=True)
class Accuracy(Operation):
    """The share of samples whose label is among the largest predictions; see `accuracy`."""

    arguments = ("x", "labels")
    differentiable = False

    top: int = 1

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        x, labels = inputs
        _check("Accuracy", x, labels)
        if not 1 <= self.top <= x.shape[-1]:
            raise GraphError(f"Accuracy: top must be from 1 to x's {x.shape[-1]} classes, got {self.top}")
        return (TensorSpec((), np.dtype(np.float32)),)


def softmax_loss(
    x: X,
    labels: X,
    weights: X | None = None,
    *,
    reduction: str = "mean",
    scale: float = 1.0,
    ignore: int | None = None,
    name: str | None = None,
) -> X:
    """``-log(softmax(x)[label])`` of each sample, computed without overflow; by default their mean.

    Args:
        x: Scores before softmax, shape (..., classes), floating. The classes are the last axis, not the second one.
        labels: Shape (...), integers from 0 to classes - 1; any other label fails the frame.
        weights: A weight per class, shape (classes,), dtype of ``x``. The mean is then divided by the sum of the
            samples' weights, as in PyTorch.
        reduction: "mean", "sum", or "none" for the loss of each sample.
        scale: Factor on the loss (lambda in Purine2).
        ignore: Samples with this label, which may be any integer, do not count.
    Returns:
        0-d blob, dtype of ``x``, or one of the shape of ``labels`` for no reduction. The mean of no sample is
        NaN.
    Raises:
        ShapeError, DTypeError: if ``x``, ``labels`` and ``weights`` do not fit.
        GraphError: if the reduction does not exist.
    Gradient: dx = g * (softmax(x) - one_hot(labels)) * weight / total weight; none for labels and weights.
    Source: Purine2 ``SoftmaxLoss``; `torch.nn.functional.cross_entropy`.
    Example:
        >>> graph = af.Graph("classify")
        >>> scores, labels = graph.blob("scores", shape=(2, 3)), graph.blob("labels", shape=2, dtype="int64")
        >>> loss = af.ops.softmax_loss(scores, labels)
        >>> slope = af.gradient(loss, scores)
        >>> result = graph.run_sync({scores: [[0, 0, 0], [0, 100, 0]], labels: [2, 1]})
        >>> print(result[loss].round(4))
        0.5493
        >>> print(result[slope].round(4))
        [[ 0.1667  0.1667 -0.3333]
         [ 0.      0.      0.    ]]
    """
    given: tuple[X, ...] = () if weights is None else (weights,)
    return blob_of(SoftmaxLoss(reduction, scale, ignore), x, labels, *given, name=name)


def nll_loss(
    x: X,
    labels: X,
    weights: X | None = None,
    *,
    reduction: str = "mean",
    scale: float = 1.0,
    ignore: int | None = None,
    name: str | None = None,
) -> X:
    """The negative log-likelihood ``-x[label]`` of each sample; by default their mean.

    Arguments, result and errors: as of `softmax_loss`, but ``x`` are logarithms of probabilities.
    Gradient: dx = -g * weight / total weight at each label, else 0.
    Source: `torch.nn.functional.nll_loss`.
    Example:
        >>> x = xp.log(xp.asarray([[0.25, 0.75], [0.5, 0.5]]))
        >>> print(af.ops.nll_loss(x, xp.asarray([1, 0]), reduction="none"))
        [0.28768207 0.69314718]
    """
    given: tuple[X, ...] = () if weights is None else (weights,)
    return blob_of(NllLoss(reduction, scale, ignore), x, labels, *given, name=name)


def accuracy(x: X, labels: X, top: int = 1, name: str | None = None) -> X:
    """The share of samples whose label is among the ``top`` largest predictions.

    Of equal predictions the one of the lower class counts as the larger; NaN counts as the
    largest of all, so a diverged network never looks right. (`torch.topk` leaves the order of equal ones open.)

    Args:
        x: Predictions, shape (..., classes), floating; scores or probabilities.
        labels: Shape (...), integers from 0 to classes - 1; any other label fails the frame.
        top: Number of predictions that count.
    Returns:
        0-d float32 blob; NaN for an empty batch.
    Raises:
        ShapeError, DTypeError: if ``x`` and ``labels`` do not fit.
        GraphError: if ``top`` is not from 1 to the number of classes.
    Gradient: none.
    Source: Purine2 ``Accuracy``.
    Example:
        >>> scores = xp.asarray([[0.1, 0.9], [0.8, 0.2], [0.3, 0.7], [0.6, 0.4]])
        >>> print(af.ops.accuracy(scores, xp.asarray([1, 0, 0, 0])))
        0.75
    """
    return blob_of(Accuracy(top), x, labels, name=name)


@dataclass(frozen=True)
class PairLoss(Operation):
    """Base of the losses of each element of ``x`` and its target, reduced or not: formulas of elements.

    Attributes:
        reduction: "mean", "sum" or "none".
        scale: Factor on the loss.
    """

    arguments: ClassVar[tuple[str, ...]] = ("x", "target")

    #: The loss of ``a`` and its target ``t`` in CUDA C, ``W`` being the type to compute in, ``d`` Huber's bound.
    cuda: ClassVar[str]

    reduction: str = "mean"
    scale: float = 1.0

    def each(self, x: Any, target: Any) -> Any:
        """The losses of elements, by NumPy."""
        raise NotImplementedError

    def by_x(self, g: Any, x: Any, target: Any) -> Any:
        """``g`` times the derivative of the losses of elements by ``x``."""
        raise NotImplementedError

    def by_target(self, g: Any, x: Any, target: Any) -> Any:
        """``g`` times that by the target; here for losses of the difference."""
        return self.by_x(-g, x, target)

    def factor(self, size: int) -> Any:
        """Factor on the sum of the losses of elements."""
        return following(_per_element, self.scale, size) if self.reduction == "mean" else self.scale

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        x, target = inputs
        same_dtype(self.kind, x=x, target=target)
        check_reduction(self.kind, self.reduction)
        if target.shape != x.shape:
            raise ShapeError(f"{self.kind}: target must have x's shape {x.shape}, got {target}")
        return (x if self.reduction == "none" else TensorSpec((), x.dtype),)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        x, target = op.inputs
        g = scaled(grads[0], self.factor(x.spec.size))
        return [self.by_x(g, x, target) if wanted[0] else None, self.by_target(g, x, target) if wanted[1] else None]


@savable
def _per_element(scale: float, size: int) -> float:
    return scale / max(size, 1)


class PairForm(Protocol):
    """A functional form of a loss of pairs."""

    def __call__(
        self, x: X, target: X, *, reduction: str = "mean", scale: float = 1.0, name: str | None = None
    ) -> X: ...


def _pair_loss(
    name: str,
    doc: str,
    each: Callable[..., Any],
    by_x: Callable[..., Any],
    by_target: Callable[..., Any] | None = None,
    *,
    cuda: str,
) -> tuple[type[PairLoss], PairForm]:
    """A loss without more parameters, and its functional form; for the functions see `PairLoss`."""
    functions = {"each": each, "by_x": by_x} | ({} if by_target is None else {"by_target": by_target})
    kind = "".join(part.capitalize() for part in name.split("_"))
    space = {"__doc__": f"See `{name}`.", "__module__": __name__, "cuda": cuda}
    methods = {key: staticmethod(function) for key, function in functions.items()}
    made: type[PairLoss] = type(kind, (PairLoss,), space | methods)

    def form(x: X, target: X, *, reduction: str = "mean", scale: float = 1.0, name: str | None = None) -> X:
        return blob_of(made(reduction, scale), x, target, name=name)

    form.__name__ = form.__qualname__ = name
    form.__doc__ = doc
    return made, form


MseLoss, mse_loss = _pair_loss(
    "mse_loss",
    """The squared error ``(x - target) ** 2``; by default the mean of the elements.

    Args:
        x: Any shape, floating.
        target: Shape and dtype of ``x``.
        reduction: "mean", "sum", or "none" for the loss of each element.
        scale: Factor on the loss.
    Returns:
        0-d blob, or one of the type of ``x`` for no reduction. The mean of no element is NaN.
    Raises:
        ShapeError, DTypeError: if ``x`` and ``target`` differ.
        GraphError: if the reduction does not exist.
    Gradient: dx = 2 * g * (x - target) / size; dtarget = -dx.
    Source: `torch.nn.functional.mse_loss`.
    Example:
        >>> graph = af.Graph("fit")
        >>> x, target = graph.blob("x", shape=2), graph.blob("target", shape=2)
        >>> loss = af.ops.mse_loss(x, target)
        >>> slope = af.gradient(loss, x)
        >>> result = graph.run_sync({x: [1, 5], target: [2, 2]})
        >>> print(result[loss], result[slope])
        5.0 [-1.  3.]
    """,
    lambda x, target: np.square(x - target),
    lambda g, x, target: (x - target) * scaled(g, 2.0),
    cuda="(a - t) * (a - t)",
)
L1Loss, l1_loss = _pair_loss(
    "l1_loss",
    """The absolute error ``|x - target|``; by default the mean of the elements.

    Arguments, result and errors are those of `mse_loss`.

    Gradient: dx = g * sign(x - target) / size, 0 where they are equal; dtarget = -dx.
    Source: `torch.nn.functional.l1_loss`.
    Example:
        >>> x, target = xp.asarray([1.0, 5.0]), xp.asarray([2.0, 2.0])
        >>> print(af.ops.l1_loss(x, target))
        2.0
    """,
    lambda x, target: np.abs(x - target),
    lambda g, x, target: sign(x - target) * g,
    cuda="fabs(a - t)",
)


def _hinge_slope(g: Any, x: Any, target: Any) -> Any:
    return where(x * target < 1.0, -target, 0.0) * g


HingeLoss, hinge_loss = _pair_loss(
    "hinge_loss",
    """The hinge loss, how far a score is from the right side by 1: ``max(1 - x * target, 0)``; by default the mean.

    Arguments, result and errors are those of `mse_loss`, but ``target`` says the side: -1 or 1.

    Gradient: dx = -g * target / size where x * target < 1, else 0; dtarget likewise with x.
    Source: Rosasco et al., Are loss functions all the same?, 2004.
    Example:
        >>> x, target = xp.asarray([2.0, 0.5, 0.5]), xp.asarray([1.0, 1.0, -1.0])
        >>> print(af.ops.hinge_loss(x, target, reduction="none"))
        [0.  0.5 1.5]
    """,
    lambda x, target: np.maximum(1 - x * target, 0),
    _hinge_slope,
    lambda g, x, target: _hinge_slope(g, target, x),
    cuda="a * t < W(1) || a * t != a * t ? W(1) - a * t : W(0)",
)


def _logistic_losses(x: Any, target: Any) -> Any:
    kept, whole, found = [np.empty(x.shape, x.dtype) for _ in range(3)]
    np.negative(np.abs(x, out=kept), out=kept)
    np.exp(kept, out=kept)
    # The logarithm of the rounded sum, and to first order that of what rounding has left out, which is known exactly:
    # to a few units in the last place what `np.log1p` gives, in less than half the time.
    np.add(kept, 1, out=whole)
    np.subtract(kept, np.subtract(whole, 1, out=found), out=kept)
    np.divide(kept, whole, out=kept)
    np.add(np.log(whole, out=whole), kept, out=whole)
    np.subtract(np.maximum(x, 0, out=found), np.multiply(x, target, out=kept), out=found)
    return np.add(found, whole, out=found)


BinaryCrossEntropyWithLogits, binary_cross_entropy_with_logits = _pair_loss(
    "binary_cross_entropy_with_logits",
    """The binary cross-entropy of ``sigmoid(x)`` and a probability, computed without overflow.

    ``max(x, 0) - x * target + log(1 + exp(-|x|))``; by default the mean. Arguments, result and errors are those of
    `mse_loss`; ``x`` are scores before the sigmoid, ``target`` is from 0 to 1.

    Gradient: dx = g * (sigmoid(x) - target) / size; dtarget = -g * x / size.
    Source: `torch.nn.functional.binary_cross_entropy_with_logits`.
    Example:
        >>> x, target = xp.asarray([0.0, 1000.0]), xp.asarray([1.0, 1.0])
        >>> print(af.ops.binary_cross_entropy_with_logits(x, target, reduction="none"))
        [0.69314718 0.        ]
    """,
    _logistic_losses,
    lambda g, x, target: (sigmoid(x) - target) * g,
    lambda g, x, _: -g * x,
    cuda="(a > W(0) ? a : W(0)) - a * t + W(log1p(exp(a > W(0) ? -a : a)))",
)


def _entropies(x: Any, target: Any) -> Any:
    with np.errstate(divide="ignore", invalid="ignore"):
        of_0, of_1 = (np.maximum(np.log(of), -100) for of in (1 - x, x))
    return of_0 * (target - 1) - of_1 * target


def _entropies_by_target(g: Any, x: Any, _: Any) -> Any:
    of_0, of_1 = (binary_cross_entropy(x, x.constant_like(value, x.shape), reduction="none") for value in (0.0, 1.0))
    return (of_1 - of_0) * g


BinaryCrossEntropy, binary_cross_entropy = _pair_loss(
    "binary_cross_entropy",
    """The cross-entropy of two probabilities, ``-target * log(x) - (1 - target) * log(1 - x)``; by default the mean.

    Logarithms below -100 count as -100, as in PyTorch. Prefer `binary_cross_entropy_with_logits` to this after a
    sigmoid. Arguments, result and errors are those of `mse_loss`; ``x`` and ``target`` are from 0 to 1, and an ``x``
    beyond gives NaN.

    Gradient: dx = g * (x - target) / (x * (1 - x)) / size; dtarget = g * (log(1 - x) - log(x)) / size.
    Source: `torch.nn.functional.binary_cross_entropy`.
    Example:
        >>> x, target = xp.asarray([0.5, 0.9]), xp.asarray([1.0, 1.0])
        >>> print(af.ops.binary_cross_entropy(x, target, reduction="none"))
        [0.69314718 0.10536052]
    """,
    _entropies,
    lambda g, x, target: (x - target) / maximum((1.0 - x) * x, 1e-12) * g,
    _entropies_by_target,
    cuda="(t - W(1)) * W(fmax(log(W(1) - a), W(-100))) - t * W(fmax(log(a), W(-100)))",
)


@dataclass(frozen=True)
class HuberLoss(PairLoss):
    """``d ** 2 / 2`` of a distance d up to ``delta``, else ``delta * (d - delta / 2)``; see `huber_loss`."""

    cuda = "fabs(a - t) < d ? W(0.5) * (a - t) * (a - t) : d * (W(fabs(a - t)) - W(0.5) * d)"

    delta: float = 1.0

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        if not self.delta > 0:
            raise GraphError(f"HuberLoss: delta must be positive, got {self.delta}")
        return PairLoss.infer(self, *inputs)

    def each(self, x: Any, target: Any) -> Any:
        distance = np.abs(x - target)
        near = np.minimum(distance, self.delta)
        return near * (near * -0.5 + distance)  # half the square up to delta, and the line beyond

    def by_x(self, g: Any, x: Any, target: Any) -> Any:
        return clip(x - target, -self.delta, self.delta) * g


def huber_loss(
    x: X, target: X, delta: float = 1.0, *, reduction: str = "mean", scale: float = 1.0, name: str | None = None
) -> X:
    """Half the squared error up to ``delta``, then linear: ``delta * (|x - target| - delta / 2)``.

    With ``scale=1 / delta`` it is the smooth L1 loss. Arguments, result and errors are as of `mse_loss`; besides:

    Args:
        delta: Distance from which on the loss is linear; positive.
    Raises:
        GraphError: if ``delta`` is not positive.
    Gradient: dx = g * min(max(x - target, -delta), delta) / size; dtarget = -dx.
    Source: `torch.nn.functional.huber_loss`.
    Example:
        >>> x, target = xp.asarray([0.5, 10.0]), xp.asarray([0.0, 0.0])
        >>> print(af.ops.huber_loss(x, target, reduction="none"))
        [0.125 9.5  ]
    """
    return blob_of(HuberLoss(reduction, scale, delta), x, target, name=name)
