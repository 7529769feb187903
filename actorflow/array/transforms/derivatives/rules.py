"""Derivative rules, each array code of an operation's vector-Jacobian product, and the way back through records.

A rule is a plain function of arrays. What it records are operations like any others, with rules of their own, so that
gradients have gradients, are fused and traced like everything else. Rules are registered by the operation's name.

Complex numbers follow PyTorch's convention: the gradient of a real loss by ``z = a + ib`` is ``dL/da + i dL/db``.

Source of the idea: Maclaurin, Duvenaud, Adams: autograd (``defvjp``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from actorflow import ops
from actorflow.array import namespace as xp
from actorflow.array.array import Array
from actorflow.array.record.primitives import PART
from actorflow.array.record.record import Record, given, record, site_of
from actorflow.errors import GraphError


class Application(NamedTuple):
    """A use of an operation, for its rule.

    Attributes:
        inputs: Its inputs.
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
_rules: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register the decorated function as the rule of the operations of these names."""

    def register(function: Rule) -> Rule:
        for name in names:
            assert name not in _rules, name
            _rules[name] = function
        return function

    return register


def rule_of(name: str) -> Rule | None:
    """The rule of an operation; None if there is none."""
    return _rules.get(name)


def known_rules() -> tuple[str, ...]:
    """Names of the operations that have rules, sorted."""
    return tuple(sorted(_rules))


def fit(grad: Array, node: Record) -> Array:
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


rule("to_device")(lambda at, g: [g.to_device(at.params[0])])


# -- the way back -----------------------------------------------------------------------------------------------


def pull_back(seeds: Sequence[tuple[Array, Array]], wanted: Sequence[Array]) -> list[Array | None]:
    """The gradients of arrays, from those of results that were computed from them.

    Args:
        seeds: Results, floating, with their gradients, of the same types.
        wanted: What to differentiate by; none of them is computed from another.
    Returns:
        A gradient for each of ``wanted``, of its shape and dtype; None where it is zero.
    Raises:
        GraphError: if a result depends on one of ``wanted`` by an operation without a gradient; it names the
            operation and the line that recorded it.
    """
    targets = {x._node for x in wanted}
    grads: dict[Record, Any] = {}
    for y, g in seeds:
        _add(grads, y._node, g)
    for node in reversed(_active([y._node for y, _ in seeds], targets)):
        if node in grads:
            for each, g in _through(node, grads.pop(node)):
                if each in targets or each.op is not None:
                    _add(grads, each, g)
    return [grads.get(x._node) for x in wanted]


def pulled_back(function: Any, arrays: Sequence[Array], grad: Array) -> list[Array | None]:
    """The gradients of arrays, from that of a function of them: for rules of operations made of others."""
    return pull_back([(function(*arrays), grad)], arrays)


def depends(results: Sequence[Array], wanted: Sequence[Array]) -> set[Record]:
    """Those of ``wanted`` that any of the results depends on, through floating arrays."""
    targets = {x._node for x in wanted}
    found = {y._node for y in results} & targets
    for node in _active([y._node for y in results], targets):
        found.update(each for each in node.inputs if type(each) is Record and each in targets)
    return found


def _active(results: Iterable[Record], targets: set[Record]) -> list[Record]:
    """The records between that depend on one of ``targets`` through floating arrays, in order."""
    first = min((node.number for node in targets), default=0)
    seen: set[Record] = set()
    stack = [*results]
    while stack:
        node = stack.pop()
        if node not in seen and node not in targets and node.number > first:
            seen.add(node)
            stack.extend(each for each in node.inputs if type(each) is Record)
    active = set(targets)
    found = []
    for node in sorted(seen, key=lambda node: node.number):
        if node.dtype.kind in "fcO" and any(each in active for each in node.inputs if type(each) is Record):
            active.add(node)
            found.append(node)
    return found


def _add(grads: dict[Record, Any], node: Record, grad: Any) -> None:
    before = grads.get(node)
    if before is None:
        grads[node] = grad
    elif isinstance(grad, dict):
        for i, g in grad.items():
            before[i] = before[i] + g if i in before else g
    else:
        grads[node] = before + grad


def _through(node: Record, grad: Any) -> list[tuple[Record, Any]]:
    op = node.op
    assert op is not None
    if op is PART:
        [whole] = node.inputs
        assert type(whole) is Record
        return [(whole, {node.params[0]: grad})]
    inputs = tuple([_shown(each) if isinstance(each, Record) else given(each, node.evaluator) for each in node.inputs])
    floating = [type(each) is Record and each.dtype.kind in "fc" for each in node.inputs]
    kinds = None if op.results is None else op.results(*node.inputs, *node.params)
    outputs: Any = _shown(node)
    if kinds is not None:
        parts = enumerate(kinds)
        outputs = tuple([record(PART, (node,), shape, kind, (i,), node.evaluator) for i, (shape, kind) in parts])
    found: Sequence[Any]
    if op.operation is not None:
        operation = op.operation
        if not operation.differentiable:
            raise GraphError(f"{operation} has no gradient; recorded at {site_of(node.origin)}")
        several = isinstance(outputs, tuple)
        floating = [want and not operation.is_constant(i) for i, want in enumerate(floating)]
        found = operation.gradient(
            ops.operation.Application(inputs, outputs if several else (outputs,), op.name),
            [grad.get(i) for i in range(len(outputs))] if several else [grad],
            floating,
        )
    else:
        function = rule_of(op.name)
        if function is None:
            raise GraphError(f"{op.name} has no gradient; recorded at {site_of(node.origin)}")
        found = function(
            Application(inputs, node.params, outputs),
            grad if kinds is None else tuple([grad.get(i) for i in range(len(kinds))]),
        )
    return [
        (each, fit(g, each))
        for each, g, wanted in zip(node.inputs, found, floating, strict=True)
        if g is not None and wanted and type(each) is Record
    ]


def _shown(node: Record) -> Array:
    held = node.handle() if node.handle is not None else None
    if held is not None and held._node is node:
        return held
    array = object.__new__(Record.array_type)
    array._node = node
    return array
