"""Updates of variables."""

from __future__ import annotations

from dataclasses import dataclass

from actorflow.errors import DTypeError, ShapeError
from actorflow.ops.operation import Operation, same_dtype
from actorflow.spec import TensorSpec

__all__ = ["SgdUpdate"]


@dataclass(frozen=True)
class SgdUpdate(Operation):
    """One step of stochastic gradient descent with momentum and weight decay.

    ::

        step     = rate_scale * rate
        velocity = momentum * velocity + step * (grad + weight_decay * weight)
        weight   = weight - velocity

    Connect it as ``[weight, grad, velocity, rate] >> update >> [weight, velocity]``.

    This is Caffe's formula, and Purine2's ``Update`` (h = m*h + lr*g + wd*w; w -= h) when that is given
    ``wd = lr * weight_decay``, so that ``weight_decay`` stays the coefficient of the L2 penalty when the rate changes.
    PyTorch's SGD takes the same steps while the rate is constant; it multiplies the rate outside the velocity, so after
    a change of the rate it rescales the steps already taken, and this one does not.

    Attributes:
        momentum: Share of the last step that is taken again.
        weight_decay: Coefficient of the L2 penalty ``weight_decay / 2 * sum(weight ** 2)``.
        rate_scale: Factor on the rate, for this variable.

    Source: Purine2 ``Update``.
    """

    arguments = ("weight", "grad", "velocity", "rate")
    differentiable = False

    momentum: float = 0.0
    weight_decay: float = 0.0
    rate_scale: float = 1.0

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """The new weight and velocity, both of the type of ``weight``.

        Raises:
            ShapeError, DTypeError: if ``grad`` or ``velocity`` differs from ``weight``, or ``rate`` is no 0-d float.
        """
        weight, grad, velocity, rate = inputs
        same_dtype("SgdUpdate", weight=weight, grad=grad, velocity=velocity)
        for name, spec in (("grad", grad), ("velocity", velocity)):
            if spec.shape != weight.shape:
                raise ShapeError(f"SgdUpdate: {name} must have weight's shape {weight.shape}, got {spec}")
        if rate.shape:
            raise ShapeError(f"SgdUpdate: rate must have shape (), got {rate}")
        if rate.dtype.kind != "f":
            raise DTypeError(f"SgdUpdate: rate must be floating, got {rate}")
        return (weight, weight)
