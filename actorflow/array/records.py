"""Records: what an operation on arrays leaves behind until its value is wanted.

A record is light, since one is made for each operation of array code: the operation, its inputs by reference, the
type of its result, and where the user's code stood. The array that the user holds is known by a weak reference alone,
so a record that nobody can ask for any more goes away by itself, together with what it would have read.
"""

from __future__ import annotations

import math
import sys
import weakref
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from actorflow.errors import DTypeError, OpError
from actorflow.node import Site
from actorflow.spec import TensorSpec

if TYPE_CHECKING:
    from actorflow.array.arrays import Array
    from actorflow.array.session import Session
    from actorflow.array.units import Unit

__all__ = ["Elementwise", "Input", "Node", "Primitive", "Reduction", "Value", "source"]

Value = npt.NDArray[Any]
DType = np.dtype[Any]

_PACKAGE = str(Path(__file__).parent.parent)
_numbers = count()


class Primitive:
    """One operation on arrays, as the engine knows it.

    Args:
        name: Of the function in the namespace.
        compute: Called with the inputs' values and the record's parameters; gives the result, which may be a view of
            an input or the input itself. It must not write into its inputs.
        pure: Whether equal inputs give equal results, so that it need not be computed twice.
        writes: Whether ``compute`` may be handed a first input that nobody else needs, to write into; it is then called
            with ``owned=True``.

    Attributes:
        elementwise: Whether each element of the result depends on the elements at its place alone.
        reduction: Whether it is a `Reduction`.
    """

    elementwise: ClassVar[bool] = False
    reduction: ClassVar[bool] = False

    def __init__(
        self, name: str, compute: Callable[..., Value], *, pure: bool = True, writes: bool = False
    ) -> None:
        self.name = name
        self.compute = compute
        self.pure = pure
        self.writes = writes

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


class Elementwise(Primitive):
    """An operation on each element by itself; several of them are computed in one pass.

    Args:
        name: Of the function in the namespace.
        function: Called with arrays that broadcast and ``out``, an array of the result's type.
        aligned: Whether ``out`` may be one of the inputs, as for NumPy's ufuncs.
        types: Gives the dtype of the result for those of the inputs; that of the ufunc ``function`` if left out.
    """

    elementwise = True

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        *,
        aligned: bool = True,
        types: Callable[..., DType] | None = None,
    ) -> None:
        super().__init__(name, function)
        self.function = function
        self.aligned = aligned
        self._types = types or self._of_ufunc
        self._known: dict[tuple[DType, ...], DType] = {}

    def dtype(self, *dtypes: DType) -> DType:
        """The dtype of the result.

        Raises:
            DTypeError: if the operation has none for inputs of these.
        """
        found = self._known.get(dtypes)
        if found is None:
            found = self._known[dtypes] = self._types(*dtypes)
        return found

    def _of_ufunc(self, *dtypes: DType) -> DType:
        try:
            found: DType = self.function.resolve_dtypes((*dtypes, None))[-1]  # type: ignore[attr-defined]
        except TypeError as error:
            names = " and ".join(str(dtype) for dtype in dtypes)
            raise DTypeError(f"{self.name}: no such operation on {names}") from error
        return found


class Reduction(Primitive):
    """An operation that folds axes by a ufunc; it ends a chain of elementwise operations in the same pass.

    Its parameters are ``axes``, all of them in ascending order, and ``keepdims``.

    Args:
        name: Of the function in the namespace.
        ufunc: Binary and associative.
    """

    reduction = True

    def __init__(self, name: str, ufunc: np.ufunc) -> None:
        super().__init__(name, self.fold)
        self.ufunc = ufunc

    def fold(self, x: Value, axes: tuple[int, ...], keepdims: bool, dtype: DType) -> Value:
        """The reduction of a whole array."""
        if self.ufunc is np.add or self.ufunc is np.multiply:
            return self.ufunc.reduce(x, axis=axes, keepdims=keepdims, dtype=dtype)  # type: ignore[no-any-return]
        return self.ufunc.reduce(x, axis=axes, keepdims=keepdims)  # type: ignore[no-any-return]


class Node:
    """The record of one operation, or of a value that was given.

    Attributes:
        op: The operation; None for a value that was given.
        inputs: Records, and NumPy arrays that are constants; empty once the value is there.
        params: Further arguments of ``op``; hashable for pure operations.
        number: Later records have higher ones.
        shape: Of the result.
        dtype: Of the result.
        size: Number of elements of the result.
        session: Who computes it.
        handle: The array that shows it; dead or showing another record once the user has let go of this one.
        value: The result, once it is there; never written again while anybody can see it.
        error: Why there will be no result.
        unit: What computes it now.
        readers: Units under way that read it.
    """

    __slots__ = (
        "__weakref__",
        "_code",
        "_instruction",
        "dtype",
        "error",
        "handle",
        "inputs",
        "number",
        "op",
        "params",
        "session",
        "shape",
        "size",
        "unit",
        "value",
    )

    #: What shows records to the user; set where it is defined, since it is built on records.
    array_type: ClassVar[type[Array]]

    def __init__(
        self,
        op: Primitive | None,
        inputs: tuple[Input, ...],
        shape: tuple[int, ...],
        dtype: DType,
        params: tuple[Any, ...],
        session: Session,
    ) -> None:
        self.op = op
        self.inputs = inputs
        self.shape = shape
        self.dtype = dtype
        self.params = params
        self.session = session
        self.size = math.prod(shape)
        self.number = next(_numbers)
        self.value: Value | None = None
        self.error: tuple[FailedRecord, BaseException] | None = None
        self.unit: Unit | None = None
        self.handle: weakref.ref[Array] | None = None
        frame = sys._getframe(3)
        while frame.f_code.co_filename.startswith(_PACKAGE) and frame.f_back is not None:
            frame = frame.f_back
        self._code: CodeType = frame.f_code
        self._instruction = frame.f_lasti

    def __del__(self) -> None:
        if self.value is not None:
            self.session.reclaim(self.value)

    @property
    def done(self) -> bool:
        """Whether the value is there, or it is known that there will be none."""
        return self.value is not None or self.error is not None

    @property
    def spec(self) -> TensorSpec:
        """Shape and dtype."""
        return TensorSpec(self.shape, self.dtype)

    @property
    def size_bytes(self) -> int:
        """Bytes of the value."""
        return self.size * self.dtype.itemsize

    @property
    def name(self) -> str:
        """Of the operation."""
        return "value" if self.op is None else self.op.name

    @property
    def site(self) -> Site:
        """The line of user code that recorded it."""
        line = next(
            (line for start, end, line in self._code.co_lines() if start <= self._instruction < end), None
        )
        return Site(self._code.co_filename, line or self._code.co_firstlineno, self._code.co_name)

    def is_held(self) -> bool:
        """Whether an array of the user shows it."""
        if self.handle is None:
            return False
        array = self.handle()
        return array is not None and array._node is self

    def fail(self) -> OpError:
        """The error that says why there is no value."""
        assert self.error is not None
        record, cause = self.error
        if isinstance(cause, MemoryError) or isinstance(cause, OpError):
            return cause if isinstance(cause, OpError) else OpError.of(record, cause)  # type: ignore[arg-type]
        return OpError.of(record, cause)  # type: ignore[arg-type]


Input = Node | Value


class FailedRecord:
    """What an error says of a record, in the words of a graph's op: inputs are only known while it has them."""

    __slots__ = ("inputs", "name", "operation", "site")

    def __init__(self, node: Node, inputs: Sequence[Input]) -> None:
        self.name = node.name
        self.operation = "array"
        self.site = node.site
        self.inputs = [FailedInput(i, each) for i, each in enumerate(inputs)]


class FailedInput:
    """An input of a failed record, for messages."""

    __slots__ = ("name", "place", "spec")

    def __init__(self, position: int, value: Input) -> None:
        self.name = f"argument {position}"
        self.spec = TensorSpec(value.shape, value.dtype)
        self.place = "cpu"
