"""Live pages of graphs, apart from any server: access, the answer at each path, the stream."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict, Unpack
from urllib.parse import urlencode

from actorflow.checkpoint import Checkpoints
from actorflow.errors import whole
from actorflow.graph.graph import Graph, root_of
from actorflow.web import api
from actorflow.web.access import HostCheck, TokenCheck, checked_ancestors, security_headers
from actorflow.web.control import Control, Saves
from actorflow.web.http import Asset, Refused, Request, Response, Route, Socket, Writer, read_assets, to_json
from actorflow.web.live import LiveStream
from actorflow.web.values import Values
from actorflow.web.vitals import idle
from actorflow.web.wire import called_by

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
        control: Whether the page can pause, cancel and give other commands of `actorflow.web.control`; it then needs a
            token, as nobody but you may do that; each command must show it as ``Authorization: Bearer``, as the page
            does in a tab that was opened by an address with ``?token=``.
        control_token: Requests that show this one, in the way of ``token``, may look and control; those with
            ``token`` may only look. Without it ``token`` is for both.
        values: Whether the page can show values of blobs and variables: statistics, histograms, pictures, norms. Where
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


class Guarded:
    """Base of pages: checks who may ask, and answers at paths."""

    def __init__(
        self,
        own_names: Iterable[str],
        *,
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
        self.max_clients = whole("max_clients", max_clients, 0)
        if not control and (control_token is not None or checkpoints is not None):
            raise ValueError("control_token= and checkpoints= are for control=True")
        self._guards: list[HostCheck | TokenCheck] = [HostCheck(allowed_hosts, own_names)]
        tokens = [known for known in (token, control_token) if known is not None]
        self._tokens = TokenCheck(*tokens, needed=token is not None) if tokens else None
        if self._tokens is not None:
            self._guards.append(self._tokens)
        self._headers = security_headers(checked_ancestors(frame_ancestors))
        self._routes: dict[str, dict[str, Route]] = {}

    def _add(self, *routes: Route) -> None:
        for route in routes:
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


class Page(Guarded):
    """The live page of a graph. Nothing is watched, and running the graph costs nothing more, until a client connects.

    Args:
        graph: The graph; of a sub-graph the whole root is shown.
        own_names: Names besides the loopback's that are known at the port that a request arrived on.
        paths: Where the pages of graphs are that are served beside this one, by the graph.
    Raises:
        ValueError: if a token is empty or both are the same, a host or a frame ancestor is none, ``max_clients`` is
            below 0, or there is control without a token.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        own_names: Iterable[str] = (),
        paths: Mapping[Graph, str] | None = None,
        **options: Unpack[PageOptions],
    ) -> None:
        super().__init__(own_names, **options)
        root, token = root_of(graph), options.get("token")
        self._writer = Writer()
        sampled = Values(root, options.get("values", False), self._tokens)
        self.stream = LiveStream(root, max_clients=self.max_clients, values=sampled, paths=paths)
        guard = self._tokens if options.get("control") else None
        controls = options.get("control_token")
        steering = Control(self.stream, guard, token if controls is None else controls, options.get("checkpoints"))
        self._add(*_page_routes(read_assets(), "index.html"), Route("GET", STREAM_PATH, _upgrade))
        self._add(*api.routes(self.stream, self._writer), *steering.routes())

    async def attend(self, socket: Socket, _: Request) -> None:
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


class Pages(Guarded):
    """The pages of several graphs, each below its name, and at ``/`` a list of them with the calls between them.

    Raises:
        ValueError: if there is none, or one stands there twice; as for `Page`.
    """

    def __init__(
        self, graphs: Sequence[Graph], *, own_names: Iterable[str] = (), **options: Unpack[PageOptions]
    ) -> None:
        super().__init__(own_names, **options)
        roots = [root_of(graph) for graph in graphs]
        if not roots or len({*roots}) < len(roots):
            raise ValueError(f"expected one graph or several different ones, got {[root.name for root in roots]}")
        self._names: dict[Graph, str] = {}
        for root in roots:
            name = re.sub(r"[^\w.-]+|^[.]+", "-", root.name, flags=re.ASCII)
            taken = {"api", "static", *self._names.values()}
            self._names[root] = next(
                n for k in range(len(roots) + 3) if (n := f"{name}-{k + 1}" if k else name) not in taken
            )
        paths = {root: f"../{name}/" for root, name in self._names.items()}
        self._pages = {
            name: Page(root, own_names=own_names, paths=paths, **options) for root, name in self._names.items()
        }
        self._add(*_page_routes(read_assets(), "graphs.html"), Route("GET", "/api/graphs", self._tell))

    def _of(self, request: Request) -> tuple[Page | None, Request]:
        """The page of a graph that a request is for, and the request as that has it."""
        name, slash, rest = request.path[1:].partition("/")
        return self._pages.get(name), dataclasses.replace(request, path=f"/{rest}" if slash else "")

    async def respond(self, request: Request) -> Response:
        page, inner = self._of(request)
        return await (super().respond(request) if page is None else page.respond(inner))

    def refusal(self, request: Request) -> Response | None:
        page, inner = self._of(request)
        return super().refusal(request) if page is None else page.refusal(inner)

    async def attend(self, socket: Socket, request: Request) -> None:
        """Serve an accepted WebSocket, as `Page.attend` does."""
        page, inner = self._of(request)
        assert page is not None  # or it was refused
        await page.attend(socket, inner)

    def open(self) -> None:
        """Let WebSockets in again after `aclose`."""
        for page in self._pages.values():
            page.open()

    async def aclose(self) -> None:
        """Close all WebSockets and stop watching; idempotent."""
        for page in self._pages.values():
            await page.aclose()

    async def _tell(self, _: Request) -> Response:
        return Response.of_json(to_json({"graphs": [self._said(*each) for each in self._names.items()]}))

    def _said(self, graph: Graph, name: str) -> dict[str, Any]:
        profile = graph.engine.profile
        calls = [
            {"op": op.name, "path": self._names[called], "calls": profile[op.id].calls if op.id in profile else 0}
            for op in graph.ops
            if (called := called_by(op)) in self._names
        ]
        about = {"name": graph.name, "path": name, "ops": len(graph.ops), "idle": idle(graph.engine)}
        return {**about, "frames": api.frames(graph), "calls": calls}


def page_of(
    graphs: Graph | Sequence[Graph], own_names: Iterable[str] = (), **options: Unpack[PageOptions]
) -> Page | Pages:
    """The page of a graph, or the pages of several."""
    if isinstance(graphs, Graph):
        return Page(graphs, own_names=own_names, **options)
    if not isinstance(graphs, list | tuple):  # a name, say, whose letters are no graphs
        return Page(root_of(graphs), own_names=own_names, **options)  # type: ignore[arg-type]  # raises
    return Pages(graphs, own_names=own_names, **options)


def _page_routes(assets: dict[str, Asset], first: str) -> list[Route]:
    return [
        Route("GET", "", _with_slash),
        Route("GET", "/", assets[first].answer),
        *[Route("GET", f"/static/{name}", asset.answer) for name, asset in assets.items()],
    ]


async def _with_slash(request: Request) -> Response:
    # Relative, so that it is right behind a proxy too, and never the name of another host.
    query = urlencode(request.query, errors="surrogateescape")
    return Response(308, headers={"Location": f"./{request.target}/{'?' if query else ''}{query}"})


async def _upgrade(_: Request) -> Response:
    return Response.of_text(426, "this is a WebSocket", {"Upgrade": "websocket", "Connection": "Upgrade"})
