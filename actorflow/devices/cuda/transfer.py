"""Copies between the host and a CUDA device, and between two of them. They are enqueued on the current stream."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from actorflow.errors import DeviceError

_ALREADY_ENABLED = 704  # an error of the CUDA runtime


def copy_in(cupy: Any, source: npt.NDArray[Any], target: Any) -> None:
    """Copy a host array to an array of the current device.

    From page-locked memory the copy is only enqueued: the source must not change until it has ended. From other memory
    CUDA takes what it needs before this returns.

    Raises:
        DeviceError: if shapes or dtypes differ, or the device fails.
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
            runtime.streamSynchronize(stream.ptr)  # nobody else keeps the copy
    except runtime.CUDARuntimeError as error:
        raise DeviceError(f"the copy of {_text(source)} to the device failed: {error}") from error


def copy_out(cupy: Any, source: Any, target: npt.NDArray[Any]) -> None:
    """Copy an array of the current device to a C-contiguous host array.

    To page-locked memory the copy is only enqueued; to other memory CUDA has ended it when this returns.

    Raises:
        DeviceError: if shapes or dtypes differ, the target is not C-contiguous, or the device fails.
    """
    _check(source, target)
    if not target.flags.c_contiguous:
        raise DeviceError(f"a copy from the device needs a C-contiguous target, got strides {target.strides}")
    if source.nbytes == 0:
        return
    runtime, stream = cupy.cuda.runtime, cupy.cuda.get_current_stream()
    try:
        pointer = cupy.ascontiguousarray(source).data.ptr  # dropped at once: its block stays with this stream
        runtime.memcpyAsync(target.ctypes.data, pointer, target.nbytes, runtime.memcpyDeviceToHost, stream.ptr)
    except runtime.CUDARuntimeError as error:
        raise DeviceError(f"the copy of {_text(source)} from the device failed: {error}") from error


def copy_peer(cupy: Any, source: Any, target: Any) -> None:
    """Copy an array of another device to one of the current device.

    It goes through the host where they cannot reach each other.

    Raises:
        DeviceError: if shapes or dtypes differ, an array is not C-contiguous, or a device fails.
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
    """Have device ``index`` access the memory of another directly, if it can; whether it does.

    Raises:
        DeviceError: if a device fails.
    """
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
