"""RMSProp."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from actorflow.nn.optim.multipliers import ChooseMultipliers, Multipliers
from actorflow.nn.optim.optimizer import Clip, Optimizer, check_range
from actorflow.nn.rates import Policy
from actorflow.ops import RmsPropUpdate


class RMSProp(Optimizer):
    """RMSProp: steps divided by a running root mean square of the gradients; see `ops.RmsPropUpdate`.

    Args:
        rate: The learning rate, not negative, or a policy: a function of the step (`af.nn.rates`).
        alpha: Decay of the mean of the squares, at least 0 and less than 1.
        eps: Keeps the division from blowing up, not negative.
        weight_decay: Coefficient of the L2 penalty, not negative.
        momentum: Share of the last step that is taken again, at least 0 and less than 1.
        centered: Whether to divide by the standard deviation instead of the root mean square.
        clip: As in `SGD`.
        multipliers: As in `SGD`.
        name: Name of the sub-graphs that `minimize` makes.
    Raises:
        GraphError: if a setting is out of range.
    Source: Tieleman and Hinton, Lecture 6.5, 2012.
    """

    def __init__(
        self,
        rate: float | Policy = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        *,
        centered: bool = False,
        clip: Clip | None = None,
        multipliers: ChooseMultipliers | None = None,
        name: str = "rmsprop",
    ) -> None:
        super().__init__(rate, weight_decay, clip, multipliers, name)
        check_range("RMSProp", 1.0, alpha=alpha, momentum=momentum)
        check_range("RMSProp", eps=eps)
        self.alpha = alpha
        self.eps = eps
        self.momentum = momentum
        self.centered = centered

    def operation(self, factors: Multipliers) -> RmsPropUpdate:
        """`ops.RmsPropUpdate`."""
        decay = self.weight_decay * factors.decay
        return RmsPropUpdate(self.alpha, self.eps, decay, self.momentum, self.centered, factors.rate)

    def arguments(self, operation: Any) -> Sequence[str]:
        """Names of the operation's inputs, which depend on its parameters."""
        return (*operation.arguments[:-1], *operation.more)
