"""The program that compiles routines with numba, in a process of its own: requests on stdin, machine code on stdout.

A message is its length, four bytes, and then that many. A request is JSON: the source, the name of its function and, if
it is Python, the types of its arguments. The answer begins with a byte, 1 for a failure, whose text follows; 0 for
success: then follow the symbol and what the machine code calls, a line of JSON, and an object file.

This file is run by its path: it must not import the package, which takes longer than most routines.
"""

from __future__ import annotations

import json
import math
import os
import signal
import struct
import sys
from typing import Any, BinaryIO

#: What of the C library machine code may call.
_MATHEMATICS = {
    name + kind
    for kind in ("", "f")
    for name in ("exp", "expm1", "log", "log1p", "log2", "pow", "sin", "cos", "tan", "tanh", "atan2", "fmod", "hypot")
}
_HEADER = struct.Struct("<I")
#: Like NumPy: a division by zero is no error, a product and a sum are two roundings.
_OPTIONS: dict[str, Any] = {
    "error_model": "numpy",
    "boundscheck": False,
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}


def send(stream: BinaryIO, message: bytes) -> None:
    """Write one message."""
    stream.write(_HEADER.pack(len(message)) + message)
    stream.flush()


def receive(stream: BinaryIO) -> bytes | None:
    """Read one message; None where the stream ends."""
    header = _read(stream, _HEADER.size)
    return None if header is None else _read(stream, _HEADER.unpack(header)[0])


def _read(stream: BinaryIO, count: int) -> bytes | None:
    found = b""
    while len(found) < count:
        part = stream.read(count - len(found))
        if not part:
            return None
        found += part
    return found


def compile_routine(source: str, name: str, arguments: list[str], address: int) -> tuple[str, list[str], bytes]:
    """Compile one function.

    Args:
        source: Its text; it may use ``np``, ``math`` and ``sqrt``.
        name: Its name.
        arguments: Type of each argument; with ``*`` an array, of which the caller passes the address of the object.
        address: Where an array's object has the address of its elements, counted in pointers.
    Returns:
        The symbol, the names of what the machine code calls, and an object file.
    """
    import numpy as np
    from numba import njit, types

    names: dict[str, Any] = {"np": np, "math": math, "sqrt": _square_root()}
    exec(source, names)  # noqa: S102  the text is the package's own
    inner = njit(forceinline=True, **_OPTIONS)(names[name])
    inner._compiler._customize_flags = _without_aliases
    parameters = [f"a{i}" for i in range(len(arguments))]
    given = [f"{p}[{address}]" if t.endswith("*") else p for p, t in zip(parameters, arguments, strict=True)]
    scope: dict[str, Any] = {"inner": inner}
    exec(f"def entry({', '.join(parameters)}):\n    inner({', '.join(given)})\n", scope)  # noqa: S102
    signature = [
        types.CPointer(types.CPointer(getattr(types, t[:-1]))) if t.endswith("*") else getattr(types, t)
        for t in arguments
    ]
    outer = njit(types.void(*signature), **_OPTIONS)(scope["entry"])
    (compiled,) = outer.overloads.values()
    called = [f.name for f in compiled.library._final_module.functions if f.is_declaration]
    called = [each for each in called if not each.startswith("llvm.")]
    if not _MATHEMATICS.issuperset(called):  # such as Python's functions, which nothing may call without the GIL
        raise ValueError(f"the machine code calls {', '.join(sorted({*called} - _MATHEMATICS))}")
    return compiled.fndesc.llvm_func_name, called, compiled.library._get_compiled_object()


def compile_text(source: str, name: str) -> tuple[str, list[str], bytes]:
    """Compile text in LLVM's language.

    Args:
        source: The text.
        name: Name of its function, the only one that is called from outside.
    Returns:
        As `compile_routine`.
    """
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features().flatten()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=features, opt=3, reloc="pic", codemodel="jitdefault", jit=True
    )
    module = llvm.parse_assembly(source)
    module.verify()
    passes = llvm.create_new_module_pass_manager()
    passes.add_sroa_pass()
    passes.add_instruction_combine_pass()
    passes.add_loop_rotate_pass()
    passes.run(module, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(2)))
    called = [f.name for f in module.functions if f.is_declaration and not f.name.startswith("llvm.")]
    return name, called, machine.emit_object(module)


def _square_root() -> Any:
    """The processor's own, for several numbers at once; numba's calls the C library for each."""
    from numba.core import types
    from numba.extending import intrinsic

    @intrinsic  # type: ignore[untyped-decorator]
    def sqrt(context: Any, x: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            (value,) = arguments
            return builder.call(builder.module.declare_intrinsic("llvm.sqrt", [value.type]), [value])

        return (x(x), emit) if isinstance(x, types.Float) else None

    return sqrt


def _without_aliases(flags: Any) -> Any:
    flags.noalias = True  # no two arrays overlap: else loops of many arrays are not vectorized
    return flags


def main() -> None:
    """Serve requests until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the application's
    if hasattr(os, "nice"):
        os.nice(5)  # the application computes meanwhile
    # Whatever numba says is not an answer.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while (request := receive(sys.stdin.buffer)) is not None:
        try:
            asked = json.loads(request)
            symbol, called, code = (compile_routine if "arguments" in asked else compile_text)(**asked)
        except Exception as error:  # noqa: BLE001  the application says what it was
            send(answers, b"\1" + f"{type(error).__name__}: {error}".encode(errors="replace"))
        else:
            send(answers, b"\0" + json.dumps([symbol, called]).encode() + b"\n" + code)


if __name__ == "__main__":
    main()
