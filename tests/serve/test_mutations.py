"""Whatever a client sends, the server answers, and never says that it has failed itself."""

import gzip
import json
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from actorflow.serve import Limits
from tests.serve.serving import binary_tensor, mixed, serve, tensor
from tests.support.effort import FULL

ROWS = np.arange(6, dtype=np.float32).reshape(2, 3)
FLAGS, SMALL = np.array([True, False]), np.array([[1, 2], [3, 4]], np.int8)
BY_JSON = {
    "id": "7",
    "inputs": [tensor("x", ROWS), tensor("flags", FLAGS, "BOOL"), tensor("small", SMALL, "INT8")],
    "outputs": [{"name": "y", "parameters": {"binary_data": True}}, {"name": "sum"}],
    "parameters": {"timeout": 10_000_000, "binary_data_output": False},
}
BY_BYTES = {
    **BY_JSON,
    "inputs": [
        binary_tensor("x", ROWS),
        binary_tensor("flags", FLAGS, "BOOL"),
        binary_tensor("small", SMALL, "INT8"),
    ],
}
BINARY = ROWS.tobytes() + FLAGS.tobytes() + SMALL.tobytes()

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([2**31, 2**63, 10**30, -1, 1e308, float("inf"), float("nan")])
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["x", "y", "FP32", "BYTES", "INT8"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from([*tensor("x", ROWS), "id"]), inner),
    max_leaves=6,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """All places in a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *[found for key, each in inner for found in places(each, (*path, key))]]


def replaced(value: Any, path: tuple[Any, ...], by: Any) -> Any:
    if not path:
        return by
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(value[path[0]], path[1:], by)
    return copy


@st.composite
def requests(draw: st.DrawFn) -> tuple[bytes, dict[str, str]]:
    """Bodies and headers that are nearly right."""
    content: Any = draw(st.sampled_from([BY_JSON, BY_BYTES]))
    headers: dict[str, str] = {}
    binary = BINARY if content is BY_BYTES else b""
    for _ in range(draw(st.integers(0, 2))):
        content = replaced(content, draw(st.sampled_from(places(content))), draw(VALUES))
    text = json.dumps(content).encode()
    if binary or draw(st.booleans()):
        headers["Inference-Header-Content-Length"] = str(len(text) + draw(st.sampled_from([0, 0, 0, 0, 1, -1, 24])))
    body = text + binary
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        at = draw(st.integers(0, len(body)))
        end = draw(st.integers(at, min(at + 20, len(body))))
        body = body[:at] + draw(st.binary(max_size=6) | st.just(body[end : end + 10])) + body[end:]
    if draw(st.sampled_from([False, False, True])):
        headers["Content-Encoding"] = draw(st.sampled_from(["gzip", "deflate"]))
        if draw(st.booleans()):
            body = gzip.compress(body, mtime=0)[: draw(st.sampled_from([None, None, -1, 30]))]
    return body, headers


@settings(max_examples=1_000 if FULL else 12)
@given(st.lists(requests(), min_size=1, max_size=8))
async def test_any_body_is_answered(sent: list[tuple[bytes, dict[str, str]]]) -> None:
    async with serve({"mixed": mixed()}, limits=Limits(body_bytes=1 << 20), page=False) as served:
        for body, headers in sent:
            answer = await served.ask("/v2/models/mixed/infer", body, headers)
            assert answer.status == 200 or (400 <= answer.status < 500 and answer.error), (body, headers, answer)
        right = await served.infer("mixed", BY_BYTES, BINARY)
        assert np.array_equal(right.output("y"), 2 * ROWS)
        assert served.service.in_flight == served.service._account.held_bytes == 0
