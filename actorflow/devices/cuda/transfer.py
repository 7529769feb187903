"""Arrays that come to a CUDA device and leave it: copies, and arrays of other libraries without a copy."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from actorflow.devices.cuda.memory import check_dtype
from actorflow.errors import DeviceError

_ALREADY_ENABLED = 704  # an error of the CUDA runtime


def copy_in(cupy: Any, source: npt.NDArray[Any], target: Any) -> None:
    """Copy a host array to an array of the current device.

    From page-locked memory the copy is only enqueued: the source must not change until it has ended. From other memory
    CUDA takes the bytes it needs before this returns.
    """
    _check(source, target)
    if target.nbytes == 0:
        return
    runtime, stream = cupy.cuda.runtime, cupy.cuda.get_current_stream()
    contiguous = np.ascontiguousarray(source)
    try:
        pointer = target.data.ptr
        runtime.memcpyAsync(pointer, contiguous.ctypes.data, target.nbytes, runtime.memcpyHostToDevice, stream.ptr)
        if contiguous is not source and not np.may_share_memory(contiguous, source):
            runtime.streamSynchronize(stream.ptr)  # nothing else keeps the copy
    except runtime.CUDARuntimeError as error:
        raise DeviceError(f"the copy of {_text(source)} to the device failed: {error}") from error


def copy_out(cupy: Any, source: Any, target: npt.NDArray[Any]) -> None:
    """Copy an array of the current device to a C-contiguous host array.

    To page-locked memory the copy is only enqueued; to other memory CUDA has ended it when this returns.
    """
    _check(source, target)
    if not target.flags.c_contiguous:
        raise DeviceError(f"a copy from the device needs a C-contiguous target, got strides {target.strides}")
    if source.nbytes == 0:
        return
    runtime, stream = cupy.cuda.runtime, cupy.cuda.get_current_stream()
    try:
        dense = cupy.ascontiguousarray(source)  # kept until the copy is enqueued; its block stays with this stream
        runtime.memcpyAsync(target.ctypes.data, dense.data.ptr, target.nbytes, runtime.memcpyDeviceToHost, stream.ptr)
    except runtime.CUDARuntimeError as error:
        raise DeviceError(f"the copy of {_text(source)} from the device failed: {error}") from error


def copy_peer(cupy: Any, source: Any, target: Any) -> None:
    """Copy an array of another device to one of the current device.

    It goes through the host where they cannot reach each other.
    """
    _check(source, target)
    if not (source.flags.c_contiguous and target.flags.c_contiguous):
        raise DeviceError(f"a copy between devices needs C-contiguous arrays, got strides {source.strides}")
    if target.nbytes == 0:
        return
    runtime, stream = cupy.cuda.runtime, cupy.cuda.get_current_stream()
    there, here = source.data, target.data
    try:
        runtime.memcpyPeerAsync(here.ptr, here.device_id, there.ptr, there.device_id, target.nbytes, stream.ptr)
    except runtime.CUDARuntimeError as error:
        devices = f"'cuda:{there.device_id}' to 'cuda:{here.device_id}'"
        raise DeviceError(f"the copy of {_text(source)} from {devices} failed: {error}") from error


def reach(cupy: Any, index: int, other: int) -> bool:
    """Have device ``index`` access the memory of another directly, if it can; whether it does."""
    runtime = cupy.cuda.runtime
    try:
        if not runtime.deviceCanAccessPeer(index, other):
            return False
        with cupy.cuda.Device(index):
            runtime.deviceEnablePeerAccess(other)
    except runtime.CUDARuntimeError as error:
        if error.status != _ALREADY_ENABLED:
            raise DeviceError(f"device 'cuda:{index}' cannot reach 'cuda:{other}': {error}") from error
    return True


def _check(source: Any, target: Any) -> None:
    if source.shape != target.shape or source.dtype != target.dtype:
        raise DeviceError(f"a copy needs arrays of one type, got {_text(source)} and {_text(target)}")


def _text(array: Any) -> str:
    return f"{array.dtype}{list(array.shape)}"


#: Kinds of device of DLPack.
_CUDA, _CUDA_MANAGED = 2, 13


def as_device_array(cupy: Any, index: int, value: Any) -> Any | None:
    """A value whose memory is on a CUDA device as a C-contiguous array of CuPy; None if it is not such a value.

    Work of its library that still writes into it comes in front of the caller's next work on its current stream of
    the device. Only a value that is not C-contiguous is copied, on that stream. Nothing waits for the device.

    Raises:
        DTypeError: if CuPy has no such dtype.
        DeviceError: if its library cannot share it, as torch a tensor that needs a gradient.
    """
    with cupy.cuda.Device(index):
        if isinstance(value, cupy.ndarray):
            array = value if value.data.device_id == index else None
        elif hasattr(type(value), "__dlpack_device__"):
            array = _from_dlpack(cupy, index, value)
        elif hasattr(value, "__cuda_array_interface__"):
            array = _from_interface(cupy, index, value)
        else:
            array = None
        if array is None:
            return None
        check_dtype(array.dtype, f"cuda:{index}")
        return array if array.flags.c_contiguous else cupy.ascontiguousarray(array)


def _from_dlpack(cupy: Any, index: int, value: Any) -> Any | None:
    try:
        kind, device = value.__dlpack_device__()
        if kind not in (_CUDA, _CUDA_MANAGED) or (kind == _CUDA and device != index):
            return None
        array = cupy.from_dlpack(value)  # has the library's stream waited for by the current one
    except (BufferError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        raise DeviceError(f"device 'cuda:{index}' cannot share a {_name(value)}: {error}") from error
    return array if array.data.device_id == index else None


def _from_interface(cupy: Any, index: int, value: Any) -> Any | None:
    """By the CUDA array interface; CuPy's own conversion would block the loop until the library's stream is idle."""
    described = value.__cuda_array_interface__
    if described.get("mask") is not None:
        raise DeviceError(f"device 'cuda:{index}' cannot share a {_name(value)}: it is masked")
    shape, strides = tuple(described["shape"]), described.get("strides")
    dtype = np.dtype(described["typestr"])
    check_dtype(dtype, f"cuda:{index}")
    pointer, is_read_only = described["data"]
    if is_read_only:
        raise DeviceError(f"device 'cuda:{index}' cannot share a {_name(value)}: it is read-only")
    if 0 in shape:
        return cupy.empty(shape, dtype)
    if cupy.cuda.runtime.pointerGetAttributes(pointer).device != index:
        return None
    if strides is None:
        strides = _dense_strides(shape, dtype.itemsize)
    extent = sum((length - 1) * abs(stride) for length, stride in zip(shape, strides, strict=True)) + dtype.itemsize
    memory = cupy.cuda.UnownedMemory(pointer, extent, value, index)
    array = cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(memory, 0), strides)
    stream = described.get("stream")
    if stream is not None:
        event = cupy.cuda.Event(disable_timing=True)
        cupy.cuda.runtime.eventRecord(event.ptr, int(stream))
        cupy.cuda.get_current_stream().wait_event(event)
    return array


def _dense_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    strides = [itemsize]
    for length in reversed(shape[1:]):
        strides.append(strides[-1] * length)
    return tuple(reversed(strides[: len(shape)]))


def _name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
