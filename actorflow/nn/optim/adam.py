"""Adam and AdamW."""

from __future__ import annotations

from actorflow.nn.optim.multipliers import ChooseMultipliers, Multipliers
from actorflow.nn.optim.optimizer import Clip, Optimizer, check_range
from actorflow.nn.rates import Policy
from actorflow.ops import AdamUpdate


class Adam(Optimizer):
    """Adam: steps divided by a running root mean square of the gradients; the formula is that of `ops.AdamUpdate`.

    Args:
        rate: The learning rate, not negative, or a policy: a function of the step (`af.nn.rates`).
        betas: Decays of the means of the gradients and of their squares, each at least 0 and less than 1.
        eps: Keeps the division from blowing up, not negative.
        weight_decay: Coefficient of the L2 penalty, not negative.
        clip: As in `SGD`.
        multipliers: As in `SGD`.
        name: Name of the sub-graphs that `minimize` makes.
    Raises:
        GraphError: if a setting is out of range.
    Source: Kingma and Ba, Adam: a method for stochastic optimization, 2015.
    """

    _decoupled = False

    def __init__(
        self,
        rate: float | Policy = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        clip: Clip | None = None,
        multipliers: ChooseMultipliers | None = None,
        name: str = "adam",
    ) -> None:
        super().__init__(rate, weight_decay, clip, multipliers, name)
        kind = type(self).__name__
        beta1, beta2 = betas
        check_range(kind, 1.0, beta1=beta1, beta2=beta2)
        check_range(kind, eps=eps)
        self.betas = (beta1, beta2)
        self.eps = eps

    def operation(self, factors: Multipliers) -> AdamUpdate:
        """`ops.AdamUpdate`."""
        return AdamUpdate(*self.betas, self.eps, self.weight_decay * factors.decay, self._decoupled, factors.rate)


class AdamW(Adam):
    """Adam with a weight decay that is apart from the gradient: weights shrink by ``rate * weight_decay`` a step.

    Args:
        rate: As in `Adam`.
        betas: As in `Adam`.
        eps: As in `Adam`.
        weight_decay: The decay, not negative.
        clip: As in `SGD`.
        multipliers: As in `SGD`.
        name: Name of the sub-graphs that `minimize` makes.
    Raises:
        GraphError: if a setting is out of range.
    Source: Loshchilov and Hutter, Decoupled weight decay regularization, 2019.
    """

    _decoupled = True

    def __init__(
        self,
        rate: float | Policy = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        *,
        clip: Clip | None = None,
        multipliers: ChooseMultipliers | None = None,
        name: str = "adamw",
    ) -> None:
        super().__init__(rate, betas, eps, weight_decay, clip=clip, multipliers=multipliers, name=name)
