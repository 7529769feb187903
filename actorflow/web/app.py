"""The live page as an aiohttp application."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import TYPE_CHECKING, Unpack

from aiohttp import WSMsgType, web
from aiohttp.http_exceptions import HttpProcessingError

from actorflow.web.exchange import MAX_MESSAGE_BYTES, TAKING_TIMEOUT_S, CloseCode, Request, Response
from actorflow.web.page import STREAM_PATH, Page, PageOptions

if TYPE_CHECKING:
    from actorflow.graph.graph import Graph

PAGE: web.AppKey[Page] = web.AppKey("page", Page)


def create_app(graph: Graph, **options: Unpack[PageOptions]) -> web.Application:
    """The live page of a graph as an aiohttp application, to be served or added to another one by ``add_subapp``.

    Nothing is watched, and running the graph costs nothing more, until a browser connects.

    Args:
        graph: The graph; of a sub-graph the whole root is shown.
        options: See `PageOptions`: ``allowed_hosts``, ``token``, ``max_clients``, ``frame_ancestors``, ``control``,
            ``control_token``, ``checkpoints``.
    Raises:
        ValueError: for options that do not fit together.
    """
    return app_of(Page(graph, **options))


def app_of(page: Page) -> web.Application:
    """A page as an aiohttp application, which closes it when it shuts down."""
    app = web.Application()
    app[PAGE] = page
    app.router.add_route("*", "", _answer)  # the bare prefix of add_subapp
    app.router.add_route("*", "/{path:.*}", _answer)
    app.on_shutdown.append(_close)
    return app


async def _answer(http: web.Request) -> web.StreamResponse:
    page, request = http.app[PAGE], _request(http)
    if request.path == STREAM_PATH:
        # Compression would cost the loop more than the loopback gains. aiohttp refuses what has the limit's size, too.
        limit = MAX_MESSAGE_BYTES + 1
        socket = web.WebSocketResponse(heartbeat=20.0, timeout=1.0, compress=False, max_msg_size=limit)
        if socket.can_prepare(http).ok:
            refusal = page.refusal(request)
            if refusal is None:
                await socket.prepare(http)
                await page.attend(_Socket(socket))
                return socket
    return await _send(http, await page.respond(request))


async def _send(http: web.Request, response: Response) -> web.StreamResponse:
    headers = {**response.headers, "Content-Type": response.content_type}
    reply = web.StreamResponse(status=response.status, headers=headers)
    reply.content_length = response.size_bytes
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(TAKING_TIMEOUT_S) as limit:
            await reply.prepare(http)
            for chunk in response.chunks if http.method != "HEAD" else ():
                await reply.write(chunk)
                await asyncio.sleep(0)  # a client that takes all at once must not have the loop for so long
                limit.reschedule(loop.time() + TAKING_TIMEOUT_S)
            await reply.write_eof()
        if response.status == HTTPStatus.REQUEST_TIMEOUT:
            http.protocol.force_close()  # the rest of the request is not waited for
    except TimeoutError:
        if http.transport is not None:
            http.transport.abort()
    except ConnectionError:
        pass  # the client has gone
    return reply


def _request(http: web.Request) -> Request:
    path = http.match_info.get("path")
    if path is None and http.path.endswith("/"):
        path = ""
    transport = http.transport
    address = transport.get_extra_info("sockname") if transport else None
    return Request(
        method=http.method,
        path="" if path is None else f"/{path}",
        target=http.rel_url.raw_path.rpartition("/")[2],
        query_string=http.rel_url.raw_query_string,
        headers=[(name.lower(), value) for name, value in http.headers.items()],
        scheme=http.scheme,
        port=address[1] if isinstance(address, tuple) else None,
        peer=http.remote or "",
        chunks=_chunks(http),
    )


async def _chunks(http: web.Request) -> AsyncIterator[bytes]:
    try:
        async for chunk in http.content.iter_any():
            yield chunk
    except (HttpProcessingError, web.RequestPayloadError) as error:
        raise ValueError(str(error)) from error


class _Socket:
    """aiohttp's WebSocket."""

    def __init__(self, socket: web.WebSocketResponse) -> None:
        self._socket = socket
        self.send_str = socket.send_str
        self.send_bytes = socket.send_bytes

    async def receive(self) -> str | bytes | None:
        message = await self._socket.receive()
        if message.type is WSMsgType.TEXT or message.type is WSMsgType.BINARY:
            data: str | bytes = message.data
            return data
        return None

    async def close(self, code: CloseCode, reason: str = "") -> None:
        await self._socket.close(code=code, message=reason.encode())


async def _close(app: web.Application) -> None:
    await app[PAGE].aclose()
