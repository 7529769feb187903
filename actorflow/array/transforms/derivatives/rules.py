"""Derivative rules: for an operation on arrays, array code of its vector-Jacobian product.

A rule is a plain function of arrays. What it records are operations like any others, with rules of their own, so that
gradients have gradients, are fused and traced like everything else. Rules are registered by the operation's name.

Complex numbers follow PyTorch's convention: the gradient of a real loss by ``z = a + ib`` is ``dL/da + i dL/db``.

Source of the idea: Maclaurin, Duvenaud, Adams: autograd (``defvjp``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from actorflow.array import namespace as xp
from actorflow.array.record.node import Node
from actorflow.array.record.primitives import DType

if TYPE_CHECKING:
    from actorflow.array.array import Array

#: Shape and dtype.
Kind = tuple[tuple[int, ...], DType]


class Application(NamedTuple):
    """One use of an operation, as its rule sees it.

    Attributes:
        inputs: What it read.
        params: The operation's parameters, as it was recorded with.
        output: Its result; a tuple for an operation with several.
    """

    inputs: tuple[Any, ...]
    params: tuple[Any, ...]
    output: Any


#: Gives for each input the gradient, or None where it is zero, for that of the result: an array, or a tuple of arrays
#: and None for an operation with several results. A gradient may have any shape that broadcasts with the input's and
#: any floating dtype: it is summed and converted.
Rule = Callable[[Application, Any], Sequence["Array | None"]]
#: Gives the types of the results of an operation with several, for its inputs and parameters.
Outputs = Callable[[Application], Sequence[Kind]]

_rules: dict[str, Rule] = {}
_outputs: dict[str, Outputs] = {}


def rule(*names: str, outputs: Outputs | None = None) -> Callable[[Rule], Rule]:
    """Register the decorated function as the rule of the operations of these names.

    Args:
        names: Of the operations.
        outputs: For an operation with several results.
    """

    def register(function: Rule) -> Rule:
        for name in names:
            assert name not in _rules, name
            _rules[name] = function
            if outputs is not None:
                _outputs[name] = outputs
        return function

    return register


def rule_of(name: str) -> Rule | None:
    """The rule of an operation; None if it has none."""
    return _rules.get(name)


def outputs_of(name: str) -> Outputs | None:
    """What gives the types of an operation's results, if it has several."""
    return _outputs.get(name)


def known_rules() -> tuple[str, ...]:
    """Names of the operations that have rules, sorted."""
    return tuple(sorted(_rules))


def fit(grad: Array, node: Node) -> Array:
    """A gradient in the shape and dtype of what it is the gradient of: summed over what was broadcast."""
    shape = node.shape
    if grad.shape != shape:
        extra = grad.ndim - len(shape)
        if extra < 0:
            grad, extra = xp.reshape(grad, (1,) * -extra + grad.shape), 0
        axes = [*range(extra), *[extra + i for i, n in enumerate(shape) if n == 1 and grad.shape[extra + i] != 1]]
        if axes:
            grad = xp.sum(grad, axis=axes, keepdims=len(axes) > extra)
        if len(axes) > extra > 0:
            grad = xp.reshape(grad, grad.shape[extra:])
        if grad.shape != shape:
            grad = xp.broadcast_to(grad, shape)
    if grad.dtype.kind == "c" and node.dtype.kind != "c":
        grad = xp.real(grad)
    return xp.astype(grad, node.dtype, copy=False)


def conj(x: Any) -> Any:
    """The conjugate; the array itself if it is real."""
    return xp.conj(x) if x.dtype.kind == "c" else x


def transposed(x: Array) -> Array:
    """The conjugate transpose of matrices."""
    return conj(xp.matrix_transpose(x))  # type: ignore[no-any-return]
