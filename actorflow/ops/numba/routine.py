"""Functions that numba compiles, from their text."""

from __future__ import annotations

from collections.abc import Sequence

from actorflow.errors import DeviceError
from actorflow.ops.numba.compile_queue import compile_queue
from actorflow.ops.numba.machine import Function, address_of


class Routine:
    """A function without a result, compiled on the side: until then there is none, and NumPy has to do.

    Machine code is kept on disk, so that later processes have it at once. It computes what NumPy does, bit for bit,
    for ``+ - * /``, comparisons and square roots: no product is merged with a sum.

    Args:
        source: Text of the function, which may use ``np``, ``math``, and ``sqrt``, NumPy's square root. To it an array
            is its elements in the order of memory, ``x[i]`` with one index.
        name: Name of the function in it.
        arguments: Type of each argument: ``"intp"``, ``"float32"``, ``"float64"``, or the elements' type and ``*`` for
            an array, as in ``"float32*"`` and ``"int64*"``.
        is_python: Whether the text is Python's; else it is LLVM's own (`actorflow.ops.numba.assembly`), which may merge
            products with sums.

    `function` is called with numbers and, for an array, ``id(array)``: the array must be contiguous in C order and
    aligned, of that type, and alive. Nothing checks any of it, nor indices. No two arrays may overlap, but an array may
    be given twice where each element is read before it is written, at the same index and no other. The call releases
    the GIL.

    Attributes:
        function: What to call; None until it is there. To ask for it begins the compilation; it never waits for one,
            and on an event loop's thread for nothing.
        error: Why there will be none; None while there may be.
    """

    __slots__ = ("__weakref__", "_address", "_function", "arguments", "asked", "error", "is_python", "name", "source")

    def __init__(self, source: str, name: str, arguments: Sequence[str], *, is_python: bool = True) -> None:
        self.source = source
        self.name = name
        self.arguments = tuple(arguments)
        self.is_python = is_python
        self.error: DeviceError | None = None
        self.asked = False
        self._function: Function | None = None
        self._address = 0

    @property
    def function(self) -> Function | None:
        if not self.asked:
            compile_queue.ask(self)
        return self._function

    @function.setter
    def function(self, made: Function) -> None:
        self._function = made

    def wait(self) -> Function:
        """Wait for the function.

        Raises:
            DeviceError: if it cannot be compiled.
        """
        if self._function is None:
            compile_queue.ask(self)
            compile_queue.wait((self,))
            assert self._function is not None
        return self._function

    @property
    def address(self) -> int:
        """Address of the function, for other machine code; 0 until it is there."""
        if not self._address and self.function is not None:
            self._address = address_of(self.function)
        return self._address


def compiled() -> None:
    """Wait until all routines that are being compiled are compiled.

    Raises:
        DeviceError: if one of them cannot be.
    """
    compile_queue.wait()
