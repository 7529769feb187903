"""A server of models by itself: it listens, and ends without losing a request."""

from __future__ import annotations

import asyncio
import logging
from types import TracebackType
from typing import Self, cast

from aiohttp import web

from actorflow.errors import seconds, text, time_limit, whole
from actorflow.serve.app import SERVICE
from actorflow.web.server import Log, at_most, for_url, is_loopback

_log = logging.getLogger(__name__)

#: Once it has been answered, a client may send the rest of its request for so long.
_LINGER_S = 1.0
#: Requests that have no answer when the server closes are given up after so long.
_GIVE_UP_S = 0.05
#: How often it is looked whether answers have been taken, at the end.
_LOOK_S = 0.01


class Server:
    """Serves an application of `actorflow.serve.create_app` inside ``async with``.

    Args:
        app: The application.
        host: Address to bind to; any other than the loopback demands that the application has a token.
        port: Port to bind to; 0 takes a free one, which ``port`` then has.
        max_connections: Most connections; one on which no request is answered makes room for another one, and where
            there is none, further ones are closed.
        keep_alive_s: Time for which a connection stays open on which no request comes, more than that of a proxy
            before it.

    Attributes:
        host: The address.
        port: The port.

    Raises:
        TypeError: if the application is another one.
        ValueError: if the address is not the loopback and the application has no token; if the time is not above 0.
        OSError: when it starts, if the address cannot be bound.

    Example:
        >>> import aiohttp
        >>> graph = af.Graph("sums")
        >>> y = af.ops.sum(graph.blob("x", ["batch", 2]), 1)
        >>> app = af.serve.create_app({"sums": graph})
        >>> async def main():
        ...     async with af.serve.Server(app, port=0) as server, aiohttp.ClientSession(server.url) as client:
        ...         tensor = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}
        ...         async with client.post("/v2/models/sums/infer", json={"inputs": [tensor]}) as response:
        ...             answer = await response.json()
        ...         print("given up:", await server.drain())  # waits for requests in flight
        ...     return answer["outputs"]
        >>> af.run(main())
        given up: 0
        [{'name': 'reducesum/out', 'datatype': 'FP32', 'shape': [1], 'data': [3.0]}]
    """

    def __init__(
        self,
        app: web.Application,
        host: str = "127.0.0.1",
        port: int = 8080,
        *,
        max_connections: int = 1024,
        keep_alive_s: float = 75.0,
    ) -> None:
        if not isinstance(cast(object, app), web.Application) or SERVICE not in app:
            raise TypeError(f"expected the application that af.serve.create_app makes, got {type(app).__name__}")
        host, port = text("host", host), whole("port", port, 0, 65535)
        keep_alive_s = seconds("keep_alive_s", keep_alive_s, positive=True)
        if not is_loopback(host) and not app[SERVICE].needs_token:
            raise ValueError(f"serving on {host}, which others can reach, needs a token")
        self.host = host
        self.port = port
        self._service = app[SERVICE]
        self._most = whole("max_connections", max_connections, 1)
        self._listener: asyncio.Server
        self._runner = web.AppRunner(
            app,
            access_log=None,
            logger=Log(_log),
            handler_cancellation=True,
            shutdown_timeout=_GIVE_UP_S,
            keepalive_timeout=float(keep_alive_s),
            lingering_time=_LINGER_S,
            auto_decompress=False,
        )

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://{for_url(self.host)}:{self.port}"

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        assert self._runner.server is not None
        serving = at_most(self._most, self._runner.server, "the server of models")
        try:
            loop = asyncio.get_running_loop()
            self._listener = await loop.create_server(serving, self.host, self.port, backlog=1024)
        except BaseException:
            await self._runner.cleanup()
            raise
        self.port = self._listener.sockets[0].getsockname()[1]
        return self

    async def drain(self, timeout: float = 30.0) -> int:
        """Refuse requests for inference from now on, and wait until those in flight have their answers.

        Until then the server says that it is not ready, and answers new requests with status 503.

        Args:
            timeout: Longest time in seconds.
        Returns:
            Number of requests without an answer, or whose client has not taken all of it; 0 unless there was too
            little time.
        """
        timeout_s = time_limit("timeout", timeout)
        self._service.draining = True
        try:
            async with asyncio.timeout(timeout_s):
                await self._settle()
                self._listener.close()
                await asyncio.sleep(_LOOK_S)  # what has come in meanwhile is refused, not cut off
                await self._settle()
        except TimeoutError:
            pass
        return self._service.in_flight

    async def _settle(self) -> None:
        while self._service.in_flight:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)

    async def aclose(self) -> None:
        """Close all connections and the port; idempotent. Whoever waits for an answer gets none: see `drain`."""
        self._listener.close()
        await self._runner.cleanup()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()
