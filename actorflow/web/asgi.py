"""The live page as an ASGI application, and helpers for handlers: for FastAPI, Starlette, and any server of ASGI 3."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, MutableMapping, Sequence
from typing import Any, Protocol, TypeVar, Unpack
from urllib.parse import quote

from actorflow.graph.graph import Graph
from actorflow.loop import end, ended_with, wait_out
from actorflow.web.http import MAX_MESSAGE_BYTES, TAKING_TIMEOUT_S, CloseCode, Request, Response
from actorflow.web.page import Page, PageOptions, Pages, page_of

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
T = TypeVar("T")

_WITHOUT_BODY = frozenset({204, 304})
#: Characters that may stand in a path as they are (RFC 3986, section 3.3), and "%" of quoted ones.
_IN_PATH = "/%:@!$&'()*+,;=~"


def asgi(graph: Graph | Sequence[Graph], **options: Unpack[PageOptions]) -> ASGIPage:
    """The live page of a graph as an ASGI application, to be mounted in another one or served by itself.

    Nothing is watched, and running the graph costs nothing more, until a browser connects. The graph must run on the
    loop that serves the page.

    Args:
        graph: The graph, or several: see `serve`; of a sub-graph the whole root is shown.
        options: See `PageOptions`: ``allowed_hosts``, ``token``, ``max_clients``, ``frame_ancestors``, ``control``,
            ``control_token``, ``values``, ``checkpoints``.
    Raises:
        ValueError: for options that do not fit together.

    Example:
        >>> from fastapi import FastAPI
        >>> graph = af.Graph("g")
        >>> app = FastAPI()
        >>> app.mount("/graph", af.web.asgi(graph, token="secret"))
    """
    return ASGIPage(page_of(graph, **options))


class _HasReceive(Protocol):
    """A request of Starlette, and so of FastAPI."""

    @property
    def receive(self) -> Receive: ...


async def unless_gone(request: _HasReceive, work: Awaitable[T]) -> T:
    """Await some work in a handler of FastAPI or Starlette; it is cancelled when the client hangs up.

    These frameworks do not cancel a handler whose client has gone. aiohttp does, with ``handler_cancellation=True``.

    Args:
        request: The handler's, whose body has been read: as FastAPI has done for a handler that names its contents.
        work: A coroutine or another awaitable, as of ``batcher.run(...)``.
    Returns:
        Result of the work.
    Raises:
        HTTPException: Starlette's, of status 499, which nobody receives, if the client has gone; errors of the work.
    Cancellation: cancels the work.

    Example:
        >>> from fastapi import FastAPI, Request
        >>> graph = af.Graph("g")
        >>> x = graph.blob("x", [])
        >>> y, app = x * 2, FastAPI()
        >>> @app.get("/double")
        ... async def double(number: float, request: Request) -> float:
        ...     return float((await af.web.unless_gone(request, graph.run({x: number})))[y])
    """
    try:
        return await unless(gone(request.receive), work)
    except _GoneError:
        raise importlib.import_module("starlette.exceptions").HTTPException(499, "the client has gone") from None


class _GoneError(ConnectionResetError):
    """The client has gone while something was computed for it."""


async def unless(leaves: Coroutine[Any, Any, None], work: Awaitable[T]) -> T:
    """Result of some work, unless a client leaves before: then it is cancelled, and a ConnectionError raised."""
    working, leaving = asyncio.create_task(awaited(work)), asyncio.create_task(leaves)
    try:
        await asyncio.wait([working, leaving], return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        leaving.result()
        raise _GoneError("the client has gone")
    finally:
        for task in (working, leaving):
            task.add_done_callback(ended_with)  # its error is seen, though nobody is told
            end(task)
        await wait_out([working, leaving])


async def awaited(work: Awaitable[T]) -> T:
    """An awaitable as a coroutine, for a task."""
    return await work


async def gone(receive: Receive) -> None:
    """Wait until the client of a request that has been read hangs up."""
    while (await receive())["type"] != "http.disconnect":
        pass


class Application:
    """Base of ASGI 3 applications; served by itself, one closes when its lifespan ends."""

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one connection."""
        match scope["type"]:
            case "http":
                await self.http(scope, receive, send)
            case "websocket":
                await self.websocket(scope, receive, send)
            case "lifespan":
                await self._lifespan(receive, send)
            case other:
                raise ValueError(f"expected a scope of http, websocket or lifespan, got {other!r}")

    async def open(self) -> None:
        """Begin, which servers may have it do again, as test clients do."""
        raise NotImplementedError

    async def aclose(self) -> None:
        """End; idempotent. For the end of an application that this is mounted in."""
        raise NotImplementedError

    async def http(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a request."""
        raise NotImplementedError

    async def websocket(self, scope: Message, receive: Receive, send: Send) -> None:
        """Attend to a WebSocket; where an application has none, refuse it."""
        await receive()  # websocket.connect
        await send({"type": "websocket.close", "code": CloseCode.POLICY_VIOLATION})  # the server answers 403

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            kind = (await receive())["type"]
            await (self.open() if kind == "lifespan.startup" else self.aclose())
            await send({"type": f"{kind}.complete"})
            if kind == "lifespan.shutdown":
                return


class ASGIPage(Application):
    """A page as an ASGI 3 application."""

    def __init__(self, page: Page | Pages) -> None:
        self.page = page

    async def open(self) -> None:
        self.page.open()

    async def aclose(self) -> None:
        """Close all WebSockets and stop watching; idempotent. For the end of an application that this is mounted in."""
        await self.page.aclose()

    async def http(self, scope: Message, receive: Receive, send: Send) -> None:
        response = await self.page.respond(_request(scope, scope["method"], chunks_of(receive)))
        await send_response(response, "http.response", send, with_body=scope["method"] != "HEAD")

    async def websocket(self, scope: Message, receive: Receive, send: Send) -> None:
        await receive()  # websocket.connect
        request = _request(scope, "GET", chunks_of(receive))
        refusal = self.page.refusal(request)
        if refusal is None:
            await send({"type": "websocket.accept"})
            await self.page.attend(_Socket(receive, send), request)
        elif "websocket.http.response" in (scope.get("extensions") or {}):
            await send_response(refusal, "websocket.http.response", send)
        else:
            await send({"type": "websocket.close", "code": CloseCode.POLICY_VIOLATION})  # the server answers 403


def _request(scope: Message, method: str, chunks: AsyncIterator[bytes]) -> Request:
    path: str = scope["path"]
    raw = quote((scope.get("raw_path") or quote(path).encode()).partition(b"?")[0], safe=_IN_PATH)
    server, client = scope.get("server"), scope.get("client")
    return Request(
        method=method,
        path=below(path, scope.get("root_path") or ""),
        target=raw.rpartition("/")[2],
        query_string=scope.get("query_string", b"").decode("utf-8", "surrogateescape"),
        headers=[
            (name.decode("latin-1").lower(), value.decode("utf-8", "surrogateescape"))
            for name, value in scope["headers"]
        ],
        scheme=scope.get("scheme") or "http",
        port=server[1] if server else None,
        peer=client[0] if client else "",
        chunks=chunks,
    )


def below(path: str, root: str) -> str:
    """The path below the prefix that the application is mounted at.

    A server puts its own prefix before the path, as the specification wants; a proxy that takes a prefix off leaves it
    in the root path alone, so that only the end of that is part of the path.
    """
    while root:
        if path == root or path.startswith(f"{root}/"):
            return path[len(root) :]
        _, slash, rest = root[1:].partition("/")
        root = f"{slash}{rest}"
    return path


async def chunks_of(receive: Receive) -> AsyncIterator[bytes]:
    """The parts of a body; ConnectionResetError if the client goes before its end."""
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionResetError("the client has gone")
        yield message.get("body", b"")
        more = message.get("more_body", False)


async def send_response(response: Response, kind: str, send: Send, *, with_body: bool = True) -> None:
    """Send a response, in parts, to a client that takes each within a time limit."""
    headers = {**response.headers}
    if response.status not in _WITHOUT_BODY:
        headers |= {"Content-Type": response.content_type, "Content-Length": f"{response.size_bytes}"}
    encoded = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    chunks = response.chunks if with_body and response.chunks else [b""]
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(TAKING_TIMEOUT_S) as limit:
            await send({"type": f"{kind}.start", "status": response.status, "headers": encoded})
            for number, chunk in enumerate(chunks, 1):
                await send({"type": f"{kind}.body", "body": chunk, "more_body": number < len(chunks)})
                await asyncio.sleep(0)  # a client that takes all at once must not have the loop for so long
                limit.reschedule(loop.time() + TAKING_TIMEOUT_S)
    except OSError:
        pass  # the client has gone, or takes nothing: the server drops the connection, as the response has no end


class _Socket:
    """ASGI's WebSocket."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._closed = False

    async def send_str(self, data: str) -> None:
        await self._send_while_open({"type": "websocket.send", "text": data})

    async def send_bytes(self, data: bytes) -> None:
        await self._send_while_open({"type": "websocket.send", "bytes": data})

    async def receive(self) -> str | bytes | None:
        if self._closed:
            return None
        message = await self._receive()
        if message["type"] != "websocket.receive":
            self._closed = True
            return None
        text: str | None = message.get("text")
        data: str | bytes = message.get("bytes") or b"" if text is None else text
        if len(data) > MAX_MESSAGE_BYTES:  # the server has a limit of its own, which is for all that it serves
            await self.close(CloseCode.MESSAGE_TOO_BIG)
            return None
        return data

    async def close(self, code: CloseCode, reason: str = "") -> None:
        if not self._closed:
            self._closed = True
            await self._send_or_lose({"type": "websocket.close", "code": code, "reason": reason})

    async def _send_while_open(self, message: Message) -> None:
        if self._closed:
            raise ConnectionResetError("the WebSocket is closed")
        await self._send_or_lose(message)

    async def _send_or_lose(self, message: Message) -> None:
        try:
            await self._send(message)
        except OSError as error:  # raised by servers when the client has gone, as specified
            raise ConnectionResetError("the client has gone") from error
