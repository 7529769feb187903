"""Losses of labels and of pairs, and the share of right predictions."""

from __future__ import annotations

from typing import Any

import numpy as np

import actorflow as af
from actorflow import ops
from actorflow.ops.nn.loss import NllLossDown, PairLoss, SoftmaxLossDown
from tests.operations.nn.softmax import log_softmax, softmax
from tests.operations.table import FLOATING, TOLERANCE, Make, Row, Sample, Wrong, backward, fixed, refused

REDUCTIONS = ("mean", "sum", "none")
#: Reduction, scale, label that is ignored.
_HOWS: list[tuple[str, float, int | None]] = [
    ("mean", 0.5, None),
    ("sum", 1.0, 2),
    ("none", 1.0, None),
    ("mean", 1.0, 3),
    ("mean", 1.0, None),
    ("none", 2.0, None),
]


def _labeled(
    *before: tuple[int, ...],
    batch: tuple[int, ...] = (5, 6),
    classes: int = 7,
    scores: bool = True,
    weighted: bool = False,
    labels: str = "int64",
) -> Make:
    def make(random: np.random.Generator) -> list[np.ndarray]:
        arrays = [np.asarray(random.standard_normal(shape)) for shape in before]
        arrays += [random.standard_normal((*batch, classes))] if scores else []
        arrays.append(np.asarray(random.integers(0, classes, batch)).astype(labels))
        return [*arrays, *([random.random(classes) + 0.1] if weighted else [])]

    return make


def _factors(labels: np.ndarray, weights: Any, reduction: str, scale: float, ignore: int | None) -> np.ndarray:
    """What the logarithm at each label is multiplied by."""
    counted = labels != ignore if ignore is not None else np.ones(labels.shape, bool)
    factors = np.where(counted, weights[0][np.where(counted, labels, 0)] if weights else 1.0, 0.0)
    return scale * (factors / factors.sum() if reduction == "mean" else factors)


def _reduced(each: np.ndarray, reduction: str) -> np.ndarray:
    return each if reduction == "none" else each.sum()


def _nll(x: np.ndarray, labels: np.ndarray, *weights: np.ndarray, **how: Any) -> np.ndarray:
    at = np.clip(labels, 0, x.shape[-1] - 1)[..., None]
    picked = np.take_along_axis(x, at, -1)[..., 0]
    return _reduced(-picked * _factors(labels, weights, **how), how["reduction"])


def _softmax_loss(x: np.ndarray, labels: np.ndarray, *weights: np.ndarray, **how: Any) -> np.ndarray:
    return _nll(log_softmax(x), labels, *weights, **how)


def _softmax_down(g: np.ndarray, x: np.ndarray, labels: np.ndarray, *weights: np.ndarray, **how: Any) -> np.ndarray:
    factors = (g * _factors(labels, weights, **how))[..., None]
    return factors * (softmax(x) - np.eye(x.shape[-1])[labels])


def _nll_down(g: np.ndarray, labels: np.ndarray, *weights: np.ndarray, classes: int, **how: Any) -> np.ndarray:
    return -(g * _factors(labels, weights, **how))[..., None] * np.eye(classes)[labels]


def _of_torch(name: str) -> Any:
    def loss(torch: Any, x: Any, labels: Any, *weights: Any, reduction: str, scale: float, ignore: Any) -> Any:
        more = {} if ignore is None else {"ignore_index": ignore}
        x = x.movedim(-1, 1) if x.ndim > 1 else x
        given = weights[0] if weights else None
        return scale * getattr(torch.nn.functional, name)(x, labels.long(), given, reduction=reduction, **more)

    return loss


def _of_labels() -> dict[Any, list[Sample]]:
    found: dict[Any, list[Sample]] = {
        ops.SoftmaxLoss: [Sample(ops.SoftmaxLoss(), _labeled(batch=(2,), classes=3))],
        SoftmaxLossDown: [Sample(SoftmaxLossDown(), _labeled((), batch=(2,), classes=3))],
        ops.NllLoss: [],
        NllLossDown: [],
    }
    drawn: dict[str, Any]
    found[ops.SoftmaxLoss].append(Sample(ops.SoftmaxLoss(), _labeled(batch=(37,), classes=11)))
    found[ops.SoftmaxLoss].append(Sample(ops.SoftmaxLoss(), fixed([[1e4, 0.0], [1e4, 0.0]], [0, 1]), smooth=False))
    found[SoftmaxLossDown].append(Sample(SoftmaxLossDown(), _labeled((), batch=(37,), classes=11)))
    for labels in ("int32", "uint8", "int8"):
        for batch in ((), (0,), (3, 2)):
            drawn = {"batch": batch, "classes": 1 if batch == () else 5, "labels": labels}
            found[ops.SoftmaxLoss].append(Sample(ops.SoftmaxLoss("sum"), _labeled(**drawn)))
            found[SoftmaxLossDown].append(Sample(SoftmaxLossDown("sum"), _labeled((), **drawn)))
            found[ops.NllLoss].append(Sample(ops.NllLoss("sum"), _labeled(**drawn)))
    for how in _HOWS:
        for weighted in (False, True):
            for batch, classes in (((5, 6), 7), ((2, 3), 4)):
                drawn = {"batch": batch, "classes": classes, "weighted": weighted}
                g = batch if how[0] == "none" else ()
                x, down = (0,), (0, 1)
                found[ops.SoftmaxLoss].append(Sample(ops.SoftmaxLoss(*how), _labeled(**drawn), wrt=x))
                found[SoftmaxLossDown].append(Sample(SoftmaxLossDown(*how), _labeled(g, **drawn), wrt=down))
                found[ops.NllLoss].append(Sample(ops.NllLoss(*how), _labeled(**drawn), wrt=x))
                found[NllLossDown].append(
                    Sample(NllLossDown(*how, classes=classes), _labeled(g, scores=False, **drawn), wrt=x)
                )
    return found


def _share(x: np.ndarray, labels: np.ndarray, top: int) -> np.ndarray:
    """Of equal predictions that of the lower class counts as the larger."""
    best = np.argsort(-x, -1, stable=True)[..., :top]
    return (best == labels[..., None]).any(-1).mean()


def _between(random: np.random.Generator) -> list[np.ndarray]:
    """Numbers between 0 and 1."""
    return [0.1 + 0.8 * random.random((6, 7)) for _ in range(2)]


def _apart(random: np.random.Generator) -> list[np.ndarray]:
    """A few, with no two near each other."""
    return [np.array([[0.2, 0.7, 0.45], [0.9, 0.11, 0.6]]), np.array([[0.6, 0.1, 0.8], [0.25, 0.55, 0.3]])]


def _huber(x: np.ndarray, t: np.ndarray, delta: float) -> np.ndarray:
    return np.where(abs(x - t) < delta, (x - t) ** 2 / 2, delta * (abs(x - t) - delta / 2))


#: Losses of elements, in NumPy and in PyTorch.
_PAIRS: dict[str, tuple[Any, Any]] = {
    "MseLoss": (lambda x, t: (x - t) ** 2, "mse_loss"),
    "L1Loss": (lambda x, t: abs(x - t), "l1_loss"),
    "HuberLoss": (_huber, "huber_loss"),
    "HingeLoss": (lambda x, t: np.maximum(1 - x * t, 0), None),
    "BinaryCrossEntropyWithLogits": (
        lambda x, t: np.maximum(x, 0) - x * t + np.log1p(np.exp(-abs(x))),
        "binary_cross_entropy_with_logits",
    ),
    "BinaryCrossEntropy": (lambda x, t: -t * np.log(x) - (1 - t) * np.log1p(-x), "binary_cross_entropy"),
}


def _pair(kind: type[PairLoss]) -> Row:
    each, name = _PAIRS[kind.__name__]

    def reference(x: np.ndarray, t: np.ndarray, reduction: str, scale: float, **more: Any) -> Any:
        found = each(x, t, **more)
        return scale * (found.mean() if reduction == "mean" else found.sum() if reduction == "sum" else found)

    def of_torch(torch: Any, x: Any, t: Any, reduction: str, scale: float, **more: Any) -> Any:
        if name is None:
            return scale * getattr(torch, reduction, torch.clone)(torch.clamp(1 - x * t, min=0))
        return scale * getattr(torch.nn.functional, name)(x, t, reduction=reduction, **more)

    samples = [Sample(kind(how, scale), make) for make, scale in ((_apart, 0.7), (_between, 0.5)) for how in REDUCTIONS]
    is_logistic = kind is ops.BinaryCrossEntropyWithLogits
    corners = [Sample(kind(), fixed([800.0, -800.0, 0.0, 50.0], [0.0, 1.0, 0.5, 1.0]))] if is_logistic else []
    return Row(kind, samples, numpy=reference, torch=of_torch, dtypes=FLOATING, corners=corners)


_SAMPLES = _of_labels()

ROWS = [
    Row(
        ops.SoftmaxLoss,
        _SAMPLES[ops.SoftmaxLoss],
        numpy=_softmax_loss,
        torch=_of_torch("cross_entropy"),
        dtypes=FLOATING,
    ),
    backward(SoftmaxLossDown, _softmax_down, _SAMPLES[SoftmaxLossDown]),
    Row(ops.NllLoss, _SAMPLES[ops.NllLoss], numpy=_nll, torch=_of_torch("nll_loss"), dtypes=FLOATING),
    backward(NllLossDown, _nll_down, _SAMPLES[NllLossDown]),
    Row(
        ops.Accuracy,
        [
            Sample(ops.Accuracy(), _labeled(batch=(2,), classes=3)),
            *(Sample(ops.Accuracy(top), _labeled(batch=(37,), classes=11)) for top in (1, 3)),
            *(
                Sample(
                    ops.Accuracy(top),
                    lambda random: [random.integers(-2, 3, (6, 5)).astype(float), random.integers(0, 5, 6)],
                )
                for top in (1, 2, 5)
            ),
        ],
        numpy=_share,
        torch=lambda torch, x, labels, top: (
            (torch.sort(x, dim=-1, descending=True, stable=True)[1][..., :top] == labels[..., None])
            .any(-1)
            .float()
            .mean()
        ),
        dtypes=FLOATING,
        tolerance={"float64": TOLERANCE["float32"]},  # the share is of float32
    ),
    *map(_pair, PairLoss.__subclasses__()),
]

_LABELS = ("int64", 2)
_FORMS = [
    *(ops.mse_loss, ops.l1_loss, ops.huber_loss, ops.hinge_loss),
    *(ops.binary_cross_entropy_with_logits, ops.binary_cross_entropy),
]

WRONG = [
    *refused(
        af.ShapeError,
        (
            SoftmaxLossDown(),
            [("float64", 1), ("float64", 2, 3), _LABELS],
            r"SoftmaxLossDown: g must have shape \(\), got float64\[1\]",
        ),
        (ops.nll_loss, [(2, 3), _LABELS, (2, 3)], "weights must have a value for each of 3 classes, got"),
    ),
    *refused(
        af.GraphError,
        (ops.SoftmaxLoss("max"), [(2, 3), _LABELS], "reduction must be one of mean, sum"),
        (lambda x, t: ops.huber_loss(x, t, 0), [(2,), (2,)], "HuberLoss: delta must be positive, got 0"),
    ),
    Wrong(
        ops.nll_loss,
        [(2, 3), _LABELS, ("float64", 3)],
        af.DTypeError,
        r"weights must have dtype float32, got float64\[3",
    ),
    *(
        Wrong(form, operands, error, match)
        for form in (ops.softmax_loss, ops.accuracy)
        for operands, error, match in (
            (
                [(2, 3), ("int64", 3)],
                af.ShapeError,
                r"labels must have x's shape without classes \(2,\), got int64\[3\]",
            ),
            ([(2, 3), (2,)], af.DTypeError, r"labels must be integers, got float32\[2\]"),
            ([(2, 0), _LABELS], af.ShapeError, r"x must have shape \(..., classes\) with at least 1 class"),
        )
    ),
    *(
        Wrong(ops.Accuracy(top), [(2, 3), _LABELS], af.GraphError, f"top must be from 1 to x's 3 classes, got {top}")
        for top in (0, 4)
    ),
    *(
        Wrong(form, operands, error, match)
        for form in _FORMS
        for operands, error, match in (
            ([(2, 3), (3,)], af.ShapeError, r"target must have x's shape \(2, 3\), got float32\[3\]"),
            ([(2, 3), ("int64", 2, 3)], af.DTypeError, "target must have x's dtype float32, got int64"),
        )
    ),
    *(
        Wrong(
            lambda x, t, form=form: form(x, t, reduction="max"),
            [(2, 3), (2, 3)],
            af.GraphError,
            "reduction must be one of mean, sum, none, got 'max'",
        )
        for form in _FORMS
    ),
]
