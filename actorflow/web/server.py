"""A server for the live page in the running loop."""

from __future__ import annotations

import ipaddress
import secrets
from types import TracebackType
from typing import TYPE_CHECKING, Unpack
from urllib.parse import quote

from aiohttp import web

from actorflow.web.app import app_of
from actorflow.web.frame import Frame, frame_url
from actorflow.web.page import Page, PageOptions

if TYPE_CHECKING:
    from actorflow.graph import Graph

__all__ = ["Serving", "View", "serve"]


class View:
    """A live page that is being served; a notebook shows it as the page itself.

    Attributes:
        url: Its address; with the token, if there is one, of two the one that lets control.
        host: Address that the server is bound to.
        port: Port that the server is bound to.
        token: What whoever looks must know; None where the loopback is the limit.
    """

    def __init__(
        self,
        runner: web.AppRunner,
        title: str,
        host: str,
        port: int,
        token: str | None,
        control_token: str | None,
        ancestors: tuple[str, ...],
    ) -> None:
        shown = control_token or token
        query = "" if shown is None else f"?token={quote(shown, safe='')}"
        self.url = f"http://{_for_url(host)}:{port}/{query}"
        self.host = host
        self.port = port
        self.token = token
        self._runner = runner
        self._title = title
        self._ancestors = ancestors

    def show(self, height: int = 600) -> Frame:
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
        return Frame(frame_url(self.url, self._ancestors[0]), self._title, height)

    def _repr_html_(self) -> str:
        if not self._ancestors:
            return Frame(self.url, self._title, 0, _HOW_TO_FRAME)._repr_html_()
        return self.show()._repr_html_()

    def __repr__(self) -> str:
        return f"<View of graph {self._title!r} at http://{_for_url(self.host)}:{self.port}/>"

    async def aclose(self) -> None:
        """Close the browsers' connections and the port; idempotent."""
        await self._runner.cleanup()


_HOW_TO_FRAME = (
    "name the notebook's address as the browser shows it, serve(graph, frame_ancestors=['http://localhost:8888'])"
)


class Serving:
    """What `serve` returns: a page that is served inside ``async with``, or from `start` to the view's ``aclose``."""

    def __init__(self, graph: Graph, host: str, port: int, options: PageOptions) -> None:
        if not 0 <= port <= 65_535:
            raise ValueError(f"serve: expected a port from 0 to 65535, got {port}")
        self._graph = graph
        self._host = host
        self._port = port
        self._options = options
        self._view: View | None = None

    async def start(self) -> View:
        """Begin to serve, for a notebook's cell; the view's ``aclose`` ends it, as the loop's end does.

        Raises:
            OSError: if the address cannot be bound, because it is in use for example.
            RuntimeError: if it has been started.
        """
        if self._view is not None:
            raise RuntimeError(f"{self._view!r} has been started already: call serve() again for another one")
        token = self._options.get("token")
        control_token = self._options.get("control_token")
        if token is None and (not _is_loopback(self._host) or (self._options.get("control") and not control_token)):
            token = secrets.token_urlsafe(24)
        ancestors = tuple(self._options.get("frame_ancestors", ()))
        options: PageOptions = {**self._options, "token": token, "frame_ancestors": ancestors}
        page = Page(self._graph, own_names=[self._host], **options)
        runner = web.AppRunner(app_of(page), access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await web.TCPSite(runner, self._host, self._port).start()
        except BaseException:
            await runner.cleanup()
            raise
        bound = runner.addresses[0][1]
        self._view = View(runner, self._graph.root.name, self._host, bound, token, control_token, ancestors)
        return self._view

    def __repr__(self) -> str:
        name = self._graph.root.name
        if self._view is None:
            return f"<Serving of graph {name!r}, not started: async with serve(...), or await serve(...).start()>"
        return f"<Serving of graph {name!r}, started: {self._view!r}>"

    async def __aenter__(self) -> View:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._view is not None
        await self._view.aclose()


def serve(graph: Graph, host: str = "127.0.0.1", port: int = 8080, **options: Unpack[PageOptions]) -> Serving:
    """Serve a graph's live page from the running loop.

    ::

        async with af.web.serve(graph) as view:   # while the block runs
            ...

        view = await af.web.serve(graph).start()  # in a notebook: until view.aclose()

    Args:
        graph: The graph; of a sub-graph the whole root is shown.
        host: Address to bind to: the loopback unless said otherwise. Any other one demands a token.
        port: Port to bind to; 0 takes a free one, which the view then has.
        options: See `PageOptions`: ``allowed_hosts`` (``host`` at the bound port is allowed by itself), ``token`` (for
            an address other than the loopback, and for ``control``, a random one unless given), ``max_clients``,
            ``frame_ancestors``, ``control``, ``control_token``, ``checkpoints``.
    Raises:
        ValueError: if there is no such port.
        OSError: when it starts, if the address cannot be bound, because it is in use for example.
    Cancellation: closes the browsers' connections and the port, as leaving the block does.
    """
    return Serving(graph, host, port, options)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _for_url(host: str) -> str:
    if host in {"", "0.0.0.0", "::"}:  # noqa: S104  compared, not bound
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host
