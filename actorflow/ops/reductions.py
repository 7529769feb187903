"""Reductions along axes: mean, product, extremes, counts. The class of the sum is in `actorflow.ops.shaping`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import wraps
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from actorflow.errors import DTypeError, ShapeError
from actorflow.ops.elementwise import as_dtype, equal, scale, where
from actorflow.ops.operation import Application, Grads, Operand, X, apply, same_dtype, same_numbers, savable
from actorflow.ops.ordering import cumprod
from actorflow.ops.rows import conjugated
from actorflow.ops.shaping import (
    Axis,
    BroadcastTo,
    ReduceSum,
    Reduction,
    expand_like,
    reshape,
    summed_dtype,
    transpose,
)
from actorflow.spec import TensorSpec, following


class ReduceMean(Reduction):
    """The mean along axes; see `mean`."""

    function_name = "mean"

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        if inputs[0].dtype.kind != "c":
            same_dtype("ReduceMean", x=inputs[0])
        return (TensorSpec(self.reduced(inputs[0]), inputs[0].dtype),)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        x = op.inputs[0]
        share = scale(grads[0], following(_share, self.count(x.spec)))
        return [apply(BroadcastTo(x.shape), expand_like(self, share, x))]


@savable
def _share(count: int) -> float:
    return 1.0 / count if count else 0.0


class _Extreme(Reduction):
    """The element that is first in an order."""

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        same_numbers(self.kind, ordered=True, x=inputs[0])
        _check_some(self.kind, self, inputs[0])
        return (TensorSpec(self.reduced(inputs[0]), inputs[0].dtype),)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        g, x, y = grads[0], op.inputs[0], op.outputs[0]
        found = where(equal(x, expand_like(self, y, x)), x.constant_like(1.0), x.constant_like(0.0))
        count: Any = apply(ReduceSum(self.axis, keepdims=True), found)
        return [found * (expand_like(self, g, x) / count)]


class ReduceMax(_Extreme):
    """The largest element along axes; see `max`."""

    function_name = "max"
    ufunc = np.maximum


class ReduceMin(_Extreme):
    """The smallest element along axes; see `min`."""

    function_name = "min"
    ufunc = np.minimum


class _Boolean(Reduction):
    """A bool from bools; no gradient."""

    differentiable = False

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        if inputs[0].dtype != np.bool_:
            raise DTypeError(f"{self.kind}: x must be bool, got {inputs[0]}: compare it with 0")
        return (TensorSpec(self.reduced(inputs[0]), np.dtype(np.bool_)),)


class ReduceAny(_Boolean):
    """True where any element along axes is; see `any`."""

    function_name = "any"
    ufunc = np.logical_or


class ReduceAll(_Boolean):
    """True where all elements along axes are; see `all`."""

    function_name = "all"
    ufunc = np.logical_and


class CountNonzero(Reduction):
    """The number of elements along axes that are not 0; see `count_nonzero`."""

    function_name = "count_nonzero"

    differentiable = False

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        if inputs[0].dtype != np.bool_:
            same_numbers("CountNonzero", ordered=True, x=inputs[0])
        return (TensorSpec(self.reduced(inputs[0]), np.dtype(np.int64)),)


class _Position(Reduction):
    """Index of the extreme along one axis, or in the flattened array; no gradient."""

    differentiable = False

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        same_numbers(self.kind, ordered=True, x=inputs[0])
        if self.axis is not None and len(self.axis) != 1:
            raise ShapeError(f"{self.kind}: axis must be one axis or None, got {self.axis}")
        _check_some(self.kind, self, inputs[0])
        return (TensorSpec(self.reduced(inputs[0]), np.dtype(np.int64)),)


class ArgMax(_Position):
    """Index of the largest element; see `argmax`."""


class ArgMin(_Position):
    """Index of the smallest element; see `argmin`."""


def _check_some(kind: str, reduction: Reduction, x: TensorSpec) -> None:
    if x.size == 0 and reduction.count(x) == 0:
        raise ShapeError(f"{kind}: x must have at least 1 element along the axes, got {x}")


class ReduceProd(Reduction):
    """The product along axes; see `prod`."""

    function_name = "prod"
    ufunc = np.multiply

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        same_numbers(self.kind, x=inputs[0])
        return (TensorSpec(self.reduced(inputs[0]), summed_dtype(inputs[0].dtype)),)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        """Of each element the product of all before it times all behind it: nothing is divided by an element."""
        (x,), rank = op.inputs, len(op.inputs[0].shape)
        axes = self.axes(rank)
        order = [*[i for i in range(rank) if i not in axes], *axes]
        lengths = [x.shape[i] for i in order]
        lines = reshape(transpose(x, order), [*lengths[: rank - len(axes)], self.count(x.spec)])
        before, behind = (cumprod(lines, -1, exclusive=True, reverse=reverse) for reverse in (False, True))
        others = transpose(reshape(before * behind, lengths), [order.index(i) for i in range(rank)])
        return [expand_like(self, grads[0], x) * conjugated(others)]


class Form(Protocol):
    """A functional form of a reduction along one axis, several (negative ones count from the end), or all of them."""

    def __call__(self, x: X, axis: Axis = None, keepdims: bool = False, name: str | None = None) -> X: ...


class WideForm(Protocol):
    """The same, of elements that are converted before."""

    def __call__(
        self,
        x: X,
        axis: Axis = None,
        keepdims: bool = False,
        name: str | None = None,
        *,
        dtype: npt.DTypeLike | None = None,
    ) -> X: ...


def _form(
    kind: type[Reduction], doc: str, wanted: str, gradient: str, source: str = "", *, example: tuple[str, str]
) -> Form:
    """A functional form, with words of its documentation; ``example``: code of ``x``, and what its rows become."""
    name = kind.function_name

    def form(x: Any, axis: Axis = None, keepdims: bool = False, name: str | None = None) -> Any:
        if isinstance(x, Operand):
            return x.apply_reduction(kind, axis, keepdims, name)
        return apply(kind(), x)  # which is an error

    form.__name__ = form.__qualname__ = name
    form.__doc__ = f"""{doc}

    Args:
        x: Any shape; a blob is {wanted}.
        axis: One axis or several, negative ones counted from the end; by default all.
        keepdims: Keep the axes, with length 1.
        name: Name of the op.
    Returns:
        Blob or array of the remaining shape.
    Raises:
        ShapeError: if ``x`` does not have the axes, or nothing along them where an element is picked.
        DTypeError: if ``x`` is of another kind.
    Gradient: {gradient}.
    Source: {source}`numpy.{name}`.
    Example:
        >>> print(af.ops.{name}(xp.asarray({example[0]}), axis=1))
        {example[1]}
    """
    return form


def _wide(form: Any) -> WideForm:
    """A form that takes a dtype, too."""

    @wraps(form)
    def wide(
        x: Any,
        axis: Axis = None,
        keepdims: bool = False,
        name: str | None = None,
        *,
        dtype: npt.DTypeLike | None = None,
    ) -> Any:
        if dtype is None:
            return form(x, axis, keepdims, name)
        kind = np.dtype(dtype)
        return as_dtype(form(as_dtype(x, kind), axis, keepdims, name), kind)

    del wide.__wrapped__  # whose signature it would show
    line = "        name: Name of the op.\n"
    wide.__doc__ = form.__doc__.replace(line, f"{line}        dtype: Of the result, and of what is combined.\n")
    return wide


_WIDE = "integers in 64 bits, float16 in float32"
_SHARED = "g, in equal shares to all elements that are picked, as for ``torch.amax``"
sum = _wide(
    _form(
        ReduceSum,
        f"The sum along axes; that of operands is `add`; {_WIDE}.",
        "numeric",
        "g for every element",
        example=("[[1, 5], [7, 2]]", "[6 9]"),
    )
)
prod = _wide(
    _form(
        ReduceProd,
        f"The product along axes; {_WIDE}.",
        "numeric",
        "g times the product of all other elements",
        example=("[[1, 5], [7, 2]]", "[ 5 14]"),
    )
)
mean = _form(
    ReduceMean,
    "The mean along axes; NaN of nothing.",
    "floating",
    "g / number of elements for every element",
    example=("[[1.0, 5.0], [7.0, 2.0]]", "[3.  4.5]"),
)
max = _form(
    ReduceMax, "The largest element along axes; NaN if one is.", "real", _SHARED, example=("[[1, 5], [7, 2]]", "[5 7]")
)
min = _form(
    ReduceMin, "The smallest element along axes; NaN if one is.", "real", _SHARED, example=("[[1, 5], [7, 2]]", "[1 2]")
)
any = _form(
    ReduceAny,
    "True where any element along axes is.",
    "bool",
    "none",
    example=("[[True, False], [False, False]]", "[ True False]"),
)
all = _form(
    ReduceAll,
    "True where all elements along axes are.",
    "bool",
    "none",
    example=("[[True, True], [False, True]]", "[ True False]"),
)
count_nonzero = _form(
    CountNonzero,
    "The number of elements along axes that are not 0, int64.",
    "bool or real",
    "none",
    "Minerva ``count_zero``, ",
    example=("[[1, 5], [0, 2]]", "[2 1]"),
)
argmax = _form(
    ArgMax,
    "Index of the largest element along one axis, or in C order: the first of several, or of the first NaN. int64.",
    "real",
    "none",
    "Minerva ``max_index``, ",
    example=("[[1, 5], [7, 2]]", "[1 0]"),
)
argmin = _form(
    ArgMin,
    "Index of the smallest element along one axis, or in C order: the first of several, or of the first NaN. int64.",
    "real",
    "none",
    example=("[[1, 5], [7, 2]]", "[0 1]"),
)


# Parts of a reduction may be put together where that gives what one pass gives. Extremes, truth, and sums and products
# of integers do not depend on the order. Floating sums and products do where they leave the range on the way: parts may
# be 0 and infinity where the whole product is 1, and theirs is NaN; so is the sum of infinite parts of either sign.


def may_be_parted(ufunc: np.ufunc, dtype: np.dtype[Any]) -> bool:
    """Return whether parts suffice: parts of a product do not tell whether it was 0 or infinite on the way."""
    return ufunc is not np.multiply or dtype.kind in "biu"


def may_be_uncertain(ufunc: np.ufunc, dtype: np.dtype[Any]) -> bool:
    """Return whether the total of parts may differ from that of the whole: `is_certain` tells, once it is known."""
    return ufunc is np.add and dtype.kind not in "biu"


def is_certain(ufunc: np.ufunc, total: Any) -> bool:
    """Return whether the total of parts is that of the whole: for a sum, if it is finite, as the parts then were."""
    return not may_be_uncertain(ufunc, total.dtype) or bool(np.isfinite(total).all())
