"""Constants, and random numbers, from no inputs.

Random numbers depend on the seed, the number of the frame and the position of the element alone: not on timing, lanes,
or the number and kind of devices.
"""

from __future__ import annotations

import hashlib
import math
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from actorflow.errors import DTypeError, GraphError
from actorflow.ops.operation import Operation, X, same_dtype
from actorflow.spec import Pending, TensorSpec, at, axes_in

if TYPE_CHECKING:
    from actorflow.graph.graph import Graph
    from actorflow.graph.nodes import Blob


def is_kept(array: npt.NDArray[Any]) -> bool:
    """Whether a constant is the array itself and no copy: it is contiguous, and nobody can write to its memory."""
    flags = array.flags
    return not flags.writeable and flags.c_contiguous and (flags.owndata or type(_memory(array)) is bytes)


def _memory(array: npt.NDArray[Any]) -> object:
    base: Any = array
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    return base


@dataclass(frozen=True, eq=False)
class Constant(Operation):
    """An array that is the same in each frame; see `Graph.constant`. Equal arrays are equal constants.

    Attributes:
        value: The array; read-only, and a copy unless it was so already.
    """

    arguments = ()
    per_element = 0

    value: npt.NDArray[Any]

    def __post_init__(self) -> None:
        if not is_kept(self.value):
            value = self.value.copy()
            value.setflags(write=False)
            object.__setattr__(self, "value", value)

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        if self.value.dtype.hasobject:
            raise DTypeError(f"Constant: value must not be of Python objects, got dtype {self.value.dtype}")
        return (TensorSpec(self.value.shape, self.value.dtype),)

    def __eq__(self, other: object) -> bool:
        return type(other) is Constant and self._contents == other._contents

    def __hash__(self) -> int:
        return hash(self._contents)

    def __str__(self) -> str:
        shown = repr(self.value.item()) if self.value.size == 1 else f"{self.infer()[0]}, {self._contents[2].hex()[:8]}"
        return f"Constant({shown})"

    @cached_property
    def _contents(self) -> tuple[tuple[int, ...], np.dtype[Any], bytes]:
        digest = hashlib.blake2b(self.value.tobytes(), digest_size=16).digest()
        return self.value.shape, self.value.dtype, digest


@dataclass(frozen=True)
class Numbers(Operation, Pending):
    """An array that follows from lengths of open axes, in the place of its constant; see `numbers`.

    Attributes:
        function: Gives the array from ``given``, lengths and other arguments.
        spec: Its type.
    """

    arguments = ()
    per_element = 0

    function: Callable[..., Any]
    given: tuple[Any, ...]
    spec: TensorSpec

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        return (self.spec,)

    def at(self, lengths: Mapping[str, int]) -> Constant:
        return Constant(self.function(*at(self.given, lengths)))


def numbers(function: Callable[..., Any], *given: Any, shape: Sequence[int], dtype: npt.DTypeLike = "int64") -> Any:
    """The array ``function(*given)``, for `Operand.literal`; where lengths are open, its maker for once they are known.

    Args:
        function: Depends on its arguments alone.
        given: Lengths and other arguments.
        shape, dtype: The type of the array.
    """
    if not axes_in(given):
        return function(*given)
    return Numbers(function, given, TensorSpec(tuple(shape), np.dtype(dtype)))


@dataclass(frozen=True)
class Fill(Operation):
    """A blob of one constant, from no inputs; see `fill`."""

    arguments = ()
    per_element = 0

    value: float
    spec: TensorSpec

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        return (self.spec,)


def fill(
    graph: Graph, value: float, shape: Iterable[int] | int, dtype: npt.DTypeLike = "float32", name: str | None = None
) -> Blob:
    """A blob filled with one constant.

    Args:
        graph: The graph that it is made in, as nothing else says it.
        value: The constant.
        shape: Length of each axis.
        dtype: Type of the elements.
    Returns:
        Blob of that shape and dtype.
    Raises:
        ShapeError, DTypeError: if there is no such shape or dtype, or the dtype does not have the value.
    Source: Purine2 ``Constant``.
    Example:
        >>> graph = af.Graph("constants")
        >>> half = af.ops.fill(graph, 0.5, (2, 3))
        >>> graph.run_sync()[half]
        array([[0.5, 0.5, 0.5],
               [0.5, 0.5, 0.5]], dtype=float32)
    """
    spec = TensorSpec.of(shape, dtype)
    if not _fits(value, spec.dtype):
        raise DTypeError(f"fill: the value {value!r:.80} does not fit to {spec}")
    y: Blob = graph.root.apply(Fill(value, spec), name=name)
    return y


def filled(value: Any, shape: tuple[int, ...], like: X) -> X:
    """A constant of the dtype and place of a blob or array."""
    found: X = like.constant_like(value, shape)
    return found


def number_like(value: Any, like: X) -> X:
    """A number as a 0-d blob or array, of the dtype and place of another."""
    return filled(value, (), like)


def check_number(value: Any, name: str, spec: TensorSpec) -> None:
    """Check that a blob's dtype can have a value.

    Raises:
        DTypeError: if not; it names the blob.
    """
    if not _fits(value, spec.dtype):
        raise DTypeError(f"the number {value!r} does not fit to blob {name!r}, {spec}: cast the blob")


def _fits(value: Any, dtype: np.dtype[Any]) -> bool:
    """Return whether a value is a number, and a dtype has it, but for its precision."""
    if dtype.kind == "b":
        return isinstance(value, bool | np.bool_)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return isinstance(value, bool | int | np.bool_ | np.integer) and limits.min <= int(value) <= limits.max
    if isinstance(value, complex | np.complexfloating):
        return dtype.kind == "c"
    return isinstance(value, bool | int | float | np.generic)


def with_numbers(*operands: Blob | float) -> list[Blob]:
    """The operands, numbers as 0-d blobs of the dtype of the first blob; other types are left to `apply` to refuse."""
    like = next((x for x in operands if hasattr(x, "spec")), None)
    numbers = (bool, int, float, complex, np.generic)
    return [like.constant_like(x) if like is not None and isinstance(x, numbers) else x for x in operands]  # type: ignore[misc, union-attr]


@dataclass(frozen=True)
class _Random(Operation):
    """Random numbers.

    Attributes:
        spec: Shape and dtype of the result.
        seed: Names the random stream, together with the number of the frame.
    """

    arguments = ()
    differentiable = False

    spec: TensorSpec
    seed: int = -1  # which none is: it must be given

    def __post_init__(self) -> None:
        spec: object = self.spec
        if not isinstance(spec, TensorSpec):
            function = f"af.ops.{self.kind.lower()}(graph, shape, ...)"
            raise DTypeError(
                f"{self.kind}: spec must be a TensorSpec, af.TensorSpec.of(shape, dtype), and seed follows it, got "
                f"{spec!r}; {function} makes a blob of such numbers"
            )

    def check(self) -> None:
        """Check the parameters."""

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        self.check()
        check_seed(self.kind, self.seed)
        return (self.spec,)


def check_seed(kind: str, seed: int) -> None:
    """Check the name of a random stream."""
    if not 0 <= seed < 1 << 128:
        raise GraphError(f"{kind}: seed must be from 0 to 2**128 - 1, got {seed}")


@dataclass(frozen=True)
class Gaussian(_Random):
    """Normally distributed numbers; see `gaussian`."""

    mean: float = 0.0
    std: float = 1.0

    def check(self) -> None:
        if not self.std >= 0:
            raise GraphError(f"Gaussian: std must not be negative, got {self.std}")
        same_dtype("Gaussian", spec=self.spec)


@dataclass(frozen=True)
class Uniform(_Random):
    """Uniformly distributed numbers; see `uniform`."""

    low: float = 0.0
    high: float = 1.0

    def check(self) -> None:
        if not self.high >= self.low:
            raise GraphError(f"Uniform: high must be at least low, {self.low}, got {self.high}")
        same_dtype("Uniform", spec=self.spec)


@dataclass(frozen=True)
class Bernoulli(_Random):
    """1 or 0; see `bernoulli`."""

    probability: float = 0.5

    def check(self) -> None:
        if not 0 <= self.probability <= 1:
            raise GraphError(f"Bernoulli: probability must be from 0 to 1, got {self.probability}")
        if self.spec.dtype.kind not in "biufV":
            raise DTypeError(f"Bernoulli: spec must be of numbers or bool, got {self.spec}")


def fans(shape: tuple[int, ...]) -> tuple[int, int]:
    """Inputs that an output element sums over, and outputs that an input element goes to.

    Args:
        shape: Shape of a weight: (out, in), or (*kernel, in, out); with groups, ``in`` is that of one group.
    """
    if len(shape) == 2:
        return shape[1], shape[0]
    return math.prod(shape[:-1]), math.prod(shape[:-2]) * shape[-1] if shape else 1


def _drawn(
    kind: type[_Random], parameters: tuple[float, ...], graph: Graph, spec: TensorSpec, seed: int | None, name: str
) -> Blob:
    if seed is None:
        full = graph.root.unique_name(name)
        seed, name = zlib.crc32(full.encode()), full[full.rfind(name) :]
    y: Blob = graph.root.apply(kind(spec, seed, *parameters), name=name)
    return y


def gaussian(
    graph: Graph,
    shape: Iterable[int] | int,
    mean: float = 0.0,
    std: float = 1.0,
    dtype: npt.DTypeLike = "float32",
    seed: int | None = None,
    name: str | None = None,
) -> Blob:
    """Normally distributed random numbers.

    Args:
        graph: The graph that it is made in, as nothing else says it.
        shape: Length of each axis.
        mean: Mean.
        std: Standard deviation, not negative.
        dtype: Type of the elements, floating.
        seed: From 0 to 2**128 - 1; the default is derived from the op's name, so fills of a graph differ.
    Returns:
        Blob of that shape and dtype; other numbers in each frame.
    Raises:
        GraphError: if a parameter or ``seed`` is out of range.
        DTypeError: if ``dtype`` is of another kind.
    Source: Purine2 ``Gaussian``.
    Example:
        >>> graph = af.Graph("noise")
        >>> noise = af.ops.gaussian(graph, (2, 3), std=0.1, seed=7)
        >>> first, second = graph.run_sync()[noise], graph.run_sync()[noise]
        >>> print(first.shape, first.dtype, np.array_equal(first, second))
        (2, 3) float32 False
    """
    return _drawn(Gaussian, (mean, std), graph, TensorSpec.of(shape, dtype), seed, name or "gaussian")


def uniform(
    graph: Graph,
    shape: Iterable[int] | int,
    low: float = 0.0,
    high: float = 1.0,
    dtype: npt.DTypeLike = "float32",
    seed: int | None = None,
    name: str | None = None,
) -> Blob:
    """Uniformly distributed random numbers, from ``low`` up to ``high``, not less, which only rounding reaches.

    Other arguments, result and errors: as of `gaussian`. Source: Purine2 ``Uniform``.
    Example:
        >>> graph = af.Graph("noise")
        >>> noise = af.ops.uniform(graph, 100, low=-1.0, high=1.0, seed=7)
        >>> value = graph.run_sync()[noise]
        >>> print(value.min() >= -1, value.max() <= 1)
        True True
    """
    return _drawn(Uniform, (low, high), graph, TensorSpec.of(shape, dtype), seed, name or "uniform")


def bernoulli(
    graph: Graph,
    shape: Iterable[int] | int,
    probability: float = 0.5,
    dtype: npt.DTypeLike = "float32",
    seed: int | None = None,
    name: str | None = None,
) -> Blob:
    """1 with a probability, else 0, in a dtype of numbers, or bool.

    Other arguments, result and errors: as of `gaussian`. Source: Purine2 ``Bernoulli``.
    Example:
        >>> graph = af.Graph("coins")
        >>> coins = af.ops.bernoulli(graph, 1000, 0.25, seed=1)
        >>> print(0.2 < graph.run_sync()[coins].mean() < 0.3)
        True
    """
    return _drawn(Bernoulli, (probability,), graph, TensorSpec.of(shape, dtype), seed, name or "bernoulli")


def xavier(
    graph: Graph,
    shape: Iterable[int] | int,
    dtype: npt.DTypeLike = "float32",
    seed: int | None = None,
    name: str | None = None,
) -> Blob:
    """Uniform random numbers with variance ``2 / (fan_in + fan_out)``, for sigmoid, tanh and linear layers.

    The shape is that of a weight, (out, in) or (kernel axes ..., in, out); fans count the kernel's elements. Arguments,
    result and errors: as of `gaussian`.

    Source: Glorot and Bengio, Understanding the difficulty of training deep feedforward neural networks, 2010.
    Example:
        >>> graph = af.Graph("weights")
        >>> weight = af.ops.xavier(graph, (20, 30), seed=1)
        >>> print(graph.run_sync()[weight].max() <= np.sqrt(6 / (20 + 30)))
        True
    """
    spec = TensorSpec.of(shape, dtype)
    bound = math.sqrt(6.0 / max(1, sum(fans(spec.shape))))
    return _drawn(Uniform, (-bound, bound), graph, spec, seed, name or "xavier")


def he(
    graph: Graph,
    shape: Iterable[int] | int,
    dtype: npt.DTypeLike = "float32",
    seed: int | None = None,
    name: str | None = None,
) -> Blob:
    """Normal random numbers with variance ``2 / fan_in``, for layers before a relu; see `xavier`.

    Source: He et al., Delving deep into rectifiers, 2015.
    Example:
        >>> graph = af.Graph("weights")
        >>> weight = af.ops.he(graph, (256, 512), seed=1)
        >>> print(abs(graph.run_sync()[weight].std() / np.sqrt(2 / 512) - 1) < 0.02)
        True
    """
    spec = TensorSpec.of(shape, dtype)
    return _drawn(Gaussian, (0.0, math.sqrt(2.0 / max(1, fans(spec.shape)[0]))), graph, spec, seed, name or "he")
