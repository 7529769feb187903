"""Triton's generate extension: one row as JSON by the names of inputs, and answers as they come."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any

import numpy as np
import numpy.typing as npt

from actorflow.errors import did_you_mean
from actorflow.serve.answers import refused
from actorflow.serve.models import Hosted


def read(body: bytes | memoryview, hosted: Hosted) -> tuple[dict[str, npt.NDArray[Any]], int | None]:
    """The inputs of a request, with the axis of the rows, and its limit of steps.

    Values stand under the names of inputs, at the top or in "parameters", without the axis of the rows or with it.

    Raises:
        Refused: with 400, if they are not those of the model.
    """
    try:
        content = json.loads(bytes(body))
    except (ValueError, RecursionError) as error:
        raise refused(400, f"expected JSON: {error}") from None
    if not isinstance(content, dict) or not isinstance(content.get("parameters", {}), dict):
        raise refused(400, "expected a JSON object of inputs, with an object as parameters")
    content |= content.pop("parameters", {})
    limit = None if "limit" in hosted.inputs else content.pop("limit", None)
    if limit is not None and (type(limit) is not int or limit < 1):
        raise refused(400, "expected a positive number of steps as parameter limit")
    inputs: dict[str, npt.NDArray[Any]] = {}
    for name, value in content.items():
        if name not in hosted.inputs:
            raise refused(400, f"there is no input {name[:100]!r}{did_you_mean(name[:100], hosted.inputs)}")
        tensor = hosted.inputs[name]
        try:
            array = np.array(value)
            if array.ndim < len(tensor.shape):
                array = array[(np.newaxis,) * (len(tensor.shape) - array.ndim)]
            found = array.astype(tensor.spec.dtype, casting="same_kind" if array.size else "unsafe")
            if found.dtype.kind in "iu" and (found != array).any():
                raise OverflowError
            if tensor.is_text and array.dtype.kind != "U":
                raise TypeError
        except (TypeError, ValueError, OverflowError):
            raise refused(400, f"input {name!r}: expected values for {tensor.datatype}") from None
        inputs[name] = found
        tensor.checked(list(found.shape), tensor.datatype, len(body) * 8)
    missing = [name for name in hosted.inputs if name not in inputs]
    if missing:
        raise refused(400, f"model {hosted.name!r} needs input {', '.join(map(repr, missing))}")
    return inputs, limit


def written(hosted: Hosted, results: Mapping[str, npt.NDArray[Any]]) -> dict[str, Any]:
    """An answer: the values of one row, those of a single number by itself.

    Raises:
        Refused: with 400, if there are NaN or infinities, which JSON cannot express.
    """
    found: dict[str, Any] = {"model_name": hosted.name, "model_version": hosted.version}
    for name, array in results.items():
        wide = array.astype(np.float32) if array.dtype.kind == "V" else array
        if wide.dtype.kind == "f" and not np.isfinite(wide).all():
            raise refused(400, f"output {name!r} has NaN or infinities, which JSON cannot express")
        found[name] = wide.item() if wide.size == 1 else wide[0].tolist()
    return found


async def generate(
    hosted: Hosted, body: bytes | memoryview, timeout_s: float, tell: Callable[[dict[str, Any]], Awaitable[None]]
) -> None:
    """Compute the answers to a request, and tell each before the next one is computed.

    Raises:
        Refused, ...: as `read`, `written` and `Hosted.iterate`.
    Cancellation: ends the session of the request at once.
    """
    inputs, limit = read(body, hosted)
    async with aclosing(hosted.iterate(inputs, limit, timeout_s)) as steps:
        async for results in steps:
            await tell(written(hosted, results))
