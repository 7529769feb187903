"""Texts over HTTP: BYTES in JSON and as binary data, for models that take or give Python objects."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnx
import pytest

import actorflow as af
from actorflow.serve import Limits
from tests.serve.serving import serve

TEXTS = ["", "a", "wörld", "\U0001f40d\n"]
OBJECT = af.TensorSpec.of((), object)


def shouting() -> af.Model:
    """A model of texts: them in capitals, their lengths, and them as bytes."""
    graph = af.Graph("shouting")
    text = graph.blob("text", (), object)
    upper = graph.function("upper", lambda texts: np.vectorize(str.upper, otypes=[object])(texts), OBJECT)(text)
    length = graph.function("length", lambda texts: np.vectorize(len, otypes=[np.int64])(texts), OBJECT)(text)
    return af.Model(graph, {"text": text}, {"upper": upper, "length": length})


def packed(texts: list[str]) -> bytes:
    found = [text.encode() for text in texts]
    return b"".join(len(text).to_bytes(4, "little") + text for text in found)


def asked(texts: Any, shape: list[int], size: int | None = None, **more: Any) -> dict[str, Any]:
    given = {"data": texts} if size is None else {"parameters": {"binary_data_size": size}}
    return {"inputs": [{"name": "text", "datatype": "BYTES", "shape": shape, **given}], **more}


async def test_as_json_and_as_binary_data() -> None:
    expected = [text.upper() for text in TEXTS]
    async with serve({"model": shouting()}) as served:
        about = (await served.get("/v2/models/model")).json
        assert about["inputs"] == [{"name": "text", "datatype": "BYTES", "shape": [-1]}]
        for shape, texts in (([4], TEXTS), ([2, 2], TEXTS), ([2, 2], [TEXTS[:2], TEXTS[2:]])):
            upper, length = (await served.infer("model", asked(texts, shape))).json["outputs"]
            assert upper == {"name": "upper", "datatype": "BYTES", "shape": shape, "data": expected}
            assert length == {"name": "length", "datatype": "INT64", "shape": shape, "data": [0, 1, 5, 2]}
        data = packed(TEXTS)
        request = asked(None, [4], len(data), outputs=[{"name": "upper", "parameters": {"binary_data": True}}])
        answer = await served.infer("model", request, data)
        assert answer.status == 200
        assert answer.body.endswith(packed(expected))
        assert b'"binary_data_size": %d' % len(packed(expected)) in answer.body
        many = [f"{i}" for i in range(2000)]
        data = packed(many)
        found = (await served.infer("model", asked(None, [2000], len(data)), data)).json["outputs"][0]["data"]
        assert found == many


@pytest.mark.together(
    ("request_", "data", "status", "message"),
    [
        (asked(["a"], [2]), None, 400, "expected 2 values for shape [2], got 1"),
        (asked([["a"], ["b", "c"]], [2, 1]), None, 400, "expected data flat, or nested as shape [2, 1]"),
        (asked(["a", 1], [2]), None, 400, "expected texts for BYTES"),
        (asked([1] * 9000, [9000]), None, 400, "expected texts for BYTES"),
        (asked(["a" * 200_000], [1]), None, 413, "bytes of JSON beside the data"),
        (asked(None, [1], 5), b"\1\0\0\0\xff", 400, "expected texts in UTF-8, text 0 is not"),
        (asked(None, [2], 5), b"\1\0\0\0a", 400, "expected 2 texts for shape [2], each behind its size"),
        (asked(None, [1], 5), b"\2\0\0\0a", 400, "expected 1 texts for shape [1]"),
        (asked(None, [1], 6), b"\1\0\0\0ab", 400, "expected 1 texts for shape [1]"),
        (asked(None, [0, 1 << 40], 0), b"", 413, "has more than"),
        (asked("a", [1]), None, 200, ""),
    ],
)
async def test_texts_that_do_not_fit(request_: Any, data: bytes | None, status: int, message: str) -> None:
    async with serve({"model": shouting()}, limits=Limits(body_bytes=1 << 20)) as served:
        answer = await served.infer("model", request_, data)
        assert answer.status == status
        assert message in answer.body.decode()


async def test_what_is_not_a_text_among_results() -> None:
    graph = af.Graph("odd")
    x = graph.blob("x", ("n",))
    raw = graph.function("raw", lambda values: np.array([b"\xff"] * len(values), object), OBJECT)(x)
    odd = graph.function("odd", lambda values: np.array([None] * len(values), object), OBJECT)(x)
    tensor = {"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}
    async with serve({"raw": af.Model(graph, {"x": x}, {"raw": raw})}) as served:
        assert "not UTF-8: ask for binary data" in (await served.infer("raw", {"inputs": [tensor]})).error
        binary = {"inputs": [tensor], "parameters": {"binary_data_output": True}}
        assert (await served.infer("raw", binary)).body.endswith(b"\1\0\0\0\xff")
    async with serve({"odd": af.Model(graph, {"x": x}, {"odd": odd})}) as served:
        assert "output 'odd': expected texts, got NoneType" in (await served.infer("odd", {"inputs": [tensor]})).error


async def test_events_of_texts() -> None:
    async with serve({"model": shouting()}) as served:
        answer = await served.ask("/v2/models/model/generate", json.dumps({"text": "hey"}).encode())
        assert answer.json["upper"] == "HEY"
        assert (await served.ask("/v2/models/model/generate", b'{"text": 5}')).status == 400


async def test_a_file_that_onnxruntime_computes() -> None:
    text, twice = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.STRING, ["n"]) for name in ("text", "twice")
    ]
    node = onnx.helper.make_node("StringConcat", ["text", "text"], ["twice"])
    graph, opsets = onnx.helper.make_graph([node], "g", [text], [twice]), [onnx.helper.make_opsetid("", 20)]
    made = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9)
    async with serve({"model": af.onnx.load(made, backend="onnxruntime")}) as served:
        (output,) = (await served.infer("model", asked(["a", "b"], [2]))).json["outputs"]
    assert output == {"name": "twice", "datatype": "BYTES", "shape": [2], "data": ["aa", "bb"]}
