"""What a function reads besides its arguments, as far as that can be told without calling it."""

from __future__ import annotations

import builtins
import dis
import inspect
import sys
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from actorflow.array.record.node import Node
from actorflow.array.transforms.calls import LEAF, Structure, flatten

_CONTAINERS = (tuple, list, dict)
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), np.generic, np.dtype, CodeType)
#: Leaves from which on a container is taken for data, not for parameters.
_MOST_LEAVES = 1_000
#: Packages whose functions and classes give the same for the same arguments, as far as code of arrays uses them.
_STEADY = frozenset(
    {"__future__", "_functools", "_operator", "actorflow", "builtins", "cmath", "collections", "functools"}
    | {"itertools", "math", "numpy", "operator", "types", "typing"}
)
#: But not these, which read what is outside of the program, or change it; attributes of modules included.
_UNSTEADY = frozenset(
    {"__import__", "eval", "exec", "fromfile", "genfromtxt", "globals", "input", "load", "loadtxt", "locals", "memmap"}
    | {"open", "random", "vars"}
)
_READS_GLOBAL = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_CHANGES = frozenset({"DELETE_GLOBAL", "IMPORT_NAME", "STORE_ATTR", "STORE_GLOBAL"})


class _UnknownError(Exception):
    """Something whose state cannot be told."""


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """A function's parameters; their annotations may name what is there for type checkers alone.

    Raises:
        TypeError, ValueError: if it does not say.
    """
    options: dict[str, Any] = {}
    if sys.version_info >= (3, 14):  # annotations are evaluated when they are asked for
        from annotationlib import Format

        options["annotation_format"] = Format.FORWARDREF
    return inspect.signature(function, **options)


def surroundings(function: Any) -> tuple[list[Any], list[Structure]] | None:
    """What is in the variables that a function sees, also by functions that it calls.

    Returns:
        Leaves (arrays, plain values, and code, all of them hashable or arrays), in an order that depends on the code
        alone, and how they are nested. None if the function may read anything else, which can change between its calls:
        attributes of objects, say, or the variables of a module.
    """
    leaves: list[Any] = []
    structures: list[Structure] = []
    try:
        for value in _values(function, set()):
            found, structure = flatten(value) if isinstance(value, _CONTAINERS) else ([value], LEAF)
            if len(found) > _MOST_LEAVES or not all(map(_is_known, found)):
                return None
            leaves += found
            structures.append(structure)
    except _UnknownError:
        return None
    return leaves, structures


def _is_known(leaf: Any) -> bool:
    return type(leaf) is Node.array_type or is_plain(leaf) or _is_steady(leaf)


def is_plain(value: Any) -> bool:
    """Whether it is a value without a state: a number, a string, None, ..."""
    return isinstance(value, _PLAIN)


def _is_steady(value: Any) -> bool:
    """Whether it is code, or a name for code, that always does the same."""
    if isinstance(value, ModuleType):
        return _package(value.__name__) in _STEADY and not value.__name__.startswith("numpy.random")
    if isinstance(value, BuiltinFunctionType) and not isinstance(value.__self__, ModuleType | type(None)):
        return False  # a method of an object
    if isinstance(value, type | FunctionType | BuiltinFunctionType):
        return _package(value.__module__) in _STEADY and value.__name__ not in _UNSTEADY
    return isinstance(value, np.ufunc)


def _package(module: str | None) -> str:
    return (module or "").partition(".")[0]


def _values(function: Any, seen: set[int]) -> Iterator[Any]:
    """What a function reads, and its code."""
    if id(function) in seen:
        return
    seen.add(id(function))
    if _is_steady(function):
        yield function
    elif isinstance(function, partial):
        yield function.args
        yield function.keywords
        yield from _values(function.func, seen)
    elif isinstance(function, MethodType):
        yield function.__func__.__code__ if isinstance(function.__func__, FunctionType) else None
        yield from _state(function.__self__, seen)
    elif isinstance(function, FunctionType):
        yield function.__code__
        yield function.__defaults__
        yield function.__kwdefaults__
        for value in _variables(function):
            if isinstance(value, FunctionType | MethodType | partial):
                yield from _values(value, seen)
            else:
                yield value
    else:
        yield from _state(function, seen)


def _state(instance: Any, seen: set[int]) -> Iterator[Any]:
    """What an object's methods may read: its attributes, those of its classes, and what each method reads."""
    classes = type(instance).__mro__[:-1]
    for kind in classes:
        names = vars(kind)
        if "__slots__" in names or "__getattr__" in names or "__getattribute__" in names or _is_steady(kind):
            raise _UnknownError
        for name, value in names.items():
            if name in _OF_EVERY_CLASS:
                continue
            if isinstance(value, FunctionType):
                yield from _values(value, seen)
            else:
                yield value
    yield vars(instance)


#: What a class has without saying so, and what is over once there is an object.
_OF_EVERY_CLASS = (
    frozenset(vars(type("_", (), {})))
    | {"__annotations__", "__static_attributes__"}
    | {"__annotate__", "__annotate_func__", "__annotations_cache__"}  # Python 3.14: where they are, and came from
    | {"__init__", "__post_init__"}
)


def _variables(function: FunctionType) -> Iterator[Any]:
    names = _globals_of(function.__code__)
    if names is None:
        raise _UnknownError
    for name in names:
        if name in function.__globals__:
            yield function.__globals__[name]
        elif not hasattr(builtins, name):
            raise _UnknownError
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not assigned yet
            yield None


@lru_cache(maxsize=1_024)
def _globals_of(code: CodeType) -> tuple[str, ...] | None:
    """Names of global variables that code reads, also in functions that it defines; None if it does other things."""
    found: dict[str, None] = {}
    for instruction in dis.get_instructions(code):
        name, argument = instruction.opname, instruction.argval
        changes_outer = name == "STORE_DEREF" and argument in code.co_freevars
        if name in _CHANGES or changes_outer or (isinstance(argument, str) and argument in _UNSTEADY):
            return None
        if name in _READS_GLOBAL:
            found[argument] = None
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            inner = _globals_of(constant)
            if inner is None:
                return None
            found.update(dict.fromkeys(inner))
    return tuple(found)
