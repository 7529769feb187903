"""The live page by aiohttp: as an application of others, and served in the running loop."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import secrets
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from dataclasses import dataclass
from html import escape
from http import HTTPStatus
from types import TracebackType
from typing import Any, Unpack, cast
from urllib.parse import quote, urlsplit, urlunsplit

from aiohttp import WSMsgType, web
from aiohttp.http_exceptions import HttpProcessingError

from actorflow.errors import text, visible, whole
from actorflow.graph.graph import Graph
from actorflow.web.access import LOOPBACK
from actorflow.web.http import MAX_MESSAGE_BYTES, TAKING_TIMEOUT_S, CloseCode, Request, Response
from actorflow.web.page import STREAM_PATH, Page, PageOptions, Pages, page_of


@dataclass(frozen=True, slots=True)
class NotebookFrame:
    """An object that a notebook shows as a page."""

    url: str  # address of the page
    title: str  # name of the graph
    height: int = 600  # of the frame in pixels; 0 for a link alone
    hint: str = ""  # how to do better

    def _repr_html_(self) -> str:
        url, title = escape(self.url), escape(self.title)
        link = f'<a href="{url}" target="_blank" rel="noopener noreferrer">graph {title}, live</a>'
        hint = f". To see it here, {escape(self.hint)}" if self.hint else ""
        if not self.height:
            return f"<p>{link}{hint}</p>"
        style = f"width: 100%; height: {self.height}px; border: 1px solid #8886; border-radius: 6px"
        return f'<iframe src="{url}" title="graph {title}, live" style="{style}"></iframe><p>{link}</p>'


def frame_url(url: str, ancestor: str) -> str:
    """The address for a frame inside a page of ``ancestor``, where both are on this machine under one name."""
    name, parts = urlsplit(ancestor.replace(":*", "")).hostname, urlsplit(url)
    if name not in LOOPBACK or parts.hostname not in LOOPBACK:
        return url
    written = f"[{name}]" if ":" in name else name
    return urlunsplit(parts._replace(netloc=f"{written}:{parts.port}"))


PAGE: web.AppKey[Page | Pages] = web.AppKey("page")


def create_app(graph: Graph | Sequence[Graph], **options: Unpack[PageOptions]) -> web.Application:
    """The live page of a graph as an aiohttp application, to be served or added to another one by ``add_subapp``.

    Nothing is watched, and running the graph costs nothing more, until a browser connects.

    Args:
        graph: The graph, or several: see `serve`; of a sub-graph the whole root is shown.
        options: See `PageOptions`: ``allowed_hosts``, ``token``, ``max_clients``, ``frame_ancestors``, ``control``,
            ``control_token``, ``values``, ``checkpoints``.
    Raises:
        ValueError: for options that do not fit together.

    Example:
        >>> from aiohttp import web
        >>> graph = af.Graph("g")
        >>> app = web.Application()
        >>> _ = app.add_subapp("/graph", af.web.create_app(graph))
    """
    return app_of(page_of(graph, **options))


def app_of(page: Page | Pages) -> web.Application:
    """A page as an aiohttp application, which closes it when it shuts down."""
    app = web.Application()
    app[PAGE] = page
    app.router.add_route("*", "", _answer)  # the bare prefix of add_subapp
    app.router.add_route("*", "/{path:.*}", _answer)
    app.on_shutdown.append(_close)
    return app


async def _answer(http: web.Request) -> web.StreamResponse:
    page, request = http.app[PAGE], request_of(http)
    if request.path.endswith(STREAM_PATH):
        # Compression would cost the loop more than the loopback gains. aiohttp refuses bodies of the limit's size, too.
        limit = MAX_MESSAGE_BYTES + 1
        socket = web.WebSocketResponse(heartbeat=20.0, timeout=1.0, compress=False, max_msg_size=limit)
        if socket.can_prepare(http).ok:
            refusal = page.refusal(request)
            if refusal is None:
                await socket.prepare(http)
                await page.attend(_Socket(socket), request)
                return socket
    return await send(http, await page.respond(request))


async def send(http: web.Request, response: Response) -> web.StreamResponse:
    """Send a response, in parts, to a client that takes each within a time limit."""
    headers = {**response.headers, "Content-Type": response.content_type}
    reply = web.StreamResponse(status=response.status, headers=headers)
    reply.content_length = response.size_bytes
    loop = asyncio.get_running_loop()
    if http.transport is not None:
        http.transport.set_write_buffer_limits(0)  # or a client would count as served that takes nothing
    try:
        async with asyncio.timeout(TAKING_TIMEOUT_S) as limit:
            await reply.prepare(http)
            for chunk in response.chunks if http.method != "HEAD" else ():
                await reply.write(chunk)
                if len(response.chunks) > 1:  # a client that takes all at once must not have the loop for so long
                    await asyncio.sleep(0)
                    limit.reschedule(loop.time() + TAKING_TIMEOUT_S)
            await reply.write_eof()
            await http.writer.drain()
        if response.status == HTTPStatus.REQUEST_TIMEOUT:
            http.protocol.force_close()  # the rest of the request is not waited for
    except TimeoutError:
        if http.transport is not None:
            http.transport.abort()
    except ConnectionError:
        pass  # the client has gone
    return reply


def request_of(http: web.Request) -> Request:
    """A request of aiohttp's."""
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


_log = logging.getLogger(__name__)

#: A connection on which no whole request has come for so long is closed.
_WAIT_S = 30.0
#: Once it has been answered, a client may send the rest of its request for so long.
_LINGER_S = 1.0
#: Connections per client that may watch, as a browser makes six beside its WebSocket; and for others.
_CONNECTIONS_EACH, _MORE_CONNECTIONS = 8, 64
#: Characters of a request that cannot be read that the log shows.
_MOST_LOGGED = 200


class View:
    """A live page that is being served; a notebook shows it as the page itself.

    Attributes:
        url: Its address; with the token, if there is one, of two the one that lets control.
        host: Address that the server is bound to.
        port: Port that the server is bound to.
        token: Shown by all who look; None where the loopback is the limit.

    Example:
        >>> async def main():
        ...     view = await af.web.serve(af.Graph("g"), port=0, frame_ancestors=["http://localhost:8888"])
        ...     print(view.host, view.token, view.url == f"http://127.0.0.1:{view.port}/")
        ...     await view.aclose()
        >>> af.run(main())
        127.0.0.1 None True
    """

    def __init__(
        self,
        runner: web.AppRunner,
        listener: asyncio.Server,
        title: str,
        host: str,
        port: int,
        token: str | None,
        control_token: str | None,
        ancestors: tuple[str, ...],
    ) -> None:
        shown = control_token or token
        query = "" if shown is None else f"?token={quote(shown, safe='')}"
        self.url = f"http://{for_url(host)}:{port}/{query}"
        self.host = host
        self.port = port
        self.token = token
        self._runner = runner
        self._listener = listener
        self._title = title
        self._ancestors = ancestors
        self._process = os.getpid()

    def show(self, height: int = 600) -> NotebookFrame:
        """The page inside a frame, as the last expression of a notebook's cell shows it.

        The frame's address names this machine as the first of ``frame_ancestors`` does (``localhost`` or 127.0.0.1),
        since browsers keep a token's cookie from frames of another site.

        Args:
            height: Of the frame, in pixels.
        Raises:
            RuntimeError: if no page may frame this one.
        """
        if not self._ancestors:
            raise RuntimeError(f"no page may show {self.url} in a frame: {_HOW_TO_FRAME}")
        height = whole("height", height, 1)
        return NotebookFrame(frame_url(self.url, self._ancestors[0]), self._title, height)

    def _repr_html_(self) -> str:
        if not self._ancestors:
            return NotebookFrame(self.url, self._title, 0, _HOW_TO_FRAME)._repr_html_()
        return self.show()._repr_html_()

    def __repr__(self) -> str:
        return f"<View of graph {self._title!r} at http://{for_url(self.host)}:{self.port}/>"

    async def aclose(self) -> None:
        """Close the browsers' connections and the port; idempotent. Does nothing in the child of a fork."""
        if self._process == os.getpid():
            self._listener.close()
            await self._runner.cleanup()


_HOW_TO_FRAME = (
    "name the notebook's address as the browser shows it, serve(graph, frame_ancestors=['http://localhost:8888'])"
)


class Serving:
    """A page to be served inside ``async with``, or from ``view = await serve(...)`` to the view's ``aclose``."""

    def __init__(self, graph: Graph | Sequence[Graph], host: str, port: int, options: PageOptions) -> None:
        host, port = text("serve: host", host), whole("serve: port", port, 0, 65_535)
        self._graphs = graph if isinstance(graph, Graph) else tuple(graph)
        graphs = [self._graphs] if isinstance(self._graphs, Graph) else self._graphs
        self._title = ", ".join(each.root.name for each in graphs)
        self._host = host
        self._port = port
        self._options = options
        self._view: View | None = None

    def __await__(self) -> Generator[Any, None, View]:
        return self.__aenter__().__await__()

    async def __aenter__(self) -> View:
        if self._view is not None:
            raise RuntimeError(f"{self._view!r} has been started already: call serve() again for another one")
        token = self._options.get("token")
        control_token = self._options.get("control_token")
        if token is None and (not is_loopback(self._host) or (self._options.get("control") and not control_token)):
            token = secrets.token_urlsafe(24)
        ancestors = tuple(self._options.get("frame_ancestors", ()))
        options: PageOptions = {**self._options, "token": token, "frame_ancestors": ancestors}
        page = page_of(self._graphs, [self._host], **options)
        runner = web.AppRunner(
            app_of(page),
            access_log=None,
            logger=Log(_log),
            shutdown_timeout=1.0,
            keepalive_timeout=_WAIT_S,
            lingering_time=_LINGER_S,
            auto_decompress=False,  # commands are short: there is no reason to compress them
        )
        await runner.setup()
        assert runner.server is not None
        most = _CONNECTIONS_EACH * page.max_clients + _MORE_CONNECTIONS
        loop = asyncio.get_running_loop()
        try:
            listener = await loop.create_server(
                at_most(most, runner.server, "the live page"), self._host, self._port, backlog=128
            )
        except BaseException:
            await runner.cleanup()
            raise
        bound = listener.sockets[0].getsockname()[1]
        self._view = View(runner, listener, self._title, self._host, bound, token, control_token, ancestors)
        return self._view

    def __repr__(self) -> str:
        if self._view is None:
            return f"<Serving of graph {self._title!r}, not started: async with serve(...), or await serve(...)>"
        return f"<Serving of graph {self._title!r}, started: {self._view!r}>"

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._view is not None
        await self._view.aclose()


def serve(
    graph: Graph | Sequence[Graph], host: str = "127.0.0.1", port: int = 8080, **options: Unpack[PageOptions]
) -> Serving:
    """Serve a graph's live page from the running loop, or the pages of several graphs.

    In a notebook, ``view = await af.web.serve(graph)`` serves it until ``await view.aclose()``.

    Args:
        graph: The graph; of a sub-graph the whole root is shown. Of several, each page is below the graph's name, and
            at ``/`` is a list of them, with the calls between them (`Graph.call`).
        host: Address to bind to: the loopback unless said otherwise. Any other one demands a token.
        port: Port to bind to; 0 takes a free one, which the view then has.
        options: See `PageOptions`: ``allowed_hosts`` (``host`` at the bound port is allowed by itself), ``token`` (for
            an address other than the loopback, and for ``control``, a random one unless given), ``max_clients``,
            ``frame_ancestors``, ``control``, ``control_token``, ``values``, ``checkpoints``.
    Raises:
        ValueError: if there is no such port.
        OSError: when it starts, if the address cannot be bound, because it is in use for example.
        RuntimeError: if it is started again.
    Cancellation: closes the browsers' connections and the port, as leaving the block does.

    Example:
        >>> import aiohttp
        >>> async def main():
        ...     async with af.web.serve(af.Graph("g"), port=0) as view, aiohttp.ClientSession() as client:
        ...         async with client.get(view.url) as response:
        ...             return response.status, response.content_type
        >>> af.run(main())
        (200, 'text/html')
    """
    return Serving(graph, host, port, options)


def at_most(most: int, server: web.Server, what: str) -> Callable[[], asyncio.Protocol]:
    """Factory of protocols for new connections: ``server``, which serves ``what``, unless it has too many.

    Connections on which no request is answered make room for new ones, the one that has waited longest first.
    """
    told = False

    def serving() -> asyncio.Protocol:
        nonlocal told
        connections = server.connections
        if len(connections) < most:
            return server()
        idle = [each for each in connections if _is_idle(each)]
        if idle:
            longest = min(idle, key=_due_s).transport
            assert longest is not None
            longest.abort()
            return server()
        if not told:
            _log.warning("%s has %d connections, as many as it takes: further ones are closed", what, most)
        told = True
        return _Closing()

    return serving


def _is_idle(connection: web.RequestHandler) -> bool:
    is_open = connection.transport is not None and not connection.transport.is_closing()
    return is_open and not connection._request_in_progress  # aiohttp says it nowhere else


def _due_s(connection: web.RequestHandler) -> float:
    """When an idle connection would be closed."""
    return connection._next_keepalive_close_time  # likewise


class _Closing(asyncio.Protocol):
    """Closes its connection at once, so that clients cannot use up the files that the process may have open."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).abort()


class Log(logging.LoggerAdapter[logging.Logger]):
    """Logger of aiohttp: a request that cannot be read is one line, as it says nothing of this program."""

    def exception(self, msg: object, *args: object, exc_info: Any = True, **options: Any) -> None:
        if isinstance(exc_info, HttpProcessingError | web.RequestPayloadError):
            wrong = getattr(exc_info, "message", str(exc_info))
            text = visible(" ".join(wrong.split()))[:_MOST_LOGGED]
            self.warning("%s: it cannot be read: %s", str(msg) % args, text)
        else:
            super().exception(msg, *args, exc_info=exc_info, **options)

    def debug(self, msg: object, *args: object, exc_info: Any = None, **options: Any) -> None:
        """Log requests without a known method, which aiohttp only mentions."""
        if exc_info is None:
            super().debug(msg, *args, **options)
        else:
            self.exception(msg, *args, exc_info=exc_info, **options)


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches a server that is bound to an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def for_url(host: str) -> str:
    """An address that a server is bound to, as it stands in a URL."""
    if host in {"", "0.0.0.0", "::"}:  # noqa: S104  compared, not bound
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host
