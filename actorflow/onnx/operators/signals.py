"""Transforms of signals, and caches of sequences."""

from __future__ import annotations

from typing import Any

import numpy as np

from actorflow import ops
from actorflow.onnx.constants import constant, spend
from actorflow.onnx.operators.elementwise import as_type
from actorflow.onnx.refusal import Refused
from actorflow.onnx.table import Node, lowers, within
from actorflow.onnx.values import Value
from actorflow.spec import Length


def _complex(x: Any) -> Any:
    """Numbers of pairs along the last axis, of which the second is the imaginary part; of single ones real."""
    if x.shape[-1] not in (1, 2):
        raise Refused(f"a number has a real part, and perhaps an imaginary one, got {x.spec}")
    parts = [ops.slice(x, (..., i)) for i in range(x.shape[-1])]
    if len(parts) == 1:
        return parts[0]
    kind = "complex128" if x.dtype == np.float64 else "complex64"
    return ops.cast(parts[0], kind) + ops.cast(parts[1], kind) * 1j


def _pairs(x: Any) -> Any:
    return ops.stack([ops.real(x), ops.imag(x)], axis=-1)


@lowers("DFT")
def _dft(node: Node) -> Value:
    x, inverse, onesided = node.x, bool(node.attribute("inverse", 0)), bool(node.attribute("onesided", 0))
    if node.opset >= 20:
        axis = node.numbers(2, "axis")[0] if node.has(2) else -2
    else:
        axis = node.attribute("axis", 1)
    axis = within(axis, x.rank)
    points = node.numbers(1, "dft_length")[0] if node.has(1) else None
    if points is None and not isinstance(x.shape[axis], Length):
        points = 2 * (x.shape[axis] - 1) if inverse and onesided else x.shape[axis]
    signal, kind = _complex(x.blob()), x.dtype
    if inverse and onesided:
        return node.usual(as_type(ops.expand_dims(ops.fft.irfft(signal, n=points, axis=axis), -1), kind))
    if onesided:
        if signal.dtype.kind == "c":
            raise Refused("onesided is for real signals")
        return node.usual(as_type(_pairs(ops.fft.rfft(signal, n=points, axis=axis)), kind))
    if signal.dtype.kind != "c":
        signal = ops.cast(signal, "complex128" if kind == np.float64 else "complex64")
    form = ops.fft.ifft if inverse else ops.fft.fft
    return node.usual(as_type(_pairs(form(signal, n=points, axis=axis)), kind))


@lowers("STFT", limits="signals of an open length")
def _stft(node: Node) -> Value:
    x, step = node.x, node.numbers(1, "frame_step")[0]
    window = node.value(2) if node.has(2) else None
    length = x.shape[1]
    if isinstance(length, Length):
        raise Refused(f"the length of the signal must be known, got {x.spec}")
    size = node.numbers(3, "frame_length")[0] if node.has(3) else window.shape[0] if window else length
    frames = 1 + (length - size) // step
    signal = _complex(x.blob() if x.rank == 3 else ops.expand_dims(x.blob(), -1))
    spend(frames, size)
    places = np.arange(frames)[:, np.newaxis] * step + np.arange(size)
    cut = ops.take(signal, constant(node.graph, places), 1)  # (batch, frames, size)
    if window is not None:
        weights = window.blob()
        cut = cut * (weights if cut.dtype == weights.dtype else ops.cast(weights, cut.dtype))
    if node.attribute("onesided", 1):
        if cut.dtype.kind == "c":
            raise Refused("onesided is for real signals")
        return node.usual(as_type(_pairs(ops.fft.rfft(cut, n=size, axis=2)), x.dtype))
    cut = cut if cut.dtype.kind == "c" else ops.cast(cut, "complex128" if x.dtype == np.float64 else "complex64")
    return node.usual(as_type(_pairs(ops.fft.fft(cut, n=size, axis=2)), x.dtype))


@lowers("TensorScatter")
def _tensor_scatter(node: Node) -> Value:
    cache, update = node.value(0), node.value(1)
    axis = within(node.attribute("axis", -2), cache.rank)
    steps, most, batch = update.shape[axis], cache.shape[axis], cache.shape[0]
    along = [1] * cache.rank
    along[axis] = steps
    spend(int(steps))
    places = constant(node.graph, np.arange(int(steps), dtype=np.int64).reshape(along))
    if node.has(2):
        places = places + ops.reshape(
            as_type(node.value(2).blob(), np.dtype(np.int64)), [batch, *[1] * (cache.rank - 1)]
        )
    if node.attribute("mode", "linear") == "circular":
        places = ops.remainder(places, int(most))
    whole = ops.broadcast_to(places, update.shape)
    return node.usual(ops.scatter(cache.blob(), whole, update.blob(), axis))
