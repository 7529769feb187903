"""Requests, responses and WebSockets as this package sees them, whichever server they come through.

`actorflow.web.server` makes them of aiohttp's, `actorflow.web.asgi` of ASGI's; everything else knows only these.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import operator
import threading
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from importlib import resources
from time import perf_counter
from typing import Protocol
from urllib.parse import parse_qsl

from actorflow.errors import visible
from actorflow.loop import end, wait_out
from actorflow.threads import in_thread

#: A client sends nothing but short requests.
MAX_MESSAGE_BYTES = 1024
#: Time for all of the body of one.
BODY_TIMEOUT_S = 10.0
#: A long response is sent in parts of about this size, so that the loop does other things between them.
CHUNK_BYTES = 1 << 16
#: Time for a client to take one of these.
TAKING_TIMEOUT_S = 30.0


def to_json(content: object) -> str:
    """JSON of a program's values, whose whole numbers may be NumPy's."""
    return json.dumps(content, default=operator.index)


class CloseCode(IntEnum):
    """Why a WebSocket is closed (RFC 6455, section 7.4, and IANA's registry)."""

    GOING_AWAY = 1001
    POLICY_VIOLATION = 1008
    MESSAGE_TOO_BIG = 1009
    INTERNAL_ERROR = 1011
    TRY_AGAIN_LATER = 1013


@dataclass(frozen=True, slots=True)
class Request:
    """A request over HTTP.

    Attributes:
        path: Below the prefix that the page is mounted at, decoded: ``/static/main.js``; empty for the bare prefix.
        target: The last part of the whole path as it was sent, which a relative redirect begins with.
        query_string: Text behind the question mark, as it was sent.
        headers: Names in lower case and values, in the order of their arrival.
        port: That the connection arrived on; None where there is none, or the server does not say.
        peer: Address of the other side, for the log; empty where the server does not say.
        chunks: The body; a `ConnectionError` says that the client has gone, a `ValueError` that it is encoded wrongly.
    """

    method: str
    path: str
    target: str
    query_string: str
    headers: Sequence[tuple[str, str]]
    scheme: str
    port: int | None
    peer: str
    chunks: AsyncIterable[bytes]

    def values(self, header: str) -> list[str]:
        """All values of a header, whose name is given in lower case."""
        return [value for name, value in self.headers if name == header]

    def value(self, header: str) -> str:
        """The first value of a header; empty if there is none."""
        return next(iter(self.values(header)), "")

    @property
    def query(self) -> list[tuple[str, str]]:
        """Names and values behind the question mark, decoded."""
        return parse_qsl(self.query_string, keep_blank_values=True)

    @property
    def cookies(self) -> dict[str, str]:
        """Values by name, as they were sent; one that is written wrongly does not hide the others."""
        pairs = (part.partition("=") for value in self.values("cookie") for part in value.split(";"))
        return {name.strip(): value.strip() for name, _, value in pairs}

    async def body(self) -> bytes:
        """The whole body.

        Raises:
            Refused: with 413, if it has more than 1,024 bytes; with 408, if it takes longer than 10 s; with 400, if the
                client left before its end, as half of a command may be another command, or it is encoded wrongly.
        """
        body = b""
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                async for chunk in self.chunks:
                    body += chunk
                    if len(body) > MAX_MESSAGE_BYTES:
                        raise Refused(Response.of_text(413, f"expected a body of at most {MAX_MESSAGE_BYTES:,} bytes"))
        except TimeoutError:
            raise Refused(Response.of_text(408, f"expected the whole body within {BODY_TIMEOUT_S:g} s")) from None
        except ConnectionError:
            raise Refused(Response.of_text(400, "the body has no end")) from None
        except ValueError as error:
            raise Refused(Response.of_text(400, f"the body cannot be read: {error}")) from None
        return body


@dataclass(frozen=True, slots=True)
class Response:
    """A response over HTTP."""

    status: int = 200  # HTTP's number
    chunks: Sequence[bytes | memoryview] = ()  # the content, in parts that are sent one after another
    content_type: str = "text/plain; charset=utf-8"  # MIME type
    headers: Mapping[str, str] = field(default_factory=dict)  # others

    @property
    def size_bytes(self) -> int:
        """Size of the content."""
        return sum(map(len, self.chunks))

    @classmethod
    def of_text(cls, status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
        """A text that begins with the status; it may have an error of any origin, and be read in a terminal."""
        return cls(status, [f"{status}: {visible(text, lines=True)}\n".encode()], headers=headers or {})

    @classmethod
    def of_json(cls, content: str | Sequence[bytes], headers: Mapping[str, str] | None = None) -> Response:
        """JSON of a moment, which must not be kept; as a text or encoded in parts."""
        chunks = [content.encode()] if isinstance(content, str) else content
        return cls(200, chunks, "application/json; charset=utf-8", {"Cache-Control": "no-store", **(headers or {})})


class Refused(Exception):  # noqa: N818  an answer, not an error
    """Ends the answering of a request with this response."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.status)
        self.response = response


Answer = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Route:
    """A path, and the function that answers requests for it."""

    method: str  # ``GET``, which HEAD may ask for as well, or ``POST``
    path: str  # below the prefix of the page
    answer: Answer  # makes the response; it may raise `Refused`


class Socket(Protocol):
    """One client's WebSocket, accepted; a `ConnectionError` of a send says that the client has gone."""

    async def send_str(self, data: str, /) -> None:
        """Send text; returns when the transport can take more, which holds a slow client's messages back."""

    async def send_bytes(self, data: bytes, /) -> None:
        """Send binary data; returns when the transport can take more."""

    async def receive(self) -> str | bytes | None:
        """The next message; None when the connection has ended."""

    async def close(self, code: CloseCode, reason: str = "") -> None:
        """Close the connection; idempotent."""


#: Time that a thread may write for at once. A loop that wants the GIL meanwhile waits for that long at most; it would
#: wait for Python's whole switch interval, ten times as long, for a thread that writes on and on.
_SLICE_S = 0.0005
#: And then it rests, so that it takes a small share of the GIL even from a loop that is always busy.
_REST_S = 0.002


class Writer:
    """Writes the long answers of a page: one at a time, and one for all who have asked before it was begun.

    So clients cost the graph no more when they are many. Each answer is at least as new as its request.
    """

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._waiting: dict[str, asyncio.Task[list[bytes]]] = {}
        self._tasks: set[asyncio.Task[list[bytes]]] = set()
        self._ending = threading.Event()  # tells the thread

    async def write(self, what: str, begin: Callable[[], Iterable[str]]) -> list[bytes]:
        """The answer, encoded in parts.

        Args:
            begin: Called on the loop when its turn has come: takes values for the answer, and gives it in pieces;
                each is made in a thread, and short.
        Raises:
            Refused: with 503, if the page is closed meanwhile.
        Cancellation: the answer is written all the same, as others may wait for it.
        """
        task = self._waiting.get(what)
        if task is None or task.done():  # done before its turn came: its loop has ended
            task = self._waiting[what] = asyncio.create_task(self._write(what, begin))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        await asyncio.wait([task])
        if task.cancelled():
            raise Refused(Response.of_text(503, "the page is being closed"))
        return task.result()

    async def aclose(self) -> None:
        """End the answers under way; idempotent. Later requests are answered, in any loop."""
        tasks = [*self._tasks]
        self._ending.set()
        for task in tasks:
            end(task)
        self._turn, self._waiting, self._ending = asyncio.Lock(), {}, threading.Event()
        await wait_out(tasks)

    async def _write(self, what: str, begin: Callable[[], Iterable[str]]) -> list[bytes]:
        waiting, ending = self._waiting, self._ending
        async with self._turn:
            waiting.pop(what, None)  # later requests get later events, too
            return await in_thread(partial(_written, begin(), ending))


def _written(pieces: Iterable[str], ending: threading.Event) -> list[bytes]:
    chunks: list[bytes] = []
    part: list[str] = []
    size = 0
    due_s = perf_counter() + _SLICE_S
    for piece in pieces:
        part.append(piece)
        size += len(piece)
        if size >= CHUNK_BYTES:
            chunks.append("".join(part).encode())
            part, size = [], 0
        if perf_counter() >= due_s:
            if ending.wait(_REST_S):
                return []
            due_s = perf_counter() + _SLICE_S
    return [*chunks, "".join(part).encode()]


# Fixed, as the system's table of types may call a module text/plain, which browsers then refuse to run.
_CONTENT_TYPES = {".css": "text/css", ".html": "text/html", ".js": "text/javascript", ".svg": "image/svg+xml"}


@dataclass(frozen=True, slots=True)
class Asset:
    """One file of the page."""

    body: bytes  # the content
    content_type: str  # MIME type
    etag: str  # of the content, in quotes

    async def answer(self, request: Request) -> Response:
        """The file, or 304 to a browser that has it."""
        headers = {"Cache-Control": "no-cache", "ETag": self.etag}
        known = {
            tag.strip().removeprefix("W/") for value in request.values("if-none-match") for tag in value.split(",")
        }
        if known & {self.etag, "*"}:
            return Response(304, headers=headers)
        return Response(200, [self.body], f"{self.content_type}; charset=utf-8", headers)


def read_assets() -> dict[str, Asset]:
    """The files by name."""
    assets = {}
    for file in resources.files("actorflow.web").joinpath("static").iterdir():
        content_type = _CONTENT_TYPES.get(file.name[file.name.rfind(".") :])
        if content_type is not None:
            body = file.read_bytes()
            assets[file.name] = _asset(body, content_type)
    # Or a browser would find them one behind the other, by what imports what.
    modules = sorted(name for name in assets if name.endswith(".js") and not name.endswith(("worker.js", "graphs.js")))
    links = "".join(f'<link rel="modulepreload" href="static/{name}">' for name in modules)
    page = assets["index.html"]
    assets["index.html"] = _asset(page.body.replace(b"</head>", f"  {links}\n</head>".encode()), page.content_type)
    return assets


def _asset(body: bytes, content_type: str) -> Asset:
    return Asset(body, content_type, f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"')
