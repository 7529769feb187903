"""The live state of a graph, sent to every browser: one ticker, no queues.

The ticker runs only while clients are connected. Changes are encoded once per tick for all of them. A client whose
send has not finished is left alone; when it has, it gets one delta from where it was to now, however many ticks that
spans. So a slow client costs no memory and holds up none.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from actorflow.errors import DeviceError
from actorflow.graph.graph import Graph
from actorflow.graph.nodes import Blob
from actorflow.loop import end, wait_out
from actorflow.runtime.engine import Engine
from actorflow.threads import in_thread
from actorflow.web.control import control_state
from actorflow.web.http import CloseCode, Socket
from actorflow.web.telemetry import Position, Telemetry
from actorflow.web.values import Values, Viewer
from actorflow.web.vitals import Vitals
from actorflow.web.wire import EncodedGraph, capture, encode_control, encode_heartbeat, encode_vitals

_log = logging.getLogger(__name__)

_CLOSE_TIMEOUT_S = 1.0
#: A tick goes through all ops that have changed, which takes long where they are very many: then there are fewer ticks,
#: so that they take this share of the loop's time, but one in so many seconds.
_MAX_SHARE, _MAX_PAUSE_S = 0.1, 1.0
#: State of control that a client assumes until it is told otherwise.
_UNTOUCHED = encode_control(
    {"paused": None, "paused_ranks": [], "streams": [], "check_finite": None, "kept": None}, None
)


class Client:
    """One connected browser and its position in the stream.

    Args:
        look: Takes its requests for values; returns whether they are any.

    Attributes:
        calls: Up to which position of the trace it has been told of calls and requests; None for nothing yet.
        viewer: Its requests for values.
    """

    def __init__(self, socket: Socket, look: Callable[[Viewer, dict[str, Any]], bool] = lambda *_: False) -> None:
        self.socket = socket
        self._look = look
        self.wake = asyncio.Event()
        self.telemetry: Telemetry | None = None
        self.position: Position | None = None
        self.timeline = False  # whether it has asked for calls
        self.calls: tuple[int, int] | None = None
        self.vitals: str | None = None  # the next message on the state of the process
        self.control = _UNTOUCHED  # the newest message on control that it has been sent
        self.viewer = Viewer(self.wake.set)

    def forget(self) -> None:
        """Send a snapshot next."""
        self.telemetry = self.position = self.calls = None
        self.wake.set()

    def ask(self, text: str) -> bool:
        """Take a request; returns whether it is one."""
        try:
            message = json.loads(text)
        except (ValueError, RecursionError):
            return False
        match message:
            case {"type": "resync"}:
                self.forget()
            case {"type": "timeline", "on": bool(on)}:
                self.timeline, self.calls = on, None
                self.wake.set()
            case {"type": "values", **wanted}:
                return self._look(self.viewer, {str(name): value for name, value in wanted.items()})
            case _:
                return False
        return True


class LiveStream:
    """The live state of one graph.

    Args:
        linger_s: How long the graph stays watched after the last client left, so that a reload finds its states.
        heartbeat_s: A client that had nothing for so long gets a heartbeat.
        vitals_s: How often the clients are told of memory and the like.
        values: Samples values for the clients; none are unless given.
        paths: Where the pages of graphs are that are served beside this one's, by the graph.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        interval_s: float = 0.06,
        linger_s: float = 10.0,
        heartbeat_s: float = 10.0,
        vitals_s: float = 1.0,
        max_clients: int = 32,
        values: Values | None = None,
        paths: Mapping[Graph, str] | None = None,
    ) -> None:
        self.graph = graph
        self.values = Values(graph) if values is None else values
        self.paths = paths or {}
        self.interval_s = interval_s
        self.linger_s = linger_s
        self.heartbeat_s = heartbeat_s
        self.vitals_s = vitals_s
        self.max_clients = max_clients
        self.clients: set[Client] = set()
        self._sockets: set[Socket] = set()
        self._closed = False
        self._structure: EncodedGraph | None = None
        self._capture: asyncio.Task[None] | None = None
        self._captured_revision = -1
        self._telemetry: Telemetry | None = None
        self._engine: Engine | None = None
        self._vitals: Vitals | None = None
        self._vitals_due_s = 0.0
        self._ticker: asyncio.Task[None] | None = None
        self._linger: asyncio.TimerHandle | None = None
        self._encoded: dict[tuple[int, int], list[str | bytes]] = {}
        self._command: dict[str, Any] | None = None
        self._control = _UNTOUCHED
        self._is_failing = False

    @property
    def seq(self) -> int:
        """Sequence number of the newest state; 0 before the first look."""
        return self._telemetry.seq if self._telemetry else 0

    @property
    def is_watching(self) -> bool:
        """True if the graph is being watched: clients are connected, or were a moment ago."""
        return self._engine is not None

    # -- clients ------------------------------------------------------------------------------------------------

    async def attend(self, socket: Socket) -> None:
        """Serve one accepted WebSocket until it closes.

        Cancellation: the client is forgotten; closing the socket is the caller's.
        """
        if self._closed:
            await _hang_up(socket, CloseCode.GOING_AWAY, "server shutdown")
            return
        if len(self.clients) >= self.max_clients:
            await _hang_up(socket, CloseCode.TRY_AGAIN_LATER, "too many clients")
            return
        client = self.join(socket)
        self._sockets.add(socket)
        writer = asyncio.create_task(self._write_and_report(client, socket))
        try:
            while (message := await socket.receive()) is not None:
                if not isinstance(message, str) or not client.ask(message):
                    await _hang_up(socket, CloseCode.POLICY_VIOLATION, "only requests are understood")
                    break
        finally:
            self._sockets.discard(socket)
            self.leave(client)
            end(writer)
            await wait_out([writer])

    def join(self, socket: Socket) -> Client:
        """Add a client; `write` sends it a snapshot first."""
        client = Client(socket, self._look)
        self.clients.add(client)
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        if self._ticker is None:
            self._tick_or_report()
            self._ticker = asyncio.create_task(self._tick_forever())
        client.wake.set()
        return client

    def leave(self, client: Client) -> None:
        """Remove a client; with the last one the ticker stops, and a moment later the graph is no longer watched."""
        self.clients.discard(client)
        self.values.leave(client.viewer)
        if self.clients:
            return
        if self._ticker is not None:
            end(self._ticker)
            self._ticker = None
        if self._linger is None and not self._closed:
            self._linger = asyncio.get_running_loop().call_later(self.linger_s, self._unwatch)

    async def write(self, client: Client) -> None:
        """Send a client all it has not been told, whenever it is woken; runs until cancelled."""
        while True:
            try:
                async with asyncio.timeout(self.heartbeat_s):
                    await client.wake.wait()
            except TimeoutError:
                if client.position is not None:
                    states, status, *_ = client.position
                    await client.socket.send_str(encode_heartbeat(states, status))
                continue
            client.wake.clear()
            for message in self._news(client):
                if isinstance(message, str):
                    await client.socket.send_str(message)
                else:
                    await client.socket.send_bytes(message)

    def open(self) -> None:
        """Let clients in again after `aclose`."""
        self._closed = False

    async def aclose(self) -> None:
        """Close all sockets and stop; idempotent. An open socket would otherwise hold the server's shutdown up."""
        self._closed = True
        await asyncio.gather(*[_hang_up(socket, CloseCode.GOING_AWAY, "server shutdown") for socket in self._sockets])
        await self.values.aclose()
        tasks = [task for task in (self._ticker, self._capture) if task is not None]
        self._ticker = self._capture = None
        for task in tasks:
            end(task)
        await wait_out(tasks)
        if self._linger is not None:
            self._linger.cancel()
        self._unwatch()

    async def _write_and_report(self, client: Client, socket: Socket) -> None:
        try:
            await self.write(client)
        except ConnectionError:
            pass  # the browser left while something was being sent
        except Exception:  # noqa: BLE001  a task's last stop
            _log.exception("the live page of graph %r failed", self.graph.name)
            await _hang_up(socket, CloseCode.INTERNAL_ERROR)

    # -- state --------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Take in new events, and wake the clients if there are any."""
        self._watch()
        if self.graph.revision != self._captured_revision and self._capture is None:
            self._capture = asyncio.create_task(self._capture_structure())
        telemetry, structure = self._telemetry, self._structure
        if structure is None or self._engine is None:
            return
        if telemetry is None or telemetry.structure is not structure or telemetry.engine is not self._engine:
            self._telemetry = telemetry = Telemetry(self._engine, structure, self.seq)
            telemetry.advance()
            changed = True
        else:
            changed = telemetry.advance()
        changed = self._tell_vitals() or changed
        control = encode_control(control_state(self.graph), self._command)
        changed = changed or control != self._control
        self._control = control
        self._encoded.clear()
        for client in self.clients:
            if changed or (client.timeline and client.calls != self._engine.trace.position):
                client.wake.set()

    def tell_command(self, command: dict[str, Any]) -> None:
        """Tell the clients of a user's command through the page: ``time``, ``by``, ``text``."""
        self._command = command
        if self.clients:
            self.tick()

    def _tell_vitals(self) -> bool:
        now_s = time.monotonic()
        if now_s < self._vitals_due_s:
            return False
        self._vitals_due_s = now_s + self.vitals_s
        assert self._vitals is not None
        message = encode_vitals(self._vitals.report(), time.time())
        for client in self.clients:
            client.vitals = message
        return True

    async def _tick_forever(self) -> None:
        loop = asyncio.get_running_loop()
        pause_s = self.interval_s
        while True:
            due_s = loop.time() + pause_s
            await asyncio.sleep(pause_s)
            if self._vitals is not None:
                self._vitals.late(max(0.0, loop.time() - due_s))
            start_s = time.thread_time()
            self._tick_or_report()
            pause_s = self.pause_s(time.thread_time() - start_s)

    def pause_s(self, took_s: float) -> float:
        """Seconds until the next tick behind one that has taken so much of the loop's time."""
        return max(self.interval_s, min(took_s / _MAX_SHARE, _MAX_PAUSE_S))

    def _tick_or_report(self) -> None:
        """Tick, and log a failure, which would go unnoticed; the next tick tries again."""
        try:
            self.tick()
            self._is_failing = False
        except Exception:  # noqa: BLE001  objects of a program in its graph must not stop the page for good
            if not self._is_failing:
                _log.exception("the live page of graph %r cannot be brought up to date", self.graph.name)
            self._is_failing = True

    def _news(self, client: Client) -> list[str | bytes]:
        telemetry = self._telemetry
        if telemetry is None:
            return []
        if client.telemetry is not telemetry or client.position is None:
            messages = [telemetry.structure.message, *telemetry.encode(None)]
            client.calls = None  # positions and nodes were those of before
        else:
            # Clients at the same sequence numbers have been told the same, so they share the encoding.
            told = client.position.states, client.position.status
            found = self._encoded.get(told)
            messages = self._encoded[told] = telemetry.encode(client.position) if found is None else found
        client.telemetry, client.position = telemetry, telemetry.position()
        if client.control != self._control:
            messages = [*messages, self._control]
            client.control = self._control
        if client.vitals is not None:
            messages = [*messages, client.vitals]
            client.vitals = None
        messages = [*messages, *self.values.take(client.viewer)]
        if client.timeline:
            messages = [*messages, *telemetry.encode_calls(client.calls)]
            client.calls = telemetry.engine.trace.position
        return messages

    def _look(self, viewer: Viewer, wanted: dict[str, Any]) -> bool:
        return self.values.ask(viewer, wanted, self._blob)

    def _blob(self, node_id: int) -> Blob | None:
        structure = self._structure
        if structure is None or not 0 <= node_id < len(structure.index_of) or structure.index_of[node_id] < 0:
            return None
        name = structure.names[structure.index_of[node_id]]
        node = self.graph.resolve(name) if name in self.graph else None
        return node if isinstance(node, Blob) and node.id == node_id and not node.spec.is_object else None

    async def structure(self) -> EncodedGraph:
        """EncodedGraph of the graph at its present revision."""
        if self._structure is None or self._structure.revision != self.graph.revision:
            if self._capture is None:
                self._capture = asyncio.create_task(self._capture_structure())
            await asyncio.shield(self._capture)
        assert self._structure is not None
        return self._structure

    def _watch(self) -> None:
        engine = self.graph.engine
        if engine is not self._engine:
            self._unwatch()
            engine.resources.watch()
            self._engine = engine
            self._vitals = Vitals(engine)
            self._vitals_due_s = time.monotonic() + self.vitals_s

    def _unwatch(self) -> None:
        self._linger = None
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.resources.unwatch()

    async def _capture_structure(self) -> None:
        revision = self.graph.revision
        work = partial(capture, self.graph.name, revision, self.graph.nodes, self.paths)
        try:
            try:
                self._structure = await in_thread(work)
            except DeviceError:  # there is no thread to be had: it takes the loop's time
                self._structure = work()
        except Exception:  # noqa: BLE001  a task's last stop
            _log.exception("cannot show revision %d of graph %r", revision, self.graph.name)
        self._captured_revision = revision
        self._capture = None
        if self.clients:
            self._tick_or_report()


async def _hang_up(socket: Socket, code: CloseCode, reason: str = "") -> None:
    try:
        async with asyncio.timeout(_CLOSE_TIMEOUT_S):
            await socket.close(code, reason)
    except (TimeoutError, ConnectionError):
        pass  # a browser that reads nothing, or has gone; the server drops the connection
