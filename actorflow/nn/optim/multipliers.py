"""Factors on rate and decay that single variables have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from actorflow.errors import GraphError
from actorflow.graph.composite import Composite
from actorflow.graph.nodes import Variable


class Multipliers(NamedTuple):
    """Factors on an optimizer's settings for one variable."""

    rate: float = 1.0
    decay: float = 1.0


#: Gives the factors of a variable.
ChooseMultipliers = Callable[[Variable], Multipliers]


def bias_multipliers(variable: Variable) -> Multipliers:
    """Twice the rate and no decay for vectors (biases), as in Caffe's and Purine2's networks."""
    return Multipliers(2.0, 0.0) if len(variable.shape) == 1 else Multipliers()


def layer_multipliers(
    layers: Mapping[Composite, Multipliers], base: ChooseMultipliers = lambda _: Multipliers()
) -> ChooseMultipliers:
    """Factors for the variables of some layers, in addition to others.

    Purine2's NIN learns its last layer at a tenth of the rate, and biases at twice the rate and without decay::

        multipliers = nn.layer_multipliers({scores: nn.Multipliers(rate=0.1)}, nn.bias_multipliers)

    Args:
        layers: Layers or models, by which the factors of their variables are multiplied.
        base: Factors of all variables.
    Raises:
        GraphError: when it is used, if one of the layers has no variables, or has not been built.
    """

    def choose(variable: Variable) -> Multipliers:
        rate, decay = base(variable)
        for layer, factors in layers.items():
            variables = layer.variables
            if not variables:
                raise GraphError(f"layer {layer.name!r} has no variables: build it before the optimizer's updates")
            if variable in variables:
                rate, decay = rate * factors.rate, decay * factors.decay
        return Multipliers(rate, decay)

    return choose
