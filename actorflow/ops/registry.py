"""The kernel registry, which says which code computes an operation on a device, and the libraries of kernels.

The key is (operation, device kind, library, dtype, layout), as in PaddlePaddle Fluid. ``"any"`` as dtype or layout
matches all; an exact match wins over it. A library's kernels are registered when the module named for it is imported,
which happens when a graph first asks for them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, NamedTuple, TypeVar

import numpy as np

from actorflow.errors import DTypeError, GraphError, KernelNotFoundError, MissingExtraError, ShapeError, did_you_mean
from actorflow.ops.function import check_runs, is_coroutine_function
from actorflow.ops.operation import Operation
from actorflow.spec import TensorSpec

#: As dtype or layout of a key: matches all.
ANY = "any"
#: The order of axes that operations speak of: images are (batch, height, width, channels).
USUAL = "nhwc"


class KernelKey(NamedTuple):
    """Key that a kernel is registered for.

    Attributes:
        operation: Kind of the operation: the name of its class.
        device: Kind of device.
        library: Library that the kernel belongs to.
        dtype: Dtype of the operation's first input, or "any".
        layout: Name of the layout, or "any".
    Example:
        >>> print(af.ops.KernelKey("Relu", "cpu", "numpy", dtype="float32", layout="any"))
        Relu(device=cpu, library=numpy, dtype=float32, layout=any)
    """

    operation: str
    device: str
    library: str
    dtype: str
    layout: str

    def __str__(self) -> str:
        return (
            f"{self.operation}(device={self.device}, library={self.library}, dtype={self.dtype}, layout={self.layout})"
        )


@dataclass(frozen=True, slots=True)
class Kernel:
    """One implementation of an operation.

    Attributes:
        key: Key that it is registered for.
        function: Called as ``function(operation, inputs, outputs)`` with a list of input arrays and a list of output
            buffers of the inferred types, whose contents are undefined; it writes every element of each. With
            ``returns`` it is called with ``outputs=None`` and returns a list of arrays, which may be views of its
            inputs.
        returns: See ``function``.
        inplace: The first output may be the very array that is the first input, when nothing else reads that.
        supports: Tells whether the kernel can do an operation with these parameters; None where it can do all.
        captures: Whether its launches may be captured and replayed (``af.Graph(..., capture=True)``): it calls no
            library that refuses that, reads nothing back, and launches the same for arrays of the same types at the
            same addresses.
        threaded: It computes a product of matrices on all cores by itself.
        joins: Tells whether its library computes several ops as one function, which pays whatever their size. It is
            called with the operation that a plan would make of them, and the types of its inputs: a chain (`Fused`)
            that it is the kernel of, or its own operation with a chain that takes its result (`Followed`).
        random: Called with a fourth argument, the number of the frame: together with the operation's seed it names the
            random stream, so results depend neither on timing nor on the number of devices.
        keeps: It keeps what follows from an input, but the first, for as long as it is called with the same array. Of
            an array that is not a constant's, a variable's or a kernel's, and so may be written to between two calls,
            it is given a new view in each (`seeing_anew`).
        bind: Called with an operation and the types of its inputs, gives the function for one step of a program, which
            is called as ``function`` is, or another kernel, which then computes it: what follows from types is asked
            once. None where nothing is made of them.
        made_for: The class that it was made for, where none was registered. Another one of the same name, such as a
            cell of a notebook defines that is run again, needs a kernel of its own.
        is_own: It is one that this package registers: results that it returns are of the inferred types, so that they
            are not looked at where ops are called in a row.
    Example:
        >>> af.ops.load_library("cpu", "numpy")
        >>> found = af.ops.find_kernel(af.ops.Softmax(-1), "cpu", np.dtype("float32"))
        >>> x, y = np.zeros((1, 2), "float32"), np.empty((1, 2), "float32")
        >>> found.function(af.ops.Softmax(-1), [x], [y])
        >>> print(y, found.returns, found.inplace)
        [[0.5 0.5]] False True
    """

    key: KernelKey
    function: Callable[..., Any]
    returns: bool = False
    random: bool = False
    inplace: bool = False
    supports: Callable[[Any], bool] | None = None
    captures: bool = True
    threaded: bool = False
    joins: Callable[[Any, Sequence[TensorSpec]], bool] | None = None
    keeps: bool = False
    bind: Callable[[Any, Sequence[TensorSpec]], Callable[..., Any] | Kernel] | None = None
    made_for: type[Operation] | None = None
    is_own: bool = False

    def bound(self, operation: Operation, inputs: Sequence[TensorSpec]) -> Kernel:
        """The same, for one step whose inputs are of these types, in a program, where NumPy warns of nothing."""
        bind = self.bind or getattr(self.function, "bind", None)
        found = self.function if bind is None else bind(operation, inputs)
        return found if isinstance(found, Kernel) else self if found is self.function else replace(self, function=found)

    def seeing_anew(self, positions: Sequence[int]) -> Kernel:
        """The same, for inputs that may have other contents though they are the same arrays."""
        function = self.function

        def compute(operation: Operation, inputs: Sequence[Any], *more: Any) -> Any:
            seen = [*inputs]
            for position in positions:
                seen[position] = seen[position].view()
            return function(operation, seen, *more)

        return replace(self, function=compute)

    def check(self, results: Sequence[Any], specs: Sequence[TensorSpec]) -> None:
        """Check its results, if it ``returns``: their reader, a primitive say, looks at no shape again.

        Raises:
            GraphError: if there are more or fewer results than outputs.
            ShapeError, DTypeError: if one is not of the inferred type.
        """
        if len(results) != len(specs):
            raise GraphError(f"the kernel must return {len(specs)} values, got {len(results)}")
        is_of_host = self.key.device == "cpu"
        for position, (result, (shape, dtype)) in enumerate(zip(results, specs, strict=True)):
            if dtype.hasobject and not shape:  # any Python object
                continue
            what = "the kernel's result" if len(specs) == 1 else f"the kernel's result {position}"
            if not (isinstance(result, np.ndarray) if is_of_host else hasattr(result, "shape")):
                raise DTypeError(f"{what}: expected an array, got {type(result).__name__}")
            if result.shape != shape:
                raise ShapeError(f"{what}: expected shape {shape}, as inferred, got {result.shape}")
            if result.dtype != dtype:
                raise DTypeError(f"{what}: expected dtype {dtype}, as inferred, got {result.dtype}")


_kernels: dict[KernelKey, Kernel] = {}
#: Operations and kinds of devices of which some kernel looks at the operation's parameters.
_choosy: set[tuple[str, str]] = set()
#: (kind of device, library) -> what makes kernels of operations that say themselves how they are computed.
_makers: dict[tuple[str, str], Callable[[type[Operation], KernelKey], Kernel | None]] = {}
#: Operations that the makers have no kernel for.
_refused: set[tuple[type[Operation], KernelKey]] = set()
_F = TypeVar("_F", bound=Callable[..., Any])


def kernel(
    operation: type[Operation] | str,
    *,
    device: str = "cpu",
    library: str = "numpy",
    dtypes: str | Iterable[str] = ANY,
    layout: str = ANY,
    returns: bool = False,
    random: bool = False,
    inplace: bool = False,
    supports: Callable[[Any], bool] | None = None,
    captures: bool = True,
    threaded: bool = False,
    joins: Callable[[Any, Sequence[TensorSpec]], bool] | None = None,
    keeps: bool = False,
    bind: Callable[[Any, Sequence[TensorSpec]], Callable[..., Any] | Kernel] | None = None,
) -> Callable[[_F], _F]:
    """Register the decorated function as a kernel (see `Kernel` for how it is called, and for the flags).

    Args:
        operation: The class of the operation, or its name.
        device: Kind of device, ``"cuda"`` say.
        library: Library that the kernel belongs to.
        dtypes: Dtypes of the first input that it is for; ``"any"`` for dtypes that have no kernel of their own.
        layout: Name of the layout that it wants, see `Layout`.
    Returns:
        The decorator, which gives the function back.
    Raises:
        GraphError: if a kernel is registered for the same key already, or the function is not a plain one.
    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Double(af.ops.Operation):
        ...     def infer(self, x):
        ...         return (x,)
        >>> @af.ops.kernel(Double, inplace=True)
        ... def double(operation, inputs, outputs):
        ...     np.multiply(inputs[0], 2, out=outputs[0])
        >>> graph = af.Graph("example")
        >>> x = graph.blob("x", shape=2)
        >>> y = graph.apply(Double(), x)
        >>> print(graph.run_sync({x: [1, 2]})[y])
        [2. 4.]
    """
    name = operation if isinstance(operation, str) else operation.__name__

    names = (dtypes,) if isinstance(dtypes, str) else tuple(dtypes)
    # NumPy knows bfloat16 where ml_dtypes is imported, and that need not be there.
    keys = [KernelKey(name, device, library, n if n in (ANY, "bfloat16") else str(np.dtype(n)), layout) for n in names]

    def register(function: _F) -> _F:
        check_runs(function, "a kernel")
        if is_coroutine_function(function):
            raise GraphError(f"{function!r} is an async function: a kernel is a plain one, graph.function() awaits")
        for key in keys:
            if key in _kernels:
                raise GraphError(f"a kernel is already registered for {key}: {_kernels[key].function!r}")
        flags = (returns, random, inplace, supports, captures, threaded, joins, keeps, bind)
        is_own = getattr(function, "__module__", "").startswith("actorflow.ops.")
        for key in keys:
            _keep(Kernel(key, function, *flags, is_own=is_own))
        return function

    return register


def kernel_maker(device: str, library: str) -> Callable[[_F], _F]:
    """Register the decorated function as the maker of kernels that are not registered, when they are first wanted.

    It is called with the class of an operation and a key, and returns a kernel for this key, or for any dtype; None
    where it has none.
    """

    def register(function: _F) -> _F:
        _makers[device, library] = function
        return function

    return register


def find_kernel(
    operation: Operation, device: str, dtype: np.dtype[Any], layout: str = ANY, libraries: Iterable[str] = ("numpy",)
) -> Kernel:
    """The kernel for an operation: first library first, exact dtype and layout before ``"any"``.

    Args:
        operation: The operation.
        device: Kind of device.
        dtype: Dtype of its first input.
        layout: Name of the layout.
        libraries: The libraries that may have it; they must be loaded (`load_library`).
    Returns:
        The kernel.
    Raises:
        KernelNotFoundError: listing the kernels that are registered for the operation.
    Example:
        >>> af.ops.load_library("cpu", "numpy")
        >>> print(af.ops.find_kernel(af.ops.Relu(), "cpu", np.dtype("float32")).key)
        Relu(device=cpu, library=numpy, dtype=any, layout=any)
    """
    libraries = tuple(libraries)
    for library in libraries:
        found = lookup(operation, device, library, dtype, layout)
        if found is not None:
            return found
    raise not_found(operation, device, dtype, libraries, layout)


def not_found(
    operation: Operation, device: str, dtype: np.dtype[Any], libraries: Sequence[str], layout: str = ANY
) -> KernelNotFoundError:
    """The error that lists the kernels that are registered for an operation."""
    wanted = KernelKey(operation.kind, device, "|".join(libraries), str(dtype), layout)
    known = [f"  {key}" for key in [*_kernels] if key.operation == operation.kind]
    if not known:
        near = did_you_mean(operation.kind, {key.operation for key in [*_kernels]})
        known = [f"  nothing: register one with @af.ops.kernel({operation.kind}){near}"]
    listing = "\n".join(known)
    return KernelNotFoundError(f"no kernel for {wanted}; registered:\n{listing}")


def lookup(operation: Operation, device: str, library: str, dtype: np.dtype[Any], layout: str = ANY) -> Kernel | None:
    """The kernel of one library for an operation, if it has one that supports it, or can make one."""
    kind = type(operation)
    for dtype_key in (str(dtype), ANY):
        for layout_key in dict.fromkeys((layout, ANY)):
            key = KernelKey(operation.kind, device, library, dtype_key, layout_key)
            found = _kernels.get(key)
            if found is None or found.made_for not in (None, kind):
                continue
            if found.supports is None or found.supports(operation):
                return found
    key = KernelKey(operation.kind, device, library, str(dtype), ANY)
    maker = _makers.get((device, library))
    if maker is None or (kind, key) in _refused:
        return None
    made = maker(kind, key)
    if made is None:
        _refused.add((kind, key))
        return None
    return _keep(replace(made, made_for=kind))


def _keep(kernel: Kernel) -> Kernel:
    _kernels[kernel.key] = kernel
    if kernel.supports is not None:
        _choosy.add((kernel.key.operation, kernel.key.device))
    return kernel


def may_refuse(operation: Operation, device: str) -> bool:
    """Return whether a kernel for a kind of operation looks at the operation's parameters."""
    return (operation.kind, device) in _choosy


def registered_kernels() -> tuple[KernelKey, ...]:
    """Keys of all kernels, in order of registration.

    Example:
        >>> af.ops.load_library("cpu", "numpy")
        >>> print("Conv" in {key.operation for key in af.ops.registered_kernels() if key.device == "cpu"})
        True
    """
    return tuple(_kernels)


def kernels_of(device: str, library: str) -> tuple[Kernel, ...]:
    """All kernels of a library for a kind of device, in order of registration."""
    return tuple(known for key, known in [*_kernels.items()] if (key.device, key.library) == (device, library))


_logger = logging.getLogger(__name__)

#: (kind of device, library) -> the module whose import registers the kernels.
_modules: dict[tuple[str, str], str] = {
    ("cpu", "numpy"): "actorflow.ops.cpu",
    ("cpu", "onednn"): "actorflow.ops.onednn.kernels",
    ("sim", "sim"): "actorflow.ops.sim",
    ("cuda", "cupy"): "actorflow.ops.cuda",
    ("cuda", "cudnn"): "actorflow.ops.cuda.cudnn",
}
_loaded: set[tuple[str, str]] = set()
#: Libraries that a device names though many do without: that one is not installed is nothing to warn of.
_OPTIONAL = frozenset([("cpu", "onednn")])
#: Libraries that no user asked for and that could not be loaded, and why.
_failed: dict[tuple[str, str], Exception] = {}


def register_library(kind: str, library: str, module: str) -> None:
    """Name the module that registers the kernels of a library, imported when a graph first asks for it.

    Args:
        kind: Kind of device, ``"cpu"`` say.
        library: Name of the library, as in ``libraries=[...]``.
        module: Full name of the module.
    Example:
        >>> af.ops.register_library("cpu", "mine", "my_package.kernels")
        >>> graph = af.Graph("example", libraries=["mine", "numpy"])
    """
    _modules[kind, library] = module
    _loaded.discard((kind, library))
    _failed.pop((kind, library), None)


def load_library(kind: str, library: str) -> None:
    """Have the kernels of a library registered.

    Args:
        kind: Kind of device, ``"cpu"`` say.
        library: Name of the library.
    Raises:
        KernelNotFoundError: if there is no such library for this kind of device.
        MissingExtraError: if a library that it is built on is not installed.
    Example:
        >>> af.ops.load_library("cpu", "numpy")
        >>> af.ops.load_library("cpu", "fortran")
        Traceback (most recent call last):
            ...
        actorflow.errors.KernelNotFoundError: no library 'fortran' for devices of kind 'cpu'; libraries: numpy, ...
    """
    key = (kind, library)
    if key in _loaded:
        return
    module = _modules.get(key)
    if module is not None:
        import_module(module)
    elif key not in _known():
        names = dict.fromkeys(name for device, name in _known() if device == kind)
        raise KernelNotFoundError(
            f"no library {library!r} for devices of kind {kind!r}; "
            f"libraries: {', '.join(names) or 'none'}{did_you_mean(library, names)}"
        )
    _loaded.add(key)


def are_loaded(kind: str, libraries: Iterable[str]) -> bool:
    """Return whether all these libraries of a kind of device were loaded, or could not be."""
    return all((kind, library) in _loaded or (kind, library) in _failed for library in libraries)


def load_libraries(kind: str, libraries: Sequence[str]) -> list[str]:
    """Have the kernels of a kind of device's own libraries registered, as far as they can be loaded; returns these.

    One that cannot be loaded falls away, and the log says so once: a library below it may be there in part, and the
    other libraries do without it.

    Raises:
        Exception: of the loading, if no library is left.
    """
    usable = [library for library in libraries if _can_be_loaded(kind, library)]
    if libraries and not usable:
        raise _failed[kind, libraries[-1]]
    return usable


def _can_be_loaded(kind: str, library: str) -> bool:
    key = (kind, library)
    if key in _failed:
        return False
    try:
        load_library(kind, library)
    except Exception as error:  # noqa: BLE001  a broken installation may raise anything
        # Kept without the calls that it has passed, which refer to the graph that asked, and so to its threads.
        _failed[key] = error.with_traceback(None)
        if error.__cause__ is not None:
            error.__cause__.__traceback__ = None
        is_plain = key in _OPTIONAL and isinstance(error, MissingExtraError)
        text = "kernel library %r of devices of kind %r is left out: %s (more: actorflow docs install)"
        _logger.log(logging.DEBUG if is_plain else logging.WARNING, text, library, kind, error)
        return False
    return True


def is_library_of(library: str, kind: str) -> bool:
    """Return whether a library has kernels for a kind of device.

    Raises:
        KernelNotFoundError: if no kind of device has such a library.
    """
    known = _known()
    if (kind, library) in known:
        return True
    if not any(name == library for _, name in known):
        names = ", ".join(f"{name} ({device})" for device, name in known)
        near = did_you_mean(library, [name for _, name in known])
        raise KernelNotFoundError(f"no library {library!r}; libraries: {names}{near}")
    return False


def _known() -> dict[tuple[str, str], None]:
    return dict.fromkeys([*_modules, *((key.device, key.library) for key in registered_kernels())])
