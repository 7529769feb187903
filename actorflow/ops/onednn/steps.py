"""Registration of the library's kernels: a primitive is made when a step first runs, and what it cannot do is left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial, wraps
from itertools import accumulate
from operator import mul
from typing import Any, Protocol

import numpy as np

import actorflow.ops.cpu  # noqa: F401  registers NumPy's kernels
from actorflow.devices.team import WORTH_NS, team
from actorflow.ops import registry
from actorflow.ops.cpu.buffers import Array, scratch
from actorflow.ops.cpu.kept import kept
from actorflow.ops.cpu.parallel import even_cuts
from actorflow.ops.onednn.library import DST, SCRATCHPAD, SRC, Handle, UnsupportedError, libdnnl
from actorflow.ops.operation import Operation
from actorflow.spec import TensorSpec

LIBRARY = "onednn"
#: Flags of NumPy's arrays: C order, aligned.
_PLAIN = 0x101
#: Calls of each kind of operation that are kept.
_MOST_SHARED = 256
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
    inplace: bool = False,
    supports: Callable[[Any], bool] | None = None,
    joins: Callable[[Any, Sequence[TensorSpec]], bool] | None = None,
    fits: Callable[[Sequence[TensorSpec]], bool] | None = None,
) -> Callable[[Make], Make]:
    """Register what makes a step's call as a kernel; where that is unsupported, NumPy's kernel computes.

    Where ``fits`` says so by the types of the inputs, that is known as the step is bound, and NumPy's is bound to it.

    The library compiles a primitive as it is made, which takes up to some ms. It is made in the first call, which is on
    a lane's thread, as nobody knows yet how long it takes, and not on the loop, where programs are built.
    """

    def register(make: Make) -> Make:
        # Where nothing is kept of weights, all equal operations have one call.
        shared = lru_cache(_MOST_SHARED)(partial(_made, make))

        def made(operation: Any, specs: Sequence[TensorSpec]) -> Call:
            if keeps:
                return kept(operation).made((LIBRARY, *specs), lambda: _made(make, operation, *specs))
            return shared(operation, *specs)

        def bind(operation: Any, specs: Sequence[TensorSpec]) -> Callable[..., None] | registry.Kernel:
            if fits is not None and not fits(specs):
                return others(operation, specs[0].dtype).bound(operation, specs)
            found: Callable[..., None] = libdnnl().calls.Bound(lambda operation: made(operation, specs))
            return found

        @registry.kernel(
            operation,
            library=LIBRARY,
            dtypes=dtypes,
            joins=joins,
            keeps=keeps,
            inplace=inplace,
            supports=supports,
            bind=bind,
        )
        @wraps(make)
        def compute(operation: Any, inputs: list[Array], outputs: list[Array]) -> None:
            made(operation, [TensorSpec(x.shape, x.dtype) for x in inputs])(operation, inputs, outputs)

        return make

    return register


def _made(make: Make, operation: Any, *specs: TensorSpec) -> Call:
    outputs = operation.infer(*specs)
    if all(spec.size for spec in (*specs, *outputs)):
        try:
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


def plain(array: Array) -> Array:
    """The array, or a copy of it whose elements lie in C order."""
    return array if array.flags.num & _PLAIN == _PLAIN else np.require(array, requirements=["C", "A"])


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
        self._scratch = partial(scratch, "onednn", (size_bytes,), np.uint8) if size_bytes else None
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


#: A primitive that computes a part of a result, and for each of its arrays which part it takes of it; None for all.
Piece = tuple[Compute, Sequence[tuple[slice, ...] | None]]


class Divisible:
    """A primitive, and others that compute parts of its result, for cores that are idle.

    They do so if the result is the same to the bit, which is looked at once.

    Args:
        whole: The primitive.
        result: Position of the result among its arrays.
        work_ns: Estimated time of one thread.
        cut: Gives at most so many pieces, none if it cannot be cut.
    """

    def __init__(
        self, whole: Compute, result: int, work_ns: float, cut: Callable[[int], Sequence[Piece]] | None = None
    ) -> None:
        self.whole = whole
        self._result, self._work_ns, self._cut = result, work_ns, cut
        self._pieces: Sequence[Piece] | None = () if cut is None or work_ns < WORTH_NS else None

    def __call__(self, *arrays: Array) -> None:
        if self._pieces == () or not team.can_help():
            self.whole(*arrays)
            return

        def part(piece: Piece) -> None:
            compute, places = piece
            compute(*[array if own is None else array[own] for array, own in zip(arrays, places, strict=True)])

        if self._pieces is not None:
            team.spread(self._pieces, part, self._work_ns)
            return
        self.whole(*arrays)
        self._pieces = self._tried(arrays[self._result], part)

    def directly(self, order: Sequence[Any], expected: Sequence[tuple[int, Array]] = ()) -> Any:
        """A `Direct` of ``calls.pyx``, which is for one thread."""
        return self.whole.directly(order, expected, None if self._pieces == () else team.can_help)

    def _tried(self, result: Array, part: Callable[[Piece], None]) -> Sequence[Piece]:
        """The pieces, if they give the bits that the result has."""
        assert self._cut is not None
        try:
            pieces = self._cut(team.pieces(self._work_ns))
        except UnsupportedError:
            return ()
        if len(pieces) < 2:
            return ()
        expected = result.copy()
        for piece in pieces:
            part(piece)
        if result.tobytes() == expected.tobytes():
            return pieces
        np.copyto(result, expected)
        return ()


class Plain:
    """Calls of a primitive in one step, whose arrays are the step's inputs and its output.

    Args:
        describe: Gives the primitive's descriptor for inputs of some types; those of a part of what is on the first
            axis, too.
        specs: Types of the inputs.
        arguments: Numbers of the arguments.
        work_ns: Estimated time of one thread.
    """

    def __init__(
        self,
        describe: Callable[[Sequence[TensorSpec]], Handle],
        specs: Sequence[TensorSpec],
        arguments: Sequence[int],
        work_ns: float,
    ) -> None:
        def cut(count: int) -> list[Piece]:
            cuts = even_cuts(specs[0].shape[0], count)
            parts = [describe([part_of(spec, 0, each) for spec in specs]) for each in cuts]
            places = [[(each,)] * len(arguments) for each in cuts]
            return [(Compute(part, arguments), own) for part, own in zip(parts, places, strict=True)]

        self._compute = Divisible(Compute(describe(specs), arguments), len(specs), work_ns, cut)
        self.direct = self._compute.directly([*range(len(specs)), -1])

    def __call__(self, operation: Any, inputs: list[Array], outputs: list[Array]) -> None:
        self._compute(*map(plain, inputs), outputs[0])


def part_of(spec: TensorSpec, axis: int, cut: slice) -> TensorSpec:
    """The type of a part of an array."""
    shape = [*spec.shape]
    shape[axis] = cut.stop - cut.start
    return TensorSpec(tuple(shape), spec.dtype)


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
