"""Arrays of other libraries, and of CuPy outside of a graph, as arrays of a device: without a copy."""

from __future__ import annotations

from typing import Any

import numpy as np

from actorflow.devices.cuda.memory import check_dtype
from actorflow.errors import DeviceError

#: Kinds of device of DLPack.
_CUDA, _CUDA_MANAGED = 2, 13


def as_device_array(cupy: Any, index: int, value: Any) -> Any | None:
    """A value whose memory is on a CUDA device as a C-contiguous array of CuPy; None if it is no such value.

    What its library still computes into it comes in front of what the caller launches next on its current stream of
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
