"""Connections within a simulated program: bytes come in such pieces, and so late, as a seed says."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any, Protocol, cast

#: Bytes on their way above which a sender is asked to wait.
_HIGH_BYTES = 1 << 16


class Chances(Protocol):
    """The decisions of a simulation about connections."""

    def travels_s(self, what: str) -> float:
        """Seconds that bytes are on their way."""

    def cut(self, what: str, size_bytes: int) -> int:
        """After how many bytes the others come later; 0 for all at once."""

    def hangs_up_s(self, what: str) -> float | None:
        """Time after which a connection is lost; None for one that is not."""


class Network:
    """The servers and connections of a simulated program.

    Args:
        loop: The loop.
        chances: The decisions of the seed.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, chances: Chances) -> None:
        self._loop = loop
        self._chances = chances
        self._servers: dict[int, Callable[[], Any]] = {}
        self._ports = count(49152)
        self._names = count()

    def listen(self, factory: Callable[[], Any], host: str, port: int) -> Listener:
        """Begin to serve; raises OSError if the port is taken."""
        port = port or next(each for each in self._ports if each not in self._servers)
        if port in self._servers:
            raise OSError(f"address {host}:{port} is in use in the simulation")
        self._servers[port] = factory
        return Listener(self._loop, host, port, self._servers)

    async def connect(self, factory: Callable[[], Any], port: int) -> tuple[End, Any]:
        """Connect to a server; raises ConnectionRefusedError if none listens."""
        name = f"connection {next(self._names)}"
        await asyncio.sleep(self._chances.travels_s(f"{name}: is made"))
        serve = self._servers.get(port)
        if serve is None:
            raise ConnectionRefusedError(f"nothing listens at port {port} of the simulation")
        near = End(self._loop, self._chances, f"{name}, to the server", ("127.0.0.1", next(self._ports)), port)
        far = End(self._loop, self._chances, f"{name}, to the client", ("127.0.0.1", port), near.address[1])
        near.peer, far.peer = far, near
        for end, make in ((far, serve), (near, factory)):
            end.protocol = make()
            end.protocol.connection_made(end)
        after_s = self._chances.hangs_up_s(name)
        if after_s is not None:
            self._loop.call_later(after_s, near.lose, ConnectionResetError(f"{name} was lost in the simulation"))
        return near, near.protocol


class Listener(asyncio.AbstractServer):
    """A server of a `Network`; it has one socket, which tells its address alone."""

    def __init__(self, loop: asyncio.AbstractEventLoop, host: str, port: int, servers: dict[int, Any]) -> None:
        self._loop = loop
        self._address = host, port
        self._servers = servers
        self.sockets = (self,)

    def getsockname(self) -> tuple[str, int]:
        """As of a socket."""
        return self._address

    def close(self) -> None:
        self._servers.pop(self._address[1], None)

    async def wait_closed(self) -> None:
        pass

    async def start_serving(self) -> None:
        pass

    async def serve_forever(self) -> None:
        await self._loop.create_future()

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def is_serving(self) -> bool:
        return self._address[1] in self._servers


class End(asyncio.Transport):
    """One end of a connection.

    Attributes:
        peer: The other one.
        protocol: Is given the received bytes.
        address: Its own.
    """

    peer: End
    protocol: Any

    def __init__(
        self, loop: asyncio.AbstractEventLoop, chances: Chances, name: str, address: tuple[str, int], port: int
    ) -> None:
        super().__init__({"sockname": address, "peername": ("127.0.0.1", port)})
        self.address = address
        self._loop = loop
        self._chances = chances
        self._name = name
        self._closing = self._is_lost = self._is_paused = self._writes_wait = False
        self._has_ended = self._end_is_known = False  # whether nothing more is sent, and the peer knows it
        self._underway: deque[bytes | None] = deque()  # what is on its way; None at the end
        self._arrived: deque[bytes | None] = deque()  # what nobody reads yet
        self._underway_bytes, self._high_bytes, self._low_bytes = 0, _HIGH_BYTES, _HIGH_BYTES // 4
        self._latest_s = 0.0  # when the last bytes arrive

    # -- what is sent -------------------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if self._is_lost or self._has_ended or not data:
            return
        content = bytes(data)
        self._underway_bytes += len(content)
        cut = self._chances.cut(self._name, len(content))
        for part in (content[:cut], content[cut:]) if cut else (content,):
            self._send(part)
        if self._underway_bytes > self._high_bytes and not self._writes_wait:
            self._writes_wait = True
            self.protocol.pause_writing()

    def _send(self, part: bytes | None) -> None:
        self._latest_s = max(self._latest_s, self._loop.time() + self._chances.travels_s(self._name))
        self._underway.append(part)  # timers of one time ring in any order
        self._loop.call_at(self._latest_s, self._arrive)

    def _arrive(self) -> None:
        part = self._underway.popleft()
        if self._is_lost:
            return
        self._underway_bytes -= len(part or b"")
        if self._writes_wait and self._underway_bytes <= self._low_bytes:
            self._writes_wait = False
            self.protocol.resume_writing()
        self.peer.take(part)
        if part is None:
            self._end_is_known = True
            if self._closing:
                self.lose(None)

    def write_eof(self) -> None:
        if not self._has_ended:
            self._has_ended = True
            self._send(None)

    def can_write_eof(self) -> bool:
        return True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high_bytes = _HIGH_BYTES if high is None else high
        self._low_bytes = self._high_bytes // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        return self._underway_bytes

    # -- what comes ---------------------------------------------------------------------------------------------

    def take(self, part: bytes | None) -> None:
        """Bytes have come, or the end of all."""
        self._arrived.append(part)
        self._tell()

    def _tell(self) -> None:
        while self._arrived and not self._is_paused and not self._is_lost:
            part = self._arrived.popleft()
            if part is not None:
                if not self._closing:
                    self.protocol.data_received(part)
            elif not self.protocol.eof_received():
                self.close()

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        self._is_paused = False
        self._loop.call_soon(self._tell)

    def is_reading(self) -> bool:
        return not self._is_paused and not self._closing

    # -- the end ------------------------------------------------------------------------------------------------

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            if self._has_ended:
                self._loop.call_at(max(self._latest_s, self._loop.time()), self.lose, None)
            self.write_eof()

    def abort(self) -> None:
        self.lose(None)

    def lose(self, error: Exception | None) -> None:
        """The connection is there no more; both ends hear of it."""
        if not self._is_lost:
            self._is_lost = self._closing = True
            self._loop.call_soon(self.protocol.connection_lost, error)
            if not self._end_is_known or error is not None:
                self._loop.call_soon(self.peer.lose, error or ConnectionResetError("the other end has hung up"))

    def get_protocol(self) -> asyncio.BaseProtocol:
        return cast(asyncio.BaseProtocol, self.protocol)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol
