"""Operations: the mathematics, free of devices, and the functions that make ops of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from dataclasses import dataclass, fields
from functools import wraps
from types import EllipsisType, FunctionType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, ParamSpec, TypeVar

import numpy as np

from actorflow.errors import AxisError, DTypeError, GraphError, ShapeError
from actorflow.spec import MOST_AXES, TensorSpec, assumed, axes_in

#: The axes of the usual order that a kernel's axes are. ``...`` stands for those that are not named, in their order, so
#: that one permutation serves arrays of several ranks.
Axes = tuple[int | EllipsisType, ...]

#: Where kernels keep, among an operation's attributes, what they have made for their next calls.
KEPT = "_kept"
_MOST_BYTES = 1 << 63

#: Gradients of the loss by the outputs of an op, blobs; None where it does not depend on one of several outputs.
Grads = Sequence[Any]


class Operand:
    """Base of the operands of operations: blobs and lazy arrays. Rules of gradients are written for both."""

    __slots__ = ()

    #: Whether the value outlives the frame.
    is_variable: ClassVar[bool] = False

    if TYPE_CHECKING:
        spec: TensorSpec

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of each axis."""
        return self.spec.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the elements."""
        return self.spec.dtype

    def apply_operation(self, operation: Operation, inputs: Sequence[Any], name: str | None) -> Any:
        """Apply an operation to operands of this kind, this one among them; see `apply`."""
        raise NotImplementedError

    def apply_reduction(self, kind: Any, axis: int | Sequence[int] | None, keepdims: bool, name: str | None) -> Any:
        """Apply a `actorflow.ops.shaping.Reduction` of a kind."""
        return self.apply_operation(kind(normal_axes(axis), keepdims), (self,), name)

    def constant_like(self, value: Any, shape: tuple[int, ...] = ()) -> Any:
        """An operand of this kind, its dtype and place, that is a number everywhere.

        Raises:
            DTypeError: if the dtype cannot have that value.
        """
        raise NotImplementedError

    def literal(self, value: Any) -> Any:
        """An operand of this kind, on its place, with the value of a NumPy array."""
        raise NotImplementedError

    def new_seed(self) -> int:
        """A seed for random numbers beside this operand, where the user gives none."""
        raise NotImplementedError

    def all_or_nothing(self) -> AbstractContextManager[None]:
        """A context that undoes the operations applied inside, if that fails."""
        return nullcontext()


class Application:
    """An operation applied to operands, as its gradient sees it.

    Args:
        inputs: The operands.
        outputs: The results, or a function that makes them when they are asked for.
        name: Name of the op, or of the operation, for messages.
    """

    __slots__ = ("_outputs", "inputs", "name")

    def __init__(self, inputs: Sequence[Any], outputs: Sequence[Any] | Callable[[], Sequence[Any]], name: str) -> None:
        self.inputs = tuple(inputs)
        self.name = name
        self._outputs = outputs

    @property
    def outputs(self) -> Sequence[Any]:
        """Its results."""
        if callable(self._outputs):
            self._outputs = self._outputs()
        return self._outputs


class Layout(NamedTuple):
    """Permutations of an operation's arrays for kernels that want another order of axes.

    Attributes:
        inputs: For each input, the axes of the usual order that the kernel's axes are; None where nothing changes.
            The last input's hold for all that follow.
        outputs: The same for each output.
    Example:
        >>> first = af.ops.Layout(inputs=((0, -1, ...), None), outputs=((0, -1, ...),))  # channels first
        >>> print(first.input_axes(0, rank=4), first.input_axes(1, rank=4), first.output_axes(0, rank=5))
        (0, 3, 1, 2) None (0, 4, 1, 2, 3)
    """

    inputs: tuple[Axes | None, ...]
    outputs: tuple[Axes | None, ...]

    def input_axes(self, position: int, rank: int) -> tuple[int, ...] | None:
        """The permutation of an input of this many axes."""
        return _named(self.inputs[min(position, len(self.inputs) - 1)], rank)

    def output_axes(self, position: int, rank: int) -> tuple[int, ...] | None:
        """The permutation of an output of this many axes."""
        return _named(self.outputs[min(position, len(self.outputs) - 1)], rank)


def _named(axes: Axes | None, rank: int) -> tuple[int, ...] | None:
    if axes is None:
        return None
    named = [axis % rank for axis in axes if not isinstance(axis, EllipsisType)]
    rest = [axis for axis in range(rank) if axis not in named]
    return tuple(n for axis in axes for n in (rest if isinstance(axis, EllipsisType) else [axis % rank]))


class Cost(NamedTuple):
    """Work of an operation by its formula, independent of the kernel. Lengths of open axes stay in it.

    Attributes:
        multiply_adds: Multiplications whose results are added up: as in products and convolutions.
        others: Additions, comparisons, functions of one element and so on.
    """

    multiply_adds: int = 0
    others: int = 0

    @property
    def flops(self) -> int:
        """All together; a multiplication and its addition are two."""
        return 2 * self.multiply_adds + self.others


@dataclass(frozen=True, slots=True)
class Operation:
    """The mathematics of an op: argument names, shape and dtype inference, gradient.

    A subclass is a frozen dataclass whose fields are the operation's parameters. It never mentions a device:
    kernels are registered apart, under the operation's `kind` (`actorflow.ops.kernel`).

    Class attributes:
        arguments: Names of the inputs, for messages; a last name that starts with ``*`` takes any number.
        layouts: Permutations for kernels that are registered for another layout than the usual one, by its name.
        differentiable: Whether `gradient` exists. A non-differentiable operation (such as accuracy) stops gradients.
        function_name: Name of its functional form; the kind in lower case unless a class says otherwise.
        is_view: Whether `compute` gives a view of the input, which takes no time.
        elementwise: Whether each element of the result depends on the elements at its place alone; it takes numbers.
        writes_over: Whether the result is the first input with some elements written over; its kernel is ``inplace``.
        one_dtype: Whether arrays that it is applied to are promoted to one dtype; blobs must have one.
        constants: Arguments by which nothing is differentiated, such as running statistics: gradients stop there, and a
            variable that is read so is not trained.
        takes_complex: Whether `gradient` is right for complex numbers, too: gradients of a real loss by ``a + ib`` are
            ``dL/da + i dL/db``, as in PyTorch. Elsewhere gradients stop at complex blobs.
        saved: How many of its last outputs are there for gradients alone: they are no results of a graph. Where nothing
            reads them, a plan takes the operation with its field ``saves`` False, if it has one, which does not give
            them.
        per_element: How many additions and the like make an element of the (first) result, where that is all of its
            `cost`; None where it is not.
    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Clamp(af.ops.Operation):
        ...     low: float
        ...     high: float
        ...     def infer(self, x):
        ...         return (x,)  # one output, of the type of the input
        ...     def compute(self, x):
        ...         return np.clip(x, self.low, self.high)
        ...     def gradient(self, op, grads, wanted):
        ...         (g,), (x,) = grads, op.inputs
        ...         return [af.ops.where((self.low < x) & (x < self.high), g, 0.0)]
        >>> graph = af.Graph("example")
        >>> x = graph.blob("x", shape=3)
        >>> y = graph.apply(Clamp(-1.0, 1.0), x)
        >>> slope = af.gradient(af.ops.sum(y), x)
        >>> result = graph.run_sync({x: [-3, 0.5, 3]}, fetch=[y, slope])
        >>> print(result[y], result[slope])
        [-1.   0.5  1. ] [0. 1. 0.]
    """

    arguments: ClassVar[tuple[str, ...]] = ("x",)
    layouts: ClassVar[Mapping[str, Layout]] = {}
    function_name: ClassVar[str] = "operation"
    differentiable: ClassVar[bool] = True
    elementwise: ClassVar[bool] = False
    is_view: ClassVar[bool] = False
    writes_over: ClassVar[bool] = False
    one_dtype: ClassVar[bool] = False
    constants: ClassVar[tuple[str, ...]] = ()
    takes_complex: ClassVar[bool] = False
    saved: ClassVar[int] = 0
    per_element: ClassVar[int | None] = None

    def __init_subclass__(cls) -> None:
        if "function_name" not in vars(cls):
            cls.function_name = cls.__name__.lower()

    @property
    def may_last(self) -> bool:
        """Whether a call may take any time, as the values of its inputs say, however short the last ones were.

        Then it is never computed on the loop, where nothing could stop it.
        """
        return False

    @property
    def kind(self) -> str:
        """Name under which kernels are registered: the class name."""
        return type(self).__name__

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...] | None:
        """Types of the outputs for inputs of these types; None where the connected blobs say them.

        Raises:
            ShapeError, DTypeError: if the inputs do not fit; the message names the argument.
        """
        raise GraphError(f"{self.kind} does not say what its outputs are: define infer()")

    def compute(self, *inputs: Any) -> Any:
        """Compute the result with NumPy: the kernel for the CPU where none is registered (`actorflow.ops.kernel`).

        Args:
            inputs: NumPy arrays, which it does not write into.
        Returns:
            An array of the inferred type, which may be a view of an input; of several outputs a tuple of them.
        """
        raise NotImplementedError

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        """Say what the gradient is, in operations on what the operation was applied to: blobs of a graph, or arrays.

        Args:
            op: Its ``inputs`` and ``outputs``.
            grads: Gradient of the loss with respect to each output; None where the loss does not depend on it.
            wanted: For each input, whether its gradient is asked for.
        Returns:
            The gradient of each input, of its type; None where it is not wanted or is zero.
        """
        raise GraphError(f"{self.kind} has no gradient")

    def cost(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> Cost | None:
        """Say how much is computed for inputs and outputs of these types; None where that is not known."""
        return None if self.per_element is None else Cost(others=self.per_element * outputs[0].size)

    def is_constant(self, position: int) -> bool:
        """Return whether nothing is differentiated by the input at this position."""
        return bool(self.constants) and self.arguments[min(position, len(self.arguments) - 1)] in self.constants

    def check_arity(self, count: int) -> None:
        """Check the number of inputs.

        Raises:
            GraphError: naming the arguments that are expected.
        """
        names = self.arguments
        variadic = bool(names) and names[-1].startswith("*")
        if (count < len(names)) if variadic else (count != len(names)):
            expected = f"{'at least ' if variadic else ''}{len(names)} ({', '.join(names) or 'none'})"
            raise GraphError(f"{self.kind} takes {expected} inputs, got {count}")

    def __str__(self) -> str:
        values = ((field, getattr(self, field.name)) for field in fields(self))
        # Compared as text: arrays have no single answer to `!=`.
        shown = (f"{field.name}={value}" for field, value in values if str(value) != str(field.default))
        return f"{self.kind}({', '.join(' '.join(text.split()) for text in shown)})"


def same_dtype(kind: str, **inputs: TensorSpec) -> None:
    """Check that all inputs have one floating dtype.

    Raises:
        DTypeError: naming the arguments that differ.
    """
    _check_one_dtype(kind, "fV", "floating", inputs)  # ml_dtypes' bfloat16 has kind V


def same_numbers(kind: str, /, ordered: bool = False, **inputs: TensorSpec) -> None:
    """Check that all inputs have one numeric dtype, integers included; a real one if they must be ``ordered``.

    Raises:
        DTypeError: naming the arguments that differ.
    """
    _check_one_dtype(kind, "iufV" if ordered else "iufcV", "real" if ordered else "numeric", inputs)


def _check_one_dtype(kind: str, kinds: str, wanted: str, inputs: Mapping[str, TensorSpec]) -> None:
    (first, spec), *rest = inputs.items()
    if spec.dtype.kind not in kinds:
        raise DTypeError(f"{kind}: {first} must be {wanted}, got {spec}")
    for name, other in rest:
        if other.dtype != spec.dtype:
            raise DTypeError(f"{kind}: {name} must have {first}'s dtype {spec.dtype}, got {other}")


def wide_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype that sums, and statistics, of a floating dtype are computed in: at least float32."""
    return np.dtype(np.float64 if dtype == np.float64 else np.float32)


def normal_axes(axis: int | Sequence[int] | None) -> tuple[int, ...] | None:
    """Axes as the field of a reduction."""
    return (axis,) if isinstance(axis, int) else None if axis is None else tuple(axis)


def axes_of(kind: str, axis: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Axes counted from the front, in ascending order; all for None.

    Raises:
        AxisError: if an axis does not exist.
        ShapeError: if one is given twice.
    """
    if type(axis) is int and 0 <= axis < rank:
        return (axis,)
    if axis is None:
        return tuple(range(rank))
    given = (axis,) if isinstance(axis, int | np.integer) else tuple(axis)
    for i in given:
        if not -rank <= i < rank:
            raise AxisError(f"{kind}: axis must be from {-rank} to {rank - 1}, got {i}")
    found = tuple(sorted(int(i) % rank for i in given))
    if len(set(found)) != len(found):
        raise ShapeError(f"{kind}: each axis can be given once, got {given}")
    return found


def axis_from_front(kind: str, axis: int, rank: int) -> int:
    """An axis that is counted from the front, as an operation has it whose kernels and gradient count on that.

    Raises:
        AxisError: if it does not exist, or is counted from the end.
    """
    if not 0 <= axis < rank:
        raise AxisError(f"{kind}: axis must be from 0 to {rank - 1}, got {axis}")
    return axis


def rank_is(kind: str, name: str, spec: TensorSpec, axes: Sequence[str]) -> None:
    """Check the number of axes.

    Raises:
        ShapeError: with the expected axes' names.
    """
    if len(spec.shape) != len(axes):
        raise ShapeError(f"{kind}: {name} must have shape ({', '.join(axes)}), got {spec}")


def apart(operation: Operation) -> Operation:
    """An equal operation, with which kernels have kept nothing yet."""
    made = copy(operation)
    made.__dict__.pop(KEPT, None)
    return made


def inferred(operation: Operation, inputs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...] | None:
    """Types of the outputs, as `Operation.infer` says them; lengths of open axes fit where they may be equal.

    Comparisons that are not decided so are checked when lengths are known: a plan infers once more.

    Raises:
        ShapeError: if an output is no array that could be: one of its lengths is no whole number, or negative.
    """
    try:
        found = operation.infer(*inputs)
    except ShapeError:
        if not axes_in((*inputs, operation)):
            raise
        with assumed():
            found = operation.infer(*inputs)
    given: Any = found  # a bare TensorSpec is a tuple, too
    is_bare = isinstance(given, TensorSpec)
    if given is None:
        return None
    if is_bare or not isinstance(given, tuple | list) or {*map(type, given)} - {TensorSpec}:
        got = f"a bare TensorSpec, {given}" if is_bare else repr(given)
        raise GraphError(f"{operation.kind}.infer must return a tuple of TensorSpec, one for each output, got {got}")
    for spec in given:
        # Parameters may lead to any: those of a file are what it says. Inputs have been looked at.
        is_open = {*map(type, spec.shape)} - {int} or min(spec.shape, default=0) < 0
        if is_open and not any(spec.shape == x.shape for x in inputs):
            TensorSpec.of(*spec)
            is_open = axes_in(spec.shape)
        if len(spec.shape) > MOST_AXES or not (is_open or spec.size_bytes < _MOST_BYTES):
            raise ShapeError(f"{operation.kind}: expected a result of less than 2**63 bytes, got {spec}")
    return found


#: Functions and classes that a file of a graph may name without leave, besides operations; see `savable`.
SAVABLE: set[Any] = set()
_Thing = TypeVar("_Thing", bound=Callable[..., Any])


def savable(thing: _Thing) -> _Thing:
    """Let files of graphs name a function or class of this package, which only computes with its arguments."""
    SAVABLE.add(thing)
    return thing


_Given = ParamSpec("_Given")
_Made = TypeVar("_Made")
#: A blob or a lazy array.
X = TypeVar("X", bound=Operand)


def spec_of(kind: str, argument: str, operand: object) -> TensorSpec:
    """The type of a blob or array that was given as an argument.

    Raises:
        DTypeError: if it is neither; the message names the argument.
    """
    if not isinstance(operand, Operand):
        raise DTypeError(f"{kind}: {argument} must be a blob or an array, got {type(operand).__name__}")
    return operand.spec


def apply(operation: Operation, *inputs: Any, name: str | None = None) -> Any:
    """Apply an operation to blobs, which makes an op in their graph's current scope (`Graph.apply`), or to arrays.

    Args:
        operation: The operation.
        inputs: Blobs or arrays; numbers and NumPy arrays beside them are constants.
        name: Name of the op.
    Returns:
        Its output, or a tuple of them if it has several.
    Raises:
        GraphError: if no input is a blob or an array.

    Example:
        >>> graph = af.Graph("g")
        >>> af.ops.apply(af.ops.Relu(), graph.blob("x", [3]))
        <Blob 'relu/out' float32[3] on cpu>
        >>> af.ops.apply(af.ops.Relu(), xp.asarray([-1.0, 2.0]))
        Array([0., 2.], dtype=float64)
    """
    for each in inputs:
        if isinstance(each, Operand):
            return each.apply_operation(operation, inputs, name)
    names = operation.arguments
    for i, each in enumerate(inputs):
        spec_of(operation.kind, names[min(i, len(names) - 1)].lstrip("*"), each)
    raise GraphError(f"{operation.kind}: give at least one blob or array")


def blob_of(operation: Operation, x: X, *more: Any, name: str | None = None) -> X:
    """The output of `apply`, or the first one of several."""
    made = apply(operation, x, *more, name=name)
    y: X = made[0] if isinstance(made, list | tuple) else made
    return y


def whole(form: Callable[_Given, _Made]) -> Callable[_Given, _Made]:
    """Decorate a functional form that makes several ops: it makes all of them, or none if one cannot be made."""

    @wraps(form)
    def made(*args: _Given.args, **kwargs: _Given.kwargs) -> _Made:
        operand = next(_operands_of((*args, *kwargs.values())), None)
        if operand is None:  # which is an error
            return form(*args, **kwargs)
        with operand.all_or_nothing():
            return form(*args, **kwargs)

    return made


def _operands_of(values: Sequence[object]) -> Iterator[Operand]:
    for value in values:
        if isinstance(value, Operand):
            yield value
        elif isinstance(value, list | tuple):
            yield from _operands_of(value)
        elif isinstance(value, Mapping):
            yield from _operands_of([*value.values()])


def public_names(namespace: Mapping[str, Any], without: Sequence[str] = ()) -> list[str]:
    """Names of the operations and functional forms that a module defines: which the faces show."""
    own = namespace["__name__"]
    return [
        name
        for name, value in namespace.items()
        if name[0] != "_"
        and name not in without
        and getattr(value, "__module__", "") == own
        and (hasattr(value, "operation") or isinstance(value, FunctionType | type))
    ]
