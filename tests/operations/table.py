"""Rows and samples: what is said of an operation, once, for all suites that try operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

import numpy as np

import actorflow as af
from actorflow import ops
from actorflow.ops import Operation
from actorflow.spec import TensorSpec

Make = Callable[[np.random.Generator], Sequence[Any]]

#: How far results may lie apart, relative and absolute, by the dtype of the inputs. Kernels of float16 may round after
#: every step, so results of half precision are compared with those of wide inputs.
TOLERANCE: Mapping[str, tuple[float, float]] = {
    "bfloat16": (2e-2, 2e-2),
    "float16": (4e-3, 4e-3),
    "float32": (2e-5, 2e-5),
    "float64": (1e-12, 1e-12),
    "complex64": (2e-5, 2e-5),
    "complex128": (1e-12, 1e-12),
}
HALVES = ("float16", "bfloat16")
FLOATS = ("float16", "float32", "float64")
SINGLE_AND_DOUBLE = ("float32", "float64")
#: Those, and the other kind of half precision.
FLOATING = (*FLOATS, "bfloat16")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
COMPLEX = ("complex64", "complex128")
#: Everything that computes; what only the host computes is not on "cuda".
DEVICES = ("cpu", "sim", "cuda")
HOST = ("cpu", "sim")


@dataclass(frozen=True)
class Sample:
    """Inputs of an operation that has parameters, or of a call of a function.

    Attributes:
        what: The operation with its parameters, or a function of the inputs alone: a ``functools.partial`` of the
            row's function with the parameters as keywords.
        make: Draws the inputs. Those of float64 and complex128 get the dtype that is tried (`inputs`), integers do so
            where there are no others, and bool stays.
        wide: Positions of inputs that are float32 at least, as statistics are.
        exact: Positions of inputs that are float64.
        smooth: Whether differences at the inputs say what the gradient is: there is no tie and no kink.
        wrt: Positions to differentiate by; None for all floating inputs.
    """

    what: Any
    make: Make
    wide: tuple[int, ...] = ()
    exact: tuple[int, ...] = ()
    smooth: bool = True
    wrt: tuple[int, ...] | None = None

    def __str__(self) -> str:
        if isinstance(self.what, Operation):
            return str(self.what)
        keywords = getattr(self.what, "keywords", {})
        name = getattr(getattr(self.what, "func", self.what), "__name__", "call")
        return f"{name}({', '.join(f'{key}={value}' for key, value in keywords.items())})"

    @property
    def operation(self) -> Operation:
        """The operation; a call has none."""
        assert isinstance(self.what, Operation), f"{self} is a call"
        return self.what

    @property
    def parameters(self) -> dict[str, Any]:
        """What references are called with, besides arrays."""
        if isinstance(self.what, Operation):
            return {each.name: getattr(self.what, each.name) for each in fields(self.what) if each.init}
        return dict(getattr(self.what, "keywords", {}))

    def apply(self, *operands: Any) -> Any:
        """The result for blobs or lazy arrays."""
        return ops.apply(self.what, *operands) if isinstance(self.what, Operation) else self.what(*operands)

    def drawn(self, seed: int | np.random.Generator = 0) -> list[np.ndarray]:
        """Inputs as they are drawn."""
        return [np.asarray(x) for x in self.make(np.random.default_rng(seed))]

    def inputs(self, dtype: Any = "float32", seed: int | np.random.Generator = 0) -> list[np.ndarray]:
        """Inputs whose numbers have a dtype."""
        dtype = dtype_of(dtype)
        arrays = self.drawn(seed)
        if dtype.kind in "iu" and not any(x.dtype.kind in "fc" for x in arrays):
            arrays = [(x if dtype.kind == "i" else abs(x)).astype(dtype) if x.dtype.kind in "iu" else x for x in arrays]
        arrays = [converted(x, dtype) for x in arrays]
        for positions, least in ((self.wide, "float32"), (self.exact, "float64")):
            for i in positions:
                arrays[i] = arrays[i].astype(np.promote_types(arrays[i].dtype, least))
        return arrays

    def dtypes(self, row: Row) -> list[str]:
        """Those of the row that the inputs can have; float32 where they have none to change."""
        kinds = {x.dtype.kind for x in self.drawn()}
        if "f" in kinds:
            return [name for name in row.dtypes if not (row.particular and name in COMPLEX)]
        if "c" in kinds:
            return [name for name in row.dtypes if name in SINGLE_AND_DOUBLE]
        whole = [name for name in row.dtypes if dtype_of(name).kind in "iu"] if kinds & set("iu") else []
        return ["float32", *whole]

    def specs(self, dtype: Any = "float32") -> list[TensorSpec]:
        """Types of the inputs."""
        return [TensorSpec(x.shape, x.dtype) for x in self.inputs(dtype)]


def dtype_of(name: Any) -> np.dtype[Any]:
    """The dtype of a name, bfloat16 among them."""
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def converted(x: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """Numbers of float64 or complex128 in another dtype, complex and whole ones made of them; others as they are."""
    if x.dtype.kind not in "fc":
        return x
    if x.dtype.kind == "c":
        return x.astype(np.promote_types(np.complex64, dtype)) if dtype.kind in "fc" else x
    if dtype.kind == "c":
        return np.asarray(x + 1j * x.reshape(-1)[::-1].reshape(x.shape)).astype(dtype)
    if dtype.kind in "iub":
        whole = np.rint(2 * x)
        return np.asarray(whole if dtype.kind == "i" else abs(whole)).astype(dtype)
    return x.astype(dtype)


@dataclass(frozen=True)
class Wrong:
    """Operands that do not fit, and what is said of them.

    Attributes:
        what: The operation, or a function of the operands.
        operands: Types of the operands, blobs: a shape of float32, or dtype and shape, ``("int8", 2, 3)``.
        error: Type of the error that is raised.
        match: A pattern of its message.
    """

    what: Any
    operands: Sequence[Sequence[Any]]
    error: type[Exception]
    match: str

    @property
    def specs(self) -> list[TensorSpec]:
        """Types of the operands."""
        typed = [("float32", *each) if not each or isinstance(each[0], int) else each for each in self.operands]
        return [TensorSpec.of(tuple(shape), dtype) for dtype, *shape in typed]

    def apply(self) -> None:
        """Apply it to blobs."""
        graph = af.Graph("wrong")
        blobs = [graph.blob(f"x{i}", *spec) for i, spec in enumerate(self.specs)]
        if isinstance(self.what, Operation):
            graph.apply(self.what, *blobs)
        else:
            self.what(*blobs)


@dataclass(frozen=True)
class Row:
    """An operation, or a function that is made of several, and what suites need to know of it.

    Attributes:
        kind: Class of the operation; None for a function.
        samples: Inputs, the first small: what every device and every library is tried with.
        name: Name of the row: that of the class, or of the function with its module ("linalg.svd").
        numpy: What the results are: ``numpy(*arrays, **sample.parameters)``, an array or several.
        widened: Whether the floating inputs of that come as float64.
        torch: The same in PyTorch: a name in ``torch``, or ``torch(torch, *tensors, **parameters)``.
        standard: The same in the array API standard: a name, or ``standard(xp, *arrays, **parameters)``.
        without: For each reference that there is none of ("numpy", "torch", "differences", "blobs"), why.
        dtypes: Dtypes that the numbers of samples may have.
        tolerance: How far results may lie apart where that is not `TOLERANCE`, by dtype.
        by_steps: Whether numbers of 16 bits are rounded after each step, not once at the end.
        devices: Kinds of devices that compute it.
        differentiable: Whether it has a gradient; that of the class if left out.
        orders: Orders of gradients that are compared with differences and PyTorch.
        slopes: How many of its results have a gradient, from the first; None for all.
        particular: Whether inputs must be those of a sample: they have to suit each other, or not all numbers will do.
        random: Whether results are drawn: each frame has its own.
        onnx: Operator of an ONNX file of it, besides casts and transpositions; "" where a file cannot have it.
        special: Inputs of numbers where formulas divide by zero, take a logarithm of it, or choose.
        corners: Further such inputs, as they are: of other parameters, or where a choice depends on several numbers.
        closed: Number of the last axes of each input that cannot be open.
        drawn: Draws the sample of a number, of any shapes and parameters: `tests.operations.functions.draws`.
    """

    kind: type[Operation] | None
    samples: Sequence[Sample]
    name: str = ""
    numpy: Callable[..., Any] | None = None
    widened: bool = True
    torch: str | Callable[..., Any] | None = None
    standard: str | Callable[..., Any] | None = None
    without: Mapping[str, str] = field(default_factory=dict)
    dtypes: Sequence[str] = FLOATS
    tolerance: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    by_steps: bool = False
    devices: Sequence[str] = DEVICES
    differentiable: bool | None = None
    orders: int = 2
    slopes: int | None = None
    particular: bool = False
    random: bool = False
    onnx: str = ""
    special: Sample | None = None
    corners: Sequence[Sample] = ()
    closed: int = 0
    drawn: Any = None

    def __post_init__(self) -> None:
        kind = self.kind
        if kind is not None:
            assert all(type(sample.what) is kind for sample in self.samples), kind
            object.__setattr__(self, "name", self.name or kind.__name__)
        if self.differentiable is None:
            object.__setattr__(self, "differentiable", kind is None or kind.differentiable)
        assert self.name
        assert self.samples, self.name

    def __str__(self) -> str:
        return self.name

    @property
    def first(self) -> Sample:
        """The first sample."""
        return self.samples[0]

    def bounds(self, dtype: Any) -> tuple[float, float]:
        """Relative and absolute tolerance for inputs of a dtype."""
        name = dtype_of(dtype).name
        return self.tolerance.get(name) or TOLERANCE.get(name, (0.0, 0.0))

    def of_torch(self, torch: Any, *tensors: Any, **parameters: Any) -> Any:
        """What PyTorch computes."""
        return _called(self.torch, torch, tensors, parameters)

    def of_standard(self, xp: Any, *arrays: Any, **parameters: Any) -> Any:
        """What a library of the array API standard computes."""
        return _called(self.standard, xp, arrays, parameters)


def _called(reference: Any, library: Any, arrays: Sequence[Any], parameters: Mapping[str, Any]) -> Any:
    if not isinstance(reference, str):
        return reference(library, *arrays, **parameters)
    found = library
    for part in reference.split("."):
        found = getattr(found, part)
    return found(*arrays, **parameters)


def call(function: Callable[..., Any], make: Make, **parameters: Any) -> Sample:
    """A call of a function with parameters."""
    return Sample(partial(function, **parameters), make)


def composed(name: str, torch: Any, *samples: Sample, **more: Any) -> Row:
    """The row of a function that PyTorch has, too."""
    return Row(None, samples, name=name, torch=torch, **{"dtypes": SINGLE_AND_DOUBLE, **more})


def backward(kind: type[Operation], numpy: Callable[..., Any] | None, samples: Sequence[Sample], **more: Any) -> Row:
    """The row of an operation that only gradients are made of."""
    without = {"torch": "only gradients are made of it", **more.pop("without", {})}
    return Row(kind, samples, numpy=numpy, without=without, **{"dtypes": FLOATING, **more})


# -- inputs ---------------------------------------------------------------------------------------------------------


def normal(*shapes: tuple[int, ...]) -> Make:
    """Normal numbers."""
    return lambda random: [random.standard_normal(shape) for shape in shapes]


def complexes(*shapes: tuple[int, ...]) -> Make:
    """Complex normal numbers."""
    return lambda random: [random.standard_normal(shape) + 1j * random.standard_normal(shape) for shape in shapes]


def whole(low: int, *shapes: tuple[int, ...]) -> Make:
    """Few different whole numbers: many are equal."""
    return lambda random: [random.integers(low, 4, shape).astype(np.float64) for shape in shapes]


def integers(*shapes: tuple[int, ...], high: int = 4) -> Make:
    """Integers from 0."""
    return lambda random: [random.integers(0, high, shape) for shape in shapes]


def flags(*shapes: tuple[int, ...]) -> Make:
    """Truths."""
    return lambda random: [random.random(shape) < 0.5 for shape in shapes]


def positive(*shapes: tuple[int, ...], first: int = 0) -> Make:
    """Normal numbers, and from position ``first`` on some from 0.5."""
    return lambda random: [
        random.standard_normal(shape) if i < first else random.uniform(0.5, 2.0, shape)
        for i, shape in enumerate(shapes)
    ]


def fixed(*arrays: Any) -> Make:
    """The same numbers for all seeds."""
    return lambda random: [np.array(x) for x in arrays]


# -- references -------------------------------------------------------------------------------------------------------


def adjoint(function: Callable[[np.ndarray], np.ndarray], shape: tuple[int, ...], g: np.ndarray) -> np.ndarray:
    """The transposed of a linear function of arrays of a shape, applied to ``g``: what a gradient of it is."""
    size = int(np.prod(shape))
    basis = np.eye(size).reshape(size, *shape)
    return np.array([np.sum(function(e) * g) for e in basis]).reshape(shape)


def refused(error: type[Exception], *cases: tuple[Any, Sequence[Sequence[Any]], str]) -> list[Wrong]:
    """What is refused with errors of one type: what it is, the types of its operands, what is said of them."""
    return [Wrong(what, operands, error, match) for what, operands, match in cases]
