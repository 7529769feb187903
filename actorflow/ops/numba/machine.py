"""Machine code in this process, loaded by llvmlite, and how it is told where an array's elements are."""

from __future__ import annotations

import ctypes
import json
import threading
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from actorflow.threads import held_at_fork

Function = Callable[..., Any]

_SCALARS = {"intp": ctypes.c_ssize_t, "float32": ctypes.c_float, "float64": ctypes.c_double}
#: One thread at a time uses LLVM, and none while another one forks.
_lock = held_at_fork(threading.Lock())
#: What functions are part of, which must live as long as the process.
_engines: list[Any] = []
#: Where functions leave a result and an error, of which they have none.
_nowhere = ctypes.create_string_buffer(32)


class Processor(NamedTuple):
    """What machine code is made for: name and features, as LLVM has them."""

    name: str
    features: str


@cache
def address_index() -> int | None:
    """Where an array's object has the address of its elements, counted in pointers; None if that is not to be found.

    ``array.ctypes.data`` takes 0.9 us, and a kernel has several arrays; ``id(array)`` takes nothing.
    """
    width, found = ctypes.sizeof(ctypes.c_void_p), None
    for array in (np.zeros(3, np.float32), np.zeros((2, 5)), np.zeros(7, np.uint8)[1:]):
        words = (ctypes.c_size_t * (array.__sizeof__() // width)).from_address(id(array))
        where = [i for i in range(2, min(len(words), 8)) if words[i] == array.ctypes.data]
        if len(where) != 1 or found not in (None, where[0]):
            return None
        found = where[0]
    return found


@cache
def processor() -> Processor:
    """This machine's processor."""
    with _lock:
        import llvmlite.binding as llvm

        return Processor(llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten())


def load(code: bytes, arguments: Sequence[str]) -> Function:
    """The function of what the compiler has answered.

    Raises:
        RuntimeError: if LLVM does not take it, or it calls what this process does not have.
    """
    symbols, _, code = code.partition(b"\n")
    symbol, called = json.loads(symbols)
    this = processor()
    with _lock:
        import llvmlite.binding as llvm

        missing = [name for name in called if not llvm.address_of_symbol(name)]
        if missing:  # LLVM would end the process
            raise RuntimeError(f"this process has no {', '.join(missing)}")
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        target = llvm.Target.from_default_triple().create_target_machine(cpu=this.name, features=this.features)
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target)
        engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        engine.finalize_object()
        address = engine.get_function_address(symbol)
        if not address:
            raise RuntimeError(f"the machine code has no {symbol}")
        _engines.append(engine)
    pointer = ctypes.c_void_p
    types: list[Any] = [pointer if each.endswith("*") else _SCALARS[each] for each in arguments]
    function = ctypes.CFUNCTYPE(ctypes.c_int32, pointer, pointer, *types)(address)
    here = ctypes.addressof(_nowhere)
    return partial(function, here, here + ctypes.sizeof(pointer))


def address_of(function: Function) -> int:
    """The address of a function that `load` gave. Machine code calls it with two null pointers before the arguments."""
    return ctypes.cast(function.func, ctypes.c_void_p).value or 0  # type: ignore[attr-defined]
