"""A request that came through ASGI, with what the handlers of `actorflow.serve.app` use of one of aiohttp's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from urllib.parse import parse_qsl

from multidict import CIMultiDict, MultiDict

from actorflow.web.asgi import Message, Receive, Send, below, chunks_of, gone, send_response
from actorflow.web.http import Response


class Exchange:
    """A request, and the connection that its answer goes to.

    Attributes:
        match_info: Parts of the path, by name, once its handler is known.
        content: Itself, which gives the parts of the body.
        port: That the connection arrived on, if the server says so.
        prepared: Whether events have begun.
    """

    def __init__(self, scope: Message, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path = below(scope["path"], scope.get("root_path") or "")
        self.match_info: Mapping[str, str] = {}
        self.headers = CIMultiDict(
            (name.decode("latin-1"), value.decode("utf-8", "surrogateescape"))
            for name, value in scope["headers"]
            if name.lower() != b"expect"  # which is up to the server
        )
        self.query = MultiDict(parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True))
        length = self.headers.get("Content-Length", "")
        self.content_length = int(length) if length.isdecimal() else None
        self.content = self
        self.scheme: str = scope.get("scheme") or "http"
        self.port: int | None = (scope.get("server") or (None, None))[1]
        self.prepared = False
        self._receive = receive
        self._send = send
        self._is_read = asyncio.Event()

    async def iter_any(self) -> AsyncIterator[bytes]:
        """The parts of the body as they come."""
        async for chunk in chunks_of(self._receive):
            yield chunk
        self._is_read.set()

    async def left(self) -> None:
        """Wait until the client hangs up, once the body has been read."""
        await self._is_read.wait()
        await gone(self._receive)

    async def reply(self, response: Response) -> None:
        """Send the whole answer."""
        await send_response(response, "http.response", self._send, with_body=self.method != "HEAD")

    async def prepare(self, headers: Mapping[str, str]) -> None:
        """Begin an answer of events."""
        self.prepared = True
        encoded = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": 200, "headers": encoded})

    async def write(self, data: bytes) -> None:
        """Send some of them."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def write_eof(self) -> None:
        """End it."""
        await self._send({"type": "http.response.body", "body": b""})
