"""The library libdnnl: where it is, whether it will do, and what is used of its C interface.

All of that is in version 3.2 and later ones of its major version, which keep their binary interface. Names are those of
its documentation, without ``dnnl_``: https://uxlfoundation.github.io/oneDNN
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import byref, c_char_p, c_float, c_int, c_int64, c_size_t, c_uint, c_void_p
from ctypes.util import find_library
from functools import cache
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from actorflow.core import IS_COMPILED, check_source
from actorflow.errors import ActorflowError, MissingExtraError

#: Path of the library, in place of the one that is found.
VARIABLE = "ACTORFLOW_ONEDNN"
_OLDEST, _MAJOR = (3, 2), 3
#: Packages of PyPI that bring the library; Conda's is in the environment's folder.
_PACKAGES = ("onednn-cpu-gomp", "onednn-cpu-iomp", "onednn")
_FILES = {"darwin": "libdnnl.3.dylib", "win32": "dnnl.dll"}
FILE = _FILES.get(sys.platform, "libdnnl.so.3")
#: Runtimes of the processor that a library may be made with: one thread, OpenMP. Others keep threads of their own.
_RUNTIMES = {1: "one thread", 2: "OpenMP"}
#: How long threads of OpenMP wait in a loop: of GNU's in turns of it, some 300 us; of Intel's in ms.
_WAITING = {"GOMP_SPINCOUNT": "10000", "KMP_BLOCKTIME": "0"}
_FLOAT32, _ANY = 3, 1
SRC, SRC_1, SRC_2, DST, DST_1, DST_2, WEIGHTS, WEIGHTS_1, BIAS, SCRATCHPAD = 1, 2, 3, 17, 18, 19, 33, 34, 41, 80
DIFF_SRC, DIFF_DST, DIFF_WEIGHTS, POST_OP = 129, 145, 161, 32768
MEAN, VARIANCE, SCALE, SHIFT, DIFF_SCALE, DIFF_SHIFT = 49, 50, 51, 52, 255, 256
FORWARD_TRAINING, FORWARD_INFERENCE = 64, 96
_UNIMPLEMENTED, _INVALID = 3, 2
# Queries: of the number of inputs, of the name of the code, and of the memory of an argument.
_COUNT_OF_INPUTS, _IMPLEMENTATION, _ARGUMENT = 3, 8, 255
_STRIDES, _COUNT_OF_AXES, _COUNT_OF_BLOCKS, _BLOCKS, _BLOCKED_AXES = 14, 256, 263, 264, 265  # queries of a memory
_MOST_AXES = 12

#: Types of the arguments of each function: p a pointer, l an int of 64 bits, n one of C, u an unsigned one, f a float,
#: z a size_t.
_FUNCTIONS = {
    "engine_create": "pnz",
    "stream_create": "ppu",
    "memory_create": "pppp",
    "memory_destroy": "p",
    "memory_set_data_handle": "pp",
    "memory_desc_create_with_strides": "pnpnp",
    "memory_desc_create_with_tag": "pnpnn",
    "memory_desc_destroy": "p",
    "memory_desc_query": "pnp",
    "post_ops_create": "p",
    "post_ops_append_eltwise": "pnff",
    "post_ops_append_binary": "pnp",
    "post_ops_destroy": "p",
    "primitive_attr_create": "p",
    "primitive_attr_set_post_ops": "pp",
    "primitive_attr_set_scratchpad_mode": "pn",
    "primitive_attr_destroy": "p",
    "primitive_desc_query": "pnnp",
    "primitive_desc_destroy": "p",
    "primitive_create": "pp",
    "primitive_execute": "ppnp",
    "primitive_destroy": "p",
    "binary_primitive_desc_create": "ppnpppp",
    "eltwise_forward_primitive_desc_create": "ppnnppffp",
    "pooling_forward_primitive_desc_create": "ppnnpppppppp",
    "pooling_backward_primitive_desc_create": "ppnppppppppp",
    "reorder_primitive_desc_create": "pppppp",
    "softmax_forward_primitive_desc_create": "ppnnppnp",
    "convolution_forward_primitive_desc_create": "ppnnppppppppp",
    "convolution_backward_data_primitive_desc_create": "ppnppppppppp",
    "convolution_backward_weights_primitive_desc_create": "ppnpppppppppp",
    "inner_product_forward_primitive_desc_create": "ppnppppp",
    "lrn_forward_primitive_desc_create": "ppnnpplfffp",
    "resampling_forward_primitive_desc_create": "ppnnpppp",
    "layer_normalization_forward_primitive_desc_create": "ppnpppfup",
    "layer_normalization_backward_primitive_desc_create": "ppnppppfupp",
    "batch_normalization_forward_primitive_desc_create": "ppnppfup",
    "batch_normalization_backward_primitive_desc_create": "ppnpppfupp",
    "vanilla_rnn_forward_primitive_desc_create": "ppnnnpppppppuffp",
    "lstm_forward_primitive_desc_create": "ppnnpppppppppppup",
    "gru_forward_primitive_desc_create": "ppnnpppppppup",
    "lbr_gru_forward_primitive_desc_create": "ppnnpppppppup",
}
_TYPES = {"p": c_void_p, "l": c_int64, "n": c_int, "u": c_uint, "f": c_float, "z": c_size_t}


class UnsupportedError(Exception):
    """The library has nothing for that, or nothing that is fast."""


class _Version(ctypes.Structure):
    _fields_ = (
        ("major", c_int),
        ("minor", c_int),
        ("patch", c_int),
        ("hash", c_char_p),
        ("cpu_runtime", c_uint),
        ("gpu_runtime", c_uint),
    )


class Handle:
    """An object of the library, which goes when nothing refers to it.

    Attributes:
        pointer: Its address.
    """

    __slots__ = ("_destroy", "pointer")

    def __init__(self, pointer: int, destroy: Any) -> None:
        self.pointer = pointer
        self._destroy = destroy

    def __del__(self) -> None:
        self._destroy(self.pointer)


class Library:
    """The loaded library.

    Attributes:
        path: Where it was found: a path, or the name that the system knows it by.
        version: Its version, as text.
        calls: The module ``calls.pyx``, which calls its primitives.
    """

    def __init__(self, path: str, loaded: ctypes.CDLL) -> None:
        self.path = path
        self._functions = {name: _function(loaded, name, kinds) for name, kinds in _FUNCTIONS.items()}
        found = _version(loaded)
        self.version = f"{found.major}.{found.minor}.{found.patch}"
        self._memory = loaded.dnnl_primitive_desc_query_md
        self._memory.restype, self._memory.argtypes = c_void_p, [c_void_p, c_int, c_int]
        self._size = loaded.dnnl_memory_desc_get_size
        self._size.restype, self._size.argtypes = c_size_t, [c_void_p]
        self.set_threads = _optional(loaded, "omp_set_num_threads", c_int)
        self.get_threads = _optional(loaded, "omp_get_max_threads")
        engine, stream = c_void_p(), c_void_p()
        self.call("engine_create", byref(engine), 1, 0)
        self.call("stream_create", byref(stream), engine, 1)
        self._engine = engine
        calls: Any = import_module("actorflow.ops.onednn.calls")
        check_source(calls)
        calls.use(
            {name: _address(self._functions[name]) for name in self._functions}
            | {"omp_set_num_threads": _address(self.set_threads), "omp_get_max_threads": _address(self.get_threads)}
            | {"engine": engine.value, "stream": stream.value}
        )
        self.calls = calls

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function.

        Raises:
            UnsupportedError: if the library has nothing for these arguments.
            ActorflowError: if it fails otherwise.
        """
        given = [each.pointer if isinstance(each, Handle) else each for each in arguments]
        status = self._functions[name](*given)
        if status in (_UNIMPLEMENTED, _INVALID):
            raise UnsupportedError(name)
        if status:
            raise ActorflowError(f"oneDNN {self.version}: {name} has failed with status {status}")

    def make(self, name: str, destroyed_by: str, *arguments: Any) -> Handle:
        """An object that a function makes, and writes the address of to its first argument."""
        made = c_void_p()
        self.call(name, byref(made), *arguments)
        assert made.value is not None
        return Handle(made.value, self._functions[destroyed_by])

    @contextmanager
    def threads(self, count: int) -> Iterator[None]:
        """Set the number of OpenMP's threads for primitives that this thread makes within the block, where it has any.

        A primitive is described, compiled and called for as many as there were when it was made.
        """
        if self.set_threads is None:
            yield
            return
        before = self.get_threads()
        self.set_threads(count)
        try:
            yield
        finally:
            self.set_threads(before)

    def memory(self, shape: Sequence[int], strides: Sequence[int] | None = None) -> Handle:
        """Descriptor of a float32 array by its strides, or in the order that a primitive likes best."""
        name, order = ("tag", _ANY) if strides is None else ("strides", dims(strides))
        made = f"memory_desc_create_with_{name}"
        return self.make(made, "memory_desc_destroy", len(shape), dims(shape), _FLOAT32, order)

    def descriptor(self, kind: str, *arguments: Any, slow: tuple[str, ...] = ("ref", "simple")) -> Handle:
        """Descriptor of a primitive, computed by code made for this processor.

        Args:
            kind, arguments: Name of the function that makes it, without its end, and what that takes.
            slow: How names of code begin that is not made for the processor.
        Raises:
            UnsupportedError: if there is none.
        """
        given = (self._engine, *arguments) if kind != "reorder" else arguments
        made = self.make(f"{kind}_primitive_desc_create", "primitive_desc_destroy", *given)
        if kind != "reorder" and self.implementation(made).startswith(slow):
            raise UnsupportedError(kind)
        return made

    def implementation(self, descriptor: Handle) -> str:
        """Name of the library's code for a primitive."""
        found = c_char_p()
        self.call("primitive_desc_query", descriptor, _IMPLEMENTATION, 0, byref(found))
        assert found.value is not None
        return found.value.decode()

    def count_of_inputs(self, descriptor: Handle) -> int:
        """Number of arrays that a primitive reads."""
        found = c_int()
        self.call("primitive_desc_query", descriptor, _COUNT_OF_INPUTS, 0, byref(found))
        return found.value

    def memory_of(self, descriptor: Handle, argument: int) -> int:
        """Address of the descriptor of the memory of an argument, which lives as long as that of the primitive."""
        found: int = self._memory(descriptor.pointer, _ARGUMENT, argument)
        return found

    def order_of(self, memory: int) -> tuple[int, ...]:
        """The order in memory that a descriptor says: strides, and blocks and their axes, as far as there are some."""
        count, found = c_int(), [ctypes.POINTER(c_int64)() for _ in range(3)]
        self.call("memory_desc_query", memory, _COUNT_OF_BLOCKS, byref(count))
        axes = c_int()
        self.call("memory_desc_query", memory, _COUNT_OF_AXES, byref(axes))
        for query, each in zip((_STRIDES, _BLOCKS, _BLOCKED_AXES), found, strict=True):
            self.call("memory_desc_query", memory, query, byref(each))
        strides, blocks, blocked = found
        return (*strides[: axes.value], *blocks[: count.value], *blocked[: count.value])

    def size_bytes(self, memory: int | Handle) -> int:
        """Bytes of an array of such a descriptor."""
        found: int = self._size(memory.pointer if isinstance(memory, Handle) else memory)
        return found

    def reorder(self, source: int | Handle, target: int | Handle) -> Handle:
        """Descriptor of a copy from one order to another."""
        return self.descriptor("reorder", source, self._engine, target, self._engine, None)

    def attributes(self, post_ops: Sequence[tuple[Any, ...]] = ()) -> Handle:
        """Attributes of a primitive, to which each call gives its scratchpad.

        Args:
            post_ops: Of each, what follows, in order: (kind, alpha, beta), or (kind, descriptor of what is read).
        """
        made = self.make("primitive_attr_create", "primitive_attr_destroy")
        self.call("primitive_attr_set_scratchpad_mode", made, 1)
        if post_ops:
            chain = self.make("post_ops_create", "post_ops_destroy")
            for each in post_ops:
                self.call(f"post_ops_append_{'binary' if len(each) == 2 else 'eltwise'}", chain, *each)
            self.call("primitive_attr_set_post_ops", made, chain)
        return made

    def primitive(self, descriptor: Handle, arguments: Sequence[int]) -> Any:
        """A primitive, called with the arrays of these arguments. Its code is compiled here."""
        made = self.make("primitive_create", "primitive_destroy", descriptor)
        given = tuple([(argument, self.memory_of(descriptor, argument)) for argument in arguments])
        return self.calls.Primitive(made.pointer, given, (made, descriptor))


def dims(values: Sequence[int]) -> Any:
    """Lengths, strides and the like, as the library takes them."""
    return (c_int64 * _MOST_AXES)(*values)


def _function(loaded: ctypes.CDLL, name: str, kinds: str) -> Any:
    function = getattr(loaded, f"dnnl_{name}")
    function.restype, function.argtypes = c_int, [_TYPES[kind] for kind in kinds]
    return function


def _optional(loaded: ctypes.CDLL, name: str, *kinds: Any) -> Any:
    """A function of the library's OpenMP; None without one."""
    try:
        function = getattr(loaded, name)
    except AttributeError:
        return None
    function.restype, function.argtypes = (None if kinds else c_int), kinds
    return function


def _address(function: Any) -> int:
    return ctypes.cast(function, c_void_p).value or 0 if function is not None else 0


def candidates() -> Iterator[str]:
    """Where the library may be, best first: what `VARIABLE` says, alone; packages, the environment, the system."""
    given = os.environ.get(VARIABLE)
    if given:
        yield given
        return
    for package in _PACKAGES:
        try:
            files = metadata.files(package) or []
        except metadata.PackageNotFoundError:
            continue
        yield from [str(file.locate()) for file in files if file.name == FILE]
    inside = Path(sys.prefix, "Library", "bin", FILE) if sys.platform == "win32" else Path(sys.prefix, "lib", FILE)
    if inside.exists():
        yield str(inside)
    yield FILE
    found = find_library("dnnl") if sys.platform != "linux" else None  # there it asks a compiler, for nothing more
    if found:
        yield found


@cache
def libdnnl() -> Library:
    """The library, loaded once.

    Raises:
        MissingExtraError: if there is none, or none that will do; the message says which were found.
        ActorflowError: if the one that `VARIABLE` names will not do.
    """
    if not IS_COMPILED:
        raise _missing("it is called by compiled code, and actorflow was installed without (see: actorflow doctor)")
    if os.environ.get(VARIABLE) == "0":
        raise _missing(f"{VARIABLE}=0")
    problems = []
    for path in candidates():
        try:
            with _resting():
                loaded = ctypes.CDLL(path)
        except OSError as error:
            if path != FILE or os.environ.get(VARIABLE):
                problems.append(f"{path}: {error}")
            continue
        problem = _problem(loaded)
        if problem is None:
            return Library(path, loaded)
        problems.append(f"{path}: {problem}")
    if os.environ.get(VARIABLE):
        raise ActorflowError(f"{VARIABLE}: {'; '.join(problems)}")
    raise _missing("; ".join(problems))


@contextmanager
def _resting() -> Iterator[None]:
    """Have threads of an OpenMP that is loaded within the block soon sleep while they wait, unless a user says else.

    They would wait in a loop for some ms, on cores that other work needs. It looks for that as it is loaded, only.
    """
    new = {} if "OMP_WAIT_POLICY" in os.environ else {k: v for k, v in _WAITING.items() if k not in os.environ}
    os.environ.update(new)
    try:
        yield
    finally:
        for name in new:
            del os.environ[name]


def _missing(why: str) -> MissingExtraError:
    text = f"kernel library 'onednn' needs oneDNN {_OLDEST[0]}.{_OLDEST[1]}: pip install 'actorflow[onednn]'"
    return MissingExtraError(f"{text}{': ' if why else ''}{why}", name="libdnnl")


def _version(loaded: ctypes.CDLL) -> Any:
    function = loaded.dnnl_version
    function.restype = ctypes.POINTER(_Version)
    return function()[0]


def _problem(loaded: ctypes.CDLL) -> str | None:
    """Why a library will not do; None if it will."""
    try:
        version = _version(loaded)
    except AttributeError:
        return "it is not oneDNN"
    found = (version.major, version.minor)
    if found < _OLDEST or found[0] != _MAJOR:
        return f"it is version {found[0]}.{found[1]}, expected {_OLDEST[0]}.{_OLDEST[1]} or later, below {_MAJOR + 1}"
    if version.cpu_runtime not in _RUNTIMES:
        return f"its threads are of runtime {version.cpu_runtime}, expected OpenMP's (2) or none (1)"
    return None
