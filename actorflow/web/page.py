"""The live page of one graph, apart from any server: access, the answer at each path, the stream."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from typing import TypedDict
from urllib.parse import urlencode

from actorflow.checkpoint import Checkpoints
from actorflow.errors import whole
from actorflow.graph.graph import Graph, root_of
from actorflow.web import api
from actorflow.web.access import HostCheck, TokenCheck, checked_ancestors, security_headers
from actorflow.web.control import Control, Saves
from actorflow.web.http import Asset, Refused, Request, Response, Route, Socket, Writer, read_assets
from actorflow.web.live import LiveStream
from actorflow.web.values import Values

STREAM_PATH = "/stream"


class PageOptions(TypedDict, total=False):
    """Options of the live page, which all that makes one takes by keyword.

    Attributes:
        allowed_hosts: Names by which the page may be asked for besides 127.0.0.1, localhost and [::1] at the bound
            port, as in the Host header: ``"graphs.example.com"``, ``"10.0.0.5:8080"``. Everything else is refused
            (403), as is a request from a page of any other origin.
        token: All requests are refused (401) that do not show it: as ``?token=``, for which a browser gets a
            cookie that lets it look, or as ``Authorization: Bearer``. None asks for nothing: the application that the
            page is a part of may check that itself.
        max_clients: How many browsers may be connected at a time; 32 unless said otherwise.
        frame_ancestors: Origins whose pages may show this one inside a frame, as a notebook does:
            ``["http://localhost:8888"]``; a port may be ``*``. None may unless said otherwise.
        control: Whether the page can pause and cancel, and what else `actorflow.web.control` does; it then needs a
            token, as nobody but you may do that; each command must show it as ``Authorization: Bearer``, as the page
            does in a tab that was opened by an address with ``?token=``.
        control_token: Requests that show this one, in the way of ``token``, may look and control; those with
            ``token`` may only look. Without it ``token`` is for both.
        values: Whether the page can show what blobs and variables hold: statistics, histograms, pictures, norms. Where
            there is a token, each request for values must show it, in the way of ``control``.
        checkpoints: Where the page's checkpoints go: an `actorflow.nn.Trainer` that saves its own, with the place in
            the data, to be resumed; `Checkpoints` or a folder for the variables and the number of the frame.

    Example:
        >>> graph = af.Graph("g")
        >>> options = {"control": True, "token": "secret", "max_clients": 4}
        >>> app = af.web.create_app(graph, **options)
    """

    allowed_hosts: Iterable[str]
    token: str | None
    max_clients: int
    frame_ancestors: Iterable[str]
    control: bool
    control_token: str | None
    values: bool
    checkpoints: Checkpoints | Saves | str | os.PathLike[str] | None


class Page:
    """The live page of a graph. Nothing is watched, and running the graph costs nothing more, until a client connects.

    Args:
        graph: The graph; of a sub-graph the whole root is shown.
        own_names: Names besides those of the loopback that are known at the port that a request arrived on.
    Raises:
        ValueError: if a token is empty or both are the same, a host or a frame ancestor is none, ``max_clients`` is
            below 0, or there is control without a token.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        own_names: Iterable[str] = (),
        allowed_hosts: Iterable[str] = (),
        token: str | None = None,
        max_clients: int = 32,
        frame_ancestors: Iterable[str] = (),
        control: bool = False,
        control_token: str | None = None,
        values: bool = False,
        checkpoints: Checkpoints | Saves | str | os.PathLike[str] | None = None,
    ) -> None:
        controls = token if control_token is None else control_token
        if control and controls is None:
            raise ValueError("control=True needs token=, or control_token= for those who may do more than look")
        if controls is not None and control_token == token:
            raise ValueError("control_token= must not be token=, with which others may only look")
        max_clients = whole("max_clients", max_clients, 0)
        if not control and (control_token is not None or checkpoints is not None):
            raise ValueError("control_token= and checkpoints= are for control=True")
        self._writer = Writer()
        self._guards: list[HostCheck | TokenCheck] = [HostCheck(allowed_hosts, own_names)]
        tokens = [known for known in (token, control_token) if known is not None]
        self._tokens = TokenCheck(*tokens, needed=token is not None) if tokens else None
        if self._tokens is not None:
            self._guards.append(self._tokens)
        root = root_of(graph)
        sampled = Values(root, values, self._tokens)
        self.stream = LiveStream(root, max_clients=max_clients, values=sampled)
        steering = Control(self.stream, self._tokens if control else None, controls, checkpoints)
        self._headers = security_headers(checked_ancestors(frame_ancestors))
        self._routes: dict[str, dict[str, Route]] = {}
        for route in (*_page_routes(read_assets()), *api.routes(self.stream, self._writer), *steering.routes()):
            self._routes.setdefault(route.path, {})[route.method] = route

    async def respond(self, request: Request) -> Response:
        """Answer a request over HTTP. The body of an answer to HEAD is for the server to leave out."""
        refusal = self._refusal(request)
        response = refusal or await self._answer(request)
        cookie = {} if refusal or self._tokens is None else self._tokens.headers(request)
        return dataclasses.replace(response, headers={**self._headers, **cookie, **response.headers})

    def refusal(self, request: Request) -> Response | None:
        """Response that refuses a request for a WebSocket; None if it is to be accepted, and to `attend`."""
        response = self._refusal(request)
        if response is None and request.path != STREAM_PATH:
            response = Response.of_text(404, f"there is no WebSocket at {request.path!r}")
        return response and dataclasses.replace(response, headers={**self._headers, **response.headers})

    async def attend(self, socket: Socket) -> None:
        """Serve an accepted WebSocket until it closes.

        Cancellation: the client is forgotten; closing the socket is the caller's.
        """
        await self.stream.attend(socket)

    def open(self) -> None:
        """Let WebSockets in again after `aclose`; they are from the beginning."""
        self.stream.open()

    async def aclose(self) -> None:
        """Close all WebSockets and stop watching; idempotent."""
        await self._writer.aclose()
        await self.stream.aclose()

    def _refusal(self, request: Request) -> Response | None:
        return next((refusal for guard in self._guards if (refusal := guard.refusal(request)) is not None), None)

    async def _answer(self, request: Request) -> Response:
        methods = self._routes.get(request.path)
        if methods is None:
            return Response.of_text(404, f"there is nothing at {request.path!r}")
        route = methods.get("GET" if request.method == "HEAD" else request.method)
        if route is None:
            allowed = ", ".join(sorted({*methods, *(["HEAD"] if "GET" in methods else [])}))
            return Response.of_text(405, f"expected {allowed}, got {request.method}", {"Allow": allowed})
        try:
            return await route.answer(request)
        except Refused as refused:
            return refused.response


def _page_routes(assets: dict[str, Asset]) -> list[Route]:
    return [
        Route("GET", "", _with_slash),
        Route("GET", "/", assets["index.html"].answer),
        Route("GET", STREAM_PATH, _upgrade),
        *[Route("GET", f"/static/{name}", asset.answer) for name, asset in assets.items()],
    ]


async def _with_slash(request: Request) -> Response:
    # Relative, so that it is right behind a proxy too, and never the name of another host.
    query = urlencode(request.query, errors="surrogateescape")
    return Response(308, headers={"Location": f"./{request.target}/{'?' if query else ''}{query}"})


async def _upgrade(_: Request) -> Response:
    return Response.of_text(426, "this is a WebSocket", {"Upgrade": "websocket", "Connection": "Upgrade"})
