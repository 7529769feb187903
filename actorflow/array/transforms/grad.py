"""Gradients of functions of arrays: `grad` and `value_and_grad`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from actorflow.array.namespace.creation import asarray, zeros_like
from actorflow.array.namespace.elementwise import COPY
from actorflow.array.namespace.operate import unary
from actorflow.array.record.node import Node
from actorflow.array.transforms.cache import Cache
from actorflow.array.transforms.calls import Arguments, StandIns, Structure, flatten, is_array, key_of_leaf, unflatten
from actorflow.array.transforms.derivatives import depends, pull_back
from actorflow.array.transforms.recipe import Recipe
from actorflow.array.transforms.surroundings import surroundings
from actorflow.errors import DTypeError, GraphError, ShapeError

if TYPE_CHECKING:
    from actorflow.array.array import Array

#: Traces that a function keeps.
_MOST_TRACES = 64
_ARRAY = object()


def value_and_grad(
    function: Callable[..., Any], argnums: int | Sequence[int] = 0, *, has_aux: bool = False
) -> Callable[..., tuple[Any, Any]]:
    """The function of the same arguments that gives the function's value, and its gradient.

    The function is called once for all calls whose arguments have the same shapes and dtypes (the 64 combinations
    used last are kept); later calls record what it recorded, without calling it. It may therefore use shapes, dtypes
    and plain values, but not the values of its arguments, and it should have no effects. Arguments may be nested
    tuples, lists and dicts of arrays; NumPy's arrays are taken as `asarray` does; what is no array (numbers, strings,
    None, ...) is hashable, and other values mean another call. Keyword arguments are never differentiated by.

    Arrays and plain values that the function reads from variables around it are read again in each call: closures,
    global variables, attributes of the object of a method, also in containers and in functions that it calls. Where
    it reads anything else that may change (values of other arrays, attributes of other objects, other modules'
    variables, random numbers), it is called each time.

    Args:
        function: Gives a 0-d array of real floating numbers.
        argnums: Positions of the arguments to differentiate by.
        has_aux: Whether the function gives a pair: the value, and other results, in any containers.
    Returns:
        A function that records both: ``(value, gradient)``, or ``((value, aux), gradient)``. The gradient of an
        argument has its containers, with None for what is not floating; of several ``argnums`` it is a tuple. Where
        the value does not depend on a part of an argument, its gradient is zero. Whatever is asked for first, what
        value and gradients share is computed once.
    Raises:
        GraphError: where it is called, if an operation on the way has no gradient (the message names it and its line),
            if nothing that is differentiated by reaches the value, or if the function asks for a value.
        ShapeError: if the value is not 0-d.
        DTypeError: if the value, or an argument to differentiate by, is not floating.
    """
    if not callable(function):
        raise TypeError(f"grad: expected a function of arrays, got {type(function).__name__}")
    wanted = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    name = getattr(function, "__name__", type(function).__name__)
    cache: Cache[_Trace] = Cache(_MOST_TRACES)

    def both(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        positions = [_position(i, len(args)) for i in wanted]
        arguments = Arguments("grad", args, kwargs, positions.__contains__)
        seen = surroundings(function)
        around, nesting = seen or ([], [])
        key = arguments.key, tuple(nesting), tuple([key_of_leaf(leaf, "grad") for leaf in around])
        trace = None if seen is None else cache.get(key)
        if trace is None:
            trace = _Trace.of(function, arguments, positions, has_aux, around)
            if seen is not None and arguments.is_plain and trace.is_lasting:
                cache.put(key, trace)
        value, aux, grads = trace(arguments.leaves, around)
        return ((value, aux) if has_aux else value), grads[0] if isinstance(argnums, int) else tuple(grads)

    functools.update_wrapper(both, function, assigned=("__module__", "__name__", "__qualname__"), updated=())
    both.__doc__ = f"Value and gradient of `{name}`."
    both.__dict__["traces"] = cache
    return both


def grad(
    function: Callable[..., Any], argnums: int | Sequence[int] = 0, *, has_aux: bool = False
) -> Callable[..., Any]:
    """The function of the same arguments that gives the function's gradient, or ``(gradient, aux)``.

    Arguments and errors: those of `value_and_grad`.
    """
    both = value_and_grad(function, argnums, has_aux=has_aux)

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


class _Trace(NamedTuple):
    """What one call recorded.

    Attributes:
        recipe: The operations.
        arrays: Positions of the arguments' leaves that are arrays.
        around: For each captured array, its position among the leaves of the surroundings; None for another one.
        reads_values: Whether the function has asked for the values of arrays around it.
        grads: For each argument, which of its leaves have gradients, and how they are nested.
        aux: The other results, with `_ARRAY` for arrays, and how they are nested.
    """

    recipe: Recipe
    arrays: list[int]
    around: list[int | None]
    reads_values: bool
    grads: list[tuple[list[bool], Structure]]
    aux: tuple[list[Any], Structure]

    @classmethod
    def of(
        cls,
        function: Callable[..., Any],
        arguments: Arguments,
        positions: Sequence[int],
        has_aux: bool,
        around: Sequence[Any],
    ) -> _Trace:
        """Call the function with arrays without values, and differentiate what it records."""
        stand_ins = StandIns()
        leaves = [stand_ins.of(leaf) if is_array(leaf) else leaf for leaf in arguments.leaves]
        inputs = [*stand_ins.nodes]
        nodes = iter(inputs)
        by_leaf = [next(nodes) if is_array(leaf) else None for leaf in arguments.leaves]
        spans = [arguments.spans[i] for i in positions]
        wanted = [node for start, end, _ in spans for node in _floating(by_leaf[start:end])]
        if not wanted:
            raise DTypeError("grad: none of the arguments to differentiate by is a floating array")
        with stand_ins.traced() as asked:
            found = arguments.call(function, leaves)
            if has_aux and not (isinstance(found, tuple) and len(found) == 2):
                raise DTypeError(f"grad: with has_aux the function must return a pair, got {type(found).__name__}")
            value, aux = found if has_aux else (found, ())
            slopes = _slopes(value, wanted)
            others, nesting = flatten(aux)
            results = _distinct([value, *slopes, *[each for each in others if is_array(each)]], stand_ins)
        recipe = Recipe(inputs, [x._node for x in results], stand_ins.first)
        known = {id(leaf): i for i, leaf in enumerate(around) if is_array(leaf)}
        return cls(
            recipe,
            [i for i, leaf in enumerate(arguments.leaves) if is_array(leaf)],
            [known.get(id(x)) for x in recipe.captured],
            any(node.number < stand_ins.first for node in asked),
            [([bool(_floating([node])) for node in by_leaf[start:end]], structure) for start, end, structure in spans],
            ([_ARRAY if is_array(each) else each for each in others], nesting),
        )

    @property
    def is_lasting(self) -> bool:
        """Whether later calls can use it: not where it read values, or arrays that later calls could not find."""
        return not self.reads_values and None not in self.around

    def __call__(self, leaves: Sequence[Any], around: Sequence[Any]) -> tuple[Array, Any, list[Any]]:
        captured = [x if i is None else around[i] for x, i in zip(self.recipe.captured, self.around, strict=True)]
        value, *rest = self.recipe([leaves[i] for i in self.arrays], captured)
        arrays = iter(rest)
        grads = [
            unflatten(structure, [next(arrays) if is_floating else None for is_floating in flags])
            for flags, structure in self.grads
        ]
        others, nesting = self.aux
        aux = unflatten(nesting, [next(arrays) if each is _ARRAY else each for each in others])
        return value, aux, grads


def _floating(nodes: Sequence[Node | None]) -> list[Node]:
    return [node for node in nodes if node is not None and node.dtype.kind in "fc"]


def _slopes(value: Any, wanted: Sequence[Node]) -> list[Array]:
    if not is_array(value):
        raise DTypeError(f"grad: the function must return one array, got {type(value).__name__}")
    if value.shape != ():
        raise ShapeError(f"grad: the function must return a 0-d array, got shape {value.shape}")
    if value.dtype.kind != "f":
        raise DTypeError(f"grad: the function must return a real floating array, got {value.dtype}")
    arrays = [_shown(node) for node in wanted]
    if not depends([value], arrays):
        raise GraphError("grad: the value does not depend on any argument to differentiate by, through floating arrays")
    found = pull_back([(value, asarray(np.ones((), value.dtype)))], arrays)
    return [zeros_like(x) if g is None else g for x, g in zip(arrays, found, strict=True)]


def _distinct(results: Sequence[Array], stand_ins: StandIns) -> list[Array]:
    """Results of the tracing, each another one: copies of arguments, and of what comes twice."""
    known = set(stand_ins.nodes)
    found = []
    for x in results:
        node = x._node
        made = node.op is not None and node.number > stand_ins.first and node.evaluator.dry_run and node not in known
        found.append(x if made else unary(COPY, x))
        known.add(node)
    return found


def _shown(node: Node) -> Array:
    """The argument itself, whatever the function has assigned to the array that stood for it."""
    array = object.__new__(Node.array_type)
    array._node = node
    return array
