"""Updates of variables by optimizers, and gradients limited by the norm of all of them together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from actorflow.errors import DTypeError, GraphError, ShapeError
from actorflow.ops.elementwise import cast, less, plus, scaled, sqrt, where
from actorflow.ops.operation import Application, Grads, Operation, apply, same_dtype, whole, wide_dtype
from actorflow.ops.shaping import total
from actorflow.spec import TensorSpec

if TYPE_CHECKING:
    from actorflow.graph.nodes import Blob


class Update(Operation):
    """A step of an optimizer, of a weight, its gradient, a rate, perhaps the number of the step, and states."""

    differentiable = False

    #: The state that has the weight's own dtype; the others have that of `state_spec`.
    alike: ClassVar[tuple[str, ...]] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the inputs."""
        return self.arguments

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        kind, named = self.kind, dict(zip(self.names, inputs, strict=True))
        weight, wide, states = named["weight"], state_spec(inputs[0]).dtype, []
        same_dtype(kind, **{name: named[name] for name in ("weight", "grad", *self.alike)})
        for name, spec in named.items():
            is_scalar = name in ("rate", "step")
            if is_scalar and spec.shape:
                raise ShapeError(f"{kind}: {name} must have shape (), got {spec}")
            if not is_scalar and spec.shape != weight.shape:
                raise ShapeError(f"{kind}: {name} must have weight's shape {weight.shape}, got {spec}")
            if name == "rate" and spec.dtype.kind != "f":
                raise DTypeError(f"{kind}: rate must be floating, got {spec}")
            if name == "step" and spec.dtype != np.int64:
                raise DTypeError(f"{kind}: step must be int64, got {spec}")
            if not is_scalar and name not in ("weight", "grad"):
                if name not in self.alike and spec.dtype != wide:
                    raise DTypeError(f"{kind}: {name} must be {wide} for a weight of {weight.dtype}, got {spec}")
                states.append(spec)
        return (weight, *states)


@dataclass(frozen=True)
class SgdUpdate(Update):
    """One step of stochastic gradient descent with momentum and weight decay; see `nn.SGD`.

    ::

        step     = rate_scale * rate
        moved    = step * (grad + weight_decay * weight)
        velocity = momentum * velocity + moved
        weight   = weight - velocity                        # with Nesterov: weight - (momentum * velocity + moved)

    Connect it as ``[weight, grad, velocity, rate] >> update >> [weight, velocity]``.

    This is Caffe's formula, and Purine2's ``Update`` (h = m*h + lr*g + wd*w; w -= h) when that is given
    ``wd = lr * weight_decay``, so that ``weight_decay`` stays the coefficient of the L2 penalty when the rate changes.
    PyTorch's SGD takes the same steps while the rate is constant; it multiplies the rate outside the velocity, so after
    a change of the rate it rescales the steps already taken, and this one does not.

    Attributes:
        momentum: Share of the last step that is taken again.
        weight_decay: Coefficient of the L2 penalty ``weight_decay / 2 * sum(weight ** 2)``.
        rate_scale: Factor on the rate, for this variable.
        nesterov: Whether the gradient counts as that of the point which the momentum leads to.

    Source: Purine2 ``Update``; Sutskever et al., On the importance of initialization and momentum, 2013.
    """

    arguments = ("weight", "grad", "velocity", "rate")
    alike = ("velocity",)

    momentum: float = 0.0
    weight_decay: float = 0.0
    rate_scale: float = 1.0
    nesterov: bool = False


@dataclass(frozen=True)
class AdamUpdate(Update):
    """One step of Adam or AdamW; see `nn.Adam`.

    ::

        grad   = grad + weight_decay * weight                                          # unless decoupled
        mean   = beta1 * mean + (1 - beta1) * grad
        square = beta2 * square + (1 - beta2) * grad ** 2
        rate   = rate_scale * rate
        weight = weight - rate * weight_decay * weight                                 # if decoupled
        weight = weight - rate * (mean / (1 - beta1 ** t)) / (sqrt(square / (1 - beta2 ** t)) + eps)

    with ``t = step + 1``. Connect it as ``[weight, grad, mean, square, rate, step] >> update >> [weight, mean,
    square]``. The moments have the dtype of `state_spec`.

    Attributes:
        beta1: Decay of the mean of the gradients.
        beta2: Decay of the mean of their squares.
        eps: Keeps the division from blowing up.
        weight_decay: Coefficient of the L2 penalty; of the decay itself if ``decoupled``.
        decoupled: Whether the decay is applied to the weight instead of the gradient, as AdamW does.
        rate_scale: Factor on the rate, for this variable.

    Source: Kingma and Ba, Adam, 2015; Loshchilov and Hutter, Decoupled weight decay regularization, 2019.
    """

    arguments = ("weight", "grad", "mean", "square", "rate", "step")

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = False
    rate_scale: float = 1.0

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        if not (0 <= self.beta1 < 1 and 0 <= self.beta2 < 1):
            raise GraphError(f"{self.kind}: betas must be from 0 to less than 1, got {self.beta1} and {self.beta2}")
        return Update.infer(self, *inputs)


@dataclass(frozen=True)
class AdagradUpdate(Update):
    """One step of Adagrad; see `nn.Adagrad`.

    ::

        grad   = grad + weight_decay * weight
        square = square + grad ** 2
        weight = weight - rate_scale * rate * grad / (sqrt(square) + eps)

    Connect it as ``[weight, grad, square, rate] >> update >> [weight, square]``. ``square`` has the dtype of
    `state_spec`.

    Attributes:
        eps: Keeps the division from blowing up.
        weight_decay: Coefficient of the L2 penalty.
        rate_scale: Factor on the rate, for this variable.

    Source: Duchi, Hazan and Singer, Adaptive subgradient methods, 2011.
    """

    arguments = ("weight", "grad", "square", "rate")

    eps: float = 1e-10
    weight_decay: float = 0.0
    rate_scale: float = 1.0


@dataclass(frozen=True)
class RmsPropUpdate(Update):
    """One step of RMSProp; see `nn.RMSProp`.

    ::

        grad     = grad + weight_decay * weight
        square   = alpha * square + (1 - alpha) * grad ** 2
        mean     = alpha * mean + (1 - alpha) * grad                                   # if centered
        scaled   = grad / (sqrt(square - mean ** 2) + eps)                             # mean is 0 unless centered
        velocity = momentum * velocity + scaled                                        # if there is momentum
        weight   = weight - rate_scale * rate * velocity                               # else: * scaled

    Connect it as ``[weight, grad, square, rate, velocity, mean] >> update >> [weight, square, velocity, mean]``,
    without ``velocity`` where ``momentum`` is 0, and without ``mean`` unless ``centered``. All three have the dtype of
    `state_spec`.

    Attributes:
        alpha: Decay of the means.
        eps: Keeps the division from blowing up.
        weight_decay: Coefficient of the L2 penalty.
        momentum: Share of the last step that is taken again.
        centered: Whether to divide by the standard deviation instead of the root of the mean square.
        rate_scale: Factor on the rate, for this variable.

    Source: Tieleman and Hinton, Lecture 6.5, 2012; Graves, Generating sequences with recurrent networks, 2013.
    """

    arguments = ("weight", "grad", "square", "rate", "*more")

    alpha: float = 0.99
    eps: float = 1e-8
    weight_decay: float = 0.0
    momentum: float = 0.0
    centered: bool = False
    rate_scale: float = 1.0

    @property
    def more(self) -> tuple[str, ...]:
        """Names of the states besides ``square``, in the order of the arguments."""
        return (("velocity",) if self.momentum else ()) + (("mean",) if self.centered else ())

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the inputs; which states there are depends on the parameters."""
        return ("weight", "grad", "square", "rate", *self.more)

    def check_arity(self, count: int) -> None:
        """Check the number of inputs."""
        if count != len(self.names):
            raise GraphError(f"{self} takes {len(self.names)} inputs ({', '.join(self.names)}), got {count}")


def state_spec(weight: TensorSpec) -> TensorSpec:
    """Type of an optimizer's moments of a variable: its shape, and float32 where it has 16 bits.

    Squares of gradients, and decays of 0.999, are lost in 16 bits.
    """
    return TensorSpec(weight.shape, wide_dtype(weight.dtype))


_SCALAR = TensorSpec((), np.dtype(np.float64))


class SquareSum(Operation):
    """``y = sum(x ** 2)`` over all elements, in float64 whatever the dtype of ``x``."""

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        same_dtype("SquareSum", x=inputs[0])
        return (_SCALAR,)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """``2 * g * x``."""
        return [apply(ScaleBy(), op.inputs[0], scaled(grads[0], 2.0))]


@dataclass(frozen=True)
class NormFactor(Operation):
    """``y = min(1, max_norm / (sqrt(squares[0] + squares[1] + ...) + 1e-6))``; nan where the norm is.

    Attributes:
        max_norm: Norm that a gradient scaled by this has at most, positive.

    Source: PyTorch ``clip_grad_norm_``.
    """

    arguments = ("*squares",)

    max_norm: float

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        if not self.max_norm > 0:
            raise GraphError(f"NormFactor: max_norm must be positive, got {self.max_norm}")
        for i, spec in enumerate(inputs):
            _check_scalar("NormFactor", f"squares[{i}]", spec)
        return (_SCALAR,)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """``-g * y * y / (2 * max_norm * norm)`` for each, where the norm is limited, else 0."""
        (g,), (y,) = grads, op.outputs
        limits = less(y, 1.0)
        norm = sqrt(where(limits, plus(*op.inputs), 1.0))  # elsewhere it may be 0, where the root has no slope
        slope = g * y * y / scaled(norm, -2.0 * self.max_norm)
        return [where(limits, slope, 0.0)] * len(op.inputs)


class ScaleBy(Operation):
    """``y = factor * x``, with a factor that is computed."""

    arguments = ("x", "factor")

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        x, factor = inputs
        same_dtype("ScaleBy", x=x)
        _check_scalar("ScaleBy", "factor", factor)
        return (x,)

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Blob | None]:
        """The gradient, scaled as well, and its product with ``x``, summed in float64."""
        (g,), (x, factor) = grads, op.inputs
        by_factor = total(cast(g, "float64") * cast(x, "float64")) if wanted[1] else None
        return [apply(self, g, factor), by_factor]


@whole
def clip_by_global_norm(grads: Sequence[Blob], max_norm: float, name: str | None = None) -> list[Blob]:
    """Gradients scaled by one factor, so that the norm of all their elements together is at most ``max_norm``.

    Each gradient's share of the norm is summed as soon as it is there, on its place; no scaled gradient is there before
    all are.

    Args:
        grads: One or more blobs of any shapes, floating.
        max_norm: Positive.
        name: Name of the op that computes the factor.
    Returns:
        One blob per gradient, of its type.
    Raises:
        GraphError: if there are no gradients, or ``max_norm`` is not positive.
        DTypeError: if a gradient is not floating.
    Gradient: by all gradients, through the norm, too; the norm's share is 0 where it is not limited.
    Source: Pascanu, Mikolov and Bengio, On the difficulty of training recurrent neural networks, 2013; the factor is
        that of PyTorch's ``clip_grad_norm_``.
    Example:
        >>> graph = af.Graph("clip")
        >>> a, b = graph.blob("a", shape=2), graph.blob("b", shape=1)
        >>> shorter = af.ops.clip_by_global_norm([a, b], 1.0)  # the norm of both is 5
        >>> result = graph.run_sync({a: [3, 0], b: [4]})
        >>> print(*[result[grad].round(3) for grad in shorter])
        [0.6 0. ] [0.8]
    """
    if not grads:
        raise GraphError("clip_by_global_norm: give at least one gradient")
    root = grads[0].graph.root
    squares = []
    for grad in grads:
        with root.at(grad.place):
            squares.append(apply(SquareSum(), grad))
    places = {grad.place for grad in grads}
    with root.at(places.pop() if len(places) == 1 else "cpu"):
        factor = apply(NormFactor(max_norm), *squares, name=name)
    clipped = []
    for grad in grads:
        with root.at(grad.place):
            clipped.append(apply(ScaleBy(), grad, factor))
    return clipped


def _check_scalar(kind: str, name: str, spec: TensorSpec) -> None:
    if spec.shape:
        raise ShapeError(f"{kind}: {name} must have shape (), got {spec}")
    if spec.dtype != _SCALAR.dtype:
        raise DTypeError(f"{kind}: {name} must be float64, got {spec}")
