"""Plugin of pytest that runs tests marked `gpu` without one: `python -m pytest -p tests.support.emulated_gpu -m gpu`.

CuPy is the fake that devices are tested with, whose streams run at once what they are given, and kernels are those of
the emulator, compiled by g++. It says nothing of races, nor of time, but finds tests that have rotted. What is imported
stays emulated as long as the process, so tests of both kinds cannot share one.
"""

from __future__ import annotations

import importlib.util
import operator
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
import pytest

from tests.devices.cuda.fake_cupy import FakeArray, FakeCupy, FakeMemory, FakeOutOfMemoryError, FakeStream
from tests.ops.cuda.emulator import Emulator

#: Where `tests/ops/cuda` keeps what g++ has compiled, too.
COMPILED = Path(__file__).parents[2] / ".pytest_cache" / "cuda"
ROOM = 1 << 33


def plain(value: Any) -> Any:
    """NumPy's array of an emulated one; anything else as it is."""
    return value.values if isinstance(value, FakeArray) else value


class EmulatedArray(FakeArray):
    """An array that can be computed with; a view has its owner's memory."""

    def __init__(self, values: Any, device: Any = 0, memory: Any = None, strides: Any = None, base: Any = None) -> None:
        super().__init__(values, device, memory, strides, base)
        self.size, self.ndim, self.itemsize = self._values.size, self._values.ndim, self._values.itemsize
        if base is not None:
            self.data.mem = base.data.mem

    def _derived(self, values: Any) -> EmulatedArray:
        """A view, or an array of its own where NumPy gives one."""
        values = np.asarray(values)
        if values.base is None or not np.may_share_memory(values, self._values):
            return EmulatedArray(np.array(values))
        return EmulatedArray(values, base=self if self.base is None else self.base)

    def __getattr__(self, name: str) -> Any:
        """Methods of NumPy's arrays and `T`, `real`; they give arrays of this kind."""
        if name.startswith("_"):
            raise AttributeError(name)
        found = getattr(self._values, name)
        return (
            (lambda *args, **named: self._derived(found(*args, **named))) if callable(found) else self._derived(found)
        )

    def __getitem__(self, key: Any) -> EmulatedArray:
        return self._derived(self._values[key])

    def __setitem__(self, key: Any, value: Any) -> None:
        MACHINE.launch(lambda: operator.setitem(self._values, key, plain(value)))

    def __len__(self) -> int:
        return len(self._values)

    def __int__(self) -> int:
        return int(self._values)

    def __float__(self) -> float:
        return float(self._values)

    def __iadd__(self, other: Any) -> Self:
        MACHINE.launch(lambda: np.add(self._values, plain(other), out=self._values))
        return self

    def fill(self, value: Any) -> None:
        MACHINE.launch(lambda: self._values.fill(value))

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self, *, dl_device: Any = None, **named: Any) -> Any:
        return self if dl_device is None else np.array(self._values).__dlpack__(dl_device=dl_device, **named)


def _operator(function: Callable[..., Any]) -> Any:
    return lambda *args: EmulatedArray(np.asarray(function(*map(plain, args))))


for _name in ("add", "sub", "mul", "truediv", "neg", "matmul", "ge", "gt"):
    setattr(EmulatedArray, f"__{_name}__", _operator(getattr(operator, _name)))


class _Block(FakeMemory):
    """Memory that is used again for the next array of its size, as CuPy's pool does: addresses recur."""

    def __init__(self, free: list[np.ndarray], size: int) -> None:
        super().__init__(free.pop() if free else np.empty(size, np.uint8))
        self._free = free

    def __del__(self) -> None:
        self._free.append(self.values)


class _Current(threading.local):
    """What is current in a thread."""

    def __init__(self, null: FakeStream) -> None:
        self.stacks, self.entered = [[null]], []


class EmulatedCupy(FakeCupy):
    """A machine with one device."""

    ndarray = EmulatedArray

    def __init__(self, emulator: Emulator) -> None:
        self._lock = threading.RLock()
        self._own: Any = SimpleNamespace()
        super().__init__(devices=1)
        self._own = _Current(self.stacks[0][0])
        self.__spec__ = importlib.util.spec_from_loader("cupy", None)
        self.cuda.set_allocator = lambda allocator: None
        self.cuda.compiler = SimpleNamespace(_compile_module_with_cache=lambda *args, **named: None)
        self._compiled: set[Any] = set()
        self._queried: set[int] = set()
        self._free: dict[int, list[np.ndarray]] = {}
        real = emulator.cupy
        self.RawKernel = partial(_Kernel, real.RawKernel)
        self.ElementwiseKernel = partial(_Kernel, real.ElementwiseKernel)
        for name in ("add", "copyto", "subtract"):
            setattr(self, name, partial(self._launched, getattr(real, name)))
        for name in ("dot", "matmul", "argsort", "sort", "cumsum", "cumprod", "nonzero"):
            setattr(self, name, partial(self._computed, getattr(real, name)))

    # -- streams that run at once -----------------------------------------------------------------------------------

    @property
    def stacks(self) -> Any:
        return self._own.stacks

    @stacks.setter
    def stacks(self, stacks: Any) -> None:
        self._own.stacks = stacks

    @property
    def entered(self) -> Any:
        return self._own.entered

    @entered.setter
    def entered(self, entered: Any) -> None:
        self._own.entered = entered

    def added(self) -> None:
        self.run()

    def run(self, *streams: FakeStream) -> None:
        with self._lock:
            super().run(*streams)

    def launch(self, work: Callable[[], object]) -> None:
        """Have the current stream do it."""
        with self._lock:
            self.stacks[0][-1].launch(work)

    def compile(self, what: Any, *args: Any) -> None:
        """As CuPy, compile a kernel at its first call with these types, in the thread that calls it."""
        types = [getattr(arg, "dtype", type(arg)) for arg in args]
        key = (what, *types)
        if key not in self._compiled:
            self.cuda.compiler._compile_module_with_cache(what)
            self._compiled.add(key)

    def eventQuery(self, pointer: int) -> int:  # noqa: N802
        """The first look at an event comes before it has passed: who looks must look again."""
        event = self._event(pointer)
        key = pointer << 32 | event.recorded
        if event.recorded and key not in self._queried:
            self._queried.add(key)
            return self._ask(is_done=False)
        return super().eventQuery(pointer)

    # -- arrays -----------------------------------------------------------------------------------------------------

    def empty(self, shape: Any, dtype: Any = float) -> EmulatedArray:
        shape, dtype = (shape,) if isinstance(shape, int) else tuple(shape), np.dtype(dtype)
        size = -(-int(np.prod(shape, dtype=object)) * dtype.itemsize // 512) * 512
        if size > ROOM:
            raise FakeOutOfMemoryError
        block = _Block(self._free.setdefault(size, []), size)
        block.values[...] = 0xFF
        array = EmulatedArray(np.ndarray(shape, dtype, block.values))
        array.data.mem = block
        return array

    def full(self, shape: Any, value: Any, dtype: Any = float) -> EmulatedArray:
        return EmulatedArray(np.full(shape, value, dtype))

    def zeros(self, shape: Any, dtype: Any = float) -> EmulatedArray:
        return EmulatedArray(np.zeros(shape, dtype))

    def arange(self, *args: Any, **named: Any) -> EmulatedArray:
        return EmulatedArray(np.arange(*args, **named))

    def asarray(self, value: Any, dtype: Any = None) -> EmulatedArray:
        return value if isinstance(value, EmulatedArray) else EmulatedArray(np.array(value, dtype))

    def asnumpy(self, value: Any) -> np.ndarray:
        return np.array(plain(value))

    def broadcast_to(self, value: EmulatedArray, shape: Any) -> EmulatedArray:
        return value._derived(np.broadcast_to(value.values, shape))

    def from_dlpack(self, value: Any) -> Any:
        return value.__dlpack__()

    def _launched(self, function: Callable[..., Any], *args: Any, out: Any = None, **named: Any) -> Any:
        if out is not None:
            named["out"] = plain(out)
        self.compile(function, *args, out)
        found: list[Any] = []
        self.launch(lambda: found.append(function(*map(plain, args), **named)))
        return out if out is not None or found in ([], [None]) else EmulatedArray(np.asarray(found[0]))

    def _computed(self, function: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """What calls a library that refuses to be captured, or waits for the stream."""
        if self.stacks[0][-1].capturing is not None:
            raise NotImplementedError("cannot be called during stream capture")
        named = {name: plain(value) for name, value in named.items()}
        found = function(*map(plain, args), **named)
        return tuple(map(EmulatedArray, found)) if isinstance(found, tuple) else EmulatedArray(np.asarray(found))


class _Kernel:
    """A kernel of the emulator that is launched on the current stream."""

    def __init__(self, kind: Callable[..., Any], *args: Any, **named: Any) -> None:
        self._kernel = kind(*args, **named)

    def compile(self) -> None: ...

    def __call__(self, *args: Any) -> None:
        args = tuple(tuple(map(plain, arg)) if isinstance(arg, tuple) else plain(arg) for arg in args)
        MACHINE.compile(self, *args[-1] if isinstance(args[-1], tuple) else args)
        MACHINE.launch(lambda: self._kernel(*args))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what needs kernels that take their time."""
    for item in items:
        if "slow_copy" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.skip(reason="kernels of an emulated GPU have ended when they are launched"))


COMPILED.mkdir(mode=0o700, parents=True, exist_ok=True)
MACHINE = EmulatedCupy(Emulator(COMPILED))
sys.modules["cupy"] = MACHINE  # type: ignore[assignment]
