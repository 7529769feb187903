"""Adagrad."""

from __future__ import annotations

from actorflow.nn.optim.multipliers import ChooseMultipliers, Multipliers
from actorflow.nn.optim.optimizer import Clip, Optimizer, check_range
from actorflow.nn.rates import Policy
from actorflow.ops import AdagradUpdate


class Adagrad(Optimizer):
    """Adagrad: steps divided by the root of the sum of all squared gradients; see `ops.AdagradUpdate`.

    Args:
        rate: The learning rate, not negative, or a policy: a function of the step (`af.nn.rates`).
        eps: Keeps the division from blowing up, not negative.
        weight_decay: Coefficient of the L2 penalty, not negative.
        initial: What the sums begin with, not negative.
        clip: As in `SGD`.
        multipliers: As in `SGD`.
        name: Name of the sub-graphs that `minimize` makes.
    Raises:
        GraphError: if a setting is out of range.
    Source: Duchi, Hazan and Singer, Adaptive subgradient methods for online learning, 2011.
    """

    def __init__(
        self,
        rate: float | Policy = 1e-2,
        eps: float = 1e-10,
        weight_decay: float = 0.0,
        initial: float = 0.0,
        *,
        clip: Clip | None = None,
        multipliers: ChooseMultipliers | None = None,
        name: str = "adagrad",
    ) -> None:
        super().__init__(rate, weight_decay, clip, multipliers, name)
        check_range("Adagrad", eps=eps, initial=initial)
        self.eps = eps
        self.initial = initial

    def operation(self, factors: Multipliers) -> AdagradUpdate:
        """`ops.AdagradUpdate`."""
        return AdagradUpdate(self.eps, self.weight_decay * factors.decay, factors.rate)

    def first_state(self, name: str) -> float:
        """What the sums of squares begin with."""
        return self.initial
