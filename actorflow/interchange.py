"""Arrays of other libraries as NumPy arrays, without a copy where they lie in the host's memory.

DLPack is asked first, then ``__array__`` and ``__array_interface__``. Torch's tensors are treated by themselves, if
torch is loaded: DLPack does not know that a tensor is waiting to be negated, and NumPy not all of its dtypes.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from actorflow.errors import DTypeError, GraphError, PlaceError, ShapeError
from actorflow.spec import TensorSpec

_Array = npt.NDArray[Any]

#: DLPack's kinds of devices whose memory the host reads: the CPU, memory pinned for CUDA and ROCm, managed memory.
_HOST = {1, 3, 11, 13}
_KINDS = {2: "cuda", 4: "opencl", 7: "vulkan", 8: "metal", 9: "vpi", 10: "rocm", 12: "ext", 14: "oneapi", 15: "webgpu"}
_FLOATS = {"torch.float16", "torch.float32", "torch.float64"}  # torch's floating dtypes that NumPy has
_PROTOCOLS = ("__array__", "__array_interface__", "__array_struct__")
#: Errors of exporters and of NumPy where memory cannot be shared.
_REFUSALS = (AttributeError, BufferError, NotImplementedError, RuntimeError, TypeError, ValueError)
#: Types that NumPy makes an array of without asking for a protocol.
_PLAIN = (np.ndarray, np.generic, list, tuple, int, float, complex)


def to_numpy(value: Any) -> npt.NDArray[Any]:
    """Any array as a NumPy array: itself or its memory, where that is the host's, else a copy.

    An array that cannot be written to stays so. A torch tensor's history for gradients is left behind; one that is
    waiting to be conjugated or negated is copied. bfloat16 and the 8-bit floats become dtypes of ``ml_dtypes``.

    Args:
        value: An array of NumPy, CuPy, torch, jax, a device of a graph, or of any library that speaks DLPack,
            ``__array__`` or ``__array_interface__``, or that has ``shape``, ``dtype`` and a ``get()`` that copies it.
    Returns:
        Array of the same shape and dtype. Blocks until the device has computed it.
    Raises:
        DTypeError: if it is not an array, or NumPy has no such dtype.
        GraphError: if its memory can neither be shared nor copied.

    Example:
        >>> af.to_numpy(af.array.asarray([1, 2]) + 1)
        array([2, 3])
    """
    if type(value) is np.ndarray:
        return value
    if isinstance(value, np.ndarray | np.generic):
        return np.asarray(value)
    if _is_torch(value):
        return _of_torch(value, "to_numpy")
    if hasattr(type(value), "__dlpack__"):
        return _from_dlpack(value, "to_numpy") if _device_of(value) is None else _copied(value)
    if not isinstance(value, type) and any(hasattr(value, name) for name in _PROTOCOLS):
        try:
            return np.asarray(value)
        except TypeError:
            return _copied(value)
    if _has_get(value):
        return np.asarray(value.get())
    raise DTypeError(f"to_numpy: expected an array, got {_kind(value)}")


def read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """An array that cannot be written to, of the same memory."""
    view = array.view()
    view.setflags(False)  # type: ignore[call-arg]  # by name, as its stubs want it, it takes twice as long
    return view


def is_fixed(array: Any) -> bool:
    """Return whether nothing can write to the memory of an array: it and any array it is a view of are read-only."""
    while type(array) is np.ndarray and not array.flags.writeable:
        if array.base is None:
            return bool(array.flags.owndata)
        array = array.base
    return type(array) is bytes


def from_host_exchange(value: Any, what: str) -> npt.NDArray[Any]:
    """A value that an application gave for a blob in the host's memory, as a NumPy array on the same memory.

    A value without an array's protocol (numbers, nested lists) becomes an array as NumPy makes it.

    Raises:
        PlaceError: if it is in the memory of another device.
        DTypeError: if NumPy has no such dtype.
        GraphError: if its memory cannot be shared.
    """
    if _is_torch(value):
        if value.device.type != "cpu":
            raise _elsewhere(value, what, str(value.device))
        return _of_torch(value, what)
    if not hasattr(type(value), "__dlpack__"):
        try:
            return np.asarray(value)
        except TypeError as error:
            if _has_get(value):
                raise _elsewhere(value, what, str(getattr(value, "place", "another device"))) from error
            raise DTypeError(f"{what}: expected an array, got {_kind(value)}: {error}") from error
    device = _device_of(value)
    if device is not None:
        raise _elsewhere(value, what, device)
    return _from_dlpack(value, what)


def as_array(value: Any, spec: TensorSpec, what: str, *, narrow: bool = False) -> npt.NDArray[Any]:
    """A value as an array of a type; itself, without a copy, where it is one.

    An array's dtype is only widened, so that nothing is lost unasked. Python numbers have no dtype of their own and
    take the one of ``spec``: floats are rounded, integers must fit. With ``narrow``, an array is treated as they are.

    Raises:
        ShapeError, DTypeError: if the value does not fit.
        PlaceError: if it is in the memory of another device.
        GraphError: if its memory cannot be shared with NumPy.
    """
    if type(value) is np.ndarray and value.dtype == spec.dtype and value.shape == spec.shape:
        return value
    try:
        array = np.asarray(value) if isinstance(value, _PLAIN) else from_host_exchange(value, what)
    except GraphError:
        raise
    except ValueError as error:  # rows of different lengths
        raise ShapeError(f"{what}: expected shape {spec.shape}; {error}") from error
    if array.shape != spec.shape:
        raise ShapeError(f"{what}: expected shape {spec.shape}, got {'None' if value is None else array.shape}")
    if np.can_cast(array.dtype, spec.dtype, "safe"):
        return array.astype(spec.dtype, copy=False)
    has_dtype = not narrow and (hasattr(value, "dtype") or hasattr(value, "__dlpack__"))
    if not has_dtype and array.dtype.kind in "iu" and spec.dtype.kind in "biu":
        converted = array.astype(spec.dtype)
        if np.array_equal(converted, array):
            return converted
        raise DTypeError(f"{what}: expected dtype {spec.dtype}, got integers from {array.min()} to {array.max()}")
    if not has_dtype and np.can_cast(array.dtype, spec.dtype, "same_kind"):
        with np.errstate(all="ignore"):  # to infinity, or to 0
            return array.astype(spec.dtype)
    fits = array.dtype.kind in "biuf" or np.can_cast(array.dtype, spec.dtype, "same_kind")
    advice = f"; convert it, array.astype({spec.dtype.name!r})" if fits and hasattr(value, "astype") else ""
    got = "None" if value is None else array.dtype
    raise DTypeError(f"{what}: expected dtype {spec.dtype}, got {got}{advice}")


def _from_dlpack(value: Any, what: str) -> _Array:
    try:
        shared: _Array = np.from_dlpack(value, copy=False)
    except _REFUSALS:  # some exporters do not know the option, or must copy
        pass
    else:
        return shared
    try:
        array: _Array = np.from_dlpack(value)
    except _REFUSALS as refusal:
        # DLPack lacks some dtypes, and some exporters options, that __array__ has.
        if not hasattr(value, "__array__"):
            raise _unreadable(value, what, refusal) from refusal
        try:
            array = np.asarray(value)
        except _REFUSALS as error:
            raise _unreadable(value, what, error) from error
    return array


def _copied(value: Any) -> _Array:
    if _has_get(value):
        return np.asarray(value.get())
    try:
        return np.asarray(value) if hasattr(value, "__array__") else np.from_dlpack(value, device="cpu")
    except _REFUSALS as error:
        raise _unreadable(value, "to_numpy", error) from error


def _device_of(value: Any) -> str | None:
    try:
        kind, index = value.__dlpack_device__()
    except _REFUSALS:  # it has no name in DLPack
        return str(getattr(value, "device", "another device"))
    return None if int(kind) in _HOST else f"{_KINDS.get(int(kind), f'DLPack device {int(kind)}')}:{index}"


def _is_torch(value: Any) -> bool:
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    return tensor is not None and isinstance(value, tensor)


def _of_torch(value: Any, what: str) -> _Array:
    """The memory of a torch tensor, or of its copy on the CPU, its history for gradients left behind."""
    try:
        # Computed where they are pending, since only torch knows of these two: np.from_dlpack gives the wrong sign.
        tensor = value.detach().cpu().resolve_conj().resolve_neg()
        if tensor.dtype.is_floating_point and str(tensor.dtype) not in _FLOATS:
            return _small_floats(tensor, what)
        array: _Array = tensor.numpy()
    except _REFUSALS as error:
        if isinstance(error, GraphError):
            raise
        raise _unreadable(value, what, error) from error
    return array


def _small_floats(tensor: Any, what: str) -> _Array:
    """The memory of a tensor of a floating dtype that NumPy itself does not have."""
    name = str(tensor.dtype).removeprefix("torch.")
    try:
        import ml_dtypes
    except ImportError as error:
        raise DTypeError(f"{what}: NumPy has no dtype {name}; install what has: pip install ml_dtypes") from error
    dtype = getattr(ml_dtypes, name, None)
    if dtype is None:
        raise DTypeError(f"{what}: neither NumPy nor ml_dtypes has a dtype {name}")
    torch = sys.modules["torch"]
    bits = {1: torch.uint8, 2: torch.uint16}[tensor.element_size()]
    array: _Array = tensor.view(bits).numpy().view(dtype)
    return array


def _has_get(value: Any) -> bool:
    """Return whether ``get()`` copies it to the host, as for CuPy's arrays and those of devices of other makers."""
    return hasattr(type(value), "get") and all(hasattr(value, name) for name in ("shape", "dtype"))


def _kind(value: Any) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _elsewhere(value: Any, what: str, device: str) -> PlaceError:
    return PlaceError(
        f"{what}: expected an array in the host's memory, got a {_kind(value)} on {device}; "
        "copy it, af.to_numpy(value), or put the blob on that device"
    )


def _unreadable(value: Any, what: str, error: Exception) -> GraphError:
    return GraphError(f"{what}: NumPy cannot read the memory of this {_kind(value)}: {error}")
