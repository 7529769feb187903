"""Stochastic gradient descent."""

from __future__ import annotations

from actorflow.errors import GraphError
from actorflow.nn.optim.multipliers import ChooseMultipliers, Multipliers
from actorflow.nn.optim.optimizer import Clip, Optimizer, check_range
from actorflow.nn.rates import Policy
from actorflow.ops import SgdUpdate
from actorflow.spec import TensorSpec


class SGD(Optimizer):
    """Stochastic gradient descent with momentum and weight decay; the formula is that of `ops.SgdUpdate`.

    ::

        optimizer = af.nn.SGD(0.1, momentum=0.9)
        train = optimizer.minimize(loss)
        for batch in batches:
            result = await graph.run(batch, fetch=[loss, train])
        optimizer.rate.value = 0.01

    Args:
        rate: The learning rate, not negative, or a policy: a function of the step (`af.nn.rates`).
        momentum: Share of the last step that is taken again, at least 0 and less than 1.
        weight_decay: Coefficient of the L2 penalty, not negative.
        nesterov: Whether the gradient counts as that of the point which the momentum leads to.
        clip: Limits on gradients.
        multipliers: Gives the factors on rate and decay of each variable; the default is 1 and 1 for all. See
            `bias_multipliers`, `layer_multipliers`.
        name: Name of the sub-graphs that `minimize` makes.
    Raises:
        GraphError: if a setting is out of range.
    Source: Purine2 ``Update``.
    """

    def __init__(
        self,
        rate: float | Policy,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        *,
        nesterov: bool = False,
        clip: Clip | None = None,
        multipliers: ChooseMultipliers | None = None,
        name: str = "sgd",
    ) -> None:
        super().__init__(rate, weight_decay, clip, multipliers, name)
        check_range("SGD", 1.0, momentum=momentum)
        if nesterov and not momentum:
            raise GraphError("SGD: nesterov needs a momentum, got 0")
        self.momentum = momentum
        self.nesterov = nesterov

    def operation(self, factors: Multipliers) -> SgdUpdate:
        """`ops.SgdUpdate`."""
        return SgdUpdate(self.momentum, self.weight_decay * factors.decay, factors.rate, self.nesterov)

    def state_spec(self, weight: TensorSpec) -> TensorSpec:
        """The velocity is of the weight's type."""
        return weight
