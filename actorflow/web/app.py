"""The live page as an aiohttp application, and a server for it in the running loop."""

from __future__ import annotations

import hashlib
import ipaddress
import secrets
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING

from aiohttp import web
from aiohttp.typedefs import Middleware

from actorflow.web.api import STREAM, add_routes
from actorflow.web.guard import SECURITY_HEADERS, host_guard, token_guard
from actorflow.web.stream import Stream

if TYPE_CHECKING:
    from actorflow.graph import Graph

__all__ = ["ASSETS", "STREAM", "View", "create_app", "serve"]

# Fixed, as the system's table of types may call a module text/plain, which browsers then refuse to run.
_CONTENT_TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """One file of the page."""

    body: bytes
    content_type: str
    etag: str


ASSETS: web.AppKey[dict[str, Asset]] = web.AppKey("assets", dict)


@dataclass(frozen=True, slots=True)
class View:
    """A live page that is being served.

    Attributes:
        url: Its address; with the token, if there is one.
        host: Address that the server is bound to.
        port: Port that the server is bound to.
        token: What whoever looks must know; None where the loopback is the limit.
    """

    url: str
    host: str
    port: int
    token: str | None = None


def create_app(
    graph: Graph, *, allowed_hosts: Iterable[str] = (), token: str | None = None, max_clients: int = 32
) -> web.Application:
    """The live page of a graph as an application, to be served or added to another one by ``add_subapp``.

    Nothing is watched, and running the graph costs nothing more, until a browser connects.

    Args:
        graph: The graph; of a sub-graph the whole root is shown.
        allowed_hosts: Names by which the page may be asked for besides 127.0.0.1, localhost and [::1] at the bound
            port, as in the Host header: ``"graphs.example.com"``, ``"10.0.0.5:8080"``. Everything else is refused
            (403), as is a request from a page of any other origin.
        token: Everything is refused (401) to whoever does not show it: as ``?token=``, which a browser does once and
            then keeps it as a cookie, or as ``Authorization: Bearer``. None asks for nothing: the application that
            this one is added to may know whom it lets in.
        max_clients: How many browsers may be connected at a time.
    """
    return _make_app(graph, [host_guard(allowed_hosts), *_token_guards(token)], max_clients)


def _token_guards(token: str | None) -> list[Middleware]:
    return [] if token is None else [token_guard(token)]


def _make_app(graph: Graph, guards: list[Middleware], max_clients: int) -> web.Application:
    app = web.Application(middlewares=guards)
    app[STREAM] = Stream(graph.root, max_clients=max_clients)
    app[ASSETS] = _read_assets()
    app.router.add_get("", _index)  # the bare prefix of add_subapp
    app.router.add_get("/", _index)
    app.router.add_get("/stream", _stream)
    app.router.add_get("/static/{name}", _static)
    add_routes(app.router)
    app.on_response_prepare.append(_add_security_headers)
    app.on_shutdown.append(_close_stream)
    return app


@asynccontextmanager
async def serve(
    graph: Graph,
    host: str = "127.0.0.1",
    port: int = 8080,
    *,
    allowed_hosts: Iterable[str] = (),
    token: str | None = None,
    max_clients: int = 32,
) -> AsyncIterator[View]:
    """Serve a graph's live page from the running loop while the ``async with`` block runs.

    Args:
        graph: The graph.
        host: Address to bind to: the loopback unless said otherwise. Any other one demands a token.
        port: Port to bind to; 0 takes a free one, which the view then has.
        allowed_hosts: As for `create_app`; ``host`` at the bound port is allowed by itself.
        token: As for `create_app`; for an address other than the loopback a random one unless given.
        max_clients: How many browsers may be connected at a time.
    Raises:
        OSError: if the address cannot be bound, because it is in use for example.
    Cancellation: closes the browsers' connections and the port, as leaving the block does.
    """
    if token is None and not _is_loopback(host):
        token = secrets.token_urlsafe(24)
    app = _make_app(graph, [host_guard(allowed_hosts, own_names=[host]), *_token_guards(token)], max_clients)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        bound = runner.addresses[0][1]
        query = "" if token is None else f"?token={token}"
        yield View(f"http://{_for_url(host)}:{bound}/{query}", host, bound, token)
    finally:
        await runner.cleanup()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _for_url(host: str) -> str:
    if host in {"", "0.0.0.0", "::"}:  # noqa: S104  compared, not bound
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host


def _read_assets() -> dict[str, Asset]:
    assets = {}
    for file in resources.files("actorflow.web").joinpath("static").iterdir():
        content_type = _CONTENT_TYPES.get(file.name[file.name.rfind(".") :])
        if content_type is not None:
            body = file.read_bytes()
            assets[file.name] = Asset(body, content_type, hashlib.blake2b(body, digest_size=12).hexdigest())
    return assets


def _asset_response(request: web.Request, name: str) -> web.Response:
    asset = request.app[ASSETS].get(name)
    if asset is None:
        raise web.HTTPNotFound
    response = web.Response(body=asset.body, content_type=asset.content_type, charset="utf-8")
    response.headers["Cache-Control"] = "no-cache"
    response.etag = asset.etag
    known = request.if_none_match or ()
    if any(tag.value in (asset.etag, "*") for tag in known):
        raise web.HTTPNotModified(headers={"ETag": f'"{asset.etag}"', "Cache-Control": "no-cache"})
    return response


async def _index(request: web.Request) -> web.Response:
    if not request.path.endswith("/"):
        # Relative, so that it is right behind a proxy too.
        raise web.HTTPPermanentRedirect(request.path.rpartition("/")[2] + "/")
    return _asset_response(request, "index.html")


async def _static(request: web.Request) -> web.Response:
    return _asset_response(request, request.match_info["name"])


async def _stream(request: web.Request) -> web.WebSocketResponse:
    # A client sends nothing but short requests; compression would cost the loop more than the loopback gains.
    socket = web.WebSocketResponse(heartbeat=20.0, timeout=1.0, compress=False, max_msg_size=1024)
    await socket.prepare(request)
    await request.app[STREAM].attend(socket)
    return socket


async def _add_security_headers(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(SECURITY_HEADERS)


async def _close_stream(app: web.Application) -> None:
    await app[STREAM].aclose()
