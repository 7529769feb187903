"""What a function reads besides its arguments, as far as that can be told without calling it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from types import FunctionType, MethodType
from typing import Any

from actorflow.array.containers import Structure, flatten
from actorflow.array.records import Node

__all__ = ["surroundings"]

_CONTAINERS = (tuple, list, dict)
_PLAIN = (bool, int, float, complex, str, type(None))
#: Leaves of a container from which on it is taken for data, not for parameters.
_MOST_LEAVES = 1_000


def surroundings(function: Any) -> tuple[list[Any], list[Structure]]:
    """Arrays and plain values in the variables that a function sees, also by functions of its module that it calls.

    Returns:
        Leaves, in an order that depends on the code alone, and how they are nested.
    """
    leaves: list[Any] = []
    structures: list[Structure] = []
    for value in _values(function, set()):
        kind = type(value)
        if kind is Node.array_type or kind in _PLAIN:
            leaves.append(value)
        elif isinstance(value, _CONTAINERS) and len(value) <= _MOST_LEAVES:
            found, structure = flatten(value)
            if len(found) <= _MOST_LEAVES:
                leaves.extend(each if type(each) is Node.array_type or type(each) in _PLAIN else None for each in found)
                structures.append(structure)
    return leaves, structures


def _values(function: Any, seen: set[int]) -> Iterator[Any]:
    if id(function) in seen:
        return
    seen.add(id(function))
    if isinstance(function, partial):
        yield function.args
        yield function.keywords
        yield from _values(function.func, seen)
    elif isinstance(function, MethodType):
        yield getattr(function.__self__, "__dict__", None)
        yield from _values(function.__func__, seen)
    elif isinstance(function, FunctionType):
        for value in _variables(function):
            if isinstance(value, FunctionType):
                if value.__module__ == function.__module__:
                    yield from _values(value, seen)
            else:
                yield value
        yield function.__defaults__
        yield function.__kwdefaults__
    else:
        yield getattr(function, "__dict__", None)


def _variables(function: FunctionType) -> Iterator[Any]:
    code, names = function.__code__, function.__globals__
    for name in code.co_names:
        if name in names:
            yield names[name]
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not assigned yet
            yield None
