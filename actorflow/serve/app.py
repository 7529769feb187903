"""A server of models as an aiohttp application: the paths of the Open Inference Protocol, and who may use them."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from functools import lru_cache, partial
from time import perf_counter
from typing import Any, TypeVar, cast

import numpy.typing as npt
from aiohttp import WSCloseCode, WSMsgType, web

from actorflow import __version__
from actorflow.errors import (
    BatcherClosedError,
    CacheFullError,
    DeviceError,
    DTypeError,
    FeedError,
    MissingExtraError,
    OpError,
    QueueFullError,
    RunCancelledError,
    SessionsFullError,
    ShapeError,
    visible,
)
from actorflow.loop import Steps, end, in_slices, wait_out
from actorflow.runtime.sessions import Session
from actorflow.serve.account import Account, Share
from actorflow.serve.answers import JSON, RETRY, answer, refused
from actorflow.serve.body import receive
from actorflow.serve.exchange import Exchange
from actorflow.serve.generate import generate
from actorflow.serve.inference import HEAD_BYTES, Inference, head_bytes, read, write
from actorflow.serve.limits import Limits
from actorflow.serve.metrics import metrics
from actorflow.serve.models import Hosted, Models, Sequence, Versions
from actorflow.serve.pictures import Picture
from actorflow.serve.repository import Repository
from actorflow.threads import cores
from actorflow.web.access import HostCheck, TokenCheck, bearer
from actorflow.web.http import CHUNK_BYTES, TAKING_TIMEOUT_S, Refused, Response, Writer
from actorflow.web.page import Page
from actorflow.web.server import app_of, send

_log = logging.getLogger(__name__)

_T = TypeVar("_T")
_Http = web.Request | Exchange
_Answer = Callable[[_Http], Awaitable[Response]]
_Handler = Callable[[Any], Awaitable[Any]]
_Reader = Callable[[_Http, Hosted, Share], Awaitable[Inference | Response]]

#: Bytes that a number takes as text, at most; most take less than half.
_TEXT_BYTES = 26
#: Extensions of the protocol that the server has.
_EXTENSIONS = ["binary_tensor_data", "generate", "model_repository", "parameters", "sequence"]


class Service:
    """State that the handlers of requests share.

    Attributes:
        models: The models.
        limits: The limits.
        draining: Whether requests for inference are refused, as the server is about to end.
        in_flight: Number of requests for inference that are being answered.
        needs_token: Whether who has no token is sent away.
        sockets: Streams that are open, and the models that they are of.
        pages: Live pages, by the versions of models that they show.
        warming: Warms up one model after the other, while the application runs.
    """

    def __init__(
        self,
        models: Models,
        limits: Limits,
        token: str | None,
        allowed_hosts: Iterable[str],
        own_names: Iterable[str],
        allowed_origins: Iterable[str],
    ) -> None:
        self.models = models
        self.limits = limits
        self.draining = False
        self.in_flight = 0
        self.needs_token = token is not None
        self.warming: asyncio.Task[None]
        self._tokens = None if token is None else TokenCheck(token)
        self._host_problem = lru_cache(256)(HostCheck(allowed_hosts, own_names).problem)
        self._origins = _checked_origins(allowed_origins, self.needs_token)
        self._account = Account(limits.pending_bytes)
        self._writer = Writer()
        self.sockets: dict[web.WebSocketResponse, Hosted] = {}
        self.pages: dict[str, Callable[[Hosted], Awaitable[None]]] = {}
        self._repository = Repository(models, self._show, self.end_streams)
        self._turn: asyncio.Lock
        self._decoding: asyncio.Semaphore

    # -- paths ---------------------------------------------------------------------------------------------------------

    def routes(self) -> list[web.RouteDef]:
        """The paths and their handlers."""
        paths = ("/v2/models/{name}", "/v2/models/{name}/versions/{version}")
        posts = (("infer", self._tensors), ("image", self._picture))  # which are looked at first
        found = [
            web.post(f"{path}/{what}", partial(self._infer, read=reader), expect_handler=_expected)
            for what, reader in posts
            for path in paths
        ]
        found += [
            web.get("/v2", self._guarded(self._server)),
            web.get("/v2/health/live", self._open(self._live)),
            web.get("/v2/health/ready", self._open(self._ready)),
            web.get("/v2/models", self._guarded(self._list)),
            web.get("/metrics", self._guarded(self._metrics)),
            web.post("/v2/repository/index", self._guarded(self._index)),
            web.post("/v2/repository/models/{name}/load", self._guarded(partial(self._change, load=True))),
            web.post("/v2/repository/models/{name}/unload", self._guarded(partial(self._change, load=False))),
        ]
        if self._origins:
            found += [web.options(path, self._open(self._preflight)) for path in {route.path for route in found}]
        for path in paths:
            found += [
                web.post(f"{path}/generate", partial(self._generate, streams=False), expect_handler=_expected),
                web.post(f"{path}/generate_stream", partial(self._generate, streams=True), expect_handler=_expected),
                web.get(f"{path}/stream", self._stream),
                web.get(path, self._guarded(self._model)),
                web.get(f"{path}/ready", self._guarded(self._model_ready)),
            ]
        return found

    def _open(self, handler: _Answer) -> _Handler:
        async def handle(http: _Http) -> Any:
            try:
                response = await handler(http)
            except Refused as refusal:
                response = refusal.response
            return await self._reply(http, response)

        return handle

    def _guarded(self, handler: _Answer) -> _Handler:
        async def admitted(http: _Http) -> Response:
            self._admit(http)
            return await handler(http)

        return self._open(admitted)

    def _admit(self, http: _Http) -> None:
        """Refuse a request without the token; where there is none, one that a page of another site may have sent."""
        headers = http.headers
        if self._tokens is not None:
            if not self._tokens.known(bearer(headers.get("Authorization", ""))):
                raise refused(401, "expected the server's token, Authorization: Bearer TOKEN", _ASKS_FOR_TOKEN)
            return
        hosts, origins = tuple(headers.getall("Host", ())), tuple(headers.getall("Origin", ()))
        if origins and self._is_allowed(origins[0]):
            origins = origins[1:]
        problem = self._host_problem(hosts, origins, http.scheme, _port(http))
        if problem is not None:
            raise refused(403, f"models are not served to {problem}")

    def _is_allowed(self, origin: str) -> bool:
        return origin.lower() in self._origins or "*" in self._origins

    def across(self, http: _Http) -> dict[str, str]:
        """Headers by which a page of an allowed origin may read the answer (CORS)."""
        origin = http.headers.get("Origin", "")
        if not self._origins or not self._is_allowed(origin):
            return {"Vary": "Origin"} if self._origins else {}
        exposed = f"{HEAD_BYTES}, Retry-After"
        return {"Access-Control-Allow-Origin": origin, "Access-Control-Expose-Headers": exposed, "Vary": "Origin"}

    async def _preflight(self, http: _Http) -> Response:
        """Whether a page of another origin may send a request, which a browser asks before, without the token."""
        origin = http.headers.get("Origin", "")
        if not self._is_allowed(origin):
            raise refused(403, f"models are not served to origin {origin[:100]!r}")
        asked = {"Methods": "GET, POST", "Headers": f"Authorization, Content-Type, {HEAD_BYTES}"}
        headers = {f"Access-Control-Allow-{name}": value for name, value in asked.items()}
        return Response(204, [], JSON, headers | {"Access-Control-Max-Age": "600"})

    async def _reply(self, http: _Http, response: Response) -> Any:
        headers = {"X-Content-Type-Options": "nosniff", **response.headers, **self.across(http)}
        if self.draining:
            headers["Connection"] = "close"
        views = [memoryview(chunk) for chunk in response.chunks]
        if response.size_bytes <= CHUNK_BYTES:
            parts: list[bytes | memoryview] = [b"".join(views)]
        else:
            parts = [view[at : at + CHUNK_BYTES] for view in views for at in range(0, len(view), CHUNK_BYTES)]
        made = Response(response.status, parts, response.content_type, headers)
        return await (http.reply(made) if isinstance(http, Exchange) else send(http, made))

    # -- answers -------------------------------------------------------------------------------------------------------

    async def _server(self, _: _Http) -> Response:
        return answer({"name": "actorflow", "version": __version__, "extensions": _EXTENSIONS})

    async def _live(self, _: _Http) -> Response:
        return answer({"live": True})

    async def _ready(self, _: _Http) -> Response:
        ready = self._is_ready(self.models)
        return answer({"ready": ready}, 200 if ready else 503)

    def _is_ready(self, models: Iterable[Hosted]) -> bool:
        return not self.draining and all(hosted.is_warm for hosted in models)

    async def _list(self, _: _Http) -> Response:
        return answer({"models": [*dict.fromkeys(each.name for each in self.models)]})

    async def _model(self, http: _Http) -> Response:
        hosted = self._hosted(http)
        return answer({"name": hosted.name, "versions": [*self.models.served(hosted.name)], **hosted.described()})

    async def _model_ready(self, http: _Http) -> Response:
        hosted = self._hosted(http)
        ready = self._is_ready([hosted])
        return answer({"name": hosted.name, "ready": ready}, 200 if ready else 503)

    async def _metrics(self, _: _Http) -> Response:
        try:
            begin, content_type = metrics(self.models, self._account)
        except MissingExtraError as error:
            raise refused(501, str(error)) from None
        return Response(200, await self._writer.write("metrics", begin), content_type, {"Cache-Control": "no-store"})

    def _hosted(self, http: _Http) -> Hosted:
        return self.models.find(http.match_info["name"], http.match_info.get("version"))

    # -- the repository ------------------------------------------------------------------------------------------------

    async def _index(self, http: _Http) -> Response:
        return answer(self.models.index(ready=(await self._object(http)).get("ready") is True))

    async def _change(self, http: _Http, *, load: bool) -> Response:
        parameters = (await self._object(http)).get("parameters")
        if load and parameters:
            raise refused(400, "expected no parameters: models are loaded from where the server was told that they are")
        if self.draining:
            raise refused(503, _ENDING, RETRY)
        await self._repository.change(http.match_info["name"], load=load)
        return answer({})

    async def _object(self, http: _Http) -> Mapping[str, Any]:
        with Share(self._account) as held:
            received = await receive(http, self.limits, held)
            try:
                found = json.loads(bytes(received) or b"{}")
            except ValueError:
                found = None
        if not isinstance(found, dict):
            raise refused(400, "expected a JSON object")
        return found

    async def _show(self, hosted: Hosted) -> None:
        """Have the page of a version show what has taken its place."""
        if hosted.label in self.pages:
            await self.pages[hosted.label](hosted)

    async def end_streams(self, hosted: Hosted | None = None) -> None:
        """Close the streams of a model, or of all."""
        streams = [socket for socket, each in self.sockets.items() if hosted in (None, each)]
        await asyncio.gather(*[socket.close(code=WSCloseCode.GOING_AWAY) for socket in streams])

    # -- inference -----------------------------------------------------------------------------------------------------

    async def _infer(self, http: _Http, *, read: _Reader) -> Any:
        since = perf_counter()
        try:
            hosted = self._wanted(http)
        except Refused as refusal:
            return await self._reply(http, refusal.response)
        return await self._counted(http, hosted, read, partial(self._reply, http), since)

    def _wanted(self, http: _Http) -> Hosted:
        self._admit(http)
        version = http.match_info.get("version")
        hosted = self.models.following(http.match_info["name"]) if version is None else self._hosted(http)
        if self.draining:
            raise refused(503, _ENDING, RETRY)
        return hosted

    async def _counted(
        self,
        http: _Http,
        hosted: Hosted,
        read: _Reader,
        tell: Callable[[Response], Awaitable[_T]],
        since: float,
    ) -> _T:
        """Answer a request, which is counted as one in flight until its answer is told."""
        self.in_flight += 1
        hosted.in_flight += 1
        try:
            with Share(self._account) as held:
                response, computed = await self._answered(http, hosted, read, held)
                computed.answers[response.status] += 1
                computed.latency_s.add(perf_counter() - since)
                return await tell(response)
        except asyncio.CancelledError:
            hosted.cancelled += 1
            raise
        finally:
            self.in_flight -= 1
            hosted.in_flight -= 1

    async def _answered(self, http: _Http, hosted: Hosted, read: _Reader, held: Share) -> tuple[Response, Hosted]:
        """The answer, which is all that is held then, and the version that it is of."""
        try:
            request = await read(http, hosted, held)
            if isinstance(request, Response):
                return request, hosted
            most_s = self.limits.timeout_s
            timeout_s = most_s if request.timeout_s is None else min(request.timeout_s, most_s)
            if isinstance(request.sequence, Sequence) and http.match_info.get("version") is None:
                hosted = self.models.keeper(hosted, request.sequence)
            results = await hosted.run(request.inputs, timeout_s, request.sequence)
            request.inputs.clear()
            as_text = [results[name] for name, as_binary in request.outputs.items() if not as_binary]
            texts = _TEXT_BYTES * sum(array.size for array in as_text)
            held.keep(texts + sum(results[name].nbytes for name in request.outputs))
            response = await self._work(write(hosted, request, results), sum(array.nbytes for array in as_text))
            held.keep(response.size_bytes)
        except Refused as refusal:
            response = refusal.response
        except ConnectionError:
            raise
        except Exception as error:  # noqa: BLE001  the client is told
            response = _failure(hosted, error)
        else:
            return response, hosted
        held.keep(0)  # errors are short
        return response, hosted

    async def _tensors(self, http: _Http, hosted: Hosted, held: Share) -> Inference:
        head = head_bytes(http.headers.get(HEAD_BYTES))
        received = await receive(http, self.limits, held, head or 0)
        size = len(received) if head is None else head
        return await self._work(read(received, size, hosted, self.limits.body_bytes, held), size)

    async def _picture(self, http: _Http, hosted: Hosted, held: Share) -> Inference:
        picture = Picture.of(hosted)
        received = await receive(http, self.limits, held)
        try:
            async with self._decoding:
                pixels = await picture.read(received, http.query, self.limits, self._account)
        except DeviceError as error:  # no thread to be had at the moment
            raise refused(503, str(error), RETRY) from None
        held.keep(pixels.nbytes)
        return Inference(None, {picture.name: pixels}, dict.fromkeys(hosted.outputs, False), None)

    async def _generate(self, http: _Http, *, streams: bool) -> Any:
        """Answers to one row, which may be many: as events as soon as each is there, or the last one alone."""
        since = perf_counter()
        events: Exchange | web.StreamResponse
        begin: Callable[[], Awaitable[Any]]
        headers = _EVENTS | self.across(http)
        if isinstance(http, Exchange):
            events, begin = http, partial(http.prepare, headers)
        else:
            events = web.StreamResponse(headers=headers)
            begin = partial(events.prepare, http)
        try:
            hosted = self._wanted(http)
        except Refused as refusal:
            return await self._reply(http, refusal.response)
        found: list[dict[str, Any]] = []

        async def taken(sending: Awaitable[None]) -> None:
            """Send something; a client that reads nothing is cut off."""
            try:
                async with asyncio.timeout(TAKING_TIMEOUT_S):
                    await sending
            except TimeoutError:
                if not isinstance(http, Exchange) and http.transport is not None:
                    http.transport.abort()
                raise ConnectionResetError("a client has taken no event for too long") from None

        async def tell(content: dict[str, Any]) -> None:
            if not streams:
                found.append(content)
                return
            if not events.prepared:
                await begin()
            await taken(events.write(b"data: %s\n\n" % json.dumps(content).encode()))

        async def read(http: _Http, hosted: Hosted, held: Share) -> Response:
            await generate(hosted, await receive(http, self.limits, held), self.limits.timeout_s, tell)
            if streams:
                return Response(200, [], "text/event-stream")
            names = [name for name in found[-1] if name in hosted.outputs]
            return answer(found[-1] | {name: [each[name] for each in found] for name in names if len(found) > 1})

        async def end(response: Response) -> Any:
            if not events.prepared:
                return await self._reply(http, response)
            if response.status != 200:
                await taken(events.write(b"data: %s\n\n" % b"".join(response.chunks)))
            await taken(events.write_eof())
            return events

        return await self._counted(http, hosted, read, end, since)

    # -- streams -------------------------------------------------------------------------------------------------------

    async def _stream(self, http: web.Request) -> Any:
        socket = web.WebSocketResponse(timeout=1.0, compress=False, max_msg_size=self.limits.body_bytes)
        try:
            hosted = self._wanted(http)
            if not socket.can_prepare(http):
                raise refused(400, "expected a WebSocket", {"Upgrade": "websocket"})
            async with hosted.session() as session:
                await socket.prepare(http)
                self.sockets[socket] = hosted
                try:
                    await self._converse(http, socket, hosted, session)
                finally:
                    del self.sockets[socket]
        except Refused as refusal:
            return await self._reply(http, refusal.response)
        except ConnectionError:
            pass  # the client has gone
        except (SessionsFullError, BatcherClosedError) as error:
            return socket if socket.prepared else await self._reply(http, _failure(hosted, error))
        return socket

    async def _converse(
        self, http: web.Request, socket: web.WebSocketResponse, hosted: Hosted, session: Session | None
    ) -> None:
        """Answer each message, one after the other, until the client has gone or is silent for too long."""
        idle_s = self.limits.sequence_idle_s
        while True:
            try:
                message = await socket.receive(idle_s if idle_s < math.inf else None)
            except TimeoutError:
                break
            if message.type not in (WSMsgType.TEXT, WSMsgType.BINARY):
                break
            since = perf_counter()
            if self.draining:
                await self._say(http, socket, refused(503, _ENDING).response)
                break
            read = partial(self._message, data=message.data, session=session)
            await self._counted(http, hosted, read, partial(self._say, http, socket), since)
        await socket.close(code=WSCloseCode.GOING_AWAY if self.draining else WSCloseCode.OK)

    async def _message(
        self, _: _Http, hosted: Hosted, held: Share, *, data: str | bytes, session: Session | None
    ) -> Inference:
        """A request: JSON as for `infer`, or the values of the only input."""
        if isinstance(data, bytes):
            held.add(len(data))
            return Inference(None, hosted.row(data), dict.fromkeys(hosted.outputs, True), None, session)
        body = memoryview(data.encode())
        held.add(len(body))
        request = await self._work(read(body, len(body), hosted, self.limits.body_bytes, held), len(body))
        return request._replace(sequence=session)

    async def _say(self, http: web.Request, socket: web.WebSocketResponse, response: Response) -> None:
        """Send an answer: JSON, or the values of the outputs, one after the other."""
        try:
            async with asyncio.timeout(TAKING_TIMEOUT_S):
                if response.content_type == JSON:
                    await socket.send_str(b"".join(response.chunks).decode())
                else:
                    await socket.send_bytes(b"".join(response.chunks[1:]))
        except TimeoutError:
            if http.transport is not None:
                http.transport.abort()

    async def _work(self, steps: Steps[_T], size_bytes: int) -> _T:
        """Read or write JSON; of what takes long, one at a time, so that other requests wait for one slice of it."""
        if size_bytes <= CHUNK_BYTES:
            return await in_slices(steps)
        async with self._turn:
            return await in_slices(steps)

    async def run(self, app: web.Application | None = None) -> AsyncIterator[None]:
        """Have the models open while the application runs."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._writer.aclose)
            await stack.enter_async_context(self._repository.opened())
            self.draining, self._turn = False, asyncio.Lock()
            self._decoding = asyncio.Semaphore(cores())
            self.warming = asyncio.create_task(self._warm_up())
            try:
                yield
            finally:
                end(self.warming)
                await wait_out([self.warming])

    async def _warm_up(self) -> None:
        for hosted in self.models:
            await hosted.warm_up()


def _port(http: _Http) -> int | None:
    if isinstance(http, Exchange):
        return http.port
    address = http.transport.get_extra_info("sockname") if http.transport else None
    return address[1] if isinstance(address, tuple) else None


_ENDING = "the server is about to end"
_EVENTS = {"X-Content-Type-Options": "nosniff", "Content-Type": "text/event-stream", "Cache-Control": "no-store"}
_ASKS_FOR_TOKEN = {"WWW-Authenticate": "Bearer"}
SERVICE: web.AppKey[Service] = web.AppKey("service", Service)


def create_app(
    models: Mapping[str, Versions],
    *,
    token: str | None = None,
    allowed_hosts: Iterable[str] = (),
    own_names: Iterable[str] = (),
    allowed_origins: Iterable[str] = (),
    page: bool = True,
    values: bool = False,
    limits: Limits | None = None,
    max_rows: int = 32,
    max_wait: float = 0.002,
    batch_axis: str | None = None,
    shares: Mapping[str, float] | None = None,
    state: Mapping[str, str] | None = None,
    fixed: Mapping[str, npt.ArrayLike] | None = None,
    feedback: Mapping[str, str] | None = None,
    until: str | None = None,
    limit: int = 1024,
) -> web.Application:
    """A server of models as an aiohttp application.

    It speaks the Open Inference Protocol (KServe's version 2, REST), and has ``/metrics`` and the live page of each
    model. Have your runner cancel the handlers of clients that hang up: ``AppRunner(app, handler_cancellation=True)``.
    `actorflow.serve.Server` does, and ends without losing a request.

    Args:
        models: Models or graphs by name; versions of one by theirs, of which the last one is what those get who name
            none. Graphs are taken as `Model.of` does. They are closed when the application shuts down.
        token: Refuse requests (401) that do not show it, ``Authorization: Bearer``; those for the two health paths are
            answered all the same. Without one, requests are refused (403) that do not name this machine as their host,
            as pages of other sites could send them through a browser here.
        allowed_hosts: Further hosts by which the server and its pages may be asked for, as in the Host header.
        own_names: Further names of this machine, known at the port that a request arrived on.
        allowed_origins: Origins whose pages may send requests from a browser and read the answers (CORS), such as
            ``https://app.example.com``; ``*`` for all, which needs a ``token``. Live pages have none of it.
        page: Whether to serve the live pages, at ``/graph/NAME/``; of several versions at ``/graph/NAME/VERSION/``.
        values: Whether the pages can show what blobs hold, requests and results among them; with ``token``, to those
            who show it with each request for them.
        limits: Numbers and sizes of requests that may wait.
        max_rows: Most rows of requests that are computed in one frame; 0 runs each request by itself.
        max_wait: Longest time in seconds that a request waits for company while another frame runs.
        batch_axis: Name of the axis whose elements do not know each other. By default it is the open axis that the
            inputs begin with, if it is called ``batch``, something with it, or ``N``; models that have none, or whose
            results are not by rows, run each request by itself.
        shares: Shares of the requests that name no version, by ``NAME/VERSION``, in any unit: with
            ``{"net/1": 9, "net/2": 1}`` version 2 computes every tenth. Versions of the same model that have none get
            none. A sequence stays with the version that it began on.
        state: Inputs that each sequence of requests keeps, of the models that have them, each with the output that
            gives its next value, by name; beside the states that graphs have themselves. See `Model.sessions`.
        fixed: Values of inputs that are the same for all requests, of the models that have them, by name.
        feedback: Inputs that requests to ``generate`` are fed step by step, of the models that have them, each with the
            output that gives the next value, by name; see `Batcher.iterate`.
        until: Output of these models that is true for the last step.
        limit: Most steps of a request.
    Raises:
        TypeError: if an argument is of another type.
        ValueError: if there is no model, a name cannot stand in a path, the token is empty, or a number is out of its
            range.
        DTypeError: if an input or an output has a dtype that the protocol lacks.
        GraphError: if ``batch_axis`` cannot be batched, a state cannot be kept, or versions that share requests have
            different inputs or outputs.

    Example:
        >>> graph = af.Graph("doubled")
        >>> y = graph.blob("x", ["batch", 2]) * 2
        >>> model = af.Model.of(graph)
        >>> app = af.serve.create_app({"doubled": model}, token="secret", max_rows=16)
        >>> sorted({route.resource.canonical for route in app.router.routes()})[:4]
        ['/graph/doubled', '/graph/doubled/{path}', '/metrics', '/v2']
    """
    limits = Limits() if limits is None else limits
    if not isinstance(cast(object, limits), Limits):
        raise TypeError(f"limits must be af.serve.Limits(...), got {type(limits).__name__}")
    if token is not None and not isinstance(cast(object, token), str):
        raise TypeError(f"the token must be a text, got {type(token).__name__}")
    allowed, own = _texts("allowed_hosts", allowed_hosts), _texts("own_names", own_names)
    how = {"max_rows": max_rows, "max_wait": max_wait, "batch_axis": batch_axis, "state": state, "fixed": fixed}
    found = Models(models, limits, shares or {}, **how, feedback=feedback, until=until, limit=limit)
    service = Service(found, limits, token, allowed, own, _texts("allowed_origins", allowed_origins))
    app = web.Application(middlewares=[_as_protocol])
    app[SERVICE] = service
    app.add_routes(service.routes())
    if page:
        for hosted in found:
            several = len(found.served(hosted.name)) > 1
            prefix = f"/graph/{hosted.label if several else hosted.name}"
            service.pages[hosted.label] = _shown(app, prefix, hosted, own, allowed, token, values)
    app.cleanup_ctx.append(service.run)
    app.on_shutdown.append(_drain)
    return app


def _shown(
    app: web.Application,
    prefix: str,
    hosted: Hosted,
    own: Iterable[str],
    allowed: Iterable[str],
    token: str | None,
    values: bool,
) -> Callable[[Hosted], Awaitable[None]]:
    """Have a model's page at a path; returns what has it show another version in its place."""

    def made(hosted: Hosted) -> Page:
        hosted.page = f"{prefix}/"
        return Page(hosted.model.graph, own_names=own, allowed_hosts=allowed, token=token, values=values)

    page = made(hosted)
    app.add_subapp(prefix, app_of(page))

    async def show(hosted: Hosted) -> None:
        await page.aclose()
        vars(page).update(vars(made(hosted)))  # paths cannot be added to an application that runs

    return show


def _texts(what: str, given: Iterable[str]) -> tuple[str, ...]:
    texts = () if isinstance(given, str) else tuple(given)
    if isinstance(given, str) or not all(isinstance(each, str) for each in texts):
        raise TypeError(f"{what} must be a list of texts, got {given!r}")
    return texts


def _checked_origins(origins: Iterable[str], needs_token: bool) -> frozenset[str]:
    """Origins in the form that browsers send them.

    Raises:
        ValueError: if one is not ``scheme://host`` or ``scheme://host:port``, or all are allowed without a token.
    """
    for origin in origins:
        scheme, _, authority = origin.partition("://")
        if origin != "*" and not (scheme in {"http", "https"} and re.fullmatch(r"[\w.:\[\]-]+", authority, re.ASCII)):
            raise ValueError(f"expected an origin such as 'https://app.example.com' in allowed_origins, got {origin!r}")
        if origin == "*" and not needs_token:
            raise ValueError("allowed_origins=['*'] has any page that a browser shows use the models: it needs a token")
    return frozenset([origin.lower() for origin in origins])


async def _drain(app: web.Application) -> None:
    service = app[SERVICE]
    service.draining = True
    await service.end_streams()


async def _expected(http: web.Request) -> None:
    """Let the body of a request come when it is known to be wanted; see `receive`."""


@web.middleware
async def _as_protocol(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Have the errors of aiohttp in the form of the protocol: paths that do not exist, or not with this method."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        if error.status not in (404, 405):
            response = answer({"error": f"{error.reason}: {request.method}"}, error.status)
        else:
            response = not_here(request.path, request.method, error.headers.get("Allow", ""))
        across = request.app[SERVICE].across(request) if SERVICE in request.app else {}
        headers = {**response.headers, **across, "Content-Type": response.content_type}
        return web.Response(body=response.chunks[0], status=error.status, headers=headers)


def not_here(path: str, method: str, allowed: str) -> Response:
    """The answer where there is no such path, or it has other methods."""
    if not allowed:
        return answer({"error": f"there is nothing at {path!r}"}, 404)
    return answer({"error": f"Method Not Allowed: {method}"}, 405, {"Allow": allowed})


def _failure(hosted: Hosted, error: Exception) -> Response:
    first = str(error).partition("\n")[0]  # what follows tells of the program's files
    match error:
        case (
            QueueFullError()
            | SessionsFullError()
            | CacheFullError()
            | BatcherClosedError()
            | RunCancelledError()
            | MemoryError()
        ):
            status, headers = 503, RETRY
        case MissingExtraError():
            status, headers = 501, {}
        case TimeoutError():
            status, headers, first = 504, {}, first or "the request has timed out"
        case FeedError() | ShapeError() | DTypeError():
            status, headers = 400, {}
        case _:
            status, headers = 500, {}
            # The message may have what a client has sent, which shall not steer the terminal of who reads the log.
            lines = visible("".join(traceback.format_exception(error)), lines=True)
            _log.error("model %s failed\n%s", hosted.label, lines.rstrip())
            first = first if isinstance(error, OpError) else "the server has failed"
    return refused(status, first, headers).response
