"""Images of another size: nearest, linear and cubic interpolation along spatial axes, channels last.

Along each axis an element of the result is a sum of a few elements of ``x``, whose places and weights follow from the
sizes; the gradient is the same the other way round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from actorflow.errors import GraphError, ShapeError
from actorflow.ops.nn.windows import Numbers
from actorflow.ops.operation import (
    Application,
    Cost,
    Grads,
    Operation,
    X,
    apply,
    axis_from_front,
    same_dtype,
    spec_of,
    whole,
)
from actorflow.spec import Length, TensorSpec, long

ResizeMode = Literal["nearest", "linear", "cubic"]
Coordinates = Literal["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"]
Rounding = Literal["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"]

MODES = get_args(ResizeMode)
ROUNDINGS: Mapping[str, Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "round_prefer_floor": lambda place: np.ceil(place - 0.5),
    "round_prefer_ceil": lambda place: np.floor(place + 0.5),
}


#: Factors of open axes are multiples of one over this: their products are exact.
_FINEST = 1 << 20


@dataclass(frozen=True)
class Resize(Operation):
    """``x`` with another length along one axis; see `resize`.

    Attributes:
        axis: Axis that gets another length, not negative.
        size: Its length in the result.
        mode, coordinates, rounding, cubic: As in `resize`.
        scale: The number whose product with the length is rounded to ``size``; positions follow from it then.
    """

    axis: int
    size: int
    mode: ResizeMode = "linear"
    coordinates: Coordinates = "half_pixel"
    rounding: Rounding = "round_prefer_floor"
    cubic: float = -0.75
    scale: float | None = None

    def line(self, length: int) -> tuple[float, float, float]:
        """Numbers a, b and c: element i of the result is at ``(a * i + b) / c`` in ``x``."""
        if self.coordinates == "align_corners":
            return length - 1 if self.size > 1 else 0, 0, max(self.size - 1, 1)
        old, new = (length, self.size) if self.scale is None else (1.0, self.scale)
        if self.coordinates == "asymmetric":
            return old, 0, new
        if self.coordinates == "pytorch_half_pixel" and self.size == 1:
            return 0, 0, 1
        return 2 * old, old - new, 2 * new

    def taps(self, length: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float64]]:
        """The elements that each element of the result is the sum of, and their weights: shape (size, taps)."""
        a, b, c = self.line(length)
        place = (a * np.arange(self.size, dtype=np.float64) + b) / c
        first = ROUNDINGS[self.rounding](place) if self.mode == "nearest" else np.floor(place)
        t, k = place - first, self.cubic
        weights = [np.ones_like(t)] if self.mode == "nearest" else [1 - t, t]
        if self.mode == "cubic":
            first -= 1
            near = [((k + 2) * d - (k + 3)) * d * d + 1 for d in (t, 1 - t)]
            far = [((k * d - 5 * k) * d + 8 * k) * d - 4 * k for d in (1 + t, 2 - t)]
            weights = [far[0], *near, far[1]]
        seen = first[:, np.newaxis] + np.arange(len(weights))
        return np.clip(seen, 0, length - 1).astype(np.intp), np.stack(weights, axis=1)

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        (x,) = inputs
        for name, known in (("mode", MODES), ("coordinates", get_args(Coordinates)), ("rounding", (*ROUNDINGS,))):
            if getattr(self, name) not in known:
                raise GraphError(f"Resize: {name} must be one of {', '.join(known)}, got {getattr(self, name)!r}")
        if self.size < 1 or (self.scale is not None and not self.scale > 0):
            raise GraphError(f"Resize: size must be at least 1 and scale positive, got {self.size} and {self.scale}")
        if self.mode != "nearest":
            same_dtype("Resize", x=x)
        axis = axis_from_front("Resize", self.axis, len(x.shape))
        if x.shape[axis] == 0:
            raise ShapeError(f"Resize: x must have at least 1 element on axis {axis}, got {x}")
        return (TensorSpec((*x.shape[:axis], self.size, *x.shape[axis + 1 :]), x.dtype),)

    def cost(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> Cost | None:
        return Cost(others={"nearest": 0, "linear": 3, "cubic": 7}[self.mode] * outputs[0].size)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        return [apply(ResizeDown(self, op.inputs[0].shape[self.axis]), grads[0])]


@dataclass(frozen=True)
class ResizeDown(Operation):
    """The gradient of `Resize`: each element of ``g``, weighted, added to the elements that it was made of.

    Attributes:
        forward: The operation that it is the gradient of.
        length: Length of the axis in ``x``.
    """

    arguments = ("g",)

    forward: Resize
    length: int

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        (g,) = inputs
        same_dtype("ResizeDown", g=g)
        axis = axis_from_front("ResizeDown", self.forward.axis, len(g.shape))
        x = TensorSpec((*g.shape[:axis], self.length, *g.shape[axis + 1 :]), g.dtype)
        if self.forward.infer(x) != inputs:
            raise ShapeError(f"ResizeDown: g must have length {self.forward.size} on axis {axis}, got {g}")
        return (x,)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        return [apply(self.forward, grads[0])]


@whole
def resize(
    x: X,
    size: Numbers | None = None,
    scale: float | Sequence[float] | None = None,
    mode: ResizeMode = "linear",
    coordinates: Coordinates = "half_pixel",
    rounding: Rounding = "round_prefer_floor",
    cubic: float = -0.75,
    name: str | None = None,
) -> X:
    """Images of another size, interpolated along each spatial axis; elements beyond the border are the outermost ones.

    Element ``i`` of the result lies in ``x``, whose axis has ``n`` elements, at

    - "half_pixel": ``(i + 0.5) * n / size - 0.5``; "pytorch_half_pixel": the same, but 0 for a size of 1;
    - "align_corners": ``i * (n - 1) / (size - 1)``, the first and the last elements on each other;
    - "asymmetric": ``i * n / size``.

    Args:
        x: Images, shape (batch, *spatial axes, channels), floating; with mode "nearest" of any dtype.
        size: New length of each spatial axis, or of all. Give this or ``scale``.
        scale: Factor of each length, or of all; the new length is rounded down. Positions follow from ``scale``
            in the place of ``size / n``, except with "align_corners".
        mode: "nearest", the nearest element; "linear", the two nearest ones, by their distance; "cubic", the four
            nearest ones, by Keys' kernel.
        coordinates: Where the result's elements lie in ``x``.
        rounding: Which element is the nearest: "floor", "ceil", or the closer one and of two alike the former
            ("round_prefer_floor") or the latter ("round_prefer_ceil").
        cubic: Coefficient of Keys' kernel: -0.75 as in PyTorch, -0.5 as in TensorFlow.
    Returns:
        Blob of shape (batch, *size, channels), dtype of ``x``.
    Raises:
        ShapeError: if ``x`` has no pixels.
        DTypeError: if ``x`` is not floating and the mode is not "nearest".
        TypeError: if ``size`` is not of integers.
        GraphError: if a parameter is out of range, ``x`` has no spatial axes, or not as many as there are numbers.
    Gradient: g, weighted, added where its elements were made from.
    Source: `torch.nn.functional.interpolate`, whose mode "nearest" has ``coordinates="asymmetric"`` and
        ``rounding="floor"``, "nearest-exact" ``rounding="round_prefer_ceil"``; ONNX ``Resize``.
    Example:
        >>> x = xp.asarray([[[0.0], [10.0]]])  # (batch, width, channels)
        >>> print(xp.reshape(af.ops.resize(x, 4), (-1,)))
        [ 0.   2.5  7.5 10. ]
        >>> print(xp.reshape(af.ops.resize(x, 4, mode="nearest"), (-1,)))
        [ 0.  0. 10. 10.]
    """
    spec = spec_of("resize", "x", x)
    lengths, given = spec.shape[1:-1], scale if size is None else size
    numbers: tuple[Any, ...] = tuple(given) if isinstance(given, Sequence) else (given,) * len(lengths)
    if (size is None) is (scale is None) or len(numbers) != len(lengths) or not lengths:
        raise GraphError(
            f"resize: either size or scale must be a number, or one for each spatial axis, got {size} and {scale}; "
            f"x is {spec}"
        )
    steps = []
    for axis, (n, number) in enumerate(zip(lengths, numbers, strict=True), start=1):
        new: Any
        new, exact = (
            (number if isinstance(number, Length) else index(number), None)
            if scale is None
            else (_scaled(n, number), float(number))
        )
        steps.append(Resize(axis, new, mode, coordinates, rounding, cubic, exact))
    # Axes that shrink come first: the others then have less to do. Those that stay are left out, but for one.
    steps.sort(key=lambda step: long(step.size) / max(1, long(lengths[step.axis - 1])))
    steps = [step for step in steps if (step.size, step.scale or 1) != (lengths[step.axis - 1], 1)] or steps[:1]
    for step in steps:
        x = apply(step, x, name=name if step is steps[-1] else None)
    return x


def _scaled(length: Any, scale: float) -> Any:
    if not isinstance(length, Length):
        return int(length * scale)
    over, under = float(scale).as_integer_ratio()
    if under > _FINEST:
        raise ShapeError(
            f"resize: the open axis of length {length} can be scaled by halves, quarters and so on, got {scale}: "
            "what others give depends on rounding"
        )
    return length * over // under
