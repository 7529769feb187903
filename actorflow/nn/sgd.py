"""Stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from actorflow.autograd import gradient, trainable
from actorflow.errors import GraphError
from actorflow.graph import Graph
from actorflow.node import Blob, Variable
from actorflow.ops.update import SgdUpdate

__all__ = ["SGD", "Multipliers", "bias_multipliers"]


class Multipliers(NamedTuple):
    """Factors on an optimizer's settings for one variable."""

    rate: float = 1.0
    decay: float = 1.0


def bias_multipliers(variable: Variable) -> Multipliers:
    """Twice the rate and no decay for vectors (biases), as in Caffe's and Purine2's networks."""
    return Multipliers(2.0, 0.0) if len(variable.shape) == 1 else Multipliers()


class SGD:
    """Stochastic gradient descent with momentum and weight decay; the formula is that of `ops.SgdUpdate`.

    ::

        optimizer = af.nn.SGD(0.1, momentum=0.9)
        train = optimizer.minimize(loss)
        for batch in batches:
            result = await graph.run(batch, fetch=[loss, train])
        optimizer.rate.value = 0.01

    Args:
        rate: The learning rate, not negative.
        momentum: Share of the last step that is taken again, at least 0 and less than 1.
        weight_decay: Coefficient of the L2 penalty, not negative.
        multipliers: Gives the factors on rate and decay of each variable; the default is 1 and 1 for all. See
            `bias_multipliers`.
        name: Name of the sub-graphs that `minimize` makes.
    Raises:
        GraphError: if a setting is out of range.
    Source: Purine2 ``Update``.
    """

    def __init__(
        self,
        rate: float,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        *,
        multipliers: Callable[[Variable], Multipliers] | None = None,
        name: str = "sgd",
    ) -> None:
        if not rate >= 0:
            raise GraphError(f"SGD: rate must not be negative, got {rate}")
        if not 0 <= momentum < 1:
            raise GraphError(f"SGD: momentum must be at least 0 and less than 1, got {momentum}")
        if not weight_decay >= 0:
            raise GraphError(f"SGD: weight_decay must not be negative, got {weight_decay}")
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.multipliers = multipliers or (lambda _: Multipliers())
        self.name = name
        self._first_rate = rate
        self._rate: Variable | None = None

    @property
    def rate(self) -> Variable:
        """The learning rate, a 0-d float64 variable of the graph; assign ``rate.value`` between frames to change it.

        Raises:
            GraphError: before the first `minimize`, which makes it.
        """
        if self._rate is None:
            raise GraphError("the rate is a variable of the graph that is trained: call minimize() first")
        return self._rate

    def minimize(self, loss: Blob, wrt: Sequence[Variable] | None = None) -> Graph:
        """Build the gradient of a loss and an update of each variable.

        Called again, it trains another loss of the same graph at the same rate, with velocities of its own.

        Args:
            loss: Shape (), floating.
            wrt: The variables to train; the default is all that ``loss`` can be differentiated by.
        Returns:
            The sub-graph with all of it; give it in ``fetch`` to train in that frame.
        Raises:
            GraphError: if there is nothing to train, one of ``wrt`` is no variable, or the optimizer has its rate in
                another graph; and as for `af.gradient`.
        """
        root = loss.graph.root
        variables = list(trainable(loss) if wrt is None else wrt)
        if not variables:
            raise GraphError(f"loss {loss.name!r} depends on no variable that could be trained")
        for variable in variables:
            if not isinstance(variable, Variable):
                raise GraphError(f"only variables can be trained, not {variable!r}")
        if self._rate is not None and self._rate.graph.root is not root:
            raise GraphError(
                f"this optimizer has its rate in graph {self._rate.graph.root.name!r} and cannot train {root.name!r}"
            )
        with root.unique_subgraph(self.name) as scope:
            grads = gradient(loss, variables)
            if self._rate is None:
                self._rate = scope.variable("rate", (), "float64", self._first_rate, "cpu")
            for variable, grad in zip(variables, grads, strict=True):
                self._update(scope, variable, grad)
        return scope

    def _update(self, scope: Graph, variable: Variable, grad: Blob) -> None:
        factors = self.multipliers(variable)
        name = variable.name.replace("/", ".")
        with scope.root.at(variable.place):
            velocity = scope.variable(f"{name}.velocity", variable.shape, variable.dtype)
            operation = SgdUpdate(self.momentum, self.weight_decay * factors.decay, factors.rate)
            [variable, grad, velocity, self.rate] >> scope.op(f"{name}.update", operation) >> [variable, velocity]
