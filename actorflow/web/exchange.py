"""Requests, responses and WebSockets as this package sees them, whichever server they come through.

`actorflow.web.app` makes them of aiohttp's, `actorflow.web.asgi` of ASGI's; everything else knows only these.
"""

from __future__ import annotations

import json
import operator
from collections.abc import AsyncIterable, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol
from urllib.parse import parse_qsl

__all__ = ["MAX_MESSAGE_BYTES", "Answer", "CloseCode", "Refused", "Request", "Response", "Route", "Socket", "to_json"]

#: A client sends nothing but short requests.
MAX_MESSAGE_BYTES = 1024


def to_json(content: object) -> str:
    """JSON of what a program has set, where whole numbers may be NumPy's."""
    return json.dumps(content, default=operator.index)


class CloseCode(IntEnum):
    """Why a WebSocket is closed (RFC 6455, section 7.4, and IANA's registry)."""

    GOING_AWAY = 1001
    POLICY_VIOLATION = 1008
    MESSAGE_TOO_BIG = 1009
    INTERNAL_ERROR = 1011
    TRY_AGAIN_LATER = 1013


@dataclass(frozen=True, slots=True)
class Request:
    """What somebody asks for.

    Attributes:
        method: ``GET`` and the like.
        path: Below the prefix that the page is mounted at, decoded: ``/static/main.js``; empty for the bare prefix.
        target: The last part of the whole path as it was sent, which a relative redirect begins with.
        query_string: What stands behind the question mark, as it was sent.
        headers: Names in lower case and values, in the order of their arrival.
        scheme: ``http``, ``https``, ``ws`` or ``wss``.
        port: That the connection arrived on; None where there is none, or the server does not say.
        peer: Address of the other side, for the log; empty where the server does not say.
        chunks: The body.
    """

    method: str
    path: str
    target: str
    query_string: str
    headers: Sequence[tuple[str, str]]
    scheme: str
    port: int | None
    peer: str
    chunks: AsyncIterable[bytes]

    def values(self, header: str) -> list[str]:
        """All values of a header, whose name is given in lower case."""
        return [value for name, value in self.headers if name == header]

    def value(self, header: str) -> str:
        """The first value of a header; empty if there is none."""
        return next(iter(self.values(header)), "")

    @property
    def query(self) -> list[tuple[str, str]]:
        """Names and values behind the question mark, decoded."""
        return parse_qsl(self.query_string, keep_blank_values=True)

    @property
    def cookies(self) -> dict[str, str]:
        """Values by name, as they were sent; one that is written wrongly does not hide the others."""
        pairs = (part.partition("=") for value in self.values("cookie") for part in value.split(";"))
        return {name.strip(): value.strip() for name, _, value in pairs}

    async def body(self) -> bytes:
        """The whole body.

        Raises:
            Refused: with 413, if it has more than 1,024 bytes; with 400, if the client left before its end, as half of
                a command may be another command.
        """
        body = b""
        try:
            async for chunk in self.chunks:
                body += chunk
                if len(body) > MAX_MESSAGE_BYTES:
                    raise Refused(Response.of_text(413, f"expected a body of at most {MAX_MESSAGE_BYTES:,} bytes"))
        except ConnectionError:
            raise Refused(Response.of_text(400, "the body has no end")) from None
        return body


@dataclass(frozen=True, slots=True)
class Response:
    """What is answered.

    Attributes:
        status: HTTP's number.
        body: The content.
        content_type: What it is.
        headers: Others.
    """

    status: int = 200
    body: bytes = b""
    content_type: str = "text/plain; charset=utf-8"
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_text(cls, status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
        """A line of text that begins with the status."""
        return cls(status, f"{status}: {text}\n".encode(errors="backslashreplace"), headers=headers or {})

    @classmethod
    def of_json(cls, text: str, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
        """JSON of a moment, which nobody must keep."""
        return cls(
            status, text.encode(), "application/json; charset=utf-8", {"Cache-Control": "no-store", **(headers or {})}
        )


class Refused(Exception):  # noqa: N818  an answer, not an error
    """Ends the answering of a request with this response."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.status)
        self.response = response


Answer = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Route:
    """What is answered at a path.

    Attributes:
        method: ``GET``, which HEAD may ask for as well, or ``POST``.
        path: Below the prefix of the page.
        answer: Makes the response; it may raise `Refused`.
    """

    method: str
    path: str
    answer: Answer


class Socket(Protocol):
    """One client's WebSocket, accepted; a `ConnectionError` of a send says that the client has gone."""

    async def send_str(self, data: str, /) -> None:
        """Send text; returns when the transport can take more, which is what holds a slow client's messages back."""

    async def send_bytes(self, data: bytes, /) -> None:
        """Send binary data; returns when the transport can take more."""

    async def receive(self) -> str | bytes | None:
        """The next message; None when the connection has ended."""

    async def close(self, code: CloseCode, reason: str = "") -> None:
        """Close the connection; idempotent."""
