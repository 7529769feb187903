"""Requests for inference and their results: JSON, and the tensors that follow it as binary data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy.typing as npt

from actorflow.errors import did_you_mean
from actorflow.loop import Steps
from actorflow.runtime.sessions import Session
from actorflow.serve.account import Share
from actorflow.serve.answers import JSON, refused
from actorflow.serve.models import Hosted, Sequence
from actorflow.serve.reading import read_json
from actorflow.serve.tensors import TEXTS, datatype_of, texts_to_bytes, to_bytes, to_json
from actorflow.web.http import Response

#: Header with the size of the JSON before binary data.
HEAD_BYTES = "Inference-Header-Content-Length"


class Inference(NamedTuple):
    """A request for inference, as far as it is not the model's."""

    id: str | None  # given back with the result
    inputs: dict[str, npt.NDArray[Any]]  # by name
    outputs: dict[str, bool]  # those that are wanted, and whether as binary data
    timeout_s: float | None  # longest time to the result, if the client has one
    sequence: Sequence | Session | None = None  # what it is a step of


def head_bytes(text: str | None) -> int | None:
    """Size of the JSON by its header; None if it is the whole body.

    Raises:
        Refused: with 400, if it is not a number.
    """
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise refused(400, f"expected a number of bytes in {HEAD_BYTES}, got {text[:100]!r}")
    return int(text)


def read(body: memoryview, size: int, hosted: Hosted, most_bytes: int, held: Share) -> Steps[Inference]:
    """Read a request.

    Args:
        body: The JSON, and the binary data behind it, which becomes the memory of tensors.
        size: Size of the JSON.
        hosted: The model.
        most_bytes: Largest size of a tensor.
        held: Holds the memory of tensors that are read from JSON.
    Raises:
        Refused: with 400, if it is wrong; with 413, if a tensor is too large, or there is much beside tensors; with
            503, if there is no room for a tensor.
    """
    if size > len(body):
        raise refused(400, f"expected {size} bytes of JSON by {HEAD_BYTES}, got a body of {len(body)}")
    try:
        content, data = yield from read_json(body[:size])
    except ValueError as error:
        raise refused(400, f"expected {error}") from None
    if not isinstance(content, dict):
        raise refused(400, f"expected a JSON object, got {type(content).__name__}")
    request_id = content.get("id")
    if not isinstance(request_id, str | None):
        raise refused(400, "expected a string as id")
    parameters = _parameters(content, "the request")
    inputs: dict[str, npt.NDArray[Any]] = {}
    at = size
    for entry in _objects(content.get("inputs"), "inputs"):
        name, of_input = _name(entry, inputs, hosted.inputs, "input"), _parameters(entry, "an input")
        tensor = hosted.inputs[name]
        shape = tensor.checked(entry.get("shape"), entry.get("datatype"), most_bytes)
        length = of_input.get("binary_data_size")
        if (length is None) == ("data" not in entry):
            raise refused(400, f"input {name!r}: expected either data or the parameter binary_data_size")
        if length is None:
            given = entry["data"]
            numbers = data.pop(given, given) if isinstance(given, str) else given
            inputs[name] = yield from tensor.of_json(numbers, shape, held)
        else:
            if type(length) is not int or not 0 <= length <= len(body) - at:
                left = f"{len(body) - at} bytes of binary data are left"
                raise refused(400, f"input {name!r}: {left}, and binary_data_size is {str(length)[:100]}")
            part = body[at : at + length]
            if tensor.is_text:
                inputs[name] = yield from tensor.of_texts(part, shape, held)
            else:
                inputs[name] = tensor.of_bytes(part, shape)
            at += length
    if data:
        raise refused(400, "a list of data belongs to no input")
    if at != len(body):
        raise refused(400, f"{len(body) - at} bytes of binary data belong to no input")
    missing = [name for name in hosted.inputs if name not in inputs]
    if missing:
        raise refused(400, f"model {hosted.name!r} needs input {', '.join(map(repr, missing))}")
    sequence = _sequence(parameters) if hosted.keeps_state else None
    return Inference(request_id, inputs, _outputs(content, parameters, hosted), _timeout_s(parameters), sequence)


def _outputs(content: Mapping[str, Any], parameters: Mapping[str, Any], hosted: Hosted) -> dict[str, bool]:
    binary = _flag(parameters, "binary_data_output", False)
    wanted: dict[str, bool] = {}
    for entry in _objects(content.get("outputs", []), "outputs"):
        name, of_output = _name(entry, wanted, hosted.outputs, "output"), _parameters(entry, "an output")
        wanted[name] = _flag(of_output, "binary_data", binary)
        if of_output.get("classification"):
            raise refused(400, f"output {name!r}: classification is not supported")
    return wanted or dict.fromkeys(hosted.outputs, binary)


def _timeout_s(parameters: Mapping[str, Any]) -> float | None:
    timeout_us = parameters.get("timeout")
    if timeout_us is None or timeout_us == 0:  # as Triton, which takes 0 for none
        return None
    if type(timeout_us) is not int or not 0 < timeout_us < 1 << 63:
        raise refused(400, "expected a number of microseconds as parameter timeout")
    return timeout_us / 1e6


def _sequence(parameters: Mapping[str, Any]) -> Sequence | None:
    found = parameters.get("sequence_id", 0)
    if type(found) not in (int, str) or (type(found) is int and not 0 <= found < 1 << 64) or len(str(found)) > 200:
        raise refused(400, "expected a number or a text as parameter sequence_id")
    start, end = _flag(parameters, "sequence_start", False), _flag(parameters, "sequence_end", False)
    return Sequence(found, start, end) if found else None  # as Triton, for which 0 and no text are none


def _objects(given: Any, what: str) -> list[dict[str, Any]]:
    if not isinstance(given, list) or not all(isinstance(entry, dict) for entry in given):
        raise refused(400, f"expected a list of objects as {what}")
    return given


def _name(entry: Mapping[str, Any], seen: Mapping[str, Any], known: Mapping[str, Any], what: str) -> str:
    name = entry.get("name")
    if not isinstance(name, str) or name not in known:
        near = did_you_mean(name[:100], known) if isinstance(name, str) else ""
        raise refused(400, f"there is no {what} {str(name)[:100]!r}, only {', '.join(map(repr, known))}{near}")
    if name in seen:
        raise refused(400, f"{what} {name!r} is given twice")
    return name


def _parameters(of: Mapping[str, Any], what: str) -> Mapping[str, Any]:
    parameters = of.get("parameters", {})
    if not isinstance(parameters, dict):
        raise refused(400, f"expected an object as parameters of {what}")
    if "shared_memory_region" in parameters:
        raise refused(400, f"shared memory is not supported, which {what} asks for")
    return parameters


def _flag(parameters: Mapping[str, Any], name: str, default: bool) -> bool:
    value = parameters.get(name, default)
    if type(value) is not bool:
        raise refused(400, f"expected true or false as parameter {name}")
    return value


def write(hosted: Hosted, request: Inference, results: Mapping[str, npt.NDArray[Any]]) -> Steps[Response]:
    """Write the result of a request.

    Raises:
        Refused: with 400, if a value cannot be written as JSON, which the client has asked for.
    """
    about = {"model_name": hosted.name, "model_version": hosted.version}
    if request.id is not None:
        about["id"] = request.id
    text, binary = [f'{json.dumps(about)[:-1]}, "outputs": ['.encode()], []
    for number, (name, as_binary) in enumerate(request.outputs.items()):
        tensor, array = hosted.outputs[name], results[name]
        entry: dict[str, Any] = {"name": name, "datatype": datatype_of(tensor, array), "shape": list(array.shape)}
        if as_binary:
            is_text = entry["datatype"] == TEXTS
            binary.append((yield from texts_to_bytes(tensor, array)) if is_text else to_bytes(array))
            entry["parameters"] = {"binary_data_size": len(binary[-1])}
        begin = f"{', ' if number else ''}{json.dumps(entry)[:-1]}"
        if as_binary:
            text.append(f"{begin}}}".encode())
        else:
            values = yield from to_json(tensor, array)
            text += [f'{begin}, "data": '.encode(), *values, b"}"]
    head = b"".join([*text, b"]}"])
    if not any(request.outputs.values()):
        return Response(200, [head], JSON)
    return Response(200, [head, *binary], "application/octet-stream", {HEAD_BYTES: f"{len(head)}"})
