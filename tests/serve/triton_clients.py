"""Drives a server on a port by NVIDIA's client for Triton, as it is: a program, since the client brings gevent."""

from __future__ import annotations

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tritonclient.http as blocking
import tritonclient.http.aio as aio
from tritonclient.utils import InferenceServerException

ROWS = np.arange(6, dtype=np.float32).reshape(2, 3)
SMALL, FLAGS = np.array([[1, -2], [3, 60]], np.int8), np.array([True, False])
CLIENTS = 100


def inputs(module: Any, rows: np.ndarray, *, binary: bool) -> list[Any]:
    made = []
    for name, array, datatype in (("x", rows, "FP32"), ("flags", FLAGS, "BOOL"), ("small", SMALL, "INT8")):
        made.append(module.InferInput(name, list(array.shape), datatype))
        made[-1].set_data_from_numpy(array, binary_data=binary)
    return made


def check(result: Any, rows: np.ndarray) -> None:
    assert np.array_equal(result.as_numpy("y"), 2 * rows)
    if result.as_numpy("sum") is not None:
        assert result.as_numpy("sum").tolist() == [[2, -4], [6, 120]]
        assert result.as_numpy("flipped").tolist() == [False, True]


def fails(call: Any, status: str, message: str) -> None:
    with pytest.raises(InferenceServerException, match=message) as caught:
        call()
    assert caught.value.status() == status


def by_threads(url: str) -> None:
    with blocking.InferenceServerClient(url) as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("mixed")
        assert client.is_model_ready("mixed", "1")
        assert not client.is_model_ready("mixed", "2")
        assert client.get_server_metadata()["name"] == "actorflow"
        assert client.get_model_metadata("mixed")["inputs"][0] == {"name": "x", "datatype": "FP32", "shape": [-1, 3]}
        for binary in (True, False):
            outputs = [blocking.InferRequestedOutput("y", binary_data=binary), blocking.InferRequestedOutput("sum")]
            for packing in (None, "gzip", "deflate"):
                for wanted in (None, outputs[:1]):
                    result = client.infer(
                        "mixed",
                        inputs(blocking, ROWS, binary=binary),
                        outputs=wanted,
                        request_id="7",
                        model_version="1",
                        timeout=10_000_000,
                        parameters={"mine": 3},
                        request_compression_algorithm=packing,
                        response_compression_algorithm=packing,
                    )
                    check(result, ROWS)
                    assert result.get_response()["id"] == "7"
        wrong = blocking.InferInput("x", [2, 3], "FP64")
        wrong.set_data_from_numpy(ROWS.astype(np.float64))
        fails(lambda: client.infer("mixed", [wrong]), "400", "expected datatype FP32, got 'FP64'")
        fails(lambda: client.infer("mixed", inputs(blocking, ROWS, binary=True)[:1]), "400", "needs input 'flags'")
        fails(lambda: client.infer("none", []), "404", "there is no model 'none'")
        fails(lambda: client.get_model_metadata("none"), "404", "there is no model 'none'")
        fails(lambda: client.get_inference_statistics("mixed"), "404", "there is nothing at")
        assert [each["name"] for each in client.get_model_repository_index()] == ["mixed"]

    def ask(number: int) -> None:
        with blocking.InferenceServerClient(url) as client:  # it must stay in its thread
            check(client.infer("mixed", inputs(blocking, ROWS + number, binary=number % 2 == 0)), ROWS + number)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(16)))


async def at_once(url: str) -> None:
    async with aio.InferenceServerClient(url, conn_limit=CLIENTS) as client:
        assert await client.is_server_ready()

        async def ask(number: int) -> None:
            rows = ROWS + number
            check(await client.infer("mixed", inputs(aio, rows, binary=number % 2 == 0)), rows)

        await asyncio.gather(*map(ask, range(CLIENTS)))


by_threads(sys.argv[1])
asyncio.run(at_once(sys.argv[1]))
print("all as expected")
