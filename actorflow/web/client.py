"""The other end of the live page's stream, for programs: a picture of a graph that runs in another process."""

from __future__ import annotations

import asyncio
import json
import struct
from collections import deque
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import numpy as np
import numpy.typing as npt
from aiohttp import (
    ClientConnectorError,
    ClientError,
    ClientSession,
    ClientWebSocketResponse,
    WSMsgType,
    WSServerHandshakeError,
)

from actorflow.web.access import allowing
from actorflow.web.http import CloseCode
from actorflow.web.wire import HEADER, OpStates

_FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 8.0
#: The server sends a heartbeat every 10 s, so a longer silence means that the connection is dead.
_SILENCE_S = 30.0
#: The structure of a very large graph is one message.
_MAX_MESSAGE_BYTES = 1 << 28
_REMEMBERED_FAILURES = 50


class Address(NamedTuple):
    """Address of a live page."""

    url: str  # of the page, with a slash at its end and without the token
    token: str | None  # None if it is not known

    @classmethod
    def parse(cls, text: str) -> Address:
        """``HOST:PORT``, ``HOST:PORT/prefix``, or a whole address, with ``?token=`` or without.

        Raises:
            ValueError: if it is none of these.
        """
        try:
            parts = urlsplit(text if "://" in text else f"http://{text}")
            host, port = parts.hostname, parts.port
        except ValueError:
            host = port = None
        if not host or parts.scheme not in {"http", "https"} or (port is None and "://" not in text):
            raise ValueError(f"expected HOST:PORT or the address of a live page, got {text!r}")
        token = parse_qs(parts.query).get("token", [None])[0]
        return cls(f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}/", token)


@dataclass
class Picture:
    """State of a graph as the messages tell it.

    Attributes:
        states: States and times of the ops, in this order; its ``node`` is not used.
        failed: How many calls of each op have failed.
        frames: How many have ``started``, ``finished``, ``failed``, were ``cancelled``.
        curves: Frame and value of the newest point of each, None for a value that is not finite.
        failures: The newest ones, as the ``status`` message has them.
        names: Names of all nodes by their ids.
        paused: Why no frame starts, if the graph is paused.
        vitals: The newest ``vitals`` message; empty before the first.
        vitals_count: How many of these there were.
        time_s: The server's clock at the newest message of states, status or vitals.
    """

    name: str = ""
    ops: list[str] = field(default_factory=list)
    states: OpStates = field(default_factory=lambda: OpStates.zeros(np.zeros(0, np.uint32)))
    failed: npt.NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, np.uint32))
    frames: dict[str, int] = field(default_factory=dict)
    curves: dict[str, tuple[int, float | None]] = field(default_factory=dict)
    failures: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=_REMEMBERED_FAILURES))
    names: dict[int, str] = field(default_factory=dict)
    paused: str | None = None
    vitals: dict[str, Any] = field(default_factory=dict)
    vitals_count: int = 0
    time_s: float = 0.0
    _row_of: npt.NDArray[np.intp] = field(default_factory=lambda: np.zeros(0, np.intp))
    _seen: dict[str, int] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        """True if there was a whole snapshot: structure, states, frames."""
        return {"states", "status"} <= self._seen.keys()

    def take(self, message: str | bytes) -> bool:
        """Take a message in; returns False if one before it is missing, so that a snapshot is to be asked for."""
        if isinstance(message, bytes):
            return self._take_states(message)
        content = json.loads(message)
        match content["type"]:
            case "graph":
                self._take_graph(content)
            case "status":
                return self._take_status(content)
            case "vitals":
                self.vitals, self.time_s = content, content["time"]
                self.vitals_count += 1
            case "control":
                self.paused = content["paused"] and content["paused"]["reason"]
            case "heartbeat":
                return all(content[kind] <= self._seen.get(kind, 0) for kind in ("states", "status"))
        return True

    def _take_graph(self, content: dict[str, Any]) -> None:
        nodes = content["nodes"]
        rows = [index for index, node in enumerate(nodes) if node["kind"] == "op"]
        self.name = content["name"]
        self.names = {node["id"]: node["name"] for node in nodes}
        self.ops = [nodes[index]["name"] for index in rows]
        self.states = OpStates.zeros(np.array(rows, np.uint32))
        self.failed = np.zeros(len(rows), np.uint32)
        self._row_of = np.zeros(len(nodes), np.intp)
        self._row_of[rows] = np.arange(len(rows))
        self._seen = {}

    def _take_states(self, message: bytes) -> bool:
        kind, count, base, seq, self.time_s, _, failing = HEADER.unpack_from(message)
        if not self._follows("states", base, seq, full=kind == 1):
            return False
        known: list[npt.NDArray[Any]] = list(self.states)
        columns: list[npt.NDArray[Any]] = []
        offset = HEADER.size
        for column in known:
            dtype = column.dtype.newbyteorder("<")
            columns.append(np.frombuffer(message, dtype, count, offset))
            offset += count * dtype.itemsize
        rows = self._row_of[OpStates._make(columns).node]
        for column, news in zip(known, columns, strict=True):
            column[rows] = news
        offset += -offset % 4
        nodes, failed = np.frombuffer(message, "<u4", 2 * failing, offset).reshape(2, failing)
        self.failed[rows] = 0
        self.failed[self._row_of[nodes]] = failed
        return True

    def _take_status(self, content: dict[str, Any]) -> bool:
        if not self._follows("status", content["base"], content["seq"], full=content["full"]):
            return False
        if content["full"]:
            self.curves.clear()
            self.failures.clear()
        self.time_s, self.frames = content["time"], content["frames"]
        for name, (frames, values) in content["curves"].items():
            if frames:
                self.curves[name] = frames[-1], values[-1]
        self.failures.extend(content["failures"])
        return True

    def _follows(self, kind: str, base: int, seq: int, *, full: bool) -> bool:
        if not full and base > self._seen.get(kind, -1):
            return False
        self._seen[kind] = seq
        return True


async def follow(address: Address, lost: Callable[[str], None]) -> AsyncGenerator[Picture, None]:
    """The picture of a graph after each message; the same object each time, until a new connection begins a new one.

    A lost connection is made again, with pauses of up to 8 s.

    Args:
        lost: Is told why the connection was lost, before each pause.
    Raises:
        ConnectionError: if the first connection fails, the server no longer lets this client in, or it speaks otherwise
            than a live page does.
    """
    headers = {} if address.token is None else {"Authorization": f"Bearer {address.token}"}
    pause_s, was_connected = _FIRST_PAUSE_S, False
    async with ClientSession(headers=headers) as session:
        while True:
            try:
                async with session.ws_connect(f"{address.url}stream", max_msg_size=_MAX_MESSAGE_BYTES) as socket:
                    picture = Picture()
                    while (message := await _next(socket)) is not None:
                        pause_s, was_connected = _FIRST_PAUSE_S, True
                        if not _is_taken(picture, message):
                            await socket.send_json({"type": "resync"})
                        yield picture
                problem = _closed(address, socket)
            except WSServerHandshakeError as error:
                problem = _refused(address, error.status)
                if error.status in {401, 403}:
                    raise ConnectionError(problem) from error
            except _Foreign as error:
                raise ConnectionError(f"what answers at {address.url} is not a live page of this version") from error
            except TimeoutError:
                problem = f"{address.url} has been silent for {_SILENCE_S:.0f} s"
            except (ClientError, OSError) as error:
                problem = _unreachable(address, error)
            if not was_connected:
                raise ConnectionError(problem)
            lost(problem)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


class _Foreign(Exception):  # noqa: N818  an answer, not an error
    """A message that no live page sends."""


def _is_taken(picture: Picture, message: str | bytes) -> bool:
    try:
        return picture.take(message)
    except (LookupError, TypeError, ValueError, RecursionError, struct.error) as error:
        raise _Foreign from error


async def _next(socket: ClientWebSocketResponse) -> str | bytes | None:
    message = await socket.receive(timeout=_SILENCE_S)
    if message.type is WSMsgType.TEXT or message.type is WSMsgType.BINARY:
        data: str | bytes = message.data
        return data
    return None


def _closed(address: Address, socket: ClientWebSocketResponse) -> str:
    match socket.close_code:
        case CloseCode.TRY_AGAIN_LATER:
            return f"{address.url} has as many clients as it takes (max_clients)"
        case code:
            return f"{address.url} has closed the connection ({code})"


def _refused(address: Address, status: int) -> str:
    match status:
        case 401 if address.token is None:
            return f"{address.url} asks for a token: --token, or ACTORFLOW_TOKEN in the environment"
        case 401:
            return f"{address.url} does not accept the token"
        case 403:
            host = urlsplit(address.url).netloc
            return (
                f"{address.url} lets nobody in by this name (HTTP 403): serve it with {allowing(host)}, "
                "or name the path that the page is below"
            )
        case 426:  # the answer of uvicorn without a library for WebSockets
            return f"the server at {address.url} takes no WebSockets (HTTP 426); for uvicorn: pip install websockets"
        case _:
            return f"there is no live page at {address.url} (HTTP {status}): is it below another path?"


def _unreachable(address: Address, error: Exception) -> str:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
    kind = "nothing answers" if isinstance(error, ClientConnectorError) else "no live page answers"
    return f"{kind} at {address.url}: {reason}"
