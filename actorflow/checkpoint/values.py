"""Values of operations as JSON, and back: one form for each type, whatever operation has the value.

Numbers, texts, None and tuples are JSON's own. Everything else is an object of one key, which names its kind:
``{"dtype": "float32"}``, ``{"new": ["Conv", {"stride": 2, ...}]}``. Arrays are kept aside, for the file's tensors. What
has a name and no value, such as a function, is written as ``module:qualname``.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache, lru_cache
from importlib import import_module
from inspect import Parameter, isfunction, signature
from types import EllipsisType, NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
import numpy.typing as npt

from actorflow.checkpoint.file import Tensor, dtype_code
from actorflow.errors import GraphError, text_of
from actorflow.graph.body import Body
from actorflow.graph.emits import Collect
from actorflow.graph.flow import Loop, Switch
from actorflow.graph.nodes import Op
from actorflow.ops.collective import AllReduce
from actorflow.ops.fills import Numbers
from actorflow.ops.function import Function
from actorflow.ops.fused import Followed
from actorflow.ops.nn.updates import Update
from actorflow.ops.operation import SAVABLE, Operation
from actorflow.ops.rows import Elementwise
from actorflow.ops.shaping import Arrangement
from actorflow.ops.step import Step
from actorflow.ops.transfer import Receive, Send, Stage, Transfer
from actorflow.place import Place
from actorflow.spec import MOST_AXES, Follows, Length, TensorSpec

#: Values inside of each other, at most: nothing that is real comes near.
DEEPEST = 50
_LONGEST = 1 << 16  # entries of a tuple, at most
_LARGEST = 1 << 128  # integers are less than this: seeds are the largest ones
_LONGEST_DTYPE = 40
_PLANNED = (Followed, Receive, Send, Stage, Transfer)  # operations that plans are made of, and graphs are not
_BASES = (Arrangement, Elementwise, Update)  # which operations are derived from
_OWN = ("actorflow.nn.", "actorflow.onnx.", "actorflow.ops.")  # where objects of the package are that a file may name

Array = npt.NDArray[Any]


class UnsavableError(Exception):
    """A value has no form that another process could read."""


# -- names ------------------------------------------------------------------------------------------------------------


@cache
def kinds() -> Mapping[str, type[Any]]:
    """The package's own operations, and the kinds of their fields, unless plain, by the names of the classes."""
    found: dict[str, type[Any]] = {
        each.__name__: each for each in (AllReduce, Collect, Follows, Loop, Place, Step, Switch)
    }
    for kind in _subclasses(Operation):
        name, module = kind.__name__, kind.__module__
        # A dataclass with slots is made twice, and the first one is known as a subclass, too.
        is_there = module.startswith("actorflow.ops.") and getattr(import_module(module), name, None) is kind
        if is_there and name[0] != "_" and kind not in (*_PLANNED, *_BASES):
            found[name] = kind
    return found


def _subclasses(kind: type[Any]) -> Iterator[type[Any]]:
    for each in kind.__subclasses__():
        yield each
        yield from _subclasses(each)


def name_of(thing: Any) -> str:
    """``module:qualname`` of a function or class; raises UnsavableError if another process could not find it."""
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    shown = text_of(thing, lambda thing: " ".join(repr(thing).split()))
    if not isinstance(module, str) or not isinstance(name, str):
        raise UnsavableError(f"{shown:.200} has no name by which it could be found")
    if "<lambda>" in name or "<locals>" in name:
        kind = "a lambda" if name.endswith("<lambda>") else "local to a function"
        raise UnsavableError(f"{module}:{name} is {kind}: define it in a module")
    try:
        found = _named(f"{module}:{name}")
    except Exception as error:
        raise UnsavableError(f"{module}:{name} cannot be found: {type(error).__name__}: {text_of(error)}") from error
    if found is not thing:
        raise UnsavableError(f"{module}:{name} is something else, {text_of(found, repr):.200}")
    return f"{module}:{name}"


def _named(name: str) -> Any:
    module, _, qualname = name.partition(":")
    found: Any = import_module(module)
    for part in qualname.split("."):
        found = getattr(found, part)
    # Below ``@graph.function`` the name is that of the op.
    return found.operation.fn if isinstance(found, Op) and isinstance(found.operation, Function) else found


class Names:
    """Functions and classes that a file may name."""

    def __init__(self, allowed: Iterable[Any]) -> None:
        if isinstance(allowed, str) or not isinstance(allowed, Iterable):
            raise GraphError(f"functions must be a list of names or functions, got {allowed!r}")
        self._allowed: dict[str, Any] = {}
        for each in allowed:
            if isinstance(each, str):
                self._allowed[each] = None
            else:
                try:
                    thing: Any = each.operation if isinstance(each, Op) else each
                    thing = thing.fn if isinstance(thing, Function) else thing
                    self._allowed[name_of(thing)] = thing
                except (AttributeError, UnsavableError) as error:
                    raise GraphError(f"functions: expected names or functions with names, got {error}") from error

    def allows(self, name: str) -> bool:
        """Return whether a file may name it."""
        return name in self._allowed or self._own(name) is not None

    def find(self, name: str) -> Any:
        """The function or class of a name; raises ValueError if it is not allowed, or not there."""
        found = self._own(name)
        if found is None:
            if name not in self._allowed:
                raise ValueError(f"{name} is not allowed")
            found = self._allowed[name]
        if found is None:
            try:
                found = self._allowed[name] = _named(name)
            except Exception as error:
                raise ValueError(f"{name} cannot be found: {type(error).__name__}: {text_of(error)}") from error
        return found

    @staticmethod
    def _own(name: str) -> Any:
        if not name.startswith(_OWN) or not all(part.isidentifier() for part in name.replace(":", ".").split(".")):
            return None
        try:
            found = _named(name)
            return found if found in SAVABLE else None
        except Exception:  # noqa: BLE001  there is no such module or name
            return None


def names_in(written: Any) -> Iterator[str]:
    """Names outside of the package's operations that a value in a file has, wherever they are in it."""
    todo = [written]
    while todo:
        value = todo.pop()
        if isinstance(value, list):
            todo += value
        elif isinstance(value, dict):
            for form, inner in value.items():
                if form in ("new", "member") and isinstance(inner, list) and len(inner) == 2:
                    inner, given = inner
                    todo += given.values() if isinstance(given, dict) else ()
                if form not in ("function", "member", "new"):
                    todo.append(inner)
                elif isinstance(inner, str) and inner not in kinds():
                    yield inner


# -- dtypes and types --------------------------------------------------------------------------------------------------


@lru_cache
def dtype_text(dtype: np.dtype[Any]) -> str:
    """The name of a dtype, or NumPy's code where it has none; raises UnsavableError for dtypes of records."""
    for text in (dtype.name, dtype.str):
        try:
            if len(text) <= _LONGEST_DTYPE and np.dtype(text) == dtype:
                return text
        except (TypeError, ValueError):
            continue
    raise UnsavableError(f"a dtype such as {dtype!r} cannot be saved")


def dtype_of(text: Any) -> np.dtype[Any]:
    """The dtype of a text by `dtype_text`; raises ValueError for anything else."""
    if isinstance(text, str) and len(text) <= _LONGEST_DTYPE:
        try:
            found = _known_dtype(text)
            if dtype_text(found) == text:
                return found
        except (TypeError, ValueError, SyntaxError, UnsavableError, ImportError):
            pass
    raise ValueError(f"expected a dtype, got {text!r:.200}")


@lru_cache
def _known_dtype(text: str) -> np.dtype[Any]:
    try:
        return np.dtype(text)
    except TypeError:
        import ml_dtypes  # which then makes its dtypes known to NumPy

        return np.dtype(getattr(ml_dtypes, text, text))


def written_shape(shape: tuple[Any, ...]) -> list[Any]:
    """A shape for JSON: a number for each axis, the name of one that is open, or the formula of its length."""
    return [n if not isinstance(n, Length) else n.name or {"length": n.formula} for n in shape]


def shape_of(written: Any) -> tuple[Any, ...]:
    """The shape that `written_shape` wrote; raises ValueError for anything else."""
    if not isinstance(written, list) or len(written) > MOST_AXES:
        raise ValueError(f"expected a shape of at most {MOST_AXES} axes, got {written!r:.200}")
    return tuple([n if type(n) is int and 0 <= n < 1 << 63 else _length(n) for n in written])


def _length(written: Any) -> Any:
    if isinstance(written, str):
        return Length.of_formula([[1, written]])
    if isinstance(written, dict) and [*written] == ["length"]:
        return Length.of_formula(written["length"])
    raise ValueError(f"expected the length of an axis, or its name, got {written!r:.200}")


# -- arrays as tensors of a file ---------------------------------------------------------------------------------------


def packed(array: Array) -> Array:
    """An array as a file's format can hold it: of bytes, where the format does not have its dtype."""
    has_code = dtype_code(array.dtype) is not None and array.dtype.isnative
    return array if has_code else np.frombuffer(array.tobytes(), np.uint8)


def unpacked(name: str, tensor: Tensor | None, spec: TensorSpec) -> Array:
    """The array of a tensor of a file; raises ValueError if it is not of the type."""
    if tensor is None:
        raise ValueError(f"expected a tensor {name!r} of {spec}, the file has none")
    dtype = spec.dtype
    code = dtype_code(dtype) if dtype.isnative else None
    if (tensor.dtype, tensor.shape) != ((code, spec.shape) if code else ("U8", (spec.size_bytes,))):
        raise ValueError(f"tensor {name!r}: expected {spec}, got {tensor}")
    return _of_bytes(f"tensor {name!r}", tensor.data, spec)


def _of_bytes(what: str, data: bytes | bytearray, spec: TensorSpec) -> Array:
    """The array of a type that bytes are, without a copy; raises ValueError if they are none."""
    dtype = spec.dtype
    if dtype.hasobject or len(data) != spec.size_bytes:
        raise ValueError(f"{what}: expected {spec.size_bytes} bytes of {spec}, got {len(data)}")
    if not data:
        return np.empty(spec.shape, dtype)
    if dtype.kind == "b" and max(data) > 1:
        raise ValueError(f"{what}: expected bytes 0 and 1 of bools, got {max(data)}")
    if dtype.kind == "U":
        points = np.frombuffer(data, np.dtype(np.uint32).newbyteorder(dtype.byteorder))
        if points.max() > 0x10FFFF:
            raise ValueError(f"{what}: expected text, got the code point {points.max():#x}")
    return np.frombuffer(data, dtype).reshape(spec.shape)


# -- writing ----------------------------------------------------------------------------------------------------------


class Writer:
    """Writes values."""

    def __init__(self) -> None:
        self.arrays: dict[str, Array] = {}  # those of the values so far, by name

    def write(self, value: Any, owner: str, depth: int = 0) -> Any:
        """A value for JSON; raises UnsavableError, naming the value that has no form."""
        if depth > DEEPEST:
            raise UnsavableError(f"values are nested deeper than {DEEPEST}")
        kind = type(value)
        if value is None or kind in (bool, str):
            return value
        if kind is int:
            if abs(value) >= _LARGEST:
                raise UnsavableError(f"integers must be less than 2**128, got {value:.3g}")
            return value
        if kind is float:
            return value if math.isfinite(value) else {"float": struct.pack("<d", value).hex()}
        if kind is complex:
            return {"complex": [self.write(part, owner) for part in (value.real, value.imag)]}
        if kind in (tuple, list):
            if len(value) > _LONGEST:
                raise UnsavableError(f"a tuple can have {_LONGEST} entries, got {len(value)}")
            items = [self.write(each, owner, depth + 1) for each in value]
            return items if kind is tuple else {"list": items}
        if kind is dict:
            return {"dict": [[self.write(each, owner, depth + 1) for each in pair] for pair in value.items()]}
        if kind is slice:
            return {"slice": [self.write(each, owner) for each in (value.start, value.stop, value.step)]}
        if kind is bytes:
            return {"bytes": value.hex()}
        if value is Ellipsis:
            return {"ellipsis": None}
        if isinstance(value, Length):
            return {"length": value.formula}
        if isinstance(value, np.dtype):
            return {"dtype": dtype_text(value)}
        if isinstance(value, TensorSpec):
            return {"spec": [written_shape(value.shape), dtype_text(value.dtype)]}
        if isinstance(value, np.ndarray | np.generic):
            return self._written_array(value, owner)
        if isinstance(value, Enum):
            return {"member": [name_of(kind), value.name]}
        if isinstance(value, Body):
            return {"body": value.scope.name}
        if hasattr(kind, "_fields") or (is_dataclass(value) and not isinstance(value, type)):
            return self._written_object(value, owner, depth)
        if callable(value):
            return {"function": name_of(value)}
        raise UnsavableError(f"there is no form for values of type {kind.__module__}.{kind.__qualname__}")

    def _written_array(self, array: Array | np.generic, owner: str) -> Any:
        if array.dtype.hasobject:
            raise UnsavableError("arrays of Python objects cannot be saved")
        text = dtype_text(array.dtype)
        if not isinstance(array, np.ndarray):
            return {"number": [text, array.tobytes().hex()]}
        name = f"{owner}//{len(self.arrays)}"  # which no variable can have
        self.arrays[name] = array
        return {"tensor": [name, text, list(array.shape)]}

    def _written_object(self, value: Any, owner: str, depth: int) -> Any:
        kind: Any = type(value)
        if kind in _PLANNED:
            raise UnsavableError(f"{kind.__name__} is an operation that plans are made of")
        own = kinds().get(kind.__name__) is kind
        if not own and is_dataclass(value):
            for base in kind.__mro__[: kind.__mro__.index(object)]:
                params = vars(base).get("__dataclass_params__")
                if "__init__" in vars(base) and (params is None or not params.init):
                    raise UnsavableError(f"{kind.__qualname__} has an __init__ of its own: make it a dataclass")
        written = {}
        for name, default in _fields(kind).items():
            field = getattr(value, name)
            try:
                written[name] = self.write(field, owner, depth + 1)
                if own:
                    check_fits(field, hints_of(kind)[name])
            except (UnsavableError, ValueError) as error:
                if field is not default:
                    raise UnsavableError(f"field {name} of {kind.__qualname__}: {error}") from error
        return {"new": [kind.__name__ if own else name_of(kind), written]}


def _fields(kind: type[Any]) -> dict[str, Any]:
    """Defaults of the fields that an object is made of, by name; MISSING where there is none."""
    if is_dataclass(kind):
        return {field.name: field.default for field in fields(kind) if field.init}
    named: Any = kind
    return {name: named._field_defaults.get(name, MISSING) for name in named._fields}


# -- reading ----------------------------------------------------------------------------------------------------------


class Reader:
    """Reads values that may be anything; raises ValueError, or what making them raises."""

    def __init__(self, names: Names, tensors: Mapping[str, Tensor]) -> None:
        self._names, self._tensors = names, tensors
        self.used: set[str] = set()  # names of the tensors that values have had
        self.bodies: dict[str, Body] = {}  # bodies of the graph, by the names of their scopes
        self._forms: dict[str, Callable[[Any, int], Any]] = {
            "body": lambda written, _: self.bodies[_text(written)],
            "bytes": lambda written, _: bytes.fromhex(written),
            "complex": self._complex,
            "dict": lambda written, depth: dict([_pair(each) for each in self._tuple(written, depth)]),
            "dtype": lambda written, _: dtype_of(written),
            "ellipsis": lambda *_: ...,
            "float": lambda written, _: struct.unpack("<d", bytes.fromhex(written))[0],
            "function": self._function,
            "length": lambda written, _: Length.of_formula(written),
            "list": lambda written, depth: [*self._tuple(written, depth)],
            "member": self._member,
            "new": self._object,
            "number": self._number,
            "slice": self._slice,
            "spec": lambda written, _: self.spec(*_pair(written)),
            "tensor": self._tensor,
        }

    def read(self, written: Any, depth: int = 0) -> Any:
        """The value."""
        if depth > DEEPEST:
            raise ValueError(f"values are nested deeper than {DEEPEST}")
        if written is None or isinstance(written, bool | str):
            return written
        if isinstance(written, int):
            if abs(written) >= _LARGEST:
                raise ValueError("expected an integer less than 2**128, got a larger one")
            return written
        if isinstance(written, float):
            if not math.isfinite(written):
                raise ValueError(f"expected a finite number, got {written}")
            return written
        if isinstance(written, list):
            return self._tuple(written, depth)
        form = next(iter(written), None)
        if len(written) != 1 or form not in self._forms:
            raise ValueError(f"expected a value, one of {', '.join(self._forms)}, got {written!r:.200}")
        return self._forms[form](written[form], depth)

    def spec(self, shape: Any, dtype: Any) -> TensorSpec:
        """A type of tensors."""
        found = TensorSpec(shape_of(shape), dtype_of(dtype))
        if found.dtype.hasobject and found.shape:
            raise ValueError(f"expected shape [] for any Python object, got {shape!r:.200}")
        return found

    def array(self, name: str, spec: TensorSpec) -> Array:
        """A tensor of the file, of a type."""
        self.used.add(name)
        return unpacked(name, self._tensors.get(name), spec)

    def _tuple(self, written: Any, depth: int) -> tuple[Any, ...]:
        if not isinstance(written, list) or len(written) > _LONGEST:
            raise ValueError(f"expected at most {_LONGEST} values, got {written!r:.200}")
        return tuple([self.read(each, depth + 1) for each in written])

    def _complex(self, written: Any, depth: int) -> complex:
        real, imag = self._tuple(written, depth)
        return complex(real, imag)

    def _slice(self, written: Any, depth: int) -> slice:
        start, stop, step = self._tuple(written, depth)
        return slice(start, stop, step)

    def _number(self, written: Any, depth: int) -> np.generic:
        text, content = _pair(written)
        array: Any = _of_bytes("a number", bytes.fromhex(content), TensorSpec((), dtype_of(text)))
        found: np.generic = array[()]
        return found

    def _tensor(self, written: Any, depth: int) -> Array:
        name, dtype, shape = written
        spec = self.spec(shape, dtype)
        if not isinstance(name, str) or "//" not in name or spec.axes:
            raise ValueError(f"expected name, dtype and shape of a tensor, got {written!r:.200}")
        array = self.array(name, spec)
        array.flags.writeable = False
        return array

    def _function(self, written: Any, depth: int) -> Any:
        found = self._names.find(_text(written))
        if not callable(found):
            raise ValueError(f"expected a function, {written} is {found!r:.200}")
        return found

    def _member(self, written: Any, depth: int) -> Any:
        name, member = _pair(written)
        kind = self._names.find(_text(name))
        if not (isinstance(kind, type) and issubclass(kind, Enum)):
            raise ValueError(f"expected an enumeration, {name} is {kind!r:.200}")
        return kind[member]

    def _object(self, written: Any, depth: int) -> Any:
        name, given = _pair(written)
        kind = kinds().get(_text(name)) or self._names.find(name)
        if not isinstance(kind, type) or not (is_dataclass(kind) or hasattr(kind, "_fields")):
            raise ValueError(f"expected a dataclass or a named tuple, {name} is {kind!r:.200}")
        known = _fields(kind)
        lacking = [each for each, default in known.items() if default is MISSING and each not in given]
        unknown = [each for each in given if each not in known]
        if not isinstance(given, dict) or lacking or unknown:
            what = f"lacks {', '.join(lacking)}" if lacking else f"has {unknown!r:.200}"
            raise ValueError(f"{name}: expected the fields {', '.join(known) or 'none'}, the file {what}")
        values = {each: self.read(value, depth + 1) for each, value in given.items()}
        if kinds().get(name) is kind or kind in SAVABLE:
            for each, value in values.items():
                try:
                    check_fits(value, hints_of(kind)[each])
                except ValueError as error:
                    raise ValueError(f"{name}: field {each}: {error}") from None
        if kind in (Follows, Numbers) and values["function"] in SAVABLE and isfunction(values["function"]):
            _check_call(name, **values)
        return kind(**values)


def _check_call(name: str, function: Callable[..., Any], given: tuple[Any, ...], **_: Any) -> None:
    """Check that the arguments of a function of this package fit its annotations."""
    shown, parameters = function.__name__.lstrip("_"), signature(function)
    try:
        bound = parameters.bind(*given).arguments
    except TypeError as error:
        raise ValueError(f"{name}: {shown} {parameters}: {error}") from None
    for each, value in bound.items():
        is_many = parameters.parameters[each].kind is Parameter.VAR_POSITIONAL
        for part in value if is_many else (value,):
            try:
                check_fits(part, hints_of(function)[each])
            except ValueError as error:
                raise ValueError(f"{name}: argument {each} of {shown}: {error}") from None


def _pair(written: Any) -> Any:
    if not isinstance(written, list | tuple) or len(written) != 2:
        raise ValueError(f"expected two values, got {written!r:.200}")
    return written


def _text(written: Any) -> str:
    if not isinstance(written, str):
        raise ValueError(f"expected a text, got {written!r:.200}")
    return written


# -- types of fields ---------------------------------------------------------------------------------------------------


@cache
def hints_of(kind: Any) -> Mapping[str, Any]:
    """The annotations of a class by the names of its fields."""
    return get_type_hints(kind)


def check_fits(value: Any, hint: Any) -> None:
    """Check that a value is of an annotated type; raises ValueError if it is not.

    Any number is a float, as gradients and constants of complex numbers are said so, too; a length is an integer.
    """
    if not _fits(value, hint):
        wanted = hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "")
        raise ValueError(f"expected {wanted}, got {value!r:.200}")


def _fits(value: Any, hint: Any) -> bool:
    if type(value) is hint:
        return True
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin in (Union, UnionType):
        return any(_fits(value, each) for each in arguments)
    if origin is Literal:
        return value in arguments
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        if arguments[1:] == (...,):
            return all(_fits(each, arguments[0]) for each in value)
        return len(value) == len(arguments) and all(map(_fits, value, arguments))
    plain = origin or hint
    if hint in (None, NoneType):
        return value is None
    if plain is float:
        return isinstance(value, int | float | complex | np.number | np.bool_ | Length | Follows)
    if plain is int:
        return isinstance(value, int | np.integer | Length | Follows) and not isinstance(value, bool)
    if plain is bool:
        return isinstance(value, bool | np.bool_)
    if plain is EllipsisType:
        return value is ...
    if plain is Callable:
        return callable(value)
    return isinstance(value, plain) if isinstance(plain, type) else True
