"""Registration of the library's kernels: a primitive is made when a step first runs, and what it cannot do is left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache, partial, wraps
from itertools import accumulate
from math import inf
from operator import mul
from typing import Any, Protocol

import numpy as np

import actorflow.ops.cpu  # noqa: F401  registers NumPy's kernels
from actorflow.core import clock_ns
from actorflow.devices.team import Worth, team
from actorflow.ops import registry
from actorflow.ops.cpu.buffers import Array, plain, scratch_bytes
from actorflow.ops.cpu.kept import kept
from actorflow.ops.onednn.library import DST, SCRATCHPAD, SRC, WEIGHTS, Handle, UnsupportedError, libdnnl
from actorflow.ops.operation import Operation
from actorflow.spec import TensorSpec

LIBRARY = "onednn"
#: Calls of each kind of operation that are kept.
_MOST_SHARED = 256
#: Least time on one thread of a call that several share: they begin and end together, which takes 5 to 100 us.
SHARED_NS = 100_000
#: Calls of one thread at most, after some on several threads that were not faster.
_LONGEST_PAUSE = 63
#: How the time of one thread is known: less exactly after each call of several, and no more than so much longer if it
#: was another time, as the thread may have been interrupted.
_AGED, _ODD = 0.998, 1.25
#: Bytes of a line of the cache, at which vectors are best to begin.
_LINE = 64


class Call(Protocol):
    """Computes a step: called as the function of a kernel is.

    Attributes:
        direct: A `Direct` of ``calls.pyx`` for calls whose weights are those of the call before; None as long as there
            is none.
    """

    direct: Any

    def __call__(self, operation: Any, inputs: list[Array], outputs: list[Array]) -> None: ...


#: Makes that for inputs of some types; raises `UnsupportedError`.
Make = Callable[[Any, Sequence[TensorSpec]], Call]


def kernel(
    operation: type[Operation],
    dtypes: Sequence[str] = ("float32",),
    *,
    keeps: bool = False,
    fits: Callable[[Any, Sequence[TensorSpec]], bool] | None = None,
    **options: Any,
) -> Callable[[Make], Make]:
    """Register what makes a step's call as a kernel, with other options; where it is unsupported, NumPy's computes.

    Where ``fits`` says so by the operation and the types of the inputs, that is known as the step is bound, and NumPy's
    is bound to it.

    The library compiles a primitive as it is made, which takes up to some ms. It is made in the first call, which is on
    a lane's thread, as nobody knows yet how long it takes, and not on the loop, where programs are built.
    """

    def register(make: Make) -> Make:
        def fitting(operation: Any, specs: Sequence[TensorSpec]) -> Call:
            if fits is not None and not fits(operation, specs):
                raise UnsupportedError("arrays of another kind")
            return make(operation, specs)

        # Where nothing is kept of weights, all equal operations have one call.
        shared = lru_cache(_MOST_SHARED)(partial(_made, fitting))

        def made(operation: Any, specs: Sequence[TensorSpec]) -> Call:
            if keeps:
                return kept(operation).made((LIBRARY, *specs), lambda: _made(fitting, operation, *specs))
            return shared(operation, *specs)

        def bind(operation: Any, specs: Sequence[TensorSpec]) -> Callable[..., None] | registry.Kernel:
            if fits is not None and not fits(operation, specs):
                return others(operation, specs[0].dtype).bound(operation, specs)
            found: Callable[..., None] = libdnnl().calls.Bound(lambda operation: made(operation, specs))
            return found

        @registry.kernel(operation, library=LIBRARY, dtypes=dtypes, keeps=keeps, bind=bind, **options)
        @wraps(make)
        def compute(operation: Any, inputs: list[Array], outputs: list[Array]) -> None:
            made(operation, [TensorSpec(x.shape, x.dtype) for x in inputs])(operation, inputs, outputs)

        return make

    return register


def _made(make: Make, operation: Any, *specs: TensorSpec) -> Call:
    outputs = operation.infer(*specs)
    if all(spec.size for spec in (*specs, *outputs)):
        try:
            with libdnnl().threads(1):
                return make(operation, specs)
        except UnsupportedError:
            pass
    return Indirect(others(operation, specs[0].dtype).function)


class Indirect:
    """A step that a function computes, and never a primitive alone."""

    direct = None

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function

    def __call__(self, operation: Any, inputs: list[Array], outputs: list[Array]) -> None:
        self._function(operation, inputs, outputs)


def others(operation: Operation, dtype: np.dtype[Any]) -> registry.Kernel:
    """NumPy's kernel."""
    return registry.find_kernel(operation, "cpu", dtype)


def memory(size_bytes: int) -> Array:
    """Memory that begins where a line of the cache does."""
    found = np.empty(size_bytes + _LINE, np.uint8)
    start = -found.ctypes.data % _LINE
    return found[start : start + size_bytes]


class Compute:
    """A primitive and its scratchpad, on the thread that calls it.

    Args:
        descriptor: The primitive's descriptor.
        arguments: Numbers of the arguments, in the order in which calls give their arrays.
    """

    def __init__(self, descriptor: Handle, arguments: Sequence[int]) -> None:
        found = libdnnl()
        self.descriptor = descriptor
        size_bytes = found.size_bytes(found.memory_of(descriptor, SCRATCHPAD))
        self._scratch = partial(scratch_bytes, "onednn", size_bytes) if size_bytes else None
        self._primitive = found.primitive(descriptor, [*arguments, SCRATCHPAD] if size_bytes else arguments)

    def __call__(self, *arrays: Array) -> None:
        if self._scratch is None:
            self._primitive(*arrays)
        else:
            self._primitive(*arrays, self._scratch())

    def directly(
        self,
        order: Sequence[Any],
        expected: Sequence[tuple[int, Array]] = (),
        divides: Callable[[], bool] | None = None,
    ) -> Any:
        """A `Direct` of ``calls.pyx``."""
        return libdnnl().calls.Direct(self._primitive, tuple(order), tuple(expected), self._scratch, divides)


class Shared:
    """A primitive for one thread, and the same for several, which takes part of its cores where there are idle ones.

    It does if the bits are the same, which is looked at once, and as long as that is faster: threads of OpenMP wait for
    each other, however long the system has given a core to another program.

    Args:
        describe: Gives the primitive's descriptor, for a weight in some order of memory where there is one.
        arguments: Numbers of the arguments, that of the weight second.
        result: Position of the result among its arrays.
        work_ns: Estimated time of one thread.
        any_weight: Descriptor of the weight as a primitive likes it best.

    Attributes:
        alone: The primitive for one thread.
        weight: Descriptor of the weight as that one likes it, in which it is given to all.
    """

    def __init__(
        self,
        describe: Callable[..., Handle],
        arguments: Sequence[int],
        result: int,
        work_ns: float,
        any_weight: Handle | None = None,
    ) -> None:
        self._describe, self._arguments, self._result, self._any_weight = describe, arguments, result, any_weight
        self.alone = Compute(describe() if any_weight is None else describe(any_weight), arguments)
        self.weight = libdnnl().memory_of(self.alone.descriptor, WEIGHTS) if any_weight is not None else 0
        self._is_long = work_ns >= SHARED_NS and libdnnl().set_threads is not None
        #: By the number of threads; None where the bits are others.
        self._together: dict[int, Callable[..., None] | None] = {}
        self._worth = Worth(_LONGEST_PAUSE)
        self._alone_ns = inf

    def __call__(self, *arrays: Array) -> None:
        threads = team.threads if self._is_long else 1
        if threads == 1:
            self.alone(*arrays)
            return
        if self._alone_ns < inf and threads not in self._together:  # in the second call: some steps have but one
            self._together[threads] = self._tried(threads, arrays)
            return
        together, start = self._together.get(threads), clock_ns()
        if together is not None and self._worth.may_spread():
            with team.at_work(threads):
                together(*arrays)
            self._worth.judge(clock_ns() - start, self._alone_ns)
            self._alone_ns *= _AGED  # a machine may become slower or faster
        else:
            self.alone(*arrays)
            self._alone_ns = min(clock_ns() - start, _ODD * self._alone_ns)

    def directly(self, order: Sequence[Any], expected: Sequence[tuple[int, Array]] = ()) -> Any:
        """A `Direct` of ``calls.pyx``, which is for one thread."""
        return self.alone.directly(order, expected, (lambda: team.threads > 1) if self._is_long else None)

    def _tried(self, threads: int, arrays: Sequence[Array]) -> Callable[..., None] | None:
        """Compute, on one thread and on several; the primitive for those, if the bits are the same."""
        with libdnnl().threads(threads):
            made = self._made()
        others = [*arrays]
        others[self._result] = np.empty_like(arrays[self._result])  # another one, too, where an input is overwritten
        made(*others)
        self.alone(*arrays)
        return made if others[self._result].tobytes() == arrays[self._result].tobytes() else None

    def _made(self) -> Callable[..., None]:
        """The primitive for as many threads as there are, called with a weight in the order that one thread likes."""
        if self._any_weight is None:
            return Compute(self._describe(), self._arguments)
        with suppress(UnsupportedError):
            return Compute(self._describe(self.weight), self._arguments)
        compute = Compute(self._describe(self._any_weight), self._arguments)
        reorder = Reorder(self.weight, libdnnl().memory_of(compute.descriptor, WEIGHTS))
        known: list[tuple[Any, Any]] = [(None, None)]

        def call(x: Array, weight: Array, *arrays: Array) -> None:
            found = known[0]  # a frame on another lane may have other weights
            if weight is not found[0]:
                found = known[0] = weight, reorder(weight)
            compute(x, found[1], *arrays)

        return call


class Plain:
    """Calls of a primitive in one step, whose arrays are the step's inputs and its output.

    Args:
        describe: Gives the primitive's descriptor.
        arguments: Numbers of the arguments, those of the outputs behind those of the inputs.
        work_ns: Estimated time of one thread.
        outputs: Number of the outputs.
        order: Positions of the inputs among the step's, if they are others.
    """

    def __init__(
        self,
        describe: Callable[[], Handle],
        arguments: Sequence[int],
        work_ns: float,
        outputs: int = 1,
        order: Sequence[int] | None = None,
    ) -> None:
        self._order = order or range(len(arguments) - outputs)
        self._compute = Shared(describe, arguments, len(self._order), work_ns)
        self.direct = self._compute.directly([*self._order, *range(-1, -1 - outputs, -1)])

    def __call__(self, operation: Any, inputs: list[Array], outputs: list[Array]) -> None:
        self._compute(*[plain(inputs[i]) for i in self._order], *outputs)


def steps(shape: Sequence[int]) -> list[int]:
    """Elements from one index to the next, axis by axis, in C order."""
    return [*accumulate(shape[:0:-1], mul, initial=1)][::-1]


def images(shape: Sequence[int]) -> Handle:
    """Descriptor of images, whose channels lie last and are named second."""
    axes, strides = (0, len(shape) - 1, *range(1, len(shape) - 1)), steps(shape)
    return libdnnl().memory([shape[i] for i in axes], [strides[i] for i in axes])


class Reorder:
    """Puts an array into another order of memory.

    Args:
        source, target: Descriptors of both, see `Library.memory`.
    """

    def __init__(self, source: int | Handle, target: int | Handle) -> None:
        found = libdnnl()
        self.size_bytes = found.size_bytes(target)
        self._compute = Compute(found.reorder(source, target), [SRC, DST])

    def __call__(self, source: Array, target: Array | None = None) -> Array:
        made = memory(self.size_bytes) if target is None else target
        self._compute(source, made)
        return made
