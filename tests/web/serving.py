"""The live page behind each kind of server, for tests that must hold behind all of them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from aiohttp import ClientResponse, ClientSession, CookieJar, web

import actorflow as af
from actorflow.web.page import Page
from actorflow.web.server import PAGE

HOST = "127.0.0.1"


class Reply:
    """A response read to its end, for ``await`` and ``async with``: one that is half read would hold a connection."""

    def __init__(self, request: Any) -> None:
        self._request = request

    def __await__(self) -> Generator[Any, None, ClientResponse]:
        return self.__aenter__().__await__()

    async def __aenter__(self) -> ClientResponse:
        response: ClientResponse = await self._request
        await response.read()
        return response

    async def __aexit__(self, *_: object) -> None:
        pass


class Client:
    """A browser's part without a page: requests to a server by their paths, with the cookies that it gave."""

    def __init__(self, session: ClientSession, page: Page, port: int) -> None:
        self.page = page
        self.port = port
        self.session = session
        self.ws_connect = session.ws_connect

    def get(self, path: str, **options: Any) -> Reply:
        return self.request("GET", path, **options)

    def request(self, method: str, path: str, **options: Any) -> Reply:
        return Reply(self.session.request(method, f"http://{HOST}:{self.port}{path}", **options))


Served = Callable[..., AbstractAsyncContextManager[Client]]


@asynccontextmanager
async def by_aiohttp(graph: af.Graph, *, prefix: str = "", **options: Any) -> AsyncIterator[Client]:
    app = af.web.create_app(graph, **options)
    page = app[PAGE]
    if prefix:
        outer = web.Application()
        outer.add_subapp(prefix, app)
        app = outer
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, HOST, 0).start()
        port = runner.addresses[0][1]
        async with _client(page, port) as client:
            yield client
    finally:
        await runner.cleanup()


@asynccontextmanager
async def by_asgi(graph: af.Graph, *, prefix: str = "", **options: Any) -> AsyncIterator[Client]:
    from starlette.applications import Starlette

    mounted = af.web.asgi(graph, **options)
    app: Any = mounted
    if prefix:
        app = Starlette()
        app.mount(prefix, mounted)
    try:
        async with uvicorned(app) as port, _client(mounted.page, port) as client:
            yield client
    finally:
        await mounted.aclose()


@asynccontextmanager
async def uvicorned(app: Callable[..., Awaitable[None]], **config: Any) -> AsyncIterator[int]:
    """The port of uvicorn, which serves an application in the running loop."""
    import uvicorn

    class Server(uvicorn.Server):
        """One that is told when to end, instead of looking every tenth of a second."""

        def __init__(self, config: uvicorn.Config) -> None:
            super().__init__(config)
            self.ready = asyncio.Event()
            self.ending = asyncio.Event()

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            self.ready.set()

        async def main_loop(self) -> None:
            await self.on_tick(0)
            await self.ending.wait()

    server = Server(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1, **config))
    # asyncio sends small packets at once only where a socket says that it is TCP's.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind((HOST, 0))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        ready = asyncio.create_task(server.ready.wait())
        await asyncio.wait([serving, ready], return_when=asyncio.FIRST_COMPLETED)
        assert ready.done(), serving.exception()
        yield listener.getsockname()[1]
    finally:
        server.ending.set()
        ready.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await ready
        await serving


@asynccontextmanager
async def _client(page: Page, port: int) -> AsyncIterator[Client]:
    async with ClientSession(f"http://{HOST}:{port}", cookie_jar=CookieJar(unsafe=True)) as session:
        yield Client(session, page, port)


#: By the name of what they go through.
SERVERS: dict[str, Served] = {"aiohttp": by_aiohttp, "asgi": by_asgi}
