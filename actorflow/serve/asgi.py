"""Models as an ASGI application, to be mounted in FastAPI, Starlette, or served by itself."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from actorflow.loop import waits
from actorflow.serve.app import SERVICE, Service, create_app, not_here
from actorflow.serve.exchange import Exchange
from actorflow.web.asgi import Application, Message, Receive, Send, awaited, unless

if TYPE_CHECKING:
    import numpy.typing as npt

    from actorflow.serve.limits import Limits
    from actorflow.serve.models import Versions


class ServeOptions(TypedDict, total=False):
    """Options of `asgi`, as `create_app` has them."""

    token: str | None
    allowed_hosts: Iterable[str]
    own_names: Iterable[str]
    allowed_origins: Iterable[str]
    limits: Limits | None
    max_rows: int
    max_wait: float
    batch_axis: str | None
    shares: Mapping[str, float] | None
    state: Mapping[str, str] | None
    fixed: Mapping[str, npt.ArrayLike] | None
    feedback: Mapping[str, str] | None
    until: str | None
    limit: int


def asgi(models: Mapping[str, Versions], **options: Unpack[ServeOptions]) -> ASGIModels:
    """The paths of the Open Inference Protocol as an ASGI application, to be mounted in another one.

    It answers as `create_app` does, without live pages (`actorflow.web.asgi` mounts these) and without
    WebSockets. Models are opened by the first request, or at the start of a server that it runs on by itself, and
    closed by ``aclose``, which the lifespan of an application that it is mounted in should call.

    Args:
        models: Models or graphs by name, as for `create_app`.
        options: See `create_app`: ``token``, ``allowed_hosts``, ``own_names``, ``allowed_origins``, ``limits``,
            ``max_rows``, ``max_wait``, ``batch_axis``, ``shares``, ``state``, ``fixed``, ``feedback``, ``until``,
            ``limit``.
    Raises:
        TypeError, ValueError, DTypeError, GraphError: as `create_app`.

    Example:
        >>> from contextlib import asynccontextmanager
        >>> from fastapi import FastAPI
        >>> graph = af.Graph("doubled")
        >>> y = graph.blob("x", ["batch", 2]) * 2
        >>> served = af.serve.asgi({"doubled": graph}, token="secret")
        >>> @asynccontextmanager
        ... async def lifespan(app):
        ...     yield
        ...     await served.aclose()
        >>> app = FastAPI(lifespan=lifespan)
        >>> app.mount("/models", served)  # /models/v2/models/doubled/infer, ...
    """
    return ASGIModels(create_app(models, page=False, **options)[SERVICE])


class ASGIModels(Application):
    """Models as an ASGI 3 application."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._routes: list[tuple[str, re.Pattern[str], Any]] = [
            (route.method, re.compile(re.sub(r"{(\w+)}", r"(?P<\1>[^/]+)", route.path)), route.handler)
            for route in service.routes()
            if not route.path.endswith("/stream")
        ]
        self._life: AsyncIterator[None] | None = None
        self._opening: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Open the models, if they are not."""
        if self._opening is None or (self._opening.done() and self._opening.exception() is not None):
            self._life = self._service.run()
            self._opening = asyncio.create_task(awaited(anext(self._life)))
        if waits(self._opening):
            await asyncio.shield(self._opening)

    async def aclose(self) -> None:
        """Close the models; idempotent. A later request opens them again."""
        life, self._life, self._opening = self._life, None, None
        if life is not None:
            self._service.draining = True
            await anext(life, None)

    async def http(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a request; it is cancelled when the client hangs up."""
        await self.open()
        http = Exchange(scope, receive, send)
        allowed: set[str] = set()
        for method, path, handler in self._routes:
            match = path.fullmatch(http.path)
            if match is not None and method in (http.method, {"HEAD": "GET"}.get(http.method)):
                http.match_info = match.groupdict()
                with suppress(ConnectionError):
                    await unless(http.left(), handler(http))
                return
            if match is not None:
                allowed |= {"GET", "HEAD"} if method == "GET" else {method}
        await http.reply(not_here(http.path, http.method, ",".join(sorted(allowed))))
