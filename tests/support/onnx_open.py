"""Models whose axes are opened: what they give for some lengths, against ONNX Runtime and a model of these lengths."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime
from onnx import ModelProto, numpy_helper

import actorflow as af

#: An axis of an input: the input's name, and which.
Axis = tuple[str, int]
Feeds = Mapping[str, np.ndarray]


def with_constants(proto: ModelProto, feeds: Feeds) -> tuple[ModelProto, dict[str, np.ndarray]]:
    """A model whose parameters are constant: inputs of integers behind the first one, and short ones of any numbers."""
    made = ModelProto()
    made.CopyFrom(proto)
    kept = {}
    for i, each in enumerate([*made.graph.input]):
        array = feeds[each.name]
        if i and (array.dtype.kind in "iub" or array.size <= 1):
            made.graph.input.remove(each)
            made.graph.initializer.append(numpy_helper.from_array(array, each.name))
        else:
            kept[each.name] = array
    return made, kept


def opened(proto: ModelProto, axes: Sequence[Axis], lengths: Mapping[Axis, int] | None = None) -> ModelProto:
    """A model with axes of one name, or of given lengths; it says of what it gives the number of axes alone."""
    made = ModelProto()
    made.CopyFrom(proto)
    del made.graph.value_info[:]
    for each in made.graph.input:
        for i, dim in enumerate(each.type.tensor_type.shape.dim):
            if (each.name, i) in axes:
                if lengths is None:
                    dim.dim_param = "open"
                else:
                    dim.dim_value = lengths[each.name, i]
    for each in made.graph.output:
        for dim in each.type.tensor_type.shape.dim:
            dim.ClearField("value")
    return made


def resized(feeds: Feeds, axes: Sequence[Axis], length: int) -> dict[str, np.ndarray]:
    """Feeds with axes of a length: elements are left out, or come again."""
    found = dict(feeds)
    for name, axis in axes:
        old = found[name].shape[axis]
        found[name] = np.take(found[name], np.arange(length) % max(old, 1), axis)
    return found


def runtimes(proto: ModelProto, feeds: Feeds) -> list[np.ndarray] | None:
    """What ONNX Runtime gives; None if it refuses, or of nothing, as some of its kernels end the process then."""
    if not all(array.size for array in feeds.values()):
        return None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(
            proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )  # fmt: skip
        return session.run(None, dict(feeds))
    except Exception:  # noqa: BLE001  it raises its own kinds
        return None


def ours(proto: ModelProto, *feeds: Feeds) -> list[list[np.ndarray] | None] | None:
    """What a model gives for feeds, one after the other; None for what is refused."""
    try:
        loaded = af.onnx.load(proto.SerializeToString())
    except af.ActorflowError:
        return None

    async def run() -> list[list[np.ndarray] | None]:
        found: list[list[np.ndarray] | None] = []
        async with loaded.graph:
            for each in feeds:
                try:
                    found.append([*(await loaded.run(each)).values()])
                except af.ActorflowError:
                    found.append(None)
        return found

    return asyncio.run(run())


def differs(found: Sequence[np.ndarray], wanted: Sequence[Any], rtol: float = 1e-3, atol: float = 1e-4) -> str:
    """How results differ; "" if they do not."""
    for got, want in zip(found, wanted, strict=True):
        if isinstance(got, list):
            if why := differs(got, want, rtol, atol):
                return why
            continue
        want = np.asarray(want)
        if got.shape != want.shape or got.dtype != want.dtype:
            return f"{got.dtype}{got.shape}, not {want.dtype}{want.shape}"
        a, b = (each.astype("float32") if each.dtype.kind == "V" else each for each in (got, want))
        if not np.allclose(a, b, rtol, atol, equal_nan=True):
            return f"{a.reshape(-1)[:4]}, not {b.reshape(-1)[:4]}"
    return ""


def choices(feeds: Feeds, is_full: bool) -> Iterator[list[Axis]]:
    """Axes that are opened together: each alone, or the first ones alone, and all of one length."""
    axes = [(name, i) for name, array in feeds.items() for i in range(array.ndim)]
    by_length: dict[int, list[Axis]] = {}
    for name, i in axes:
        by_length.setdefault(feeds[name].shape[i], []).append((name, i))
    yield from ([each] for each in axes if is_full or not each[1])
    yield from (group for group in by_length.values() if len(group) > 1)


def faults(
    proto: ModelProto, feeds: Feeds, is_full: bool = True, rtol: float = 1e-3, atol: float = 1e-4
) -> tuple[dict[str, str], int]:
    """Where a model with open axes gives other results than the one of their lengths, and how many it gave."""
    proto, feeds = with_constants(proto, feeds)
    found, given = {}, 0
    for axes in choices(feeds, is_full):
        own = feeds[axes[0][0]].shape[axes[0][1]]
        lengths = sorted({0, 1, 2, own, own + 1} if is_full else {0, 1, own + 1})
        variants = [resized(feeds, axes, n) for n in lengths]
        results = ours(opened(proto, axes), *variants)
        for n, variant, result in zip(lengths, variants, results or [], strict=results is not None):
            if result is None:
                continue
            closed = opened(proto, axes, {(name, i): variant[name].shape[i] for name, i in axes})
            wanted = runtimes(closed, variant)
            if wanted is None:
                alone = ours(closed, variant)
                wanted = alone[0] if alone else None
            given += 1
            if wanted is not None and (why := differs(result, wanted, rtol, atol)):
                found[f"{axes} = {n}"] = why
    return found, given
