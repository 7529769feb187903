"""Models to serve, servers of them in the running loop, and clients that see every byte."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple

import numpy as np
from aiohttp import web

import actorflow as af
from actorflow.serve import Server, create_app
from actorflow.serve.app import SERVICE, Service
from actorflow.serve.inference import HEAD_BYTES

#: How long an answer may take. Only a failing test waits for so long.
GRACE_S = 60.0


class Answer(NamedTuple):
    """A response, as it came."""

    status: int
    headers: dict[str, str]  # names in lower case
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """The message, if that is all there is, as the protocol says."""
        content = self.json
        assert list(content) == ["error"]
        assert self.headers["content-type"].startswith("application/json")
        return content["error"]

    def output(self, name: str) -> np.ndarray:
        """A tensor of a result, whose dtypes here are those of NumPy's defaults or said by name."""
        size = self.headers.get(HEAD_BYTES.lower())
        head = self.body if size is None else self.body[: int(size)]
        at = len(head)
        for output in json.loads(head)["outputs"]:
            dtype = DTYPES[output["datatype"]]
            length = output.get("parameters", {}).get("binary_data_size")
            if output["name"] == name and length is None:
                return np.array(output["data"], dtype).reshape(output["shape"])
            if output["name"] == name:
                return np.frombuffer(self.body[at : at + length], dtype).reshape(output["shape"])
            at += length or 0
        raise KeyError(name)


DTYPES = {
    "BOOL": np.bool_,
    **{f"INT{bits}": f"i{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"UINT{bits}": f"u{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": f"f{bits // 8}" for bits in (16, 32, 64)},
}


class Client:
    """One connection with one request."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, port: int) -> Client:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    def send(
        self,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        method: str | None = None,
    ) -> None:
        """Send a request; a body is sent as it is, with its length unless the headers say another one."""
        head = {"Host": f"127.0.0.1:{self.writer.get_extra_info('peername')[1]}", "Connection": "close"}
        if body is not None:
            head["Content-Length"] = str(len(body))
        head |= headers or {}
        if "Transfer-Encoding" in head:
            del head["Content-Length"]
        method = method or ("GET" if body is None else "POST")
        lines = [f"{method} {path} HTTP/1.1", *[f"{n}: {v}" for n, v in head.items()]]
        self.writer.write("\r\n".join([*lines, "", ""]).encode() + (body or b""))

    async def answer(self) -> Answer:
        """The answer, when the server has closed the connection; it may do so before it has read all."""
        try:
            async with asyncio.timeout(GRACE_S):
                head = await self.reader.readuntil(b"\r\n\r\n")
                first, *lines = head.decode().rstrip().split("\r\n")
                headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
                body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        finally:
            await self.hang_up()
        return Answer(int(first.split()[1]), headers, body)

    async def hang_up(self) -> None:
        self.writer.transport.abort()
        with suppress(ConnectionError):
            await self.writer.wait_closed()


class Served(NamedTuple):
    """A server in the running loop."""

    server: Server
    app: web.Application

    @property
    def port(self) -> int:
        return self.server.port

    @property
    def service(self) -> Service:
        return self.app[SERVICE]

    async def get(self, path: str, **headers: str) -> Answer:
        return await self.ask(path, None, headers)

    async def ask(
        self, path: str, body: bytes | None, headers: Mapping[str, str] | None = None, method: str | None = None
    ) -> Answer:
        client = await Client.open(self.port)
        client.send(path, body, headers, method)
        return await client.answer()

    async def infer(self, model: str, request: Any, binary: bytes | None = None, **headers: str) -> Answer:
        """Send a request for inference: what is not bytes as JSON."""
        text = request if isinstance(request, bytes) else json.dumps(request).encode()
        head = {} if binary is None else {HEAD_BYTES: str(len(text))}
        return await self.ask(f"/v2/models/{model}/infer", text + (binary or b""), head | headers)


@asynccontextmanager
async def serve(models: Mapping[str, Any], **options: Any) -> AsyncIterator[Served]:
    """A server of models on a free port of the loopback, which is ready."""
    app = create_app(models, **options)
    async with Server(app, port=0) as server:
        await app[SERVICE].warming
        yield Served(server, app)


def tensor(name: str, array: np.ndarray, datatype: str = "FP32") -> dict[str, Any]:
    """An input as JSON."""
    return {"name": name, "shape": list(array.shape), "datatype": datatype, "data": array.reshape(-1).tolist()}


def binary_tensor(name: str, array: np.ndarray, datatype: str = "FP32") -> dict[str, Any]:
    """An input whose values follow the JSON."""
    parameters = {"binary_data_size": array.nbytes}
    return {"name": name, "shape": list(array.shape), "datatype": datatype, "parameters": parameters}


def ten_times() -> af.Model:
    """Rows of three numbers, ten times as much."""
    graph = af.Graph("ten_times")
    x = graph.blob("x", ("batch", 3))
    return af.Model(graph, {"x": x}, {"y": af.ops.scale(x, 10.0)})


def mixed() -> af.Model:
    """Inputs of several dtypes, given back as they are or changed a little."""
    graph = af.Graph("mixed")
    x = graph.blob("x", ("batch", 3))
    flags, small = graph.blob("flags", ("batch",), "bool"), graph.blob("small", ("batch", 2), "int8")
    outputs = {"y": af.ops.scale(x, 2.0), "sum": small + small, "flipped": af.ops.logical_not(flags)}
    return af.Model(graph, {"x": x, "flags": flags, "small": small}, outputs)


class Gate:
    """An async function that holds its frames back while it is closed, and tells how many are there."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.inside = 0
        self.rows = 0
        self.cancelled = 0

    async def __call__(self, x: np.ndarray) -> np.ndarray:
        self.inside += 1
        self.rows += len(x)
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.inside -= 1
        return x

    def model(self, *, batched: bool = True) -> af.Model:
        """Rows of three numbers that come back when the gate is open."""
        graph = af.Graph("gated")
        x = graph.blob("x", ("batch" if batched else 1, 3))
        return af.Model(graph, {"x": x}, {"y": graph.function("gate", self, x.spec)(x)})


async def until(condition: Any) -> None:
    """Let the loop go on until something is so."""
    async with asyncio.timeout(GRACE_S):
        while not condition():
            await asyncio.sleep(0)
