"""Gradients of functions of arrays: `grad` and `value_and_grad`.

The way back goes through records, by the rules of their operations. What a rule records are operations like any others,
so that gradients have gradients, are fused and traced like everything else.

Complex numbers follow PyTorch's convention: the gradient of a real loss by ``z = a + ib`` is ``dL/da + i dL/db``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import reduce
from operator import add
from typing import Any, Concatenate, Literal, ParamSpec, TypedDict, TypeVar, Unpack, overload

import numpy as np

from actorflow.array.array import Array
from actorflow.array.namespace.creation import asarray, zeros_like
from actorflow.array.record.placement import TRANSFER
from actorflow.array.record.primitives import PART, touched, view_of
from actorflow.array.record.record import (
    HOST,
    SEVERAL,
    WORTH_A_LOOK,
    Evaluator,
    Origin,
    Record,
    Tracing,
    computed,
    given,
    parts_of,
    site_of,
)
from actorflow.array.record.steps import Step, describe, needed, reached
from actorflow.array.transforms.calls import Arguments, flatten, is_array, unflatten
from actorflow.core import desk
from actorflow.errors import DTypeError, GraphError, ShapeError
from actorflow.ops.backward import Backward
from actorflow.ops.elementwise import copy
from actorflow.ops.operation import Application
from actorflow.ops.rows import fit
from actorflow.runtime.quiet import quiet
from actorflow.runtime.recent import RecentCache

#: Recipes that a function keeps.
_MOST_RECIPES = 64
#: Load of what is computed only if it is asked for, so that forgotten records are looked at now and then.
_LATER = WORTH_A_LOOK >> 8
#: Most elements that a recipe touches to be computed at once.
_BRIEF = 1 << 24
_ARRAY = object()
A = TypeVar("A")
B = TypeVar("B")
P = ParamSpec("P")
V = TypeVar("V")


class _Recording(TypedDict, total=False):
    has_aux: bool
    cache: bool


@overload
def value_and_grad(  # type: ignore[overload-overlap]  # the first one that fits is meant
    function: Callable[Concatenate[A, P], V], argnums: Literal[0] = 0, **options: Unpack[_Recording]
) -> Callable[Concatenate[A, P], tuple[V, A]]: ...


@overload
def value_and_grad(  # type: ignore[overload-overlap]
    function: Callable[Concatenate[A, B, P], V], argnums: tuple[Literal[0], Literal[1]], **options: Unpack[_Recording]
) -> Callable[Concatenate[A, B, P], tuple[V, tuple[A, B]]]: ...


@overload
def value_and_grad(
    function: Callable[P, V], argnums: int | Sequence[int], **options: Unpack[_Recording]
) -> Callable[P, tuple[V, Any]]: ...


def value_and_grad(
    function: Callable[..., Any], argnums: int | Sequence[int] = 0, *, has_aux: bool = False, cache: bool = False
) -> Callable[..., tuple[Any, Any]]:
    """Return the function of the same arguments that gives the function's value, and its gradient.

    The function is called each time, with arrays that have no values: it may use their shapes, dtypes and plain values,
    but not their values. Arguments may be nested tuples, lists and dicts of arrays; NumPy's arrays are taken as
    `asarray` does. Keyword arguments are never differentiated by.

    With ``cache=True`` the function is called once for all calls with the same shapes and dtypes of arrays, and equal
    other arguments: what it recorded, forwards and backwards, is kept as a recipe, and later calls record that again
    without calling it (the 64 recipes used last are kept). Then the function reads arrays from its arguments alone,
    which is checked; whatever else it reads (global variables, closures, attributes, random numbers of NumPy or Python)
    is read in the first call and never again, and it should have no effects. Arguments that are not arrays are
    hashable. ``randn``, ``randb`` and ``dropout`` without a seed draw other numbers in each call.

    Args:
        function: Gives a 0-d array of real floating numbers.
        argnums: Positions of the arguments to differentiate by.
        has_aux: Whether the function gives a pair: the value, and other results, in any containers.
        cache: Whether the function is called once for all calls of the same kind.
    Returns:
        A function that records both: ``(value, gradient)``, or ``((value, aux), gradient)``. The gradient of an
        argument has its containers, with None for what is not floating; of several ``argnums`` it is a tuple. Where
        the value does not depend on a part of an argument, its gradient is zero. Whatever is asked for first, what
        value and gradients share is computed once.
    Raises:
        GraphError: where it is called, if an operation on the way has no gradient (the message names it and its line),
            if nothing that is differentiated by reaches the value, if the function asks for a value, or if it reads an
            array that is not one of its arguments although its recipes are kept.
        ShapeError: if the value is not 0-d.
        DTypeError: if the value, or an argument to differentiate by, is not floating; if an argument of a function
            whose recipes are kept is neither an array nor hashable.

    Example:
        >>> def loss(weights, x, target):
        ...     return af.array.sum((x @ weights["w"] + weights["b"] - target) ** 2)
        >>> weights = {"w": np.array([1.0, 2.0]), "b": np.array(0.0)}
        >>> value, gradient = af.value_and_grad(loss)(weights, np.array([1.0, 1.0]), 2.0)
        >>> value.item(), gradient["w"].tolist(), gradient["b"].item()
        (1.0, [2.0, 2.0], 2.0)
    """
    if not callable(function):
        raise TypeError(f"grad: expected a function of arrays, got {type(function).__name__}")
    wanted = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    name = getattr(function, "__name__", type(function).__name__)
    recipes: RecentCache[_Recipe] = RecentCache(_MOST_RECIPES)

    def both(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        positions = [_position(i, len(args)) for i in wanted]
        arguments = Arguments(args, kwargs, positions)
        key = arguments.key("grad") if cache else None
        found = recipes.get(key) if cache else None
        if found is None:
            found = _Recipe(function, arguments, positions, has_aux)
            if cache:
                if (node := found.read) is not None:  # later calls could not know of another one
                    raise GraphError(
                        f"{name} reads an array that is not one of its arguments, {node.dtype}{list(node.shape)}: with "
                        "cache=True later calls would not see another one in its place; make it an argument"
                    )
                recipes.put(key, found)
        value, aux, grads = found(arguments.arrays)
        return ((value, aux) if has_aux else value), grads[0] if isinstance(argnums, int) else tuple(grads)

    functools.update_wrapper(both, function, assigned=("__module__", "__name__", "__qualname__"), updated=())
    both.__doc__ = f"Value and gradient of `{name}`."
    both.__dict__["recipes"] = recipes
    return both


@overload
def grad(
    function: Callable[Concatenate[A, P], Array], argnums: Literal[0] = 0, *, cache: bool = False
) -> Callable[Concatenate[A, P], A]: ...


@overload
def grad(
    function: Callable[Concatenate[A, P], tuple[Array, V]], *, has_aux: Literal[True], cache: bool = False
) -> Callable[Concatenate[A, P], tuple[A, V]]: ...


@overload
def grad(
    function: Callable[P, Any], argnums: int | Sequence[int], **options: Unpack[_Recording]
) -> Callable[P, Any]: ...


def grad(
    function: Callable[..., Any], argnums: int | Sequence[int] = 0, *, has_aux: bool = False, cache: bool = False
) -> Callable[..., Any]:
    """Return the function of the same arguments that gives the function's gradient, or ``(gradient, aux)``.

    Arguments and errors: those of `value_and_grad`.

    Example:
        >>> slope = af.grad(lambda x: x**3)
        >>> slope(np.array(2.0)).item()
        12.0
        >>> af.grad(slope)(np.array(2.0)).item()  # the second derivative
        12.0
    """
    both = value_and_grad(function, argnums, has_aux=has_aux, cache=cache)

    def gradient_of(*args: Any, **kwargs: Any) -> Any:
        value, found = both(*args, **kwargs)
        return (found, value[1]) if has_aux else found

    functools.update_wrapper(gradient_of, both, updated=())
    gradient_of.__doc__ = f"Gradient of `{both.__name__}`."
    return gradient_of


def _position(i: int, count: int) -> int:
    if not -count <= i < count:
        raise GraphError(f"grad: there is no argument {i}, the function was called with {count}")
    return i % count


class _Recipe:
    """The records of a call of a function and of its gradients, to be made again on other arrays.

    Gradients are computed at once where that takes no time; other results where they are asked for, from what that has
    computed.

    Attributes:
        read: An array that the function has read, or asked for its value, though it was no argument, if there is one.
    """

    def __init__(
        self, function: Callable[..., Any], arguments: Arguments, positions: Sequence[int], has_aux: bool
    ) -> None:
        traced = Tracing()
        leaves = [traced.stand_in(leaf) if is_array(leaf) else leaf for leaf in arguments.leaves]
        stand_ins = iter(traced.nodes)
        by_leaf = [next(stand_ins) if is_array(leaf) else None for leaf in arguments.leaves]
        spans = [arguments.spans[i] for i in positions]
        wanted = [node for start, end, _ in spans for node in _floating(by_leaf[start:end])]
        if not wanted:
            raise DTypeError("grad: none of the arguments to differentiate by is a floating array")
        with traced:
            found = arguments.call(function, leaves)
            if has_aux and not (isinstance(found, tuple) and len(found) == 2):
                raise DTypeError(f"grad: with has_aux the function must return a pair, got {type(found).__name__}")
            value, aux = found if has_aux else (found, ())
            slopes = _slopes(value, wanted)
            others, nesting = flatten(aux)
            results = _distinct([value, *slopes, *[each for each in others if is_array(each)]], traced)
        #: For each argument, which of its leaves have gradients, and how they are nested.
        self._grads = [
            ([bool(_floating([node])) for node in by_leaf[start:end]], structure) for start, end, structure in spans
        ]
        #: The other results, with `_ARRAY` for arrays, and how they are nested.
        self._aux = [_ARRAY if is_array(each) else each for each in others], nesting
        self._plan(traced, [x._node for x in results], range(1, 1 + len(slopes)))
        asked = [node for node in traced.asked if node.number < traced.first]
        self.read: Record | None = next(iter([*asked, *self._captured]), None)

    def _plan(self, traced: Tracing, outputs: Sequence[Record], prompt: Iterable[int]) -> None:
        nodes, self._captured = needed(outputs, traced.nodes, traced.first)
        description = describe(nodes, set(), varies=False)
        steps, given = description.steps, description.given
        position = {node: i for i, node in enumerate((*traced.nodes, *self._captured))}
        #: Slots of what is an input, with its position.
        self._fed = [(-1 - i, position[x]) for i, x in enumerate(given) if isinstance(x, Record) and x in position]
        place_of = {node: i for i, node in enumerate(nodes)}
        self._outputs = [place_of[node] for node in outputs]
        self._load = sum([node.size for node in nodes])
        work = sum([touched(node.op, node.inputs, node.size) for node in nodes if node.op is not None])
        own = reached(steps, [self._outputs[i] for i in prompt]) if work <= _BRIEF else {}
        last = {each: i for i, step in enumerate(steps) for each in step.reads}
        #: By slot: values of steps that follow from constants alone, and those that the function made of numbers.
        self._values: list[Any] = [None] * (len(steps) + len(given))
        for i, x in enumerate(given):
            if not isinstance(x, Record):
                self._values[-1 - i] = x
            elif x not in position:
                self._values[-1 - i] = x.value
        #: The other steps: position, step, what computes it at once, its origin, and whose results it frees.
        self._steps: list[tuple[int, Step, Callable[[list[Any]], Any] | None, Origin, list[int]]] = []
        for i, (step, node) in enumerate(zip(steps, nodes, strict=True)):
            at_once = i in own and step.op.pure and step.op is not TRANSFER
            read = [self._values[each] for each in step.reads]
            if at_once and i not in self._outputs and step.dtype != SEVERAL and all(x is not None for x in read):
                with suppress(Exception):  # it is raised where the value is asked for
                    self._values[i] = quiet.run(step.op.called(step.params, step.shape, step.dtype), *read)
            if self._values[i] is None:
                freed = [each for each in step.reads if each >= 0 and last[each] == i and each not in self._outputs]
                quick = _quick(step) if at_once else None
                self._steps.append((i, step, quick, node.origin, [*dict.fromkeys(freed)]))

    def __call__(self, arrays: Sequence[Array]) -> tuple[Array, Any, list[Any]]:
        """The value, the other results, and the gradients for arrays in the place of the arguments'."""
        results = iter(self._outputs_for(arrays))
        value = next(results)
        grads = [
            unflatten(structure, results if all(flags) else [next(results) if each else None for each in flags])
            for flags, structure in self._grads
        ]
        others, nesting = self._aux
        aux = unflatten(nesting, [next(results) if each is _ARRAY else each for each in others])
        return value, aux, grads

    def _outputs_for(self, arrays: Sequence[Array]) -> list[Array]:
        read: list[Any] = [*arrays, *[node.unheld() for node in self._captured]]
        evaluator = next((x._node.evaluator for x in read if x._node.evaluator.dry_run), read[0]._node.evaluator)
        values, later = self._values.copy(), []
        for slot, position in self._fed:
            values[slot] = read[position]
        is_open = evaluator.at_once and desk.placing is None and not desk.dry_runs
        for i, step, quick, origin, freed in self._steps:
            found = quick(values) if is_open and quick is not None else None
            if found is None:
                inputs = tuple([x._node if type(x) is Array else x for x in [values[each] for each in step.reads]])
                if is_open and quick is not None:
                    found = computed(step.op, inputs, step.params, step.shape, step.dtype, evaluator)
                if found is None:
                    found = _recorded(step, inputs, evaluator, origin)
                    later.append(i)
            values[i] = found
            for j in freed:
                values[j] = None
        if later:
            evaluator.pending.extend([values[i]._node.handle for i in self._outputs if i in later])
            evaluator.load += self._load if len(later) == len(self._steps) else _LATER
            if evaluator.load > evaluator.threshold:
                for i in self._outputs:
                    if not values[i]._node.done:
                        evaluator.notice(values[i]._node)
        return [values[i] for i in self._outputs]


def _recorded(step: Step, reads: tuple[Any, ...], evaluator: Evaluator, origin: Origin) -> Array:
    """The array of a record for a step that is computed later."""
    op, params, place = step.op, step.params, HOST
    if not op.pure:
        reads, params = op.again(reads, params)
    if op is TRANSFER:
        params = (reads[0].place if type(reads[0]) is Record else HOST, place := params[1])
    elif desk.placing is not None:
        reads, place = desk.placing(op, reads, True)
    return Record(op, reads, step.shape, step.dtype, params, evaluator, place, origin).show()


def _quick(step: Step) -> Callable[[list[Any]], Any]:
    """Computes a step at the desk, from values by slot; gives None where it is computed otherwise."""
    op: Any = step.op
    one, other = (*step.reads, 0, 0)[:2]
    if op.loop is not None and len(step.reads) == 1:
        of_one = op.loop.of_one
        return lambda values: of_one(values[one])
    if op.loop is not None and len(step.reads) == 2:
        of_two = op.loop.of_two
        return lambda values: of_two(values[one], values[other])
    if op.turned is not None:
        turn1, turn2 = op.turned
        return lambda values: desk.product(values[one], values[other], turn1, turn2)
    if len(step.reads) > 1:
        return lambda _: None
    view = view_of(op.operation)
    call = view or (op.of_all(step.params) if op.reduction else op.bound(step.params, step.shape))
    is_view = view is not None
    return lambda values: desk.call(call, values[one], is_view)


def _floating(nodes: Sequence[Record | None]) -> list[Record]:
    return [node for node in nodes if node is not None and node.dtype.kind in "fc"]


def _slopes(value: Any, wanted: Sequence[Record]) -> list[Array]:
    if not is_array(value):
        raise DTypeError(f"grad: the function must return one array, got {type(value).__name__}")
    if value.shape != ():
        raise ShapeError(f"grad: the function must return a 0-d array, got shape {value.shape}")
    if value.dtype.kind != "f":
        raise DTypeError(f"grad: the function must return a real floating array, got {value.dtype}")
    active = _active(value._node, {*wanted})
    if not active and value._node not in wanted:
        raise GraphError("grad: the value does not depend on any argument to differentiate by, through floating arrays")
    backward = Backward({*wanted, *active}, _through, _total)
    backward.seed(value._node, asarray(np.ones((), value.dtype)))
    backward.walk(map(_Step, reversed(active)))
    grads = [backward.grad(node) for node in wanted]
    return [zeros_like(node.unheld()) if g is None else g for node, g in zip(wanted, grads, strict=True)]


def _distinct(results: Sequence[Array], traced: Tracing) -> list[Array]:
    """Distinct results: arguments, and arrays that come twice, are copied."""
    known = set(traced.nodes)
    found = []
    for x in results:
        node = x._node
        made = node.op is not None and node.number > traced.first and node.evaluator.dry_run and node not in known
        found.append(x if made else copy(x))
        known.add(node)
    return found


# -- the way back -----------------------------------------------------------------------------------------------


class _Step:
    """A record as the backward pass sees it. The gradient of several results is a dict of those by position."""

    def __init__(self, node: Record) -> None:
        assert node.op is not None
        self.node = node
        self.operation = None if node.op is PART or node.op is TRANSFER else node.op.operation
        self.inputs = [each if isinstance(each, Record) else None for each in node.inputs]
        self.outputs = (node,)


def _active(result: Record, targets: set[Record]) -> list[Record]:
    """The records between that depend on one of ``targets`` through floating arrays, in order."""
    first = min((node.number for node in targets), default=0)
    seen: set[Record] = set()
    stack = [result]
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


def _total(node: Record, terms: list[Any]) -> Any:
    grads = [grad for _, grad in terms]
    if node.dtype != SEVERAL:
        return reduce(add, grads)
    parts = dict.fromkeys([i for grad in grads for i in grad])
    return {i: reduce(add, [grad[i] for grad in grads if i in grad]) for i in parts}


def _through(step: _Step, grads: list[Any], wanted: list[bool]) -> Sequence[Any]:
    node, (grad,), op = step.node, grads, step.node.op
    assert op is not None
    if op is PART:
        return [{node.params[0]: grad}]
    if op is TRANSFER:
        return [grad.to_device(node.params[0])]
    operation = op.operation
    if operation is None or not operation.differentiable:
        raise GraphError(f"{operation or op.name} has no gradient; recorded at {site_of(node.origin)}")
    inputs = [each.unheld() if isinstance(each, Record) else given(each, node.evaluator) for each in node.inputs]
    outputs, by_output = [node.unheld()], grads
    if node.dtype == SEVERAL:
        outputs = parts_of(node, operation.infer(*[x.spec for x in inputs]))
        by_output = [grad.get(i) for i in range(len(outputs))]
    found = operation.gradient(Application(inputs, outputs, op.name), by_output, wanted)
    return [None if g is None else fit(g, x) for x, g in zip(inputs, found, strict=True)]
